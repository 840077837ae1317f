"""DevicePrefetcher: any loader -> its batches on the device, the next ones on their way while one is trained on.

The state says what was handed to the caller: each batch carries the loader's state as of that batch. Leaving a loop,
closing, an error, Ctrl-C and garbage collection end the thread, and put the loader back to where its caller is; unless
the caller has sent it elsewhere meanwhile.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any, TypeVar

from sds.dataset.keywords import check_keywords
from sds.dataset.options import check_count
from sds.errors import OptionError, SdsError, StateError
from sds.loader.around import Around, innermost
from sds.loader.broadcast import BroadcastLoader
from sds.loader.device_ahead import Ahead
from sds.loader.device_copies import Copier
from sds.loader.device_kinds import check_device, device_for
from sds.loader.device_place import Place
from sds.loader.device_source import AtOnce, Source, close_if_it_can
from sds.loader.life import Life, close_unless_it_runs
from sds.loader.threads import Cancelling
from sds.units import parse_bytes

__all__ = ["DevicePrefetcher"]

log = logging.getLogger("sds")

P = TypeVar("P", bound="DevicePrefetcher")

_SOON_S = 0.5  # who leaves a loop waits no longer for the thread; it ends by itself then
_PATIENCE_S = 60.0  # who begins another does


@check_keywords
class DevicePrefetcher(Around):
    """The batches of a loader, on a device, made and copied ahead.

    Copies go through pinned memory on a stream of their own. A batch can be used on the current stream as if it had
    been there always; who uses it on another stream calls `record_stream` as usual. On the CPU nothing is copied.

    Args:
        loader: any iterable of batches: StreamingDataLoader, MultiStreamDataLoader, torch's DataLoader. Batches may be
            dicts, lists, tuples, named tuples and dataclasses, nested; what is no tensor is passed as it is.
        device: a torch device or its name. None: the current accelerator, or the CPU if there is none. Which one is
            the current is asked when it is first used.
        depth: batches that are made ahead of the one in use; 0 turns prefetching off.
        max_bytes: the same in bytes of tensors, a number or text such as "2gb"; one batch is always made ahead.
            None: no limit.
    """

    def __init__(
        self, loader: Any, device: Any = None, *, depth: int = 2, max_bytes: float | str | None = None
    ) -> None:
        if not hasattr(loader, "__iter__"):
            hint = "give a loader, such as sds.StreamingDataLoader or torch's DataLoader"
            raise OptionError(f"loader cannot be iterated over: {type(loader).__name__}", hint=hint)
        check_count("depth", depth, minimum=0)
        self.loader = loader
        self.depth = depth
        self.max_bytes = math.inf if max_bytes is None else parse_bytes(max_bytes, option="max_bytes")
        if depth and isinstance(loader, BroadcastLoader) and loader.group is None:
            log.warning("BroadcastLoader has no group of its own: in a thread, its broadcasts mix with your model's")
        check_device(device)
        super().__init__()
        self._asked = device
        self._cancelling = Cancelling()  # of the iteration that runs
        self._handing = threading.Lock()  # batches are handed out one after the other, by whatever thread takes them
        self._line: Ahead | AtOnce | None = None  # of the iteration that runs, or has not quite ended
        self._running: weakref.ref[Iterator[Any]] | None = None
        self._place = Place(loader, is_own=self._own is not None)
        self._num_lost = 0  # batches of an iterator that were made, and not taken
        self._is_paused = False

    @cached_property
    def _copier(self) -> Copier:
        return Copier(device_for(self._asked))

    @property
    def device(self) -> Any:
        """Where batches go."""
        return getattr(self._copier.device, "device", self._copier.device)

    @property
    def reader(self) -> Any:
        """The loader."""
        return self.loader

    def __len__(self) -> int:
        """Batches, as the loader says."""
        return len(self.loader)

    # ---- iteration --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The loader's batches, from where it begins. One iteration at a time: another one ends it."""
        self._end()
        is_counted = self.max_bytes < math.inf
        is_own = self._own is not None
        cancel = self.loader.cancel if isinstance(self.loader, Life | DevicePrefetcher) else None
        source = Source(self.loader, self._copier, self._tally, is_counted=is_counted, is_own=is_own, cancel=cancel)
        if source.is_given and self._num_lost:
            log.warning(
                "%d batches that were made ahead are lost: the loader is an iterator, of which there is one only; give "
                "what it is made of, or depth=0",
                self._num_lost,
            )
        self._num_lost = 0
        self._cancelling.is_set = False
        self._place.begin(source.state())
        batches = self._batches(source)
        self._running = weakref.ref(batches)
        return batches

    def _batches(self, source: Source) -> Iterator[Any]:
        line = self._line = self._begin(source)
        if self._cancelling.is_set:  # before there was a line
            line.cancel()
        is_complete, is_first = False, True
        box: list[Any] = []
        try:
            while self._get_another(line, box, is_first):
                is_first = False
                given = time.perf_counter()
                yield box.pop()  # without a name here: nobody but the caller keeps the batch
                self._tally.add_busy("consumer", given)
            is_complete = True
        finally:
            has_ended = line.stop(_SOON_S)
            self._tally.probe = None
            self._num_lost = line.num_lost
            if is_complete:
                self._line = None
                self._place.forget()  # the loader knows where it is: at the end
            elif has_ended:
                with suppress(SdsError):  # whoever uses the loader next meets it again
                    self._put_back()

    def _begin(self, source: Source) -> Ahead | AtOnce:
        self._begin_tally()
        if not self.depth:
            return AtOnce(source)
        in_step = isinstance(self.loader, BroadcastLoader)
        return Ahead(source, self.depth, self.max_bytes, in_step=in_step, is_paused=self._is_paused)

    def _get_another(self, line: Ahead | AtOnce, box: list[Any], is_first: bool) -> bool:
        """Waits for a batch, and puts it into the box; False: there is none left."""
        asked = time.perf_counter()
        self._tally.add_depth("device", len(line.ready))
        found = False
        while not found and line.wait():
            found = self._hand_out(line, box)  # or another thread has drained it
        self._note_wait(asked, is_first)
        return found

    def _hand_out(self, line: Ahead | AtOnce, box: list[Any]) -> bool:
        with self._handing:
            taken = line.take()
            if taken is None:
                return False
            box.append(self._copier.receive(taken.sent))
            self._place.reach(taken.state)
            self._tally.delivered(taken.num_samples)
            return True

    def _end(self) -> None:
        """Ends an iteration that runs, and waits for the thread of one that has not quite ended."""
        running = None if self._running is None else self._running()
        if running is not None and not close_unless_it_runs(running):
            hint = "leave the loop there; pause(), drain() and cancel() can be called from any thread"
            raise SdsError("another thread is waiting for a batch", hint=hint, stage="device")
        if self._line is None or not self._line.is_ours:
            self._line = None
            return
        if not self._line.stop(_PATIENCE_S):
            raise SdsError(
                f"the iteration before has not ended in {_PATIENCE_S:g} s: its loader does not return",
                hint="is a transform stuck, or a store? see the loader's timeout",
                stage="device",
            )
        self._put_back()

    def _put_back(self) -> None:
        """The loader goes back to where its caller is."""
        line, self._line = self._line, None
        if isinstance(line, AtOnce):
            self._place.forget()  # it is there
        else:
            self._place.put_back(innermost(self.loader))

    # ---- pause, drain, close ----------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Nothing more is made ahead until `resume()`: what is ready is handed out, and what is asked for is made."""
        self._is_paused = True
        if self._line is not None:
            self._line.pause()

    def resume(self) -> None:
        """Makes batches ahead again."""
        self._is_paused = False
        if self._line is not None:
            self._line.resume()

    def drain(self) -> Iterator[Any]:
        """Pauses, waits until nothing is under way, and gives the batches that are ready.

        They count as handed out when they are taken. Those that are not taken come as usual in the loop; nothing is
        lost.

        Returns:
            The batches that are ready, one after the other.
        """
        self.pause()
        line = self._line  # the loop of another thread may end meanwhile
        if line is not None:
            line.settle()
            for sent in line.ready:
                self._copier.finish(sent)
        return self._drained()

    def _drained(self) -> Iterator[Any]:
        box: list[Any] = []
        while (line := self._line) is not None and self._hand_out(line, box):
            yield box.pop()

    def cancel(self) -> None:
        """Ends the iteration that runs, from another thread: who waits there for a batch gets an SdsError soon."""
        self._cancelling.is_set = True
        line = self._line
        if line is not None:
            line.cancel()

    def close(self) -> None:
        """Ends the thread and the loader's, in the midst of an iteration or not. Both can be used again."""
        self._end()
        if "_copier" in self.__dict__:  # it was used
            self._copier.close()
        close_if_it_can(self.loader)
        self._end_listening()

    def __enter__(self: P) -> P:  # noqa: PYI019 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- state and stats --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The loader's state as of the batch that was handed out last, whatever was made ahead."""
        if not hasattr(self.loader, "state_dict"):
            hint = "give DevicePrefetcher a StreamingDataLoader, or torchdata's StatefulDataLoader"
            raise StateError(f"the loader has no state: {type(self.loader).__name__}", hint=hint)
        here = self._place.here
        if isinstance(here, Exception):
            raise here
        state: dict[str, Any] = self.loader.state_dict() if here is None else copy.deepcopy(here)
        return state

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next iteration goes on where the state says; a state of the loader alone is the same.

        Args:
            state: what `state_dict()` returned.
            strict: False is passed on to the loader.
        """
        if not hasattr(self.loader, "load_state_dict"):
            hint = "give DevicePrefetcher a StreamingDataLoader, or torchdata's StatefulDataLoader"
            raise StateError(f"the loader has no state: {type(self.loader).__name__}", hint=hint)
        self._end()
        if strict:
            self.loader.load_state_dict(state)
        else:
            self.loader.load_state_dict(state, strict=False)
        self._place.forget()

    @property
    def num_jumps(self) -> int:
        """How often our loader was told to go on somewhere else, by a state or an epoch."""
        return self._place.num_jumps
