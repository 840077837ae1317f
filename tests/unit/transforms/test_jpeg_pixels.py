"""JPEG files in C: to the bit what TurboJPEG makes of them; whatever is rare, odd or broken is TurboJPEG's."""

from __future__ import annotations

import io
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import compiled
from sds.errors import DecodeError
from sds.testing.media import draw_image
from sds.transforms import DecodeImage, ResizeImage, jpeg
from sds.transforms import _native as native
from sds.transforms.base import join_neighbours

UNTOUCHED = 77
LONG = bytes(4096)  # behind the end of a file: short ones with tables of their own are TurboJPEG's
SIDES = st.integers(16, 150) | st.sampled_from([16, 17, 31, 32, 33, 47, 48, 64, 65])
pytestmark = pytest.mark.skipif(not native.DECODES, reason="this processor has no AVX2")


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
    data = encoded(picture(height, width, kind, seed), **options) + LONG
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


def split(data: bytes) -> list[bytes]:
    """The segments of a header, and all that comes with the scan."""
    found, at = [data[:2]], 2
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        found.append(data[at:end])
        at = end
    return [*found, data[at:]]


def segment(data: bytes, marker: int) -> int:
    """Where the first segment of this kind begins."""
    at = 0
    for part in split(data):
        if part[1] == marker:
            return at
        at += len(part)
    raise ValueError(f"there is none: {marker:#x}")


def changed(marker: int, offset: int, value: int) -> bytes:
    data = bytearray(PHOTO)
    data[segment(PHOTO, marker) + offset] = value
    return bytes(data)


def with_factors_of_16_bits() -> bytes:
    at = segment(PHOTO, 0xDB)
    factors = b"".join(b"\0" + PHOTO[k : k + 1] for k in range(at + 5, at + 69))
    return PHOTO[:at] + b"\xff\xdb\x00\x83\x10" + factors + PHOTO[at + 69 :]


def with_segments(*segments: tuple[int, bytes], after: int = 0xE0) -> bytes:
    """The photo, with more segments behind one of its own."""
    at = segment(PHOTO, after)
    at += 2 + int.from_bytes(PHOTO[at + 2 : at + 4], "big")
    new = b"".join(bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2, "big") + body for marker, body in segments)
    return PHOTO[:at] + new + PHOTO[at:]


def profile(*pieces: tuple[int, int, bytes]) -> bytes:
    return with_segments(*((0xE2, b"ICC_PROFILE\0" + bytes(piece[:2]) + piece[2]) for piece in pieces))


USUAL = {
    "a profile": profile((1, 1, bytes(200))),
    "a profile in two pieces": profile((1, 2, bytes(200)), (2, 2, b"x")),
    "something else in its place": with_segments((0xE2, b"MPF\0" + bytes(30)), (0xE1, b"http://"), (0xFE, b"said")),
    "restarts in the header": PHOTO[:2] + b"\xff\xd3" + PHOTO[2:],
    "fill bytes in the header": PHOTO[:2] + b"\xff\xff" + PHOTO[2:],
    "no restarts, it says": with_segments((0xDD, b"\0\0")),
    "tables that are not used": with_segments((0xDB, b"\x03" + bytes(range(1, 65))), (0xC4, b"\x11" + bytes(16))),
    "bytes after the end": PHOTO + bytes(100),
}


@pytest.mark.parametrize("kind", USUAL)
def test_what_most_files_have_beside_their_pixels(kind: str) -> None:
    np.testing.assert_array_equal(by_us(USUAL[kind], (120, 160)), by_turbojpeg(USUAL[kind]))


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
    "pieces of a profile in another order": profile((2, 2, bytes(9)), (1, 2, bytes(9))),
}


@pytest.mark.parametrize("kind", RARE)
def test_what_is_rare_is_left_to_turbojpeg(kind: str) -> None:
    data = RARE[kind]
    assert by_us(data, (120, 160)) is None
    np.testing.assert_array_equal(
        jpeg.decode(data, jpeg.scan(data)), simplejpeg.decode_jpeg(data, "RGB", strict=False), err_msg="by whoever can"
    )


LONGEST = encoded(picture(16, 65500, "flat"), subsampling=0)
WIDTH = segment(LONGEST, 0xC0) + 7
TOO_LONG = LONGEST[:WIDTH] + (65501).to_bytes(2, "big") + LONGEST[WIDTH + 2 :]  # as many blocks as before


def test_the_longest_side() -> None:
    np.testing.assert_array_equal(by_us(LONGEST, (16, 65500)), by_turbojpeg(LONGEST))


REFUSED = {
    "another beginning": PHOTO[:2] + b"\xff\xd8" + PHOTO[2:],
    "no beginning": b"xx" + PHOTO[2:],
    "a marker that means nothing": with_segments((0x29, b"who knows")),
    "a profile of which a piece is missing": profile((1, 2, bytes(9))),
    "a profile with a piece too many": profile((1, 1, bytes(9)), (2, 1, bytes(9))),
    "a profile that is there twice": profile((1, 1, bytes(9)), (1, 1, bytes(9))),
    "a profile with nothing in it": profile((1, 1, b"")),
    "a profile of no pieces, then of two": profile((1, 0, b"a"), (2, 2, b"b")),
    "JFIF of a version that is none": changed(0xE0, 9, 2),
    "no height": changed(0xC0, 6, 0),
    "a side that is too long": TOO_LONG,
    "no end": PHOTO[:-2],
    "codes cut short": PHOTO[:-200] + PHOTO[-2:],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_turbojpeg_refuses_is_not_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = REFUSED[kind]
    with pytest.raises(ValueError):
        by_turbojpeg(data)
    size = tuple(
        int.from_bytes(data[k : k + 2], "big") for k in (data.find(b"\xff\xc0") + 5, data.find(b"\xff\xc0") + 7)
    )
    assert 0 in size or by_us(data, size) is None
    with_c, without = [], []
    for found in (with_c, without):
        try:
            found.append(DecodeImage("x")({"x": data})["x"].tolist())
        except DecodeError as error:
            found.append(str(error))
        monkeypatch.setattr(jpeg, "native", None)
    assert with_c == without


def test_short_files_with_tables_of_their_own_are_turbojpegs() -> None:
    pixels = picture(48, 64, "drawn")
    assert by_us(encoded(pixels), (48, 64)) is not None
    own = encoded(pixels, optimize=True)
    assert len(own) < len(LONG) and by_us(own, (48, 64)) is None and by_us(own + LONG, (48, 64)) is not None


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


SEGMENTS = [
    b"\xff\xd8",
    b"\xff\xd9",
    b"\xff\xd0",
    b"\xff\x01",
    b"\xff",
    b"\xff\xdd\0\4\0\0",
    b"\xff\xdd\0\4\0\2",
    b"\xff\xdd\0\3\0",
    b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\1",
    b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\0",
    b"\xff\xe2\0\x12ICC_PROFILE\0\1\1ab",
    b"\xff\xe2\0\x12ICC_PROFILE\0\2\2ab",
    b"\xff\xe2\0\x12ICC_PROFILE\0\1\2ab",
    b"\xff\xe2\0\x12ICC_PROFILE\0\1\0ab",
    b"\xff\xfe\0\2",
    b"\xff\x02\0\2",
    b"\xff\xf0\0\2",
]


OTHER = encoded(picture(48, 64, "noise"), quality=20, optimize=True)
SEGMENTS += [part for part in split(OTHER) if part[1] in (0xDB, 0xC4)]


@settings(max_examples=600, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["insert", "drop", "double", "swap"]), st.integers(0, 20), st.integers(0, 20)),
        min_size=1,
        max_size=4,
    ),
    is_restarted=st.booleans(),
)
def test_segments_in_any_order_are_taken_only_as_turbojpeg_takes_them(steps, is_restarted) -> None:
    parts = split(encoded(picture(48, 64, "drawn", 2), **({"restart_marker_blocks": 2} if is_restarted else {})))
    for what, which, other in steps:
        at = which % len(parts)
        if what == "insert":
            parts.insert(at, SEGMENTS[other % len(SEGMENTS)])
        elif what == "drop" and len(parts) > 1:
            del parts[at]
        elif what == "double":
            parts.insert(other % len(parts), parts[at])
        else:
            parts[at], parts[other % len(parts)] = parts[other % len(parts)], parts[at]
    data = b"".join(parts)
    found = by_us(data, (48, 64))
    if found is not None:
        np.testing.assert_array_equal(found, by_turbojpeg(data))


class Bits:
    """Bits as a file has them: a 0 after each 0xFF, and ones at the end."""

    def __init__(self) -> None:
        self._text: list[str] = []

    def add(self, value: int, num: int) -> None:
        self._text.append(format(value, f"0{num}b") if num else "")

    def told(self) -> bytes:
        text = "".join(self._text)
        text += "1" * (-len(text) % 8)
        return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")


def made_up(drawn: np.random.Generator, height: int, width: int, across: int, down: int) -> bytes:
    """A file that no encoder makes: any codes of up to 16 bits, any factors, any coefficients, however large."""
    head = [b"\xff\xd8"]
    for which in range(2):
        factors = drawn.integers(drawn.integers(2), drawn.choice([2, 256]), 64).astype("u1").tobytes()
        head.append(b"\xff\xdb\0\x43" + bytes([which]) + factors)
    sizes = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    head.append(b"\xff\xc0\0\x11\x08" + sizes + bytes([3, 1, across << 4 | down, 0, 2, 0x11, 1, 3, 0x11, 1]))
    codes: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
    for kind in range(2):
        for which in range(2):
            symbols = [0, *(1 + drawn.permutation(255 if kind else 11)).tolist()]
            counts, left, at, code = [0] * 16, len(symbols), 0, 0
            table = codes[kind, which] = {}
            for length in range(1, 17):
                spare = max(0, (1 << length) - 2 - code)  # all ones is no code, and there must be longer ones
                num = min(
                    left, spare if length == 16 else int(drawn.integers(0, min(spare, 3 if length < 9 else 40) + 1))
                )
                for symbol in symbols[at : at + num]:
                    table[symbol] = code, length
                    code += 1
                counts[length - 1], at, left, code = num, at + num, left - num, code << 1
            told = bytes(counts) + bytes(symbols[:at])
            head.append(b"\xff\xc4" + (3 + len(told)).to_bytes(2, "big") + bytes([kind << 4 | which]) + told)
    head.append(b"\xff\xda\0\x0c\3\1\0\2\x11\3\x11\0\x3f\0")
    bits = Bits()
    for _ in range(-(-height // (8 * down)) * -(-width // (8 * across))):
        for component in [*[0] * (across * down), 1, 1]:
            of_dc, of_ac = codes[0, component], codes[1, component]
            size = int(drawn.choice(list(of_dc)))
            bits.add(*of_dc[size])
            bits.add(int(drawn.integers(1 << size)), size)
            k = 1
            while k < 64:
                symbol = int(drawn.choice(list(of_ac)))
                run, size = symbol >> 4, symbol & 15
                if (size == 0 and symbol != 0xF0) or k + run > 63:
                    bits.add(*of_ac[0])
                    break
                bits.add(*of_ac[symbol])
                bits.add(int(drawn.integers(1 << size)), size)
                k += run + 1
    return b"".join(head) + bits.told() + b"\xff\xd9" + LONG


@pytest.mark.parametrize("seed", range(40))
def test_files_that_no_encoder_makes(seed: int) -> None:
    drawn = np.random.default_rng(seed)
    across, down = [(1, 1), (2, 1), (2, 2)][seed % 3]
    size = int(drawn.integers(60, 90)), int(drawn.integers(60, 90))
    data = made_up(drawn, *size, across, down)
    found = by_us(data, size)
    assert found is not None
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
    work = partial(native.decode_jpeg, data, memory, (0, 0, 3000, 3000))
    assert compiled.num_turns(lambda: [work() for _ in range(4)]) > 20


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
