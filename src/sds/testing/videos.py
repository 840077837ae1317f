"""Made-up videos with sound, for tests, examples and pages: a shape that moves, and a tone that belongs to it.

Comes in: a folder, how many, how large. Goes out: encoded files and one record for each. Every frame and sample is a
pure function of (seed, number). Needs the extras `video` and `audio`.
"""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path
from typing import TypedDict

import numpy as np

from sds.errors import OptionError
from sds.seeds import derive
from sds.testing.media import draw_image

__all__ = ["VideoRecord", "make_videos"]

SAMPLE_RATE = 16_000


class VideoRecord(TypedDict):
    """One row of an index of videos."""

    id: str
    path: str
    wav: str
    caption: str
    duration: float
    framerate: float


def make_videos(
    folder: str | os.PathLike[str],
    count: int,
    size: tuple[int, int] = (72, 96),
    duration: float = 2.0,
    framerate: int = 24,
    seed: int = 0,
    has_sound: bool = True,
) -> list[VideoRecord]:
    """Writes videos 000000.mp4, ... (MPEG-4, AAC) and their sound as 000000.wav, ...; returns their records.

    Args:
        folder: made if it is not there.
        count: how many.
        size: (h, w) of the frames; even numbers.
        duration: of each, in seconds.
        framerate: frames per second.
        seed: other seeds make other videos.
        has_sound: False leaves the sound out of the videos; the .wav files are there all the same.
    """
    try:
        import av
        import soundfile
    except ImportError as error:
        hint = "pip install 'streaming-dataset[video,audio]'"
        raise OptionError(f"package is not installed: {error.name}", hint=hint) from error

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    records: list[VideoRecord] = []
    for number in range(count):
        pixels, caption = draw_image(number, size, seed)
        path, wav = folder / f"{number:06d}.mp4", folder / f"{number:06d}.wav"
        pitch = float(derive(seed, "pitch", number).uniform(200, 800))
        times = np.arange(round(duration * SAMPLE_RATE)) / SAMPLE_RATE
        sound = (0.4 * np.sin(2 * np.pi * pitch * times)).astype(np.float32)  # [t]
        soundfile.write(wav, sound, SAMPLE_RATE)
        with av.open(str(path), "w") as container:
            video = container.add_stream("mpeg4", rate=framerate)
            video.height, video.width = size
            video.pix_fmt, video.gop_size, video.bit_rate = "yuv420p", 12, 1_000_000
            audio = container.add_stream("aac", rate=SAMPLE_RATE, layout="mono") if has_sound else None
            for step in range(round(duration * framerate)):
                moved = np.ascontiguousarray(np.roll(pixels, 2 * step, axis=1))  # [h, w, 3]
                container.mux(video.encode(av.VideoFrame.from_ndarray(moved, format="rgb24")))
            container.mux(video.encode())
            if audio is not None:
                for start in range(0, len(sound), 1024):
                    frame = av.AudioFrame.from_ndarray(sound[None, start : start + 1024], format="fltp", layout="mono")
                    frame.sample_rate, frame.pts, frame.time_base = SAMPLE_RATE, start, Fraction(1, SAMPLE_RATE)
                    container.mux(audio.encode(frame))
                container.mux(audio.encode())
        records.append(
            VideoRecord(
                id=f"{number:06d}",
                path=str(path),
                wav=str(wav),
                caption=caption,
                duration=duration,
                framerate=float(framerate),
            )
        )
    return records
