"""Ready-made chains for videos: clips of frames, with or without their sound.

Comes in: the names of fields. Goes out: a list of transforms. They are part of sds.transforms.presets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sds.errors import OptionError
from sds.transforms.audio_shape import AverageAudio, NormalizeAudio, ResizeAudio
from sds.transforms.image import NormalizeFrames
from sds.transforms.video import DecodeVideo
from sds.transforms.video_audio import DecodeVideoAndAudio
from sds.transforms.video_frames import ConvertVideoToByteTensor, ResizeVideo, UndistortFrames
from sds.types import Transform

__all__ = ["create_standard_joint_video_audio_pipeline", "create_standard_video_pipeline"]


def create_standard_video_pipeline(
    video_field: str,
    num_frames: int,
    resolution: tuple[int, int],
    decode_kwargs: Mapping[str, Any] | None = None,
    normalize: bool = False,
    original_resolution_fields: tuple[str, str] | None = None,
    resize_kwargs: Mapping[str, Any] | None = None,
    output_field: str = "video",
) -> list[Transform]:
    """Path or bytes of a video -> a clip, uint8 RGB tensor [t, 3, h, w], cropped to the centre and resized.

    Args:
        video_field: holds the path or the bytes; it stays in the sample, unless it is the output field.
        num_frames: how many frames.
        resolution: (h, w) of the result.
        decode_kwargs: other options of DecodeVideo: random_offset, framerate, crop_interval, shorter_videos, ...
        normalize: float32 in [-1, 1] instead of uint8.
        original_resolution_fields: the fields that hold the height and width that the video was squeezed from.
        resize_kwargs: other options of ResizeVideo: allow_vertical, fit, interpolation_mode, ...
        output_field: gets the clip.
    """
    resize = _resize(output_field, resolution, resize_kwargs)
    # squeezed frames are stretched before they are scaled, so they must not be made small before
    options = _decode_options(decode_kwargs, None if original_resolution_fields else resize)
    try:
        decode = DecodeVideo(video_field, num_frames, output_field, **options)  # uint8 [t, 3, any, any]
    except TypeError as error:  # an unknown key, or one that is given already
        raise OptionError(
            f"decode_kwargs has an option that DecodeVideo does not take: {error}", hint="see its arguments"
        ) from None
    transforms: list[Transform] = [decode]
    if original_resolution_fields is not None:
        transforms.append(UndistortFrames(output_field, original_resolution_fields))
    transforms += [resize, ConvertVideoToByteTensor(output_field)]  # uint8 [t, 3, h, w]
    if normalize:
        transforms.append(NormalizeFrames(output_field))  # float32 [t, 3, h, w]
    return transforms


def create_standard_joint_video_audio_pipeline(
    video_field: str,
    num_frames: int,
    resolution: tuple[int, int],
    decode_kwargs: Mapping[str, Any] | None = None,
    mono_audio: bool = True,
    normalize_audio: bool = True,
    target_audio_sr: int = 16_000,
    resize_kwargs: Mapping[str, Any] | None = None,
    audio_resampling_kwargs: Mapping[str, Any] | None = None,
    video_output_field: str = "video",
    audio_output_field: str = "audio",
    *,
    audio_field: str | None = None,
    normalize: bool = False,
    missing_audio: str = "error",
) -> list[Transform]:
    """Path or bytes of a video -> a clip [t, 3, h, w], and its sound [c, n], float32 in [-1, 1], of the same span.

    Also adds 'original_audio_sampling_rate' and 'clip_duration' (seconds).

    Args:
        video_field: holds the path or the bytes of the video.
        num_frames: how many frames.
        resolution: (h, w) of the frames.
        decode_kwargs: other options of DecodeVideo, and frame_timestamps_output_field, duration_field, framerate_field.
        mono_audio: average the channels: [1, n].
        normalize_audio: bring the peak of the sound to 0.95.
        target_audio_sr: sample rate of the result; n = round(target_audio_sr * seconds).
        resize_kwargs: other options of ResizeVideo.
        audio_resampling_kwargs: other options of ResizeAudio.
        video_output_field: gets the clip.
        audio_output_field: gets the sound.
        audio_field: holds an audio file beside the video to take the sound from.
        normalize: frames as float32 in [-1, 1] instead of uint8.
        missing_audio: 'error', or 'silence' for videos without sound.
    """
    resize = _resize(video_output_field, resolution, resize_kwargs)
    options = _decode_options(decode_kwargs, resize)
    own = ("duration_field", "framerate_field", "frame_timestamps_output_field")
    try:
        sound = ResizeAudio(
            audio_output_field,
            "original_audio_sampling_rate",
            target_audio_sr,
            clip_duration_field="clip_duration",
            **(audio_resampling_kwargs or {}),
        )
    except TypeError as error:
        raise OptionError(
            f"audio_resampling_kwargs has an option that ResizeAudio does not take: {error}", hint="it takes quality"
        ) from None
    transforms: list[Transform] = [
        DecodeVideoAndAudio(
            video_field,
            video_output_field,
            audio_output_field,
            "original_audio_sampling_rate",
            num_frames,
            **{name: options.pop(name) for name in own if name in options},
            duration_output_field="clip_duration",
            audio_input_field=audio_field,
            missing_audio=missing_audio,
            decode_kwargs=options,
        ),  # uint8 [t, 3, any, any], float32 [c, any]
        resize,
        ConvertVideoToByteTensor(video_output_field),  # uint8 [t, 3, h, w]
        sound,  # float32 [c, n]
    ]
    if normalize:
        transforms.append(NormalizeFrames(video_output_field))
    if mono_audio:
        transforms.append(AverageAudio(audio_output_field))  # float32 [1, n]
    if normalize_audio:
        transforms.append(NormalizeAudio(audio_output_field))
    return transforms


def _resize(field: str, resolution: tuple[int, int], kwargs: Mapping[str, Any] | None) -> ResizeVideo:
    try:
        return ResizeVideo(field, resolution=resolution, **(kwargs or {}))
    except TypeError as error:  # an unknown key, or one that is given already
        raise OptionError(
            f"resize_kwargs has an option that ResizeVideo does not take: {error}", hint="see its arguments"
        ) from None


def _decode_options(kwargs: Mapping[str, Any] | None, resize: ResizeVideo | None) -> dict[str, Any]:
    """The decoder's options; frames are scaled while they are decoded, unless the user says how."""
    options = dict(kwargs or {})
    if resize is not None and "min_size" not in options and resize.interpolation_mode in ("bilinear", "bicubic"):
        options["min_size"] = resize.resolution if resize.random_resize is None else resize.largest
        options.setdefault("allow_vertical", resize.allow_vertical and resize.random_resize is None)
        options.setdefault("interpolation_mode", resize.interpolation_mode)
    return options
