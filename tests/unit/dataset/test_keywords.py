"""Misspelt keywords are OptionErrors that name what was meant; signatures stay what they were."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import sds
from sds.dataset.keywords import check_keywords
from sds.errors import OptionError


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: sds.StreamingDataset("x.csv", cachelimit="1gb"), "cache_limit"),
        (lambda: sds.StreamingDataset("x.csv", column_to_download=["a"]), "columns_to_download"),
        (lambda: sds.StreamingDataLoader(None, bach_size=4), "batch_size"),
        (lambda: sds.MultiStreamDataLoader([], [], schedul="round_robin"), "schedule"),
        (lambda: sds.StreamOptions("photos", 1.0, batch_gpus=4), "batch_gpu"),
        (lambda: sds.DevicePrefetcher([], dept=3), "depth"),
        (lambda: sds.DevicePrefetcher([], prefetch_factor=3, device="cpu"), "depth"),
        (lambda: sds.interleave([], ratio=[1.0]), "ratios"),
        (lambda: sds.interleave([], probabilities=[1.0]), "ratios"),
        (lambda: sds.interleave([], stopping_strategy="all_exhausted"), "stop"),
        (lambda: sds.concatenate([], seed=3), "shuffle_seed"),
        (lambda: sds.StreamingDataset(urls="x.tar"), "src"),
        (lambda: sds.StreamingDataset("x.csv", local="cache"), "dst"),
        (lambda: sds.StreamingDataLoader(None, 4, prefetch_factor=3), "prefetch_batches"),
        (lambda: sds.StreamOptions.init_group([{"name": "photos", "ration": 1.0}]), "ratio"),
    ],
)
def test_a_misspelt_keyword_names_the_one_that_was_meant(make: Callable[[], Any], meant: str) -> None:
    with pytest.raises(OptionError) as caught:
        make()
    assert caught.value.hint == f"did you mean `{meant}`?"


def test_a_keyword_that_resembles_none_is_answered_with_all_of_them() -> None:
    with pytest.raises(OptionError, match="StreamOptions has no such keyword: 'zzz'") as caught:
        sds.StreamOptions("photos", 1.0, zzz=3)
    assert caught.value.hint is not None and "num_accum_rounds" in caught.value.hint


@check_keywords
class Kept:
    """A class with a constructor."""

    def __init__(self, first: int, *, second: int = 2) -> None:
        """Words."""
        self.sum = first + second


class Heir(Kept):
    """A class of a user's."""

    def __init__(self, first: int, third: int, **others: int) -> None:
        super().__init__(first, **others)
        self.sum += third


def test_signature_and_words_stay() -> None:
    assert list(inspect.signature(Kept).parameters) == ["first", "second"]
    assert Kept.__init__.__doc__ == "Words."
    assert "cache_limit" in inspect.signature(sds.StreamingDataset).parameters
    assert list(inspect.signature(sds.interleave).parameters)[:2] == ["datasets", "ratios"]
    assert (sds.interleave.__doc__ or "").startswith("Mixes datasets")


def test_what_is_missing_is_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="first"):
        Kept()  # type: ignore[call-arg]


def test_subclasses_may_have_keywords_of_their_own() -> None:
    assert Heir(1, third=4, second=3).sum == 8
    with pytest.raises(OptionError, match="Kept has no such keyword: 'secnd'"):
        Heir(1, third=4, secnd=3)
