"""Clips of videos: the files, and the way to read them, are those of benchmarks/clips.py."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from timing import given, measure, tell

sys.path.append(str(Path(__file__).parents[2]))
import clips

import sds


def make_files(args):
    """So many names for one long video in the bucket."""
    folder = Path(args["bucket"], f"videos-{args['seconds']}")
    names = [f"{number}.mp4" for number in range(args["num"])]
    if not (folder / ".done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        clips.LAYOUTS = {"mp4, index first": clips.LAYOUTS["mp4, index first"]}
        (made,) = clips.make_videos(folder, args["seconds"]).values()
        for name in names:
            (folder / name).unlink(missing_ok=True)
            os.link(made, folder / name)
        (folder / ".done").touch()
    return folder, names


def remote(args, folder, names):
    Path(args["dst"]).mkdir(parents=True)
    urls = [f"s3://{folder.parent.name}/{folder.name}/{name}" for name in names]
    how = "auto" if args["kind"] == "ranges" else "whole"
    return sds.StreamingDataLoader(clips.dataset(Path(args["dst"]), urls, how, args["storage_options"]), 2)


def local(folder, names):
    chain = clips.presets.create_standard_video_pipeline("url", clips.CLIP_S * clips.RATE, (256, 256))

    def clip(number):
        sample = {"url": str(folder / names[number]), "__random_seed__": number, "__sample_key__": str(number)}
        for transform in chain:
            sample = transform(sample)
        return sample["video"]

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        num = sum(1 for _ in pool.map(clip, range(len(names))))
    rate = num / (time.perf_counter() - begun)
    return {"images": num, "steady": rate, "with_start": rate}


if __name__ == "__main__":
    args = given()
    place = make_files(args)
    if args["kind"] == "local":
        tell(**local(*place))
    found = measure(lambda: remote(args, *place), num=args["num"], count=lambda batch: len(batch["video"]))
    tell(**{**found, "steady": found["with_start"]})  # few batches: all of them count
