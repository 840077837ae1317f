"""JPEG bytes -> RGB pixels by C of our own (_jpeg.c) or TurboJPEG, and what a JPEG's header says, in microseconds.

Comes in: the whole file. Goes out: uint8 [h, w, 3], full size or halved up to three times. What is broken or cut short
is a ValueError; what TurboJPEG cannot turn into RGB (CMYK, 12 bit, rare layouts) is None, and left to Pillow. Our C
makes what TurboJPEG would make, to the bit, of files as most are; all others, and all errors, are TurboJPEG's.
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

from sds.transforms.geometry import Box
from sds.transforms.native import native
from sds.transforms.scratch import scratch

__all__ = ["Header", "decode", "orientation_of", "orient", "reduction", "scan"]

# Files with more than these are made to keep a decoder busy. Encoders write about ten scans, and at most a few hundred
# segments before the first (a large colour profile).
MAX_SCANS = 500
MAX_SEGMENTS = 5000

_SEGMENT = struct.Struct(">BBH").unpack_from  # 0xFF, the marker, and how long the rest is
_FRAME = struct.Struct(">BHHB").unpack_from  # bits, height, width, components
_SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # DHT, JPG and DAC lie among the start-of-frame markers
_ALONE = {0x01, *range(0xD0, 0xD9)}  # TEM, RSTn and SOI have no length
# What TurboJPEG reports of files that are whole all the same, and of those that Pillow decodes in spite of it.
_HARMLESS = "extraneous bytes before marker 0xd9"
_PILLOWS = ("subsampling", "unknown JFIF revision")


class Header(NamedTuple):
    """What a JPEG says about itself before its first scan."""

    height: int
    width: int
    num_components: int
    bits: int
    is_progressive: bool
    orientation: int  # of EXIF: 1 to 8, 1 is upright


def scan(data: bytes) -> Header:
    """Walks the segments up to the first scan.

    Raises:
        ValueError: they do not follow one another as they should, or have no end.
    """
    usual = None if native is None else native.scan_jpeg(data)
    if usual is None:
        return _walk(data)
    exif = usual[5]
    return Header(*usual[:5], 1 if exif is None else orientation_of(exif))


def _walk(data: bytes) -> Header:
    """Any header, in Python."""
    orientation = 1
    frame: tuple[int, int, int, int, bool] | None = None
    position, end = 2, len(data)
    num_segments = 0
    while position + 4 <= end:
        num_segments += 1
        if num_segments > MAX_SEGMENTS:
            raise ValueError(f"it has more than {MAX_SEGMENTS} segments")
        begin, marker, length = _SEGMENT(data, position)
        if begin != 0xFF:
            raise ValueError(f"no segment begins where one should, at byte {position}")
        if marker == 0xFF:  # fill byte
            position += 1
        elif marker in _ALONE:
            position += 2
        elif marker in (0xDA, 0xD9):  # start of scan, end of image
            break
        else:
            body, position = position + 4, position + 2 + length
            if length < 2 or position > end:
                raise ValueError(f"the segment at byte {body - 4} is cut short")
            if marker in _SOF and length >= 8 and frame is None:
                bits, height, width, num_components = _FRAME(data, body)
                frame = (height, width, num_components, bits, marker in (0xC2, 0xC6, 0xCA, 0xCE))
            elif marker == 0xE1 and orientation == 1 and data[body : body + 6] == b"Exif\0\0":
                orientation = orientation_of(data[body:position])
    if frame is None:
        raise ValueError("it says nothing of its size before its first scan")
    return Header(*frame, orientation)


def orientation_of(exif: bytes) -> int:
    """The orientation tag of an EXIF block, 1 (upright) if it has none or a broken one."""
    tiff = exif[6:] if exif.startswith(b"Exif\0\0") else exif
    if tiff[:2] not in (b"II", b"MM"):
        return 1
    order: Literal["little", "big"] = "little" if tiff[:2] == b"II" else "big"
    directory = int.from_bytes(tiff[4:8], order)
    num_entries = int.from_bytes(tiff[directory : directory + 2], order)
    for entry in range(directory + 2, min(directory + 2 + 12 * num_entries, len(tiff) - 11), 12):
        if int.from_bytes(tiff[entry : entry + 2], order) == 0x0112:
            value = int.from_bytes(tiff[entry + 8 : entry + 10], order)  # a SHORT
            return value if 1 <= value <= 8 else 1
    return 1


def orient(pixels: npt.NDArray[np.uint8], orientation: int) -> npt.NDArray[np.uint8]:
    """Turns [h, w, c] pixels upright; a view, where it can be one."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)  # [w, h, c]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def reduction(size: tuple[int, int], min_size: tuple[int, int] | None) -> int:
    """By how much (1, 2, 4 or 8) an image can be decoded smaller and still be at least `min_size`.

    Only halvings: the decoder's other fractions have no vector code and take longer than the full size.
    """
    if min_size is None:
        return 1
    (height, width), (min_height, min_width) = size, min_size
    factor = 1
    while factor < 8 and -(-height // (factor * 2)) >= min_height and -(-width // (factor * 2)) >= min_width:
        factor *= 2
    return factor


def decode(
    data: bytes, header: Header, factor: int = 1, *, is_scratch: bool = False, part: Box | None = None
) -> npt.NDArray[np.uint8] | None:
    """Decodes to RGB [h, w, 3], each side divided by `factor` and rounded up; None if Pillow should try.

    Args:
        data: the whole file.
        header: what `scan` found in it.
        factor: 1, 2, 4 or 8.
        is_scratch: the pixels are needed no longer than until this thread decodes again.
        part: of the full size, what is needed; what lies around it may be anything. None: all of it.

    Raises:
        ValueError: the data is broken or ends early.
    """
    if header.is_progressive and data.count(b"\xff\xda") > MAX_SCANS:  # first: it holds for Pillow's decoder too
        raise ValueError(f"it has more than {MAX_SCANS} scans")
    if header.num_components == 4 or header.bits != 8:
        return None
    size = -(-header.height // factor), -(-header.width // factor)
    memory = scratch("pixels", (*size, 3)).pixels if is_scratch else np.empty((*size, 3), np.uint8)
    is_for_native = factor == 1 and native is not None and 0 not in size
    if is_for_native and native.decode_jpeg(data, memory, part or (0, 0, *size)):
        return memory
    try:
        return _decode(data, size, memory, strict=True)
    except ValueError as error:
        report = str(error)
        if any(odd in report for odd in _PILLOWS):  # a rare layout, or a version that is none
            return None
        if _HARMLESS not in report:
            raise
    return _decode(data, size, memory, strict=False)


def _decode(
    data: bytes, size: tuple[int, int], memory: npt.NDArray[np.uint8], *, strict: bool
) -> npt.NDArray[np.uint8]:
    height, width = size
    pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
        data, "RGB", min_height=height, min_width=width, buffer=memory, strict=strict
    )
    return pixels
