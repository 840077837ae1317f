"""Images: a path or bytes -> uint8 tensor [3, h, w] -> the size, shape and type that training wants.

What flows from decoding to resizing is a tensor [3, h, w] over the decoder's own [h, w, 3] memory, which is what torch
resizes fastest; what leaves ResizeImage is contiguous. Every step works in the calling thread alone: pixels are moved
by NumPy, because torch's copies spread over its intra-op threads and would compete with the loader's decode threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import interpolate

from sds.errors import OptionError
from sds.transforms import jpeg, pillow
from sds.transforms.base import SampleTransform, check_field, check_int, check_size, decode_error, require, wrong
from sds.transforms.source import read_bytes
from sds.types import Sample

__all__ = ["ConvertImageToByteTensor", "DecodeImage", "NormalizeFrames", "ReshapeImageAsVideo", "ResizeImage"]

MAX_PIXELS = 89_478_485  # Pillow's own limit of what is surely no decompression bomb: 256 MB of RGB
INTERPOLATIONS = ("bilinear", "bicubic", "nearest")


class DecodeImage(SampleTransform):
    """Decodes a path or bytes to a uint8 RGB tensor [3, h, w], upright.

    JPEG goes through TurboJPEG, the rest (PNG, WebP, GIF's first frame, AVIF, BMP, TIFF, JPEG 2000, PPM, and CMYK JPEG)
    through Pillow. Grey and palette become RGB, 16 bits become 8, the EXIF orientation is applied, colour profiles are
    not. The tensor is a view of [h, w, 3] memory: ask for `.contiguous()` if you need [3, h, w] memory.

    Args:
        input_field: holds the path or the bytes.
        output_field: gets the tensor. Default: the input field.
        min_size: (h, w) that the image may be decoded down to, for speed: a JPEG twice as large (or 4, 8 times) is
            halved by its decoder. None: full size. The result is never smaller than this unless the image is.
        background: the colour that transparent pixels are put over; None drops transparency and shows what is under it.
        max_pixels: larger images are a DecodeError before any memory is taken.

    Raises:
        DecodeError: the file is absent, broken, cut short, too large, or of no known format.
    """

    stage = "decode"

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        *,
        min_size: tuple[int, int] | None = None,
        background: tuple[int, int, int] | None = (255, 255, 255),
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.min_size = None if min_size is None else check_size("min_size", min_size)
        self.background = None if background is None else _check_colour(background)
        self.max_pixels = check_int("max_pixels", max_pixels)

    def __call__(self, sample: Sample) -> Sample:
        """Decodes the input field into the output field."""
        max_bytes = 8 * self.max_pixels + 1_000_000  # raw 16-bit RGBA and its metadata
        data, path = read_bytes(sample, self.input_field, "image", max_bytes)
        try:
            pixels = self._decode(data)  # [h, w, 3]
        except Exception as error:  # the boundary to foreign decoders, which raise anything
            reason = str(error).strip() or type(error).__name__
            raise decode_error(sample, "image", reason, field=self.input_field, path=path) from error
        # a flipped view has negative strides, which tensors cannot have
        pixels = pixels if pixels.flags.c_contiguous else np.ascontiguousarray(pixels)
        sample[self.output_field] = torch.from_numpy(pixels).permute(2, 0, 1)  # [3, h, w]
        return sample

    def _decode(self, data: bytes) -> npt.NDArray[np.uint8]:
        if data.startswith(b"\xff\xd8"):
            header = jpeg.scan(data)
            if header.height * header.width > self.max_pixels:
                raise ValueError(f"{header.width} x {header.height} pixels are more than max_pixels={self.max_pixels}")
            turned = header.orientation >= 5
            size = (header.width, header.height) if turned else (header.height, header.width)  # upright
            pixels = jpeg.decode(data, header, jpeg.reduction(size, self.min_size))
            if pixels is not None:
                return jpeg.orient(pixels, header.orientation)
        return pillow.decode(data, self.max_pixels, self.background)


class ResizeImage(SampleTransform):
    """Resizes an image to (h, w) with antialiasing; by default the centre is cropped to the target's aspect first.

    Takes a tensor [c, h, w] (uint8 or floating), an array [h, w, c] or a Pillow image; gives a contiguous tensor
    [c, h, w] of the same type. Bilinear agrees with Pillow's to one level, bicubic to one level on average.

    Args:
        input_field: holds the image.
        output_field: gets the result. Default: the input field.
        resolution: the (h, w) to reach.
        crop_before_resize: False stretches the whole image instead.
        interpolation_mode: 'bilinear', 'bicubic' or 'nearest' (without antialiasing).
    """

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        *,
        resolution: tuple[int, int],
        crop_before_resize: bool = True,
        interpolation_mode: str = "bilinear",
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.resolution = check_size("resolution", resolution)
        self.crop_before_resize = bool(crop_before_resize)
        if interpolation_mode not in INTERPOLATIONS:
            raise OptionError(
                f"interpolation_mode is unknown: {interpolation_mode!r}", hint=f"choose one of {list(INTERPOLATIONS)}"
            )
        self.interpolation_mode = interpolation_mode

    def __call__(self, sample: Sample) -> Sample:
        """Resizes the input field into the output field."""
        image = _to_tensor(sample, self.input_field)  # [c, h, w]
        height, width = image.shape[1:]
        if self.crop_before_resize:
            top, left, height, width = crop_to_aspect((height, width), self.resolution)
            image = image[:, top : top + height, left : left + width]  # [c, crop_h, crop_w]
        if (height, width) != self.resolution:
            # one copy, to memory [h, w, c] without gaps
            pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())  # [crop_h, crop_w, c]
            batch = torch.from_numpy(pixels[None]).permute(0, 3, 1, 2)  # [1, c, crop_h, crop_w], channels last
            if self.interpolation_mode == "nearest":
                image = interpolate(batch, self.resolution, mode="nearest-exact")[0]  # [c, h, w]
            else:
                image = interpolate(batch, self.resolution, mode=self.interpolation_mode, antialias=True)[0]
        sample[self.output_field] = _contiguous(image)  # [c, h, w]
        return sample


class ConvertImageToByteTensor(SampleTransform):
    """Any image (Pillow image, array [h, w] or [h, w, c], tensor [c, h, w]) -> contiguous uint8 RGB tensor [3, h, w].

    Grey is repeated, a fourth channel of an array or tensor is dropped, a Pillow image's transparency is put over
    white. Values must be uint8 already.

    Args:
        input_field: holds the image.
        output_field: gets the tensor. Default: the input field.
    """

    def __init__(self, input_field: str, output_field: str | None = None) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Converts the input field into the output field."""
        image = _to_tensor(sample, self.input_field)  # [c, h, w]
        if image.dtype != torch.uint8:
            raise wrong(
                sample, f"image is not uint8: {self.input_field!r} is {image.dtype}", hint="convert it before this"
            )
        image = image[:1].expand(3, -1, -1) if image.shape[0] <= 2 else image[:3]  # [3, h, w]
        sample[self.output_field] = _contiguous(image)
        return sample


class ReshapeImageAsVideo(SampleTransform):
    """Makes an image tensor [c, h, w] a video of one frame [1, c, h, w]; the same memory.

    Args:
        input_field: holds the image.
        output_field: gets the video.
    """

    def __init__(self, input_field: str, output_field: str | None = None) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Adds the time dimension."""
        sample[self.output_field] = _to_tensor(sample, self.input_field)[None]  # [1, c, h, w]
        return sample


class NormalizeFrames(SampleTransform):
    """Maps uint8 0..255 of any shape to float32 -1..1 (both ends exact): x / 127.5 - 1.

    Args:
        input_field: holds a uint8 tensor: an image [c, h, w] or a video [t, c, h, w].
        output_field: gets the float32 tensor. Default: the input field.
    """

    def __init__(self, input_field: str, output_field: str | None = None) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Normalises the input field into the output field."""
        frames = require(sample, self.input_field)
        if not isinstance(frames, torch.Tensor) or frames.dtype != torch.uint8:
            found = frames.dtype if isinstance(frames, torch.Tensor) else type(frames).__name__
            raise wrong(
                sample, f"frames are not a uint8 tensor: {self.input_field!r} is {found}", hint="normalise only once"
            )
        values = frames.numpy().astype(np.float32)
        values /= 127.5
        values -= 1.0
        sample[self.output_field] = torch.from_numpy(values)
        return sample


def crop_to_aspect(size: tuple[int, int], target: tuple[int, int]) -> tuple[int, int, int, int]:
    """The largest centred (top, left, height, width) of an image of `size` with the aspect of `target`."""
    (height, width), (target_height, target_width) = size, target
    crop_height = min(height, max(1, round(width * target_height / target_width)))
    crop_width = min(width, max(1, round(height * target_width / target_height)))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def _to_tensor(sample: Sample, field: str) -> torch.Tensor:
    """The field's image as a tensor [c, h, w], whatever it is now."""
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


def _contiguous(image: torch.Tensor) -> torch.Tensor:
    """The tensor in memory of its own order; NumPy does it in this thread, torch would wake its others."""
    return image if image.is_contiguous() else torch.from_numpy(np.ascontiguousarray(image.numpy()))


def _check_colour(background: tuple[int, int, int]) -> tuple[int, int, int]:
    hint = "give red, green and blue from 0 to 255, such as (255, 255, 255), or None to drop transparency"
    try:
        red, green, blue = (check_int("background", part, minimum=0) for part in background)
    except (TypeError, ValueError):
        raise OptionError(f"background is not a colour: {background!r}", hint=hint) from None
    if max(red, green, blue) > 255:
        raise OptionError(f"background is not a colour: {background!r}", hint=hint)
    return red, green, blue
