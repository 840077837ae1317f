"""StreamingDataset: the rooms joined. An index, a plan, a fetch client and a pipeline behind torch's IterableDataset.

Comes in: a source and keywords. Goes out: samples, in an order that is a pure function of (index, seed, epoch), one
lane per rank and worker; or any sample by its row. The state says what was handed out, and a copy goes on from there.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np
from torch.utils.data import IterableDataset

from sds import logs
from sds.dataset import options as opts
from sds.dataset.agree import Agreement
from sds.dataset.delivery import Delivery
from sds.dataset.explain import explain
from sds.dataset.leases import Leases
from sds.dataset.mapstyle import MapView, get_several
from sds.dataset.pipeline import Pipeline
from sds.dataset.policy import FailurePolicy
from sds.dataset.progress import Progress, Start
from sds.dataset.state import PlanKey, State
from sds.dataset.workers import is_worker, worker_identity
from sds.events import Stats, Tally
from sds.fetch import FetchClient, Ticket, prefetched
from sds.index import Index, open_index
from sds.plan import Plan, Steps, lanes, steps
from sds.seeds import derive_key, draw_seed
from sds.types import DataType, Failure, Sample, Transform
from sds.world import World

__all__ = ["StreamingDataset"]

INFINITE = 2**62
_BLOCK = 1024  # positions computed at once: a permutation has a fixed cost per call
_RANDOM_ACCESS_LEASES = 64
_NUM_LEASES = 512  # nobody here can see batches, nor how far a loader's caller is: the files of so many samples stay


class StreamingDataset(IterableDataset[Sample]):
    """Streams the samples that an index names, from wherever they are.

    Args:
        src: an index file (CSV, TSV, Parquet, JSON, JSON lines), a folder, a wildcard, a text list of files, or a list
            of those; local, file://, s3://, gs://, az:// or http(s)://.
        dst: the cache folder. Default: the user's cache dir / sds / <name>.
        transforms: callables from dict to dict (or to several dicts, or None), run in order.
        pre_download_transforms: the same, before anything is fetched; they may choose what to fetch.
        columns_to_download: columns that hold URLs or paths; after fetching they hold local paths. For a folder: the
            extensions. []: metadata only. None: every extension of a folder, no column of a table.
        index_col_name: the column with the unique sample id.
        data_type: 'image', 'video', 'audio', 'text' or '<kind>_latent'; samples carry it.
        allow_missing_columns: keep rows without a value to download, with None.
        index_cols_to_keep: columns that samples get. None: all.
        sql_query: a SELECT in DuckDB's SQL over a table named `dataframe`.
        max_size: at most so many rows, after the query.
        max_index_files_to_use: at most so many index files.
        weight_col_name: not available yet.
        shuffle_seed: None keeps the order; >= 0 shuffles globally, anew each epoch; -1 draws a seed on rank 0.
        lazy_index_chunk_size: not available yet.
        lazy_index_num_threads: not available yet.
        lazy_index_prefetch_factor: not available yet.
        min_num_pending_tasks_thresh: how few samples may be left in the prefetch window when it is filled again.
        num_downloading_workers: downloads at once, over all processes of the node.
        prefetch: samples fetched ahead of use, per process.
        num_downloading_retries: how often a request that may yet succeed is tried again.
        timeout: seconds that a connection may be silent, and that a download may wait for room in the cache.
        cache_limit: bytes of objects on disk, as a number or "10gb"; None: no limit.
        cache_policy: 'keep' holds a resident set, the optimum when each sample is used once per epoch; or 'lru'.
        cache_ttl: not available yet.
        revalidate: 'never': a URL without a version in the index never changes. Others are not available yet.
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
        shuffle_seed: int | None = None,
        lazy_index_chunk_size: int | None = None,
        lazy_index_num_threads: int = 2,
        lazy_index_prefetch_factor: int = 3,
        min_num_pending_tasks_thresh: int | None = None,
        num_downloading_workers: int = 64,
        prefetch: int = 128,
        num_downloading_retries: int = 3,
        timeout: float = 60.0,
        cache_limit: str | int | None = "10gb",
        cache_policy: str = "keep",
        cache_ttl: float | None = None,
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
        try:
            client = FetchClient(self._options.fetch)
            self._index: Index = open_index(
                src, self._options.index, folder=Path(self._options.fetch.dst) / "index", remote=lambda: client
            )
        except BaseException as error:
            self._agreement.announce_failure(self.world, error)
            raise
        affine = self._options.node_affine
        self._num_shares = self.world.node[1] if affine is True else int(affine) or 1
        self._seed = self._options.shuffle_seed
        if self._seed == -1:
            self._seed = self._agreement.share_seed(self.world, draw_seed, self._patience_s)
        self.progress = Progress(self.plan_key, is_endless=self._options.infinite)
        self._adopt()

    # ---- what it has ------------------------------------------------------------------------------------------------

    @property
    def delivery(self) -> Delivery:
        """This process's way from rows to samples."""
        if self._pid != os.getpid():
            self._adopt()
        return self._delivery

    @property
    def world(self) -> World:
        """This process among the others: given, or detected."""
        if self._world is not None:
            return self._world
        if self._sender is not None and is_worker() and self._sender[0] == _parent_pid():
            return self._sender[1]
        return World.detect()

    def stand_for(self, ranks: Sequence[int]) -> None:
        """For a loader that broadcasts: these ranks read nothing themselves, so nobody waits for them."""
        self._agreement.stand_for(ranks)

    @property
    def fingerprint(self) -> str:
        """A hash of the index's content, after query and limits."""
        return self._index.fingerprint

    @property
    def schema(self) -> Any:
        """The Arrow schema of the index's rows."""
        return self._index.schema

    @property
    def name(self) -> str:
        """The dataset's name."""
        return self._options.name

    @property
    def data_type(self) -> str | None:
        """What its samples are, where that was said."""
        return self._options.data_type

    @property
    def _patience_s(self) -> float:
        """How long ranks wait for each other: an index may take a while to build elsewhere."""
        return 5 * self._options.fetch.timeout_s

    def __len__(self) -> int:
        return self.plan.length(self.epoch)

    def __repr__(self) -> str:
        return f"StreamingDataset({self._options.source_text}, {len(self._index)} rows, seed {self._seed})"

    def explain(self) -> str:
        """What will happen, in words: source, rows, order, partition, cache."""
        return explain(self._options, self._index, self.plan, self.world)

    def stats(self) -> Stats:
        """What happened so far in this process (and, under our loaders, in its workers)."""
        return self._tally.stats()

    def quarantine(self) -> list[Failure]:
        """The rows that failed, with stage and reason."""
        return self.delivery.policy.quarantine()

    # ---- iteration --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Sample]:
        """This rank's and worker's samples of the current epoch, from its start or from where a loaded state says."""
        worker, num_workers = worker_identity()
        epoch, start, taken, offset = self._begin_lane(worker, num_workers) if is_worker() else self.begin(self.world)
        plan, rank, size = self.share(self.world, worker)
        lane_of = (0, 1) if self._options.unaligned else (worker, num_workers)
        lane = lanes(self.horizon(epoch), start, size, rank, lane_of[1], lane_of[0])
        progress, delivery = self.progress, self.delivery
        held = Leases(_NUM_LEASES, self._lease_bytes(num_workers))
        self._tally.begin()
        # positions of this lane, from where it stands
        blocks = (np.asarray(lane[k : k + _BLOCK]) for k in range(taken, len(lane), _BLOCK))
        # -> jobs: rows with the files that they need
        jobs = delivery.pipeline.jobs(plan, epoch, blocks)
        # -> tickets: the files of the next ones are on their way
        window = prefetched(self._client, jobs, lambda job: job.files, *self.window)

        def after(num_rows: int, num_samples: int) -> State:
            """What was handed out: so many rows of the lane, and so many samples of the next one."""
            if is_worker():
                return State(progress.key, epoch, start, (worker, num_workers, num_rows, size), num_samples)
            return progress.at(epoch, lane.stop(num_rows - 1) if num_rows else start, num_samples)

        has_ended = False
        try:
            for k, (job, ticket) in enumerate(window, start=taken):
                tickets: list[Ticket] = []
                # -> samples: decoded, transformed; a row that failed is counted and left out
                samples = delivery.deliver(job, ticket, tickets) or []
                held.hold(tickets)
                done = offset if k == taken else 0  # of a row that was fanned out, what was handed out before
                for j, sample in enumerate(samples[done:], start=done + 1):
                    has_ended = j == len(samples) and k + 1 == len(lane)
                    if has_ended:  # the very end of an epoch is the beginning of the next
                        progress.finish(epoch)
                    else:
                        progress.reach(after(k + 1, 0) if j == len(samples) else after(k, j))
                    self._tally.delivered(1, batches=0)
                    yield sample
            if not has_ended:
                delivery.policy.end_of_epoch()
                progress.finish(epoch)
        finally:
            window.close()  # type: ignore[attr-defined]  # a generator
            held.release()

    def _begin_lane(self, worker: int, num_workers: int) -> Start:
        self.follow_seed()
        return self.progress.begin_lane(worker, num_workers, self.share(self.world, worker)[2])

    def begin(self, world: World) -> Start:
        """Where an iteration begins; ranks agree on it before the first one. A loaded state is used up by it."""
        epoch, position, _ = self.progress.coming()
        facts = {**msgspec.to_builtins(self.plan_key), "epoch": epoch, "position": position}
        self._agreement.check(world, facts, self._patience_s)
        return self.progress.begin()

    def follow_seed(self) -> None:
        """In a worker: takes over the seed that the parent found in a state, after this worker was made."""
        seed = self.progress.seed
        if seed is not None and seed != self._seed:
            self._use_seed(seed)

    def _use_seed(self, seed: int | None) -> None:
        self._seed = seed
        self.progress.key = self.plan_key
        self._adopt()

    def share(self, world: World, worker: int = 0) -> tuple[Plan, int, int]:
        """The order that a process follows, and which share of it: (plan, rank, size)."""
        rank, size = world.replica
        if not self._options.unaligned:
            return self.plan, rank, size
        # everybody goes through everything, each in an order of its own
        seed = None if self._seed is None else derive_key(self._seed, "lane", rank, worker)
        return Plan(len(self._index), seed), 0, 1

    def steps(self, world: World, epoch: int, start: int, batch_size: int, drop_last: bool) -> Steps:
        """The batches of a process, for a loader: as positions, from `start` on."""
        plan, rank, size = self.share(world)
        lap, shares = plan.length(epoch), plan.shares
        return steps(self.horizon(epoch), start, size, rank, batch_size, drop_last, shares=shares, lap=lap)

    def horizon(self, epoch: int) -> int:
        """Where an iteration that begins in this epoch ends; positions past the epoch are in those that follow."""
        return INFINITE if self._options.infinite else self.plan.length(epoch)

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

    # ---- epochs and state -------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch that the next (or current) iteration makes."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next iteration makes this epoch: from its start, or where a state of this epoch that was loaded says."""
        opts.check_count("epoch", epoch, minimum=0)
        self.progress.set_epoch(epoch)

    @property
    def plan_key(self) -> PlanKey:
        """What the order is a function of."""
        query = PlanKey.hash_query(self._options.index.sql_query)
        unaligned = self._options.unaligned
        return PlanKey(self.fingerprint, len(self._index), self._seed, query, unaligned, self._num_shares)

    def state_dict(self) -> dict[str, Any]:
        """Where delivery stands: a small JSON-able copy, right at every yield."""
        return self.progress.state().to_dict()

    def load_state_dict(self, state: dict[str, Any], *, strict: bool = True) -> None:
        """The next iteration goes on where the state says.

        Args:
            state: what `state_dict()` returned, on any number of ranks and workers.
            strict: False lets a state of another index through, for one that was appended to.

        Raises:
            StateMismatch: the state is of another index, query or seed.
        """
        loaded = State.from_dict(state)
        key = self.plan_key
        if self._options.shuffle_seed == -1 and loaded.key.seed is not None:
            key = msgspec.structs.replace(key, seed=loaded.key.seed)  # what was drawn for the run that goes on
        loaded.check(key, strict=strict)
        if key.seed != self._seed:
            self._use_seed(key.seed)
        self.progress.load(State(key, loaded.epoch, loaded.position, loaded.lane, loaded.offset))

    # ---- life -------------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Makes what every process has of its own: a forked child must not touch its parent's locks or connection."""
        self._pid = os.getpid()
        logs.set_up()
        self._tally = Tally()
        self._client = FetchClient(self._options.fetch, self._tally)
        self.plan = Plan(len(self._index), self._seed, shares=self._num_shares)
        options = dataclasses.replace(self._options, shuffle_seed=self._seed)
        pipeline = Pipeline(self._index, options, self._tally)
        self._delivery = Delivery(pipeline, FailurePolicy(self._options.failures, self._tally), self._client)
        self._random_leases = Leases(_RANDOM_ACCESS_LEASES, self._lease_bytes(1))

    def close(self) -> None:
        """Lets go of every cached file and of the fetch server. The dataset can be used again."""
        self._random_leases.release()
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


def _parent_pid() -> int | None:
    """Who started this process, if multiprocessing did; under a forkserver that is not who forked it."""
    parent = multiprocessing.parent_process()
    return None if parent is None else parent.pid
