"""`sds tensors`: what it prints, what it builds, and how it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sds import cli
from sds.cli.hints import for_shell
from sds.cli.ray_engine import check_resources
from sds.cli.tensors import load_chain
from sds.errors import OptionError, SdsError, TensorCacheError
from sds.tensors import TensorCache, TensorCacheWriter

CHAIN = """
import threading
from pathlib import Path

import torch

from sds.transforms import FilterFields

SEEN = []
LATER = threading.Event()


def number(sample):
    SEEN.append(sample["__sample_key__"])
    value = float(Path(sample["txt"]).read_text())
    return {**sample, "x": torch.full((2,), value)}


chain = [number]


def make_chain():
    return [number, FilterFields(["x"])]


def wait(sample):
    # the first row is done after the fourth
    if sample["__sample_key__"] == "03":
        LATER.set()
    elif sample["__sample_key__"] == "00":
        assert LATER.wait(30)
    return sample


slow_chain = [number, wait]


def odd(sample, each=(each for each in ())):
    return sample


odd_chain = [odd]


nothing = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a user stands: texts of a number each, and a module with chains."""
    (tmp_path / "texts").mkdir()
    for place in range(20):
        (tmp_path / "texts" / f"{place:02d}.txt").write_text(str(place))
    (tmp_path / "users_chain.py").write_text(CHAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("users_chain", None)
    return tmp_path


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, ["tensors", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


def test_info(tmp_path: Path) -> None:
    with TensorCacheWriter(tmp_path / "c", fingerprint="vae 1") as writer:
        for place in range(3):
            writer.add(str(place), {"latent": torch.zeros(4, 8 if place else 6)})
    code, text = run("info", str(tmp_path / "c"), "--verify")
    assert code == 0 and "3 samples" in text and "latent: float32 [4, 8]" in text and "vae 1" in text
    assert "every hash is right" in text
    code, text = run("info", str(tmp_path / "c"), "--json")
    facts = json.loads(text)
    assert (code, facts["samples"], facts["shards"], facts["fingerprint"]) == (0, 3, 1, "vae 1")
    assert facts["kinds"][0] == {"samples": 2, "tensors": {"latent": {"shape": [4, 8], "dtype": "float32"}}}
    with pytest.raises(TensorCacheError, match="no tensor cache"):
        run("info", str(tmp_path / "nothing"))


def test_a_build_goes_on_where_it_stopped(folder: Path) -> None:
    words = ["build", "texts", "latents", "--transforms", "users_chain:chain", "--threads", "2", "--json"]
    (folder / "texts" / "19.txt").rename(folder / "19.txt")
    code, text = run(*words)
    assert (code, json.loads(text)["samples"]) == (0, 19)
    seen = sys.modules["users_chain"].SEEN
    assert len(seen) == 19
    (folder / "19.txt").rename(folder / "texts" / "19.txt")
    code, text = run(*words)
    facts = json.loads(text)
    assert (code, facts["samples"], facts["rows"], facts["failures"]) == (0, 20, 20, 0)
    assert len(seen) == 20
    cache = TensorCache("latents")
    assert sorted(cache.keys()) == [f"{place:02d}" for place in range(20)]
    assert {cache.key(i): float(cache[i]["x"][0]) for i in range(20)} == {f"{place:02d}": place for place in range(20)}


def test_a_build_says_what_was_there(folder: Path) -> None:
    words = ["build", "texts", "latents", "--transforms", "users_chain:chain"]
    assert "already there" not in run(*words, "--sql", "SELECT * FROM dataframe LIMIT 5")[1]
    assert "already there: 5 of 20" in run(*words)[1]
    assert json.loads(run(*words, "--json")[1])["already_there"] == 20


def test_builds_are_alike_in_whatever_order_rows_are_done(folder: Path) -> None:
    for path, chain, threads in (("a", "slow_chain", "2"), ("b", "chain", "1")):
        words = ["--transforms", f"users_chain:{chain}", "--threads", threads, "--version", "1"]
        assert run("build", "texts", path, *words)[0] == 0
    files = [{each.name: each.read_bytes() for each in Path(path).iterdir()} for path in ("a", "b")]
    assert files[0] == files[1] and len(files[0]) == 3
    assert list(TensorCache("a").keys()) == [f"{place:02d}" for place in range(20)]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["s3://bucket/made", "--transforms", "users_chain:chain"], "PATH is not local", "copy that"),
        (["made", "--transforms", "users_chain:odd_chain"], "odd", "--version"),
        (["made", "--transforms", "users_chain:chain", "--download", "nope"], "nope", "--download names extensions"),
        (["made", "--transforms", "users_chain:chain", "--sql", "SELEC"], "--sql is not SQL", "SELECT"),
        (["made", "--transforms", "users_chain:chain", "--shard-size", "many"], "--shard-size", "500mb"),
        (["made", "--transforms", "users_chain:chain", "--storage", "endpont=x"], "--storage", "'endpoint'"),
    ],
)
def test_errors_of_a_build_speak_of_what_was_typed(words: list[str], message: str, hint: str, folder: Path) -> None:
    with pytest.raises(SdsError, match=message) as caught:
        run("build", "texts", *words)
    assert hint in for_shell(str(caught.value.hint)) and "Remember(" not in str(caught.value)
    assert not (folder / "made").exists()


def test_info_lists_generations_and_prune_deletes_the_old(folder: Path) -> None:
    for version in ("1", "2"):
        run("build", "texts", "latents", "--transforms", "users_chain:chain", "--version", version)
    text = run("info", "latents")[1]
    assert "version 1: 20 samples" in text and "version 2: 20 samples" in text
    (current,) = [line for line in text.splitlines() if "(current)" in line]
    assert "version 2" in current
    found = json.loads(run("info", "latents", "--json")[1])["generations"]
    assert [(each["fingerprint"], each["is_current"]) for each in found] == [("version 1", False), ("version 2", True)]
    assert json.loads(run("prune", "latents", "--json")[1])["deleted"] == [found[0]]
    assert "0 generations deleted" in run("prune", "latents")[1]
    assert TensorCache("latents").fingerprints == ("version 2",)


def test_a_build_tells_what_failed(folder: Path) -> None:
    (folder / "texts" / "07.txt").write_text("seven")
    result = CliRunner().invoke(
        cli.app, ["tensors", "build", "texts", "latents", "--transforms", "users_chain:make_chain"]
    )
    assert result.exit_code == 1
    assert "rows: 20, failed: 1" in result.stdout and "19 samples" in result.stdout
    assert "failed: 07 at stage transform: transform failed: number: ValueError" in result.stderr


def test_import_comfyui(tmp_path: Path) -> None:
    (tmp_path / "comfy").mkdir()
    data = {"latents": [{"samples": torch.zeros(1, 4, 2, 2)}], "conditioning": [[[torch.zeros(1, 3, 8), {}]]]}
    torch.save(data, tmp_path / "comfy" / "shard_0000.pkl")
    code, text = run("import-comfyui", str(tmp_path / "comfy"), str(tmp_path / "out"))
    assert code == 0 and "1 samples" in text and "latent.samples: float32 [1, 4, 2, 2]" in text


@pytest.mark.parametrize(
    "words", [["info"], ["prune"], ["build", "a", "b"], ["build", "a", "b", "--transforms", "x", "--threads", "0"]]
)
def test_wrong_usage_is_2(words: list[str]) -> None:
    assert run(*words)[0] == 2


@pytest.mark.parametrize(
    "words", [["--help"], ["info", "-h"], ["build", "--help"], ["prune", "--help"], ["import-comfyui", "--help"]]
)
def test_help_has_examples(words: list[str]) -> None:
    code, text = run(*words)
    assert code == 0 and "sds tensors" in text and "Example" in text


@pytest.mark.parametrize(
    "name",
    ["users_chain", "users_chain:", "nowhere:chain", "users_chain:other", "users_chain:nothing", "users_chain:number"],
)
def test_a_chain_that_is_none(name: str, folder: Path) -> None:
    with pytest.raises(OptionError, match="transforms") as caught:
        load_chain(name)
    assert "module:name" in str(caught.value)


@pytest.mark.parametrize("words", [["--num-workers", "8"], ["--worker-gpus", "1"], ["--worker-gpus", "0"]])
def test_what_is_for_an_engine_is_refused_without_one(words: list[str], folder: Path) -> None:
    with pytest.raises(OptionError, match="--engine ray"):
        run("build", "texts", "made", "--transforms", "users_chain:chain", *words)
    assert not (folder / "made").exists()


def test_what_no_machine_of_ray_has_is_told() -> None:
    nodes = [{"CPU": 8.0, "memory": 1e9}, {"GPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}]
    for num_gpus in (0, 0.5, 1):
        check_resources(nodes, num_gpus)
    for bad, there in ((nodes, "8 CPUs, 0 GPUs; 0 CPUs, 4 GPUs; 2 CPUs, 1 GPUs"), ([], "none")):
        with pytest.raises(OptionError, match=f"2 GPUs; there are: {there}"):
            check_resources(bad, 2)
    with pytest.raises(OptionError, match="whole number"):
        check_resources(nodes, 1.5)
