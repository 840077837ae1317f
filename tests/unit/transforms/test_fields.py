"""Transforms of fields and values."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sds.errors import OptionError, TransformError
from sds.transforms import (
    AddConstantField,
    AddFields,
    ConvertDType,
    EnsureFields,
    FilterFields,
    FindNonDummyValue,
    GatherFields,
    Identity,
    MapValue,
    MergeDictField,
    RenameFields,
)


def test_identity() -> None:
    sample = {"a": 1}
    assert Identity()(sample) is sample


def test_ensure_fields_names_what_is_missing_and_what_there_is() -> None:
    ensure = EnsureFields(fields_whitelist=["image", "id"])
    sample = {"image": 1, "id": 2, "__epoch__": 0}
    assert ensure(sample) is sample
    with pytest.raises(TransformError, match=r"'image'.*\['__sample_key__', 'id'\]") as caught:
        ensure({"id": 2, "__sample_key__": "k"})
    assert caught.value.key == "k" and caught.value.stage == "transform"


def test_ensure_fields_drops_all_others() -> None:
    ensure = EnsureFields(["id", "image"], drop_others=True)
    assert ensure({"image": 1, "x": 0, "id": 2, "__epoch__": 0, "__random_seed__": 3}) == {"id": 2, "image": 1}


@pytest.mark.parametrize(
    "value", [None, "", [], {}, (), b"", float("nan"), np.float64("nan"), torch.tensor([0.0, float("nan")])]
)
def test_ensure_fields_refuses_dummy_values_when_asked(value) -> None:
    EnsureFields(["x"])({"x": value})
    with pytest.raises(TransformError, match="no value: 'x'"):
        EnsureFields(["x"], check_dummy_values=True)({"x": value})


@pytest.mark.parametrize("value", [0, False, 0.0, "a", [None], torch.zeros(0), torch.zeros(2, dtype=torch.uint8)])
def test_values_that_are_no_dummies(value) -> None:
    EnsureFields(["x"], check_dummy_values=True)({"x": value})


def test_ensure_fields_checks_types() -> None:
    ensure = EnsureFields({"x": int, "y": None}, drop_others=True)
    assert ensure({"x": 1, "y": "any", "z": 0}) == {"x": 1, "y": "any"}
    with pytest.raises(TransformError, match="'x' is str, not int"):
        ensure({"x": "1", "y": 0})


@pytest.mark.parametrize("names", ["image", [], [""], [3], None, 5])
def test_lists_of_fields_are_checked(names) -> None:
    with pytest.raises(OptionError, match="fields_whitelist"):
        EnsureFields(names)


def test_filter_fields() -> None:
    sample = {"a": 1, "b": 2, "c": 3}
    assert FilterFields(fields_to_keep=["a", "z"])(dict(sample)) == {"a": 1}
    assert FilterFields(fields_to_remove=["a", "z"])(dict(sample)) == {"b": 2, "c": 3}
    assert FilterFields(["a", "b"], ["b"])(dict(sample)) == {"a": 1}
    with pytest.raises(OptionError, match="fields_to_keep"):
        FilterFields()
    with pytest.raises(OptionError, match="fields_to_remove"):
        FilterFields(fields_to_remove="a")


def test_rename_fields() -> None:
    assert RenameFields({"a": "b", "b": "a"})({"a": 1, "b": 2, "c": 3}) == {"a": 2, "b": 1, "c": 3}
    assert RenameFields({"a": "c"})({"a": 1, "c": 3}) == {"c": 1}
    assert RenameFields({"x": "y"}, strict=False)({"a": 1}) == {"a": 1}
    with pytest.raises(TransformError, match="'x'"):
        RenameFields({"x": "y"})({"a": 1})
    for bad in ({}, {"a": ""}, {"a": "c", "b": "c"}, ["a"]):
        with pytest.raises(OptionError, match="old_to_new_mapping"):
            RenameFields(bad)


def test_added_fields_are_not_shared_between_samples() -> None:
    for add in (AddConstantField("x", [1]), AddFields({"x": [1]})):
        first, second = add({}), add({})
        first["x"].append(2)
        assert second["x"] == [1] and add({})["x"] == [1]
        with pytest.raises(TransformError, match="'x'"):
            add({"x": 0})
    for bad in ({}, ["x"], {"": 1}):
        with pytest.raises(OptionError, match="new_fields"):
            AddFields(bad)
    with pytest.raises(OptionError, match="output_field"):
        AddConstantField("", 1)


def test_gather_fields() -> None:
    sample = {"h": 4, "w": 5, "name": "n"}
    assert GatherFields(["h", "w"], "size")(dict(sample))["size"] == {"h": 4, "w": 5}
    assert GatherFields(["w", "h"], "size", list)(dict(sample))["size"] == [5, 4]
    assert GatherFields(["h", "w"], "size", torch.Tensor)(dict(sample))["size"].tolist() == [4, 5]
    with pytest.raises(TransformError, match="numbers"):
        GatherFields(["h", "name"], "x", torch.Tensor)(dict(sample))
    with pytest.raises(TransformError, match="'z'"):
        GatherFields(["z"], "x")(dict(sample))
    with pytest.raises(OptionError, match="output_type"):
        GatherFields(["h"], "x", tuple)


def test_merge_dict_field() -> None:
    sample = {"meta": {"a": 1, "b": 2}, "b": 0}
    assert MergeDictField("meta", skip_if_exists=True, cleanup=True)(dict(sample)) == {"a": 1, "b": 0}
    assert MergeDictField("meta", overwrite=True, cleanup=True)(dict(sample)) == {"a": 1, "b": 2}
    assert MergeDictField("meta", overwrite=True)({"meta": {"a": 1}}) == {"meta": {"a": 1}, "a": 1}
    assert MergeDictField("meta", cleanup=True)({"meta": {"meta": 1}}) == {"meta": 1}
    with pytest.raises(TransformError, match=r"\['b'\]"):
        MergeDictField("meta")(dict(sample))
    with pytest.raises(TransformError, match="not a dict"):
        MergeDictField("b")(dict(sample))
    with pytest.raises(OptionError, match="overwrite"):
        MergeDictField("meta", True, True)


def test_find_non_dummy_value() -> None:
    find = FindNonDummyValue(["a", "b", "c"], "caption")
    assert find({"a": "", "c": "yes"})["caption"] == "yes"
    with pytest.raises(TransformError, match="absent"):
        find({"a": "", "b": None})


def test_map_value() -> None:
    look = MapValue("source", {"coco": 0, "laion": 1})
    assert look({"source": "laion"}) == {"source": 1}
    for value in ("other", ["coco"]):
        with pytest.raises(TransformError, match="'source'"):
            look({"source": value})
    with pytest.raises(OptionError, match="name_to_index_mapping"):
        MapValue("source", ["coco"])


def test_convert_dtype() -> None:
    assert ConvertDType("x")({"x": torch.arange(3)})["x"].dtype == torch.float32
    sample = ConvertDType("x", "y", torch.int64)({"x": np.array([1.7, 2.0])})
    assert sample["y"].tolist() == [1, 2] and sample["y"].dtype == torch.int64
    with pytest.raises(TransformError, match="'x' is str"):
        ConvertDType("x")({"x": "text"})
    with pytest.raises(OptionError, match="output_dtype"):
        ConvertDType("x", output_dtype="float32")
