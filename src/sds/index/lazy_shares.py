"""A long pass, divided: whoever opens the same index takes shares of the work until none is left.

Comes in: a number of shares, what to do for one, and boards on which results are found and claimed: a folder, which
processes of a machine have in common and often machines too, or another place that ranks have. Goes out: every result,
on the first board. Nobody waits without end: a share whose owner died, or takes much longer than others, is done again.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from sds.errors import CacheError
from sds.index import lock

__all__ = ["Board", "FolderBoard", "work_off"]

_POLL_S, _MAX_POLL_S = 0.02, 0.5  # between looks at what others do
_PATIENCE_S = 10.0  # with an owner who is known to be slow or dead; shares take seconds
_TIMES_LONGER = 4


class Board(Protocol):
    """Where results of shares are."""

    def find(self, share: int) -> bytes | None:
        """A share's result; None: there is none yet."""
        ...

    def claimed(self, share: int) -> AbstractContextManager[bool]:
        """Whether the share is this process's to do, until the block ends."""
        ...

    def publish(self, share: int, result: bytes) -> None:
        """Makes a result known to all."""
        ...


class FolderBoard:
    """Results as files of a folder, claims as locks that end with their process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, share: int) -> bytes | None:
        """A share's result; None: there is none yet."""
        try:
            return self._path(share).read_bytes()
        except OSError:
            return None

    @contextmanager
    def claimed(self, share: int) -> Iterator[bool]:
        """Whether the share is this process's to do, until the block ends."""
        with ExitStack() as stack:
            try:
                stack.enter_context(lock.held(self._folder / f"{share}.lock", timeout_s=0))
            except (CacheError, FileNotFoundError):  # another process has it; or all is done, and the folder is gone
                yield False
                return
            yield True

    def publish(self, share: int, result: bytes) -> None:
        """Makes a result known to all; if the folder is gone, somebody else needed it no more."""
        made = self._folder / f"{secrets.token_hex(6)}.part"
        try:
            with suppress(FileNotFoundError):
                made.write_bytes(result)
                made.replace(self._path(share))
        except OSError as e:
            hint = "make room there, or choose another dst"
            raise CacheError(f"counts cannot be written: {made}: {e}", hint=hint, url=str(made)) from e

    def _path(self, share: int) -> Path:
        return self._folder / f"{share}.done"


def work_off(
    num_shares: int,
    work: Callable[[int], bytes],
    boards: Sequence[Board],
    *,
    until_done: bool,
    patience_s: float = _PATIENCE_S,
) -> int:
    """Does shares that nobody else does.

    Args:
        num_shares: how many there are.
        work: makes the result of one; the same whoever does it.
        boards: the first one has all results in the end.
        until_done: whether to wait for what others do, and to do that too if they do not; else what is left is theirs.
        patience_s: how long to wait for others at least.

    Returns:
        How many shares were done here.
    """
    missing = list(range(num_shares))
    first = os.getpid() % num_shares  # not all begin with the same one
    missing = missing[first:] + missing[:first]
    num_done, longest, since, pause_s = 0, 0.0, time.monotonic(), _POLL_S

    def do(share: int) -> None:
        nonlocal num_done, longest
        began = time.monotonic()
        result = work(share)
        longest = max(longest, time.monotonic() - began)
        num_done += 1
        for board in boards:
            board.publish(share, result)

    while True:
        left = []
        for share in missing:
            if _is_there(share, boards):
                continue
            with ExitStack() as stack:
                if not all(stack.enter_context(board.claimed(share)) for board in boards):
                    left.append(share)
                elif not _is_there(share, boards):  # nobody did it since
                    do(share)
        if not left or not until_done:
            return num_done
        pause_s = min(2 * pause_s, _MAX_POLL_S)
        if len(left) < len(missing):
            since, pause_s = time.monotonic(), _POLL_S
        elif time.monotonic() - since > max(patience_s, _TIMES_LONGER * longest):
            do(left.pop(0))
            since = time.monotonic()
        missing = left
        time.sleep(pause_s)


def _is_there(share: int, boards: Sequence[Board]) -> bool:
    """Whether there is a result; what another board has is put on the first."""
    if boards[0].find(share) is not None:
        return True
    for board in boards[1:]:
        result = board.find(share)
        if result is not None:
            boards[0].publish(share, result)
            return True
    return False
