"""A build of a tensor cache: what `sds tensors build` was told, as a value, and how Ray's workers do a share each.

Comes in: a source, a chain, a folder. Goes out: samples in the folder, by id. Workers write into one folder without a
lock, so whoever dies is started again and goes on where it stopped; what is left over at the end is made here.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sds.errors import OptionError, SdsError

if TYPE_CHECKING:
    from sds.dataset import StreamingDataset
    from sds.loader import StreamingDataLoader
    from sds.types import Sample
    from sds.world import World

__all__ = ["Build", "KeepKey", "check_resources", "compute_on_ray", "load_chain"]

_BATCH = 8  # rows per step of a build: what a bar counts, and what an interrupt may cost in time
_NUM_RESTARTS = 5  # of a share whose worker died


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
    folder: str = field(default_factory=os.getcwd)

    def open(self, world: World | None = None) -> StreamingDataset:
        """The dataset whose samples are remembered in the folder."""
        import sds
        from sds.transforms import Remember

        remember = Remember(
            load_chain(self.transforms), self.path, version=self.version, by="key", shard_size=self.shard_size
        )
        return sds.StreamingDataset(
            self.src,
            self.dst,
            transforms=[remember, KeepKey()],
            columns_to_download=self.download,
            index_col_name=self.id_column,
            sql_query=self.query,
            world=world,
        )

    def load(self, dataset: StreamingDataset) -> StreamingDataLoader:
        """The loader that goes through it."""
        import sds

        return sds.StreamingDataLoader(dataset, _BATCH, num_threads=self.threads, collate_fn=len)


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
    try:
        import ray
    except ImportError as error:
        hint = "pip install 'streaming-dataset[ray]'; or leave --engine out"
        raise OptionError("engine 'ray' needs the package ray", hint=hint) from error
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        check_resources([node["Resources"] for node in ray.nodes() if node["Alive"]], num_gpus)
        run = ray.remote(num_cpus=1, num_gpus=num_gpus, max_retries=_NUM_RESTARTS)(compute_share)
        waiting = [run.remote(build, rank, num_workers) for rank in range(num_workers)]
        while waiting:
            done, waiting = ray.wait(waiting)
            ray.get(done)
            print(f"{num_workers - len(waiting)} of {num_workers} shares are done", file=sys.stderr)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, SdsError) else error) from None
    except ray.exceptions.RayError as error:
        hint = "was it killed for want of memory? What was computed is kept: start the build again, with fewer workers"
        raise SdsError(f"a worker of Ray died again and again: {type(error).__name__}", hint=hint) from error
    finally:
        if is_ours:
            ray.shutdown()


def check_resources(nodes: Sequence[Mapping[str, float]], num_gpus: float) -> None:
    """OptionError if no machine of Ray has what a worker needs: Ray itself would wait for one, for ever."""
    if num_gpus > 1 and num_gpus % 1:
        raise OptionError(f"worker_gpus is no whole number: {num_gpus}", hint="several GPUs are whole ones, such as 2")
    if not any(node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= num_gpus for node in nodes):
        there = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes) or "none"
        hint = "lower --worker-gpus, or start Ray on machines that have them (RAY_ADDRESS says which Ray)"
        raise OptionError(f"no machine of Ray has 1 CPU and {num_gpus:g} GPUs; there are: {there}", hint=hint)


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
