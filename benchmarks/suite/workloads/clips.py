"""(9) Clips of long videos on S3."""

from dataclasses import replace

NUMBER, NAME = 9, "clips"
TITLE = "Clips of 2 s of long 1080p videos on S3, cold"
ABOUT = (
    "Random clips of 60 frames, resized to 256x256, batches of 2: by byte ranges, and with whole files. The limit "
    "decodes the same clips of files on this disk, a thread for each core."
)
FIGURE, UNIT = "steady", "clips/s"
COLUMNS = ("steady", "first_batch_s", "rss_mb", "downloaded_mb")


def cases(bench):
    num, seconds = (2, 30) if bench.is_quick else (8, 300)
    told = {
        "bucket": str(bench.images.bucket),
        "num": num,
        "seconds": seconds,
        "storage_options": bench.storage_options,
    }
    found = [bench.ours(f"sds, {kind}", "video_clips.py", kind=kind, **told) for kind in ("ranges", "whole files")]
    limit = bench.ours("bare clips", "video_clips.py", kind="local", **told)
    return [*found, replace(limit, kind="limit")]
