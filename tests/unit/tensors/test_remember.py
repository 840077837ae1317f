"""Remember in one process: what is kept, what is read again, and what counts as the same transforms."""

from __future__ import annotations

import csv
import functools
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sds
from sds.errors import OptionError, TensorCacheError, TooManyFailures
from sds.tensors import TensorCache
from sds.tensors.remember_code import fingerprint_of
from sds.transforms import AddConstantField, FlipImage, Identity, Remember, rng

NUM_ROWS = 12


class Compute:
    """Makes a tensor out of a file, and notes that it did."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self._seen: list[str] = []

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        seen = SEEN
        seen.append(sample["__sample_key__"])
        value = float(Path(sample["file"]).read_text()) * self.factor
        return {**sample, "x": torch.full((3,), value), "drawn": float(rng(sample, "a").random())}


SEEN: list[str] = []


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """An index of files that hold a number each."""
    SEEN.clear()
    rows = []
    for number in range(NUM_ROWS):
        path = tmp_path / f"{number}.txt"
        path.write_text(str(number))
        rows.append({"id": f"n{number}", "file": str(path), "label": number % 3})
    with open(tmp_path / "index.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return tmp_path / "index.csv"


def make(files: Path, transforms: Any, **keywords: Any) -> sds.StreamingDataset:
    keywords = {"columns_to_download": ["file"], "index_col_name": "id", "shuffle_seed": 5, **keywords}
    return sds.StreamingDataset(str(files), files.parent / "dst", transforms=transforms, on_error="raise", **keywords)


def values(dataset: sds.StreamingDataset) -> dict[str, float]:
    return {sample["__sample_key__"]: float(sample["x"][0]) for sample in dataset}


WANTED = {f"n{number}": float(number) for number in range(NUM_ROWS)}


def test_the_second_pass_needs_neither_files_nor_transforms(files: Path, tmp_path: Path) -> None:
    with make(files, [Remember(Compute(), tmp_path / "mem")]) as dataset:
        assert values(dataset) == WANTED and len(SEEN) == NUM_ROWS
        for path in tmp_path.glob("*.txt"):
            path.unlink()
        assert values(dataset) == WANTED and len(SEEN) == NUM_ROWS
    assert values(make(files, [Remember(Compute(), tmp_path / "mem")])) == WANTED
    assert dataset[3]["label"] == 0 and len(SEEN) == NUM_ROWS
    assert len(TensorCache(tmp_path / "mem")) == NUM_ROWS and not (tmp_path / "mem" / ".parts").exists()


def test_randomness_before_is_frozen_and_after_it_is_of_the_epoch(files: Path, tmp_path: Path) -> None:
    def later(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "later": float(rng(sample, "b").random())}

    dataset = make(files, [Remember(Compute(), tmp_path / "mem"), later])
    plain = make(files, [Compute(), later])
    for epoch in range(3):
        got, wanted = ({s["__sample_key__"]: s for s in each} for each in (dataset, plain))
        for key, sample in got.items():
            assert sample["__epoch__"] == epoch
            assert sample["later"] == wanted[key]["later"]
            assert (sample["drawn"] == wanted[key]["drawn"]) == (epoch == 0)
            assert sample.keys() == wanted[key].keys()


def test_none_one_and_many_are_remembered(files: Path, tmp_path: Path) -> None:
    def spread(sample: dict[str, Any]) -> list[dict[str, Any]] | None:
        number = int(sample["x"][0])
        return [{**sample, "part": np.int64(k)} for k in range(number % 4)] or None

    dataset = make(files, [Remember([Compute(), spread], tmp_path / "mem")])
    passes = [[(s["__sample_key__"], s["part"]) for s in dataset] for _ in range(3)]
    assert [sorted(each) for each in passes[1:]] == [sorted(passes[0])] * 2
    assert len(passes[0]) == sum(number % 4 for number in range(NUM_ROWS)) and len(SEEN) == NUM_ROWS
    assert {type(part) for _, part in passes[0]} == {int}  # the first pass gives what later ones give
    assert len(list(sds.StreamingDataset(str(tmp_path / "mem"), tmp_path / "dst2"))) == len(passes[0])


def test_what_stands_before_it_is_remembered_too(files: Path, tmp_path: Path) -> None:
    before = AddConstantField("c", 7)
    dataset = make(files, [Compute(), before, Remember([Identity()], tmp_path / "mem")])
    assert values(dataset) == values(dataset) == WANTED and len(SEEN) == NUM_ROWS
    assert dataset[0]["c"] == 7


def test_a_pass_that_was_broken_off_is_not_lost(files: Path, tmp_path: Path) -> None:
    dataset = make(files, [Remember(Compute(), tmp_path / "mem")])
    for place, _ in enumerate(dataset):
        if place == 4:
            break
    assert values(dataset) == WANTED and sorted(SEEN) == sorted(WANTED)


def test_an_endless_iteration_computes_each_row_once(files: Path, tmp_path: Path) -> None:
    dataset = make(files, [Remember(Compute(), tmp_path / "mem")], infinite_iteration=True, prefetch=2)
    samples = iter(dataset)
    assert len({next(samples)["__sample_key__"] for _ in range(NUM_ROWS)}) == NUM_ROWS
    for _ in range(3 * NUM_ROWS):
        sample = next(samples)
        assert float(sample["x"][0]) == WANTED[sample["__sample_key__"]]
    assert len(SEEN) <= NUM_ROWS + 3  # those that were on their way when the second epoch began


def test_a_member_of_a_mix_remembers(files: Path, tmp_path: Path) -> None:
    member = make(files, [Remember(Compute(), tmp_path / "mem")])
    mix = sds.concatenate([member, make(files, [Compute(10.0)])])
    for _ in range(3):
        got = sorted(float(sample["x"][0]) for sample in mix)
        assert got == sorted([*WANTED.values(), *(10 * value for value in WANTED.values())])
    assert len(SEEN) == (1 + 3) * NUM_ROWS
    mix.close()
    assert len(TensorCache(tmp_path / "mem")) == NUM_ROWS


def test_another_argument_is_another_generation_and_says_so_once(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert values(make(files, [Remember(Compute(), tmp_path / "mem")])) == WANTED
    assert not [r for r in caplog.records if "generation" in r.message]
    with caplog.at_level(logging.WARNING, "sds"):
        dataset = make(files, [Remember(Compute(2.0), tmp_path / "mem")])
        assert values(dataset) == values(dataset) == {key: 2 * value for key, value in WANTED.items()}
    assert len([r for r in caplog.records if "generation" in r.message]) == 1
    assert len(SEEN) == 2 * NUM_ROWS and len(TensorCache(tmp_path / "mem").fingerprints) == 2
    assert values(make(files, [Remember(Compute(), tmp_path / "mem")])) == WANTED  # the older one is still there
    assert len(SEEN) == 2 * NUM_ROWS


def test_a_row_that_changed_is_computed_anew(files: Path, tmp_path: Path) -> None:
    list(make(files, [Remember(Compute(), tmp_path / "mem")]))
    files.write_text(files.read_text().replace(",0\n", ",9\n"))  # the labels of four rows
    labels = sorted(sample["label"] for sample in make(files, [Remember(Compute(), tmp_path / "mem")]))
    assert labels == [1] * 4 + [2] * 4 + [9] * 4 and len(SEEN) == NUM_ROWS + 4


def test_by_key_only_the_id_counts(files: Path, tmp_path: Path) -> None:
    list(make(files, [Remember(Compute(), tmp_path / "mem", by="key")]))
    files.write_text(files.read_text().replace(str(tmp_path), "/elsewhere"))
    assert values(make(files, [Remember(Compute(), tmp_path / "mem", by="key")])) == WANTED
    assert sorted(TensorCache(tmp_path / "mem").keys()) == sorted(WANTED)


def test_one_that_cannot_be_kept_is_named(files: Path, tmp_path: Path) -> None:
    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "odd": object()}

    with pytest.raises(TensorCacheError, match=r"odd: builtins\.object"):
        list(make(files, [Remember([odd], tmp_path / "mem")]))
    skipping = sds.StreamingDataset(
        str(files), tmp_path / "dst", columns_to_download=["file"], transforms=[Remember([odd], tmp_path / "mem")]
    )
    with pytest.raises(TooManyFailures, match="cannot be stored"):
        list(skipping)


def test_a_damaged_folder_is_an_error_not_a_fresh_start(files: Path, tmp_path: Path) -> None:
    list(make(files, [Remember(Compute(), tmp_path / "mem")]))
    (index,) = (tmp_path / "mem").glob("*.index")
    index.write_bytes(index.read_bytes()[:100])
    (tmp_path / "mem" / "index.json").unlink()
    with pytest.raises(TensorCacheError, match=index.stem):
        make(files, [Remember(Compute(), tmp_path / "mem")])
    with pytest.raises(TensorCacheError, match="no known version"):
        (tmp_path / "mem" / "index.json").write_text('{"format": "sds.tensors", "version": 99}')
        make(files, [Remember(Compute(), tmp_path / "mem")])


def test_it_computes_by_hand_prints_and_pickles(tmp_path: Path) -> None:
    remember = Remember([AddConstantField("a", 1), lambda sample: [sample, dict(sample)]], tmp_path / "mem")
    assert remember({"b": 2}) == [{"a": 1, "b": 2}] * 2
    assert Remember(lambda _: None, "mem")({}) is None
    assert "AddConstantField" in repr(remember) and not (tmp_path / "mem").exists()
    copy = pickle.loads(pickle.dumps(Remember([Identity()], tmp_path / "mem", version="1")))
    assert (copy.path, copy.version) == (str(tmp_path / "mem"), "1")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda: Remember(5, "mem"), "cannot be called"),
        (lambda: Remember([Identity()], "s3://bucket/mem"), "remote"),
        (lambda: Remember([Identity()], ""), "no path"),
        (lambda: Remember([Identity()], "mem", by="name"), "by is unknown"),
        (lambda: Remember([Identity()], "mem", version=2), "version"),  # type: ignore[arg-type]
        (lambda: Remember([Identity()], "mem", shard_size="many"), "shard_size"),
    ],
)
def test_impossible_arguments(broken: Callable[[], Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        broken()
    assert caught.value.hint


def test_impossible_places(files: Path) -> None:
    one = Remember([Identity()], "mem")
    with pytest.raises(OptionError, match="more than one"):
        make(files, [one, one])
    with pytest.raises(OptionError, match="more than one"):
        make(files, [Remember([one], "mem")])
    with pytest.raises(OptionError, match="pre_download_transforms"):
        make(files, [], pre_download_transforms=[one])


# ---- what counts as the same transforms ------------------------------------------------------------------------------


def scaled(sample: dict[str, Any], factor: float = 2.0) -> dict[str, Any]:
    return {**sample, "x": sample["x"] * factor * helper()}


def helper() -> int:
    return 1


def from_source(source: str, name: str, folder: Path) -> Any:
    """A function or class as a file has it."""
    path = folder / "code_of_a_user.py"
    path.write_text(source)
    import linecache

    linecache.checkcache(str(path))
    space: dict[str, Any] = {"__name__": "code_of_a_user", "__file__": str(path)}
    exec(compile(source, str(path), "exec"), space)
    return space[name]


def test_code_counts_and_comments_do_not(tmp_path: Path) -> None:
    def of(source: str) -> str:
        return fingerprint_of([from_source(source, "f", tmp_path)])

    base = of("def g(): return 1\nF = 3\ndef f(s): return {**s, 'a': g() + F}\n")
    assert of("# why\ndef g(): return 1\nF = 3\n\n\ndef f(s):  # so\n    return {**s, 'a': g() + F}\n") == base
    assert of("def g(): return 2\nF = 3\ndef f(s): return {**s, 'a': g() + F}\n") != base  # what it calls
    assert of("def g(): return 1\nF = 4\ndef f(s): return {**s, 'a': g() + F}\n") != base  # a constant
    assert of("def g(): return 1\nF = 3\ndef f(s): return {**s, 'b': g() + F}\n") != base
    chain = "".join(f"def f{n}(s): return f{n + 1}(s)\n" for n in range(300))
    last = "def f300(s): return {}\ndef f(s): return f0(s)\n"
    assert of(chain + last.format(1)) == of(chain + last.format(1)) != of(chain + last.format(2))
    wrap = "def w(g):\n @functools.wraps(g)\n def h(s): return {}\n return h\n@w\ndef f(s): return s\n"
    wrap = f"import functools\n{wrap}"
    assert of(wrap.format("g(s)")) != of(wrap.format("g(g(s))"))


def test_arguments_count() -> None:
    def of(*transforms: Any) -> str:
        return fingerprint_of(transforms)

    assert of(scaled) == of(scaled) != of(functools.partial(scaled, factor=3.0))
    assert of(functools.partial(scaled, factor=3.0)) != of(functools.partial(scaled, factor=4.0))
    assert of(FlipImage("a", probability=0.5)) == of(FlipImage("a")) != of(FlipImage("a", probability=0.25))
    used = Compute(2.0)
    used._seen.append("x")  # what an object notes while it works is no argument
    assert of(used) == of(Compute(2.0)) != of(Compute(3.0))
    assert of(lambda s: s) != of(lambda s: {**s})
    assert of(*(lambda s, k=k: k for k in (1,))) != of(*(lambda s, k=k: k for k in (2,)))
    assert of(Identity(), scaled) != of(scaled, Identity())
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert of(model) == of(model) != of(other)
    assert of([np.zeros(3)]) != of([np.zeros(3, np.float32)]) != of([torch.zeros(3)])
    assert of(used.__call__) == of(Compute(2.0).__call__)


def test_what_cannot_be_told_needs_a_version() -> None:
    handle = (each for each in ())
    transform = functools.partial(scaled, factor=handle)
    with pytest.raises(OptionError, match="cannot be hashed") as caught:
        fingerprint_of([transform])
    assert "version=" in str(caught.value)
    assert fingerprint_of([transform], "vae 2") == "version vae 2"
