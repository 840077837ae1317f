"""A dataset whose index is read in chunks: order, lengths, states, copies, for any ranks and workers."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import sds
from sds.errors import OptionError, StateMismatch
from sds.testing import Topology, check_resume

NUM_ROWS = 96


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files, 96 rows."""
    folder = tmp_path_factory.mktemp("lazy")
    for number, (start, stop) in enumerate([(0, 50), (50, 55), (55, NUM_ROWS)]):
        numbers = range(start, stop)
        table = pa.table({"index": [f"{i:03}" for i in numbers], "x": list(numbers), "w": [i % 4 / 2 for i in numbers]})
        parquet.write_table(table, folder / f"part-{number}.parquet", row_group_size=20)
    return folder


@pytest.fixture
def lazy(folder, tmp_path):
    made = []

    def make(**options):
        options = {"columns_to_download": [], "lazy_index_chunk_size": 8, "lazy_index_reach": 3, **options}
        made.append(sds.StreamingDataset(folder / "*.parquet", tmp_path / "dst", **options))
        return made[-1]

    yield make
    for dataset in made:
        dataset.close()


def keys(dataset):
    return [sample["__sample_key__"] for sample in dataset]


def unique(batch):
    seeds = np.atleast_1d(batch["__random_seed__"]).tolist()
    names = [batch["__sample_key__"]] if isinstance(batch["__sample_key__"], str) else batch["__sample_key__"]
    return [f"{name}/{seed}" for name, seed in zip(names, seeds, strict=True)]


def test_without_a_seed_rows_come_in_their_order(lazy):
    assert keys(lazy()) == [f"{i:03}" for i in range(NUM_ROWS)]


def test_every_epoch_has_every_row_once_in_another_order(lazy):
    dataset = lazy(shuffle_seed=3)
    first, second = keys(dataset), keys(dataset)
    assert sorted(first) == sorted(second) == [f"{i:03}" for i in range(NUM_ROWS)]
    assert first != second
    assert keys(lazy(shuffle_seed=3)) == first


def test_rows_stay_within_the_reach(lazy):
    order = [int(key) // 8 for key in keys(lazy(shuffle_seed=3))]
    for start in range(0, NUM_ROWS, 24):
        assert len(set(order[start : start + 24])) == 3, "a window has the rows of three chunks, and of no other"
    assert len(set(order[:24])) < len(set(keys(lazy(shuffle_seed=3, lazy_index_reach=12))[:24]))


def test_any_row_is_found_alone(lazy):
    dataset = lazy(shuffle_seed=3, sql_query="SELECT * FROM dataframe WHERE x % 3 = 1")
    assert dataset[5]["x"] == 16
    assert dataset[-1]["x"] == 94
    assert [sample["x"] for sample in dataset[2:5]] == [7, 10, 13]
    with pytest.raises(IndexError):
        dataset[32]


@pytest.mark.parametrize("seed", [None, 3])
def test_lengths_are_exact_under_a_query(lazy, seed):
    dataset = lazy(shuffle_seed=seed, sql_query="SELECT * FROM dataframe WHERE x % 7 < 2 AND x NOT BETWEEN 30 AND 60")
    expected = [x for x in range(NUM_ROWS) if x % 7 < 2 and not 30 <= x <= 60]
    assert len(dataset) == len(expected)
    assert sorted(sample["x"] for sample in dataset) == expected


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_more_or_fewer_than_files_share_all_rows(lazy, ranks):
    shares = [keys(lazy(shuffle_seed=3, world=sds.World(rank, ranks))) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    assert {key for share in shares for key in share} == {f"{i:03}" for i in range(NUM_ROWS)}


def test_lazy_with_a_query_and_weights_goes_on_from_any_stop_on_any_topology(lazy):
    def loader(topology, world):
        dataset = lazy(
            shuffle_seed=3, sql_query="SELECT * FROM dataframe WHERE x % 3 = 0", weight_col_name="w", max_size=12
        )
        return sds.StreamingDataLoader(dataset, topology.batch_size, world=world, num_threads=1)

    topologies = [Topology(1, 6), Topology(2, 2), Topology(3, 1)]
    assert check_resume(loader, topologies, keys=unique, every=4) > 10


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_text_files_go_on_from_any_stop_on_any_topology(tmp_path, ending, monkeypatch):
    monkeypatch.setattr("sds.index.text_blocks._BLOCK_BYTES", 100)
    lines = ["index,x,t", *(f'{i:03},{i},"two\nlines"' for i in range(40))]
    if ending == "jsonl":
        lines = [f'{{"index": "{i:03}", "x": {i}}}' for i in range(40)]
    (tmp_path / f"rows.{ending}").write_text("\n".join(lines))

    def loader(topology, world):
        options = {"sql_query": "SELECT * FROM dataframe WHERE x % 3 = 0", "lazy_index_reach": 2}
        dataset = sds.StreamingDataset(
            tmp_path / f"*.{ending}", tmp_path / "dst", lazy_index_chunk_size=5, shuffle_seed=3, **options
        )
        assert len(dataset) == 14
        return sds.StreamingDataLoader(dataset, topology.batch_size, world=world, num_threads=1)

    assert check_resume(loader, [Topology(1, 6), Topology(2, 2), Topology(3, 1)], every=5) > 5


def test_bare_iteration_goes_on_from_any_stop(lazy):
    assert check_resume(lambda: lazy(shuffle_seed=3, max_size=30), every=3) > 10
    assert check_resume(lambda: lazy(max_size=30), every=3) > 10


def test_weights_hold_exactly_over_epochs(lazy):
    dataset = lazy(shuffle_seed=3, weight_col_name="w")
    counts: Counter[str] = Counter()
    for _ in range(2):
        length = len(dataset)
        found = keys(dataset)
        assert len(found) == length
        counts.update(found)
    assert all(counts[f"{x:03}"] == 2 * (x % 4 / 2) for x in range(NUM_ROWS))


def test_weights_keep_rows_within_the_reach(lazy):
    order = [int(key) // 8 for key in keys(lazy(shuffle_seed=3, weight_col_name="w", lazy_index_reach=1))]
    changes = sum(a != b for a, b in itertools.pairwise(order))
    assert changes == NUM_ROWS // 8 - 1, "chunk by chunk"


def test_a_schedule_works_on_parts_of_the_rows(lazy):
    dataset = lazy(weight_col_name="w", weight_schedule=lambda epoch, values: values * epoch)
    dataset.set_epoch(2)
    assert len(dataset) == sum(2 * (x % 4 / 2) for x in range(NUM_ROWS))


def test_the_order_does_not_depend_on_how_chunks_are_read(lazy):
    expected = keys(lazy(shuffle_seed=3))
    assert keys(lazy(shuffle_seed=3, lazy_index_num_threads=1, lazy_index_prefetch_factor=1)) == expected
    assert keys(lazy(shuffle_seed=3, lazy_index_num_threads=4, lazy_index_prefetch_factor=10)) == expected


def test_few_chunks_are_in_memory_at_a_time(lazy):
    dataset = lazy(shuffle_seed=3, lazy_index_num_threads=1, lazy_index_prefetch_factor=2, lazy_index_chunk_size=2)
    for _ in dataset:
        assert len(dataset._index._chunks) <= 3 + 2 + 2


def test_a_state_of_other_chunks_is_refused(lazy):
    state = lazy(shuffle_seed=3).state_dict()
    with pytest.raises(StateMismatch, match="other chunks"):
        lazy(shuffle_seed=3, lazy_index_chunk_size=16).load_state_dict(state)
    with pytest.raises(StateMismatch, match="other chunks"):
        lazy(shuffle_seed=3, lazy_index_reach=4).load_state_dict(state)
    # without a shuffle, chunks decide nothing
    lazy(lazy_index_chunk_size=16).load_state_dict(lazy().state_dict())


def test_chunks_and_shares_exclude_each_other(lazy):
    with pytest.raises(OptionError, match="lazy_index_chunk_size and node_affine"):
        lazy(node_affine=2)


def test_in_a_mix_each_member_keeps_its_order(lazy):
    single = keys(lazy(shuffle_seed=3))
    turns = keys(sds.interleave([lazy(shuffle_seed=3), lazy(shuffle_seed=4)]))
    assert turns[::2] == single


def test_sources_without_chunks_refuse_them(tmp_path):
    with sds.tensors.TensorCacheWriter(tmp_path / "some.tensors") as writer:
        writer.add("a", {"x": 1.0})
    with pytest.raises(OptionError, match="lazy_index_chunk_size needs index files"):
        sds.StreamingDataset(tmp_path / "some.tensors", tmp_path / "dst", lazy_index_chunk_size=5)
