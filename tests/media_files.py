"""Encoded videos and sounds, made by the ffmpeg command, and what that command decodes them to."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from pathlib import Path

import imageio_ffmpeg
import numpy as np

__all__ = ["ffmpeg", "reference_audio", "reference_frames", "reference_times"]


def ffmpeg(*arguments: object) -> bytes:
    """Runs the command; its standard output."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-nostdin", "-y", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def reference_times(path: Path) -> tuple[list[float], float]:
    """When each frame is shown, in seconds from the first; and the tick that the file counts in."""
    options = ("-map", "0:v:0", "-fps_mode", "passthrough", "-enc_time_base", "demux", "-f", "framecrc")
    report = ffmpeg("-copyts", "-i", path, *options, "-").decode()
    lines = report.splitlines()
    tick = Fraction(next(line for line in lines if line.startswith("#tb 0:")).split(":")[1].strip())
    ticks = [int(line.split(",")[2]) for line in lines if not line.startswith("#")]
    return [float((each - ticks[0]) * tick) for each in ticks], float(tick)


def reference_frames(path: Path, size: tuple[int, int], *options: object) -> np.ndarray:
    """Every frame [t, 3, h, w], as the command turns them into RGB."""
    pixels = ffmpeg(
        "-i", path, "-map", "0:v:0", *options, "-fps_mode", "passthrough", "-pix_fmt", "rgb24", "-f", "rawvideo", "-"
    )
    return np.frombuffer(pixels, np.uint8).reshape(-1, *size, 3).transpose(0, 3, 1, 2)


def reference_audio(path: Path, num_channels: int, *options: object) -> np.ndarray:
    """All samples [c, t], float32."""
    samples = ffmpeg("-i", path, "-map", "0:a:0", *options, "-f", "f32le", "-c:a", "pcm_f32le", "-")
    return np.frombuffer(samples, np.float32).reshape(-1, num_channels).T
