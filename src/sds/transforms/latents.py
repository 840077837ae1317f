"""VAE latents: the moments that an encoder gave -> one latent drawn from them, by the sample's own generator.

Comes in: a dict with a mean and a log-variance (or a standard deviation), [c, h, w] of an image or [t, c, h, w] of a
video, or both moments in one tensor of twice the channels. Goes out: a float32 tensor of the mean's shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_field, check_int, require, rng, wrong
from sds.types import Sample

__all__ = ["SampleImageLatent", "SampleVideoLatent"]

FloatArray = npt.NDArray[np.float32]
_LOGVAR_RANGE = (-30.0, 20.0)  # what VAEs clip theirs to: beyond it exp() leaves float32


class SampleImageLatent(SampleTransform):
    """Draws a latent [c, h, w] from its moments: mean + exp(logvar / 2) * noise, float32.

    Args:
        input_field: holds a dict, as LoadTensors gives it.
        output_field: gets the latent. Default: the input field.
        mean_field: the dict's name for the mean [c, h, w].
        logvar_field: its name for the log-variance; the dict may have `std_field` instead.
        std_field: its name for the standard deviation.
        moments_field: its name for a tensor [2c, h, w] of mean and log-variance, if it has no mean.
    """

    _num_dims = 3

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        mean_field: str = "mean",
        logvar_field: str = "logvar",
        *,
        std_field: str = "std",
        moments_field: str = "moments",
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.mean_field = check_field("mean_field", mean_field)
        self.logvar_field = check_field("logvar_field", logvar_field)
        self.std_field = check_field("std_field", std_field)
        self.moments_field = check_field("moments_field", moments_field)

    def __call__(self, sample: Sample) -> Sample:
        """Draws the output field from the input field's moments."""
        mean, std = self._moments(sample)  # [c, h, w] each
        sample[self.output_field] = self._draw(sample, mean, std)
        return sample

    def _draw(self, sample: Sample, mean: FloatArray, std: FloatArray) -> torch.Tensor:
        noise = rng(sample, "latent", self.input_field).standard_normal(mean.shape, np.float32)
        noise *= std
        noise += mean
        return torch.from_numpy(noise)

    def _moments(self, sample: Sample) -> tuple[FloatArray, FloatArray]:
        stored = require(sample, self.input_field)
        if not isinstance(stored, Mapping):
            raise self._wrong(sample, f"is {type(stored).__name__}, not a dict")
        if self.mean_field in stored:
            mean = self._array(sample, stored, self.mean_field)
            if self.logvar_field in stored:
                std = _std(self._array(sample, stored, self.logvar_field))
            else:
                std = self._array(sample, stored, self.std_field)
        else:
            moments = self._array(sample, stored, self.moments_field)  # [..., 2c, h, w]
            if moments.shape[-3] % 2:
                raise self._wrong(sample, f"has moments of an odd number of channels: {list(moments.shape)}")
            mean, logvar = np.split(moments, 2, axis=-3)  # [..., c, h, w] each
            std = _std(logvar)
        if mean.shape != std.shape:
            raise self._wrong(sample, f"has moments of two shapes: {list(mean.shape)} and {list(std.shape)}")
        return mean, std

    def _array(self, sample: Sample, stored: Mapping[str, Any], name: str) -> FloatArray:
        if name not in stored:
            raise self._wrong(sample, f"has no {name!r} (it has {sorted(map(str, stored))})")
        try:
            array = torch.as_tensor(stored[name]).to(torch.float32).numpy()
        except (TypeError, ValueError, RuntimeError):
            raise self._wrong(sample, f"has no numbers in {name!r}") from None
        if array.ndim != self._num_dims or array.size == 0:
            form = "[c, h, w]" if self._num_dims == 3 else "[t, c, h, w]"
            raise self._wrong(sample, f"has {name!r} of shape {list(array.shape)}, not {form}")
        return array

    def _wrong(self, sample: Sample, problem: str) -> Exception:
        hint = "a latent is {'mean': [c, h, w], 'logvar': [c, h, w]}; a video's begins with [t, ...]"
        return wrong(sample, f"latent cannot be drawn: field {self.input_field!r} {problem}", hint=hint)


class SampleVideoLatent(SampleImageLatent):
    """Draws a latent [t, c, h, w] from its moments, of all frames or of some at another rate, float32.

    Args:
        input_field: holds a dict, as LoadTensors gives it.
        output_field: gets the latent. Default: the input field.
        mean_field: the dict's name for the mean [t, c, h, w].
        logvar_field: its name for the log-variance; the dict may have `std_field` instead.
        framerate: latent frames are left out to reach it; the dict's `input_framerate` must be a whole multiple. None
            keeps all.
        random_offset: begin at a random frame among those that leave enough; False begins at the first.
        num_frames: how many latent frames to take. None: as many as there are at that rate.
        std_field: the dict's name for the standard deviation.
        moments_field: its name for a tensor [t, 2c, h, w] of mean and log-variance, if it has no mean.
    """

    _num_dims = 4

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        mean_field: str = "mean",
        logvar_field: str = "logvar",
        framerate: float | None = None,
        random_offset: bool = False,
        *,
        num_frames: int | None = None,
        std_field: str = "std",
        moments_field: str = "moments",
    ) -> None:
        super().__init__(
            input_field, output_field, mean_field, logvar_field, std_field=std_field, moments_field=moments_field
        )
        if framerate is not None and not (isinstance(framerate, int | float) and framerate > 0):
            raise OptionError(f"framerate is not a positive number: {framerate!r}", hint="such as 8, or None")
        self.framerate = framerate
        self.random_offset = bool(random_offset)
        self.num_frames = None if num_frames is None else check_int("num_frames", num_frames)

    def __call__(self, sample: Sample) -> Sample:
        """Draws the output field from the input field's moments."""
        mean, std = self._moments(sample)  # [t, c, h, w] each
        step = self._step(sample)
        num_frames = max(1, len(mean) // step) if self.num_frames is None else self.num_frames
        room = len(mean) - (num_frames - 1) * step  # places to begin at
        if room < 1:
            needed = (num_frames - 1) * step + 1
            raise self._wrong(sample, f"has {len(mean)} frames; {num_frames} at every {step} need {needed}")
        start = int(rng(sample, "latent offset", self.input_field).integers(room)) if self.random_offset else 0
        frames = slice(start, start + (num_frames - 1) * step + 1, step)
        sample[self.output_field] = self._draw(sample, mean[frames], std[frames])  # [num_frames, c, h, w]
        return sample

    def _step(self, sample: Sample) -> int:
        if self.framerate is None:
            return 1
        stored = sample[self.input_field].get("input_framerate")
        try:
            ratio = float(stored) / self.framerate
        except (TypeError, ValueError, RuntimeError):
            raise self._wrong(sample, f"has no 'input_framerate': {stored!r}") from None
        if not np.isfinite(ratio) or round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-3 * ratio:
            raise self._wrong(sample, f"has {stored} frames a second, no whole multiple of {self.framerate}")
        return round(ratio)


def _std(logvar: FloatArray) -> FloatArray:
    std: FloatArray = np.exp(logvar.clip(*_LOGVAR_RANGE) * np.float32(0.5))
    return std
