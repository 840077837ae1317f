"""Weights of a dataset: from a column or a schedule, exact over epochs, equal on ranks, resumable, checked."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import sds
from sds.errors import OptionError, SchemaError, StateMismatch
from sds.testing import Topology, check_resume
from sds.transforms import rng

WEIGHTS = [0.0, 0.25, 0.5, 1.0, 1.5, 3.0]


@pytest.fixture
def table(tmp_path):
    """Twelve rows, two of each weight."""
    path = tmp_path / "weights.parquet"
    ids = [f"{weight}-{i}" for i in range(2) for weight in WEIGHTS]
    parquet.write_table(pa.table({"index": ids, "weight": WEIGHTS * 2, "x": list(range(12))}), path)
    return path


@pytest.fixture
def weighted(table, tmp_path):
    def make(**options):
        options = {"columns_to_download": [], "weight_col_name": "weight", "shuffle_seed": 3, **options}
        return sds.StreamingDataset(table, tmp_path / "dst", **options)

    return make


def keys(dataset):
    return [sample["__sample_key__"] for sample in dataset]


def test_over_epochs_every_row_comes_by_its_weight(weighted):
    dataset = weighted()
    counts: Counter[str] = Counter()
    for epoch in range(4):
        assert dataset.epoch == epoch
        length = len(dataset)
        found = keys(dataset)
        assert len(found) == length, "the length is that of the epoch which comes"
        counts.update(found)
    for weight in WEIGHTS:
        assert [counts[f"{weight}-{i}"] for i in range(2)] == [4 * weight] * 2


def test_the_column_need_not_be_kept(weighted):
    sample = next(iter(weighted(index_cols_to_keep=["x"])))
    assert "weight" not in sample
    assert "x" in sample
    assert [name for name in sample if name.startswith("__sds")] == []
    assert weighted(index_cols_to_keep=["x"]).schema.names == ["index", "x"]


def test_a_query_may_make_the_column(weighted):
    dataset = weighted(sql_query="SELECT index, x % 3 AS weight FROM dataframe WHERE x < 6")
    assert len(dataset) == 2 * (1 + 2)


def test_copies_of_a_row_have_their_own_randomness(weighted):
    def draw(sample):
        return {"key": sample["__sample_key__"], "drawn": int(rng(sample).integers(2**60))}

    drawn = [sample["drawn"] for sample in weighted(transforms=[draw]) if sample["key"] == "3.0-0"]
    assert len(set(drawn)) == 3
    assert drawn == [s["drawn"] for s in weighted(transforms=[draw]) if s["key"] == "3.0-0"]


def test_weights_change_by_a_schedule(weighted):
    dataset = weighted(weight_schedule=lambda epoch, values: np.where(values > 1, epoch + 1, 0))
    assert [len(keys(dataset)) for _ in range(3)] == [4, 8, 12]


def test_ranks_have_equally_many(weighted):
    shares = [keys(weighted(world=sds.World(rank, 3))) for rank in range(3)]
    assert len({len(share) for share in shares}) == 1
    dealt = Counter(key for share in shares for key in share)
    assert not Counter(keys(weighted())) - dealt
    loaders = [sds.StreamingDataLoader(weighted(), 2, world=sds.World(rank, 3)) for rank in range(3)]
    assert len({len(loader) for loader in loaders}) == 1


def test_epochs_of_different_lengths_follow_each_other_without_an_end(weighted):
    dataset = weighted(infinite_iteration=True)
    expected = []
    single = weighted()
    while len(expected) < 60:
        expected += keys(single)
    iterator = iter(dataset)
    found = []
    for k in range(60):
        found.append(next(iterator)["__sample_key__"])
        if k % 7 == 0:
            again = weighted(infinite_iteration=True)
            again.load_state_dict(dataset.state_dict())
            rest = iter(again)
            assert [next(rest)["__sample_key__"] for _ in range(3)] == expected[k + 1 : k + 4]
    assert found == expected[:60]


def unique(batch):
    seeds = np.atleast_1d(batch["__random_seed__"]).tolist()
    names = [batch["__sample_key__"]] if isinstance(batch["__sample_key__"], str) else batch["__sample_key__"]
    return [f"{name}/{seed}" for name, seed in zip(names, seeds, strict=True)]


def test_any_stop_is_gone_on_from_by_any_topology(weighted):
    def loader(topology, world):
        return sds.StreamingDataLoader(weighted(), topology.batch_size, world=world, num_threads=1)

    topologies = [Topology(1, 5), Topology(2, 2), Topology(3, 1)]
    assert check_resume(loader, topologies, keys=unique, every=2) > 30
    assert check_resume(lambda: weighted(shuffle_seed=None), keys=unique) > 20


def test_members_of_mixes_have_epochs_of_their_own_length(weighted):
    both = sds.concatenate([weighted(), weighted(shuffle_seed=None)], shuffle_seed=1)
    lengths = []
    for _ in range(3):
        lengths.append(len(both))
        assert len(keys(both)) == lengths[-1]
    turns = sds.interleave([weighted(), weighted(shuffle_seed=None)], stop="never")
    single, expected = weighted(), []
    while len(expected) < 30:
        expected += keys(single)
    iterator = iter(turns)
    assert [next(iterator)["__sample_key__"] for _ in range(60)][::2] == expected[:30]
    assert check_resume(lambda: sds.concatenate([weighted(), weighted()], shuffle_seed=1), keys=unique, every=7)


def test_a_state_of_other_weights_is_refused(weighted):
    state = weighted().state_dict()
    with pytest.raises(StateMismatch, match="other weights: weight"):
        weighted(weight_schedule=lambda epoch, values: values).load_state_dict(state)
    with pytest.raises(StateMismatch, match="position is outside"):
        weighted().load_state_dict({**state, "position": 99})


@pytest.mark.parametrize("wrong", [-0.5, float("nan"), None, float("inf")])
def test_what_is_no_weight_is_named_with_its_row(tmp_path, wrong):
    path = tmp_path / "wrong.parquet"
    parquet.write_table(pa.table({"weight": pa.array([1.0, 1.0, wrong])}), path)
    with pytest.raises(SchemaError, match=r"weight is impossible.*'weight', row 2") as caught:
        sds.StreamingDataset(path, tmp_path / "dst", weight_col_name="weight")
    assert "quarter" in caught.value.hint


@pytest.mark.parametrize(
    ("column", "message"),
    [(["a", "b"], "not numbers"), ([0.0, 0.0], "every weight is 0")],
)
def test_a_column_without_weights_is_refused(tmp_path, column, message):
    path = tmp_path / "wrong.parquet"
    parquet.write_table(pa.table({"weight": column}), path)
    with pytest.raises(SchemaError, match=message):
        sds.StreamingDataset(path, tmp_path / "dst", weight_col_name="weight")


def test_a_column_that_is_not_there_is_named(weighted):
    with pytest.raises(SchemaError, match=r"weight_col_name names a column .* 'wieght'") as caught:
        weighted(weight_col_name="wieght")
    assert "did you mean 'weight'" in caught.value.hint


def test_weights_and_shares_exclude_each_other(weighted):
    with pytest.raises(OptionError, match="weight_col_name and node_affine"):
        weighted(node_affine=2)
