"""The shelf: datasets that are open, by query and seed; a few at a time.

Comes in: a function that opens one. Goes out: one that stays open while somebody uses it. Each is opened once, in
a thread of its own; all who ask meanwhile wait for it, an error is told to all of them, and tried again by the next.
"""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from sds.errors import OptionError
from sds.index.brake import Brake

if TYPE_CHECKING:
    from sds.dataset import StreamingDataset

__all__ = ["Shelf", "View", "reordered", "while_waiting"]

_LOOK_S = 0.1  # how often it is looked whether those who wait are still there
_END_S = 5.0  # what a query has to end in, when the shelf is closed
_HAS_LEFT: ContextVar[Callable[[], bool] | None] = ContextVar("has_left", default=None)


@contextmanager
def while_waiting(has_left: Callable[[], bool]) -> Iterator[None]:
    """In this block, this thread waits for datasets only until `has_left()`."""
    before = _HAS_LEFT.set(has_left)
    try:
        yield
    finally:
        _HAS_LEFT.reset(before)


class View(NamedTuple):
    """What is looked at: the rows of a query, in the order of a seed.

    Attributes:
        query: SQL, or None.
        seed: of the order, or None.
        rows: the fingerprint of the rows that were shown; None: whatever they are.
    """

    query: str | None
    seed: int | None
    rows: str | None = None

    @property
    def id(self) -> str:
        """A short name for it."""
        return hashlib.blake2b(repr(tuple(self)).encode(), digest_size=8).hexdigest()


class _Place:
    """A dataset on the shelf, and how many use it; the thread that opens it is one of them."""

    def __init__(self) -> None:
        self.dataset: futures.Future[StreamingDataset] = futures.Future()
        self.brake = Brake()
        self.num_users = 1
        self.is_gone = False


class Shelf:
    """Open datasets. Safe from many threads.

    Args:
        open_dataset: opens the dataset of a query and a seed.
        most: how many stay open while nobody uses them.
    """

    def __init__(self, open_dataset: Callable[[str | None, int | None], StreamingDataset], most: int = 4) -> None:
        self._open = open_dataset
        self._most = most
        self._lock = threading.Lock()
        self._places: OrderedDict[tuple[str | None, int | None], _Place] = OrderedDict()
        self._known: dict[str, View] = {}
        self._is_closed = False

    def name(self, view: View, dataset: StreamingDataset) -> str:
        """The name by which `find` knows the rows of a view, as they are now."""
        exact = View(view.query, view.seed, dataset.fingerprint)
        self._known[exact.id] = exact
        return exact.id

    def find(self, id: str) -> View:
        """The view with this name.

        Raises:
            OptionError: there is none.
        """
        view = self._known.get(id)
        if view is None:
            raise OptionError(f"view is unknown: {id!r}", hint="the viewer was started anew: load the page again")
        return view

    @contextmanager
    def use(self, view: View) -> Iterator[StreamingDataset]:
        """The dataset of a view, open until the block ends. When all who wait for it have left, its query is stopped.

        Raises:
            OptionError: the shelf is closed, or the rows are no longer those that were shown.
            ConnectionAbortedError: who asked has left (`while_waiting`).
        """
        key = view.query, view.seed
        with self._lock:
            if self._is_closed:
                raise OptionError("the viewer is closed", hint="start it again")
            place = self._places.get(key)
            if place is None:
                place = self._places[key] = _Place()
                threading.Thread(target=self._fill, args=(key, place), name="sds-view-open", daemon=True).start()
            place.num_users += 1
            self._places.move_to_end(key)
        try:
            if (has_left := _HAS_LEFT.get()) is not None:
                self._wait(key, place, has_left)
            dataset = place.dataset.result()
            if view.rows not in (None, dataset.fingerprint):
                raise OptionError("rows of the source have changed since they were shown", hint="load the page again")
            yield dataset
        finally:
            self._leave(place)

    def _fill(self, key: tuple[str | None, int | None], place: _Place) -> None:
        """Opens a dataset: a thread."""
        try:
            twin = self._twin(*key)
            with place.brake.held():
                place.dataset.set_result(self._open(*key) if twin is None else twin)
        except BaseException as error:  # noqa: BLE001 (the border of a thread: it is told to all who wait)
            with self._lock:
                if self._places.get(key) is place:
                    del self._places[key]
            place.dataset.set_exception(error)
        self._leave(place)

    def _wait(self, key: tuple[str | None, int | None], place: _Place, has_left: Callable[[], bool]) -> None:
        """Waits until a dataset is open, as long as who asked does."""
        while not futures.wait([place.dataset], _LOOK_S).done:
            if not has_left():
                continue
            with self._lock:
                is_last = place.num_users == 2 and key[0] is not None  # this one, and the thread that opens it
                if is_last and self._places.get(key) is place:
                    del self._places[key]  # who asks from now on gets another
                    place.is_gone = True
            if is_last:
                _stop(place, None)
            raise ConnectionAbortedError("the browser went away")

    def _twin(self, query: str | None, seed: int | None) -> StreamingDataset | None:
        """A dataset of the same query that is open, in another order: its rows need not be found again."""
        with self._lock:
            alike = [place.dataset for (other, _), place in self._places.items() if other == query]
        for each in alike:
            if each.done() and each.exception() is None:
                return reordered(each.result(), seed)
        return None

    def _leave(self, place: _Place) -> None:
        """One user less; what was used longest ago is let go of."""
        gone: list[_Place] = []
        with self._lock:
            place.num_users -= 1
            if place.is_gone and not place.num_users:
                gone.append(place)
            idle = [key for key, each in self._places.items() if not each.num_users]
            gone += [self._places.pop(key) for key in idle[: max(0, len(self._places) - self._most)]]
        for each in gone:
            _close(each)

    def close(self) -> None:
        """Closes all; those that are in use when their users are done. Queries that are under way are stopped."""
        with self._lock:
            self._is_closed = True
            places = dict(self._places)
            self._places.clear()
            for place in places.values():
                place.is_gone = True
            idle = [place for place in places.values() if not place.num_users]
        for place in idle:
            _close(place)
        for (query, _), place in places.items():
            if query is not None:
                _stop(place, _END_S)


def reordered(dataset: StreamingDataset, seed: int | None) -> StreamingDataset | None:
    """The dataset over the same index with another seed; None: it has things open that two cannot share."""
    from sds.index import TableIndex
    from sds.index.lazy import LazyIndex

    index = dataset.delivery.pipeline.index
    if type(index) not in (TableIndex, LazyIndex):
        return None
    state = dataset.__getstate__()  # as a worker gets it: what every process has of its own is made anew
    if isinstance(index, LazyIndex):
        state["_index"] = copy.copy(index)  # each closes its own, and reads by its own connection
    twin = object.__new__(type(dataset))
    twin.__setstate__(state)
    twin.adopt(msgspec.structs.replace(dataset.plan_key, seed=seed))
    return twin


def _stop(place: _Place, patience_s: float | None) -> None:
    """Stops the query of a dataset that is being opened, and waits for it."""
    num_looks = 0
    while not place.dataset.done() and (patience_s is None or num_looks * _LOOK_S < patience_s):
        place.brake.pull()
        futures.wait([place.dataset], _LOOK_S)
        num_looks += 1


def _close(place: _Place) -> None:
    if place.dataset.done() and place.dataset.exception() is None:
        place.dataset.result().close()
