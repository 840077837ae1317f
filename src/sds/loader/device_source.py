"""What a prefetcher reads: one iteration of a loader, batch by batch, each with the loader's state as of that batch.

Comes in: any loader, and a Copier. Goes out: batches as the loader gave them, then on their way to the device. Whoever
reads does so in one thread, and closes in the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from sds.errors import StateError
from sds.events import Tally
from sds.loader.device_copies import Copier, Sent
from sds.loader.device_tree import num_bytes, tensors_of

__all__ = ["AtOnce", "Read", "Source", "Taken", "close_if_it_can"]


@dataclass(frozen=True)
class Read:
    """A batch as the loader gave it, with its tensors, and the loader's state as of that batch."""

    batch: Any
    state: Any
    num_samples: int
    tensors: list[torch.Tensor]
    num_bytes: int


class Taken(NamedTuple):
    """A batch on its way, the loader's state as of it, and its samples, if the loader counts them."""

    sent: Sent
    state: Any
    num_samples: int


class Source:
    """A loader's iteration, which begins here, in its caller's thread: torch starts its workers there.

    Args:
        loader: whose iteration it is.
        copier: what sends batches.
        tally: what is told of the time that takes.
        is_counted: bytes are counted also where nothing is copied.
        is_own: the loader is one of ours: it counts samples, and tells what it waits for.
        cancel: ends a wait of the loader's, from another thread; None: it has no way to.
    """

    def __init__(
        self,
        loader: Any,
        copier: Copier,
        tally: Tally,
        *,
        is_counted: bool = True,
        is_own: bool = False,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        self._loader = loader
        self._copier = copier
        self._tally = tally
        self._copies = copier.device.copies
        self._is_walked = self._copies or is_counted
        self._is_own = is_own
        self._cancel = cancel
        self._is_closed = False
        self._begun = copier.begin()
        self._batches: Any = iter(loader)

    @property
    def is_given(self) -> bool:
        """Whether the caller gave an iterator: it is the caller's, and no other can be had."""
        return self._batches is self._loader

    def enter(self) -> None:
        """Prepares a thread that reads."""
        self._copier.enter(self._begun)

    def state(self) -> Any:
        """Where the loader stands; an error, if it cannot say: it is raised when somebody asks."""
        try:
            return self._loader.state_dict() if hasattr(self._loader, "state_dict") else None
        except StateError as error:
            return error

    def read(self) -> Read | None:
        """The next batch; None: there is none."""
        before, start = self._num_given, time.perf_counter()
        try:
            batch = next(self._batches)
        except StopIteration:
            return None
        finally:
            if not self._is_own:
                self._tally.add_wait("loader", time.perf_counter() - start, start_s=start)
        tensors = tensors_of(batch) if self._is_walked else []
        return Read(batch, self.state(), self._num_given - before, tensors, sum(map(num_bytes, tensors)))

    @property
    def _num_given(self) -> int:
        return self._loader.num_given if self._is_own else 0

    def send(self, read: Read) -> Taken:
        """Puts a batch on its way."""
        start = time.perf_counter()
        sent = self._copier.send(read.batch, read.tensors)
        if self._copies:
            self._tally.add_busy("device", start, num_bytes=sent.num_bytes)
        return Taken(sent, read.state, read.num_samples)

    def cancel(self) -> None:
        """From another thread: a loader of ours that waits for a batch gives up. Others finish theirs."""
        if self._cancel is not None and not self._is_closed:
            self._cancel()

    def close(self) -> None:
        """Lets go of the loader."""
        is_given, batches, self._batches = self.is_given, self._batches, iter(())
        if not is_given:
            close_if_it_can(batches)
        self._is_closed = True


class AtOnce:
    """Prefetching turned off: a batch is read and sent when it is asked for. Otherwise as Ahead."""

    is_ours = True
    num_lost = 0
    ready: Sequence[Sent] = ()

    def __init__(self, source: Source) -> None:
        self._source = source
        self._next: Read | None = None

    def wait(self) -> bool:
        """Whether there is another batch."""
        self._next = self._source.read()
        return self._next is not None

    def take(self) -> Taken | None:
        """The batch on its way; None: nothing is there."""
        read, self._next = self._next, None
        return None if read is None else self._source.send(read)

    def cancel(self) -> None:
        """Ends a wait of the loader's."""
        self._source.cancel()

    def pause(self) -> None:
        """Nothing is read ahead."""

    def resume(self) -> None:
        """Nothing is read ahead."""

    def settle(self) -> None:
        """Nothing is under way."""

    def stop(self, patience_s: float) -> bool:  # noqa: ARG002 (as Ahead)
        """Lets go of the loader."""
        self._source.close()
        return True


def close_if_it_can(thing: Any) -> None:
    """Closes a generator, or a loader that can be closed."""
    close = getattr(thing, "close", None)
    if close is not None:
        close()
