"""Ranks as real processes with gloo: who am I, do we agree, who fails, replicas, one reader for many, kill, go on."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch.multiprocessing

import sds
from integration.gang import HERE, Gangs, spawned_rank
from sds.observe import read_run
from sds.testing.resume import sample_keys

ROWS = 50
SOON_S = 15  # on a busy machine; what hangs would take minutes


@pytest.fixture(scope="module")
def gangs():
    gangs = Gangs()
    yield gangs
    gangs.close()


@pytest.fixture
def args(tmp_path):
    return {"src": str(write_index(tmp_path / "rows.csv", ROWS)), "cache": str(tmp_path / "cache")}


def write_index(path, num_rows):
    path.write_text("\n".join(["index,value", *(f"{i:04},{i}" for i in range(num_rows))]) + "\n")
    return path


@pytest.fixture
def order(args):
    """The ids of two epochs, as one process alone gets them."""
    with sds.StreamingDataset(args["src"], args["cache"], columns_to_download=[], shuffle_seed=7) as ds:
        return [[sample["__sample_key__"] for sample in ds] for _ in range(2)]


def flat(steps_by_rank):
    """All ranks' steps as one list of ids, in order; the repeats that fill up the last step are left out."""
    return list(dict.fromkeys(key for step in zip(*steps_by_rank, strict=True) for keys in step for key in keys))


# ---- who am I ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environment", [True, False], ids=["launcher's variables", "torch.distributed only"])
def test_every_process_knows_its_rank(gangs, args, order, tmp_path, environment):
    args["methods"] = ["fork", "spawn"]
    found = gangs.results("world", 2, tmp_path / "gang", args=args, environment=environment)
    assert [each["here"] for each in found] == [[0, 2], [1, 2]]
    assert sorted(found[0]["bare"] + found[1]["bare"]) == sorted(order[0])
    for each in found:
        assert each["fork"] == each["spawn"] == sorted(each["bare"])


def test_torchrun(args, order, tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(HERE), "rank"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [*command, "plain_steps", json.dumps({**args, "folder": str(tmp_path)})],
        check=True,
        timeout=60,
        env=environment,
    )
    found = [json.loads((tmp_path / f"{rank}.json").read_text())["result"] for rank in range(2)]
    assert flat([each["threads"] for each in found]) == order[0]
    assert flat([each["workers"] for each in found]) == order[0]


def test_a_dataset_that_is_sent_to_spawned_ranks_finds_theirs(args, order, tmp_path):
    """It was made where there was no rank; it must not go on believing that."""
    with sds.StreamingDataset(args["src"], args["cache"], columns_to_download=[], shuffle_seed=7) as dataset:
        torch.multiprocessing.spawn(spawned_rank, (dataset, str(tmp_path)), nprocs=2)
    keys = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [len(each) for each in keys] == [ROWS // 2, ROWS // 2]
    assert sorted(keys[0] + keys[1]) == sorted(order[0])


@pytest.mark.parametrize(("size", "keywords"), [(3, {}), (4, {"drop_last": True})])
def test_ranks_make_equally_many_steps_and_together_the_epoch(gangs, args, order, tmp_path, size, keywords):
    found = gangs.results("plain_steps", size, tmp_path / "gang", args={**args, "keywords": keywords})
    assert len({(len(each["threads"]), len(each["workers"]), each["length"]) for each in found}) == 1
    assert all(each["state"] == found[0]["state"] for each in found)
    expected = order[0][: ROWS // (3 * size) * 3 * size] if keywords else order[0]
    for made in ("threads", "workers"):
        assert flat([each[made] for each in found]) == expected


# ---- do we agree ---------------------------------------------------------------------------------------------------


def test_a_drawn_seed_is_shared_and_goes_on(gangs, args, order, tmp_path):
    first = gangs.results("drawn_seed", 3, tmp_path / "first", args=args)
    second = gangs.results("drawn_seed", 3, tmp_path / "second", args=args)
    assert len({each["seed"] for each in first}) == 1
    assert first[0]["seed"] != second[0]["seed"]
    assert set().union(*(each["keys"] for each in first)) == set(order[0])
    with sds.StreamingDataset(
        args["src"], args["cache"], columns_to_download=[], shuffle_seed=first[0]["seed"]
    ) as same:
        state = same.state_dict()
    went_on = gangs.results("drawn_seed_goes_on", 3, tmp_path / "third", args={**args, "state": state})
    assert went_on == [each["keys"] for each in first]


@pytest.mark.parametrize("difference", ["index", "seed", "query"])
def test_a_difference_between_ranks_is_an_error_on_all_of_them(gangs, args, tmp_path, difference):
    other = str(write_index(tmp_path / "other.csv", ROWS + 1))
    mine, word = {
        "index": ({"args": {"src": other}}, "fingerprint"),
        "seed": ({"keywords": {"shuffle_seed": 8}}, "seed"),
        "query": ({"keywords": {"sql_query": "SELECT * FROM dataframe"}}, "query"),
    }[difference]
    # linger=0: rank 0, which holds the store, ends as soon as it has raised; the others must still be told
    ranks = gangs.run("differing", 3, tmp_path / "gang", args={**args, "others": {"2": mine}}, linger=0)
    for each in ranks:
        assert each["error"] == "StateMismatch"
        assert word in each["message"] and "rank 2" in each["message"]
        assert each["seconds"] < SOON_S


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["raises", "dies"])
def test_a_rank_that_fails_while_setting_up_is_named_by_the_others(gangs, args, tmp_path, rank, how):
    ranks = gangs.run(
        "failing", 3, tmp_path / "gang", args={**args, "rank": rank, "how": how}, allow_dead=True, linger=2
    )
    assert ranks[rank]["error"] == "SourceNotFound" if how == "raises" else "dead" in ranks[rank]
    for each in ranks[:rank] + ranks[rank + 1 :]:
        assert each.get("error") == "SourceError", each["log"]
        assert each["rank"] == rank and f"{rank}" in each["message"]
        assert each["seconds"] < SOON_S  # the set time is 5 * timeout = 2 s


def test_a_rank_that_does_not_draw_the_seed_is_named(gangs, args, tmp_path):
    ranks = gangs.run("failing", 2, tmp_path / "gang", args={**args, "rank": 0, "how": "raises", "seed": -1})
    assert [each["rank"] for each in ranks[1:]] == [0]


def test_a_dataset_of_one_rank_alone_asks_nobody(gangs, args, order, tmp_path):
    found = gangs.results("validation_on_one_rank", 2, tmp_path / "gang", args=args)
    assert found[0]["alone"] == order[0]
    assert flat([each["together"] for each in found]) == order[0]


# ---- replicas ------------------------------------------------------------------------------------------------------


def test_ranks_of_one_tensor_parallel_group_get_the_same_samples(gangs, args, order, tmp_path):
    found = gangs.results("replicas", 4, tmp_path / "gang", args=args)
    groups = {"dp-tp": [(0, 1), (2, 3)], "tp-dp": [(0, 2), (1, 3)], "explicit": [(0, 3), (1, 2)]}
    for name, pairs in groups.items():
        for data_rank, pair in enumerate(pairs):
            replica, made = found[pair[0]][name]
            assert replica == [data_rank, 2]
            assert found[pair[1]][name] == [replica, made], "both have the same samples"
        assert flat([found[pair[0]][name][1] for pair in pairs]) == order[0]
    assert [each["both dp-tp"] for each in found] == [[rank, 4] for rank in range(4)]


def test_one_rank_reads_for_its_group(gangs, args, order, tmp_path):
    found = gangs.results("broadcast", 4, tmp_path / "gang", args=args)
    for reader, other in ((0, 2), (1, 3)):
        mine, theirs = found[reader].copy(), found[other].copy()
        mine.pop("after"), theirs.pop("after")
        assert mine == theirs
        assert mine["counted"] == [len(mine["steps"]), sum(map(len, mine["steps"]))]
    for rank in range(4):  # what all of them counted, until they were closed
        suffix = f".rank{rank}" if rank else ""
        stats = read_run(f"{args['cache']}/run{suffix}.jsonl").stats
        trace = json.loads(Path(f"{args['cache']}/trace{suffix}.json").read_text())
        names = {each["name"] for each in trace if each["ph"] == "X"}
        assert stats.batches > 2 * len(found[rank]["steps"]) and stats.wait_s["consumer"] > 0
        assert {"wait for batch", "training step"} <= names
        assert ("loader" in stats.wait_s, "wait for loader" in names, "collate" in names) == (
            (False, False, True) if rank < 2 else (True, True, False)
        ), "who reads says what takes the time, the others wait for it"
    steps = [found[0]["steps"], found[1]["steps"]]
    assert flat(steps) == order[0]
    assert flat([found[0]["second epoch"], found[1]["second epoch"]]) == order[1]
    assert found[0]["length"] == len(steps[0])
    assert found[0]["resumed"] == steps[0][3]
    assert found[0]["again"] == len(steps[0])
    assert flat([each["after"] for each in found]) == order[0]


def test_anything_can_be_broadcast(gangs, args, tmp_path):
    found = gangs.results("broadcast_of_anything", 4, tmp_path / "gang", args=args)
    assert all(each == found[0] for each in found)
    assert [batch["scalar"][2] for batch in found[0]["batches"]] == ["0.0", "1.0", "2.0"]
    assert found[0]["batches"][1]["empty"][1] == [0, 3]
    assert found[0]["batches"][1]["strided"][2] == "[[1, 4], [2, 5], [3, 6]]"
    assert found[0]["batches"][2]["eighth"][2] == "[2.0, 2.0]"
    assert found[0]["batches"][2]["conjugate"][2] == "[(2-1j), (2-1j)]"
    assert found[0]["batches"][2]["negative"][2] == "[-1.0, -1.0]"
    assert found[0]["rest"] == found[0]["batches"][2:]


def test_an_error_of_the_reading_rank_is_raised_on_all(gangs, args, tmp_path):
    found = gangs.results("broadcast_errors", 4, tmp_path / "gang", args=args)
    for rank, each in enumerate(found):
        assert each["in the middle"][:2] == [1, "SampleError"] and "a broken batch" in each["in the middle"][2]
        assert each["at the start"][:2] == [0, "SampleError"] and "cannot begin" in each["at the start"][2]
        assert each["not picklable"][:2] == [1, "SampleError"] and "cannot be sent" in each["not picklable"][2]
        assert each["without a state"][:2] == [1, "SampleError"] and "no state now" in each["without a state"][2]
        assert {each[name][3] for name in each} == {rank % 2}


def test_groups_with_the_same_reader_are_not_mixed_up(gangs, args, tmp_path):
    found = gangs.results("broadcast_to_two_groups", 3, tmp_path / "gang", args=args)
    first, second = [2, ["0.0", "1.0"]], [4, ["0.0", "1.0", "2.0", "3.0"]]
    assert found == [[first, second], [first], [second]]


def test_ranks_that_leave_the_loop_at_different_steps_get_an_error_and_no_wrong_batch(gangs, args, tmp_path):
    for each in gangs.run("broadcast_out_of_step", 4, tmp_path / "gang", args=args, linger=1)[2:]:
        assert each["error"] == "SampleError" and "different iterations" in each["message"]


def test_a_reader_that_cannot_make_its_dataset_is_named(gangs, args, tmp_path):
    ranks = gangs.run("reader_fails", 4, tmp_path / "gang", args=args)
    assert [each["error"] for each in ranks[:2]] == ["SourceNotFound"] * 2
    for each in ranks[2:]:
        assert each["error"] == "SourceError" and each["rank"] in (0, 1)
        assert each["seconds"] < SOON_S


def test_torchs_samplers_on_the_map_style_view(gangs, args, order, tmp_path):
    found = gangs.results("samplers", 2, tmp_path / "gang", args=args)
    for epoch in ("epoch 0", "epoch 1"):
        assert sorted(found[0][epoch] + found[1][epoch]) == sorted(order[0])
    assert found[0]["epoch 0"] != found[0]["epoch 1"]
    assert found[0]["random"] == found[1]["random"] == sorted(order[0])


def test_several_rows_are_asked_for_at_once(args):
    """torch's fetcher uses __getitems__ of a map-style dataset: one lookup per batch."""
    asked = []
    with sds.StreamingDataset(args["src"], args["cache"], columns_to_download=[]) as ds:
        view = ds.as_map()
        get_several = view.__getitems__
        view.__getitems__ = lambda ids: asked.append(list(ids)) or get_several(ids)
        sampler = torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(view), 20, drop_last=False)
        made = [sample_keys(batch) for batch in torch.utils.data.DataLoader(view, batch_sampler=sampler)]
    assert [len(ids) for ids in asked] == [20, 20, 10]
    assert [key for keys in made for key in keys] == [f"{i:04}" for i in range(ROWS)]


# ---- kill and go on ------------------------------------------------------------------------------------------------


@pytest.mark.timeout(400)
def test_killed_at_any_moment_and_gone_on_with_on_other_ranks(gangs, tmp_path):
    """4 ranks x 2 workers, all killed; then 2 x 3, all killed; then 3 x 0 to the end of the second epoch. Ten seeds."""
    for seed in range(10):
        go_through(gangs, tmp_path / str(seed), seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_killed_at_any_moment_many_times(gangs, tmp_path):
    for seed in range(100, 300):
        go_through(gangs, tmp_path / str(seed), seed)


def go_through(gangs, folder, seed):
    folder.mkdir()
    draw = random.Random(seed)
    num_rows = draw.randint(150, 330)
    args = {"src": str(write_index(folder / "rows.csv", num_rows)), "cache": str(folder / "cache"), "state": None}
    with sds.StreamingDataset(args["src"], args["cache"], columns_to_download=[], shuffle_seed=7) as ds:
        expected = [(epoch, sample["__sample_key__"]) for epoch in range(2) for sample in ds]
    seen = []
    for leg, (size, num_workers, batch_size) in enumerate([(4, 2, 5), (2, 3, 4), (3, 0, 6)]):
        args |= {"num_workers": num_workers, "batch_size": batch_size, "folder": str(folder / f"leg {leg}")}
        Path(args["folder"]).mkdir()
        moment = {"steps": draw.randint(1, 12), "seconds": draw.random() * 0.02} if leg < 2 else None
        gangs.run("train", size, folder / f"gang {leg}", args=args, kill_at=moment)
        logs = [read_log(Path(args["folder"], f"{rank}.jsonl")) for rank in range(size)]
        num_steps = min(map(len, logs))  # the checkpoint: the last state that all ranks have
        for lines in zip(*(log[:num_steps] for log in logs), strict=True):
            assert all(line["state"] == lines[0]["state"] for line in lines)
            seen.append([(line["epoch"], key) for line in lines for key in line["keys"]])
            args["state"] = lines[0]["state"]
    assert args["state"]["epoch"] == 2
    assert list(dict.fromkeys(item for step in seen for item in step)) == expected
    extra = Counter(item for step in seen for item in step) - Counter(expected)
    assert extra.total() <= 2 * (4 - 1), "only the last steps of the two epochs are filled up"
    assert len(seen[-1]) >= 1


def read_log(path):
    whole_lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in whole_lines]
