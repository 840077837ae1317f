"""Pictures and sounds for a browser: files and arrays -> JPEG, PNG, WAV.

Comes in: the content of a cell, or what a transform made. Goes out: encoded bytes with their media type. Files are
decoded by the transforms that training uses.
"""

from __future__ import annotations

import io
import itertools
import math
import wave
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sds.fetch import RemoteFile

__all__ = [
    "THUMB",
    "Encoded",
    "draw_frames",
    "draw_image",
    "draw_tiles",
    "num_pixels",
    "poster",
    "sound",
    "thumbnail",
    "waveform",
]

Encoded = tuple[str, bytes]
THUMB = 480  # the longer side
_MAX_FRAMES = 16
_SOUND_S = 30.0
_BARS = 80
_BAR_COLOUR = (94, 129, 224, 255)
_MAX_TILES = 16


def num_pixels(file: BinaryIO) -> float:
    """How many pixels an image has, by its header: 0 if that cannot be told, infinitely many if it is a bomb."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return int(image.width) * int(image.height)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        return math.inf
    except Exception:  # noqa: BLE001 (the boundary to foreign decoders, which raise anything)
        return 0


def thumbnail(data: Any) -> Encoded:
    """A small picture of an image: its path or bytes.

    Raises:
        DecodeError: it is broken.
    """
    from sds.transforms import DecodeImage

    pixels = DecodeImage("image", min_size=(THUMB, THUMB))({"image": data})["image"]  # uint8 [3, h, w]
    return _jpeg(pixels.permute(1, 2, 0).numpy(), THUMB)


def poster(media: str | bytes | RemoteFile) -> Encoded:
    """The first frame of a video.

    Raises:
        DecodeError: it is broken.
        OptionError: the extra `video` is not installed.
    """
    from sds.transforms import DecodeVideo

    decode = DecodeVideo("video", 1, random_offset=False, min_size=(THUMB // 2, THUMB // 2), allow_vertical=True)
    frames = decode({"video": media})["video"]  # uint8 [1, 3, h, w]
    return _jpeg(frames[0].permute(1, 2, 0).numpy(), THUMB)


def waveform(media: str | bytes | RemoteFile) -> Encoded:
    """The loudness of a sound's first seconds, as bars.

    Raises:
        DecodeError: it is broken.
        OptionError: the extra `audio` is not installed.
    """
    from sds.transforms import DecodeAudio

    decode = DecodeAudio("audio", duration=_SOUND_S, clip_offset_strategy="start", allow_shorter_audio=True)
    samples = np.abs(decode({"audio": media})["audio"].numpy()).max(axis=0)  # [t]
    edges = np.linspace(0, len(samples), _BARS + 1).astype(int)
    peaks = [float(samples[a:b].max()) if b > a else 0.0 for a, b in itertools.pairwise(edges)]
    pixels = np.zeros((160, 4 * _BARS, 4), np.uint8)  # transparent: it stands on any ground
    for k, peak in enumerate(peaks):
        half = max(1, round(76 * min(peak, 1.0) ** 0.5))
        pixels[80 - half : 80 + half, 4 * k : 4 * k + 3] = _BAR_COLOUR
    return _png(pixels)


def draw_image(values: npt.NDArray[Any]) -> Encoded:
    """An array [c, h, w] of one, three or four channels."""
    pixels = to_bytes(values).transpose(1, 2, 0)  # [h, w, c]
    return _jpeg(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3], 4 * THUMB)


def draw_frames(values: npt.NDArray[Any]) -> Encoded:
    """Frames [t, c, h, w] side by side: all, or some of them, evenly."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), _MAX_FRAMES)).round().astype(int))
    frames = to_bytes(values[chosen]).transpose(0, 2, 3, 1)  # [t, h, w, c]
    sheet = _sheet(np.repeat(frames, 3, axis=3) if frames.shape[3] == 1 else frames[..., :3])
    return _jpeg(sheet, 4 * THUMB)


def draw_tiles(values: npt.NDArray[Any]) -> Encoded:
    """The channels of an array [c, h, w], each as a grey tile; the first sixteen."""
    tiles = to_bytes(values[:_MAX_TILES])[..., None]  # [c, h, w, 1]
    scale = max(1, 96 // max(tiles.shape[1:3]))
    return _png(_sheet(tiles.repeat(scale, 1).repeat(scale, 2))[..., 0])


def sound(values: npt.NDArray[Any], rate: int) -> Encoded:
    """A waveform [c, t] or [t] in [-1, 1] as a WAV file of sixteen bits."""
    values = values[None] if values.ndim == 1 else values
    ints = (np.clip(np.nan_to_num(values.astype(np.float32)), -1, 1) * 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(ints.shape[0])
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.ascontiguousarray(ints.T).tobytes())
    return "audio/wav", file.getvalue()


def to_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Values of any type as 0..255: those in [0, 1] or [-1, 1] by their meaning, others from least to most."""
    if values.dtype == np.uint8:
        return values.astype(np.uint8, copy=False)
    floats = np.nan_to_num(values.astype(np.float32))
    low, high = (float(floats.min()), float(floats.max())) if floats.size else (0.0, 1.0)
    if low >= -0.001 and high <= 1.001:
        low, high = 0.0, 1.0
    elif low >= -1.001 and high <= 1.001:
        low, high = -1.0, 1.0
    scaled = (floats - low) * (255 / (high - low if high > low else 1))
    pixels: npt.NDArray[np.uint8] = scaled.round().clip(0, 255).astype(np.uint8)
    return pixels


def _sheet(tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Tiles [n, h, w, c] on one sheet, about as wide as high, with thin borders."""
    num, height, width, channels = tiles.shape
    columns = max(1, min(num, round((num * height / max(1, width)) ** 0.5)))
    rows = -(-num // columns)
    gap = 2
    sheet: npt.NDArray[np.uint8] = np.full(
        (rows * (height + gap) - gap, columns * (width + gap) - gap, channels), 128, np.uint8
    )
    for k, tile in enumerate(tiles):
        top, left = k // columns * (height + gap), k % columns * (width + gap)
        sheet[top : top + height, left : left + width] = tile
    return sheet


def _jpeg(pixels: npt.NDArray[np.uint8], longest: int) -> Encoded:
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((longest, longest))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=88)
    return "image/jpeg", file.getvalue()


def _png(pixels: npt.NDArray[np.uint8]) -> Encoded:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG", compress_level=1)
    return "image/png", file.getvalue()
