"""Which shards a cache has: index.json, completed by the shards that were committed since it was written.

Comes in: a place. Goes out: facts about shards in their order. A shard is committed by its .index file; index.json only
saves looking into each of them, so it may be absent or behind, and is made anew by whoever closes a writer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from sds.errors import TensorCacheError
from sds.tensors.columns import Columns, Facts, read_facts
from sds.tensors.format import FORMAT, VERSION, check_name, corrupt, order_of, to_json
from sds.tensors.local import LocalPlace
from sds.tensors.places import Place

__all__ = ["Catalog", "hashes_of", "load", "publish", "replace_file", "summary", "sync_folder"]

_OLD_S = 60.0

Hashes = npt.NDArray[np.bytes_]


class Catalog(msgspec.Struct, frozen=True):
    """index.json."""

    format: str
    version: int
    generation: int
    shards: tuple[Facts, ...]

    def chosen(self, fingerprint: str | None) -> tuple[Facts, ...]:
        """The shards of one fingerprint; None: that of the last shard."""
        if fingerprint is None:
            fingerprint = self.shards[-1].fingerprint if self.shards else ""
        return tuple(facts for facts in self.shards if facts.fingerprint == fingerprint)


def load(place: Place, *, is_listed: bool = True) -> Catalog:
    """The shards of a place, in their order.

    Args:
        place: where the cache lies.
        is_listed: look for shards that index.json does not know of.
    """
    noted = _noted(place.read_file("index.json"))
    if noted is not None and not is_listed:
        return noted
    return _completed(place, noted, place.names())


def _completed(place: Place, noted: Catalog | None, names: Iterable[str]) -> Catalog:
    """What is noted, and the shards of these names that are not."""
    known = {} if noted is None else {facts.name: facts for facts in noted.shards}
    new = [name for name in names if name not in known]
    if noted is not None and not new:
        return noted
    columns = {name: place.columns(name) for name in new}
    for name, each in columns.items():
        known[name] = read_facts(each, each.file_bytes)
    generation = 0 if noted is None else noted.generation
    shards = _ordered(known.values())
    return Catalog(FORMAT, VERSION, generation, _without_repeats(shards, place.columns) if new else shards)


def _noted(data: bytes | None) -> Catalog | None:
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kind, version = (msgspec.json.decode(found.get(key, b"null")) for key in ("format", "version"))
        if (kind, version) != (FORMAT, VERSION):
            hint = "it was written by another program, or by a newer version of sds: update, or check the path"
            raise TensorCacheError(f"index.json is of no known version: {str(version)[:20]}", hint=hint)
        catalog = msgspec.json.decode(data, type=Catalog)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise corrupt("index.json", str(error)) from error
    for facts in catalog.shards:
        check_name(facts.name)
        if facts.samples < 0 or facts.bytes < 0 or any(not 0 <= row < facts.samples for row in facts.skip):
            raise corrupt("index.json", f"impossible numbers of {facts.name}")
    return catalog


def _ordered(shards: Iterable[Facts]) -> tuple[Facts, ...]:
    return tuple(sorted(shards, key=lambda facts: order_of(facts.generation, facts.name)))


def hashes_of(columns: Columns) -> Hashes:
    """The key hashes of a shard, as values that can be sorted and searched: [n] of 16 bytes."""
    found: Hashes = np.ascontiguousarray(columns.key_hashes).view("S16")[:, 0]
    return found


def _without_repeats(shards: Sequence[Facts], columns: Callable[[str], Columns]) -> tuple[Facts, ...]:
    """The same, where rows whose key an earlier row of the same fingerprint has are to be skipped."""
    result: list[Facts] = list(shards)
    for fingerprint in {facts.fingerprint for facts in shards}:
        places = [place for place, facts in enumerate(shards) if facts.fingerprint == fingerprint]
        hashes = [hashes_of(columns(shards[place].name)) for place in places]
        everything = np.concatenate(hashes)
        _, first = np.unique(everything, return_index=True)
        repeats = np.ones(len(everything), bool)
        repeats[first] = False
        for place, mask in zip(places, np.split(repeats, np.cumsum([len(each) for each in hashes])[:-1]), strict=True):
            skip = tuple(np.flatnonzero(mask).tolist())
            if skip != result[place].skip:
                result[place] = msgspec.structs.replace(result[place], skip=skip)
    return tuple(result)


def publish(place: LocalPlace, hashes: Callable[[Facts], Facts]) -> Catalog:
    """Writes index.json anew from what is committed, and gives it; `hashes` fills in those that are not known."""
    catalog = _with_hashes(load(place), hashes)
    text = to_json(catalog)
    if text != place.read_file("index.json"):
        replace_file(place.folder / "index.json", text, place.folder / f".index.json.{os.urandom(8).hex()}")
    for left in place.folder.glob(".index.json.*"):  # of a writer that was killed at just this point
        if time.time() - left.stat().st_mtime > _OLD_S:
            left.unlink(missing_ok=True)
    return catalog


def summary(place: Place, noted: bytes | None, names: Iterable[str], hashes: Callable[[Facts], Facts]) -> bytes:
    """The index.json of shards with these names, made of one that may be behind; their columns are in `place`."""
    return to_json(_with_hashes(_completed(place, _noted(noted), names), hashes))


def _with_hashes(catalog: Catalog, hashes: Callable[[Facts], Facts]) -> Catalog:
    shards = tuple(hashes(facts) for facts in catalog.shards)
    return Catalog(FORMAT, VERSION, max((facts.generation for facts in shards), default=0), shards)


def replace_file(path: Path, data: bytes, draft: Path) -> None:
    """Writes a file that appears whole, and stays after a power cut."""
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes renames in a folder last."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
