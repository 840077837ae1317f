"""bucket_by: batches of one kind, from columns, functions and shapes; every sample once; states that go on exactly."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import sds
from sds.errors import OptionError, StateError, StateMismatch
from sds.testing.resume import sample_keys

ROWS = 60
SIZES = [(64, 64), (64, 96), (96, 64), (128, 128)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A table with the size of each sample, in an uneven mix; the last one is the only one of its kind."""
    rng = np.random.default_rng(3)
    picks = [*rng.choice(3, ROWS - 1, p=[0.5, 0.3, 0.2]).tolist(), 3]
    table = {
        "index": [f"{i:03}" for i in range(ROWS)],
        "h": [SIZES[pick][0] for pick in picks],
        "w": [SIZES[pick][1] for pick in picks],
        "label": [None if pick == 3 else f"kind {pick}" for pick in picks],
        "size": [list(SIZES[pick]) for pick in picks],
        "nested": [{"of": [{"h": SIZES[pick][0], "w": SIZES[pick][1]}]} for pick in picks],
    }
    path = tmp_path_factory.mktemp("source") / "rows.parquet"
    pq.write_table(pa.table(table), path, row_group_size=17)
    return path


@pytest.fixture(scope="module")
def tensors(tmp_path_factory):
    """A tensor cache with three shapes of one tensor and two of another."""
    path = tmp_path_factory.mktemp("tensors") / "latents.tensors"
    with sds.tensors.TensorCacheWriter(path, shard_size="4kb") as writer:
        for i in range(40):
            latent = torch.full((4, 2 + i % 3, 3), float(i))
            writer.add(f"{i:03}", {"latent": {"samples": latent}, "text": torch.zeros(1 + i % 2), "kind": i % 2})
    return path


@pytest.fixture
def make(source, tmp_path):
    made = []

    def make_dataset(src=None, **keywords):
        keywords = {"columns_to_download": [], "shuffle_seed": 5, **keywords}
        if src is not None:
            del keywords["columns_to_download"]
        made.append(sds.StreamingDataset(src or source, tmp_path / "cache", **keywords))
        return made[-1]

    yield make_dataset
    for dataset in made:
        dataset.close()


def load(dataset, batch_size=8, **keywords):
    return sds.StreamingDataLoader(dataset, batch_size, num_threads=1, **keywords)


def sizes_in(batch):
    return set(zip(batch["h"].tolist(), batch["w"].tolist(), strict=True))


@pytest.mark.parametrize(
    "by",
    [["h", "w"], ("w", "h"), "label", "size", "nested", lambda row: (row["h"], row["w"])],
    ids=["list", "tuple", "label", "size", "nested", "callable"],
)
def test_batches_are_of_one_kind_and_nothing_is_lost(make, by):
    loader = load(make(), bucket_by=by)
    batches = list(loader)
    assert len(loader) == len(batches) and loader.num_dropped == 0
    assert all(len(sizes_in(batch)) == 1 for batch in batches)
    assert sorted(key for batch in batches for key in sample_keys(batch)) == [f"{i:03}" for i in range(ROWS)]
    lengths = [len(sample_keys(batch)) for batch in batches]
    num_whole = lengths.count(8)
    assert lengths[:num_whole] == [8] * num_whole and 0 < len(lengths) - num_whole <= len(SIZES)
    # all ways to say it mean the same
    assert list(map(sample_keys, batches)) == list(map(sample_keys, load(make(), bucket_by=["h", "w"])))
    assert list(map(sample_keys, batches)) != list(map(sample_keys, loader)), "another epoch is another order"


def test_what_is_left_is_dropped_when_asked_and_counted(make):
    loader = load(make(), bucket_by=["h", "w"], drop_last=True)
    keys = [sample_keys(batch) for batch in loader]
    assert {len(each) for each in keys} == {8}
    assert sum(map(len, keys)) + loader.num_dropped == ROWS and loader.num_dropped > 0
    assert load(make(), 7, drop_last=True).num_dropped == ROWS % 7


def test_ranks_share_batches_of_one_kind(make):
    loaders = [load(make(), 3, bucket_by=["h", "w"], world=sds.World(rank, 4)) for rank in range(4)]
    assert len({len(loader) for loader in loaders}) == 1
    seen = Counter()
    for batches in zip(*loaders, strict=True):
        assert len(set.union(*map(sizes_in, batches))) == 1, "over all ranks"
        keys = [key for batch in batches for key in sample_keys(batch)]
        assert len(keys) - len(set(keys)) <= 3
        seen.update(set(keys))
    assert seen == Counter({f"{i:03}": 1 for i in range(ROWS)})


def test_a_state_stays_small_and_says_which_buckets_it_is_of(make):
    state, dataset = None, make()
    for batch_size in (1, 2, 3, 1, 2, 3, 1, 2):  # another size after each batch
        loader = load(dataset, batch_size, bucket_by=["h", "w"])
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    assert state["buckets"]["done"] == [[1, 1], [2, 1], [3, 1]] * 2 + [[1, 1], [2, 1]]
    assert state["position"] == 15 and len(json.dumps(state)) < 2048


def test_an_epoch_of_very_many_sizes_goes_on_with_the_last_of_them(make):
    loader = load(make(), 1, bucket_by=["h", "w"])
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    state["buckets"]["done"] = [[1 + k % 2, 1 - k % 2] for k in range(60)]  # empty ones do not count
    loader.load_state_dict(state)
    assert sum(len(sample_keys(batch)) for batch in loader) == ROWS - 30
    state["buckets"]["done"] = [[2 - k % 2, 1] for k in range(38)]
    state["buckets"]["done"][:0] = [[3 + k % 2, 0] for k in range(9)]
    loader.load_state_dict(state)
    assert sum(len(sample_keys(batch)) for batch in loader) == ROWS - 57


def test_after_the_last_size_that_a_state_holds_only_that_one_goes_on(make, monkeypatch):
    monkeypatch.setattr("sds.loader.buckets.MAX_SEGMENTS", 4)
    monkeypatch.setattr("sds.loader.buckets.BucketFeed.start_size", 10)
    seen, state = [], None
    for batch_size in (1, 2, 1, 2):
        loader = load(make(), batch_size, bucket_by=["h", "w"])
        if state is not None:
            loader.load_state_dict(state)
        seen += sample_keys(next(iter(loader)))
        state = loader.state_dict()
        loader.close()
    assert len(state["buckets"]["done"]) == 4
    refused = load(make(), 3, bucket_by=["h", "w"])
    refused.load_state_dict(state)
    with pytest.raises(StateError, match=r"too often[\s\S]*batches of 2 over all ranks"):
        iter(refused)
    for world in (sds.World(0, 1), sds.World(1, 2)):
        loader = load(make(), 2 // world.size, bucket_by=["h", "w"], world=world)
        loader.load_state_dict(state)
        batches = list(map(sample_keys, loader))
        if world.size == 1:
            assert Counter([*seen, *(key for batch in batches for key in batch)]) == Counter(
                {f"{i:03}": 1 for i in range(ROWS)}
            )
        assert len(batches) > 5


@pytest.mark.parametrize("done", [[[10**30, 1]], [[4, 10**30]], [[2**62, 1]], [[0, 1]], [[4, -1]], [[4]], [[1.5, 1]]])
def test_states_with_impossible_numbers_are_damaged(make, done):
    loader = load(make(), bucket_by=["h", "w"])
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    with pytest.raises(StateError, match="damaged"):
        loader.load_state_dict({**state, "buckets": {**state["buckets"], "done": done}})
    many = [[1 + k % 2, 1] for k in range(49)]
    loader.load_state_dict({**state, "buckets": {**state["buckets"], "done": many}})
    with pytest.raises(StateError, match="damaged: 49 sizes"):
        iter(loader)


def test_a_state_that_was_loaded_into_the_dataset_is_compared_too(make):
    loader = load(make(), bucket_by=["h", "w"])
    batches = iter(loader)
    seen = sample_keys(next(batches))
    state = loader.state_dict()
    loader.close()
    dataset = make()
    dataset.load_state_dict(state)
    with pytest.raises(StateMismatch, match="another bucket_by"):
        iter(load(dataset, bucket_by="h"))
    rest = [key for batch in load(dataset, bucket_by="label") for key in sample_keys(batch)]
    assert Counter(seen + rest) == Counter({f"{i:03}": 1 for i in range(ROWS)}), "the refusal used nothing up"


def test_a_state_in_buckets_is_of_its_index_also_when_not_strict(make, source, tmp_path):
    loader = load(make(), bucket_by="h")
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    table = pq.read_table(source)
    pq.write_table(pa.concat_tables([table, table.slice(0, 5)]), tmp_path / "more.parquet")
    for strict in (True, False):
        with pytest.raises(StateMismatch, match=r"buckets of another index: 60 rows, this one has 65"):
            other = sds.StreamingDataset(tmp_path / "more.parquet", tmp_path / "cache", shuffle_seed=5)
            load(other, bucket_by="h").load_state_dict(state, strict=strict)


def test_states_of_other_buckets_are_refused_by_name(make):
    loader = load(make(), bucket_by=["h", "w"])
    next(iter(loader))
    state = loader.state_dict()
    loader.close()
    with pytest.raises(StateMismatch, match="another bucket_by"):
        load(make(), bucket_by=lambda row: row["h"]).load_state_dict(state)
    load(make(), bucket_by="label").load_state_dict(state)  # says the same in other words
    plain = load(make())
    plain.load_state_dict(state)
    assert plain.state_dict() == state
    with pytest.raises(StateError, match="batches in buckets"):
        iter(plain)
    dataset = make()
    dataset.load_state_dict(state)
    with pytest.raises(StateError, match="batches in buckets"):
        next(iter(dataset))
    dataset.set_epoch(1)
    assert len(list(dataset)) == ROWS
    other = {**state, "buckets": {**state["buckets"], "done": [[8, 1000]]}}
    bad = load(make(), bucket_by=["h", "w"])
    bad.load_state_dict(other)
    with pytest.raises(StateMismatch, match="more batches"):
        next(iter(bad))


def test_an_epoch_that_was_begun_without_buckets_goes_on_in_them(make):
    plain = load(make(), 7)
    batches = iter(plain)
    seen = [key for _ in range(3) for key in sample_keys(next(batches))]
    state = plain.state_dict()
    assert "buckets" not in state
    plain.close()
    loader = load(make(), bucket_by=["h", "w"])
    loader.load_state_dict(state)
    rest = list(loader)
    assert all(len(sizes_in(batch)) == 1 for batch in rest)
    assert Counter(seen + [key for batch in rest for key in sample_keys(batch)]) == Counter(
        {f"{i:03}": 1 for i in range(ROWS)}
    )


@pytest.mark.parametrize(("by", "num"), [("shape", 6), ("latent.samples", 3), ("text", 2), ("latent.samples.shape", 3)])
def test_shapes_of_a_tensor_cache_decide_without_reading_one(make, tensors, by, num):
    dataset = make(tensors)
    loader = load(dataset, 4, bucket_by=by)
    assert len(loader) >= 10
    assert dataset.delivery.pipeline.index.cache.num_reads == 0
    shapes = set()
    for batch in loader:
        names = {"shape": ["latent", "text"], "text": ["text"]}.get(by, ["latent"])
        stacked = [batch["latent"]["samples"] if name == "latent" else batch[name] for name in names]
        assert all(isinstance(each, torch.Tensor) for each in stacked), "one shape, so one tensor"
        shapes.add(tuple(each.shape[1:] for each in stacked))
    assert len(shapes) == num


def test_dtypes_are_buckets_too(make, tmp_path):
    with sds.tensors.TensorCacheWriter(tmp_path / "kinds.tensors") as writer:
        for i in range(16):
            writer.add(f"{i}", {"x": torch.zeros(4, dtype=torch.float16 if i % 2 else torch.float32)})
    for by in ("shape", "x"):
        batches = list(load(make(tmp_path / "kinds.tensors"), 4, bucket_by=by))
        assert len(batches) == 4 and all(isinstance(batch["x"], torch.Tensor) for batch in batches)


def test_shapes_are_known_where_columns_were_left_out(make, tensors):
    kept = make(tensors, index_cols_to_keep=["kind"])
    assert all(isinstance(b["latent"]["samples"], torch.Tensor) for b in load(kept, 4, bucket_by="latent.samples"))
    asked = make(tensors, sql_query='SELECT "index", "latent.samples.shape" FROM dataframe WHERE kind = 1')
    batches = list(load(asked, 4, bucket_by="latent.samples.shape"))
    assert sum(len(sample_keys(batch)) for batch in batches) == 20
    assert all(isinstance(batch["latent"]["samples"], torch.Tensor) for batch in batches)
    with pytest.raises(OptionError, match="no column"):
        len(load(asked, 4, bucket_by="text"))


def test_a_stand_in_is_of_the_same_bucket(make):
    def fail(sample):
        if sample["__sample_key__"] in broken:
            raise ValueError("broken")
        return sample

    alone = f"{ROWS - 1:03}"  # the only one of its kind
    broken = {"001", "014", "027", alone}
    dataset = make(transforms=[fail], max_failures=1000)
    batches = list(load(dataset, bucket_by=["h", "w"]))
    assert all(len(sizes_in(batch)) == 1 for batch in batches), "also where a sample had to be replaced"
    assert sum(len(sample_keys(batch)) for batch in batches) == ROWS
    assert dataset.stats().stand_ins == 4
    again = list(load(make(transforms=[fail], max_failures=1000), bucket_by=["h", "w"]))
    assert list(map(sample_keys, batches)) == list(map(sample_keys, again))


@pytest.mark.parametrize("by", [3, [], ["h", 4], {"h": 1}, b"h"])
def test_what_is_no_bucket_by_is_refused(make, by):
    with pytest.raises(OptionError, match="bucket_by"):
        load(make(), bucket_by=by)


def test_a_column_that_is_not_there_and_a_function_that_fails_are_named(make):
    with pytest.raises(OptionError, match=r"'height'[\s\S]*'h', 'w'"):
        len(load(make(), bucket_by="height"))
    with pytest.raises(OptionError, match="bucket_by failed"):
        iter(load(make(), bucket_by=lambda row: row["height"]))
    with pytest.raises(OptionError, match="bucket_by failed"):
        len(load(make(), bucket_by=lambda row: [row["h"]]))  # a list is no key


def test_datasets_that_cannot_be_in_buckets_are_refused(make):
    for keyword in ("infinite_iteration", "unaligned_worker_index"):
        with pytest.raises(OptionError, match=keyword):
            load(make(**{keyword: True}), bucket_by="h")
    with pytest.raises(OptionError, match="node_affine"):
        load(make(node_affine=2), bucket_by="h")
    with pytest.raises(OptionError, match="StreamingDataset"):
        load(sds.concatenate([make(), make()]), bucket_by="h")
