"""Images: a path or bytes -> uint8 tensor [3, h, w] -> the shape and type that training wants.

What flows from decoding to resizing is a tensor [3, h, w] over the decoder's own [h, w, 3] memory, which is what torch
resizes fastest; what leaves ResizeImage (resize.py) is contiguous. Every step works in the calling thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from sds.transforms import jpeg, pillow
from sds.transforms.base import SampleTransform, check_field, check_int, check_size, decode_error, require, wrong
from sds.transforms.geometry import Box, Size
from sds.transforms.pixels import check_colour, contiguous, to_tensor
from sds.transforms.resize import ResizeImage
from sds.transforms.source import read_bytes
from sds.types import Sample, Transform

__all__ = ["ConvertImageToByteTensor", "DecodeImage", "NormalizeFrames", "ReshapeImageAsVideo"]

MAX_PIXELS = 89_478_485  # Pillow's own limit of what is surely no decompression bomb: 256 MB of RGB


class DecodeImage(SampleTransform):
    """Decodes a path or bytes to a uint8 RGB tensor [3, h, w], upright.

    JPEG goes through C of our own or TurboJPEG, which make the same of it; the rest (PNG, WebP, GIF's first frame,
    AVIF, BMP, TIFF, JPEG 2000, PPM, and CMYK JPEG) through Pillow, HEIF (HEIC) through pillow-heif where that is
    installed. Grey and palette become RGB, 16 bits become 8, the EXIF orientation is applied, colour profiles are not.
    The tensor is a view of [h, w, 3] memory: ask for `.contiguous()` if you need [3, h, w] memory.

    Args:
        input_field: holds the path or the bytes.
        output_field: gets the tensor. Default: the input field.
        min_size: (h, w) that the image may be decoded down to, for speed: a JPEG twice as large (or 4, 8 times) is
            halved by its decoder. None: full size. The result is never smaller than this unless the image is.
        background: the colour that transparent pixels are put over; None drops transparency and shows what is under it.
        max_pixels: larger images are a DecodeError before any memory is taken. What Pillow decodes has its limit too:
            twice `PIL.Image.MAX_IMAGE_PIXELS`, 179 million, which belongs to the whole process. To go above, raise it
            in every process that decodes.

    Raises:
        DecodeError: the file is absent, broken, cut short, too large, or of no known format.
    """

    stage = "decode"
    opens_input = True

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
        self.background = None if background is None else check_colour("background", background)
        self.max_pixels = check_int("max_pixels", max_pixels)

    def __call__(self, sample: Sample) -> Sample:
        """Decodes the input field into the output field."""
        sample[self.output_field] = torch.from_numpy(self.pixels(sample).transpose(2, 0, 1))  # [3, h, w]
        return sample

    def joined(self, following: Transform) -> Transform | None:
        """With a ResizeImage of the same field: the image as it was needs no tensor, nor memory of its own."""
        if type(self) is not DecodeImage or type(following) is not ResizeImage:
            return None
        is_one = self.output_field == following.input_field == following.output_field
        return DecodeAndResize(self, following) if is_one else None

    def pixels(self, sample: Sample, part_of: Callable[[Size], Box] | None = None) -> npt.NDArray[np.uint8]:
        """The pixels of the input field, [h, w, 3] without gaps.

        `part_of` tells of an image of some size which part is needed, and no longer than until this thread decodes
        again: what lies around it may be anything. None: all of it, for as long as one likes.
        """
        max_bytes = 8 * self.max_pixels + 1_000_000  # raw 16-bit RGBA and its metadata
        data, path = read_bytes(sample, self.input_field, "image", max_bytes)
        try:
            pixels = self._decode(data, part_of)  # [h, w, 3]
        except Exception as error:  # the boundary to foreign decoders, which raise anything
            reason = str(error).strip() or type(error).__name__
            raise decode_error(sample, "image", reason, field=self.input_field, path=path) from error
        # a flipped view has negative strides, which tensors cannot have
        return pixels if pixels.flags.c_contiguous else np.ascontiguousarray(pixels)

    def _decode(self, data: bytes, part_of: Callable[[Size], Box] | None) -> npt.NDArray[np.uint8]:
        if data.startswith(b"\xff\xd8"):
            header = jpeg.scan(data)
            if header.height * header.width > self.max_pixels:
                raise ValueError(f"{header.width} x {header.height} pixels are more than max_pixels={self.max_pixels}")
            turned = header.orientation >= 5
            size = (header.width, header.height) if turned else (header.height, header.width)  # upright
            factor = jpeg.reduction(size, self.min_size)
            is_plain = factor == 1 and header.orientation == 1
            part = part_of(size) if part_of is not None and is_plain else None
            pixels = jpeg.decode(data, header, factor, is_scratch=part_of is not None, part=part)
            if pixels is not None:
                return jpeg.orient(pixels, header.orientation)
        return pillow.decode(data, self.max_pixels, self.background)


class DecodeAndResize(SampleTransform):
    """What DecodeImage and ResizeImage do with one field, at once: pixels stay in the processor's cache between them.

    Args:
        decode: makes pixels.
        resize: makes the tensor.
    """

    stage = "decode"
    opens_input = True

    def __init__(self, decode: DecodeImage, resize: ResizeImage) -> None:
        self.input_field = decode.input_field
        self.decode = decode
        self.resize = resize

    def __call__(self, sample: Sample) -> Sample:
        """Decodes and resizes."""
        pixels = self.decode.pixels(sample, self.resize.part_of)  # [h, w, 3]
        sample[self.resize.output_field] = self.resize.of_pixels(sample, pixels)  # [3, *target]
        return sample

    def __repr__(self) -> str:
        return f"{self.decode!r}, {self.resize!r}"


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
        image = to_tensor(sample, self.input_field)  # [c, h, w]
        if image.dtype != torch.uint8:
            raise wrong(
                sample, f"image is not uint8: {self.input_field!r} is {image.dtype}", hint="convert it before this"
            )
        image = image[:1].expand(3, -1, -1) if image.shape[0] <= 2 else image[:3]  # [3, h, w]
        sample[self.output_field] = contiguous(image)
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
        sample[self.output_field] = to_tensor(sample, self.input_field)[None]  # [1, c, h, w]
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
