"""StreamOptions: a stream's name, its share of a mix, its batches. And what follows from them for a number of ranks.

`batch_size` is what one turn of the stream takes, over all ranks and all its rounds of gradient accumulation;
`batch_gpu` is one rank's share of one round: batch_size == batch_gpu * ranks * num_accum_rounds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sds.dataset.keywords import check_keywords, guess
from sds.dataset.options import check_choice, check_count, check_flag
from sds.errors import OptionError
from sds.loader.collate import check_collate
from sds.types import Sample

__all__ = ["StreamOptions"]

_STRATEGIES = ("no_mixing", "mix_all", "custom")


@check_keywords
@dataclass(frozen=True)
class StreamOptions:
    """One stream of a mix.

    Args:
        name: batches carry it, errors and states name it.
        ratio: its share of the turns, relative to the others; 0 leaves it out.
        mixing_group_id: streams of one group are dealt to the ranks of a step, each rank its own; a stream that is
            alone in its group is taken by all ranks together.
        batch_size: samples of one turn, over all ranks and rounds.
        batch_gpu: samples per rank and round. Without both: 1.
        num_accum_rounds: batches that come in a row in one turn, for gradient accumulation; follows from batch_size and
            batch_gpu where both are given.
        is_main: the stream that `loader.main_stream` names. Default: the one with the largest ratio.
        collate_fn: samples -> dict. Default: the loader's.
    """

    name: str
    ratio: float
    mixing_group_id: int = 0
    batch_size: int | None = None
    batch_gpu: int | None = None
    num_accum_rounds: int = 1
    is_main: bool = False
    collate_fn: Callable[[list[Sample]], Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise OptionError(f"name is no name of a stream: {self.name!r}", hint="a word, such as 'videos'")
        check_ratio(self.ratio, self.name)
        for keyword in ("batch_size", "batch_gpu"):
            if getattr(self, keyword) is not None:
                check_count(keyword, getattr(self, keyword), minimum=1)
        check_count("num_accum_rounds", self.num_accum_rounds, minimum=1)
        check_count("mixing_group_id", self.mixing_group_id, minimum=0)
        check_flag("is_main", self.is_main)
        check_collate(self.collate_fn)

    def batches(self, num_ranks: int) -> tuple[int, int]:
        """(samples per rank and round, rounds) for a number of data-parallel ranks."""
        rounds = self.num_accum_rounds
        if self.batch_size is None:
            return self.batch_gpu or 1, rounds
        if self.batch_gpu is not None and rounds == 1:
            rounds = max(1, self.batch_size // (self.batch_gpu * num_ranks))
        batch_gpu = self.batch_gpu or self.batch_size // (num_ranks * rounds)
        if batch_gpu * num_ranks * rounds != self.batch_size:
            raise OptionError(
                f"stream {self.name!r}: batch_size={self.batch_size} is not batch_gpu * ranks * num_accum_rounds: "
                f"{batch_gpu or 'a part'} * {num_ranks} * {rounds}",
                hint="choose a batch_size that ranks and rounds divide; or give batch_gpu, and leave batch_size out",
            )
        return batch_gpu, rounds

    @staticmethod
    def init_group(
        configs: Sequence[Mapping[str, Any] | StreamOptions],
        mixing_strategy: str = "no_mixing",
        drop_unused: bool = False,
    ) -> list[StreamOptions]:
        """The options of all streams of a mix, from dicts.

        Args:
            configs: the fields of each; a missing name is made up, ratios that are missing everywhere are equal.
            mixing_strategy: 'no_mixing': all ranks take the same stream at a step; 'mix_all': each rank its own, of
                all; 'custom': each rank its own, of those with the same mixing_group_id.
            drop_unused: leave streams with a ratio of 0 out of the list.
        """
        check_choice("mixing_strategy", mixing_strategy, _STRATEGIES)
        given = [dataclasses.asdict(each) if isinstance(each, StreamOptions) else dict(each) for each in configs]
        with_ratio = [each.get("ratio") is not None for each in given]
        if any(with_ratio) and not all(with_ratio):
            hint = "give all streams a ratio, or none of them"
            raise OptionError(f"ratio is missing for some streams: number {with_ratio.index(False)}", hint=hint)
        made = []
        for number, each in enumerate(given):
            each.setdefault("name", f"stream_{number:03d}")
            each["ratio"] = each["ratio"] if with_ratio[number] else 1 / len(given)
            if mixing_strategy != "custom":
                each["mixing_group_id"] = number if mixing_strategy == "no_mixing" else 0
            elif each.get("mixing_group_id") is None:
                hint = "mixing_strategy='custom' needs one for every stream"
                raise OptionError(f"mixing_group_id is missing: stream {each['name']!r}", hint=hint)
            made.append(made_options(each))
        return [each for each in made if each.ratio > 0 or not drop_unused]


def made_options(given: Mapping[str, Any] | StreamOptions) -> StreamOptions:
    """Options from a dict of them."""
    if isinstance(given, StreamOptions):
        return given
    known = [field.name for field in dataclasses.fields(StreamOptions)]
    if not isinstance(given, Mapping):
        raise OptionError(f"stream_opts has an entry that is no StreamOptions: {given!r}", hint="StreamOptions(...)")
    unknown = [key for key in given if key not in known]
    if unknown:
        raise OptionError(f"stream options have an unknown entry: {unknown[0]!r}", hint=guess(str(unknown[0]), known))
    missing = [key for key in ("name", "ratio") if key not in given]
    if missing:
        raise OptionError(f"stream options lack an entry: {missing[0]!r}", hint="every stream has a name and a ratio")
    return StreamOptions(**given)


def check_ratio(ratio: Any, name: str) -> None:
    """A number of at least 0, or an OptionError that names the stream."""
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio < math.inf:
        raise OptionError(f"ratio is no share: {ratio!r}, of stream {name!r}", hint="a number of at least 0")
