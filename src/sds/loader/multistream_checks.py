"""What a mix is asked for, checked: datasets and options -> streams, ratios -> pieces, groups -> numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sds.dataset.options import check_count
from sds.dataset.ordered import check_dataset
from sds.errors import OptionError
from sds.loader.mixing import Mix, Ratios
from sds.loader.multistream_feed import Stream
from sds.loader.multistream_options import StreamOptions, check_ratio, made_options

__all__ = ["check_shares", "checked_ratios", "checked_streams", "numbered_groups", "used_streams"]


def checked_streams(datasets: Any, stream_opts: Any) -> list[Stream]:
    """Each dataset with its options."""
    options = [made_options(each) for each in stream_opts]
    names = [each.name for each in options]
    if not options or len(set(names)) != len(names):
        raise OptionError(f"stream_opts must name each stream once: {names}", hint="give every stream its own name")
    if isinstance(datasets, Mapping):
        missing = [name for name in names if name not in datasets]
        if missing:
            raise OptionError(f"datasets lack a stream: {missing[0]!r}", hint=f"there are {sorted(datasets)}")
        datasets = [datasets[name] for name in names]
    if len(datasets) != len(options):
        hint = "one dataset for each stream, in the same order; or a dict by name"
        raise OptionError(f"datasets and stream_opts differ in number: {len(datasets)}, {len(options)}", hint=hint)
    if sum(each.is_main for each in options) > 1:
        raise OptionError("is_main is given to several streams", hint="one of them is the main one")
    for name, dataset in zip(names, datasets, strict=True):
        check_dataset(dataset)
        if dataset.plan_key.unaligned:
            hint = "a mix deals rows to ranks itself: leave unaligned_worker_index out"
            raise OptionError(f"stream {name!r}: unaligned_worker_index is impossible in a mix", hint=hint)
    return [Stream(dataset, each) for dataset, each in zip(datasets, options, strict=True)]


def numbered_groups(options: Sequence[StreamOptions]) -> tuple[int, ...]:
    """For each stream the number of its group, from 0, in the order in which they come."""
    ids = list(dict.fromkeys(each.mixing_group_id for each in options))
    return tuple(ids.index(each.mixing_group_id) for each in options)


def _check_ratios(ratios: Any, names: Sequence[str]) -> None:
    if not isinstance(ratios, Sequence) or len(ratios) != len(names):
        raise OptionError(f"ratios are not one for each stream: {ratios!r}", hint=f"the streams are {list(names)}")
    for name, ratio in zip(names, ratios, strict=True):
        check_ratio(ratio, name)
    if not any(ratios):
        raise OptionError("ratios are all 0", hint="give at least one stream a ratio above 0")


@dataclass(frozen=True)
class _Function:
    """Ratios as a function of the step, each of whose answers is checked."""

    given: Callable[[int], Sequence[float]]
    names: tuple[str, ...]

    def __call__(self, step: int) -> Sequence[float]:
        ratios = self.given(step)
        try:
            _check_ratios(ratios, self.names)
        except OptionError as error:
            raise OptionError(f"at step {step}: {error.message}", hint=error.hint) from None
        return ratios


def checked_ratios(given: Ratios | None, options: Sequence[StreamOptions], precision: int) -> Ratios:
    """The ratios of a mix: a function of the step, or [(step, ratios), ...]."""
    names = [each.name for each in options]
    if given is None:
        given = [each.ratio for each in options]
    if callable(given):
        function = _Function(given, tuple(names))
        function(0)
        return function
    pieces: Any = list(given)
    if pieces and not isinstance(pieces[0], tuple | list):
        pieces = [(0, pieces)]
    steps = [each[0] if isinstance(each, tuple | list) and len(each) == 2 else None for each in pieces]
    if not pieces or steps[0] != 0 or any(a is None or b is None or a >= b for a, b in itertools.pairwise(steps)):
        hint = "[(0, [0.9, 0.1]), (10_000, [0.5, 0.5])]: the first from step 0 on, steps that grow"
        raise OptionError(f"ratios are no list of (step, ratios): {given!r}", hint=hint)
    for step, ratios in pieces:
        check_count("ratios", step, minimum=0)
        _check_ratios(ratios, names)
        for name, ratio in zip(names, ratios, strict=True):
            if ratio and not round(ratio * 10**precision):
                hint = "raise counts_precision, or give it 0"
                raise OptionError(f"ratio of stream {name!r} is 0 in {precision} decimals: {ratio}", hint=hint)
    return [(step, tuple(ratios)) for step, ratios in pieces]


def used_streams(mix: Mix) -> list[bool]:
    """Which streams ever have a share."""
    if callable(mix.ratios):
        return [True] * len(mix.groups)
    return [any(ratios) for ratios in zip(*(ratios for _, ratios in mix.pieces), strict=True)]


def check_shares(mix: Mix, stop: str, names: Sequence[str]) -> None:
    """Every phase has a schedule; and no stream keeps a pass of 'all' from ending, since it never comes again."""
    if callable(mix.ratios):
        return
    for step, _ in mix.pieces:
        mix.schedule(step)
    step, last = mix.pieces[-1]
    never = [name for name, ratio, used in zip(names, last, used_streams(mix), strict=True) if used and not ratio]
    if never and stop == "all":
        raise OptionError(
            f"stop='all' never comes: stream {never[0]!r} has no share from step {step} on",
            hint="stop='first' or 'never', or leave it a share",
        )
