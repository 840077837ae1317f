"""Clips that are decoded already: their size, shape and type.

Comes in: frames as a tensor [t, c, h, w], or a list of images. Goes out: a contiguous tensor [t, c, h, w]. Every step
works in the calling thread alone, frame by frame, as images do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_field, require, wrong
from sds.transforms.image import ConvertImageToByteTensor
from sds.transforms.options import number_of
from sds.transforms.resize import ResizeImage
from sds.types import Sample

__all__ = ["ConvertVideoToByteTensor", "ResizeVideo", "UndistortFrames"]


class ResizeVideo(SampleTransform):
    """Resizes a clip to (h, w) with antialiasing; by default the centre is cropped to the target's aspect first.

    Takes a tensor [t, c, h, w] (uint8 or floating) or a list of images of one size; gives a contiguous tensor
    [t, c, h, w] of the same type. All frames are cut alike, also by a random crop.

    Args:
        input_field: holds the clip.
        output_field: gets the result. Default: the input field.
        resolution: the (h, w) to reach.
        crop_before_resize: False is another way to say fit='stretch'.
        allow_vertical: portrait clips get (w, h) instead. Batches then hold two shapes.
        interpolation_mode: 'bilinear', 'bicubic', 'lanczos' (with a recent torch) or 'nearest' (without antialiasing).
        fit: 'crop', 'random_crop', 'stretch' or 'pad', as of ResizeImage.
        random_resize: {(h, w): weight}: resolutions to draw from instead, as of ResizeImage.
        pad_colour: of the bars.
    """

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        *,
        resolution: tuple[int, int],
        crop_before_resize: bool = True,
        allow_vertical: bool = False,
        interpolation_mode: str = "bilinear",
        fit: str | None = None,
        random_resize: Mapping[tuple[int, int], float] | None = None,
        pad_colour: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self._resize = ResizeImage(
            "frame",
            resolution=resolution,
            crop_before_resize=crop_before_resize,
            interpolation_mode=interpolation_mode,
            fit=fit,
            allow_vertical=allow_vertical,
            random_resize=random_resize,
            pad_colour=pad_colour,
        )
        self.resolution = self._resize.resolution
        self.crop_before_resize = self._resize.crop_before_resize
        self.allow_vertical = self._resize.allow_vertical
        self.interpolation_mode = self._resize.interpolation_mode
        self.fit = self._resize.fit
        self.random_resize = self._resize.random_resize
        self.pad_colour = self._resize.pad_colour

    @property
    def largest(self) -> tuple[int, int]:
        """The height and width that no result exceeds."""
        return self._resize.largest

    def __call__(self, sample: Sample) -> Sample:
        """Resizes the input field into the output field."""
        frames = _frames(sample, self.input_field)
        sample[self.output_field] = _each(self._resize, frames, sample)  # [t, c, h, w]
        return sample


class ConvertVideoToByteTensor(SampleTransform):
    """Any clip (tensor [t, c, h, w], list of images) -> contiguous uint8 RGB tensor [t, 3, h, w].

    Grey is repeated, a fourth channel is dropped. Values must be uint8 already.

    Args:
        input_field: holds the clip.
        output_field: gets the tensor. Default: the input field.
    """

    def __init__(self, input_field: str, output_field: str | None = None) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Converts the input field into the output field."""
        frames = _frames(sample, self.input_field)
        if isinstance(frames, torch.Tensor) and frames.dtype == torch.uint8 and frames.shape[1] == 3:
            pixels = frames if frames.is_contiguous() else torch.from_numpy(np.ascontiguousarray(frames.numpy()))
            sample[self.output_field] = pixels  # [t, 3, h, w]
        else:
            sample[self.output_field] = _each(ConvertImageToByteTensor("frame"), frames, sample)
        return sample


class UndistortFrames(SampleTransform):
    """Gives squeezed frames the aspect of the original again, by stretching their height.

    For videos that were resized to another aspect before they were stored, or whose pixels are not square: the index
    knows the (h, w) that they should be shown in. Frames whose aspect is right within 0.02 stay as they are, as do
    samples whose fields are None.

    Args:
        input_field: holds the clip, [t, c, h, w].
        original_resolution_fields: the fields that hold the original's height and width.
        output_field: gets the result. Default: the input field.
    """

    def __init__(
        self, input_field: str, original_resolution_fields: tuple[str, str], output_field: str | None = None
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        if isinstance(original_resolution_fields, str) or len(tuple(original_resolution_fields)) != 2:
            raise OptionError(
                f"original_resolution_fields are not two field names: {original_resolution_fields!r}",
                hint="give (height field, width field)",
            )
        height, width = (check_field("original_resolution_fields", field) for field in original_resolution_fields)
        self.original_resolution_fields = (height, width)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Stretches the input field into the output field where it must be."""
        frames = _frames(sample, self.input_field)
        sample[self.output_field] = require(sample, self.input_field)
        if any(sample.get(field) is None for field in self.original_resolution_fields):
            return sample
        original = [number_of(sample, field) for field in self.original_resolution_fields]
        if min(original) <= 0:
            raise wrong(sample, f"original resolution is not positive: {original}", hint="leave such rows out")
        aspect = original[1] / original[0]
        height, width = _size(frames[0])
        if math.isclose(aspect, width / height, rel_tol=0, abs_tol=0.02):
            return sample
        target = (max(1, round(width / aspect)), width)
        stretch = ResizeImage("frame", resolution=target, fit="stretch")
        sample[self.output_field] = _each(stretch, frames, sample)
        return sample


def _frames(sample: Sample, field: str) -> Any:
    """The clip as a tensor [t, c, h, w] or a list of images, with at least one frame."""
    frames: Any = require(sample, field)
    is_tensor = isinstance(frames, torch.Tensor) and frames.ndim == 4 and frames.numel() > 0
    if not is_tensor and not (isinstance(frames, list | tuple) and frames):
        found = list(frames.shape) if isinstance(frames, torch.Tensor) else type(frames).__name__
        raise wrong(
            sample,
            f"field is not a clip [t, c, h, w]: {field!r} is {found}",
            hint="decode it first, with DecodeVideo for one",
        )
    return frames


def _size(frame: Any) -> tuple[int, int]:
    """(h, w) of a tensor [c, h, w], an array [h, w, c] or a Pillow image."""
    if isinstance(frame, torch.Tensor):
        return int(frame.shape[-2]), int(frame.shape[-1])
    return (frame.shape[0], frame.shape[1]) if isinstance(frame, np.ndarray) else (frame.height, frame.width)


def _each(transform: ResizeImage | ConvertImageToByteTensor, frames: Any, sample: Sample) -> torch.Tensor:
    """Applies an image transform to each frame, into one tensor [t, c, h, w]."""
    shared: Sample = {name: sample[name] for name in ("__random_seed__", "__sample_key__") if name in sample}
    result: npt.NDArray[Any] | None = None
    for number, frame in enumerate(frames):
        pixels = transform({**shared, "frame": frame})["frame"].numpy()  # [c, h, w]
        if result is None:
            result = np.empty((len(frames), *pixels.shape), pixels.dtype)
        if pixels.shape != result.shape[1:]:
            raise wrong(sample, f"frames differ in shape: {pixels.shape} and {result.shape[1:]}", hint="resize them")
        result[number] = pixels
    return torch.from_numpy(result)
