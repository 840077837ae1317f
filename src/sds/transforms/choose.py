"""One of several fields, drawn by weight: after loading, or before anything is fetched.

Comes in: a sample with several captions, embeddings or renditions. Goes out: the sample with one of them under a name
of its own. Among a dataset's pre_download_transforms, only the file that was chosen is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_field, check_fields, check_weights, rng, wrong
from sds.transforms.values import dummy_reason
from sds.types import Sample

__all__ = ["ChooseField", "draw_field", "missing_fields"]


class ChooseField(SampleTransform):
    """Takes one of several fields, by weight, the same one for the same seed, epoch and sample.

        StreamingDataset(src, columns_to_download=["emb_short", "emb_long"], transforms=[LoadTensors("emb")],
                         pre_download_transforms=[ChooseField(["emb_short", "emb_long"], "emb", probs=[0.2, 0.8])])

    Two of them draw the same number, so fields that belong together are chosen together if their weights are the same
    and none is missing; `companions` keeps them together in any case.

    Args:
        fields: what to choose from. One that is absent, None or empty is never chosen; all being so is a
            TransformError.
        output_field: gets the value; it may be one of the fields.
        probs: one weight for each; they need not sum to 1. None: all alike.
        companions: {output field: fields}: what is taken along, from the same place in its list.
        choice_field: gets the name of the field that was chosen.
        cleanup: remove the fields that were chosen from; False before a download means that all are fetched.
    """

    def __init__(
        self,
        fields: Sequence[str],
        output_field: str,
        probs: Sequence[float] | None = None,
        *,
        companions: Mapping[str, Sequence[str]] | None = None,
        choice_field: str | None = None,
        cleanup: bool = True,
    ) -> None:
        self.fields = check_fields("fields", fields)
        self.output_field = check_field("output_field", output_field)
        self.probs = None if probs is None else check_weights("probs", probs, len(self.fields))
        self.companions = None if companions is None else _check_companions(companions, len(self.fields))
        self.choice_field = None if choice_field is None else check_field("choice_field", choice_field)
        self.cleanup = bool(cleanup)

    def __call__(self, sample: Sample) -> Sample:
        """Adds the value chosen, and removes the others."""
        chosen = draw_field(sample, self.fields, self.probs or (1.0,) * len(self.fields))
        lists = {self.output_field: self.fields, **(self.companions or {})}
        values = {output: sample.get(names[chosen]) for output, names in lists.items()}
        if self.choice_field is not None:
            values[self.choice_field] = self.fields[chosen]
        if self.cleanup:
            for name in (name for names in lists.values() for name in names):
                sample.pop(name, None)
        sample.update(values)
        return sample


def missing_fields(sample: Sample, fields: Sequence[str]) -> dict[str, str]:
    """The fields that have no value, and why."""
    reasons = {field: dummy_reason(sample[field]) if field in sample else "absent" for field in fields}
    return {field: reason for field, reason in reasons.items() if reason}


def draw_field(sample: Sample, fields: Sequence[str], weights: Sequence[float]) -> int:
    """The place of one of the fields that have a value, drawn by weight."""
    missing = missing_fields(sample, fields)
    shares = np.array([0.0 if field in missing else weight for field, weight in zip(fields, weights, strict=True)])
    if not shares.sum() > 0:
        raise wrong(sample, f"no field has a value and a weight: {missing}", hint="leave such rows out by sql_query")
    return int(rng(sample, "choose").choice(len(shares), p=shares / shares.sum()))


def _check_companions(companions: Mapping[str, Sequence[str]], num: int) -> dict[str, tuple[str, ...]]:
    hint = "give {'caption': ['caption_short', 'caption_long']}, as many as there are fields"
    if not isinstance(companions, Mapping):
        raise OptionError(f"companions is not a mapping: {companions!r}", hint=hint)
    checked = {check_field("companions", name): check_fields("companions", names) for name, names in companions.items()}
    if any(len(names) != num for names in checked.values()):
        raise OptionError(f"companions are not {num} fields each: {companions!r}", hint=hint)
    return checked
