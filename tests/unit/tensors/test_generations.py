"""The generations of a cache: what there is, what is deleted, and that the others stay whole."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from sds.errors import OptionError, TensorCacheError
from sds.tensors import TensorCache, TensorCacheWriter
from sds.tensors.catalog import load
from sds.tensors.generations import generations_of, prune
from sds.tensors.local import LocalPlace


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Generations of 2, 3 and 4 samples."""
    for size, fingerprint in ((2, "vae 1"), (3, ""), (4, "vae 2")):
        with TensorCacheWriter(tmp_path / "c", fingerprint=fingerprint) as writer:
            for place in range(size):
                writer.add(str(place), torch.full((3,), float(size)))
    return tmp_path / "c"


def test_what_there_is(cache: Path) -> None:
    found = generations_of(load(LocalPlace(cache)))
    assert [(each.fingerprint, each.samples, each.is_current) for each in found] == [
        ("vae 1", 2, False),
        ("", 3, False),
        ("vae 2", 4, True),
    ]
    files = sum(each.stat().st_size for each in cache.glob("shard-*"))
    assert sum(each.bytes for each in found) == files


def test_only_the_current_one_stays(cache: Path) -> None:
    assert [each.fingerprint for each in prune(str(cache))] == ["vae 1", ""]
    left = TensorCache(cache)
    left.verify()
    assert left.fingerprints == ("vae 2",) and len(left) == 4
    assert len(list(cache.glob("shard-*"))) == 2
    assert prune(str(cache)) == []
    with TensorCacheWriter(cache, fingerprint="vae 1") as writer:
        assert "0" not in writer
        writer.add("0", torch.zeros(3))
    assert TensorCache(cache).fingerprint == "vae 1"  # a new one is the last one again


def test_others_stay_by_choice(cache: Path) -> None:
    assert [each.fingerprint for each in prune(str(cache), ["vae 1", ""])] == ["vae 2"]
    assert len(TensorCache(cache, fingerprint="vae 1")) == 2 and len(TensorCache(cache)) == 3


def test_one_that_was_killed_goes_on(cache: Path, tmp_path: Path) -> None:
    before = tmp_path / "before"
    shutil.copytree(cache, before)
    prune(str(cache))
    gone = sorted({each.name for each in before.glob("shard-*")} - {each.name for each in cache.glob("shard-*")})
    (lost,) = [name for name in gone if name.endswith(".safetensors")][:1]
    for name in gone:  # as if it had been killed after it deleted one file
        if name != lost:
            shutil.copy(before / name, cache / name)
    assert len(TensorCache(cache)) == 4
    assert len(prune(str(cache))) == 2 and len(list(cache.glob("shard-*"))) == 2


def test_what_cannot_be_pruned(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="fingerprint: 'vae 3'") as caught:
        prune(str(cache), ["vae 3"])
    assert "'vae 1', '', 'vae 2'" in str(caught.value)
    with pytest.raises(OptionError, match="local"):
        prune("s3://bucket/cache")
    with pytest.raises(TensorCacheError, match="no tensor cache"):
        prune(str(tmp_path / "nothing"))
    writer = TensorCacheWriter(cache, fingerprint="vae 2")
    writer.add("new", torch.zeros(3))
    with pytest.raises(TensorCacheError, match="is being written"):
        prune(str(cache))
    writer.close()
    assert len(TensorCache(cache)) == 5 and len(TensorCache(cache, fingerprint="vae 1")) == 2
