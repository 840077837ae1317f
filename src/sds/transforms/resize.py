"""Images of any size -> images of the size that training wants: cropped, stretched or padded, then resampled.

Comes in: a picture [c, h, w]. Goes out: a contiguous tensor [c, h, w] of the same type. What is random (the place of a
crop, a size drawn from several, a flip) is drawn from the sample's own generator, and is the same for all pictures of a
sample: an image and its mask, or the two of a pair, are cut and turned alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError
from sds.transforms import geometry
from sds.transforms.base import SampleTransform, check_choice, check_field, check_size, check_weights, rng
from sds.transforms.pixels import check_colour, check_interpolation, contiguous, resample, to_tensor
from sds.types import Sample

__all__ = ["FITS", "FlipImage", "ResizeImage"]

FITS = ("crop", "random_crop", "stretch", "pad")


class ResizeImage(SampleTransform):
    """Resizes an image to (h, w) with antialiasing; by default the centre is cropped to the target's aspect first.

    Takes a tensor [c, h, w] (uint8 or floating), an array [h, w, c] or a Pillow image; gives a contiguous tensor
    [c, h, w] of the same type. Bilinear agrees with Pillow's to one level, bicubic and lanczos to one level on average.

    Args:
        input_field: holds the image.
        output_field: gets the result. Default: the input field.
        resolution: the (h, w) to reach.
        crop_before_resize: False is another way to say fit='stretch'.
        interpolation_mode: 'bilinear', 'bicubic', 'lanczos' (with a recent torch) or 'nearest' (without antialiasing).
        fit: what becomes of an image with another aspect. 'crop': its edges are cut off evenly; 'random_crop': a random
            part of the same size is taken; 'stretch': it is distorted; 'pad': it is shown whole, with bars.
        allow_vertical: an image that is higher than wide gets the resolution higher than wide: (256, 384) becomes
            (384, 256). Batches then hold two shapes.
        random_resize: {(h, w): weight}: resolutions to draw from instead. Those larger than the image are left out; if
            all are, it is `resolution`.
        pad_colour: of the bars, red, green and blue from 0 to 255; an image of other than three channels takes the
            first. A floating image takes it as it is: give it in the range of its values.
    """

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        *,
        resolution: tuple[int, int],
        crop_before_resize: bool = True,
        interpolation_mode: str = "bilinear",
        fit: str | None = None,
        allow_vertical: bool = False,
        random_resize: Mapping[tuple[int, int], float] | None = None,
        pad_colour: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.resolution = check_size("resolution", resolution)
        self.crop_before_resize = bool(crop_before_resize)
        self.interpolation_mode = check_interpolation(interpolation_mode)
        self.fit = None if fit is None else check_choice("fit", fit, FITS)
        if self.fit not in (None, "stretch") and not self.crop_before_resize:
            raise OptionError(f"fit contradicts crop_before_resize=False: {fit!r}", hint="give only fit")
        self.allow_vertical = bool(allow_vertical)
        self.random_resize = None if random_resize is None else _check_sizes(random_resize)
        self.pad_colour = check_colour("pad_colour", pad_colour)
        self._fit = self.fit or ("crop" if self.crop_before_resize else "stretch")

    @property
    def largest(self) -> tuple[int, int]:
        """The height and width that no result exceeds."""
        sizes = [self.resolution, *(self.random_resize or ())]
        if self.allow_vertical:
            sizes += [geometry.upright((2, 1), size) for size in sizes]
        return max(h for h, _ in sizes), max(w for _, w in sizes)

    def __call__(self, sample: Sample) -> Sample:
        """Resizes the input field into the output field."""
        given = to_tensor(sample, self.input_field)  # [c, h, w]
        height, width = given.shape[1:]
        target = self._target(sample, (height, width))
        is_there = (height, width) == target
        sample[self.output_field] = contiguous(given) if is_there else self._resized(sample, given.numpy(), target)
        return sample

    def part_of(self, size: geometry.Size) -> geometry.Box:
        """The part of an image of this size that its result is made of, as far as one can tell without the sample."""
        if self._fit != "crop" or self.random_resize is not None:
            return 0, 0, *size
        return geometry.crop_to_aspect(size, self._turned(self.resolution, size))

    def of_pixels(self, sample: Sample, pixels: npt.NDArray[Any]) -> torch.Tensor:
        """What becomes of an image [h, w, c]: [c, *target], in its place in the batch or in memory of its own."""
        height, width, _ = pixels.shape
        return self._resized(sample, pixels.transpose(2, 0, 1), self._target(sample, (height, width)))

    def _resized(self, sample: Sample, image: npt.NDArray[Any], target: tuple[int, int]) -> torch.Tensor:
        """An image [c, h, w] -> [c, *target], contiguous, in memory that nobody else has."""
        if self._fit == "pad":
            return self._padded(image, target)
        _, height, width = image.shape
        if self._fit != "stretch" and (height, width) != target:
            if self._fit == "random_crop":
                box = geometry.random_crop_to_aspect((height, width), target, rng(sample, "crop"))
            else:
                box = geometry.crop_to_aspect((height, width), target)
            top, left, height, width = box
            image = image[:, top : top + height, left : left + width]  # [c, crop_h, crop_w]
        return resample(image, target, self.interpolation_mode, self.output_field)

    def _target(self, sample: Sample, size: tuple[int, int]) -> tuple[int, int]:
        target = self.resolution
        if self.random_resize is not None:
            fitting = [each for each in self.random_resize if each[0] <= size[0] and each[1] <= size[1]]
            weights = np.array([self.random_resize[each] for each in fitting])
            if weights.sum() > 0:
                chosen = rng(sample, "resolution").choice(len(fitting), p=weights / weights.sum())
                target = fitting[int(chosen)]
        return self._turned(target, size)

    def _turned(self, target: geometry.Size, size: geometry.Size) -> geometry.Size:
        return geometry.upright(size, target) if self.allow_vertical else target

    def _padded(self, image: npt.NDArray[Any], target: tuple[int, int]) -> torch.Tensor:
        top, left, height, width = geometry.fit_inside((image.shape[1], image.shape[2]), target)
        inner = resample(image, (height, width), self.interpolation_mode).numpy()  # [c, height, width]
        colour = self.pad_colour if len(inner) == 3 else self.pad_colour[:1] * len(inner)
        canvas = np.empty((len(inner), *target), inner.dtype)  # [c, *target]
        canvas[:] = np.array(colour)[:, None, None]
        canvas[:, top : top + height, left : left + width] = inner
        return torch.from_numpy(canvas)


class FlipImage(SampleTransform):
    """Mirrors an image [c, h, w] or a video [t, c, h, w] from left to right, some of the time.

    Args:
        input_field: holds the tensor.
        output_field: gets the result, contiguous. Default: the input field.
        probability: of a flip, from 0 to 1.
    """

    def __init__(self, input_field: str, output_field: str | None = None, *, probability: float = 0.5) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability <= 1:
            raise OptionError(f"probability is not between 0 and 1: {probability!r}", hint="such as 0.5")
        self.probability = probability

    def __call__(self, sample: Sample) -> Sample:
        """Flips the input field into the output field, or not."""
        image = sample.get(self.input_field)
        if not isinstance(image, torch.Tensor) or image.ndim != 4:
            image = to_tensor(sample, self.input_field)  # [..., c, h, w]
        if rng(sample, "flip").random() < self.probability:
            image = torch.from_numpy(np.ascontiguousarray(image.numpy()[..., ::-1]))
        sample[self.output_field] = image
        return sample


def _check_sizes(sizes: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    if not isinstance(sizes, Mapping) or not sizes:
        raise OptionError(f"random_resize is not a mapping: {sizes!r}", hint="give {(256, 256): 0.5, (512, 512): 0.5}")
    weights = check_weights("random_resize", sizes.values(), len(sizes))
    return dict(zip((check_size("random_resize", size) for size in sizes), weights, strict=True))
