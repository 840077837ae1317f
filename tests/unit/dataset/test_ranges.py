"""Which columns are fetched in parts: who comes first in the chain, and what was seen of the objects."""

from __future__ import annotations

from typing import Any

import pytest

from sds.dataset.ranges import Ranges, ranged_columns
from sds.fetch import HEAD, File
from sds.transforms import DecodeAudio, DecodeVideo, DecodeVideoAndAudio, RenameFields, presets
from sds.types import size_in

LARGE = 16 * 2**20


def mine(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


class Mine(DecodeVideo):
    """Wants a path, perhaps."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return super().__call__(sample)


class Named(DecodeVideo):
    """The same decoder under another name."""


class Knowing(Mine):
    """Says itself what it reads by ranges."""

    reads_ranges = {"a": 5}  # type: ignore[assignment]  # noqa: RUF012


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ([DecodeVideo("a", 8, "video")], {"a": LARGE}),
        ([DecodeVideo("a", 8, "video"), DecodeVideo("b", 8)], {"a": LARGE, "b": LARGE}),
        ([DecodeVideo("a", 8, remote="ranges")], {"a": 0}),
        ([DecodeVideo("a", 8, remote="whole")], {}),
        ([DecodeVideo("a", 8, "video"), mine, DecodeVideo("b", 8)], {"a": LARGE}),
        ([mine, DecodeVideo("a", 8)], {}),
        ([Mine("a", 8), DecodeVideo("a", 8)], {}),
        ([Named("a", 8)], {"a": LARGE}),
        ([Knowing("a", 8)], {"a": 5}),
        ([RenameFields({"a": "c"}), DecodeVideo("c", 8), DecodeVideo("b", 8)], {"b": LARGE}),
        ([DecodeVideoAndAudio("a", "v", "s", "r", 8, audio_input_field="b")], {"a": LARGE, "b": LARGE}),
        ([DecodeAudio("a", duration=1.0), DecodeAudio("b")], {"a": LARGE}),
        ([DecodeAudio("a", duration=1.0, clip_offset_strategy="loudest")], {}),
        ([*presets.create_standard_text_pipeline("b"), DecodeVideo("a", 8)], {"a": LARGE}),
        ([], {}),
    ],
)
def test_the_first_reader_of_a_column_decides(chain: list[Any], expected: dict[str, int]) -> None:
    assert ranged_columns(chain, ["a", "b"]) == expected


def asks_for_a_part(ranges: Ranges) -> bool:
    file = ranges.file("a", "s3://b/k", "v")
    assert file in (File("s3://b/k", "v"), File("s3://b/k", "v", HEAD, LARGE))
    return file.span is not None


def test_small_objects_are_asked_for_whole_once_that_is_known() -> None:
    ranges = Ranges([DecodeVideo("a", 8)], ["a", "b"])
    assert ranges.file("b", "u", None) == File("u", None)
    for _ in range(8):
        assert asks_for_a_part(ranges)
        ranges.saw("a", 1_000_000)
    assert not asks_for_a_part(ranges)
    assert not ranges.saw("a", LARGE) and not asks_for_a_part(ranges)
    assert ranges.saw("a", LARGE + 1)  # a large one is met after all
    for _ in range(63):
        ranges.saw("a", 1000)
        assert asks_for_a_part(ranges)
    ranges.saw("a", 1000)
    assert not asks_for_a_part(ranges)


def test_with_a_small_cache_every_object_is_asked_for_its_size() -> None:
    ranges = Ranges([DecodeVideo("a", 8)], ["a"], limit=10 * LARGE)
    for _ in range(100):
        assert asks_for_a_part(ranges)
        ranges.saw("a", 1000)


def test_a_size_that_the_index_knows_decides() -> None:
    ranges = Ranges([DecodeVideo("a", 8)], ["a"])
    large, small = f"{LARGE + 1}-1700000000.000000", f"{LARGE}-1700000000.000000"
    assert (size_in(large), size_in(small)) == (LARGE + 1, LARGE)  # the spelling of versions without a tag
    assert ranges.file("a", "u", small) == File("u", small)
    for _ in range(8):
        ranges.saw("a", 1000)
    assert ranges.file("a", "u", large) == File("u", large, HEAD, LARGE)


def test_objects_that_are_needed_whole_after_all_are_asked_for_whole() -> None:
    ranges = Ranges([DecodeVideo("a", 8)], ["a"])
    for number in range(8):
        assert asks_for_a_part(ranges)
        ranges.saw("a", 10 * LARGE)
        ranges.read("a", is_whole=number > 2)
    assert not asks_for_a_part(ranges)


def test_whoever_asks_for_ranges_gets_them() -> None:
    ranges = Ranges([DecodeVideo("a", 8, remote="ranges")], ["a"])
    for _ in range(20):
        ranges.saw("a", 1000)
        ranges.read("a", is_whole=True)
    assert ranges.file("a", "u", None) == File("u", None, HEAD, 0)
