"""Times of a video -> the frames shown then, exactly the ones that decoding it from the start would show.

Comes in: a media file. Goes out: for each time, the last frame that is not later; a time before the first frame gets
the first. A seek lands on a keyframe, and only frames from that keyframe's time on are trusted: those shown before it
may need what lies before it, so a clip that begins with one is read from an earlier keyframe.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sds.fetch import RemoteFile
from sds.transforms.container import Media, open_container, waited_s
from sds.transforms.options import load_package
from sds.transforms.video_packets import Segment, look_ahead, span_of, split_at_keyframes
from sds.transforms.video_pixels import Painter, Scale
from sds.transforms.video_times import Timeline

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

__all__ = ["EndsEarly", "Limits", "VideoReader"]

# Decoders that can leave out frames which no other frame needs, without any change to the others. HEVC's may not: its
# non-reference pictures can be references of higher temporal layers.
_SKIPPING = {"h264", "mpeg4", "mpeg2video", "mpeg1video"}

Emit = Callable[[int, "VideoFrame"], None]


class EndsEarly(ValueError):
    """The video ends before a wanted time; `duration` is how long it really is."""

    def __init__(self, duration: float, wanted: float) -> None:
        super().__init__(f"it ends after {duration:.3f} s, before a frame that is wanted at {wanted:.3f} s")
        self.duration = duration


@dataclass(frozen=True, slots=True)
class Limits:
    """What one clip may cost."""

    max_pixels: int
    max_decoded_frames: int
    timeout_s: float
    num_threads: int = 1
    thread_type: str = "NONE"


class VideoReader:
    """Reads frames of one file; a context manager that closes it.

    Attributes:
        timeline: duration and frame rate, as the file says.
        is_exact: the duration is the video track's own; else it is the whole file's, and the track may be shorter.
    """

    def __init__(self, media: Media, limits: Limits) -> None:
        self._media = media
        self._limits = limits
        self._stack = contextlib.ExitStack()
        self._deadline = time.monotonic() + limits.timeout_s
        self._num_decoded = 0
        self._is_fresh = False
        self._open()
        try:
            self._tick = float(self._stream.time_base or 0)
            if not self._tick:
                raise ValueError("its video has no time base")
            self._start = self._first_tick()
            self.timeline, self.is_exact = self._measure()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> VideoReader:  # noqa: PYI034 - typing.Self is not in Python 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def offset(self) -> float:
        """Seconds from the container's own clock zero to the first frame."""
        return self._start * self._tick

    def read(self, times: Sequence[float], scale: Scale | None) -> tuple[npt.NDArray[np.uint8], list[float]]:
        """The frames shown at these times [t, 3, h, w], and their own times.

        Raises:
            EndsEarly: a time lies past the end.
            Exception: whatever PyAV finds wrong.
        """
        ticks = [self._start + math.floor(moment / self._tick + 0.5) for moment in times]
        painter = Painter(len(ticks), scale)
        found: dict[int, int] = {}  # tick -> time of its frame, in ticks
        places: dict[int, list[int]] = {}
        for place, tick in enumerate(ticks):
            places.setdefault(tick, []).append(place)
        painted: dict[int, int] = {}  # time of a frame -> where it is painted already

        def emit(tick: int, frame: VideoFrame) -> None:
            moment = found[tick] = _tick_of(frame)
            for place in places[tick]:
                if moment in painted:
                    painter.repeat(place, painted[moment])
                else:
                    painter.paint(place, frame)
                    painted[moment] = place

        wanted = sorted(places)
        keyframes = self._stream.index_entries if (wanted[-1] - wanted[0]) * self._tick > 1 else ()
        gap = 4 / (self.timeline.framerate * self._tick)
        groups = split_at_keyframes(wanted, keyframes, gap)
        self._announce(groups)
        for group in groups:
            self._read_group(group, emit)
        return painter.result(), [(found[tick] - self._start) * self._tick for tick in ticks]

    def _announce(self, groups: Sequence[Sequence[int]]) -> None:
        """Has the parts of a remote file that hold these times fetched, all at once, as far as its index tells."""
        if isinstance(self._media, RemoteFile) and self._media.path is None:
            with contextlib.suppress(load_package("av", "video").error.FFmpegError):
                # Matroska's index is read by the first seek
                self._container.seek(groups[0][0], stream=self._stream, backward=True)
            self._is_fresh = False
            self._media.expect([span_of(self._stream.index_entries, group[0], group[-1]) for group in groups])

    def _read_group(self, ticks: Sequence[int], emit: Emit) -> None:
        """Frames that lie so near together that no keyframe between them is worth a seek."""
        segment = look_ahead(self._packets, ticks, self._start, round(1 / self._tick))
        if segment.last is not None and segment.has_ended:
            self._check_end(segment.last, ticks[-1])
        if segment.packets is None:
            self._decode_all(segment.offset, ticks, emit)
        elif not self._decode_planned(segment, ticks, emit):
            self._decode_all(None, ticks, emit)

    def _decode_planned(self, segment: Segment, ticks: Sequence[int], emit: Emit) -> bool:
        """Decodes what is needed and no more; False if the decoder did not give each packet's frame.

        It must give the keyframe's own first. One that it holds back is no picture but a point from which a picture is
        rebuilt bit by bit (intra refresh), and where that is done it does not say exactly.
        """
        assert segment.packets is not None
        wanted: dict[int, list[int]] = {}
        for tick in ticks:
            wanted.setdefault(segment.shown_at(tick), []).append(tick)
        context = self._stream.codec_context
        may_skip = context.name in _SKIPPING
        keyframe = None if segment.offset is None else segment.keyframe
        for packet in [*segment.packets, None]:
            if may_skip and packet is not None:
                context.skip_frame = "DEFAULT" if packet.pts in wanted else "NONREF"
            for frame in self._decode(packet, is_tolerant=False):
                moment = _tick_of(frame)
                if keyframe is not None and moment >= keyframe:
                    if moment > keyframe:
                        return False
                    keyframe = None
                for tick in wanted.pop(moment, ()):
                    emit(tick, frame)
            if not wanted:
                break
        return not wanted

    def _decode_all(self, offset: int | None, ticks: Sequence[int], emit: Emit, *, needs_keyframe: bool = True) -> None:
        """Decodes every frame from a keyframe after a seek (None: the start), takes the last that is not later."""
        self._stream.codec_context.skip_frame = "DEFAULT"
        trusted = None  # the time of the first keyframe
        pending, previous = list(ticks), None
        for packet in self._packets(offset):
            if trusted is None and packet.is_keyframe:
                trusted = packet.dts if packet.pts is None else packet.pts
            if trusted is None and needs_keyframe:
                continue
            for frame in self._decode(packet, is_tolerant=previous is None):
                moment = _tick_of(frame)
                if offset is not None and trusted is not None and moment < trusted:
                    continue
                if offset is not None and previous is None and (moment > ticks[0] or moment != trusted):
                    return self._decode_all(None, ticks, emit)  # the seek came too late after all
                while pending and moment > pending[0]:
                    emit(pending.pop(0), previous or frame)
                previous = frame
            if not pending:
                return None
        for frame in self._decode(None, is_tolerant=previous is None):
            moment = _tick_of(frame)
            while pending and moment > pending[0]:
                emit(pending.pop(0), previous or frame)
            previous = frame
        if previous is None and trusted is None and needs_keyframe:
            return self._decode_all(None, ticks, emit, needs_keyframe=False)
        if previous is None:
            raise ValueError("no frame of it can be decoded")
        if pending:
            self._check_end(_tick_of(previous), pending[-1])
        for tick in pending:
            emit(tick, previous)
        return None

    def _decode(self, packet: Packet[VideoStream] | None, *, is_tolerant: bool) -> Iterator[VideoFrame]:
        """The frames that a packet completes (None: that are left); a damaged one is a ValueError.

        Tolerant: before the first frame, a decoder may refuse packets that need what was cut off.
        """
        try:
            frames = self._stream.codec_context.decode(packet)
        except load_package("av", "video").error.InvalidDataError:
            if not is_tolerant:
                raise
            frames = []
        for frame in frames:
            self._num_decoded += 1
            if self._num_decoded > self._limits.max_decoded_frames:
                raise ValueError(f"a clip takes more than max_decoded_frames={self._limits.max_decoded_frames}")
            self._check_pixels(frame.width, frame.height)
            if frame.is_corrupt:
                raise ValueError(f"the frame at {(_tick_of(frame) - self._start) * self._tick:.3f} s is damaged")
            yield frame
        self._check_time()

    def _packets(self, offset: int | None) -> Iterator[Packet[VideoStream]]:
        """The video's packets from the keyframe at or before a time on; None: from the start."""
        if offset is None:
            if not self._is_fresh:
                self._open()
        else:
            try:
                self._container.seek(offset, stream=self._stream, backward=True)
            except load_package("av", "video").error.FFmpegError:
                self._open()  # some files cannot seek: they are read from the start
        self._is_fresh = False
        for number, packet in enumerate(self._container.demux(self._stream)):
            if packet.size or packet.pts is not None:  # else it only says that this is the end
                yield packet
            if number % 256 == 255:
                self._check_time()

    def _open(self) -> None:
        self._stack.close()
        self._container = self._stack.enter_context(open_container(self._media))
        streams = [
            each for each in self._container.streams.video if not each.disposition & each.disposition.attached_pic
        ]
        if not streams:
            raise ValueError("it has no video")
        self._stream = streams[0]
        discard = type(self._stream.discard)
        for each in self._container.streams:
            each.discard = discard.default if each is self._stream else discard.all
        context = self._stream.codec_context
        context.thread_count = self._limits.num_threads
        context.thread_type = self._limits.thread_type
        context.options = {"max_pixels": str(self._limits.max_pixels)}
        self._check_pixels(context.width, context.height)
        self._is_fresh = True

    def _check_time(self) -> None:
        if time.monotonic() > self._deadline + waited_s(self._media):
            raise ValueError(f"a clip takes longer than {self._limits.timeout_s:g} s")

    def _check_pixels(self, width: int, height: int) -> None:
        if width * height > self._limits.max_pixels:
            raise ValueError(f"{width} x {height} pixels are more than max_pixels={self._limits.max_pixels}")

    def _check_end(self, last: int, wanted: int) -> None:
        frame = 1 / self.timeline.framerate
        if (wanted - last) * self._tick > 1.5 * frame:
            begin = self._start * self._tick
            raise EndsEarly(last * self._tick - begin + frame, wanted * self._tick - begin)

    def _first_tick(self) -> int:
        if self._stream.start_time is not None:
            return self._stream.start_time
        return 0 if self._container.start_time is None else round(self._container.start_time / 1e6 / self._tick)

    def _measure(self) -> tuple[Timeline, bool]:
        stream, container = self._stream, self._container
        average, guess = float(stream.average_rate or 0), float(stream.guessed_rate or 0)
        # the average suffers from an odd last frame; the guess means nothing where the rate varies
        rate = guess if guess and (not average or abs(guess / average - 1) < 0.05) else average
        duration, is_exact = 0.0, True
        if stream.duration:
            duration = stream.duration * self._tick
        elif tag := _seconds(stream.metadata.get("DURATION", "")):  # Matroska's
            duration = tag - max(0.0, self.offset)
        elif container.duration:
            duration, is_exact = container.duration / 1e6, False
        else:
            duration, is_exact = self._demuxed_duration(), False
        rate = rate or (stream.frames / duration if duration > 0 else 0)
        if not (0 < rate < 10_000 and 0 < duration < math.inf):
            raise ValueError(f"its length or frame rate is unknown: {duration:g} s at {rate:g}")
        return Timeline(duration, rate), is_exact

    def _demuxed_duration(self) -> float:
        """The length of a file that does not say it."""
        ends = [packet.pts + (packet.duration or 0) for packet in self._packets(None) if packet.pts is not None]
        return (max(ends) - self._start) * self._tick if ends else 0.0


def _tick_of(frame: VideoFrame) -> int:
    moment = frame.dts if frame.pts is None else frame.pts
    if moment is None:
        raise ValueError("its frames have no times")
    return moment


def _seconds(text: str) -> float:
    """'00:01:02.500000000' -> 62.5; 0 if it is not like that."""
    try:
        hours, minutes, seconds = (float(part) for part in text.split(":"))
    except ValueError:
        return 0.0
    return hours * 3600 + minutes * 60 + seconds
