"""A build of a tensor cache: what `sds tensors build` was told, as a value, and how Ray's workers do a share each.

Comes in: a source, a chain, a folder. Goes out: samples in the folder, by id. Workers write into one folder without a
lock, so whoever dies is started again and goes on where it stopped; what is left over at the end is made here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sds.cli.hints import for_shell
from sds.cli.ray_engine import run_on_ray
from sds.cli.words import open_dataset
from sds.errors import OptionError, SdsError
from sds.units import parse_bytes
from sds.urls import is_remote, redact

if TYPE_CHECKING:
    from sds.dataset import StreamingDataset
    from sds.loader import StreamingDataLoader
    from sds.types import Sample
    from sds.world import World

__all__ = ["Build", "KeepKey", "compute_on_ray", "load_chain"]

_BATCH = 8  # rows per step of a build: what a bar counts, and what an interrupt may cost in time


@dataclass(frozen=True)
class Build:
    """What is built, of what, by what. It travels to other machines, where the same paths lead to the same files."""

    src: str
    path: str
    transforms: str
    threads: int | None = None
    download: list[str] | None = None
    id_column: str = "index"
    query: str | None = None
    dst: str | None = None
    shard_size: str = "512mb"
    version: str | None = None
    storage: list[str] | None = None
    folder: str = field(default_factory=os.getcwd)

    def open(self, world: World | None = None) -> StreamingDataset:
        """The dataset whose samples are remembered in the folder, in the order of the rows.

        Raises:
            OptionError: something that was typed is impossible.
        """
        from sds.transforms import Remember

        self.check()
        remember = Remember(
            load_chain(self.transforms), self.path, version=self.version, by="key", shard_size=self.shard_size
        )
        remember.is_ordered = True
        with _in_typed_words():
            return open_dataset(
                self.src,
                dst=self.dst,
                download=self.download,
                id_column=self.id_column,
                query=self.query,
                storage=self.storage,
                transforms=[remember, KeepKey()],
                world=world,
                allow_missing_columns=False,
            )

    def check(self) -> None:
        """What can be said before anything is opened.

        Raises:
            OptionError: the cache cannot be where it is wanted, or its shards not of that size.
        """
        parse_bytes(self.shard_size, option="--shard-size")
        if is_remote(self.path):
            hint = "build into a local folder, and copy that to the store: it can be read there by its URL"
            raise OptionError(f"PATH is not local: {redact(self.path)}", hint=hint)

    def load(self, dataset: StreamingDataset) -> StreamingDataLoader:
        """The loader that goes through it."""
        import sds

        return sds.StreamingDataLoader(dataset, _BATCH, num_threads=self.threads, collate_fn=len)


@contextmanager
def _in_typed_words() -> Iterator[None]:
    """Errors begin with what was typed, not with the keyword that it became; hints are translated when shown."""
    try:
        yield
    except SdsError as error:
        keyword, space, rest = error.message.partition(" ")
        error.message = f"{for_shell(keyword)}{space}{rest}"
        raise


class KeepKey:
    """Lets go of everything but the key: a build has no use for what it has written already, so it is not read."""

    takes_lazy = True

    def __call__(self, sample: Sample) -> Sample:
        """The sample's key, if the chain left it that."""
        return {"key": sample.get("__sample_key__", "")}


def compute_share(build: Build, rank: int, size: int) -> int:
    """In a worker: makes every size-th batch of rows. How many samples that were."""
    from sds.world import World

    os.chdir(build.folder)
    with build.open(World(rank, size)) as dataset, build.load(dataset) as loader:
        return sum(loader)


def compute_on_ray(build: Build, num_workers: int, num_gpus: float = 0.0) -> None:
    """Makes the samples of a build on an engine of Ray: the one at RAY_ADDRESS, or one of this machine.

    Raises:
        OptionError: Ray is not installed, or no machine of it has what a worker needs.
        SdsError: what a worker raised; or one died again and again.
    """
    tasks = [(build, rank, num_workers) for rank in range(num_workers)]
    run_on_ray(compute_share, tasks, num_workers=num_workers, num_gpus=num_gpus)


def load_chain(name: str) -> list[Any]:
    """The transforms that `module:name` stands for.

    Raises:
        OptionError: there is no such module or name, or it is no chain.
    """
    module_name, _, attribute = name.partition(":")
    hint = "module:name, where name is a list of transforms, or a function without arguments that returns one"
    if not module_name or not attribute:
        raise OptionError(f"transforms is not module:name: {name!r}", hint=hint)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it: a script beside the data is the usual case
    try:
        value = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"transforms cannot be imported: {name!r}: {error}", hint=hint) from error
    try:
        chain = value() if callable(value) else value
    except TypeError as error:
        raise OptionError(f"transforms is no chain: {name!r}: {error}", hint=hint) from error
    if not isinstance(chain, Iterable) or isinstance(chain, str | bytes | dict):
        raise OptionError(f"transforms is no chain: {name!r} is {type(chain).__name__}", hint=hint)
    return list(chain)
