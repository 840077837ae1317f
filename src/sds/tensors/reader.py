"""TensorCache: a cache on disk or in a store, as a sequence of samples whose tensors are read when they are touched.

Comes in: a path or URL. Goes out: samples by position, keys, shapes. Opening reads index.json and a listing; shapes and
keys come from columns; tensors are read by position, so a cache may be forked, pickled and used by threads.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError, TensorCacheError
from sds.fetch import FetchClient, FetchOptions
from sds.tensors import skeleton
from sds.tensors.catalog import Catalog, hashes_of, load
from sds.tensors.columns import Columns, Facts
from sds.tensors.format import corrupt, digest
from sds.tensors.gather import Gathered, can_gather
from sds.tensors.keys import Keys, Marks
from sds.tensors.layout import DTYPES, Bucket, view_of
from sds.tensors.lazy import LazyBlock, LazyTensor, realize
from sds.tensors.local import LocalPlace
from sds.tensors.places import Place, Want, cache_folder
from sds.tensors.remote import RemotePlace
from sds.tensors.spare import Spare
from sds.tensors.stacking import stack_field
from sds.tensors.verify import verify_shard
from sds.urls import is_remote, local_path

__all__ = ["TensorCache", "TensorInfo"]


class TensorInfo(NamedTuple):
    """What a tensor is like, known without reading it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


Info = dict[str, TensorInfo]


class TensorCache(Sequence[Any]):
    """Reads a tensor cache.

    Args:
        path: a folder, or the URL of one (s3://, gs://, az://, http(s)://).
        access: 'pread' reads into memory of its own; 'mmap' maps local shards, and tensors are pages of the file: quick
            on local disks, slow on network volumes, and not to be changed in place.
        fingerprint: show the samples that this made; None: those of the last one.
        verify: compare every block that is read with its hash.
        storage_options: endpoint, region, keys, ... for remote caches.
        dst: where columns of remote caches are kept. Default: a folder in the user's cache folder.
        client: fetches for a remote cache. Default: a client of its own, made of `dst` and `storage_options`.

    Raises:
        TensorCacheError: there is no cache, or one of another version.
        ShardCorrupt: a file of it is not what was written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        access: str = "pread",
        fingerprint: str | None = None,
        verify: bool = False,
        storage_options: dict[str, Any] | None = None,
        dst: str | os.PathLike[str] | None = None,
        client: FetchClient | None = None,
    ) -> None:
        if access not in ("pread", "mmap"):
            raise OptionError(f"access is unknown: {access!r}", hint="'pread' or 'mmap'")
        self.path = os.fspath(path)
        self.access = access
        self.spare = Spare()
        self.verify_reads = bool(verify)
        self._place: Place
        if is_remote(self.path):
            folder = cache_folder(self.path, storage_options) if dst is None else Path(dst)
            client = client or FetchClient(FetchOptions(dst=str(folder), settings=dict(storage_options or {})))
            self._place = RemotePlace(self.path, client, folder / "columns")
        else:
            self._place = LocalPlace(local_path(self.path))
        self._catalog: Catalog = load(self._place, is_listed=isinstance(self._place, LocalPlace))
        if not self._catalog.shards and self._place.read_file("index.json") is None:
            hint = "check the path; a cache that is being built is there when its first shard is committed"
            raise TensorCacheError(f"no tensor cache: {self.path}", hint=hint, url=self.path)
        self._begin(self._catalog.chosen(fingerprint))
        if not self._shards and fingerprint is not None and self._catalog.shards:
            known = sorted({facts.fingerprint for facts in self._catalog.shards})
            hint = f"there are: {', '.join(map(repr, known[:10]))}"
            raise TensorCacheError(f"no samples of this fingerprint: {fingerprint!r}", hint=hint, url=self.path)

    def _begin(self, shards: tuple[Facts, ...]) -> None:
        self._shards = shards
        # where the positions of each shard end
        self._ends = list(accumulate(facts.samples - len(facts.skip) for facts in shards))
        self._columns: dict[int, Columns] = {}
        self._shown: dict[int, npt.NDArray[np.int64]] = {}
        self._marks: Marks | None = None

    @property
    def fingerprint(self) -> str:
        """What made the samples that are shown."""
        return self._shards[-1].fingerprint if self._shards else ""

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """All fingerprints in the folder, the oldest first."""
        return tuple(dict.fromkeys(facts.fingerprint for facts in self._catalog.shards))

    @property
    def place(self) -> Place:
        """Where it is, for those that read many samples at once."""
        return self._place

    @property
    def num_reads(self) -> int:
        """Reads of tensors so far, in this process."""
        return self._place.num_reads

    @property
    def num_bytes_read(self) -> int:
        """Bytes of tensors that were read so far, in this process."""
        return self._place.num_bytes_read

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return sum(facts.bytes for facts in self._shards)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, position: int) -> Any: ...
    @overload
    def __getitem__(self, position: slice) -> list[Any]: ...
    def __getitem__(self, position: int | slice) -> Any:
        """The sample at a position, with lazy tensors; a list of them for a slice."""
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        shard, row = self._locate(position)
        columns = self._open(shard)
        bucket = columns.bucket_of(row)
        starts, digests = columns.blocks_of(row)
        blocks = [
            LazyBlock(self, shard, start, size, mark)
            for start, size, mark in zip(starts, bucket.blocks, digests, strict=True)
        ]
        made: dict[tuple[int, bool], LazyTensor] = {}

        def tensor(number: int, is_array: bool) -> LazyTensor:
            slot = bucket.slots[number]
            return made.setdefault((number, is_array), LazyTensor(slot, blocks[slot.block], is_array))

        return skeleton.decode(columns.name, columns.skeleton(row), len(bucket.slots), tensor)

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """What torch's DataLoader asks for: real samples, read together."""
        return self.read(positions)

    def read(self, positions: Sequence[int], device: str | torch.device | None = None) -> list[Any]:
        """Samples at several positions, real, by sorted and coalesced reads."""
        if not can_gather(self):
            samples: list[Any] = realize([self[int(position)] for position in positions], device)
            return samples
        gathered = Gathered(self, positions)
        gathered.read(num_threads=torch.get_num_threads())
        samples = [gathered.sample(k) for k in range(len(gathered))]
        return samples if device is None else list(realize(samples, device))

    def stack(self, positions: Sequence[int], field: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """One field of several samples as one tensor [n, ...], read straight into its place.

        Args:
            positions: which samples.
            field: which of their tensors, such as 'latent.samples'.
            out: a tensor to fill, for example in pinned memory; a new one otherwise.

        Raises:
            TensorCacheError: a sample lacks the field, or has it in another shape or dtype, or `out` does not fit.
        """
        return stack_field(self, positions, field, out)

    def keys(self) -> Keys:
        """The keys of all samples, by position; read from the columns when asked for."""
        return Keys(len(self), self.key, self.find)

    def key(self, position: int) -> str:
        """The key of a sample."""
        shard, row = self._locate(position)
        return self._open(shard).key(row)

    def find(self, key: str) -> int | None:
        """The position of a key, or None. The first call sorts the hashes of all keys: 24 bytes each."""
        if self._marks is None:
            shards = range(len(self._shards))
            self._marks = Marks(hashes_of(self._open(shard))[self._rows(shard)] for shard in shards)
        return self._marks.find(digest(key.encode(errors="surrogatepass")))

    def info(self, position: int) -> Info:
        """Shapes and dtypes of a sample's tensors by field, such as 'latent.samples'. Reads no tensor."""
        shard, row = self._locate(position)
        return _info(self._open(shard).bucket_of(row))

    def buckets(self) -> tuple[npt.NDArray[np.int64], list[Info]]:
        """Which samples are alike: a number for each position, and for each number what its samples have."""
        known: dict[tuple[Any, ...], int] = {}
        infos: list[Info] = []
        parts = [np.zeros(0, np.int64)]
        for shard in range(len(self._shards)):
            columns = self._open(shard)
            numbers = []
            for bucket in columns.buckets:
                info = _info(bucket)
                number = known.setdefault(tuple(info.items()), len(infos))
                if number == len(infos):
                    infos.append(info)
                numbers.append(number)
            mine = columns.bucket[self._rows(shard)]
            if len(mine) and not (mine.min() >= 0 and mine.max() < len(numbers)):
                raise corrupt(columns.name, "a sample of a bucket that is not there")
            parts.append(np.array(numbers, np.int64)[mine])
        return np.concatenate(parts), infos

    @property
    def shard_names(self) -> list[str]:
        """The shards that are shown, in their order. A name has the hash of what is in it."""
        return [facts.name for facts in self._shards]

    def read_texts(self) -> Iterator[tuple[list[str], list[bytes]]]:
        """Keys and skeletons of all samples, a shard at a time. Reads no tensor."""
        for shard in range(len(self._shards)):
            columns, rows = self._open(shard), self._rows(shard).tolist()
            yield [columns.key(row) for row in rows], [columns.skeleton(row) for row in rows]

    def spans(self, position: int, max_gap: int = 256 << 10) -> tuple[str, list[tuple[int, int]]]:
        """The shard of a sample, and the ranges of bytes of its file that hold the tensors; neighbours are one."""
        shard, row = self._locate(position)
        columns = self._open(shard)
        starts, _ = columns.blocks_of(row)
        spans: list[tuple[int, int]] = []
        for start, size in sorted(zip(starts, columns.bucket_of(row).blocks, strict=True)):
            begin, end = columns.data_start + start, columns.data_start + start + size
            if spans and begin <= spans[-1][1] + max_gap:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            elif size:
                spans.append((begin, end))
        return columns.name, spans

    def columns_of(self, position: int) -> Columns:
        """The columns of a sample's shard."""
        return self._open(self._locate(position)[0])

    def verify(self) -> None:
        """Reads everything and compares it with its hashes. ShardCorrupt names the first shard that differs."""
        for shard, facts in enumerate(self._shards):
            verify_shard(self._place, self._open(shard), facts)

    def read_blocks(self, blocks: list[LazyBlock]) -> list[torch.Tensor]:
        """The bytes of blocks, each in memory of its own: [n] uint8. What LazyTensor calls."""
        if self.access == "mmap" and isinstance(self._place, LocalPlace):
            data = self._place.mapped([(self._open(b.shard), b.start, b.num_bytes) for b in blocks])
        else:
            data = [torch.empty(block.num_bytes, dtype=torch.uint8) for block in blocks]
            first: dict[tuple[int, int, int], int] = {}
            wants: dict[int, list[Want]] = {}
            for place, block in enumerate(blocks):
                if first.setdefault((block.shard, block.start, block.num_bytes), place) == place and block.num_bytes:
                    wants.setdefault(block.shard, []).append((block.start, view_of(data[place])))
            self._place.read_all([(self._open(shard), wants[shard]) for shard in sorted(wants)])
            for place, block in enumerate(blocks):
                source = first[block.shard, block.start, block.num_bytes]
                if source != place:
                    data[place].copy_(data[source])
        if self.verify_reads:
            for block, each in zip(blocks, data, strict=True):
                self.check(block.digest, view_of(each), block.shard)
        return data

    def locate_all(self, positions: Sequence[int]) -> list[tuple[int, Columns, int]]:
        """For several samples: the number of the shard, the shard's columns, and the row there."""
        num, ends = len(self), self._ends
        opened: dict[int, tuple[Columns, int, bool]] = {}  # shard -> its columns, its first position, are rows left out
        found = []
        # plain numbers and no arrays: a batch of them is through before NumPy has begun
        for given in positions.tolist() if isinstance(positions, np.ndarray | torch.Tensor) else positions:
            position = index(given)
            if not -num <= position < num:
                raise IndexError(f"position {position} of {num} samples")
            position %= num
            shard = bisect_right(ends, position)
            known = opened.get(shard)
            if known is None:
                begin = ends[shard - 1] if shard else 0
                known = opened[shard] = self._open(shard), begin, bool(self._shards[shard].skip)
            columns, begin, has_gaps = known
            found.append((shard, columns, self._row(shard, position - begin) if has_gaps else position - begin))
        return found

    def check(self, mark: bytes, data: memoryview, shard: int) -> None:
        """ShardCorrupt if data are not what a hash was made of."""
        if digest(data) != mark:
            raise corrupt(self._shards[shard].name, "a tensor has another hash")

    def _locate(self, position: int) -> tuple[int, int]:
        """Shard and row of a position."""
        num = len(self)
        if not -num <= position < num:
            raise IndexError(f"position {position} of {num} samples")
        position = int(position) % num
        shard = bisect_right(self._ends, position)
        return shard, self._row(shard, position - (self._ends[shard - 1] if shard else 0))

    def _row(self, shard: int, place: int) -> int:
        """The row of a shard that is shown at a place of it."""
        return place if not self._shards[shard].skip else int(self._rows(shard)[place])

    def _rows(self, shard: int) -> npt.NDArray[np.int64]:
        """The rows of a shard that are shown."""
        if shard not in self._shown:
            facts = self._shards[shard]
            self._shown[shard] = np.delete(np.arange(facts.samples), list(facts.skip))
        return self._shown[shard]

    def _open(self, shard: int) -> Columns:
        columns = self._columns.get(shard)
        if columns is None:
            facts = self._shards[shard]
            columns = self._place.columns(facts.name)
            if (columns.num_samples, columns.num_bytes) != (facts.samples, facts.bytes):
                raise corrupt(facts.name, "its columns are not those that index.json tells of")
            self._columns[shard] = columns
        return columns

    def close(self) -> None:
        """Closes files and connections; they are opened again when needed."""
        self._place.close()
        self._columns.clear()
        self.spare.clear()

    def __enter__(self) -> TensorCache:  # noqa: PYI034 - typing.Self is not in Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_columns": {}, "_shown": {}, "_marks": None, "spare": Spare()}

    def __repr__(self) -> str:
        return f"TensorCache({self.path!r}, samples={len(self)}, shards={len(self._shards)})"


def _info(bucket: Bucket) -> Info:
    return {slot.field: TensorInfo(slot.shape, DTYPES[slot.dtype]) for slot in bucket.slots}
