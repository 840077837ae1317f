"""Media measured by their headers: upright, without decoding, and with a word on what is broken."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from sds.cli.index_files import Here
from sds.cli.probe import probe_file, probe_table
from sds.fetch import FetchClient, FetchOptions


@pytest.fixture
def client(tmp_path: Path) -> FetchClient:
    return FetchClient(FetchOptions(dst=str(tmp_path / "dst")))  # local files: it never connects


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "gif", "bmp", "tif"])
def test_images_of_each_kind(ending: str, tmp_path: Path, client: FetchClient) -> None:
    path = tmp_path / f"x.{ending}"
    Image.effect_noise((300, 200), 90).convert("RGB").save(path)
    assert probe_file(str(path), client) == {"width": 300, "height": 200}


@pytest.mark.parametrize(("orientation", "size"), [(1, (300, 200)), (3, (300, 200)), (6, (200, 300)), (8, (200, 300))])
def test_a_photo_is_measured_upright(
    orientation: int, size: tuple[int, int], tmp_path: Path, client: FetchClient
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.new("RGB", (300, 200)).save(tmp_path / "x.jpg", exif=exif)
    found = probe_file(str(tmp_path / "x.jpg"), client)
    assert (found["width"], found["height"]) == size


def test_a_header_longer_than_the_first_look(tmp_path: Path, client: FetchClient) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "x.jpg", icc_profile=b"x" * 200_000)
    assert probe_file(str(tmp_path / "x.jpg"), client) == {"width": 30, "height": 20}


def test_what_cannot_be_read_is_null_and_named(tmp_path: Path, client: FetchClient) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no picture")
    (tmp_path / "e.png").write_bytes(b"")
    paths = [str(tmp_path / f"{name}.png") for name in "abce"]
    table = pa.table({"index": list("abced"), "png": [*paths, None], "txt": [None] * 4 + ["x.txt"]})
    found, failures = probe_table(table, ("png", "txt"), Here(client, 2).probe)
    assert found["width"].to_pylist() == [30, None, None, None, None]
    assert found.column_names == ["index", "png", "txt", "width", "height"]
    assert len(failures) == 3 and "c.png: file not found" in failures[1]
    assert failures[0].endswith("b.png: not an image, or of no format that is known")
    assert failures[2].endswith("e.png: it is empty")


def test_a_clip_that_is_none_is_told_in_plain_words(tmp_path: Path, client: FetchClient) -> None:
    (tmp_path / "a.mp4").write_bytes(b"no video" * 100)
    table = pa.table({"mp4": [str(tmp_path / "a.mp4")]})
    _, failures = probe_table(table, ("mp4",), Here(client, 2).probe)
    assert len(failures) == 1 and not any(word in failures[0] for word in ("Error", "Errno", "0x"))


def test_several_columns_say_whose_facts_they_are(tmp_path: Path, client: FetchClient) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    Image.new("RGB", (60, 40)).save(tmp_path / "a.jpg")
    table = pa.table({"jpg": [str(tmp_path / "a.jpg")], "png": [str(tmp_path / "a.png")]})
    found, failures = probe_table(table, ("jpg", "png"), Here(client, 2).probe)
    assert not failures and found.column_names[2:] == ["jpg_width", "jpg_height", "png_width", "png_height"]
    assert found.to_pylist()[0]["png_width"] == 30
