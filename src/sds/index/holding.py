"""HeldIndex: a table whose samples lie inside its source; rows name places, and their content is read from there.

Comes in: a Manifest that says what is held. Goes out: rows as of any table; for a row, what is to be fetched if the
source is remote, and then its content. Local sources are read where they lie.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sds.errors import OptionError
from sds.fetch import File
from sds.index.held import Held, place_columns, place_keys
from sds.index.table import Manifest, TableIndex
from sds.types import Row, Sample

__all__ = ["HeldIndex", "Places", "open_table"]

_PART = {"tar": "part", "parquet": "sds_part", "lance": ""}  # the field of a place that says in which part it is


class Places(Protocol):
    """Reads what places name. Safe from many threads, and after a fork."""

    def files(self, places: Mapping[str, dict[str, Any]]) -> list[File]:
        """What is to be fetched: nothing, if the source is local."""
        ...

    def read(self, places: Mapping[str, dict[str, Any]], files: Sequence[File], paths: Sequence[str]) -> dict[str, Any]:
        """The content of places: bytes, or a path where a place has only that.

        Args:
            places: which, by column.
            files: what `files` asked for.
            paths: where that is now.
        """
        ...

    def close(self) -> None:
        """Lets go of what is held open."""
        ...


class HeldIndex(TableIndex):
    """An index whose samples lie inside its source. Safe to share between threads, to fork with, and to pickle."""

    _content: Places | None = None
    _room: int | None = None
    _pid = 0

    def use_room(self, limit: int | None) -> None:
        """Says how many bytes the cache may hold; None: no limit. What is fetched at once depends on it."""
        if limit != self._room:
            self._room, self._content = limit, None

    @property
    def held(self) -> Held:
        """What the source holds."""
        held = self._manifest.held
        assert held is not None
        return held

    @property
    def sample_schema(self) -> pa.Schema:
        """Names and types of the columns that samples have: bytes where rows, and SQL, have places that are wanted."""
        places, wanted = place_columns(self.schema, self.held.kind), self.held.wanted
        return pa.schema(
            [
                pa.field(each.name, pa.binary(), each.nullable) if each.name in places else each
                for each in self.schema
                if each.name not in places or wanted is None or each.name in wanted
            ]
        )

    def rows(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> list[Row]:
        """The rows with these numbers, in this order; content has the version of the part that it lies in."""
        held, found = self.held, []
        columns, field = place_columns(self.schema, held.kind), _PART[held.kind]
        for row in super().rows(ids):
            values, versions = row.values, dict(row.versions or {})
            for column in columns:
                if (place := values[column]) is not None:
                    versions[column] = held.parts[place.get(field, 0)].version
            found.append(Row(row.id, row.key, values, versions))
        return found

    def files(self, row: Row, sample: Sample) -> list[File]:
        """What is to be fetched for a row, as far as its sample still names it."""
        return self._reader().files(self._wanted(row, sample))

    def load(self, row: Row, sample: Sample, files: Sequence[File], paths: Sequence[str]) -> Sample:
        """The sample with content in the place of places; those that nobody wants are left out."""
        found = self._reader().read(self._wanted(row, sample), files, paths)
        keys = place_keys(self.held.kind)
        return {
            column: found.get(column, value)
            for column, value in sample.items()
            if column in found or type(value) is not dict or value.keys() != keys
        }

    def _wanted(self, row: Row, sample: Sample) -> dict[str, dict[str, Any]]:
        keys, wanted = place_keys(self.held.kind), self.held.wanted
        return {
            column: value
            for column, value in sample.items()
            if type(value) is dict
            and value.keys() == keys
            # a transform may have given it another name
            and (wanted is None or column in wanted or (wanted and column not in row.values))
        }

    def _reader(self) -> Places:
        if self._content is None or self._pid != os.getpid():  # a forked child must not touch its parent's locks
            self._content, self._pid = self._make_places(), os.getpid()
        return self._content

    def _make_places(self) -> Places:
        held = self.held
        if held.kind == "tar":
            import pyarrow.compute as pc

            from sds.index.tars_members import Members, block_size

            total = sum(part.size for part in held.parts)
            columns = [name for name in place_columns(self.schema, "tar") if held.wanted is None or name in held.wanted]
            wanted = sum(pc.sum(pc.struct_field(self.column(name), "size")).as_py() or 0 for name in columns)
            return Members(held.parts, block_size(total, wanted, len(self), self._room))
        if held.kind == "parquet":
            from sds.index.embedded_rows import Cells

            return Cells(held)
        if held.kind == "lance":
            from sds.index.lance import Taken

            return Taken(held)
        raise OptionError(f"index is of a later version: it holds {held.kind!r}", hint="choose another dst")

    def release(self) -> None:
        """Lets go of what is held open of the source; it is opened again when it is needed."""
        if self._content is not None:
            self._content.close()

    def close(self) -> None:
        """Lets go of everything; rows cannot be read after it."""
        self.release()
        super().close()


def open_table(manifest: Manifest) -> TableIndex:
    """Opens a table, with what it holds."""
    return TableIndex(manifest) if manifest.held is None else HeldIndex(manifest)
