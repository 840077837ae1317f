"""The logger 'sds': quiet unless something is wrong, or SDS_LOG_LEVEL asks for more.

Comes in: SDS_LOG_LEVEL, read when a dataset or a command begins, never at import. Goes out: lines on stderr, warnings
and worse by default. A program that has set up logging of its own gets the records instead; none is printed twice.
"""

from __future__ import annotations

import logging
import os
import sys

from sds.errors import OptionError

__all__ = ["LEVELS", "set_up"]

LEVELS = ("debug", "info", "warning", "error", "critical")


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]  # generic for type checkers only
    """Writes to stderr, whatever that is by then, unless the program has handlers of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def set_up(who: str = "") -> None:
    """Gives the logger its level and its way to stderr. Harmless when repeated; a level set in code stays.

    Args:
        who: stands before each line, where there are several processes: "rank 1", "rank 0 worker 2".

    Raises:
        OptionError: SDS_LOG_LEVEL is no level.
    """
    logger = logging.getLogger("sds")
    wanted = os.environ.get("SDS_LOG_LEVEL", "").strip().lower()
    if wanted:
        if wanted not in LEVELS:
            raise OptionError(f"SDS_LOG_LEVEL is unknown: {wanted!r}", hint=f"one of {', '.join(LEVELS)}")
        logger.setLevel(wanted.upper())
    handler = next((each for each in logger.handlers if isinstance(each, _Stderr)), None)
    if handler is None:
        handler = _Stderr()
        logger.addHandler(handler)
    if who or handler.formatter is None:
        prefix = f"{who}: ".replace("%", "%%") if who else ""
        handler.setFormatter(logging.Formatter(f"%(name)s %(levelname)s: {prefix}%(message)s"))
