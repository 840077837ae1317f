"""Values: constants that are added, values that are converted, looked up or chosen. No file is opened here.

Comes in: a sample. Goes out: the sample with fields added or replaced. What counts as no value at all (None, NaN, empty
text) is decided in one place, `dummy_reason`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from typing import Any

import torch

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_field, check_fields, require, wrong
from sds.types import Sample

__all__ = ["AddConstantField", "AddFields", "ConvertDType", "FindNonDummyValue", "MapValue", "dummy_reason"]


class AddFields(SampleTransform):
    """Adds the same values to every sample; lists and dicts are copied, so that samples do not share them.

    Args:
        new_fields: {name: value}. A field that is there already is a TransformError.
    """

    def __init__(self, new_fields: Mapping[str, Any]) -> None:
        if not isinstance(new_fields, Mapping):
            raise OptionError(f"new_fields is not a mapping: {new_fields!r}", hint="give {'name': value}")
        check_fields("new_fields", new_fields)
        self.new_fields = dict(new_fields)

    def __call__(self, sample: Sample) -> Sample:
        """Adds the fields."""
        for name, value in self.new_fields.items():
            if name in sample:
                raise wrong(sample, f"field is there already: {name!r}", hint="choose another name, or remove it first")
            sample[name] = copy.deepcopy(value) if isinstance(value, list | dict | set) else value
        return sample


class AddConstantField(AddFields):
    """Adds one field with the same value to every sample.

    Args:
        output_field: its name. A field that is there already is a TransformError.
        value: what it holds; a list or dict is copied for each sample.
    """

    def __init__(self, output_field: str, value: Any) -> None:
        super().__init__({check_field("output_field", output_field): value})
        self.output_field = output_field
        self.value = value


class FindNonDummyValue(SampleTransform):
    """Takes the first of several fields that has a value.

    Args:
        input_fields: looked at in this order; they may be absent.
        output_field: gets the value. None of them having one is a TransformError.
    """

    def __init__(self, input_fields: Collection[str], output_field: str) -> None:
        self.input_fields = check_fields("input_fields", input_fields)
        self.output_field = check_field("output_field", output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Adds the value found."""
        reasons = {}
        for field in self.input_fields:
            reasons[field] = dummy_reason(sample[field]) if field in sample else "absent"
            if not reasons[field]:
                sample[self.output_field] = sample[field]
                return sample
        raise wrong(sample, f"no field has a value: {reasons}", hint="leave such rows out by sql_query")


class MapValue(SampleTransform):
    """Replaces a field's value by what a table says: a dataset's name by its number, for one.

    Args:
        field: holds the value, and gets the result.
        name_to_index_mapping: {value: result}. A value that is not in it is a TransformError.
    """

    def __init__(self, field: str, name_to_index_mapping: Mapping[str, int]) -> None:
        self.field = check_field("field", field)
        if not isinstance(name_to_index_mapping, Mapping):
            raise OptionError(
                f"name_to_index_mapping is not a mapping: {name_to_index_mapping!r}", hint="give {'name': 0}"
            )
        self.name_to_index_mapping = dict(name_to_index_mapping)

    def __call__(self, sample: Sample) -> Sample:
        """Replaces the value."""
        value = require(sample, self.field)
        try:
            sample[self.field] = self.name_to_index_mapping[value]
        except (KeyError, TypeError):  # TypeError: a list or dict, which no table has
            raise wrong(
                sample, f"value is not in the mapping: {self.field!r} is {value!r}", hint="add it to the mapping"
            ) from None
        return sample


class ConvertDType(SampleTransform):
    """Converts a tensor (or array, or number) to a tensor of another dtype.

    Args:
        input_field: holds the tensor.
        output_field: gets the result. Default: the input field.
        output_dtype: a torch.dtype.
    """

    def __init__(
        self, input_field: str, output_field: str | None = None, output_dtype: torch.dtype = torch.float32
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        if not isinstance(output_dtype, torch.dtype):
            raise OptionError(f"output_dtype is not a torch.dtype: {output_dtype!r}", hint="such as torch.float32")
        self.output_dtype = output_dtype

    def __call__(self, sample: Sample) -> Sample:
        """Converts the input field into the output field."""
        value = require(sample, self.input_field)
        try:
            sample[self.output_field] = torch.as_tensor(value).to(self.output_dtype)
        except (TypeError, ValueError, RuntimeError) as error:
            raise wrong(
                sample,
                f"field cannot be a tensor: {self.input_field!r} is {type(value).__name__}",
                hint="convert it before this",
            ) from error
        return sample


def dummy_reason(value: Any) -> str:
    """Why a value counts as none ("None", "empty text", ...); "" if it is one."""
    if value is None:
        return "None"
    if isinstance(value, str | bytes | list | tuple | dict) and not value:
        return "empty text" if isinstance(value, str) else f"an empty {type(value).__name__}"
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, torch.Tensor) and value.is_floating_point() and bool(torch.isnan(value).any()):
        return "a tensor with NaN in it"
    return ""
