"""Made-up media for tests, demos and benchmarks: captioned images that compress like photographs.

Comes in: a folder, how many, how large. Goes out: encoded files and one record for each. Every picture is a pure
function of (seed, number, size): a soft gradient, a few shapes that the caption names, and grain of several scales.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from sds.errors import OptionError
from sds.seeds import derive

__all__ = ["ImageRecord", "draw_image", "make_images"]

_COLOURS = {
    "red": (205, 50, 45),
    "green": (60, 160, 75),
    "blue": (45, 85, 190),
    "yellow": (235, 205, 60),
    "purple": (130, 60, 160),
    "orange": (235, 140, 40),
    "white": (240, 240, 235),
    "black": (30, 30, 35),
}
_SHAPES = ("circle", "square", "triangle", "bar")
_EXTENSIONS = {"jpeg": "jpg", "png": "png", "webp": "webp", "gif": "gif", "bmp": "bmp", "tiff": "tif"}


class ImageRecord(TypedDict):
    """One row of an index of images."""

    id: str
    path: str
    caption: str
    width: int
    height: int


def make_images(
    folder: str | os.PathLike[str],
    count: int,
    size: tuple[int, int] = (375, 500),
    seed: int = 0,
    format: str = "jpeg",
    quality: int = 90,
    grain: float = 1.0,
) -> list[ImageRecord]:
    """Writes images 000000.jpg, 000001.jpg, ... into a folder, and returns their records.

    Args:
        folder: made if it is not there.
        count: how many.
        size: (h, w) of each.
        seed: other seeds make other pictures.
        format: 'jpeg', 'png', 'webp', 'gif', 'bmp' or 'tiff'.
        quality: of JPEG and WebP; 90 makes JPEG files of 500x375 about 64 KB large on average.
        grain: how much texture; 0 is smooth, and the files grow with it.
    """
    if format not in _EXTENSIONS:
        raise OptionError(f"format is unknown: {format!r}", hint=f"choose one of {list(_EXTENSIONS)}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texture = _texture(size, seed)
    records: list[ImageRecord] = []
    for number in range(count):
        pixels, caption = draw_image(number, size, seed, grain, texture)
        path = folder / f"{number:06d}.{_EXTENSIONS[format]}"
        options = {"quality": quality} if format in ("jpeg", "webp") else {}
        Image.fromarray(pixels).save(path, format, **options)
        records.append(ImageRecord(id=f"{number:06d}", path=str(path), caption=caption, width=size[1], height=size[0]))
    return records


def draw_image(
    number: int,
    size: tuple[int, int],
    seed: int = 0,
    grain: float = 1.0,
    texture: npt.NDArray[np.int16] | None = None,
) -> tuple[npt.NDArray[np.uint8], str]:
    """Draws one picture: (RGB pixels [h, w, 3], caption). `texture` saves making it anew for each picture."""
    height, width = size
    rng = derive(seed, "image", number)
    names = list(_COLOURS)
    ground = names[rng.integers(len(names))]
    corners = np.array(_COLOURS[ground]) * rng.uniform(0.4, 1.0, (3, 4, 1)) + rng.uniform(-40, 40, (3, 4, 3))
    soft = Image.fromarray(corners.clip(0, 255).astype(np.uint8))  # [3, 4, 3]
    canvas = soft.resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(canvas)
    parts = []
    for _ in range(rng.integers(1, 4)):
        colour = names[rng.integers(len(names))]
        shape = _SHAPES[rng.integers(len(_SHAPES))]
        _draw_shape(draw, shape, _COLOURS[colour], rng, size)
        parts.append(f"{_article(colour)} {shape}")
    texture = _texture(size, seed) if texture is None else texture  # [2h, 2w]
    top, left = rng.integers(height + 1), rng.integers(width + 1)
    pixels = np.asarray(canvas, dtype=np.int16)  # [h, w, 3]
    strength = grain * rng.uniform(0.5, 1.5)
    noise = texture[top : top + height, left : left + width, None] * np.float32(strength)  # [h, w, 1]
    pixels = (pixels + noise).clip(0, 255).astype(np.uint8)
    return pixels, f"{' and '.join(parts)} on {_article(ground)} ground"


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _draw_shape(
    draw: ImageDraw.ImageDraw,
    shape: str,
    colour: tuple[int, int, int],
    rng: np.random.Generator,
    size: tuple[int, int],
) -> None:
    height, width = size
    radius = rng.uniform(0.08, 0.3) * min(height, width)
    x, y = rng.uniform(0.1, 0.9) * width, rng.uniform(0.1, 0.9) * height
    if shape == "circle":
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
    elif shape == "square":
        draw.rectangle((x - radius, y - radius, x + radius, y + radius), fill=colour)
    elif shape == "triangle":
        draw.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=colour)
    else:
        draw.line((x - 2 * radius, y - radius, x + 2 * radius, y + radius), fill=colour, width=max(1, int(radius / 3)))


def _texture(size: tuple[int, int], seed: int) -> npt.NDArray[np.int16]:
    """Grain of several scales, finer ones fainter, like a photograph's: [2h, 2w], of which pictures take windows."""
    height, width = 2 * size[0], 2 * size[1]
    rng = derive(seed, "texture")
    texture = np.zeros((height, width), np.float32)
    for scale, strength in ((1, 6.0), (2, 8.5), (4, 8.0), (16, 10.0), (64, 14.0)):
        rows, columns = -(-height // scale), -(-width // scale)
        layer = Image.fromarray(rng.normal(0, strength, (rows, columns)).astype(np.float32))  # [rows, columns]
        texture += np.asarray(layer.resize((width, height), Image.Resampling.BICUBIC))
    return texture.astype(np.int16)
