"""Fields: which ones a sample has, what they are called, how they are grouped. No file is opened here.

Comes in: a sample. Goes out: the same values under other names, fewer of them, or gathered. A field that must be there
and is not is a TransformError that names it and the fields there are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_field, check_fields, require, wrong
from sds.transforms.values import dummy_reason
from sds.types import Sample

__all__ = ["EnsureFields", "FilterFields", "GatherFields", "Identity", "MergeDictField", "RenameFields"]


class Identity(SampleTransform):
    """Gives back what it gets."""

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample itself."""
        return sample


class EnsureFields(SampleTransform):
    """Checks that fields are there, and may drop all others.

    Args:
        fields_whitelist: the fields that must be there; a mapping also says of which type each must be (None: any).
        check_dummy_values: also refuse None, NaN, and empty text, lists and dicts.
        drop_others: leave only the listed fields, in that order: bookkeeping such as `__sample_key__` goes too.
    """

    def __init__(
        self,
        fields_whitelist: Collection[str] | Mapping[str, type | None],
        check_dummy_values: bool = False,
        drop_others: bool = False,
    ) -> None:
        names = check_fields("fields_whitelist", fields_whitelist)
        self.fields_whitelist = dict(fields_whitelist) if isinstance(fields_whitelist, Mapping) else names
        self.check_dummy_values = bool(check_dummy_values)
        self.drop_others = bool(drop_others)

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample, or a smaller one."""
        for field in self.fields_whitelist:
            value = require(sample, field)
            if self.check_dummy_values and (reason := dummy_reason(value)):
                raise wrong(
                    sample, f"field has no value: {field!r} is {reason}", hint="leave such rows out by sql_query"
                )
            expected = self.fields_whitelist[field] if isinstance(self.fields_whitelist, dict) else None
            if expected is not None and not isinstance(value, expected):
                raise wrong(
                    sample,
                    f"field has another type: {field!r} is {type(value).__name__}, not {expected.__name__}",
                    hint="convert it before this",
                )
        return {field: sample[field] for field in self.fields_whitelist} if self.drop_others else sample


class FilterFields(SampleTransform):
    """Removes fields; those that are not there are no error.

    Args:
        fields_to_keep: all others are removed. None: no such list.
        fields_to_remove: these are removed.
    """

    def __init__(
        self, fields_to_keep: Collection[str] | None = None, fields_to_remove: Collection[str] | None = None
    ) -> None:
        if fields_to_keep is None and fields_to_remove is None:
            raise OptionError("fields_to_keep and fields_to_remove are both None", hint="give one of them")
        keep, remove = fields_to_keep, fields_to_remove
        self.fields_to_keep = None if keep is None else check_fields("fields_to_keep", keep, allow_empty=True)
        self.fields_to_remove = None if remove is None else check_fields("fields_to_remove", remove, allow_empty=True)

    def __call__(self, sample: Sample) -> Sample:
        """Returns a smaller sample."""
        keep, remove = self.fields_to_keep, self.fields_to_remove or ()
        return {name: v for name, v in sample.items() if (keep is None or name in keep) and name not in remove}


class RenameFields(SampleTransform):
    """Renames fields, all at once: {'a': 'b', 'b': 'a'} swaps two.

    Args:
        old_to_new_mapping: {old name: new name}. A field already there under a new name is replaced.
        strict: False passes over fields that are not there.
    """

    def __init__(self, old_to_new_mapping: Mapping[str, str], strict: bool = True) -> None:
        if not isinstance(old_to_new_mapping, Mapping):
            raise OptionError(
                f"old_to_new_mapping is not a mapping: {old_to_new_mapping!r}", hint="give {'old': 'new'}"
            )
        old = check_fields("old_to_new_mapping", old_to_new_mapping)
        new = check_fields("old_to_new_mapping", list(old_to_new_mapping.values()))
        if len(set(new)) < len(new):
            raise OptionError(f"old_to_new_mapping gives one name twice: {new}", hint="let the new names differ")
        self.old_to_new_mapping = dict(zip(old, new, strict=True))
        self.strict = bool(strict)

    def __call__(self, sample: Sample) -> Sample:
        """Returns the sample with other names."""
        values = {
            new: require(sample, old) for old, new in self.old_to_new_mapping.items() if self.strict or old in sample
        }
        for old in self.old_to_new_mapping:
            sample.pop(old, None)
        sample.update(values)
        return sample


class GatherFields(SampleTransform):
    """Puts several fields together into one, and leaves them where they are.

    Args:
        input_fields: the fields to gather.
        output_field: gets them.
        output_type: dict ({name: value}), list, or torch.Tensor (of numbers).
    """

    def __init__(self, input_fields: Collection[str], output_field: str, output_type: type = dict) -> None:
        self.input_fields = check_fields("input_fields", input_fields)
        self.output_field = check_field("output_field", output_field)
        if output_type not in (dict, list, torch.Tensor):
            raise OptionError(f"output_type is unknown: {output_type!r}", hint="choose dict, list or torch.Tensor")
        self.output_type = output_type

    def __call__(self, sample: Sample) -> Sample:
        """Adds the gathered field."""
        values = {field: require(sample, field) for field in self.input_fields}
        if self.output_type is torch.Tensor:
            try:
                sample[self.output_field] = torch.as_tensor(list(values.values()))
            except (TypeError, ValueError, RuntimeError) as error:
                types = {field: type(value).__name__ for field, value in values.items()}
                raise wrong(sample, f"fields are not numbers: {types}", hint="gather them as a dict") from error
        else:
            sample[self.output_field] = values if self.output_type is dict else list(values.values())
        return sample


class MergeDictField(SampleTransform):
    """Lifts the entries of a dict field into the sample.

    Args:
        input_field: holds the dict.
        skip_if_exists: leave a field that is there already as it is.
        overwrite: replace it. With neither, it is a TransformError.
        cleanup: remove the dict field afterwards.
    """

    def __init__(
        self, input_field: str, skip_if_exists: bool = False, overwrite: bool = False, cleanup: bool = False
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        if skip_if_exists and overwrite:
            raise OptionError("skip_if_exists and overwrite are both True", hint="choose one of them")
        self.skip_if_exists = bool(skip_if_exists)
        self.overwrite = bool(overwrite)
        self.cleanup = bool(cleanup)

    def __call__(self, sample: Sample) -> Sample:
        """Adds the dict's entries."""
        entries = require(sample, self.input_field)
        if not isinstance(entries, Mapping):
            raise wrong(
                sample,
                f"field is not a dict: {self.input_field!r} is {type(entries).__name__}",
                hint="load or parse it before this",
            )
        taken = [name for name in entries if name in sample and name != self.input_field]
        if taken and not (self.skip_if_exists or self.overwrite):
            raise wrong(sample, f"fields are there already: {taken}", hint="set skip_if_exists or overwrite")
        if self.cleanup:
            del sample[self.input_field]
        sample.update({n: v for n, v in entries.items() if n not in sample or self.overwrite})
        return sample
