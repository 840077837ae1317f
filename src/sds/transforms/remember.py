"""Remember: the front of a chain, whose results are kept on disk.

Comes in: the transforms to remember, and a folder. Goes out: their results; in a dataset they are computed in the first
pass, and read from the folder ever after, without fetching anything. This is the name of what is wanted: the dataset
has the folder read and written (sds.tensors.remember), and called by hand it only computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from sds.errors import OptionError
from sds.transforms.base import check_choice, several
from sds.types import Sample, Transform
from sds.units import parse_bytes
from sds.urls import is_remote

__all__ = ["Remember"]


class Remember:
    """Computes transforms once, keeps what they made in a folder, and reads it from there ever after.

    What stands before it in the chain is remembered too. Random choices are those of the first pass. Later passes need
    neither the files nor the transforms; other transforms or arguments are another generation in the same folder.

    Args:
        transforms: what to remember.
        path: a local folder, a tensor cache. Ranks and workers may share it.
        version: says what the transforms do, in place of a hash of their code and arguments.
        by: what a result belongs to: 'row': the id, the other columns and the versions of files; or 'key': the id.
        shard_size: bytes of tensors per file.
    """

    is_ordered = False  # whether a process writes its rows in their order: one that builds a cache, not one that trains

    def __init__(
        self,
        transforms: Iterable[Transform] | Transform,
        path: str | os.PathLike[str],
        *,
        version: str | None = None,
        by: str = "row",
        shard_size: str | int = "512mb",
    ) -> None:
        chain = (transforms,) if callable(transforms) or not isinstance(transforms, Iterable) else tuple(transforms)
        for each in chain:
            if not callable(each):
                raise OptionError(f"transforms has an entry that cannot be called: {each!r}", hint="give callables")
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise OptionError(f"path of Remember is no path: {path!r}", hint="give a local folder")
        if is_remote(os.fspath(path)):
            hint = "remember in a local folder; a copy of it in a store can be a source: StreamingDataset(url)"
            raise OptionError(f"path of Remember is remote: {os.fspath(path)}", hint=hint)
        if version is not None and not isinstance(version, str):
            raise OptionError(f"version is no text: {version!r}", hint="such as 'vae-2, 512 pixels'")
        parse_bytes(shard_size, option="shard_size")
        self.transforms: tuple[Callable[..., Any], ...] = chain
        self.path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self.version = version
        self.by = check_choice("by", by, ("row", "key"))
        self.shard_size = shard_size

    def __call__(self, sample: Sample) -> Any:
        """Computes, by hand: only a dataset remembers. Returns a dict, several, or None, as its transforms do."""
        samples = [sample]
        for transform in self.transforms:
            samples = [after for before in samples for after in several(transform, transform(before))]
        return samples[0] if len(samples) == 1 else samples or None

    def __repr__(self) -> str:
        return f"Remember({list(self.transforms)!r}, {self.path!r}, version={self.version!r}, by={self.by!r})"
