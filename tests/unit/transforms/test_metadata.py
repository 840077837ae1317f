"""Metadata and labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sds.errors import DecodeError, OptionError, TransformError
from sds.transforms import ClassNameToID, ExtractSubfield, LoadJson, OneHotEncode, presets


def test_json_from_path_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    path.write_bytes(b'\xef\xbb\xbf{"label": 3, "tags": ["a"], "name": "\xc3\xa9"}')
    for value in (path, str(path), path.read_bytes()):
        assert LoadJson("file", "meta")({"file": value})["meta"] == {"label": 3, "tags": ["a"], "name": "é"}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{'a': 1}", b'{"a": \xff}', b"[" * 200_000, b"1" * 10_000, b'{"a": 1} more']
)
def test_what_is_no_json_is_a_decode_error(data) -> None:
    with pytest.raises(DecodeError, match="JSON") as caught:
        LoadJson("file")({"file": data, "__sample_key__": "k"})
    assert (caught.value.key, caught.value.stage) == ("k", "decode")


def test_large_files_are_refused() -> None:
    with pytest.raises(DecodeError, match="max_bytes"):
        LoadJson("file", max_bytes=3)({"file": b'{"a": 1}'})


def test_extract_subfield() -> None:
    sample = {"meta": {"label": 3, "camera": {"lens": "50mm"}, "a.b": 1}}
    assert ExtractSubfield("label", "y")(dict(sample))["y"] == 3
    assert ExtractSubfield("camera.lens", "lens")(dict(sample))["lens"] == "50mm"
    assert ExtractSubfield("a.b", "x")(dict(sample))["x"] == 1
    for name in ("other", "camera.body", "label.x"):
        with pytest.raises(TransformError, match="entry is missing"):
            ExtractSubfield(name, "x")(dict(sample))
    with pytest.raises(TransformError, match="already"):
        ExtractSubfield("label", "meta")(dict(sample))
    with pytest.raises(TransformError, match="entry is missing"):
        ExtractSubfield("label", "y")({"meta": "text"})


def test_one_hot() -> None:
    for value in (2, np.int64(2), torch.tensor(2)):
        encoded = OneHotEncode("y", 4, "out")({"y": value})["out"]
        assert encoded.tolist() == [0, 0, 1, 0] and encoded.dtype == torch.float32
    for value in (4, -1, 1.0, "2", None, True):
        with pytest.raises(TransformError, match="class"):
            OneHotEncode("y", 4)({"y": value})
    with pytest.raises(OptionError, match="num_classes"):
        OneHotEncode("y", 0)


def test_class_names() -> None:
    table = {"cat": 0, "dog": 1}
    assert ClassNameToID("y", table)({"y": "dog"}) == {"y": 1}
    assert ClassNameToID("y", len, "n")({"y": "dog"}) == {"y": "dog", "n": 3}
    for value in ("cow", ["cat"]):
        with pytest.raises(TransformError, match="'y'"):
            ClassNameToID("y", table)({"y": value})
    with pytest.raises(OptionError, match="class_name_to_id_mapping"):
        ClassNameToID("y", ["cat"])


def test_metadata_preset() -> None:
    def run(*arguments, **options):
        sample = {"json": b'{"label": 1, "name": "x"}'}
        for transform in presets.create_standard_metadata_pipeline("json", *arguments, **options):
            sample = transform(sample)
        return sample

    assert run()["meta"] == {"label": 1, "name": "x"}
    sample = run("label", 3, return_raw_metadata=False)
    assert set(sample) == {"json", "class_label"} and sample["class_label"].tolist() == [0, 1, 0]
    assert run("label", class_label_target_field="y")["y"] == 1
    with pytest.raises(OptionError, match="one_hot_encode_to_size"):
        presets.create_standard_metadata_pipeline("json", one_hot_encode_to_size=3)
