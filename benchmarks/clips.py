"""What a 2 s clip of a long video on S3 costs: bytes, requests and time, by byte ranges and with the whole file.

    python benchmarks/clips.py [--seconds 300] [--clips 8] [--videos 6] [--latency-ms 20]

A 1080p h264 file of about 4 Mbit/s with sound, in several containers, on SeaweedFS. First, clips at random places, one
at a time, each with an empty cache: the share of the file that came over the line. Then a loader over several such
videos, cold, without and with a latency before the first byte of every answer: clips per second, by ranges and whole.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pyarrow as pa
import pyarrow.parquet as pq

import sds
from sds.events import Stats
from sds.testing import FaultyProxy, S3Server
from sds.testing.faults import Fault
from sds.transforms import presets

RATE, CLIP_S, BASE_S = 30, 2, 15
LAYOUTS = {
    "mp4, index first": ("first.mp4", ("-movflags", "+faststart")),
    "mp4, index last": ("last.mp4", ()),
    "mkv": ("plain.mkv", ()),
    "avi": ("plain.avi", ()),
    "mp4, fragments": ("fragments.mp4", ("-movflags", "frag_keyframe+empty_moov")),
    "mpeg-ts": ("stream.ts", ()),
}
BUCKET = "benchmark-clips"


def ffmpeg(*arguments: object) -> None:
    subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-nostdin", "-y", *map(str, arguments)], check=True)


def make_videos(folder: Path, seconds: int) -> dict[str, Path]:
    """15 s are encoded, and repeated as they are."""
    base = folder / "base.mp4"
    ffmpeg(
        *("-f", "lavfi", "-i", f"testsrc2=size=1920x1080:rate={RATE}:duration={BASE_S}"),
        *("-f", "lavfi", "-i", f"sine=frequency=440:duration={BASE_S}:sample_rate=48000"),
        *("-vf", "noise=alls=12:allf=t", "-c:v", "libx264", "-preset", "ultrafast", "-b:v", "4M", "-maxrate", "5M"),
        *("-bufsize", "8M", "-g", 250, "-bf", 2, "-pix_fmt", "yuv420p", "-c:a", "aac", "-b:a", "128k", base),
    )
    made = {}
    for layout, (name, options) in LAYOUTS.items():
        made[layout] = folder / name
        ffmpeg("-stream_loop", seconds // BASE_S - 1, "-i", base, "-c", "copy", *options, made[layout])
    return made


def dataset(folder: Path, urls: list[str], remote: str, options: dict[str, Any]) -> sds.StreamingDataset:
    """One sample for each URL, with an empty cache."""
    place = Path(tempfile.mkdtemp(dir=folder))
    pq.write_table(pa.table({"index": [str(i) for i in range(len(urls))], "url": urls}), place / "index.parquet")
    chain = presets.create_standard_video_pipeline("url", CLIP_S * RATE, (256, 256), decode_kwargs={"remote": remote})
    return sds.StreamingDataset(
        str(place / "index.parquet"),
        str(place / "cache"),
        columns_to_download=["url"],
        transforms=chain,
        storage_options=options,
        on_error="raise",
        cache_limit=None,
        shuffle_seed=0,
    )


def one_clip(folder: Path, url: str, remote: str, options: dict[str, Any], epoch: int) -> tuple[Stats, float]:
    with dataset(folder, [url], remote, options) as data:
        data.set_epoch(epoch)  # another place in the video
        began = time.perf_counter()
        assert data[0]["video"].shape == (CLIP_S * RATE, 3, 256, 256)
        return data.stats(), time.perf_counter() - began


def clips_per_s(folder: Path, urls: list[str], remote: str, options: dict[str, Any]) -> tuple[float, Stats]:
    with dataset(folder, urls, remote, options) as data:
        began = time.perf_counter()
        with contextlib.closing(sds.StreamingDataLoader(data, batch_size=2)) as loader:
            number = sum(len(batch["video"]) for batch in loader)
        return number / (time.perf_counter() - began), data.stats()


@contextlib.contextmanager
def delayed(server: S3Server, latency_ms: float) -> Iterator[dict[str, Any]]:
    """Options that lead to the server, by way of a proxy that waits before each answer if so told."""
    if not latency_ms:
        yield server.storage_options
        return
    proxy = FaultyProxy(server.endpoint, [Fault("delay", seconds=latency_ms / 1000)])
    with proxy:
        yield {**server.storage_options, "endpoint": proxy.endpoint}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300, help="length of the videos")
    parser.add_argument("--clips", type=int, default=8, help="places in each container")
    parser.add_argument("--videos", type=int, default=6, help="videos that the loader reads")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="before the first byte of an answer")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, S3Server() as server:
        folder = Path(temporary)
        server.create_bucket(BUCKET)
        print(f"{CLIP_S} s clips of a {args.seconds} s video of 1080p, {args.clips} places, cache empty each time")
        print(
            f"{'container':>18} {'MB':>6} {'bytes: mean':>12} {'most':>7} {'requests':>9} {'whole anyway':>13} {'s':>6}"
        )
        for layout, path in make_videos(folder, args.seconds).items():
            server.put(BUCKET, path.name, path.read_bytes())
            url, size = f"s3://{BUCKET}/{path.name}", path.stat().st_size
            runs = [one_clip(folder, url, "auto", server.storage_options, epoch) for epoch in range(args.clips)]
            shares = [stats.bytes_downloaded / size for stats, _ in runs]
            print(
                f"{layout:>18} {size / 1e6:6.0f} {statistics.mean(shares):12.2%} {max(shares):7.2%} "
                f"{statistics.mean(stats.requests for stats, _ in runs):9.1f} "
                f"{sum(stats.range_fallbacks for stats, _ in runs):13d} {statistics.median(s for _, s in runs):6.2f}"
            )
        body = (folder / LAYOUTS["mp4, index first"][0]).read_bytes()
        urls = [f"s3://{BUCKET}/copies/{number}.mp4" for number in range(args.videos)]
        for number in range(args.videos):
            server.put(BUCKET, f"copies/{number}.mp4", body)
        print(f"\nloader over {args.videos} such videos, batches of 2, cold: clips/s (MB downloaded)")
        for latency_ms in (0.0, args.latency_ms):
            with delayed(server, latency_ms) as options:
                rates = {remote: clips_per_s(folder, urls, remote, options) for remote in ("auto", "whole")}
            told = ", ".join(f"{r}: {rate:.2f} ({s.bytes_downloaded / 1e6:.0f})" for r, (rate, s) in rates.items())
            print(f"{latency_ms:5.0f} ms before the first byte: {told}")


if __name__ == "__main__":
    main()
