"""Generations: the samples of a cache by what made them, and how those that nobody wants any more are deleted.

Comes in: a catalog, or a local folder. Goes out: facts about each fingerprint in it, the oldest first. The last one is
the current one: what is read unless another is asked for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sds.errors import OptionError, TensorCacheError
from sds.tensors.catalog import Catalog, load, replace_file
from sds.tensors.format import to_json
from sds.tensors.local import LocalPlace
from sds.tensors.remember_notes import note_name
from sds.urls import is_remote, local_path, redact

__all__ = ["Generation", "generations_of", "prune"]


@dataclass(frozen=True)
class Generation:
    """The samples that one fingerprint made.

    Attributes:
        fingerprint: what made them.
        samples: how many there are.
        bytes: of all their shards.
        shards: how many.
        is_current: whether a reader that names no fingerprint shows them.
    """

    fingerprint: str
    samples: int
    bytes: int
    shards: int
    is_current: bool


def generations_of(catalog: Catalog) -> list[Generation]:
    """What is in a cache, the oldest first and the current one last."""
    last = catalog.shards[-1].fingerprint if catalog.shards else None
    names = dict.fromkeys(facts.fingerprint for facts in catalog.shards if facts.fingerprint != last)
    made = []
    for name in [*names, *([] if last is None else [last])]:
        shards = catalog.chosen(name)
        samples = sum(facts.samples - len(facts.skip) for facts in shards)
        num_bytes = sum(facts.bytes + facts.index_bytes for facts in shards)
        made.append(Generation(name, samples, num_bytes, len(shards), name == last))
    return made


def prune(path: str, keep: Collection[str] = ()) -> list[Generation]:
    """Deletes generations of a local cache; killed on the way, it can be called again. Nobody should be reading them.

    Args:
        path: the folder.
        keep: fingerprints that stay; none: the current one.

    Returns:
        What was deleted.

    Raises:
        OptionError: the cache is remote, or has no generation that is to be kept.
        TensorCacheError: there is no cache, or somebody writes into it.
    """
    if is_remote(path):
        hint = "delete the files of its shards there, or prune the local copy and send that"
        raise OptionError(f"only a local cache can be pruned: {redact(path)}", hint=hint)
    folder = Path(local_path(path))
    place = LocalPlace(folder)
    try:
        catalog = load(place)
        found = generations_of(catalog)
        kept = set(keep) or {each.fingerprint for each in found if each.is_current}
        missing = kept - {each.fingerprint for each in found}
        if missing:
            hint = f"there are: {', '.join(repr(each.fingerprint) for each in found[:10]) or 'none'}"
            raise OptionError(f"no generation of this fingerprint: {min(missing)!r}", hint=hint)
        if any((folder / ".parts").glob("*.journal")):
            hint = "wait for whoever writes; what a killed writer left is committed when it is started again"
            raise TensorCacheError(f"tensor cache is being written: {folder}", hint=hint, url=str(folder))
        _delete(folder, catalog, kept)
    finally:
        place.close()
    return [each for each in found if each.fingerprint not in kept]


def _delete(folder: Path, catalog: Catalog, kept: set[str]) -> None:
    """First index.json, then shards, each with its .index last: whatever is left after a kill is found again."""
    doomed = [facts for facts in catalog.shards if facts.fingerprint not in kept]
    if not doomed:
        return
    rest = msgspec.structs.replace(catalog, shards=tuple(f for f in catalog.shards if f.fingerprint in kept))
    try:
        replace_file(folder / "index.json", to_json(rest), folder / ".index.json.prune")
        for facts in doomed:
            (folder / f"{facts.name}.safetensors").unlink(missing_ok=True)
            (folder / f"{facts.name}.index").unlink(missing_ok=True)
        for fingerprint in {facts.fingerprint for facts in doomed}:
            (folder / note_name(fingerprint)).unlink(missing_ok=True)
    except OSError as error:
        hint = "is the folder yours? Call it again: it goes on"
        raise TensorCacheError(f"tensor cache cannot be pruned: {folder}: {error}", hint=hint) from error
