"""When: which moments of a video a clip shows. Pure numbers; no file is opened here.

Comes in: how long a video is and how fast, what clip is wanted, a number in [0, 1) that chooses among the possible
starts. Goes out: a Clip: the times to look frames up at, and the span it covers. Time 0 is the video's first frame.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["SHORTER", "Clip", "Request", "Timeline", "fill", "plan_clip"]

# what to do with a video that has too few frames: the doc of DecodeVideo explains each
SHORTER = ("error", "repeat_last", "loop", "pad", "fewer")

# Times are rounded by whoever wrote them (Matroska keeps milliseconds), so a frame is looked up a little after its
# time: where the grid is the video's own, in the middle of the frame, else a quarter of a frame late.
_OWN_GRID = 0.5
_OTHER_GRID = 0.25


@dataclass(frozen=True, slots=True)
class Timeline:
    """How long a video is, in seconds, and its frames per second (the average, where they vary)."""

    duration: float
    framerate: float


@dataclass(frozen=True, slots=True)
class Request:
    """The clip that is wanted.

    Attributes:
        num_frames: how many frames.
        framerate: frames per second of the clip; None: the video's own.
        speedup: how much faster than the video it runs.
        spread: True puts the frames evenly over the whole interval instead; framerate and speedup do not matter.
        interval: (start, end) to stay in; None: the whole video.
        is_soft: an interval that is too short is grown around its centre, as far as the video goes.
    """

    num_frames: int
    framerate: float | None = None
    speedup: float = 1.0
    spread: bool = False
    interval: tuple[float, float] | None = None
    is_soft: bool = False


@dataclass(frozen=True, slots=True)
class Clip:
    """Moments of a video.

    Attributes:
        times: when frames are looked up, ascending; fewer than asked for if the video is too short.
        start: the time of the first frame, seconds.
        end: `start` plus what all the frames that were asked for last, in the video's time.
    """

    times: tuple[float, ...]
    start: float
    end: float


def plan_clip(video: Timeline, request: Request, draw: float = 0.0) -> Clip:
    """Chooses a clip; `draw` 0 is the earliest possible, values towards 1 later ones, each equally likely.

    Raises:
        ValueError: the interval lies outside the video.
    """
    num_frames, frame = request.num_frames, 1.0 / video.framerate
    low, high = 0.0, video.duration
    if request.interval is not None:
        low, high = request.interval[0], min(request.interval[1], video.duration)
        if low > high - frame / 4:
            raise ValueError(
                f"the interval {request.interval[0]:g} s to {request.interval[1]:g} s lies past its end, at "
                f"{video.duration:g} s"
            )
    if request.spread:
        step = (high - low) / num_frames
        return Clip(tuple(low + (k + 0.5) * step for k in range(num_frames)), low, high)
    step = request.speedup * (frame if request.framerate is None else 1.0 / request.framerate)
    length = (num_frames - 1) * step + min(step, frame)  # to the end of the last frame that is seen
    if request.is_soft:
        low, high = _grow((low, high), length, video.duration)
    if request.framerate is None:
        return _on_own_grid(video, request, (low, high), draw)
    room = high - low - length
    if room < -frame / 2:
        fits = max(1, math.floor((high - low + frame / 2 - min(step, frame)) / step) + 1)
    else:
        fits = num_frames
    start = low + draw * max(0.0, room)
    late = _OTHER_GRID * min(step, frame)
    return Clip(tuple(start + late + k * step for k in range(fits)), start, start + num_frames * step)


def _on_own_grid(video: Timeline, request: Request, interval: tuple[float, float], draw: float) -> Clip:
    """Frames counted: the clip begins with a frame that begins inside the interval, give or take a quarter of one."""
    rate, speedup = video.framerate, request.speedup
    first = math.ceil(interval[0] * rate - 0.25)
    stop = max(first + 1, math.floor(interval[1] * rate + 0.25))  # after the last frame that may be seen
    covered = math.floor((request.num_frames - 1) * speedup) + 1
    room = stop - first - covered  # how many frames later it may begin
    fits = request.num_frames if room >= 0 else max(1, math.ceil((stop - first - _OWN_GRID) / speedup))
    first += min(math.floor(draw * (room + 1)), room) if room > 0 else 0
    times = tuple((first + _OWN_GRID + k * speedup) / rate for k in range(min(fits, request.num_frames)))
    return Clip(times, first / rate, (first + request.num_frames * speedup) / rate)


def _grow(interval: tuple[float, float], length: float, duration: float) -> tuple[float, float]:
    """The interval, or one of that length around its centre, moved to lie inside the video where it can."""
    low, high = interval
    if high - low >= length:
        return low, high
    centre = (low + high) / 2
    low = min(max(0.0, centre - length / 2), max(0.0, duration - length))
    return low, min(low + length, duration)


def fill(num_found: int, num_frames: int, policy: str) -> list[int | None]:
    """Which of the found frames stands in each place; None is a black one. Shorter than asked for with 'fewer'."""
    if num_found >= num_frames or policy == "fewer":
        return list(range(min(num_found, num_frames)))
    if policy == "loop":
        return [place % num_found for place in range(num_frames)]
    rest = num_found - 1 if policy == "repeat_last" else None
    return [place if place < num_found else rest for place in range(num_frames)]
