"""Ready-made chains for sound.

Comes in: the names of fields. Goes out: a list of transforms. They are part of sds.transforms.presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sds.errors import OptionError
from sds.transforms.audio import DecodeAudio
from sds.transforms.audio_shape import AverageAudio, NormalizeAudio, ResizeAudio
from sds.types import Transform

__all__ = ["create_standard_audio_pipeline"]


def create_standard_audio_pipeline(
    audio_field: str,
    duration: float,
    mono_audio: bool = False,
    normalize_audio: bool = True,
    target_audio_sr: int = 44_100,
    output_field: str = "audio",
    original_audio_sr_field: str = "original_audio_sampling_rate",
    audio_decoding_kwargs: Mapping[str, Any] | None = None,
    audio_resampling_kwargs: Mapping[str, Any] | None = None,
) -> list[Transform]:
    """Path or bytes of an audio file -> a clip, float32 [c, n] in [-1, 1], n = round(target_audio_sr * duration).

    Args:
        audio_field: holds the path or the bytes; it stays in the sample, unless it is the output field.
        duration: of the clip, in seconds. Shorter files are a DecodeError, or with allow_shorter_audio end in silence.
        mono_audio: average the channels: [1, n].
        normalize_audio: bring the peak to 0.95. For another loudness, say False and add a NormalizeAudio.
        target_audio_sr: sample rate of the result.
        output_field: gets the waveform.
        original_audio_sr_field: gets the file's sample rate.
        audio_decoding_kwargs: other options of DecodeAudio: clip_offset_strategy, allow_shorter_audio, ...
        audio_resampling_kwargs: other options of ResizeAudio: quality.
    """
    try:
        decode = DecodeAudio(
            audio_field, output_field, original_audio_sr_field, duration=duration, **(audio_decoding_kwargs or {})
        )  # float32 [c, any]
        resize = ResizeAudio(
            output_field,
            original_audio_sr_field,
            target_audio_sr,
            duration=duration,
            **(audio_resampling_kwargs or {}),
        )  # float32 [c, n]
    except TypeError as error:  # an unknown key, or one that is given already
        raise OptionError(
            f"audio_decoding_kwargs or audio_resampling_kwargs has an unknown option: {error}",
            hint="see the arguments of DecodeAudio and ResizeAudio",
        ) from None
    transforms: list[Transform] = [decode, resize]
    if mono_audio:
        transforms.append(AverageAudio(output_field))  # float32 [1, n]
    if normalize_audio:
        transforms.append(NormalizeAudio(output_field))
    return transforms
