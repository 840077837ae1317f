"""JPEG files in C: to the bit what TurboJPEG makes of them; whatever is rare, odd or broken is TurboJPEG's."""

from __future__ import annotations

import io
import re
import threading
import time
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sds.testing.media import draw_image
from sds.transforms import DecodeImage, ResizeImage, jpeg
from sds.transforms import _native as native
from sds.transforms.base import join_neighbours

UNTOUCHED = 77
SIDES = st.integers(16, 150) | st.sampled_from([16, 17, 31, 32, 33, 47, 48, 64, 65])
BLACK = np.zeros((16, 16, 3), np.uint8)
pytestmark = pytest.mark.skipif(
    not native.decode_jpeg(simplejpeg.encode_jpeg(BLACK), BLACK.copy(), (0, 0, 1, 1)),
    reason="this processor has no AVX2",
)


def picture(height: int, width: int, kind: str, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed)
    if kind == "noise":  # large coefficients, none of them 0
        return drawn.integers(0, 256, (height, width, 3), np.uint8)
    if kind == "edges":  # as large as they can be
        return 255 * drawn.integers(0, 2, (height, width, 3), np.uint8)
    if kind == "flat":  # blocks of one coefficient
        return np.full((height, width, 3), drawn.integers(0, 256, 3), np.uint8)
    return draw_image(seed, (height, width))[0]


def encoded(pixels: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", **options)
    return file.getvalue()


PHOTO = encoded(picture(120, 160, "drawn"), quality=90)


def by_us(data: bytes, size: tuple[int, int], part: tuple[int, int, int, int] | None = None) -> np.ndarray | None:
    """The pixels lie between others, which must stay what they are."""
    memory = np.full((3, *size, 3), UNTOUCHED, np.uint8)
    found = native.decode_jpeg(data, memory[1], part or (0, 0, *size))
    assert (memory[0] == UNTOUCHED).all() and (memory[2] == UNTOUCHED).all()
    return memory[1] if found else None


def by_turbojpeg(data: bytes) -> np.ndarray:
    return simplejpeg.decode_jpeg(data, "RGB")


options = st.fixed_dictionaries(
    {"quality": st.integers(1, 100), "subsampling": st.integers(0, 2)},
    optional={
        "optimize": st.just(True),
        "restart_marker_blocks": st.integers(1, 30),
        "restart_marker_rows": st.integers(1, 3),
        "comment": st.just("said"),
    },
)


@settings(max_examples=500, deadline=None)
@given(
    size=st.tuples(SIDES, SIDES),
    kind=st.sampled_from(["noise", "edges", "flat", "drawn"]),
    seed=st.integers(0, 9),
    options=options,
    corners=st.tuples(*[st.floats(0, 1)] * 4),
)
def test_it_is_what_turbojpeg_makes_to_the_bit(size, kind, seed, options, corners) -> None:
    height, width = size
    data = encoded(picture(height, width, kind, seed), **options)
    expected = by_turbojpeg(data)
    np.testing.assert_array_equal(by_us(data, size), expected)
    top, bottom = sorted(round(corner * (height - 1)) for corner in corners[:2])
    left, right = sorted(round(corner * (width - 1)) for corner in corners[2:])
    found = by_us(data, size, (top, left, bottom + 1 - top, right + 1 - left))
    np.testing.assert_array_equal(
        found[top : bottom + 1, left : right + 1], expected[top : bottom + 1, left : right + 1]
    )


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("quality", [30, 95, 100])
def test_large_pictures(quality: int, subsampling: int) -> None:
    size = (700, 1301)
    data = encoded(picture(*size, "drawn"), quality=quality, subsampling=subsampling)
    np.testing.assert_array_equal(by_us(data, size), by_turbojpeg(data))


def test_what_photoshop_writes() -> None:
    """An Adobe segment instead of JFIF's: the colours are as without it."""
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x01"
    data = PHOTO[:2] + adobe + PHOTO[20:]
    np.testing.assert_array_equal(by_us(data, (120, 160)), by_turbojpeg(data))
    assert by_us(data.replace(adobe, adobe[:-1] + b"\x00"), (120, 160)) is None  # RGB, it says


def segment(data: bytes, marker: int) -> int:
    """Where the first segment of this kind begins."""
    at = 2
    while data[at + 1] != marker:
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return at


def changed(marker: int, offset: int, value: int) -> bytes:
    data = bytearray(PHOTO)
    data[segment(PHOTO, marker) + offset] = value
    return bytes(data)


def with_factors_of_16_bits() -> bytes:
    at = segment(PHOTO, 0xDB)
    factors = b"".join(b"\0" + PHOTO[k : k + 1] for k in range(at + 5, at + 69))
    return PHOTO[:at] + b"\xff\xdb\x00\x83\x10" + factors + PHOTO[at + 69 :]


RARE = {
    "progressive": encoded(picture(120, 160, "drawn"), progressive=True),
    "grey": encoded(picture(120, 160, "drawn")[..., 0]),
    "of RGB": encoded(picture(120, 160, "drawn"), keep_rgb=True),
    "halved along columns": simplejpeg.encode_jpeg(picture(120, 160, "drawn"), colorsubsampling="440"),
    "a quarter along rows": simplejpeg.encode_jpeg(picture(120, 160, "drawn"), colorsubsampling="411"),
    "factors of 16 bits": with_factors_of_16_bits(),
    "extended": changed(0xC0, 1, 0xC1),
    "bytes after the codes": PHOTO[:-2] + b"\x12\x34" + PHOTO[-2:],
    "fill bytes at the end": PHOTO[:-2] + b"\xff" + PHOTO[-2:],
    "bytes after the end": None,  # the only one that is ours
}


@pytest.mark.parametrize("kind", RARE)
def test_what_is_rare_is_left_to_turbojpeg(kind: str) -> None:
    data = RARE[kind] or PHOTO + bytes(100)
    header = jpeg.scan(data)
    assert (by_us(data, (120, 160)) is None) == (kind != "bytes after the end")
    np.testing.assert_array_equal(
        jpeg.decode(data, header), simplejpeg.decode_jpeg(data, "RGB", strict=False), err_msg="by whoever can"
    )


def test_pictures_of_few_pixels_are_turbojpegs() -> None:
    for size in ((15, 40), (40, 15), (1, 1), (8, 8)):
        data = encoded(picture(*size, "noise"), quality=100)
        assert by_us(data, size) is None
        np.testing.assert_array_equal(jpeg.decode(data, jpeg.scan(data)), by_turbojpeg(data))


@settings(max_examples=600, deadline=None)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.none() | st.floats(0, 1),
    is_restarted=st.booleans(),
    is_in_header=st.booleans(),
)
def test_what_is_taken_of_a_broken_file_is_what_turbojpeg_takes(changes, cut, is_restarted, is_in_header) -> None:
    """We never take a file that TurboJPEG complains of, nor make other pixels of it; so no error is ever lost."""
    whole = encoded(picture(48, 64, "drawn", 2), **({"restart_marker_blocks": 2} if is_restarted else {}))
    data = bytearray(whole)
    scan = segment(whole, 0xDA)
    first, end = (2, scan) if is_in_header else (scan, len(data))
    for place, value in changes:
        data[round(first + place * (end - 1 - first))] = value
    if cut is not None:
        del data[round(2 + cut * (len(data) - 2)) :]
    data = bytes(data)
    found = by_us(data, (48, 64))
    if found is not None:
        np.testing.assert_array_equal(found, by_turbojpeg(data))


def test_a_file_that_is_cut_short_is_never_taken_whatever_the_part() -> None:
    for length in range(2, len(PHOTO)):
        assert not native.decode_jpeg(PHOTO[:length], np.empty((120, 160, 3), np.uint8), (0, 0, 8, 8)), length
    with pytest.raises(ValueError, match=r"[Pp]remature"):
        jpeg.decode(PHOTO[:-100], jpeg.scan(PHOTO), part=(0, 0, 8, 8), is_scratch=True)


def test_restarts_out_of_turn_are_not_taken() -> None:
    data = encoded(picture(120, 160, "drawn"), restart_marker_blocks=3)
    assert by_us(data, (120, 160)) is not None
    for number in range(8):
        wrong = data.replace(bytes([0xFF, 0xD0 + number]), bytes([0xFF, 0xD0 + (number + 1) % 8]))
        assert by_us(wrong, (120, 160)) is None


def test_what_does_not_fit_is_an_error() -> None:
    fine = np.empty((120, 160, 3), np.uint8)
    for pixels in (fine[::2], fine[..., :2], fine[0], fine.astype(np.int8)):
        with pytest.raises((ValueError, BufferError)):
            native.decode_jpeg(PHOTO, pixels, (0, 0, 1, 1))
    outside = [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 121, 5), (0, 0, 5, 161), (119, 0, 2, 5), (0, 0, 0, 5), (0, 0, 5, 0)]
    for part in outside:
        with pytest.raises(ValueError, match=re.escape("(top, left, height, width)")):
            native.decode_jpeg(PHOTO, fine, part)
    fine.flags.writeable = False
    with pytest.raises(ValueError):
        native.decode_jpeg(PHOTO, fine, (0, 0, 1, 1))
    assert by_us(PHOTO, (160, 120)) is None  # another picture's memory
    assert not native.decode_jpeg(b"", np.empty((120, 160, 3), np.uint8), (0, 0, 1, 1))


def test_it_lets_go_of_python() -> None:
    data = encoded(picture(3000, 3000, "noise"), quality=95, subsampling=0)
    memory = np.empty((3000, 3000, 3), np.uint8)
    thread = threading.Thread(target=lambda: [native.decode_jpeg(data, memory, (0, 0, 3000, 3000)) for _ in range(4)])
    thread.start()
    num_turns = 0
    while thread.is_alive():
        time.sleep(0.001)
        num_turns += 1
    assert num_turns > 20


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("fit", ["crop", "random_crop", "stretch", "pad"])
def test_only_the_part_that_is_resized_is_made(fit: str, orientation: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(200, 301, "drawn"), quality=95, exif=exif)
    parts: list[tuple[int, ...] | None] = []
    decode = jpeg.decode
    monkeypatch.setattr(jpeg, "decode", lambda *args, **named: (parts.append(named["part"]), decode(*args, **named))[1])
    apart = [DecodeImage("x"), ResizeImage("x", resolution=(64, 64), fit=fit)]
    sample = {"x": data, "__random_seed__": 5}
    expected = apart[1](apart[0](dict(sample)))["x"]
    (joined,) = join_neighbours(apart)
    np.testing.assert_array_equal(joined(dict(sample))["x"].numpy(), expected.numpy())
    if orientation > 1:
        assert parts == [None, None]
    else:
        assert parts == [None, (0, 50, 200, 200) if fit == "crop" else (0, 0, 200, 301)]


def test_without_a_compiler_turbojpeg_makes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = DecodeImage("x")({"x": PHOTO})["x"]
    monkeypatch.setattr(jpeg, "native", None)
    np.testing.assert_array_equal(DecodeImage("x")({"x": PHOTO})["x"].numpy(), ours.numpy())
