"""Waveforms that are decoded already: their type, channels, rate, length and loudness.

Comes in: a tensor [c, t]. Goes out: float32 [c, t] in [-1, 1]. Every step works in the calling thread alone, on NumPy's
view of the tensor.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_choice, check_field, check_int, require, wrong
from sds.transforms.loudness import integrated_lufs, peak_db, rms_db, within_scale
from sds.transforms.options import check_optional_field, check_positive, load_package, number_of
from sds.types import Sample

__all__ = ["AverageAudio", "ConvertAudioToFloatTensor", "NormalizeAudio", "ResizeAudio"]

Waveform = npt.NDArray[np.float32]

QUALITIES = ("QQ", "LQ", "MQ", "HQ", "VHQ")
# what each measure is brought to: a peak of 0.95, a speaking voice, the loudness of broadcasts
_TARGETS_DB = {"peak": 20 * math.log10(0.95), "rms": -20.0, "lufs": -23.0}


class ConvertAudioToFloatTensor(SampleTransform):
    """Any waveform (array or tensor, [t] or [c, t], integers or floats) -> float32 tensor [c, t] in [-1, 1].

    Integers are divided by their full scale (uint8 has its zero at 128). Floats are clipped.

    Args:
        input_field: holds the waveform.
        output_field: gets the tensor. Default: the input field.
    """

    def __init__(self, input_field: str, output_field: str | None = None) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Converts the input field into the output field."""
        sample[self.output_field] = torch.from_numpy(_waveform(sample, self.input_field))  # [c, t]
        return sample


class AverageAudio(SampleTransform):
    """Makes a waveform mono: the mean of its channels, [1, t].

    Args:
        input_field: holds the waveform.
        output_field: gets the result. Default: the input field.
    """

    def __init__(self, input_field: str, output_field: str | None = None) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)

    def __call__(self, sample: Sample) -> Sample:
        """Averages the input field into the output field."""
        waveform = _waveform(sample, self.input_field)  # [c, t]
        mono = waveform if len(waveform) == 1 else waveform.mean(axis=0, keepdims=True, dtype=np.float32)
        sample[self.output_field] = torch.from_numpy(mono)  # [1, t]
        return sample


class ResizeAudio(SampleTransform):
    """Brings a waveform to another sample rate, and to an exact length: the end is cut off, or silence is added.

    Args:
        audio_input_field: holds the waveform.
        original_sr_input_field: holds its sample rate.
        target_audio_sr: the sample rate to reach.
        output_field: gets the result. Default: the input field.
        clip_duration_field: holds the length to reach, in seconds: round(target_audio_sr * seconds) samples.
        duration: the same for all samples. With neither, the length stays what it is.
        quality: of the resampling, in soxr's words: 'HQ' is transparent for 20 bits, 'VHQ' for 28; 'QQ', 'LQ', 'MQ'.
    """

    def __init__(
        self,
        audio_input_field: str,
        original_sr_input_field: str,
        target_audio_sr: int,
        output_field: str | None = None,
        clip_duration_field: str | None = None,
        *,
        duration: float | None = None,
        quality: str = "HQ",
    ) -> None:
        load_package("soxr", "audio")
        self.audio_input_field = check_field("audio_input_field", audio_input_field)
        self.original_sr_input_field = check_field("original_sr_input_field", original_sr_input_field)
        self.target_audio_sr = check_int("target_audio_sr", target_audio_sr)
        self.output_field = check_field("output_field", audio_input_field if output_field is None else output_field)
        self.clip_duration_field = check_optional_field("clip_duration_field", clip_duration_field)
        self.duration = None if duration is None else check_positive("duration", duration, unit="seconds")
        if duration is not None and clip_duration_field is not None:
            raise OptionError("duration and clip_duration_field are both given", hint="give one of them")
        self.quality = check_choice("quality", quality, QUALITIES)

    def __call__(self, sample: Sample) -> Sample:
        """Resizes the input field into the output field."""
        waveform = _waveform(sample, self.audio_input_field)  # [c, t]
        original = number_of(sample, self.original_sr_input_field)
        if original <= 0:
            raise wrong(
                sample,
                f"sample rate is not positive: {self.original_sr_input_field!r} is {original}",
                hint="decode with original_sr_output_field",
            )
        seconds = waveform.shape[1] / original if self.duration is None else self.duration
        if self.clip_duration_field is not None:
            seconds = number_of(sample, self.clip_duration_field)
        if waveform.shape[1] and original != self.target_audio_sr:
            resample: Any = load_package("soxr", "audio").resample
            waveform = resample(waveform.T, original, self.target_audio_sr, self.quality).T  # [c, t']
            waveform = within_scale(waveform)  # a filter may ring over full scale
        length = max(0, round(self.target_audio_sr * seconds))
        result = np.zeros((len(waveform), length), np.float32)
        kept = min(length, waveform.shape[1])
        result[:, :kept] = waveform[:, :kept]
        sample[self.output_field] = torch.from_numpy(result)  # [c, length]
        return sample


class NormalizeAudio(SampleTransform):
    """Brings a waveform to a loudness by one gain for all of it; silence stays silence, nothing is clipped.

    A gain that would push a sample over full scale is lowered to reach just that.

    Args:
        input_field: holds the waveform.
        output_field: gets the result. Default: the input field.
        measure: 'peak' (the largest sample), 'rms' (root mean square), or 'lufs' (the gated loudness of ITU-R BS.1770).
        target_db: where to bring it, dB of full scale or LUFS. Default: -0.45 for peaks (that is 0.95), -20 for RMS,
            -23 for LUFS.
        max_gain_db: never amplify by more than this.
        sample_rate: of the waveform, for 'lufs'.
        sample_rate_field: holds it instead.
    """

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        *,
        measure: str = "peak",
        target_db: float | None = None,
        max_gain_db: float = math.inf,
        sample_rate: int | None = None,
        sample_rate_field: str | None = None,
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.measure = check_choice("measure", measure, tuple(_TARGETS_DB))
        if target_db is not None and not -200 < target_db <= 0:
            raise OptionError(f"target_db is not between -200 and 0: {target_db!r}", hint="full scale is 0 dB")
        self.target_db = target_db
        if not max_gain_db >= 0:
            raise OptionError(f"max_gain_db is not a gain: {max_gain_db!r}", hint="give dB, such as 30")
        self.max_gain_db = max_gain_db
        self.sample_rate = None if sample_rate is None else check_int("sample_rate", sample_rate)
        self.sample_rate_field = check_optional_field("sample_rate_field", sample_rate_field)
        if measure == "lufs" and (sample_rate is None) == (sample_rate_field is None):
            raise OptionError("measure='lufs' needs the sample rate", hint="give sample_rate or sample_rate_field")

    def __call__(self, sample: Sample) -> Sample:
        """Normalises the input field into the output field."""
        waveform = _waveform(sample, self.input_field)  # [c, t]
        level = self._level(waveform, sample)
        if level > -math.inf:
            target = _TARGETS_DB[self.measure] if self.target_db is None else self.target_db
            gain_db = min(target - level, self.max_gain_db, -peak_db(waveform))
            waveform = np.clip(waveform * np.float32(10 ** (gain_db / 20)), -1, 1)
        sample[self.output_field] = torch.from_numpy(waveform)  # [c, t]
        return sample

    def _level(self, waveform: Waveform, sample: Sample) -> float:
        if self.measure == "peak":
            return peak_db(waveform)
        if self.measure == "rms":
            return rms_db(waveform)
        rate = self.sample_rate
        if self.sample_rate_field is not None:
            rate = round(number_of(sample, self.sample_rate_field))
        assert rate is not None
        return integrated_lufs(waveform, rate) if waveform.shape[1] else -math.inf


def _waveform(sample: Sample, field: str) -> Waveform:
    """The field's waveform as float32 [c, t] in [-1, 1]."""
    value: Any = require(sample, field)
    array = value.numpy() if isinstance(value, torch.Tensor) and not value.is_sparse else value
    is_numeric = isinstance(array, np.ndarray) and array.ndim in (1, 2) and array.dtype.kind in "iuf"
    if not is_numeric or (array.ndim == 2 and len(array) == 0):
        found = list(array.shape) if isinstance(array, np.ndarray) else type(value).__name__
        raise wrong(
            sample,
            f"field is not a waveform [c, t]: {field!r} is {found}",
            hint="decode it first, with DecodeAudio for one",
        )
    array = array[None] if array.ndim == 1 else array
    if array.dtype.kind in "iu":
        scale = 2.0 ** (8 * array.dtype.itemsize - 1)
        array = (array - (scale if array.dtype.kind == "u" else 0.0)) / scale
    return within_scale(array.astype(np.float32, copy=False))
