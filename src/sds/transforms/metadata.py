"""Metadata and labels: JSON files -> dicts, parts of them -> fields, class names and numbers -> what a loss takes.

Comes in: a path or bytes of JSON, or fields that an index has. Goes out: plain values; a class as an int, or one-hot as
float32 [num_classes]. JSON is data: it names no types and runs nothing.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_field, check_int, decode_error, require, wrong
from sds.transforms.source import read_bytes
from sds.types import Sample
from sds.units import parse_bytes

__all__ = ["ClassNameToID", "ExtractSubfield", "LoadJson", "OneHotEncode"]


class LoadJson(SampleTransform):
    """Parses a JSON file (path or bytes): an object becomes a dict.

    Args:
        input_field: holds the path or the bytes.
        output_field: gets the value. Default: the input field.
        max_bytes: the largest file to read, as a number or as text such as '64mb'.

    Raises:
        DecodeError: the file is absent, too large, or not JSON in UTF-8.
    """

    stage = "decode"

    def __init__(self, input_field: str, output_field: str | None = None, *, max_bytes: str | int = "64mb") -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.max_bytes = max_bytes
        self._limit = parse_bytes(max_bytes, option="max_bytes")

    def __call__(self, sample: Sample) -> Sample:
        """Parses the input field into the output field."""
        data, path = read_bytes(sample, self.input_field, "JSON", self._limit)
        try:
            sample[self.output_field] = json.loads(data.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, a number too long, brackets too deep
            raise decode_error(sample, "JSON", error, field=self.input_field, path=path) from error
        return sample


class ExtractSubfield(SampleTransform):
    """Lifts one entry of a dict field into the sample.

    Args:
        metadata_subfield: the entry; dots lead into dicts inside, as in 'camera.lens', unless there is an entry of
            that very name.
        output_field: gets its value. A field that is there already is a TransformError.
        metadata_field: holds the dict.
    """

    def __init__(self, metadata_subfield: str, output_field: str, metadata_field: str = "meta") -> None:
        self.metadata_subfield = check_field("metadata_subfield", metadata_subfield)
        self.output_field = check_field("output_field", output_field)
        self.metadata_field = check_field("metadata_field", metadata_field)

    def __call__(self, sample: Sample) -> Sample:
        """Adds the entry's value."""
        value = require(sample, self.metadata_field)
        if self.output_field in sample:
            raise wrong(sample, f"field is there already: {self.output_field!r}", hint="choose another name")
        names = [self.metadata_subfield]
        if isinstance(value, Mapping) and self.metadata_subfield not in value:
            names = self.metadata_subfield.split(".")
        for name in names:
            if not isinstance(value, Mapping) or name not in value:
                found = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
                raise wrong(
                    sample,
                    f"entry is missing: {self.metadata_subfield!r} in {self.metadata_field!r} ({name!r} in {found})",
                    hint="check the names in the metadata files",
                )
            value = value[name]
        sample[self.output_field] = value
        return sample


class OneHotEncode(SampleTransform):
    """Turns a class number into a float32 tensor [num_classes] of zeros and a one.

    Args:
        input_field: holds the number, from 0 to num_classes - 1.
        num_classes: how many classes there are.
        output_field: gets the tensor. Default: the input field.
    """

    def __init__(self, input_field: str, num_classes: int, output_field: str | None = None) -> None:
        self.input_field = check_field("input_field", input_field)
        self.num_classes = check_int("num_classes", num_classes)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Encodes the input field into the output field."""
        value = require(sample, self.input_field)
        try:
            number = -1 if isinstance(value, bool) else operator.index(value)
        except (TypeError, ValueError):
            number = -1
        if not 0 <= number < self.num_classes:
            raise wrong(
                sample,
                f"field is no class of {self.num_classes}: {self.input_field!r} is {value!r}",
                hint="classes are whole numbers from 0; ClassNameToID makes them of names",
            )
        encoded = torch.zeros(self.num_classes)  # [num_classes]
        encoded[number] = 1.0
        sample[self.output_field] = encoded
        return sample


class ClassNameToID(SampleTransform):
    """Looks a class name up.

    Args:
        input_field: holds the name.
        class_name_to_id_mapping: {name: number}, or a function from name to number. A name that is not in it (or for
            which the function gives -1) is a TransformError.
        output_field: gets the number. Default: the input field.
    """

    def __init__(
        self,
        input_field: str,
        class_name_to_id_mapping: Mapping[str, int] | Callable[[Any], int],
        output_field: str | None = None,
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        if not isinstance(class_name_to_id_mapping, Mapping) and not callable(class_name_to_id_mapping):
            raise OptionError(
                f"class_name_to_id_mapping is neither a mapping nor a function: {class_name_to_id_mapping!r}",
                hint="give {'cat': 0, 'dog': 1}",
            )
        self.class_name_to_id_mapping = class_name_to_id_mapping
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Looks the input field up into the output field."""
        name, mapping = require(sample, self.input_field), self.class_name_to_id_mapping
        try:
            number = mapping[name] if isinstance(mapping, Mapping) else mapping(name)
        except (KeyError, TypeError):  # TypeError: a list or dict, which no table has
            number = -1
        if number == -1:
            raise wrong(
                sample, f"class is not in the mapping: {self.input_field!r} is {name!r}", hint="add it to the mapping"
            )
        sample[self.output_field] = number
        return sample
