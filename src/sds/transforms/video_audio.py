"""Video and sound together: a clip of a video, and what is heard in the same span of time.

Comes in: a video with sound, or one with a .wav (or any audio file) beside it that begins when it does. Goes out:
frames [t, 3, h, w], a waveform [c, n] that covers exactly the clip's span, and the times of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError, SampleError
from sds.transforms.audio_reader import AudioReader, open_audio, open_track
from sds.transforms.base import SampleTransform, check_choice, check_field, decode_error
from sds.transforms.container import Media, locate, unread
from sds.transforms.loudness import within_scale
from sds.transforms.options import check_optional_field, load_package
from sds.transforms.remote import ranged_fields
from sds.transforms.video import DecodeVideo, VideoClip
from sds.types import Sample

__all__ = ["DecodeVideoAndAudio"]

# The sound of a video without any, where silence is wanted.
_SILENT_RATE = 48_000


class DecodeVideoAndAudio(SampleTransform):
    """Decodes a clip of a video and the sound of the same span.

    The span is `num_frames` long, in the video's own time: with a speedup_factor of 2, the sound is twice as long as
    the clip at its frame rate. Where the sound is shorter than the video (at its end, or its
    beginning), there is silence. Needs the extras `video` and `audio`.

    Args:
        input_field: holds the path or the bytes of the video.
        video_output_field: gets the frames, uint8 [t, 3, h, w].
        audio_output_field: gets the waveform, float32 [c, n] in [-1, 1], n = round(seconds * sample rate).
        original_sr_output_field: gets its sample rate.
        num_frames: how many frames.
        duration_field: as of DecodeVideo.
        framerate_field: as of DecodeVideo.
        frame_timestamps_output_field: gets the times of the frames, float64 [t].
        duration_output_field: gets the length of the span, in seconds.
        audio_input_field: holds an audio file to take the sound from instead, which begins with the first frame.
        audio_span_output_field: gets the start and end of the sound, float64 [2], in the seconds of the frames' times.
        missing_audio: 'error', or 'silence' for videos without sound: one channel at 48 kHz.
        decode_kwargs: other options of DecodeVideo: random_offset, framerate, crop_interval, ...

    Raises:
        DecodeError: as of DecodeVideo and DecodeAudio.
    """

    stage = "decode"

    def __init__(
        self,
        input_field: str,
        video_output_field: str,
        audio_output_field: str,
        original_sr_output_field: str,
        num_frames: int,
        duration_field: str | None = None,
        framerate_field: str | None = None,
        frame_timestamps_output_field: str | None = None,
        duration_output_field: str | None = None,
        *,
        audio_input_field: str | None = None,
        audio_span_output_field: str | None = None,
        missing_audio: str = "error",
        decode_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        for package in ("soundfile", "av"):
            load_package(package, "audio")
        self.input_field = check_field("input_field", input_field)
        self.video_output_field = check_field("video_output_field", video_output_field)
        self.audio_output_field = check_field("audio_output_field", audio_output_field)
        self.original_sr_output_field = check_field("original_sr_output_field", original_sr_output_field)
        self.num_frames = num_frames
        self.duration_field = duration_field
        self.framerate_field = framerate_field
        self.frame_timestamps_output_field = frame_timestamps_output_field
        self.duration_output_field = check_optional_field("duration_output_field", duration_output_field)
        self.audio_input_field = check_optional_field("audio_input_field", audio_input_field)
        self.audio_span_output_field = check_optional_field("audio_span_output_field", audio_span_output_field)
        self.missing_audio = check_choice("missing_audio", missing_audio, ("error", "silence"))
        self.decode_kwargs = None if decode_kwargs is None else dict(decode_kwargs)
        try:
            self._video = DecodeVideo(
                input_field,
                num_frames,
                video_output_field,
                duration_field,
                framerate_field,
                frame_timestamps_output_field,
                **(decode_kwargs or {}),
            )
        except TypeError as error:  # an unknown key, or one that is given already
            raise OptionError(
                f"decode_kwargs has an option that DecodeVideo does not take: {error}", hint="see its arguments"
            ) from None

    def __call__(self, sample: Sample) -> Sample:
        """Decodes the clip and its sound."""
        clip = self._video.decode(sample)
        waveform, sample_rate = self._sound(sample, clip)
        self._video.put(sample, clip)
        sample[self.audio_output_field] = torch.from_numpy(waveform)  # [c, n]
        sample[self.original_sr_output_field] = sample_rate
        if self.duration_output_field is not None:
            sample[self.duration_output_field] = clip.end - clip.start
        if self.audio_span_output_field is not None:
            sample[self.audio_span_output_field] = torch.tensor([clip.start, clip.end], dtype=torch.float64)  # [2]
        return sample

    @property
    def reads_ranges(self) -> dict[str, int]:
        """Fields that it can read by byte ranges, and how many bytes an object must have for that to be worth it."""
        fields = [self.input_field, *([self.audio_input_field] if self.audio_input_field else [])]
        return ranged_fields(self._video.remote, *fields)

    def _sound(self, sample: Sample, clip: VideoClip) -> tuple[npt.NDArray[np.float32], int]:
        media: Media = clip.media
        field, path, is_apart = self.input_field, clip.path, self.audio_input_field is not None
        if self.audio_input_field is not None:
            field = self.audio_input_field
            media, path = locate(sample, field, "audio")
        try:
            with open_audio(media) if is_apart else open_track(media, clip.offset) as reader:
                sound, sample_rate = _span(reader, clip.start, clip.end), reader.sample_rate
        except SampleError:
            raise
        except Exception as error:  # the boundary to foreign decoders, which raise anything
            if (missing := unread(media)) is not None:
                raise missing from error
            if isinstance(error, LookupError) and self.missing_audio == "silence":
                length = round((clip.end - clip.start) * _SILENT_RATE)
                return np.zeros((1, length), np.float32), _SILENT_RATE
            reason = str(error).strip() or type(error).__name__
            raise decode_error(sample, "audio", reason, field=field, path=path) from error
        if (missing := unread(media)) is not None:
            raise missing  # the decoder took it for the end of the file
        return sound, sample_rate


def _span(reader: AudioReader, start: float, end: float) -> npt.NDArray[np.float32]:
    """What is heard between two times, with silence where nothing is: [c, n]."""
    first = round(start * reader.sample_rate)
    length = max(1, round((end - start) * reader.sample_rate))
    result = np.zeros((reader.num_channels, length), np.float32)
    if first < reader.num_samples:
        found = reader.read(first, length)  # [c, m]
        result[:, : found.shape[1]] = found
    if not np.isfinite(result).all():
        raise ValueError("it has samples that are no numbers")
    return within_scale(result)
