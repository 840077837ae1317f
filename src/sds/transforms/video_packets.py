"""What lies where in a video, told from its packets before any of them is decoded.

Comes in: packets from a seek on, and the times that are wanted. Goes out: the packets that must be decoded, and which
frame is shown at each time. With that, decoding can leave out what nobody needs and stop at the last wanted frame.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from av.index import IndexEntries, IndexEntry
    from av.packet import Packet
    from av.video.stream import VideoStream

__all__ = ["Segment", "look_ahead", "span_of", "split_at_keyframes"]

MAX_HELD_BYTES = 64 << 20  # a segment of more is decoded while it is read
_MARGIN = 0.1  # of a group of pictures, by which the guess of a place in it may be wrong
_MAX_REORDER = 64  # packets past the last wanted time, after which no earlier frame can come


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of packets that begins with a keyframe.

    Attributes:
        offset: the time to seek to for it; None: the start of the file.
        keyframe: the time of the first keyframe's own frame; None: there is no keyframe.
        packets: in the order of decoding; None if they are too large to hold, or have no times.
        times: of their frames, ascending.
        has_ended: the file ends with it.
    """

    offset: int | None
    keyframe: int | None
    packets: list[Packet[VideoStream]] | None
    times: list[int]
    has_ended: bool

    @property
    def last(self) -> int | None:
        """The time of the last frame."""
        return self.times[-1] if self.times else None

    def shown_at(self, tick: int) -> int:
        """The time of the frame shown then: the last that is not later, else the first."""
        return self.times[max(0, bisect_right(self.times, tick) - 1)]


def look_ahead(
    read: Callable[[int | None], Iterator[Packet[VideoStream]]], ticks: Sequence[int], start: int, second: int
) -> Segment:
    """Finds the segment that shows all of the ascending `ticks`.

    Args:
        read: packets from a seek on; None is the start of the file.
        ticks: wanted times.
        start: the time of the first frame.
        second: ticks in a second.
    """
    back = 0
    while True:
        offset = None if ticks[0] - back <= start else ticks[0] - back
        segment = _collect(read(offset), offset, ticks)
        if segment is not None:
            return segment
        back = max(2 * back, second)  # the keyframe came too late: begin earlier


def _collect(packets: Iterator[Packet[VideoStream]], offset: int | None, ticks: Sequence[int]) -> Segment | None:
    held: list[Packet[VideoStream]] = []
    times: list[int] = []
    keyframe: int | None = None
    num_bytes = num_past = 0
    has_ended = True
    for packet in packets:
        if packet.pts is None:  # AVI has no such times: the decoder must tell
            return Segment(None, None, None, [], False)
        if keyframe is None and packet.is_keyframe:
            keyframe = packet.pts
            if offset is not None and keyframe > ticks[0]:
                return None
            held, times, num_bytes = [], [], 0  # what came before it cannot be decoded
        held.append(packet)
        num_bytes += packet.size
        if not packet.is_discard:
            times.append(packet.pts)
        num_past += packet.pts > ticks[-1]
        if keyframe is None:
            pass  # nothing can be shown before the first one
        elif num_past and ((packet.dts is not None and packet.dts > ticks[-1]) or num_past > _MAX_REORDER):
            has_ended = False
            break
        if num_bytes > MAX_HELD_BYTES:
            return Segment(offset, keyframe, None, [], False)
    if offset is not None and keyframe is None:
        return None
    is_planned = keyframe is not None and len(times) > 0
    return Segment(offset, keyframe, held if is_planned else None, sorted(times), has_ended)


def span_of(index: IndexEntries, first: int, last: int) -> tuple[int, int]:
    """Bytes [start, stop) of the file that hold all frames from one time to another, as its index tells; or (0, 0)."""
    begin = index.search_timestamp(first, backward=True)
    end = index.search_timestamp(last + 1, backward=False, any_frame=True)  # where reading stops
    if begin < 0 or end < 0:
        return 0, 0
    start, stop = index[begin], index[end]
    if stop.size:
        return start.pos, stop.pos + stop.size
    # only keyframes are in it (Matroska): the place between two of them is guessed; what is missing is read later
    before = index[max(begin, index.search_timestamp(last, backward=True))]
    share = (last + 1 - before.timestamp) / max(1, stop.timestamp - before.timestamp)
    return start.pos, before.pos + round(min(1.0, max(0.0, share) + _MARGIN) * (stop.pos - before.pos))


def split_at_keyframes(ticks: Sequence[int], index: Iterable[IndexEntry], gap: float) -> list[list[int]]:
    """Groups ascending times so that a seek between two groups saves decoding at least `gap` ticks of frames."""
    keyframes = [entry.timestamp for entry in index if entry.is_keyframe]
    groups = [[ticks[0]]]
    for tick in ticks[1:]:
        place = bisect_right(keyframes, tick) - 1
        if place >= 0 and keyframes[place] - groups[-1][-1] > gap:
            groups.append([])
        groups[-1].append(tick)
    return groups
