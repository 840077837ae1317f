"""What the page asks for: rows of a query in the order of an epoch, one sample with what transforms make of it, files.

Comes in: numbers and names out of URLs. Goes out: values for JSON, and bytes. Only the rows that are shown are read;
files are those that the dataset's own rows name, found by row and column, never by a path.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from sds.errors import (
    DecodeError,
    FetchError,
    OptionError,
    SampleError,
    SchemaError,
    SdsError,
    SourceError,
    UnsupportedSource,
)
from sds.types import Failure, Row
from sds.view import cache, pictures
from sds.view.contents import content, opened, taken
from sds.view.kinds import HEAD, SHOWN, sniff
from sds.view.outputs import Part, parts_of, sample_rate
from sds.view.rows import kinds_of, told_row
from sds.view.shelf import Shelf, View

if TYPE_CHECKING:
    from sds.dataset import StreamingDataset

__all__ = ["Gallery"]

MAX_PAGE = 200
_CELL = 2_000  # letters of a cell on a page of many
_TEXT = 20_000  # bytes of a text file
_AS_IT_IS = 200_000  # bytes of an image that needs no thumbnail,
_PIXELS_AS_THEY_ARE = 4_000_000  # unless it has more than these
_MOST_PIXELS = 89_478_485  # of an image that is given to a browser at all: those that DecodeImage takes
_NUM_OUTPUTS = 8  # samples whose outputs are kept, to be drawn
_NEXT_EPOCHS = 3
_NUM_FAILURES = 10_000  # that are remembered for a query,
_TOLD_FAILURES = 500  # and told at once


class Gallery:
    """Answers for one source. Safe from many threads.

    Args:
        shelf: opens datasets.
        failures: rows that failed elsewhere, such as in a recorded run.
    """

    def __init__(self, shelf: Shelf, failures: Sequence[Failure] = ()) -> None:
        self.shelf = shelf
        self._failures = list(failures)
        self._lock = threading.Lock()
        self._outputs: OrderedDict[tuple[View, int, int], list[list[Part]]] = OrderedDict()
        self._found: dict[str | None, dict[Failure, None]] = {}  # by query: whatever the order, rows are the same

    def about(self, view: View) -> dict[str, Any]:
        """What the source is, in words."""
        with self.shelf.use(view) as dataset:
            return {
                "view": self.shelf.name(view, dataset),
                "source": dataset.delivery.pipeline.options.source_text,
                "explain": dataset.explain(),
                "columns": [{"name": field.name, "type": str(field.type)} for field in dataset.schema],
                "transforms": [repr(each) for each in _chain(dataset)],
                "data_type": dataset.data_type,
            }

    def page(self, view: View, epoch: int, at: int, num: int) -> dict[str, Any]:
        """Some rows, in the order of an epoch; none, if the query leaves none."""
        try:
            with self.shelf.use(view) as dataset:
                length = dataset.plan.length(epoch)
                at = min(at, max(0, length - 1))
                positions = np.arange(at, min(at + min(num, MAX_PAGE), length))
                ids, _ = dataset.plan.find(epoch, positions)
                index = dataset.delivery.pipeline.index
                rows = index.rows(ids)
                kinds = kinds_of(dataset, rows)
                return {
                    "view": self.shelf.name(view, dataset),
                    "total": length,
                    "rows_at_source": index.facts.rows_at_source,
                    "at": at,
                    "columns": [field.name for field in index.schema],
                    "rows": [
                        {"position": int(position), **told_row(dataset, row, kinds, _CELL)}
                        for position, row in zip(positions, rows, strict=True)
                    ],
                }
        except SourceError as error:
            if view.query is not None and type(error) is SourceError and error.message.startswith("query leaves none"):
                return {"view": None, "total": 0, "at": 0, "columns": [], "rows": [], "message": error.message}
            raise

    def sample(self, view: View, epoch: int, position: int) -> dict[str, Any]:
        """One row, and what the transforms make of it; an error of theirs is part of the answer."""
        with self.shelf.use(view) as dataset:
            plan = dataset.plan
            if not 0 <= position < plan.length(epoch):
                hint = f"epoch {epoch} has {plan.length(epoch)} positions"
                raise OptionError(f"position is not in the epoch: {position}", hint=hint)
            (id,), (copy,) = plan.find(epoch, np.array([position]))
            (row,) = dataset.delivery.pipeline.index.rows([id])
            found = told_row(dataset, row, kinds_of(dataset, [row]), _TEXT)
            name = self.shelf.name(view, dataset)
            answer = {"view": name, "epoch": epoch, "position": position, "copy": int(copy), **found}
            answer["comes_at"] = [_place(dataset, each, row.id) for each in range(epoch, epoch + _NEXT_EPOCHS)]
            try:
                made = self._make(dataset, row, epoch, position, int(copy))
            except SdsError as error:
                self._record(view, row, error)
                return {**answer, "outputs": [], "error": told_error(error)}
            with self._lock:
                self._outputs[self.shelf.find(name), epoch, position] = made
                while len(self._outputs) > _NUM_OUTPUTS:
                    self._outputs.popitem(last=False)
            return {**answer, "outputs": [[_told_part(part) for part in parts] for parts in made]}

    def output(self, view: View, epoch: int, position: int, item: int, number: int) -> pictures.Encoded:
        """A picture or sound of what a transform made: of the item-th sample that a row became, the number-th field."""
        key = view, epoch, position
        if key not in self._outputs:
            self.sample(*key)
        try:
            draw = self._outputs[key][item][number].draw
        except (KeyError, IndexError):
            draw = None
        if draw is None:
            raise OptionError(f"output is not to be had: {item}.{number}", hint="load the page again")
        return draw()

    def position_of(self, view: View, epoch: int, row: int, key: str | None = None) -> int:
        """Where a row comes in an epoch; with a key, only if the row has it.

        Raises:
            OptionError: it does not, or it is another row: of another query, or of a run over other rows.
        """
        hint = "is it left out by the query, or its weight?"
        with self.shelf.use(view) as dataset:
            if not 0 <= row < dataset.plan.num_rows:
                raise OptionError(f"row is not among those that are shown: {row}", hint=hint)
            (found,) = dataset.delivery.pipeline.index.rows([row])
            if key not in (None, found.key):
                raise OptionError(f"row {row} is another one here: {found.key}, not {key}", hint=hint)
            place = _place(dataset, epoch, row)["position"]
        if place is None:
            raise OptionError(f"row is not in epoch {epoch}: {row}", hint=hint)
        return int(place)

    def cache(self, view: View) -> dict[str, Any]:
        """The cache, and what was fetched since the viewer began."""
        with self.shelf.use(view) as dataset:
            options, stats = dataset.delivery.client.options, dataset.stats()
        counts = {name: getattr(stats, name) for name in ("hits", "misses", "requests", "bytes_downloaded")}
        return {**cache.describe(Path(options.dst)), "limit": options.limit, "policy": options.policy, **counts}

    def failures(self, view: View) -> dict[str, Any]:
        """Rows that failed: of this query since the viewer began, and elsewhere before; how many, and the first."""
        with self._lock:
            failures = list(dict.fromkeys([*self._found.get(view.query, ()), *self._failures]))
        told = [
            {"row": each.row_id, "key": each.key, "stage": each.stage, "reason": each.reason}
            for each in failures[:_TOLD_FAILURES]
        ]
        return {"total": len(failures), "failures": told}

    def thumb(self, view: View, row_id: int, name: str) -> pictures.Encoded:
        """A small picture of an image, a video or a sound; a small image as it is."""
        with self._cell(view, row_id, name) as (dataset, row):
            index, client = dataset.delivery.pipeline.index, dataset.delivery.client
            with opened(index, client, row, name) as (file, size):
                type_ = sniff(file.read(HEAD))
            kind = (type_ or "").partition("/")[0]
            if kind in ("video", "audio"):
                with taken(index, client, row, name) as media:
                    return pictures.poster(media) if kind == "video" else pictures.waveform(media)
            if size == 0:
                raise DecodeError("file is empty", hint="was its upload cut short?", key=row.key)
            if type_ in SHOWN and size <= _AS_IT_IS:
                data = content(index, client, row, name)
                if pictures.num_pixels(io.BytesIO(data)) <= _PIXELS_AS_THEY_ARE:
                    return type_, data
            with taken(index, client, row, name) as media:
                return pictures.thumbnail(media)

    def text(self, view: View, row_id: int, name: str) -> dict[str, Any]:
        """The beginning of a text file."""
        with (
            self._cell(view, row_id, name) as (dataset, row),
            opened(dataset.delivery.pipeline.index, dataset.delivery.client, row, name) as (file, size),
        ):
            data = file.read(min(size, _TEXT)) or b""
        return {"text": data.decode("utf-8", "replace") + ("…" if size > _TEXT else "")}

    @contextmanager
    def file(self, view: View, row_id: int, name: str) -> Iterator[tuple[BinaryIO, int, str]]:
        """An image, video or sound: an open file, its size, its media type. Other files are not given out.

        Raises:
            UnsupportedSource: it is another file.
            DecodeError: it is an image that would take a browser's memory.
        """
        with (
            self._cell(view, row_id, name) as (dataset, row),
            opened(dataset.delivery.pipeline.index, dataset.delivery.client, row, name) as (file, size),
        ):
            type_ = sniff(file.read(HEAD))
            if type_ is None:
                hint = "by its first bytes; only those are shown"
                raise UnsupportedSource(f"file is no image, video or sound: row {row_id}, {name!r}", hint=hint)
            if type_ in SHOWN:
                file.seek(0)
                if pictures.num_pixels(file) > _MOST_PIXELS:
                    hint = "what decodes it takes no more either, unless DecodeImage is told to"
                    raise DecodeError(f"image has more than {_MOST_PIXELS:,} pixels", hint=hint, key=row.key)
            yield file, size, type_

    @contextmanager
    def _cell(self, view: View, row_id: int, name: str) -> Iterator[tuple[StreamingDataset, Row]]:
        """A row of a dataset that stays open; what goes wrong with its file is recorded."""
        with self.shelf.use(view) as dataset:
            index = dataset.delivery.pipeline.index
            if not 0 <= row_id < len(index):
                raise OptionError(f"row is not in the index: {row_id}", hint=f"there are {len(index)}")
            if name not in index.schema.names:
                raise SchemaError(f"column is not in the index: {name!r}", hint=f"columns: {index.schema.names}")
            (row,) = index.rows([row_id])
            try:
                yield dataset, row
            except (FetchError, SampleError) as error:  # of others, the row has no fault: an extra is not installed
                self._record(view, row, error)
                raise

    def _record(self, view: View, row: Row, error: SdsError) -> None:
        """Remembers a failure, once."""
        failure = Failure(row.key, row.id, error.url, error.stage or "fetch", error.message)
        with self._lock:
            found = self._found.setdefault(view.query, {})
            if len(found) < _NUM_FAILURES:
                found[failure] = None

    def _make(self, dataset: StreamingDataset, row: Row, epoch: int, position: int, copy: int) -> list[list[Part]]:
        """The samples that a row becomes, with the randomness that it has at this position; as parts."""
        delivery = dataset.delivery
        job = delivery.pipeline.prepare(row, epoch, position, copy)
        (ticket,) = delivery.client.submit([job.files])
        try:
            samples = delivery.exactly(job, ticket, [])
            return [parts_of(sample, sample_rate(sample, _chain(dataset))) for sample in samples]
        finally:
            ticket.release()


def told_error(error: SdsError) -> dict[str, Any]:
    """An error as the page shows it."""
    return {"kind": type(error).__name__, "message": error.message, "hint": error.hint, "stage": error.stage}


def _chain(dataset: StreamingDataset) -> tuple[Any, ...]:
    return dataset.delivery.pipeline.options.transforms


def _told_part(part: Part) -> dict[str, Any]:
    return {"name": part.name, "kind": part.kind, "text": part.text, "is_drawn": part.draw is not None}


def _place(dataset: StreamingDataset, epoch: int, row_id: int) -> dict[str, Any]:
    """Where a row comes in an epoch; None: its weight leaves it out of this one."""
    try:
        position: int | None = int(dataset.plan.position(epoch, row_id))
    except (IndexError, KeyError, ValueError):
        position = None
    return {"epoch": epoch, "position": position}
