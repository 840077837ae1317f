"""Which columns are fetched in parts: who comes first in the chain, and what was seen of the objects."""

from __future__ import annotations

from typing import Any

import pytest

from sds.dataset.ranges import Ranges, ranged_columns
from sds.fetch import HEAD, File
from sds.transforms import DecodeAudio, DecodeVideo, DecodeVideoAndAudio, RenameFields, presets

LARGE = 16 * 2**20


def mine(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ([DecodeVideo("a", 8, "video")], {"a": LARGE}),
        ([DecodeVideo("a", 8, "video"), DecodeVideo("b", 8)], {"a": LARGE, "b": LARGE}),
        ([DecodeVideo("a", 8, remote="ranges")], {"a": 0}),
        ([DecodeVideo("a", 8, remote="whole")], {}),
        ([DecodeVideo("a", 8, "video"), mine, DecodeVideo("b", 8)], {"a": LARGE}),
        ([mine, DecodeVideo("a", 8)], {}),
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
    for _ in range(8):  # large ones are met again
        ranges.saw("a", 10 * LARGE)
    assert asks_for_a_part(ranges)


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
