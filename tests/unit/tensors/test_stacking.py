"""A field of a batch is read straight into one tensor: by several threads, out of any shards, with eyes on each row."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from sds.errors import ShardCorrupt, TensorCacheError
from sds.tensors import TensorCache, TensorCacheWriter, local
from sds.tensors.layout import Slot
from unit.tensors.test_distrust import change_columns, put

NUM, SIDE = 48, 5_000  # 20 KB each: neighbours of one that is left out are read apart


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latents")
    with TensorCacheWriter(path, "200kb") as writer:
        for number in range(NUM):
            writer.add(str(number), {"x": torch.full((SIDE,), float(number)), "y": torch.full((3,), number)})
    return path


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many threads may copy at once, whatever this machine has; what was asked for is noted."""
    from sds.tensors.hands import Hands

    asked: list[int] = []
    share = Hands.share

    def noted(self: Hands, num: int, work: Callable[[], None]) -> None:
        asked.append(num)
        share(self, num, work)

    monkeypatch.setattr(local, "_WORTH", 64 << 10)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(Hands, "share", noted)
    return asked


@pytest.mark.parametrize("access", ["pread", "mmap"])
@pytest.mark.parametrize("is_verified", [False, True])
def test_threads_fill_one_tensor(latents: Path, threads: list[int], access: str, is_verified: bool):
    cache = TensorCache(latents, access=access, verify=is_verified)
    order = np.random.default_rng(1).permutation(NUM)
    expected = torch.tensor(order, dtype=torch.float32)[:, None].expand(-1, SIDE)
    out = torch.empty(NUM, SIDE)
    for positions in (order, order.tolist(), torch.tensor(order), (order - NUM).tolist()):
        assert torch.equal(cache.stack(positions, "x", out=out.zero_()), expected)
    assert threads == [4] * 4
    assert [int(sample["y"][0]) for sample in cache.read(order)] == order.tolist()
    cache.close()
    assert torch.equal(cache.stack([5], "x")[0], torch.full((SIDE,), 5.0)), "it opens again"


def test_while_the_disk_is_needed_one_thread_takes_what_it_brings(
    latents: Path, threads: list[int], monkeypatch: pytest.MonkeyPatch
):
    cache = TensorCache(latents)
    assert isinstance(cache.place, local.LocalPlace)
    asked_for: list[int] = []
    expect = local.expect
    monkeypatch.setattr(local, "expect", lambda run: asked_for.append(run[3]) or expect(run))
    order = np.random.default_rng(2).permutation(NUM)[: NUM // 2].tolist()
    expected = torch.tensor(order, dtype=torch.float32)[:, None].expand(-1, SIDE)
    cache.place._is_cold = True
    with monkeypatch.context() as disk:
        disk.setattr(local, "is_near", lambda *_: False)
        assert torch.equal(cache.stack(order, "x"), expected)
        assert cache.place._is_cold and not threads, "the disk is what takes the time"
    assert sum(asked_for) == cache.num_bytes_read >= expected.numel() * 4, "all at once, before the first read"
    for _ in range(2):
        assert torch.equal(cache.stack(order, "x"), expected)
    assert threads == [4, 4] and not cache.place._is_cold, "all was there after all"
    assert 3 * sum(asked_for) == 2 * cache.num_bytes_read, "and nobody asks any more"
    cache.close()


def test_a_shard_cut_short_is_told_by_whichever_thread_finds_it(threads: list[int], tmp_path: Path):
    with TensorCacheWriter(tmp_path, "380kb") as writer:
        for number in range(40):
            writer.add(str(number), torch.full((SIDE,), float(number)))
    cache = TensorCache(tmp_path)
    every_second = range(0, 40, 2)
    cache.stack(every_second, "")
    os.truncate(tmp_path / f"{cache.shard_names[1]}.safetensors", 125_000)
    with pytest.raises(ShardCorrupt, match="it ends at byte"):
        cache.stack(every_second, "")
    assert threads == [4, 4]
    assert cache.stack([3, 1], "")[:, 0].tolist() == [3, 1], "other shards are as they were"
    cache.close()


def test_positions_beyond_the_end_are_told(latents: Path):
    cache = TensorCache(latents)
    for position in (NUM, -NUM - 1, 2**70):
        for use in (cache.read, lambda positions: cache.stack(positions, "x")):
            with pytest.raises(IndexError, match="position"):
                use([0, position])
    assert cache.read([]) == [] and cache.num_reads == 0


@pytest.mark.parametrize(
    ("out", "what"),
    [
        ([0.0], "no tensor: list"),
        (torch.empty(2, SIDE, dtype=torch.float64), "float64"),
        (torch.empty(3, SIDE), r"\[3, 5000\]"),
        (torch.empty(SIDE, 2).T, "not in one piece of memory"),
        (torch.empty(2, SIDE, device="meta"), "on meta"),
        (torch.empty(2, SIDE).to_sparse(), "not in one piece"),
    ],
    ids=["list", "dtype", "shape", "strides", "device", "sparse"],
)
def test_what_cannot_be_filled_is_refused_before_anything_is_read(latents: Path, out: object, what: str):
    cache = TensorCache(latents)
    with pytest.raises(TensorCacheError, match=what):
        cache.stack([0, 1], "x", out=out)
    assert cache.num_reads == 0


def test_starts_of_a_field_are_those_of_the_rows(build: Callable[..., Path]):
    cache = TensorCache(build(10))
    for position in range(10):
        columns = cache.columns_of(position)
        for row in range(columns.num_samples):
            bucket, starts = columns.bucket_of(row), columns.starts_of(row)
            for slot in bucket.slots:
                assert columns.field_starts(slot)[row] == starts[slot.block]
            assert columns.field_starts(Slot("latent.samples", "F32", (9, 9), 0))[row] == -1


@pytest.mark.parametrize(
    "change",
    [
        put("starts", 2**60),
        put("starts", -8),
        put("starts", 2**63 - 1),
        put("block_ends", 2),
        put("block_ends", -1),
        put("block_ends", 2**63 - 1),
        put("bucket", 99),
    ],
)
def test_a_row_of_an_enemy_is_refused_and_others_are_not(build: Callable[..., Path], change: Callable[..., None]):
    folder = build(12, shard_size=10**6)
    change_columns(folder, change)
    cache = TensorCache(folder)
    for positions in ([0], [4, 0], [0, 4]):
        with pytest.raises((ShardCorrupt, TensorCacheError)):
            cache.stack(positions, "latent.samples")
    assert cache.stack([4, 10], "latent.samples")[:, 0, 0, 0, 0].tolist() == [4, 10]
