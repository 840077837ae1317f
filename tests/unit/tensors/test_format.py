"""The bytes on disk are those of docs/reference/tensor-cache.md."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from sds.errors import ShardCorrupt
from sds.tensors import TensorCache, TensorCacheWriter
from sds.tensors.format import check_name, encode_header, parse_header

# one sample: uint8 [3], then float32 [2] twice (equal blocks: stored once), which must begin at a multiple of 8
HEADER = (
    '{"__metadata__":{"format":"sds.tensors","version":"1","index_sha256":"%s"},'
    '"00000000.mask":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},'
    '"00000000.~0":{"dtype":"U8","shape":[5],"data_offsets":[3,8]},'
    '"00000000.latent.samples":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
)
DATA = b"\x01\x02\x03\0\0\0\0\0" + struct.pack("<2f", 1.5, -2.0)
SKELETON = '{"mask":{"$t":0},"latent":{"samples":{"$t":1}},"again":{"$t":2},"pair":{"$tuple":[1,{"$float":"inf"}]}}'
BUCKET = (
    '[{"blocks":[3,8,8],"slots":[{"field":"mask","dtype":"U8","shape":[3],"block":0},'
    '{"field":"latent.samples","dtype":"F32","shape":[2],"block":1},'
    '{"field":"again","dtype":"F32","shape":[2],"block":2}]}]'
)


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    with TensorCacheWriter(tmp_path / "golden", fingerprint="vae-1") as writer:
        latent = torch.tensor([1.5, -2.0])
        sample = {
            "mask": torch.tensor([1, 2, 3], dtype=torch.uint8),
            "latent": {"samples": latent},
            "again": latent.clone(),
            "pair": (1, float("inf")),
        }
        writer.add("a key", sample)
    return tmp_path / "golden"


def test_a_shard_has_these_bytes(golden: Path):
    (index,), (shard,) = golden.glob("*.index"), golden.glob("*.safetensors")
    header = (HEADER % hashlib.sha256(index.read_bytes()).hexdigest()).encode()
    header += b" " * (-(8 + len(header)) % 4096)
    assert shard.read_bytes() == struct.pack("<Q", len(header)) + header + DATA
    name = f"shard-00000-{hashlib.sha256(header).hexdigest()[:16]}"
    assert (shard.name, index.name) == (f"{name}.safetensors", f"{name}.index")


def test_the_columns_have_these_values(golden: Path):
    (index,), (shard,) = golden.glob("*.index"), golden.glob("*.safetensors")
    with safe_open(index, "np") as file:
        column = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    text = {name: column[name].tobytes().decode() for name in ("keys", "skeletons", "buckets")}
    assert text == {"keys": "a key", "skeletons": SKELETON, "buckets": BUCKET}
    numbers = {name: column[name].tolist() for name in column if column[name].dtype == np.int64}
    assert numbers == {
        "key_ends": [5],
        "skeleton_ends": [len(SKELETON)],
        "bucket": [0],
        "block_ends": [3],
        "starts": [0, 8, 8],
    }
    assert column["key_hashes"].tobytes() == hashlib.sha256(b"a key").digest()[:16]
    marks = [hashlib.sha256(data).digest()[:16] for data in (DATA[:3], DATA[8:], DATA[8:])]
    assert column["digests"].tobytes() == b"".join(marks)
    size = shard.stat().st_size
    assert metadata == {
        "format": "sds.tensors",
        "version": "1",
        "samples": "1",
        "bytes": str(size),
        "data_start": str(size - len(DATA)),
        "generation": "1",
        "fingerprint": "vae-1",
    }


def test_the_summary_has_these_values(golden: Path):
    (index,), (shard,) = golden.glob("*.index"), golden.glob("*.safetensors")
    header = shard.read_bytes()[8 : -len(DATA)]
    assert json.loads((golden / "index.json").read_text()) == {
        "format": "sds.tensors",
        "version": 1,
        "generation": 1,
        "shards": [
            {
                "name": shard.stem,
                "samples": 1,
                "bytes": shard.stat().st_size,
                "index_bytes": index.stat().st_size,
                "sha256": hashlib.sha256(header).hexdigest(),
                "index_sha256": hashlib.sha256(index.read_bytes()).hexdigest(),
                "generation": 1,
                "fingerprint": "vae-1",
                "skip": [],
            }
        ],
    }
    assert sorted(path.name for path in golden.iterdir()) == sorted(["index.json", index.name, shard.name])


def test_another_program_can_write_a_cache(tmp_path: Path):
    """Thirty lines by the specification, without any of our code."""
    from safetensors.numpy import save

    key, data = b"theirs", np.arange(6, dtype="<f4").tobytes()
    skeleton, bucket = (
        b'{"x":{"$t":0},"$$t":null}',
        b'[{"blocks":[24],"slots":[{"field":"x","dtype":"F32","shape":[2,3],"block":0}]}]',
    )
    shard = b'{"__metadata__":{"format":"sds.tensors","version":"1","index_sha256":"%s"},'
    shard += b'"00000000.x":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}'
    length = len(shard) - 2 + 64
    columns = {
        "keys": np.frombuffer(key, "u1"),
        "key_ends": np.array([len(key)]),
        "key_hashes": np.frombuffer(hashlib.sha256(key).digest()[:16], "u1").reshape(1, 16),
        "skeletons": np.frombuffer(skeleton, "u1"),
        "skeleton_ends": np.array([len(skeleton)]),
        "bucket": np.array([0]),
        "block_ends": np.array([1]),
        "starts": np.array([0]),
        "digests": np.frombuffer(hashlib.sha256(data).digest()[:16], "u1").reshape(1, 16),
        "buckets": np.frombuffer(bucket, "u1"),
    }
    facts = {"samples": "1", "bytes": str(8 + length + 24), "data_start": str(8 + length), "generation": "1"}
    index = save(columns, {"format": "sds.tensors", "version": "1", "fingerprint": "", **facts})
    header = shard % hashlib.sha256(index).hexdigest().encode()
    name = f"shard-00000-{hashlib.sha256(header).hexdigest()[:16]}"
    (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", length) + header + data)
    (tmp_path / f"{name}.index").write_bytes(index)

    cache = TensorCache(tmp_path)
    cache.verify()
    assert list(cache.keys()) == ["theirs"]
    assert cache[0]["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and cache[0]["$t"] is None


@pytest.mark.parametrize("name", ["../../etc/passwd", "shard-00000-" + "A" * 16, "shard-0-" + "0" * 16, "/shard", ""])
def test_a_name_never_leads_out_of_the_folder(name: str):
    with pytest.raises(ShardCorrupt, match="no name of a shard"):
        check_name(name)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"1234567",
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2**40) + b"{}" * 100,
        struct.pack("<Q", 200) + b"[" * 200,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
    ],
)
def test_a_header_that_is_none_is_refused(head: bytes):
    with pytest.raises(ShardCorrupt, match="damaged"):
        parse_header("a shard", head, len(head))


def test_a_header_that_points_elsewhere_is_refused():
    for offsets in ([0, 2**62], [-8, 0], [8, 0]):
        head = b'{"x":{"dtype":"U8","shape":[1],"data_offsets":%s}}' % json.dumps(offsets).encode()
        head = struct.pack("<Q", len(head)) + head
        with pytest.raises(ShardCorrupt, match=r"lies at|no safetensors header"):
            parse_header("a shard", head + b"\0" * 8, len(head) + 8)


def test_a_header_is_read_as_it_was_written():
    head = encode_header({"a": "b"}, [])
    assert len(head) % 8 == 0 and parse_header("x", head, len(head)) == ({"a": "b"}, {})
