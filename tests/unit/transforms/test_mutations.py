"""Broken files: cut short or with bits flipped, they decode or are a DecodeError, soon and in little memory."""

from __future__ import annotations

import random
import resource
import time
import warnings

import pytest
from PIL import Image

from sds.errors import DecodeError
from sds.testing.media import draw_image
from sds.transforms import presets

FORMATS = {
    "JPEG": {"quality": 85},
    "progressive JPEG": {"quality": 85, "progressive": True},
    "CMYK JPEG": {},
    "PNG": {},
    "palette PNG": {},
    "WEBP": {},
    "GIF": {},
    "TIFF": {"compression": "tiff_lzw"},
    "AVIF": {},
}


def make(kind: str, encode) -> bytes:
    pixels, _ = draw_image(5, (48, 64))
    image = Image.fromarray(pixels)
    image = image.convert("CMYK") if "CMYK" in kind else image.convert("P") if "palette" in kind else image
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(image, kind.split()[-1], **FORMATS[kind], **({} if kind == "GIF" else {"exif": exif}))


def attempt(data: bytes) -> bool:
    """Whether it decodes; anything but an image of the right shape or a DecodeError fails the test."""
    decode, resize = presets.create_standard_image_pipeline("file", (16, 16))
    try:
        sample = decode({"file": data})
    except DecodeError as error:
        assert error.stage == "decode"
        return False
    assert resize(sample)["image"].shape == (3, 16, 16)
    return True


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_cut_short_is_never_an_image(kind, encode) -> None:
    data = make(kind, encode)
    assert attempt(data)
    for share in range(1, 20):
        if kind != "GIF" or share < 18:  # the last bytes of a GIF are not pixels
            assert not attempt(data[: len(data) * share // 20]), f"{share}/20 of a {kind} is an image"


@pytest.mark.parametrize("kind", FORMATS)
def test_flipped_bits_only_ever_give_a_decode_error(kind, encode) -> None:
    data = make(kind, encode)
    rng = random.Random(kind)
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    failures = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow speaks of odd metadata
        for number in range(120):
            broken = bytearray(data)
            # half of them in the header, where sizes and tables are
            region = min(len(data), 200) if number % 2 else len(data)
            for _ in range(rng.randint(1, 4)):
                broken[rng.randrange(region)] ^= 1 << rng.randrange(8)
            if rng.random() < 0.2:
                broken = broken[: rng.randrange(len(broken))]
            failures += not attempt(bytes(broken))
    assert failures > 0
    assert time.monotonic() - begin < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000  # KB: one image of max_pixels, no more
