"""Training datasets as ComfyUI writes them: torch.save({"latents": [...], "conditioning": [...]}) in shard_*.pkl."""

from __future__ import annotations

import io
import json
import logging
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from sds.errors import OptionError, TensorCacheError
from sds.tensors import import_comfyui, realize


class Hook:
    """Stands for a control net: an object of a class that no cache knows."""

    def __init__(self) -> None:
        self.weights = torch.ones(4)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def latent_of(number: int) -> dict[str, Any]:
    return {"samples": torch.full((1, 16, 4, 6), float(number)), "batch_index": [number], "type": "image"}


def conditioning_of(number: int, **extra: Any) -> list[Any]:
    facts = {
        "pooled_output": torch.full((1, 8), -float(number), dtype=torch.bfloat16),
        "attention_mask": None,
        "guidance": 3.5,
        "area": ("percentage", 0.5, 1.0),
        "reference_latents": [torch.zeros(1, 4, 2, 2)],
        "keyframes": [{"strength": 1.0}],
    }
    return [[torch.full((1, 7, 8), number, dtype=torch.float16), {**facts, **extra}]]


def write(folder: Path, shards: list[list[int]], **extra: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(shards):
        data = {
            "latents": [latent_of(row) for row in rows],
            "conditioning": [conditioning_of(row, **extra) for row in rows],
        }
        torch.save(data, folder / f"shard_{number:04d}.pkl")
    facts = {"num_samples": sum(map(len, shards)), "num_shards": len(shards), "shard_size": 1000}
    (folder / "metadata.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("opaque", ["refuse", "drop"])
def test_a_dataset_is_converted(tmp_path: Path, opaque: str):
    write(tmp_path / "comfy", [[0, 1, 2], [3, 4]])
    cache = import_comfyui(tmp_path / "comfy", tmp_path / "cache", opaque=opaque)
    assert list(cache.keys()) == ["shard_0000/0", "shard_0000/1", "shard_0000/2", "shard_0001/0", "shard_0001/1"]
    assert cache.info(3)["latent.samples"] == ((1, 16, 4, 6), torch.float32)
    assert cache.info(3)["conditioning.0.0"].dtype == torch.float16
    sample = realize(cache[3])
    assert sample["latent"]["samples"].unique() == 3 and sample["latent"]["batch_index"] == [3]
    ((tokens, facts),) = sample["conditioning"]
    assert tokens.unique() == 3 and facts["pooled_output"].dtype == torch.bfloat16
    assert facts["area"] == ("percentage", 0.5, 1.0) and facts["attention_mask"] is None
    assert facts["keyframes"] == [{"strength": 1.0}] and facts["reference_latents"][0].shape == (1, 4, 2, 2)
    cache.verify()


def test_a_conversion_goes_on_where_it_stopped(tmp_path: Path):
    write(tmp_path / "comfy", [[0, 1], [2, 3]])
    broken = tmp_path / "comfy" / "shard_0001.pkl"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TensorCacheError, match=r"cannot be read: .*shard_0001\.pkl"):
        import_comfyui(tmp_path / "comfy", tmp_path / "cache")
    broken.write_bytes(whole)
    (tmp_path / "comfy" / "shard_0000.pkl").touch()
    assert len(import_comfyui(tmp_path / "comfy", tmp_path / "cache")) == 4
    assert len(import_comfyui(tmp_path / "comfy", tmp_path / "cache")) == 4


def test_left_over_shards_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write(tmp_path / "comfy", [[0], [1], [2]])
    write(tmp_path / "comfy", [[7]])
    with caplog.at_level(logging.WARNING, "sds"):
        assert len(import_comfyui(tmp_path / "comfy", tmp_path / "cache")) == 1
    assert "2 shards are left-overs" in caplog.text


def test_an_opaque_object_is_refused_by_name(tmp_path: Path):
    write(tmp_path / "comfy", [[0]], control=Hook())
    with pytest.raises(TensorCacheError, match=r"opaque object: .*Hook") as caught:
        import_comfyui(tmp_path / "comfy", tmp_path / "cache")
    assert "opaque='drop'" in str(caught.value) and "--drop-opaque" in str(caught.value)
    assert not (tmp_path / "cache").exists()  # what was refused leaves nothing


def test_a_folder_that_was_there_stays(tmp_path: Path):
    write(tmp_path / "comfy", [[0]], control=Hook())
    (tmp_path / "cache").mkdir()
    with pytest.raises(TensorCacheError):
        import_comfyui(tmp_path / "comfy", tmp_path / "cache")
    assert (tmp_path / "cache").is_dir()


def test_an_opaque_object_is_dropped_by_choice(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    write(tmp_path / "comfy", [[0, 1]], control=Hook(), hooks=[Hook(), 5], kind=Hook)
    with caplog.at_level(logging.WARNING, "sds"):
        cache = import_comfyui(tmp_path / "comfy", tmp_path / "cache", opaque="drop")
    facts = cache[1]["conditioning"][0][1]
    assert "control" not in facts and "kind" not in facts and facts["hooks"] == [5]
    assert realize(facts["pooled_output"]).unique() == -1
    assert "Hook" in caplog.text


@pytest.mark.parametrize("opaque", ["refuse", "drop"])
def test_a_malicious_pickle_runs_nothing(tmp_path: Path, opaque: str):
    write(tmp_path / "comfy", [[0]], control=Bomb(tmp_path / "boom"))
    (tmp_path / "comfy" / "metadata.json").unlink()
    # and one that is no torch file at all
    with open(tmp_path / "comfy" / "shard_0001.pkl", "wb") as file:
        pickle.dump(Bomb(tmp_path / "boom"), file)
    with pytest.raises(TensorCacheError):
        import_comfyui(tmp_path / "comfy", tmp_path / "cache", opaque=opaque)
    assert not (tmp_path / "boom").exists()


def rewritten(path: Path, change: Any) -> None:
    """The same zip with another program in it."""
    with zipfile.ZipFile(path) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as file:
        for name, data in members.items():
            file.writestr(name, change(data) if name.endswith("data.pkl") else data)
    path.write_bytes(target.getvalue())


@pytest.mark.parametrize("opaque", ["refuse", "drop"])
def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path, opaque: str):
    write(tmp_path / "comfy", [[0]])
    # the latent's shape (1, 16, 4, 6) becomes (1, 16, 4, 200), its numbers stay as many
    rewritten(
        tmp_path / "comfy" / "shard_0000.pkl",
        lambda data: data.replace(b"K\x01K\x10K\x04K\x06", b"K\x01K\x10K\x04K\xc8"),
    )
    with pytest.raises(TensorCacheError):
        import_comfyui(tmp_path / "comfy", tmp_path / "cache", opaque=opaque)


def test_a_state_for_a_tensor_is_refused(tmp_path: Path):
    from sds.tensors.comfyui import _Unpickler

    program = b"\x80\x02ctorch\nSize\n(K\x01t\x85R}b."
    with pytest.raises(ValueError, match="a state for Size"):
        _Unpickler(io.BytesIO(program)).load()


def test_names_lead_to_stand_ins_only(tmp_path: Path):
    from sds.tensors.comfyui import _Opaque, _Unpickler

    for program in (
        b"cos\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "boom").encode(),
        b"c__builtin__\neval\n(S'1/0'\ntR.",
        b"\x80\x02ctorch\nload\nq\0(X\x01\0\0\0atR.",
        b"\x80\x04\x8c\x08builtins\x8c\x07getattr\x93.",
        b"\x80\x02csubprocess\nPopen\n)\x81}b.",
        b"\x80\x02r\xff\xff\xff\x7fcos\nsystem\n(S'x'\ntR.",
    ):
        try:
            value = _Unpickler(io.BytesIO(program)).load()
        except Exception as error:
            assert not isinstance(error, ZeroDivisionError)
        else:
            assert isinstance(value, _Opaque) or issubclass(value, _Opaque)
    assert not (tmp_path / "boom").exists()


def test_impossible_arguments_are_told(tmp_path: Path):
    with pytest.raises(OptionError, match="opaque"):
        import_comfyui(tmp_path, tmp_path / "cache", opaque="keep")
    with pytest.raises(TensorCacheError, match="no ComfyUI dataset"):
        import_comfyui(tmp_path / "nowhere", tmp_path / "cache")
    with pytest.raises(TensorCacheError, match="no shards"):
        import_comfyui(tmp_path, tmp_path / "cache")
    write(tmp_path / "comfy", [[0], [1]])
    (tmp_path / "comfy" / "shard_0000.pkl").unlink()
    with pytest.raises(TensorCacheError, match=r"shard_0000\.pkl is not there; .* 2 shards"):
        import_comfyui(tmp_path / "comfy", tmp_path / "cache")
    torch.save([1, 2], tmp_path / "shard_0000.pkl")
    with pytest.raises(TensorCacheError, match="not a shard of a ComfyUI dataset"):
        import_comfyui(tmp_path, tmp_path / "cache")
    (tmp_path / "metadata.json").write_text("{")
    with pytest.raises(TensorCacheError, match=r"metadata\.json"):
        import_comfyui(tmp_path, tmp_path / "cache")
    assert not list(tmp_path.glob("cache/shard*"))
