"""What a JPEG says of itself: by C what Python finds, or nothing; whatever bytes come, nothing is read beyond them."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sds.transforms import _native, jpeg

MARKERS = st.sampled_from([0xC0, 0xC2, 0xC4, 0xC9, 0xCC, 0xCE, 0xDB, 0xE0, 0xE1, 0xFE, 0xD0, 0xD8, 0x01, 0xFF, 0xDA])
BODIES = st.binary(max_size=12) | st.binary(max_size=30).map(lambda rest: b"Exif\0\0" + rest)


@st.composite
def segments(draw: Any) -> bytes:
    """A segment, most of them with a length that is right."""
    marker, body = draw(MARKERS), draw(BODIES)
    length = len(body) + 2 + draw(st.sampled_from([0, 0, 0, 0, 1, -1]))
    return bytes([0xFF, marker]) + struct.pack(">H", max(0, length)) + body


def exif(orientation: int, order: str = "<") -> bytes:
    mark = b"II*\0" if order == "<" else b"MM\0*"
    entry = struct.pack(f"{order}HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = mark + struct.pack(f"{order}IH", 8, 1) + entry
    return b"\xff\xe1" + struct.pack(">H", len(tiff) + 8) + b"Exif\0\0" + tiff


def encoded(*, size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), np.uint8)
    Image.fromarray(noise).save(file, "JPEG", **options)
    return file.getvalue()


def by_python(data: bytes) -> jpeg.Header | None:
    try:
        return jpeg._walk(data)
    except ValueError:
        return None


def check(data: bytes) -> None:
    """Where C says something, Python says the same; where Python knows and C does not, it is because it is odd."""
    found = _native.scan_jpeg(data)
    if found is not None:
        assert jpeg.scan(data) == by_python(data)
    elif by_python(data) is not None:
        assert data.count(b"Exif\0\0") > 1, "what is usual is found by C"
        assert jpeg.scan(data) == by_python(data)
    else:
        with pytest.raises(ValueError):
            jpeg.scan(data)


@settings(max_examples=1000, deadline=None)
@given(parts=st.lists(segments(), max_size=8), end=st.binary(max_size=6))
def test_segments_of_any_kind(parts: list[bytes], end: bytes) -> None:
    check(b"\xff\xd8" + b"".join(parts) + end)


@settings(max_examples=1000, deadline=None)
@given(position=st.integers(0, 700), value=st.integers(0, 255), cut=st.integers(0, 700) | st.none())
def test_files_with_a_wrong_byte_or_cut_short(position: int, value: int, cut: int | None) -> None:
    data = bytearray(PHOTO[:2] + exif(6) + PHOTO[2:])
    data[position % len(data)] = value
    check(bytes(data[:cut]))


PHOTO = encoded()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (30, 40, 3, 8, False, 1)),
        ({"progressive": True}, (30, 40, 3, 8, True, 1)),
        ({"size": (7, 300)}, (300, 7, 3, 8, False, 1)),
    ],
)
def test_files_as_they_are_made(options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    data = encoded(**options)
    assert _native.scan_jpeg(data) == (*expected[:5], None)
    assert jpeg.scan(data) == jpeg._walk(data) == expected


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_way_up(order: str) -> None:
    for orientation in range(1, 9):
        data = PHOTO[:2] + exif(orientation, order) + PHOTO[2:]
        assert jpeg.scan(data).orientation == jpeg._walk(data).orientation == orientation


def test_of_two_exif_blocks_the_first_that_says_something_counts() -> None:
    data = PHOTO[:2] + exif(1) + exif(8) + PHOTO[2:]
    assert _native.scan_jpeg(data) is None
    assert jpeg.scan(data).orientation == 8


def test_many_segments_are_left_to_python() -> None:
    comment = b"\xff\xfe\0\2"
    assert _native.scan_jpeg(PHOTO[:2] + 900 * comment + PHOTO[2:]) is not None
    data = PHOTO[:2] + 1100 * comment + PHOTO[2:]
    assert _native.scan_jpeg(data) is None and jpeg.scan(data) == jpeg.scan(PHOTO)


def test_without_a_compiler_python_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg, "native", None)
    assert jpeg.scan(PHOTO) == (30, 40, 3, 8, False, 1)


def test_nothing_but_bytes() -> None:
    with pytest.raises(TypeError):
        _native.scan_jpeg(bytearray(PHOTO))  # type: ignore[arg-type]
