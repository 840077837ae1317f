"""Files that were cut, changed, swapped or made by an enemy: clear errors, nothing outside is read, nothing runs."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save

from sds.errors import SdsError, ShardCorrupt, TensorCacheError
from sds.tensors import TensorCache

Change = Callable[[dict[str, Any], dict[str, str]], None]


def shard_of(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[0]


def change_columns(folder: Path, change: Change) -> None:
    """Writes the first shard's columns anew, as an enemy could; its header no longer vouches for them."""
    path = shard_of(folder).with_suffix(".index")
    with safe_open(path, "np") as file:
        columns = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    change(columns, metadata)
    path.write_bytes(save(columns, metadata))


def use_everything(folder: Path) -> None:
    cache = TensorCache(folder)
    cache.buckets()
    for position in range(len(cache)):
        cache.info(position)
        cache.key(position)
    cache.read(range(len(cache)))


@pytest.mark.parametrize("size", [0, 7, 100, -1])
def test_a_truncated_shard_is_told(build: Callable[..., Path], size: int):
    folder = build(4)
    path = shard_of(folder)
    os.truncate(path, size if size >= 0 else path.stat().st_size - 1)
    for access in ("pread", "mmap"):
        with pytest.raises(ShardCorrupt, match="bytes, not the") as caught:
            TensorCache(folder, access=access).read([0])
        assert path.stem in str(caught.value) and caught.value.hint


def test_a_shard_that_shrinks_while_it_is_read_is_told(build: Callable[..., Path]):
    folder = build(4)
    cache = TensorCache(folder)
    cache.read([0])
    os.truncate(shard_of(folder), 900)
    with pytest.raises(ShardCorrupt, match="it ends at byte"):
        cache.read([0])
    with pytest.raises(ShardCorrupt, match="bytes, not the"):
        cache.read([0])


def test_another_shard_under_the_name_is_told(build: Callable[..., Path]):
    folder = build(8)
    one, other = sorted(folder.glob("*.safetensors"))[:2]
    data = bytearray(one.read_bytes())
    data[:8] = struct.pack("<Q", int.from_bytes(data[:8], "little") - 8)
    one.write_bytes(data)
    with pytest.raises(ShardCorrupt, match="its header is not the one"):
        TensorCache(folder).read([0])
    other.unlink()
    with pytest.raises(ShardCorrupt, match="its tensors are not there"):
        TensorCache(folder).read([4])
    other.with_suffix(".index").unlink()
    with pytest.raises(ShardCorrupt, match="its columns cannot be read"):
        TensorCache(folder).buckets()


def test_columns_that_were_changed_are_found_by_their_hash(build: Callable[..., Path]):
    folder = build(4)
    change_columns(folder, lambda columns, _: columns["keys"].__setitem__(0, 75))
    with pytest.raises(ShardCorrupt, match="its columns have another hash"):
        TensorCache(folder).verify()


def set_bucket(**changes: Any) -> Change:
    def change(columns: dict[str, Any], metadata: dict[str, str]) -> None:
        buckets = json.loads(columns["buckets"].tobytes())
        buckets[0]["slots"][0].update(changes)
        columns["buckets"] = np.frombuffer(json.dumps(buckets).encode(), np.uint8)

    return change


def set_skeleton(text: bytes) -> Change:
    def change(columns: dict[str, Any], metadata: dict[str, str]) -> None:
        num = len(columns["skeleton_ends"])
        columns["skeletons"] = np.frombuffer(text * num, np.uint8)
        columns["skeleton_ends"] = np.cumsum([len(text)] * num)

    return change


def put(name: str, value: int, place: int = 0) -> Change:
    return lambda columns, _: columns[name].__setitem__(place, value)


ATTACKS: dict[str, Change] = {
    "start beyond the file": put("starts", 2**60),
    "start before the file": put("starts", -8),
    "start that overflows": put("starts", 2**63 - 1),
    "blocks of others": put("block_ends", 2),
    "blocks that end nowhere": put("block_ends", 2**62, -1),
    "key that ends nowhere": put("key_ends", 2**62),
    "key of negative length": put("key_ends", -1),
    "skeleton that ends nowhere": put("skeleton_ends", 2**62),
    "unknown bucket": put("bucket", 99),
    "negative bucket": put("bucket", -1),
    "huge shape": set_bucket(shape=[2**40, 2**40]),
    "negative shape": set_bucket(shape=[-1, -64]),
    "shape of other size": set_bucket(shape=[1, 4, 4, 5]),
    "unknown dtype": set_bucket(dtype="OBJECT"),
    "other dtype": set_bucket(dtype="F64"),
    "unknown block": set_bucket(block=17),
    "stride that takes all memory": set_bucket(stride=[2**50, 2**40, 2**30, 2**20]),
    "negative stride": set_bucket(stride=[64, 16, 4, -1]),
    "strides of another rank": set_bucket(stride=[1]),
    "view beyond its block": set_bucket(stride=[64, 16, 4, 1], offset=8),
    "view between two numbers": set_bucket(shape=[1], stride=[1], offset=2),
    "offset without strides": set_bucket(offset=0),
    "buckets that are no list": lambda columns, _: columns.update(buckets=np.frombuffer(b'{"a":1}', np.uint8)),
    "buckets without end": lambda columns, _: columns.update(buckets=np.frombuffer(b"[" * 10**5, np.uint8)),
    "skeleton with a path": set_skeleton(b'{"$path":"/etc/passwd"}'),
    "skeleton with a path for a tensor": set_skeleton(b'{"$t":"/etc/passwd"}'),
    "skeleton with a huge slot": set_skeleton(b'{"$t":4611686018427387904}'),
    "skeleton without end": set_skeleton(b"[" * 10**5),
    "column missing": lambda columns, _: columns.pop("starts"),
    "column too short": lambda columns, _: columns.update(bucket=columns["bucket"][:-1]),
    "half a hash": lambda columns, _: columns.update(digests=columns["digests"].reshape(-1)[:-1]),
    "column of another dtype": lambda columns, _: columns.update(starts=columns["starts"].astype("f8")),
    "size that is no number": lambda _, metadata: metadata.update(bytes="٣" * 5),
    "size beyond all bounds": lambda _, metadata: metadata.update(bytes="9" * 5000),
    "other size": lambda _, metadata: metadata.update(bytes=str(2**62)),
    "more samples": lambda _, metadata: metadata.update(samples="1000000000000"),
    "other version": lambda _, metadata: metadata.update(version="2"),
}


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize("has_summary", [True, False])
def test_columns_of_an_enemy_are_refused(build: Callable[..., Path], name: str, has_summary: bool):
    folder = build(6)
    change_columns(folder, ATTACKS[name])
    if not has_summary:
        (folder / "index.json").unlink()
    with pytest.raises(ShardCorrupt, match="tensor cache is damaged"):
        use_everything(folder)


@pytest.mark.parametrize("head", [struct.pack("<Q", 2**63), struct.pack("<Q", 99_999_999), b"", b"\0" * 8])
def test_a_header_bomb_is_refused(build: Callable[..., Path], head: bytes):
    folder = build(2)
    shard_of(folder).with_suffix(".index").write_bytes(head + b'{"a":' * 50)
    with pytest.raises(ShardCorrupt, match="a header of"):
        use_everything(folder)


def edited(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["shards"][0].update(name="../outside"),
        lambda index: index["shards"][0].update(name="/etc/passwd"),
        lambda index: index["shards"][0].update(samples=-1),
        lambda index: index["shards"][0].update(samples=10**15),
        lambda index: index["shards"][0].update(skip=[99]),
        lambda index: index["shards"][0].update(bytes="many"),
        lambda index: index["shards"][0].pop("name"),
        lambda index: index.update(shards={}),
    ],
)
def test_a_summary_of_an_enemy_is_refused(build: Callable[..., Path], change: Callable[[dict[str, Any]], Any]):
    folder = build(6)
    edited(folder, change)
    with pytest.raises(ShardCorrupt, match="tensor cache is damaged"):
        use_everything(folder)


def test_a_summary_of_another_kind_is_told(build: Callable[..., Path]):
    folder = build(2)
    edited(folder, lambda index: index.update(version=2))
    with pytest.raises(TensorCacheError, match="no known version: 2"):
        TensorCache(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(ShardCorrupt, match=r"index\.json"):
        TensorCache(folder)
    (folder / "index.json").write_text("[" * 100_000)
    with pytest.raises(ShardCorrupt, match=r"index\.json"):
        TensorCache(folder)


def test_every_flipped_byte_of_the_columns_is_an_error_or_harmless(build: Callable[..., Path]):
    folder = build(2, shard_size=10**6)
    path = shard_of(folder).with_suffix(".index")
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.choice(len(whole), 300, replace=False):
        broken = bytearray(whole)
        broken[place] ^= int(generator.integers(1, 256))
        path.write_bytes(broken)
        try:
            use_everything(folder)
        except SdsError:
            pass
        with pytest.raises(SdsError):
            TensorCache(folder).verify()


def test_errors_travel(build: Callable[..., Path]):
    import pickle

    folder = build(2)
    shard_of(folder).unlink()
    with pytest.raises(ShardCorrupt) as caught:
        use_everything(folder)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.url == caught.value.url


def test_nothing_of_a_cache_is_a_pickle(build: Callable[..., Path], monkeypatch: pytest.MonkeyPatch):
    folder = build(4)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("somebody unpickled")

    for module, name in ((torch, "load"), (np, "load"), (msgspec.msgpack, "decode")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr("pickle.load", refuse)
    monkeypatch.setattr("pickle.loads", refuse)
    use_everything(folder)
