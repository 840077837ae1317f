"""StreamingDataset: the rooms joined. An index, a plan, a fetch client and a pipeline behind torch's IterableDataset.

Comes in: a source and keywords. Goes out: samples, in an order that is a pure function of (index, seed, epoch), one
lane per rank and worker; or any sample by its row. The state says what was handed out, and a copy goes on from there.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, overload

import msgspec

from sds import logs
from sds.dataset import options as opts
from sds.dataset.agree import Agreement
from sds.dataset.board import open_board
from sds.dataset.delivery import Delivery
from sds.dataset.explain import explain
from sds.dataset.keywords import check_keywords
from sds.dataset.leases import Leases
from sds.dataset.mapstyle import MapView, get_several
from sds.dataset.ordered import OrderedDataset
from sds.dataset.pipeline import IntArray, Pipeline
from sds.dataset.policy import FailurePolicy
from sds.dataset.progress import Progress, Start
from sds.dataset.slots import Work
from sds.dataset.state import PlanKey
from sds.dataset.workers import is_worker, worker_identity
from sds.events import Stats, Tally
from sds.fetch import FetchClient
from sds.index import Index, open_index
from sds.index.holding import HeldIndex
from sds.index.lazy import LazyIndex, LazyReading
from sds.index.lazy_opening import open_lazy
from sds.index.provider import is_provider
from sds.index.provider_call import open_provider
from sds.plan import Plan
from sds.plan.weights import WeightSchedule
from sds.seeds import derive_key, draw_seed
from sds.tensors.source import TensorIndex, is_tensor_cache, open_tensors
from sds.types import DataType, Sample, Transform
from sds.world import World

__all__ = ["StreamingDataset"]

_RANDOM_ACCESS_LEASES = 64


@check_keywords
class StreamingDataset(OrderedDataset):
    """Streams the samples that an index names, from wherever they are.

    Args:
        src: an index file (CSV, TSV, Parquet, JSON, JSON lines), tar shards, a folder, a wildcard, a text list of
            files, or a list of those; or a tensor cache; local, file://, s3://, gs://, az:// or http(s)://. Or a Lance
            table, an object with `__len__` and `rows(ids)`, or a function that returns records or another source.
        dst: the cache folder. Default: the user's cache dir / sds / <name>.
        transforms: callables from dict to dict (or to several dicts, or None), run in order.
        pre_download_transforms: the same, before anything is fetched; they may choose what to fetch.
        columns_to_download: columns that hold URLs or paths; after fetching they hold local paths, or the URL where
            only parts of a long video were needed. Columns with the content itself give bytes. For a folder, or tar
            shards: the extensions; 'jpg;jpeg;png' is whichever there is, in a column 'jpg'. []: metadata only. None:
            every extension; of a table, the one column with content.
        index_col_name: the column with the unique sample id.
        data_type: 'image', 'video', 'audio', 'text' or '<kind>_latent'; samples carry it.
        allow_missing_columns: keep rows without a value to download, with None.
        index_cols_to_keep: columns that samples get. None: all.
        sql_query: a SELECT in DuckDB's SQL over a table named `dataframe`.
        max_size: at most so many rows, after the query.
        max_index_files_to_use: at most so many index files.
        weight_col_name: a column that says how often rows come: 1.0 once an epoch, 3.0 three times, 0.25 in a quarter
            of the epochs. An epoch's length is then its own.
        weight_schedule: a function (epoch, values of that column) -> weights, row by row, for weights that change.
        shuffle_seed: None keeps the order; >= 0 shuffles globally, anew each epoch; -1 draws a seed on rank 0.
        lazy_index_chunk_size: read the index (Parquet, CSV or JSON lines files) in chunks of so many rows when they
            are needed. None: all of it at once.
        lazy_index_num_threads: chunks of the index that are read at once.
        lazy_index_prefetch_factor: chunks that are read ahead, for each of these threads.
        lazy_index_reach: how many chunks are in memory and shuffled with each other at a time.
        lazy_index_plan: how what a query left is read: 'scan' reads chunks and filters them, 'take' copies the rows
            that are left once; 'auto' takes what is cheaper. `explain()` says which and why. The order is the same.
        min_num_pending_tasks_thresh: how few samples may be left in the prefetch window when it is filled again.
        num_downloading_workers: downloads at once, over all processes of the node.
        prefetch: what is fetched ahead of use, per rank: samples (128), bytes ("2gb"), or both ((128, "2gb")). Workers
            divide the samples among them.
        num_downloading_retries: how often a request that may yet succeed is tried again.
        timeout: seconds that a connection may be silent, and that a download may wait for room in the cache.
        cache_limit: bytes of objects on disk, as a number or "10gb"; None: no limit.
        cache_policy: 'keep' holds a resident set, the optimum when each sample is used once per epoch; or 'lru'.
        cache_ttl: seconds, or text such as "12h" or "7d": files older than that are fetched again, and removed when
            nobody uses them. None: no file is too old.
        revalidate: 'never': a URL without a version in the index never changes. 'run': the store is asked once per
            object and run whether it did, 'always': each time.
        on_error: 'skip' counts a broken sample and goes on, 'raise' raises in the training loop.
        max_failures: the budget of 'skip': an int is a count; a float is a share of attempts.
        print_exceptions: log each failure.
        print_traceback: log each failure with its traceback.
        infinite_iteration: go on with the next epoch for ever; batches cross from one epoch into the next.
        unaligned_worker_index: every rank and worker goes through all rows, each in an order of its own.
        node_affine: each node reads a share of the rows that is its own for good, so that its cache meets them again in
            every epoch. True: as many shares as there are nodes; a number: so many. For StreamingDataLoader.
        name: names the cache folder when there is no `dst`.
        world: this process among the others. Default: detected when iteration begins.
        storage_options: endpoint, region, access_key_id, secret_access_key, session_token, anonymous, requester_pays;
            flat, or one dict per scheme.

    Raises:
        OptionError: a keyword is unknown or impossible.
        SourceError: the source is missing, empty, broken, or lacks a column.
    """

    def __init__(
        self,
        src: Any,
        dst: str | os.PathLike[str] | None = None,
        *,
        transforms: Sequence[Transform] | None = None,
        pre_download_transforms: Sequence[Transform] | None = None,
        columns_to_download: Sequence[str] | None = None,
        index_col_name: str = "index",
        data_type: str | DataType | None = None,
        allow_missing_columns: bool = False,
        index_cols_to_keep: Sequence[str] | None = None,
        sql_query: str | None = None,
        max_size: int | None = None,
        max_index_files_to_use: int | None = None,
        weight_col_name: str | None = None,
        weight_schedule: WeightSchedule | None = None,
        shuffle_seed: int | None = None,
        lazy_index_chunk_size: int | None = None,
        lazy_index_num_threads: int = 2,
        lazy_index_prefetch_factor: int = 3,
        lazy_index_reach: int = 8,
        lazy_index_plan: str = "auto",
        min_num_pending_tasks_thresh: int | None = None,
        num_downloading_workers: int = 64,
        prefetch: int | str | tuple[int, int | str] = 128,
        num_downloading_retries: int = 3,
        timeout: float = 60.0,
        cache_limit: str | int | None = "10gb",
        cache_policy: str = "keep",
        cache_ttl: str | float | None = None,
        revalidate: str = "never",
        on_error: str = "skip",
        max_failures: float = 0.1,
        print_exceptions: bool = False,
        print_traceback: bool = False,
        infinite_iteration: bool = False,
        unaligned_worker_index: bool = False,
        node_affine: bool | int = False,
        name: str | None = None,
        world: World | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "__class__", "world")}
        self._options = opts.sort_keywords(given)
        opts.check_world(world)
        self._world = world
        self._sender: tuple[int, World] | None = None  # in a copy for a spawned worker: who sent it, and its world
        self._agreement = Agreement()
        client = FetchClient(self._options.fetch)
        try:
            folder = Path(self._options.fetch.dst) / "index"
            self._index: Index
            if is_tensor_cache(src, lambda: client):
                self._index = open_tensors(src, self._options.index, folder=folder, client=client)
            elif is_provider(src):
                self._index = open_provider(src, self._options.index, folder=folder, remote=lambda: client)
            elif self._options.index.lazy_index_chunk_size is not None:
                self._index = open_lazy(
                    src,
                    self._options.index,
                    self._lazy_reading(),
                    folder=folder,
                    remote=lambda: client,
                    peers=open_board(self.world),
                )
            else:
                self._index = open_index(src, self._options.index, folder=folder, remote=lambda: client)
            opts.check_chunks(self._options, self._index.chunk_sizes is not None)
        except BaseException as error:
            self._agreement.announce_failure(self.world, error)
            raise
        finally:
            client.close()  # its limit would hold for others, until it is collected
        affine = self._options.node_affine
        self._num_shares = self.world.node[1] if affine is True else int(affine) or 1
        self._seed = self._options.shuffle_seed
        if self._seed == -1:
            self._seed = self._agreement.share_seed(self.world, draw_seed, self.patience_s)
        length = None if self._options.index.weight_col_name is None else self.length
        self.progress = Progress(self.plan_key, is_endless=self._options.infinite, length=length)
        self._adopt()
        if self._delivery.pipeline.memory is not None:
            self._delivery.pipeline.memory.announce()

    # ---- what it has ------------------------------------------------------------------------------------------------

    @property
    def delivery(self) -> Delivery:
        """This process's way from rows to samples."""
        if self._pid != os.getpid():
            self._adopt()
        return self._delivery

    @property
    def deliveries(self) -> list[Delivery]:
        """This process's way from rows to samples, alone."""
        return [self.delivery]

    @property
    def tally(self) -> Tally:
        """What happened so far in this process."""
        return self.delivery.tally

    @property
    def fingerprint(self) -> str:
        """A hash of the index's content, after query and limits."""
        return self._index.fingerprint

    @property
    def schema(self) -> Any:
        """The Arrow schema of the index's rows; what the source holds inside itself is binary, as in samples."""
        return self._index.sample_schema if isinstance(self._index, HeldIndex) else self._index.schema

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._options.name

    @property
    def data_type(self) -> str | None:
        """What its samples are, where that was said."""
        return self._options.data_type

    @property
    def patience_s(self) -> float:
        """How long ranks wait for each other: an index may take a while to build elsewhere."""
        return 5 * self._options.fetch.timeout_s

    def __repr__(self) -> str:
        return f"StreamingDataset({self._options.source_text}, {len(self._index)} rows, seed {self._seed})"

    def explain(self) -> str:
        """What will happen, in words: source, rows, order, partition, cache."""
        return explain(self._options, self._index, self.plan, self.world, self.epoch)

    def stats(self) -> Stats:
        """What happened so far in this process (and, under our loaders, in its workers)."""
        return self._tally.stats()

    # ---- order ------------------------------------------------------------------------------------------------------

    def follow_seed(self) -> None:
        """In a worker: takes over the seed that the parent found in a state, after this worker was made."""
        seed = self.progress.seed
        if seed is not None and seed != self._seed:
            self._use_seed(seed)

    def _use_seed(self, seed: int | None) -> None:
        self._seed = seed
        self.progress.key = self.plan_key
        self._adopt()

    @property
    def is_endless(self) -> bool:
        """Whether an iteration goes on with the next epoch for ever."""
        return self._options.infinite

    def length(self, epoch: int) -> int:
        """How many samples an epoch has."""
        return self.plan.length(epoch)

    def _lazy_reading(self) -> LazyReading:
        lazy, is_sequential = self._options.lazy, self._options.shuffle_seed is None
        return LazyReading(lazy.num_threads, (1 if is_sequential else lazy.reach) + lazy.ahead, is_sequential)

    def _make_plan(self, seed: int | None) -> Plan:
        return Plan(
            len(self._index),
            seed,
            chunk_sizes=self._index.chunk_sizes,
            reach=self._options.lazy.reach,
            shares=self._num_shares,
            weights=self._index.weights,
            schedule=self._options.weight_schedule,
        )

    @property
    def num_shares(self) -> int:
        """Into how many shares the rows are divided for good."""
        return self.plan.shares

    def lane_of(self, world: World) -> tuple[int, int]:
        """Which share of the positions a process reads: (rank, size)."""
        return (0, 1) if self._options.unaligned else world.replica

    def work(self, world: World, epoch: int, blocks: Iterable[IntArray], worker: int = 0) -> Iterator[Work]:
        """The rows at arrays of positions, in order; positions past the end are in the epochs that follow."""
        plan, delivery = self.plan, self.delivery
        if self._options.unaligned:  # everybody goes through everything, each in an order of its own
            rank = world.replica[0]
            plan = self._make_plan(None if self._seed is None else derive_key(self._seed, "lane", rank, worker))
        # mixes ask for a few positions at a time, as lists; whoever goes through its whole share has an iterator
        memory = None if isinstance(blocks, Sequence) else delivery.pipeline.memory
        if memory is not None:
            memory.begin_pass()
        for job in delivery.pipeline.jobs(plan, epoch, blocks):
            yield Work(delivery, job)
        if memory is not None:
            memory.end_pass()

    def plain(self, world: World, epoch: int) -> Callable[[IntArray], list[Sample]] | None:  # noqa: ARG002 (a hook)
        """What makes samples of whole arrays of positions, if they are rows as they are; None: `work` makes them."""
        pipeline = self.delivery.pipeline
        return partial(pipeline.plain, self.plan, epoch) if pipeline.is_plain and not self._options.unaligned else None

    def begin(self, world: World, buckets: str | None = None) -> Start:
        """Where an iteration begins. What killed processes left is there for all before any rank or worker looks."""
        memory = self.delivery.pipeline.memory
        if memory is not None:
            memory.recover()
        return super().begin(world, buckets)

    @property
    def window(self) -> tuple[int, int | None]:
        """How many samples to fetch ahead, and how few may be left when the next are asked for."""
        return self._options.prefetch, self._options.refill_below

    def _lease_bytes(self, num_workers: int) -> int | None:
        """How much of the cache one process may hold for samples that were handed out a while ago."""
        limit = self._options.fetch.limit
        return None if limit is None else limit // (2 * num_workers * self.world.local_size)

    # ---- random access ----------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, i: int) -> Sample: ...
    @overload
    def __getitem__(self, i: slice) -> list[Sample]: ...
    def __getitem__(self, i: int | slice) -> Sample | list[Sample]:
        """The sample of row i of the index (after query and limits), whatever the shuffle; or those of a slice."""
        if isinstance(i, slice):
            return self.__getitems__(list(range(*i.indices(len(self._index)))))
        (sample,) = get_several(self.delivery, self.epoch, [i], self._random_leases)
        return sample  # type: ignore[no-any-return]

    def __getitems__(self, ids: Sequence[int]) -> list[Sample]:
        """The samples of several rows, fetched and decoded side by side; torch's fetchers call this."""
        return get_several(self.delivery, self.epoch, ids, self._random_leases)

    def as_map(self) -> MapView:
        """A map-style view, for torch's samplers."""
        return MapView(self)

    # ---- state ------------------------------------------------------------------------------------------------------

    @property
    def plan_key(self) -> PlanKey:
        """What the order is a function of."""
        query = PlanKey.hash_query(self._options.index.sql_query)
        unaligned = self._options.unaligned
        weights = self._options.index.weight_col_name
        if self._options.weight_schedule is not None:
            weights = f"{weights}, by a schedule"
        size = self._options.index.lazy_index_chunk_size
        chunks = None if size is None or self._seed is None else (size, self._options.lazy.reach)
        return PlanKey(
            self.fingerprint, len(self._index), self._seed, query, unaligned, self._num_shares, weights, chunks
        )

    def expected_key(self, seed: int | None) -> PlanKey:
        """The key that a state with this seed must have: the dataset's own, unless its seed was to be drawn."""
        is_drawn = self._options.shuffle_seed == -1 and seed is not None
        return msgspec.structs.replace(self.plan_key, seed=seed) if is_drawn else self.plan_key

    def adopt(self, key: PlanKey) -> None:
        """Goes on with the seed of a key that `expected_key` gave."""
        if key.seed != self._seed:
            self._use_seed(key.seed)

    # ---- life -------------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Makes what every process has of its own: a forked child must not touch its parent's locks or connection."""
        self._pid = os.getpid()
        logs.set_up(_who(self.world))
        self._tally = Tally()
        fetch, num_sharing = self._options.fetch, self.world.local_size
        prefetch = self._options.prefetch if fetch.ahead_bytes is None else 0  # that many bytes, then
        self._tally.set_fetching(fetch.num_connections, num_sharing, prefetch)
        self._client = FetchClient(fetch, self._tally)
        client = self._client
        if isinstance(self._index, LazyIndex):
            self._index.use_remote(lambda: client)
        self.plan = self._make_plan(self._seed)
        options = dataclasses.replace(self._options, shuffle_seed=self._seed)
        pipeline = Pipeline(self._index, options, self._tally)
        self._delivery = Delivery(pipeline, FailurePolicy(self._options.failures, self._tally), self._client)
        self._random_leases = Leases(_RANDOM_ACCESS_LEASES, self._lease_bytes(1))
        self._client.consumer.spare(self._random_leases.trim)

    def close(self) -> None:
        """Lets go of every cached file and of the fetch server. The dataset can be used again."""
        self._random_leases.release()
        if self._pid == os.getpid() and self._delivery.pipeline.memory is not None:
            self._delivery.pipeline.memory.close()
        if isinstance(self._index, TensorIndex):
            self._index.cache.close()
        if isinstance(self._index, LazyIndex):
            self._index.close()
        if isinstance(self._index, HeldIndex):
            self._index.release()
        self._client.close()

    def __enter__(self) -> StreamingDataset:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        made_here = ("_tally", "_client", "_delivery", "_random_leases", "plan", "_agreement")
        state = {k: v for k, v in self.__dict__.items() if k not in made_here}
        if get_spawning_popen() is not None:
            # a spawned worker has no torch.distributed to ask, nor always the launcher's variables; a spawned rank has
            state["_sender"] = os.getpid(), self.world
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._agreement = Agreement()
        self._adopt()


def _who(world: World) -> str:
    """This process, for its log, where it has others beside it."""
    rank = f"rank {world.rank}" if world.size > 1 else ""
    return f"{rank or 'rank 0'} worker {worker_identity()[0]}" if is_worker() else rank
