"""Videos: a path or bytes -> a clip of N frames, uint8 RGB [t, 3, h, w], and the times of its frames.

Which moments are shown is decided in video_times, how they are found in video_reader. What always holds: the frames are
those that decoding the file from its start would show then, and the file is closed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError
from sds.transforms.base import (
    SampleTransform,
    check_choice,
    check_field,
    check_int,
    check_size,
    decode_error,
    require,
    rng,
    wrong,
)
from sds.transforms.container import Media, locate, unread
from sds.transforms.options import check_interval, check_optional_field, check_positive, load_package, number_of
from sds.transforms.remote import REMOTE, ranged_fields
from sds.transforms.video_pixels import Scale
from sds.transforms.video_reader import EndsEarly, Limits, VideoReader
from sds.transforms.video_times import SHORTER, Clip, Request, Timeline, fill, plan_clip
from sds.types import Sample

__all__ = ["DecodeVideo", "VideoClip"]

MAX_PIXELS = 8192 * 4320  # of one frame: 8K
BLACK = -1.0  # the time of a frame that no video has


@dataclass(frozen=True, slots=True)
class VideoClip:
    """A decoded clip, and where it lies in its file.

    Attributes:
        frames: uint8 [t, 3, h, w].
        timestamps: seconds from the first frame of the video; -1 for a black frame.
        start: where the clip begins, in the same seconds.
        end: where it would end if it has all the frames asked for.
        offset: the first frame's time on the container's clock, which its other tracks share.
        media: the file.
        path: its path, if it has one.
    """

    frames: npt.NDArray[np.uint8]
    timestamps: list[float]
    start: float
    end: float
    offset: float
    media: Media
    path: str | None


class DecodeVideo(SampleTransform):
    """Decodes a clip of a video to a uint8 RGB tensor [t, 3, h, w], upright.

    Time 0 is the video's first frame. A moment shows the last frame that is not later, also where the frame rate
    varies. With `framerate=None`, a video of constant rate gives consecutive frames. Pixels are not made square: see
    UndistortFrames. Needs the extra `video`.

    Args:
        input_field: holds the path or the bytes.
        num_frames: how many frames.
        output_field: gets the tensor. Default: the input field.
        duration_field: holds the length in seconds, for files that do not say it or lie about it.
        framerate_field: the same for frames per second.
        frame_timestamps_output_field: gets the times of the frames, float64 [t], in seconds.
        frame_timestamps_input_field: holds the times to show instead of all that follows here: those of another video.
        random_offset: draw where the clip begins, from the sample's own randomness; False: at the earliest.
        framerate: frames per second of the clip. None: the video's own.
        speedup_factor: 2.0 shows the video twice as fast: the clip spans twice the time.
        spread_frames: put the frames evenly over the whole interval, whatever the frame rate.
        crop_interval: (start, end) in seconds that the clip is taken from.
        crop_interval_fields: the two fields that hold a sample's start and end instead.
        crop_interval_type: 'hard': the clip lies inside the interval, and one that is too short is a video that is too
            short. 'soft': such an interval is grown around its centre as far as the video goes.
        shorter_videos: what becomes of videos with too few frames. 'error': a DecodeError; 'repeat_last': the last
            frame is repeated; 'loop': the clip begins again; 'pad': black frames follow, with times of -1; 'fewer': the
            clip is shorter than asked for.
        allow_shorter_videos: True is the same as shorter_videos='fewer'.
        min_size: (h, w) that frames may be scaled down to while they are decoded, which is faster and loses no colour
            precision; they still cover it. None: full size.
        allow_vertical: turn `min_size` for portrait videos.
        interpolation_mode: of that scaling: 'bilinear' or 'bicubic'.
        num_threads: of the decoder; 0 lets FFmpeg choose. Default 1: a loader decodes several samples at once.
        thread_type: 'NONE', 'SLICE', 'FRAME' or 'AUTO'. Default: 'AUTO' with several threads.
        approx_frame_seek: accepted for compatibility; a seek is always exact.
        max_pixels: larger frames are a DecodeError.
        max_decoded_frames: a clip that takes more frames to reach is a DecodeError.
        frame_seek_timeout_sec: a clip that takes longer is a DecodeError.
        remote: how a video is fetched that is not here. 'auto': of one with more than 16 MB, only the parts that hold
            the clip; 'ranges': of any one; 'whole': never. See the guide on video.

    Raises:
        DecodeError: the file is absent, broken, cut short, too short, too large, or has no video.
    """

    stage = "decode"

    def __init__(
        self,
        input_field: str,
        num_frames: int,
        output_field: str | None = None,
        duration_field: str | None = None,
        framerate_field: str | None = None,
        frame_timestamps_output_field: str | None = None,
        *,
        frame_timestamps_input_field: str | None = None,
        random_offset: bool = True,
        framerate: float | None = None,
        speedup_factor: float | None = None,
        spread_frames: bool = False,
        crop_interval: tuple[float, float] | None = None,
        crop_interval_fields: tuple[str, str] | None = None,
        crop_interval_type: str = "hard",
        shorter_videos: str = "error",
        allow_shorter_videos: bool = False,
        min_size: tuple[int, int] | None = None,
        allow_vertical: bool = False,
        interpolation_mode: str = "bilinear",
        num_threads: int | None = None,
        thread_type: str | None = None,
        approx_frame_seek: bool = False,
        max_pixels: int = MAX_PIXELS,
        max_decoded_frames: int = 20_000,
        frame_seek_timeout_sec: float = 60.0,
        remote: str = "auto",
    ) -> None:
        load_package("av", "video")
        self.input_field = check_field("input_field", input_field)
        self.num_frames = check_int("num_frames", num_frames)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.duration_field = check_optional_field("duration_field", duration_field)
        self.framerate_field = check_optional_field("framerate_field", framerate_field)
        self.frame_timestamps_output_field = check_optional_field(
            "frame_timestamps_output_field", frame_timestamps_output_field
        )
        self.frame_timestamps_input_field = check_optional_field(
            "frame_timestamps_input_field", frame_timestamps_input_field
        )
        self.random_offset = bool(random_offset)
        self.framerate = None if framerate is None else check_positive("framerate", framerate, unit="frames per second")
        self.speedup_factor = (
            None if speedup_factor is None else check_positive("speedup_factor", speedup_factor, unit="a factor")
        )
        self.spread_frames = bool(spread_frames)
        self.crop_interval = None if crop_interval is None else check_interval("crop_interval", crop_interval)
        self.crop_interval_fields = _check_pair(crop_interval_fields)
        if crop_interval is not None and crop_interval_fields is not None:
            raise OptionError("crop_interval and crop_interval_fields are both given", hint="give one of them")
        self.crop_interval_type = check_choice("crop_interval_type", crop_interval_type, ("hard", "soft"))
        self.shorter_videos = check_choice("shorter_videos", shorter_videos, SHORTER)
        self.allow_shorter_videos = bool(allow_shorter_videos)
        self.min_size = None if min_size is None else check_size("min_size", min_size)
        self.allow_vertical = bool(allow_vertical)
        self.interpolation_mode = check_choice("interpolation_mode", interpolation_mode, ("bilinear", "bicubic"))
        self.num_threads = None if num_threads is None else check_int("num_threads", num_threads, minimum=0)
        self.thread_type = (
            None
            if thread_type is None
            else check_choice("thread_type", thread_type, ("NONE", "SLICE", "FRAME", "AUTO"))
        )
        self.approx_frame_seek = bool(approx_frame_seek)
        self.max_pixels = check_int("max_pixels", max_pixels)
        self.max_decoded_frames = check_int("max_decoded_frames", max_decoded_frames)
        self.frame_seek_timeout_sec = check_positive("frame_seek_timeout_sec", frame_seek_timeout_sec, unit="seconds")
        self.remote = check_choice("remote", remote, REMOTE)
        self._policy = "fewer" if allow_shorter_videos and shorter_videos == "error" else shorter_videos
        self._scale = None if self.min_size is None else Scale(self.min_size, allow_vertical, interpolation_mode)
        self._limits = Limits(
            max_pixels, max_decoded_frames, float(frame_seek_timeout_sec), *_threads(num_threads, thread_type)
        )

    def __call__(self, sample: Sample) -> Sample:
        """Decodes a clip of the input field into the output field."""
        self.put(sample, self.decode(sample))
        return sample

    @property
    def reads_ranges(self) -> dict[str, int]:
        """Fields that it can read by byte ranges, and how many bytes an object must have for that to be worth it."""
        return ranged_fields(self.remote, self.input_field)

    def put(self, sample: Sample, clip: VideoClip) -> None:
        """Adds a clip's fields to the sample."""
        sample[self.output_field] = torch.from_numpy(clip.frames)  # [t, 3, h, w]
        if self.frame_timestamps_output_field is not None:
            sample[self.frame_timestamps_output_field] = torch.tensor(clip.timestamps, dtype=torch.float64)  # [t]

    def decode(self, sample: Sample) -> VideoClip:
        """The clip of this sample, as arrays; the sample stays as it is."""
        media, path = locate(sample, self.input_field, "video")
        times = self._given_times(sample)
        request = self._request(sample)
        chosen = float(rng(sample, "clip").random()) if self.random_offset and times is None else 0.0
        duration = None if self.duration_field is None else number_of(sample, self.duration_field)
        framerate = None if self.framerate_field is None else number_of(sample, self.framerate_field)
        try:
            with VideoReader(media, self._limits) as reader:
                timeline = Timeline(duration or reader.timeline.duration, framerate or reader.timeline.framerate)
                try:
                    clip, frames, stamps = self._read(reader, timeline, request, times, chosen)
                except EndsEarly as early:
                    if times is not None or duration or reader.is_exact:
                        raise
                    # the file told how long all of its tracks are; now it is known how long this one is
                    timeline = replace(timeline, duration=early.duration)
                    clip, frames, stamps = self._read(reader, timeline, request, times, chosen)
                if (missing := unread(media)) is not None:
                    raise missing  # the decoder took it for the end of the file
                return VideoClip(frames, stamps, clip.start, clip.end, reader.offset, media, path)
        except Exception as error:  # the boundary to foreign decoders, which raise anything
            if (missing := unread(media)) is not None:
                raise missing from error
            reason = str(error).strip() or type(error).__name__
            raise decode_error(sample, "video", reason, field=self.input_field, path=path) from error

    def _read(
        self, reader: VideoReader, timeline: Timeline, request: Request, times: Sequence[float] | None, chosen: float
    ) -> tuple[Clip, npt.NDArray[np.uint8], list[float]]:
        if times is not None:
            late = 0.25 / timeline.framerate  # the other video's times may be rounded otherwise
            frames, stamps = reader.read([moment + late for moment in times], self._scale)
            return Clip(tuple(times), times[0], times[-1] + 1 / timeline.framerate), frames, stamps
        clip = plan_clip(timeline, request, chosen)
        if len(clip.times) < self.num_frames and self._policy == "error":
            raise ValueError(
                f"it has {len(clip.times)} of the {self.num_frames} frames that are wanted "
                f"(it lasts {timeline.duration:.3f} s; shorter_videos says what to do with such)"
            )
        frames, stamps = reader.read(clip.times, self._scale)  # [m, 3, h, w]
        places = fill(len(stamps), self.num_frames, self._policy)
        if places == list(range(len(stamps))):
            return clip, frames, stamps
        filled = frames[[0 if place is None else place for place in places]]  # [t, 3, h, w]
        filled[[place is None for place in places]] = 0
        return clip, filled, [BLACK if place is None else stamps[place] for place in places]

    def _request(self, sample: Sample) -> Request:
        interval = self.crop_interval
        if self.crop_interval_fields is not None:
            start, end = (number_of(sample, field) for field in self.crop_interval_fields)
            if not 0 <= start < end:
                names = " and ".join(map(repr, self.crop_interval_fields))
                raise wrong(
                    sample, f"fields are no interval: {names} are {start}, {end}", hint="give seconds: 0 <= start < end"
                )
            interval = (start, end)
        speedup = 1.0 if self.speedup_factor is None else self.speedup_factor
        is_soft = self.crop_interval_type == "soft"
        return Request(self.num_frames, self.framerate, speedup, self.spread_frames, interval, is_soft)

    def _given_times(self, sample: Sample) -> list[float] | None:
        field = self.frame_timestamps_input_field
        if field is None:
            return None
        try:
            times = [float(moment) for moment in require(sample, field)]
        except (TypeError, ValueError):
            times = []
        if not times or not all(0 <= moment < float("inf") for moment in times):
            raise wrong(
                sample,
                f"field has no times in it: {field!r} is {sample[field]!r}",
                hint="it must hold seconds, such as those that frame_timestamps_output_field gets",
            )
        return times


def _threads(num_threads: int | None, thread_type: str | None) -> tuple[int, str]:
    if num_threads is None:
        num_threads = 1 if thread_type in (None, "NONE") else 0
    return num_threads, thread_type or ("NONE" if num_threads == 1 else "AUTO")


def _check_pair(fields: tuple[str, str] | None) -> tuple[str, str] | None:
    if fields is None:
        return None
    if isinstance(fields, str) or len(tuple(fields)) != 2:
        raise OptionError(
            f"crop_interval_fields are not two field names: {fields!r}", hint="give (start field, end field)"
        )
    start, end = (check_field("crop_interval_fields", field) for field in fields)
    return start, end
