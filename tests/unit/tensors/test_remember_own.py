"""What code changes by working is no setting: a model that is loaded with the first sample, a counter, a variable."""

from __future__ import annotations

import csv
import functools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import sds
from sds.tensors import TensorCache
from sds.tensors.remember import Memory, find_memory
from sds.tensors.remember_code import fingerprint_of
from sds.transforms import Remember

MODEL: Any = None
NUM_CALLS = 0
SCALE = 1.0


def encode(sample: dict[str, Any]) -> dict[str, Any]:
    global NUM_CALLS
    NUM_CALLS += 1
    return {**sample, "x": model()(torch.ones(2)).detach() * SCALE}


def model() -> Any:
    global MODEL
    if MODEL is None:
        MODEL = torch.nn.Linear(2, 2)
    return MODEL


def set_scale(scale: float) -> None:
    global SCALE
    SCALE = scale


class Lazy:
    def __init__(self, name: str = "small") -> None:
        self.name = name.upper()
        self.title = name.title()
        self.model: Any = None
        self.num_calls = 0
        self.seen: list[int] = []
        self.sizes: dict[str, int] = {}
        del self.name  # so that there is an argument without an attribute, and all attributes count

    @torch.no_grad()
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self._load()
        self.num_calls += 1
        self.seen.append(len(sample))
        self.sizes["last"] = len(sample)
        return {**sample, "x": self.model(torch.ones(2)), "y": self.weight}

    def _load(self) -> None:
        if self.model is None:
            self.model = torch.nn.Linear(2, 2)

    def set_title(self, title: str) -> None:
        self.title = title

    @functools.cached_property
    def weight(self) -> float:
        return 2.0


class LazyModule(torch.nn.Module):
    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, width)
        self.vae: Any = None

    def forward(self, sample: dict[str, Any]) -> dict[str, Any]:
        if self.vae is None:
            self.vae = torch.nn.Linear(2, 2)
        return {**sample, "x": self.vae(torch.ones(2)).detach()}


class Encoder:
    """Made with what it does not keep; works by a method of its own."""

    def __init__(self, path: str) -> None:
        self.read(path)
        self.model: Any = None

    def read(self, path: str) -> None:
        self.table = len(path)

    def encode(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.model = self.model or torch.nn.Identity()
        return {**sample, "x": torch.ones(2) * self.table}


class Given:
    def __init__(self, model: Any = None) -> None:
        self.model = model

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.model = self.model or torch.nn.Identity()
        return sample


def counting() -> Callable[[dict[str, Any]], dict[str, Any]]:
    num_calls = 0

    def count(sample: dict[str, Any]) -> dict[str, Any]:
        nonlocal num_calls
        num_calls += 1
        return {**sample, "n": 1}

    return count


@pytest.fixture(autouse=True)
def fresh_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MODEL", None), ("NUM_CALLS", 0), ("SCALE", 1.0)):
        monkeypatch.setitem(globals(), name, value)


@pytest.mark.parametrize(
    "make",
    [lambda: encode, Lazy, LazyModule, lambda: Encoder("a").encode, counting],
    ids=["globals", "attributes", "module", "method", "closure"],
)
def test_work_changes_no_fingerprint(make: Callable[[], Any]) -> None:
    transform = make()
    before = fingerprint_of([transform])
    transform({})
    transform({"a": 1})
    assert fingerprint_of([transform]) == before


def test_settings_count_as_before() -> None:
    plain = fingerprint_of([Lazy()])
    assert fingerprint_of([Lazy("large")]) != plain
    changed = Lazy()
    changed.set_title("other")  # by a method that is no part of the work
    assert fingerprint_of([changed]) != plain
    assert fingerprint_of([LazyModule(3)]) != fingerprint_of([LazyModule(2)])
    assert fingerprint_of([Encoder("a").encode]) != fingerprint_of([Encoder("ab").encode])
    assert fingerprint_of([Encoder("a")]) != fingerprint_of([Encoder("ab")])
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert fingerprint_of([Given(one)]) != fingerprint_of([Given(other)])  # an argument counts, whoever assigns it
    before = fingerprint_of([encode])
    set_scale(2.0)  # a function that is no part of the work
    assert fingerprint_of([encode]) != before


@functools.cache
def cached() -> int:
    return SCALE  # type: ignore[return-value]


def test_a_cached_function_is_code_too() -> None:
    def use(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "x": cached()}

    before = fingerprint_of([use])
    cached()
    assert fingerprint_of([use]) == before
    set_scale(2.0)
    assert fingerprint_of([use]) != before


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([["index"], *([f"n{number}"] for number in range(6))])
    return path


def run(rows: Path, *chain: Any) -> None:
    remember = Remember(chain, rows.parent / "mem")
    with sds.StreamingDataset(str(rows), rows.parent / "dst", transforms=[remember], on_error="raise") as dataset:
        assert len(list(dataset)) == 6


def test_an_unchanged_program_computes_once(rows: Path) -> None:
    lazy = Lazy()
    for _ in range(3):
        run(rows, encode, lazy)
    assert (NUM_CALLS, lazy.num_calls) == (6, 6)
    assert len(TensorCache(rows.parent / "mem").fingerprints) == 1


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        (lambda: [encode, Lazy("large")], "what differs: Lazy.title)"),
        (lambda: [Lazy(), encode], "which transforms there are"),
        (lambda: [set_scale(2.0) or encode, Lazy()], "what differs: the constant SCALE)"),
        (lambda: [encode, Lazy(), counting()], "the code of counting.<locals>.count"),
    ],
)
def test_a_new_generation_says_what_differs(
    rows: Path, chain: Callable[[], list[Any]], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    run(rows, encode, Lazy())
    with caplog.at_level(logging.WARNING, "sds"):
        run(rows, *chain())
    (warning,) = [record.getMessage() for record in caplog.records if "generation" in record.getMessage()]
    assert told in warning
    (note, _) = sorted((rows.parent / "mem").glob(".made-by-*.json"))
    assert "small" not in note.read_text().lower()  # names and hashes, no values


def test_rows_are_written_in_the_order_they_were_asked_for(tmp_path: Path) -> None:
    remember = Remember(encode, tmp_path / "mem", by="key")
    remember.is_ordered = True
    options = find_memory((remember,))
    assert options is not None
    memory = Memory(options)
    for key in "abcdef":
        assert memory.find(key, 0) is None

    def make(key: str) -> None:
        if key != "d":  # that one fails
            memory.put(key, [{"x": torch.full((2,), float(ord(key)))}], {}, {})
        memory.done(key)

    for key in "fdb":
        make(key)
    assert not [*(tmp_path / "mem" / ".parts").glob("*.journal")]  # all of them wait for the first
    threads = [threading.Thread(target=make, args=(key,)) for key in "ca"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.close()  # one did not come through: what is behind it is kept nevertheless
    cache = TensorCache(tmp_path / "mem")
    assert list(cache.keys()) == ["a", "b", "c", "f"]
    assert [float(sample["x"][0]) for sample in cache] == [97, 98, 99, 102]


class Scaled(torch.nn.Module):
    """A module with settings that it does not print, deep inside too."""

    def __init__(self, scale: float, inner: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.scale = scale
        self.sizes = [1, {"a": scale}]
        self.num_calls = 0
        self.inner = inner or torch.nn.Identity()

    def forward(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.num_calls += 1
        return {**sample, "x": sample["x"] * self.scale}


def test_plain_attributes_of_a_module_count_and_what_it_counts_does_not() -> None:
    module = Scaled(2.0, Scaled(3.0))
    before = fingerprint_of([module])
    module({"x": 1})
    module.inner.num_calls = 7
    assert fingerprint_of([module]) == before == fingerprint_of([Scaled(2.0, Scaled(3.0))])
    assert fingerprint_of([Scaled(2.5, Scaled(3.0))]) != before
    assert fingerprint_of([Scaled(2.0, Scaled(4.0))]) != before
    module.sizes[1]["a"] = 5.0
    assert fingerprint_of([module]) != before
