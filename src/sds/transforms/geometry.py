"""Which pixels of a picture make the resized one: sizes (h, w) and boxes (top, left, height, width). Pure numbers.

Comes in: the size of a picture and the one wanted. Goes out: the part to crop, or the part of the result to fill. A box
always lies inside its picture and has at least one pixel.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np

__all__ = ["Box", "Size", "crop_to_aspect", "fit_inside", "random_crop_to_aspect", "upright"]

Size: TypeAlias = tuple[int, int]
Box: TypeAlias = tuple[int, int, int, int]


def crop_to_aspect(size: Size, target: Size) -> Box:
    """The largest centred box of a picture of `size` with the aspect of `target`."""
    height, width = _largest(size, target)
    return (size[0] - height) // 2, (size[1] - width) // 2, height, width


def random_crop_to_aspect(size: Size, target: Size, generator: np.random.Generator) -> Box:
    """The largest box with the aspect of `target`, at a random place: the same for the same draws at any scale."""
    height, width = _largest(size, target)
    down, across = generator.random(2)
    top, left = int(down * (size[0] - height + 1)), int(across * (size[1] - width + 1))
    return top, left, height, width


def fit_inside(size: Size, target: Size) -> Box:
    """The largest centred box of a picture of size `target` with the aspect of `size`: where the whole of it fits."""
    return crop_to_aspect(target, size)


def upright(size: Size, resolution: Size) -> Size:
    """The resolution for a picture of `size`: higher than wide if the picture is."""
    return (max(resolution), min(resolution)) if size[0] > size[1] else resolution


@lru_cache(1024)
def _largest(size: Size, target: Size) -> Size:
    (height, width), (target_height, target_width) = size, target
    crop_height = min(height, max(1, round(width * target_height / target_width)))
    crop_width = min(width, max(1, round(height * target_width / target_height)))
    return crop_height, crop_width
