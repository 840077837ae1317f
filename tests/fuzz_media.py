"""Broken videos and sounds: bits flipped, bytes overwritten, cut short. Each is decoded, or is a DecodeError, soon.

    python tests/fuzz_media.py --count 10000 [--kinds h264 wav ...] [--seed 0]

The files are decoded in another process, which a watchdog ends (with all stacks) when one file takes too long. The case
that a process died in is printed, and can be made again from its kind, seed and number.
"""

from __future__ import annotations

import argparse
import faulthandler
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FILE_TIMEOUT_S = 20.0
MAX_GROWTH_KB = 400_000

_PICTURES = ("-f", "lavfi", "-i", "testsrc2=size=48x32:rate=10:duration=1.2")
_TONE = ("-f", "lavfi", "-i", "aevalsrc=0.4*sin(2*PI*400*t)|0.4*sin(2*PI*700*t):s=16000:d=0.7")
_X264 = ("-c:v", "libx264", "-preset", "ultrafast", "-bf", 2, "-g", 6, "-pix_fmt", "yuv420p")
KINDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "h264": ("a.mp4", (*_PICTURES, *_TONE, *_X264, "-c:a", "aac", "-movflags", "faststart")),
    "hevc": ("a.mkv", (*_PICTURES, "-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=0:keyint=6")),
    "vp9": ("a.webm", (*_PICTURES, "-c:v", "libvpx-vp9", "-g", 6, "-deadline", "realtime", "-cpu-used", 8)),
    "av1": ("b.mp4", (*_PICTURES, "-c:v", "libaom-av1", "-g", 6, "-usage", "realtime", "-cpu-used", 8)),
    "mpeg4": ("a.avi", (*_PICTURES, "-c:v", "mpeg4", "-g", 6)),
    "ts": ("a.ts", (*_PICTURES, *_X264)),
    "wav": ("a.wav", (*_TONE,)),
    "flac": ("a.flac", (*_TONE,)),
    "mp3": ("a.mp3", (*_TONE,)),
    "vorbis": ("a.ogg", (*_TONE, "-c:a", "libvorbis")),
    "aac": ("a.m4a", (*_TONE, "-c:a", "aac")),
}


def make(kind: str, folder: Path) -> bytes:
    from media_files import ffmpeg

    name, options = KINDS[kind]
    path = folder / name
    ffmpeg(*options, path)
    return path.read_bytes()


def mutate(data: bytes, rng: random.Random) -> bytes:
    broken = bytearray(data)
    # half of them in the header, where sizes and tables are
    region = min(len(data), 600) if rng.random() < 0.5 else len(data)
    for _ in range(rng.randint(1, 6)):
        if rng.random() < 0.7:
            broken[rng.randrange(region)] ^= 1 << rng.randrange(8)
        else:
            start = rng.randrange(region)
            length = rng.randint(1, 8)
            broken[start : start + length] = rng.choice([b"\xff", b"\x00", b"\x7f"]) * len(
                broken[start : start + length]
            )
    if rng.random() < 0.2:
        del broken[rng.randrange(len(broken)) :]
    return bytes(broken) or b"\0"


def run(kind: str, data: bytes, count: int, seed: int, state: Path) -> tuple[int, int]:
    """How many were decoded, and how many refused; anything else ends the process."""
    from sds.errors import DecodeError
    from sds.transforms import DecodeAudio, DecodeVideo, DecodeVideoAndAudio

    is_video = KINDS[kind][1][3].startswith("testsrc2")
    limits = {"max_pixels": 1 << 20, "frame_seek_timeout_sec": 5.0, "max_decoded_frames": 1000}
    video = DecodeVideo("x", 4, "v", shorter_videos="repeat_last", **limits)
    joint = DecodeVideoAndAudio("x", "v", "a", "rate", 4, decode_kwargs={"shorter_videos": "loop", **limits})
    audio = DecodeAudio("x", "a", duration=0.25, allow_shorter_audio=True, max_samples=1 << 24)
    decoded = refused = 0
    with open(state, "w") as note:
        for number in range(count):
            note.seek(0)
            note.write(f"{number:8d}")
            note.flush()
            sample = {"x": mutate(data, random.Random(f"{kind} {seed} {number}")), "__random_seed__": number}
            faulthandler.dump_traceback_later(FILE_TIMEOUT_S, exit=True)
            transform = (joint if kind == "h264" and number % 2 else video) if is_video else audio
            try:
                result = transform(sample)
            except DecodeError as error:
                assert error.stage == "decode"
                refused += 1
            else:
                decoded += 1
                if is_video:
                    assert result["v"].ndim == 4 and result["v"].shape[:2] == (4, 3)
                else:
                    assert result["a"].ndim == 2 and bool(result["a"].abs().max() <= 1)
            faulthandler.cancel_dump_traceback_later()
    return decoded, refused


def child(kind: str, folder: Path, count: int, seed: int) -> None:
    data = (folder / f"{kind}.data").read_bytes()
    run(kind, data, 20, seed + 1, folder / f"{kind}.state")  # what is loaded once is loaded now
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    decoded, refused = run(kind, data, count, seed, folder / f"{kind}.state")
    growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert growth < MAX_GROWTH_KB, f"memory grew by {growth} KB"
    seconds = time.monotonic() - begin
    print(f"{kind}: {decoded} decoded, {refused} refused, {seconds:.1f} s, memory +{growth // 1024} MB", flush=True)  # noqa: T201 - what the parent reads


def start(kinds: list[str], folder: Path, count: int, seed: int) -> subprocess.Popen[str]:
    for kind in kinds:
        (folder / f"{kind}.data").write_bytes(make(kind, folder))
    command = [sys.executable, __file__, "--child", folder, "--count", count, "--seed", seed, "--kinds", *kinds]
    with open(folder / "stderr", "w") as words:  # libmpg123 says a lot of broken files
        return subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=words, text=True)


def finish(kinds: list[str], folder: Path, process: subprocess.Popen[str]) -> str:
    """What it printed, or an AssertionError that names the case it died in."""
    output, _ = process.communicate()
    states = {kind: (folder / f"{kind}.state").read_text() for kind in kinds if (folder / f"{kind}.state").exists()}
    words = (folder / "stderr").read_text()[-5000:]
    assert process.returncode == 0, f"ended with {process.returncode} after cases {states}:\n{output}\n{words}"
    return output.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        for kind in options.kinds:
            child(kind, options.child, options.count, options.seed)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in options.kinds:
            print(finish([kind], folder, start([kind], folder, options.count, options.seed)), flush=True)  # noqa: T201 - a program


if __name__ == "__main__":
    main()
