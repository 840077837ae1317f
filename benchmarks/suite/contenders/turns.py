"""A contender that stays: at each line on its standard input it does one round, and says how long that took.

For comparisons in one run without the cost of many starts: two of these are asked by turns.
"""

import json
import os
import shutil
import sys
import time

from timing import given, measure


def new_folder(args):
    """A folder that nobody has used: ext4 is slow where files were deleted seconds ago."""
    os.makedirs(args["dst"], exist_ok=True)
    return os.path.join(args["dst"], f"round-{len(os.listdir(args['dst']))}")


def images(args):
    """sds over images: once more from the cache (or the disk), or from an empty cache and a new start each time."""
    import ours

    if args["kind"] == "cold":

        def round():
            loader = ours.make({**args, "dst": new_folder(args)})
            took = measure(lambda: loader, num=args["num"])
            loader.close()
            loader.dataset.close()
            return {"took": took}

        return round
    loader = ours.make(args)
    return lambda: sum(len(batch["image"]) for batch in loader)


def overhead(args):
    import overhead

    import sds

    dataset = sds.StreamingDataset(
        args["index"],
        args["dst"],
        columns_to_download=["url"],
        transforms=[overhead.nothing],
        shuffle_seed=1,
        on_error="raise",
    )
    loader = sds.StreamingDataLoader(dataset, args["batch"])
    return lambda: sum(len(batch["image"]) for batch in loader)


def rows(args):
    import rows

    make = rows.bare if args["of"] == "pyarrow" else rows.ours
    _, loader = make(args)
    return lambda: sum(len(batch["url"]) for batch in loader)


def access(args):
    import random

    import rows

    dataset, _ = rows.ours(args)
    chosen = [random.Random(k).randrange(len(dataset)) for k in range(2000)]
    return lambda: sum(1 for row in chosen if dataset[row])


def python(args):
    """How fast this Python is: a loop of dicts, hashes and text."""
    import hashlib

    def round():
        found = {}
        for k in range(args["num"]):
            key = repr((k, "sample", str(k)))
            found[hashlib.blake2b(key.encode(), digest_size=8).digest()] = {"a": k, "b": key, "c": 1}
        return len(found)

    return round


def bare(args):
    import bare

    def round():
        return {"took": bare.KINDS[args["kind"]]({**args, "dst": new_folder(args)})}

    return round


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    args = given()
    kinds = {"images": images, "overhead": overhead, "rows": rows, "access": access, "python": python, "bare": bare}
    round = kinds[args["program"]](args)
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        num = round()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if isinstance(num, dict):  # it has a clock of its own: starting a fetch server, or a getter, does not count
            num, wall = num["took"]["images"], num["took"]["images"] / num["took"]["steady"]
        print(json.dumps({"num": num, "rate": num / wall, "cpu_us": 1e6 * cpu / num}), flush=True)
    if "dst" in args:
        shutil.rmtree(args["dst"], ignore_errors=True)
    os._exit(0)
