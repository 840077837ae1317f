"""(4) Four epochs with a cache that holds half of the data."""

from data import BUCKET

NUMBER, NAME = 4, "half"
TITLE = "Four epochs, a cache of half the data"
ABOUT = "The least that can be downloaded is all of it once, and then half of it in each epoch."
FIGURE, UNIT, LOWER = "downloaded_mb", "MB", True
COLUMNS = ("downloaded_mb", "of_optimum", "steady", "rss_mb")
HEADS = {"steady": "steady images/s"}


def cases(bench):
    lists, s3 = bench.images.lists, f"s3://{BUCKET}"
    limit = bench.images.num_bytes // 2
    told = {"epochs": 4, "cache_limit": limit}
    found = [
        bench.ours(
            "sds, half", "ours.py", index=str(lists / "urls.parquet"), storage_options=bench.storage_options, **told
        )
    ]
    chunks = {"needs": "litdata", "kind": "chunks", "source": f"{s3}/litdata/"}
    found += bench.peer("litdata, chunks, half", "litdata", "litdata_images.py", **chunks, **told)
    found += bench.peer("mosaic, MDS, half", "streaming", "mosaic_images.py", needs="mds", source=f"{s3}/mds", **told)
    return found


def derive(bench, figures):
    """How much more than the least was downloaded."""
    least = bench.images.num_bytes * (1 + 3 * 0.5) / 1e6
    return {"of_optimum": figures["downloaded_mb"] / least}
