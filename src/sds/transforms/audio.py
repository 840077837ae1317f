"""Audio: a path or bytes -> a waveform, float32 [c, t] in [-1, 1], or a clip of it chosen by a strategy.

Comes in: an audio file, or a video with sound. Goes out: samples at the file's own rate, and that rate. What comes
after (another rate, one channel, another loudness, an exact length) is in audio_shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import SampleError
from sds.transforms.audio_reader import AudioReader, open_audio
from sds.transforms.base import SampleTransform, check_choice, check_field, check_int, decode_error, rng
from sds.transforms.container import locate, unread
from sds.transforms.loudness import window_db, within_scale
from sds.transforms.options import check_optional_field, check_positive, load_package
from sds.transforms.remote import REMOTE, ranged_fields
from sds.types import Sample

__all__ = ["STRATEGIES", "DecodeAudio"]

STRATEGIES = ("random", "start", "end", "center", "loudest", "random_loud")
_HOP_S = 0.05  # between the windows that are compared for loudness
_MAX_MISSING_S = 0.05  # by which a container's idea of its length may be wrong


@dataclass(frozen=True, slots=True)
class AudioClip:
    """A decoded clip: samples [c, t], their rate, where they begin in the file (samples)."""

    waveform: npt.NDArray[np.float32]
    sample_rate: int
    start: int


class DecodeAudio(SampleTransform):
    """Decodes a clip of an audio file (or of a video's sound) to a float32 tensor [c, t] in [-1, 1].

    WAV, FLAC, MP3, Ogg (Vorbis, Opus), AIFF and others of 8 to 32 bits, AAC, and the sound of MP4 and Matroska files.
    Needs the extra `audio`.

    Args:
        input_field: holds the path or the bytes.
        output_field: gets the tensor. Default: the input field.
        original_sr_output_field: gets the sample rate, an int.
        duration: of the clip, in seconds. None: the whole file.
        clip_offset_strategy: which clip. 'random'; 'start'; 'end'; 'center'; 'loudest': with the highest RMS;
            'random_loud': drawn among those with an RMS above `loudness_cutoff`, the loudest if none is.
        allow_shorter_audio: give a file that is shorter than `duration` as it is, instead of a DecodeError.
        loudness_cutoff: dB of full scale.
        clip_start_output_field: gets the time at which the clip begins, in seconds.
        max_samples: more samples (of all channels) than this are a DecodeError; 'loudest' looks at the whole file.
        remote: how a file is fetched that is not here, as of DecodeVideo; strategies by loudness need all of it.

    Raises:
        DecodeError: the file is absent, broken, cut short, too short, too large, or has no sound.
    """

    stage = "decode"

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        original_sr_output_field: str | None = None,
        *,
        duration: float | None = None,
        clip_offset_strategy: str = "random",
        allow_shorter_audio: bool = False,
        loudness_cutoff: float = -40.0,
        clip_start_output_field: str | None = None,
        max_samples: int = 1 << 28,
        remote: str = "auto",
    ) -> None:
        for package in ("soundfile", "av"):
            load_package(package, "audio")
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.original_sr_output_field = check_optional_field("original_sr_output_field", original_sr_output_field)
        self.duration = None if duration is None else check_positive("duration", duration, unit="seconds")
        strategy = "center" if clip_offset_strategy == "centre" else clip_offset_strategy
        self.clip_offset_strategy = check_choice("clip_offset_strategy", strategy, STRATEGIES)
        self.allow_shorter_audio = bool(allow_shorter_audio)
        self.loudness_cutoff = float(loudness_cutoff)
        self.clip_start_output_field = check_optional_field("clip_start_output_field", clip_start_output_field)
        self.max_samples = check_int("max_samples", max_samples)
        self.remote = check_choice("remote", remote, REMOTE)

    @property
    def reads_ranges(self) -> dict[str, int]:
        """Fields that it can read by byte ranges, and how many bytes an object must have for that to be worth it."""
        needs_all = self.duration is None or self.clip_offset_strategy in ("loudest", "random_loud")
        return {} if needs_all else ranged_fields(self.remote, self.input_field)

    def __call__(self, sample: Sample) -> Sample:
        """Decodes a clip of the input field into the output field."""
        media, path = locate(sample, self.input_field, "audio")
        try:
            with open_audio(media) as reader:
                clip = self._clip(reader, sample)
        except SampleError:
            raise
        except Exception as error:  # the boundary to foreign decoders, which raise anything
            if (missing := unread(media)) is not None:
                raise missing from error
            reason = str(error).strip() or type(error).__name__
            raise decode_error(sample, "audio", reason, field=self.input_field, path=path) from error
        if (missing := unread(media)) is not None:
            raise missing  # the decoder took it for the end of the file
        sample[self.output_field] = torch.from_numpy(within_scale(clip.waveform))  # [c, t]
        if self.original_sr_output_field is not None:
            sample[self.original_sr_output_field] = clip.sample_rate
        if self.clip_start_output_field is not None:
            sample[self.clip_start_output_field] = clip.start / clip.sample_rate
        return sample

    def _clip(self, reader: AudioReader, sample: Sample) -> AudioClip:
        total, rate = reader.num_samples, reader.sample_rate
        length = total if self.duration is None else max(1, round(self.duration * rate))
        if total == 0:
            raise ValueError("it has no samples")
        if length > total + _MAX_MISSING_S * rate and not self.allow_shorter_audio:
            raise ValueError(f"it is shorter than {self.duration:g} s: {total / rate:.3f} s (see allow_shorter_audio)")
        is_by_loudness = self.clip_offset_strategy in ("loudest", "random_loud") and length < total
        num_needed = total if is_by_loudness else min(length, total)
        if num_needed * reader.num_channels > self.max_samples:
            raise ValueError(
                f"{num_needed} samples of {reader.num_channels} are more than max_samples={self.max_samples}"
            )
        if is_by_loudness:
            whole = _finite(reader.read(0, total))
            start = self._loud_offset(whole, length, rate, sample)
            return AudioClip(whole[:, start : start + length], rate, start)
        room = max(0, total - length)
        if self.clip_offset_strategy in ("random", "random_loud"):
            start = int(rng(sample, "clip").integers(room + 1)) if room else 0
        else:
            start = {"start": 0, "end": room, "center": room // 2, "loudest": 0}[self.clip_offset_strategy]
        waveform = _finite(reader.read(start, min(length, total)))
        missing = min(length, total) - waveform.shape[1]
        if missing > _MAX_MISSING_S * rate:
            raise ValueError(f"it is cut short: {missing / rate:.3f} s of the clip are not there")
        if missing > 0:
            waveform = np.pad(waveform, ((0, 0), (0, missing)))
        return AudioClip(waveform, rate, start)

    def _loud_offset(self, whole: npt.NDArray[np.float32], length: int, rate: int, sample: Sample) -> int:
        length = min(length, whole.shape[1])
        hop = max(1, math.floor(_HOP_S * rate))
        levels = window_db(whole, length, hop)  # [windows]
        candidates = np.flatnonzero(levels > self.loudness_cutoff)
        if self.clip_offset_strategy == "loudest" or not candidates.size:
            return hop * int(np.argmax(levels))
        return hop * int(rng(sample, "clip").choice(candidates))


def _finite(waveform: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    if waveform.size and not np.isfinite([waveform.max(), waveform.min()]).all():  # a damaged file of floats
        raise ValueError("it has samples that are no numbers")
    return waveform
