"""How many clips of a video, and how many seconds of sound, become tensors in a second, beside other libraries.

    python benchmarks/media.py [--clips 12] [--rounds 5]

Video: 16 consecutive frames from a random place of a 20 s h264 file of 720p -> uint8 [16, 3, 256, 256], cropped to the
centre. Sound: 10 s of stereo FLAC and MP3 -> float32 [2, 10 s at 48 kHz], and the same at 16 kHz mono. One thread each,
CPU seconds of the process, so that a busy machine matters little. Rounds interleave the rows; medians are printed.

torchcodec is measured where it can be imported: `pip install --no-deps torchcodec==0.13.0`, and FFmpeg's shared
libraries (libavcodec.so and its sisters) where the loader finds them.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import av
import imageio_ffmpeg
import numpy as np
import soundfile
import soxr
import torch
from torch.nn.functional import interpolate

from sds.transforms import DecodeAudio, ResizeVideo, presets

FRAMES, SIDE, SECONDS, RATE = 16, 256, 20.0, 30
Clip = Callable[[str, float], torch.Tensor]


def ffmpeg(*arguments: object) -> None:
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-y", *map(str, arguments)], check=True)


def make_video(path: Path) -> None:
    source = f"testsrc2=size=1280x720:rate={RATE}:duration={SECONDS}"
    ffmpeg("-f", "lavfi", "-i", source, "-vf", "noise=alls=4:allf=t", "-c:v", "libx264", "-preset", "fast", "-crf", 24,
           "-pix_fmt", "yuv420p", path)  # fmt: skip


def small(frames: torch.Tensor) -> torch.Tensor:
    """[t, 3, h, w] -> the centre, resized."""
    height, width = frames.shape[2:]
    left = (width - height) // 2
    return interpolate(frames[..., left : left + height], (SIDE, SIDE), mode="bilinear", antialias=True).contiguous()


def with_sds(min_size: bool) -> Clip:
    resize = {} if min_size else {"min_size": None}

    def make(path: str, start: float) -> torch.Tensor:
        options = {"random_offset": False, "crop_interval": (start, SECONDS), **resize}
        sample: dict[str, object] = {"x": path}
        for transform in presets.create_standard_video_pipeline("x", FRAMES, (SIDE, SIDE), options):
            sample = transform(sample)
        return sample["video"]

    return make


def with_pyav(path: str, start: float) -> torch.Tensor:
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        container.seek(int(start / stream.time_base), stream=stream)
        frames = []
        for frame in container.decode(stream):
            if frame.time + 0.5 / RATE >= start:
                frames.append(frame.to_ndarray(format="rgb24"))
            if len(frames) == FRAMES:
                break
    return small(torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2))


def with_pyav_reformat(path: str, start: float) -> torch.Tensor:
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        container.seek(int(start / stream.time_base), stream=stream)
        frames = []
        for frame in container.decode(stream):
            if frame.time + 0.5 / RATE >= start:
                frames.append(frame.to_ndarray(format="rgb24", width=455, height=SIDE, interpolation="BILINEAR"))
            if len(frames) == FRAMES:
                break
    clip = torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)
    return ResizeVideo("x", resolution=(SIDE, SIDE))({"x": clip})["x"]


def with_torchcodec(mode: str) -> Clip | None:
    try:
        decoders = importlib.import_module("torchcodec.decoders")
    except (ImportError, RuntimeError, OSError) as error:
        print(f"torchcodec cannot be loaded here: {str(error).splitlines()[0]}")
        return None

    def make(path: str, start: float) -> torch.Tensor:
        decoder = decoders.VideoDecoder(path, seek_mode=mode, num_ffmpeg_threads=1)
        first = round(start * RATE)
        return small(decoder.get_frames_in_range(first, first + FRAMES).data)

    return make


def measure(rows: dict[str, Callable[[int], object]], count: int, rounds: int) -> dict[str, float]:
    """Median CPU seconds of one call of each row."""
    for make in rows.values():
        make(0)
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, make in rows.items():
            begin = time.process_time()
            for number in range(count):
                make(number)
            times[name].append((time.process_time() - begin) / count)
    return {name: statistics.median(values) for name, values in times.items()}


def report(title: str, base: str, times: dict[str, float]) -> None:
    print(f"\n{title}")
    for name, seconds in times.items():
        print(f"  {name:34s} {1e3 * seconds:8.1f} ms   {1 / seconds:7.1f}/s   {times[base] / seconds:5.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        video = folder / "a.mp4"
        make_video(video)
        starts = np.random.default_rng(0).integers(0, int(SECONDS * RATE) - FRAMES, options.clips) / RATE
        clips: dict[str, Clip | None] = {
            "sds preset": with_sds(True),
            "sds, full size first": with_sds(False),
            "PyAV, full size first": with_pyav,
            "PyAV, reformat to 256": with_pyav_reformat,
            "torchcodec, exact": with_torchcodec("exact"),
            "torchcodec, approximate": with_torchcodec("approximate"),
        }
        rows = {
            label: (lambda number, make=make: make(str(video), float(starts[number])))
            for label, make in clips.items()
            if make is not None
        }
        reference = rows["PyAV, full size first"](1).int()
        for label, make in rows.items():
            difference = (make(1).int() - reference).abs().float().mean()
            print(f"{label}: {difference:.2f} levels from plain PyAV on average")
        report(
            "16 frames of 720p h264 -> 256 px", "PyAV, full size first", measure(rows, options.clips, options.rounds)
        )

        source = ("-f", "lavfi", "-i", "aevalsrc=0.4*sin(600*t*t)|0.3*random(0):s=48000:d=10")
        for extension in ("flac", "mp3"):
            ffmpeg(*source, folder / f"a.{extension}")
        chain = presets.create_standard_audio_pipeline(
            "x", 10.0, mono_audio=True, normalize_audio=False, target_audio_sr=16_000
        )
        for extension in ("flac", "mp3"):
            path = str(folder / f"a.{extension}")

            def to_mono(_: int, path: str = path) -> object:
                sample: dict[str, object] = {"x": path, "__random_seed__": 0}
                for transform in chain:
                    sample = transform(sample)
                return sample["audio"]

            def plainly(_: int, path: str = path) -> object:
                samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
                return torch.from_numpy(soxr.resample(samples, rate, 16_000, "HQ").mean(1))

            def with_av(_: int, path: str = path) -> object:
                with av.open(path) as container:
                    return np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)

            sounds = {
                "sds DecodeAudio": lambda _, path=path: DecodeAudio("x")({"x": path}),
                "plain soundfile": lambda _, path=path: soundfile.read(path, dtype="float32"),
                "plain PyAV": with_av,
                "sds preset, 16 kHz mono": to_mono,
                "plain soundfile + soxr, mono": plainly,
            }
            report(f"10 s of {extension}", "plain soundfile", measure(sounds, options.clips, options.rounds))


if __name__ == "__main__":
    main()
