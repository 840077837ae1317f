"""What a URL says after its question mark: names -> numbers, views, cells.

Comes in: the query of a URL. Goes out: values that were looked at; an impossible one is an OptionError that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs

from sds.errors import OptionError
from sds.view.shelf import View

__all__ = ["Words"]

_MAX_NUMBER = 2**62


class Words:
    """What a URL says after its question mark."""

    def __init__(self, query: str) -> None:
        self._given = {name: values[-1] for name, values in parse_qs(query).items()}

    def text(self, name: str) -> str | None:
        """A word, if it was said."""
        return self._given.get(name)

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number >= 0.

        Raises:
            OptionError: it is none.
        """
        text = self._given.get(name)
        if text is None and default is not None:
            return default
        if text is None or not text.isdecimal() or len(text) > 19 or int(text) > _MAX_NUMBER:
            raise OptionError(f"{name} is no whole number: {text!r}", hint=f"from 0 to {_MAX_NUMBER}")
        return int(text)

    def cell(self, find: Callable[[str], View]) -> tuple[View, int, str]:
        """A view by its name, a row, a column."""
        return find(self.text("view") or ""), self.number("row"), self.text("column") or ""

    @property
    def view(self) -> View:
        """A query and a seed."""
        seed = self.number("seed") if self.text("seed") else None
        query = (self.text("sql") or "").strip() or None
        return View(query, seed)
