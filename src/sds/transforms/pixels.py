"""Pictures in memory: any kind -> tensor [c, h, w], its memory in order, and resampling with antialiasing.

Every step works in the calling thread alone: pixels are moved by NumPy and by C of our own (_native.c), because torch's
copies spread over its intra-op threads and would compete with the loader's decode threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from sds.errors import OptionError
from sds.transforms import pillow
from sds.transforms.base import check_choice, check_int, decode_error, require, wrong
from sds.transforms.native import native
from sds.transforms.places import Place, place_for
from sds.transforms.scratch import Sheet, scratch
from sds.types import Sample

__all__ = ["INTERPOLATIONS", "check_colour", "check_interpolation", "contiguous", "resample", "to_tensor"]

INTERPOLATIONS = ("bilinear", "bicubic", "lanczos", "nearest")

# what interpolate() calls in the end: its own checks take as long as the rest of a sample's Python
_ANTIALIASED: dict[str, Callable[..., torch.Tensor]] = {
    "bilinear": torch._C._nn._upsample_bilinear2d_aa,
    "bicubic": torch._C._nn._upsample_bicubic2d_aa,
}


def to_tensor(sample: Sample, field: str) -> torch.Tensor:
    """The field's picture as a tensor [c, h, w], whatever it is now."""
    value: Any = require(sample, field)
    if not isinstance(value, torch.Tensor | np.ndarray) and hasattr(value, "getchannel"):  # a Pillow image
        try:
            value = np.array(pillow.to_rgb(value, (255, 255, 255)))  # [h, w, 3]
        except Exception as error:  # Pillow decodes late, and raises anything
            raise decode_error(sample, "image", error, field=field) from error
    if isinstance(value, np.ndarray):
        value = value[:, :, None] if value.ndim == 2 else value  # [h, w, c]
        value = torch.from_numpy(np.require(value, requirements=("C", "W"))).movedim(-1, 0)  # [c, h, w]
    if not isinstance(value, torch.Tensor) or value.ndim != 3 or value.numel() == 0:
        found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise wrong(
            sample,
            f"field is not an image [c, h, w]: {field!r} is {found}",
            hint="decode it first, with DecodeImage for one",
        )
    return value


def contiguous(image: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own order; NumPy does it in this thread, torch would wake its others."""
    return image if image.is_contiguous() else torch.from_numpy(np.ascontiguousarray(image.numpy()))


def resample(image: npt.NDArray[Any], size: tuple[int, int], mode: str, field: str | None = None) -> torch.Tensor:
    """Resizes [c, h, w] to `size`, with antialiasing unless the mode is 'nearest'.

    The result is contiguous: in the batch's memory for `field`, if there is some, or in memory of its own.
    """
    if image.shape[1:] == size:
        return torch.from_numpy(np.array(image, order="C"))
    pixels = image.transpose(1, 2, 0)  # [h, w, c]
    if mode in _ANTIALIASED and native is not None and _is_for_native(pixels, size):
        place = _place((pixels.shape[2], *size), pixels.dtype, torch.uint8, field)
        native.resample(pixels if _has_whole_rows(pixels) else _gathered(pixels).pixels, place.array, mode)
        return place.tensor
    sheet = Sheet.of(pixels) if pixels.flags.c_contiguous else _gathered(pixels)
    if mode in _ANTIALIASED:
        return _antialiased(sheet, size, mode, field)
    if mode == "nearest":
        resized = interpolate(sheet.batch, size, mode="nearest-exact")  # [1, c, *size]
    else:
        resized = interpolate(sheet.batch, size, mode=mode, antialias=True)
    return contiguous(torch.from_numpy(resized.numpy()[0]))  # NumPy's view: torch's would let go of Python


def _is_for_native(pixels: npt.NDArray[Any], size: tuple[int, int]) -> bool:
    """Whether our C takes such pixels [h, w, c] to such a size; torch takes the others."""
    return pixels.dtype == np.uint8 and max(*pixels.shape, *size) <= native.LONGEST


def _has_whole_rows(pixels: npt.NDArray[np.uint8]) -> bool:
    """Whether the pixels [h, w, c] of a row follow one another; rows may lie apart, as those of a part cut out do."""
    _, width, channels = pixels.shape
    _, of_pixel, of_channel = pixels.strides
    return (of_pixel == channels or width == 1) and (of_channel == 1 or channels == 1)


def _gathered(pixels: npt.NDArray[Any]) -> Sheet:
    """A copy in memory without gaps, which is what is resized fastest."""
    sheet = scratch("cut", pixels.shape, pixels.dtype)
    sheet.pixels[...] = pixels
    return sheet


def _place(shape: tuple[int, ...], dtype: npt.DTypeLike, of_tensor: torch.dtype, field: str | None) -> Place:
    """Where a result goes: into the batch, or to memory of its own.

    That is NumPy's: torch's may be on another device, by default.
    """
    place = None if field is None else place_for(field, shape, of_tensor)
    if place is not None:
        return place
    array = np.empty(shape, dtype)
    return Place(torch.from_numpy(array), array)


def _antialiased(sheet: Sheet, size: tuple[int, int], mode: str, field: str | None) -> torch.Tensor:
    """By torch: floating images, and bytes where there is no C.

    Resized as [h, w, c], then copied: that takes four fifths of the time in which torch writes [c, h, w] itself.
    """
    resized = scratch("resized", (*size, sheet.pixels.shape[2]), sheet.pixels.dtype)
    _ANTIALIASED[mode](sheet.batch, size, False, None, None, out=resized.batch)
    pixels = resized.pixels.transpose(2, 0, 1)  # [c, *size]
    place = _place(pixels.shape, pixels.dtype, resized.batch.dtype, field)
    place.array[...] = pixels
    return place.tensor


def check_interpolation(mode: str) -> str:
    """A mode that this torch has."""
    check_choice("interpolation_mode", mode, INTERPOLATIONS)
    if mode == "lanczos":
        try:
            interpolate(torch.zeros(1, 1, 2, 2), (1, 1), mode=mode, antialias=True)
        except (NotImplementedError, RuntimeError, ValueError):
            raise OptionError(
                f"interpolation_mode needs a newer torch than {torch.__version__}: {mode!r}",
                hint="upgrade torch, or choose 'bicubic'",
            ) from None
    return mode


def check_colour(option: str, colour: tuple[int, int, int]) -> tuple[int, int, int]:
    """Red, green and blue from 0 to 255."""
    hint = "give red, green and blue from 0 to 255, such as (255, 255, 255)"
    try:
        red, green, blue = (check_int(option, part, minimum=0) for part in colour)
    except (TypeError, ValueError):
        raise OptionError(f"{option} is not a colour: {colour!r}", hint=hint) from None
    if max(red, green, blue) > 255:
        raise OptionError(f"{option} is not a colour: {colour!r}", hint=hint)
    return red, green, blue
