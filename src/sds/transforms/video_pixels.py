"""Decoded frames -> RGB pixels, upright, at full size or scaled down in the same step.

Comes in: PyAV frames of any pixel format. Goes out: uint8 frames [t, 3, h, w]. At full size the colours are the ones
that the ffmpeg command gives by default, to the bit; scaled ones are those of its accurate scaler.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sds.transforms.options import load_package

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from av.video.plane import VideoPlane

__all__ = ["Orientation", "Painter", "Scale", "orientation_of"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How small frames may be made: never below `min_size` (h, w), which portrait videos may turn."""

    min_size: tuple[int, int]
    allow_vertical: bool = False
    mode: str = "bilinear"

    def apply(self, size: tuple[int, int]) -> tuple[int, int]:
        """The size for upright frames of this one; the same where they are small enough already."""
        (height, width), (least_height, least_width) = size, self.min_size
        if self.allow_vertical and height > width and least_height < least_width:
            least_height, least_width = least_width, least_height
        factor = max(least_height / height, least_width / width)
        if factor >= 1:
            return size
        return max(least_height, round(height * factor)), max(least_width, round(width * factor))


@dataclass(frozen=True, slots=True)
class Orientation:
    """What makes stored pixels upright: first swap the axes, then mirror."""

    swaps: bool = False
    mirrors_x: bool = False
    mirrors_y: bool = False

    def turn(self, size: tuple[int, int]) -> tuple[int, int]:
        """(h, w) of the upright picture of stored (h, w), and the other way round."""
        return (size[1], size[0]) if self.swaps else size

    def apply(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Turns [..., h, w] pixels; a view."""
        pixels = pixels.swapaxes(-1, -2) if self.swaps else pixels
        return pixels[..., :: -1 if self.mirrors_y else 1, :: -1 if self.mirrors_x else 1]


def orientation_of(frame: VideoFrame) -> Orientation:
    """Reads a frame's display matrix; turns that are no multiple of 90 degrees are rounded to one."""
    # not frame.side_data: that would refer to the frame and the frame to it, and keep its memory until a collection
    container: Any = load_package("av.sidedata.sidedata", "video").SideDataContainer(frame)
    for data in container:
        if data.type.name == "DISPLAYMATRIX" and data.buffer_size >= 36:
            # x' = a x + c y, y' = b x + d y, with x to the right and y down
            a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data)[:36])
            if abs(a) >= abs(b):
                return Orientation(False, a < 0, d < 0)
            return Orientation(True, c < 0, b < 0)
    return Orientation()


class Painter:
    """Paints the frames of one video into one tensor's memory; all get the size of the first."""

    def __init__(self, num_frames: int, scale: Scale | None) -> None:
        self._num_frames = num_frames
        self._scale = scale
        self._reformatter = load_package("av.video.reformatter", "video").VideoReformatter()
        self._orientation = Orientation()
        self._stored: tuple[int, int] | None = None  # (h, w) of pixels as they lie in the frames, scaled
        self._frames: npt.NDArray[np.uint8] | None = None  # [t, 3, h, w]

    def paint(self, place: int, frame: VideoFrame) -> None:
        """Converts a frame into its place."""
        if self._frames is None or self._stored is None:
            self._orientation = orientation_of(frame)
            upright = self._orientation.turn((frame.height, frame.width))
            height, width = upright if self._scale is None else self._scale.apply(upright)
            self._stored = self._orientation.turn((height, width))
            memory = np.empty((self._num_frames, height, width, 3), np.uint8)
            self._frames = memory.transpose(0, 3, 1, 2)  # [t, 3, h, w] over [t, h, w, 3]
            if self._stored != (frame.height, frame.width):
                self._frames = np.empty((self._num_frames, 3, height, width), np.uint8)
        pixels = self._convert(frame, self._stored)  # [3, h, w]
        self._frames[place] = self._orientation.apply(pixels)

    def repeat(self, place: int, painted: int) -> None:
        """Puts a frame that is painted already into another place, too."""
        assert self._frames is not None
        self._frames[place] = self._frames[painted]

    def result(self) -> npt.NDArray[np.uint8]:
        """All frames [t, 3, h, w]; in memory [t, h, w, 3] if they were not scaled."""
        assert self._frames is not None
        return self._frames

    def _convert(self, frame: VideoFrame, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        height, width = size
        if (frame.height, frame.width) == size:
            # FFmpeg's fast way. Planar output would be faster still, but it leaves the last columns of widths that
            # are no multiple of 8 unwritten
            image = self._reformatter.reformat(frame, format="rgb24", threads=1)
            packed = _plane(image.planes[0], height, 3 * width)
            return np.asarray(packed.reshape(height, width, 3).transpose(2, 0, 1))
        mode = self._scale.mode.upper() if self._scale is not None else "BILINEAR"
        # scaling to packed RGB takes three times as long as to planes, for the same values
        image = self._reformatter.reformat(
            frame, width=width, height=height, format="gbrp", interpolation=mode, threads=1
        )
        green, blue, red = (_plane(plane, height, width) for plane in image.planes)
        return np.stack([red, green, blue])


def _plane(plane: VideoPlane, height: int, width: int) -> npt.NDArray[np.uint8]:
    """The pixels of a plane without the padding of its lines: [h, w]."""
    memory: npt.NDArray[np.uint8] = np.frombuffer(memoryview(plane), np.uint8)
    return memory.reshape(-1, plane.line_size)[:height, :width]
