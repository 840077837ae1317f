"""The bytes of one image at a time, at random."""

import random
import statistics
import time
from pathlib import Path

from timing import given, tell


def read(sample):
    return {"jpg": Path(sample["url"]).read_bytes()}


def ours(args):
    import sds

    return sds.StreamingDataset(
        args["source"],
        args["dst"],
        columns_to_download=["url"],
        transforms=[read],
        storage_options=args["storage_options"],
    )


def litdata(args):
    import litdata

    return litdata.StreamingDataset(
        args["source"], cache_dir=args["dst"], storage_options={"endpoint_url": args["endpoint"]}
    )


def mosaic(args):
    import mosaic_images  # noqa: F401 (what it needs to be imported)
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    return streaming.StreamingDataset(remote=args["source"], local=args["dst"], shuffle=False, batch_size=1)


if __name__ == "__main__":
    args = given()
    dataset = {"sds": ours, "litdata": litdata, "mosaic": mosaic}[args["kind"]](args)
    choose = random.Random(0)
    rows = [choose.randrange(args["num"]) for _ in range(300)]
    for row in rows:  # fills the cache
        dataset[row]
    times = []
    for row in rows:
        start = time.perf_counter()
        assert len(dataset[row]["jpg"]) > 1000
        times.append(1000 * (time.perf_counter() - start))
    tell(median_ms=statistics.median(times), p99_ms=sorted(times)[int(0.99 * len(times))])
