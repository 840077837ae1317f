"""The maker of test images: deterministic, natural in size, quick."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from PIL import Image

from sds.errors import OptionError
from sds.testing.media import make_images


def test_records_say_what_the_files_are(tmp_path: Path) -> None:
    records = make_images(tmp_path / "new" / "folder", 5, (40, 60))
    assert [record["id"] for record in records] == ["000000", "000001", "000002", "000003", "000004"]
    for record in records:
        with Image.open(record["path"]) as image:
            assert (image.format, image.size) == ("JPEG", (record["width"], record["height"])) == ("JPEG", (60, 40))
        assert record["caption"].endswith("ground")
    assert len({Path(record["path"]).read_bytes() for record in records}) == 5


def test_pictures_depend_on_seed_and_number_only(tmp_path: Path) -> None:
    def contents(folder: str, count: int, seed: int) -> list[bytes]:
        return [Path(r["path"]).read_bytes() for r in make_images(tmp_path / folder, count, (40, 60), seed)]

    assert contents("a", 4, 0)[:2] == contents("b", 2, 0)
    assert contents("c", 2, 1) != contents("d", 2, 0)


def test_jpeg_files_are_as_large_as_photographs(tmp_path: Path) -> None:
    sizes = [Path(record["path"]).stat().st_size for record in make_images(tmp_path, 30)]
    assert 55_000 < statistics.mean(sizes) < 75_000
    smooth = [Path(record["path"]).stat().st_size for record in make_images(tmp_path, 5, grain=0)]
    assert statistics.mean(smooth) < 20_000


@pytest.mark.parametrize("format", ["png", "webp", "gif", "bmp", "tiff"])
def test_other_formats(format, tmp_path: Path) -> None:
    (record,) = make_images(tmp_path, 1, (17, 23), format=format)
    with Image.open(record["path"]) as image:
        assert image.format == format.upper() and image.size == (23, 17)


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="format"):
        make_images(tmp_path, 1, format="xyz")
