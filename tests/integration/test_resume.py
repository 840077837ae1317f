"""Stop and go on, with every loader that can be stopped; and what users of other libraries lost, shown to hold here."""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import sds
from sds.errors import StateError, StateMismatch
from sds.testing import Topology, check_resume
from sds.testing.resume import sample_keys
from sds.transforms import rng

# torchdata calls something that torch has given up
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")

ROWS = 22


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """An index of 22 rows without files: what is tested here is order."""
    return write_index(tmp_path_factory.mktemp("source") / "rows.csv", ROWS)


def write_index(path, num_rows):
    path.write_text("\n".join(["index,value", *(f"{i:03},{i % 4}" for i in range(num_rows))]) + "\n")
    return path


@pytest.fixture
def make(source, tmp_path):
    """Makes a dataset over `source`, shuffled if nothing else is said."""
    made = []

    def make_dataset(**keywords):
        keywords = {"columns_to_download": [], "shuffle_seed": 7, **keywords}
        made.append(sds.StreamingDataset(keywords.pop("src", source), tmp_path / "cache", **keywords))
        return made[-1]

    yield make_dataset
    for dataset in made:
        dataset.close()


def keys_of(batches):
    return [key for batch in batches for key in sample_keys(batch)]


# ---- every loader that has a state ---------------------------------------------------------------------------------


def test_a_bare_dataset(make):
    ranks = [Topology(ranks=r, batch_size=1) for r in (1, 2, 3)]
    assert check_resume(lambda _topology, world: make(world=world), ranks) > 200


def test_a_streaming_loader_with_threads(make):
    shapes = [Topology(1, 4), Topology(2, 3), Topology(3, 5), Topology(2, 40)]

    def make_loader(topology, world):
        return sds.StreamingDataLoader(make(), topology.batch_size, num_threads=1, world=world)

    assert check_resume(make_loader, shapes) > 100


@pytest.mark.parametrize(
    "keywords",
    [{"sql_query": "SELECT * FROM dataframe WHERE value <> 1"}, {"max_size": 13}, {"shuffle_seed": None}],
    ids=["sql_query", "max_size", "in order"],
)
def test_a_streaming_loader_of_a_part_of_the_index(make, keywords):
    def make_loader(topology, world):
        return sds.StreamingDataLoader(make(**keywords), topology.batch_size, num_threads=1, world=world)

    assert check_resume(make_loader, [Topology(1, 4), Topology(2, 3)]) > 20


def test_a_streaming_loader_that_drops_the_tail(make):
    def make_loader(topology, world):
        return sds.StreamingDataLoader(make(), topology.batch_size, num_threads=1, drop_last=True, world=world)

    # the tail depends on ranks x batch size: what is equal in that is equal in all
    assert check_resume(make_loader, [Topology(1, 6), Topology(2, 3), Topology(3, 2)]) > 20


@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
def test_a_streaming_loader_with_workers(make, persistent):
    def make_loader(topology, world):
        return sds.StreamingDataLoader(
            make(),
            topology.batch_size,
            num_workers=topology.num_workers,
            persistent_workers=persistent and topology.num_workers > 0,
            world=world,
        )

    shapes = [Topology(1, 8, 2), Topology(2, 4, 0)] if persistent else [Topology(1, 8, 3), Topology(1, 6, 0)]
    assert check_resume(make_loader, shapes, every=3) > 10


def test_an_infinite_loader_goes_on_over_the_border_of_epochs(make):
    whole = sds.StreamingDataLoader(make(infinite_iteration=True), 5, num_threads=1)
    batches, states = [], []
    for batch in whole:
        batches.append(sample_keys(batch))
        states.append(whole.state_dict())
        if len(batches) == 12:  # 60 samples of 22 rows: the third epoch
            break
    whole.close()
    for k in (0, 3, 4, 5, 8, 10):
        for size in (5, 3):
            loader = sds.StreamingDataLoader(make(infinite_iteration=True), size, num_threads=1)
            loader.load_state_dict(json.loads(json.dumps(states[k])))
            rest = [key for batch in batches[k + 1 :] for key in batch]
            went_on = keys_of(batch for _, batch in zip(range(-(-len(rest) // size)), loader, strict=False))
            assert went_on[: len(rest)] == rest
            loader.close()


class WithoutWorkers:
    """A torch DataLoader without workers: the state is the dataset's."""

    def __init__(self, dataset, batch_size):
        self.dataset = dataset
        self.loader = DataLoader(dataset, batch_size)
        self.state_dict, self.load_state_dict = dataset.state_dict, dataset.load_state_dict

    def __iter__(self):
        return iter(self.loader)


def test_a_torch_loader_without_workers(make):
    shapes = [Topology(1, 5), Topology(1, 4)]
    assert check_resume(lambda topology, _world: WithoutWorkers(make(), topology.batch_size), shapes) > 30


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True), (3, False)])
def test_a_stateful_loader_of_torchdata(make, num_workers, persistent):
    """Its state is one per worker, so it goes on with as many. Stopped in the first two of three epochs, twice."""

    def run(state, num_batches):
        """The batches that follow a state, over the border of epochs, and the state after each."""
        loader = StatefulDataLoader(make(), 4, num_workers=num_workers, persistent_workers=persistent)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        found = []
        while len(found) < num_batches:
            found += [(sample_keys(batch), loader.state_dict()) for batch in loader]
        return found

    per_epoch = len(run(None, 1))
    whole = run(None, 3 * per_epoch)
    batches = [keys for keys, _ in whole]
    epochs = [[key for keys in batches[e * per_epoch : (e + 1) * per_epoch] for key in keys] for e in range(3)]
    assert [sorted(each) for each in epochs] == [[f"{i:03}" for i in range(ROWS)]] * 3
    assert len({tuple(each) for each in epochs}) == 3, "another order each epoch"
    stops = range(0, 2 * per_epoch, 1 if num_workers == 0 else 3)
    for k in (*stops, per_epoch - 1):
        first = run(whole[k][1], len(batches) - k - 1)
        assert [keys for keys, _ in first] == batches[k + 1 :], f"stopped after step {k + 1}"
        second = run(first[1][1], len(batches) - k - 3)
        assert [keys for keys, _ in second] == batches[k + 3 :], f"stopped after step {k + 1} and two more"


def test_a_plain_loader_with_workers_does_not_know_and_says_so(make):
    dataset = make()
    loader = DataLoader(dataset, 4, num_workers=2)
    next(iter(loader))
    with pytest.raises(StateError, match="StreamingDataLoader"):
        dataset.state_dict()
    del loader


# ---- what users of other libraries lost ----------------------------------------------------------------------------


def test_nothing_is_lost_or_repeated_with_a_shuffle(make):
    """Elsewhere a shuffle buffer was lost, and rows repeated, when a stream was resumed."""
    expected = keys_of(make())
    dataset = make()
    iterator = iter(dataset)
    seen = [next(iterator)["__sample_key__"] for _ in range(9)]
    state = dataset.state_dict()
    iterator.close()
    dataset = make()
    dataset.load_state_dict(state)
    assert seen + keys_of(dataset) == expected


def test_a_second_resume_goes_on_too(make):
    """Elsewhere the second resume began from zero."""
    expected, seen, state = keys_of(make()), [], None
    for _ in range(ROWS):
        dataset = make()
        if state is not None:
            dataset.load_state_dict(state)
        iterator = iter(dataset)
        seen.append(next(iterator)["__sample_key__"])
        state = dataset.state_dict()
        iterator.close()
    assert seen == expected
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("moment", ["loaded", "begun"])
def test_a_state_taken_before_the_first_batch_is_the_one_that_was_loaded(make, moment):
    first = sds.StreamingDataLoader(make(), 4)
    next(iter(first))
    state = first.state_dict()
    first.close()
    with sds.StreamingDataLoader(make(), 4) as loader:
        loader.load_state_dict(state)
        if moment == "begun":
            iter(loader)
        assert loader.state_dict() == state


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_checkpoint_at_the_border_of_epochs_skips_none(make, num_workers):
    """Elsewhere a checkpoint at the end of an epoch skipped the next one."""
    loader = sds.StreamingDataLoader(make(), 4, num_workers=num_workers)
    first, state, second = keys_of(loader), loader.state_dict(), keys_of(loader)
    assert first != second
    assert sorted(first) == sorted(second)
    with sds.StreamingDataLoader(make(), 4, num_workers=num_workers) as resumed:
        resumed.load_state_dict(state)
        assert keys_of(resumed) == second
    loader.close()


def test_persistent_workers_do_not_shorten_later_epochs(make):
    """Elsewhere workers that live on went on from the resumed place in every later epoch."""
    stopped = sds.StreamingDataLoader(make(), 4)
    iterator = iter(stopped)
    next(iterator), next(iterator)
    state = stopped.state_dict()
    stopped.close()
    expected = [keys_of(stopped) for _ in range(3)]
    stopped.close()
    with sds.StreamingDataLoader(make(), 4, num_workers=2, persistent_workers=True) as loader:
        loader.load_state_dict(state)
        assert [keys_of(loader) for _ in range(3)] == [expected[0][8:], *expected[1:]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resume_goes_on_with_the_order_of_its_epoch(make, num_workers):
    """Elsewhere a resumed run replayed the order of epoch 0."""
    whole = make()
    orders = [keys_of(whole) for _ in range(4)]
    with sds.StreamingDataLoader(make(), 4, num_workers=num_workers) as loader:
        loader.dataset.set_epoch(2)
        next(iter(loader))
        state = loader.state_dict()
    with sds.StreamingDataLoader(make(), 4, num_workers=num_workers) as loader:
        loader.load_state_dict(state)
        assert [keys_of(loader), keys_of(loader)] == [orders[2][4:], orders[3]]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("state", [None, 8])
def test_a_plain_loader_goes_on_too_and_then_with_whole_epochs(make, num_workers, state):
    """Loading is possible where asking is not; the epochs after it are whole, and in orders of their own."""
    dataset = make()
    if state is not None:
        with sds.StreamingDataLoader(make(), 4) as stopped:
            iterator = iter(stopped)
            next(iterator), next(iterator)
            dataset.load_state_dict(stopped.state_dict())
    loader = DataLoader(dataset, 2, num_workers=num_workers)
    whole = make()
    orders = [keys_of(whole) for _ in range(3)]
    made = [keys_of(loader) for _ in range(3)]
    assert sorted(made[0]) == sorted(orders[0][state or 0 :])
    assert [sorted(each) for each in made[1:]] == [sorted(orders[0])] * 2
    assert len({tuple(each) for each in made}) == 3


@pytest.mark.parametrize("data_size", [2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_make_equally_many_steps(make, data_size, drop_last):
    """Elsewhere one rank ran dry before the others, and the others hung."""
    counts = []
    for rank in range(data_size):
        loader = sds.StreamingDataLoader(
            make(), 3, num_threads=1, drop_last=drop_last, world=sds.World(rank, data_size)
        )
        counts.append((sum(1 for _ in loader), len(loader)))
        loader.close()
    assert len(set(counts)) == 1
    assert counts[0][0] == counts[0][1]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda ds: ds, id="bare"),
        pytest.param(lambda ds: sds.StreamingDataLoader(ds, 4), id="threads"),
        pytest.param(lambda ds: sds.StreamingDataLoader(ds, 4, num_workers=2), id="workers"),
        pytest.param(lambda ds: DataLoader(ds, 4, num_workers=2), id="plain workers"),
        pytest.param(lambda ds: DataLoader(ds, 4, num_workers=2, persistent_workers=True), id="plain persistent"),
        pytest.param(lambda ds: StatefulDataLoader(ds, 4, num_workers=2), id="torchdata workers"),
    ],
)
def test_every_epoch_has_an_order_of_its_own(make, build):
    """Elsewhere epochs repeated the first order unless workers were persistent."""
    loader = build(make())
    orders = [keys_of(loader) for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert {tuple(sorted(order)) for order in orders} == {tuple(f"{i:03}" for i in range(ROWS))}
    if hasattr(loader, "close"):
        loader.close()


@pytest.mark.parametrize("given", ["detected", "explicit"])
def test_spawned_workers_know_their_rank(make, given, monkeypatch):
    """Elsewhere a spawned worker believed that it was rank 0 of 1, and every rank read everything."""
    world = sds.World(1, 2)
    if given == "detected":
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        dataset = make()
    else:
        dataset = make(world=world)
    expected = keys_of(make(world=world))
    loader = DataLoader(dataset, 1, num_workers=1, multiprocessing_context="spawn")
    iterator = iter(loader)
    monkeypatch.undo()
    assert keys_of(iterator) == expected


# ---- the state itself ----------------------------------------------------------------------------------------------


def test_a_state_is_small_and_takes_microseconds(make):
    query = "SELECT * FROM dataframe WHERE value >= 0 -- " + "x" * 5000
    with sds.StreamingDataLoader(make(sql_query=query), 4) as loader:
        next(iter(loader))
        times = []
        for _ in range(2000):
            start = time.perf_counter()
            state = loader.state_dict()
            times.append(time.perf_counter() - start)
        assert len(json.dumps(state)) < 2048
        assert json.loads(json.dumps(state)) == state
        assert statistics.median(times) < 50e-6
        state["position"] = state["key"]["rows"] = -1
        assert loader.state_dict() != state, "it is a copy"


def test_a_state_of_something_else_names_the_difference(make, tmp_path):
    with sds.StreamingDataLoader(make(), 4) as loader:
        next(iter(loader))
        state = loader.state_dict()
    other = write_index(tmp_path / "other.csv", ROWS + 5)
    for keywords, message in (
        ({"shuffle_seed": 8}, "shuffle_seed"),
        ({"sql_query": "SELECT * FROM dataframe"}, "sql_query"),
        ({"src": other}, "another index: 22 rows"),
    ):
        with pytest.raises(StateMismatch, match=message):
            make(**keywords).load_state_dict(state)
    with pytest.raises(StateError, match="version"):
        make().load_state_dict({**state, "version": 999})
    with pytest.raises(StateError):
        make().load_state_dict({"epoch": 0})
    appended = make(src=other)
    appended.load_state_dict(state, strict=False)
    assert len(list(appended)) == ROWS + 5 - 4


def test_an_appended_index_in_order_goes_on_with_what_was_appended(make, tmp_path):
    with sds.StreamingDataLoader(make(shuffle_seed=None), 4) as loader:
        next(iter(loader))
        state = loader.state_dict()
    appended = make(src=write_index(tmp_path / "other.csv", ROWS + 5), shuffle_seed=None)
    appended.load_state_dict(state, strict=False)
    assert keys_of(appended) == [f"{i:03}" for i in range(4, ROWS + 5)]


def test_going_on_near_the_end_of_a_large_index_is_as_fast_as_beginning(tmp_path):
    """2M rows here; benchmarks/resume.py measures 100M."""
    num_rows = 2_000_000
    table = pa.table({"label": np.arange(num_rows, dtype=np.int32)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=250_000)

    def first_batch(position):
        start = time.perf_counter()
        ds = sds.StreamingDataset(tmp_path / "rows.parquet", tmp_path / "cache", columns_to_download=[], shuffle_seed=7)
        with ds, sds.StreamingDataLoader(ds, 256) as loader:
            if position:
                loader.load_state_dict({**ds.state_dict(), "position": position})
            batch = next(iter(loader))
            seconds = time.perf_counter() - start
        assert batch["label"].tolist() == ds.plan.rows(0, position, position + 256).tolist()
        return seconds

    first_batch(0)  # whatever is built once is built
    times = [(first_batch(0), first_batch(num_rows * 9 // 10)) for _ in range(7)]  # by turns: the machine drifts
    from_start, from_90 = (min(each) for each in zip(*times, strict=True))
    assert from_90 < 1.2 * from_start + 0.01, f"{from_90:.3f} s against {from_start:.3f} s"


# ---- randomness belongs to the sample ------------------------------------------------------------------------------


def draw(sample):
    return {"__sample_key__": sample["__sample_key__"], "draw": float(rng(sample).random())}


def test_random_choices_of_a_sample_are_the_same_everywhere(make):
    """On any number of ranks and workers, in threads or processes, by number, and after a resume."""

    def collect(loaders):
        found = []
        for epoch in range(2):
            for loader in loaders:
                found += [
                    (epoch, key, value)
                    for batch in loader
                    for key, value in zip(sample_keys(batch), np.atleast_1d(batch["draw"]).tolist(), strict=True)
                ]
        for loader in loaders:
            if hasattr(loader, "close"):
                loader.close()
        return set(found)

    def loader(batch_size, num_workers=0, rank=0, size=1):
        return sds.StreamingDataLoader(
            make(transforms=[draw]), batch_size, num_workers=num_workers, world=sds.World(rank, size)
        )

    expected = collect([loader(22)])
    assert len({value for _, _, value in expected}) == 2 * ROWS, "another number for every sample and epoch"
    assert collect([make(transforms=[draw])]) == expected
    assert collect([loader(4, rank=rank, size=3) for rank in range(3)]) == expected
    assert collect([loader(4, num_workers=2)]) == expected
    by_number = make(transforms=[draw])
    assert {(0, each["__sample_key__"], each["draw"]) for each in by_number[:]} < expected
    by_number.set_epoch(1)
    assert {(1, each["__sample_key__"], each["draw"]) for each in by_number[:]} < expected
    stopped = loader(4)
    next(iter(stopped))
    resumed = loader(5, rank=0, size=1)
    resumed.load_state_dict(stopped.state_dict())
    assert collect([resumed]) < expected
    stopped.close()
