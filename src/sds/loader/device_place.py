"""Where the caller of a prefetcher is in its loader, which is ahead of that.

Comes in: the loader's state as of each batch that is handed out. Goes out: the state that counts; and the loader, put
back there, unless somebody has sent it elsewhere since.
"""

from __future__ import annotations

from typing import Any

from sds.loader.device_source import close_if_it_can

__all__ = ["Place"]


class Place:
    """Of one prefetcher.

    Args:
        loader: whose states they are.
        is_own: it is one of ours: it counts its jumps, and goes on from its states as we know.
    """

    def __init__(self, loader: Any, *, is_own: bool) -> None:
        self._loader = loader
        self._is_own = is_own
        self._here: Any = None  # the loader's state as of what was handed out; None: the loader itself knows
        self._jumps_here = 0  # how often somebody had sent the loader elsewhere then
        self._jumps_begun = 0  # and when the iteration began
        self._num_put_back = 0  # jumps that were ours

    @property
    def num_jumps(self) -> int:
        """How often somebody else sent the loader elsewhere."""
        return self._loader.num_jumps - self._num_put_back if self._is_own else 0

    @property
    def here(self) -> Any:
        """The state that counts, or the error of a loader that has none; None: ask the loader."""
        return self._here if self._jumps_here == self.num_jumps else None

    def begin(self, state: Any) -> None:
        """An iteration begins at a state."""
        self.reach(state)
        self._jumps_begun = self._jumps_here

    def reach(self, state: Any) -> None:
        """A batch is handed out: this is the state as of it."""
        self._here, self._jumps_here = state, self.num_jumps

    def forget(self) -> None:
        """The loader itself knows where its caller is."""
        self._here = None

    def put_back(self, reader: Any) -> None:
        """Tells our loaders what their caller had of what they made: the next iteration begins as if without us.

        If somebody has set an epoch or loaded a state since the iteration began, that is where the next one begins.

        Args:
            reader: the innermost loader; None: another rank has it.
        """
        before = self.num_jumps
        if not (self._is_own and isinstance(self._here, dict) and before == self._jumps_begun):
            return
        self._loader.load_state_dict(self._here)
        if reader is not None:
            # a loaded position is used up by an iteration; the next one is the caller's, and begins as any other
            close_if_it_can(iter(reader))
        self._num_put_back += self.num_jumps - before
        self._here = None
