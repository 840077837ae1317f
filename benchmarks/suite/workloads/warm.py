"""(2) The same files, all of them in the contender's cache."""

from data import BUCKET

NUMBER, NAME = 2, "warm"
TITLE = "JPEG files on S3, warm cache"
ABOUT = "A fresh process finds everything in the cache that a run before it filled. Who keeps no cache is not here."
FIGURE, UNIT = "steady", "images/s"
COLUMNS = ("steady", "with_start", "first_batch_s", "rss_mb", "cpu_ms_per_image", "downloaded_mb")


def cases(bench):
    lists, s3 = bench.images.lists, f"s3://{BUCKET}"
    kept = {"wipe": False, "prepare": True}
    ours = {"index": str(lists / "urls.parquet"), "storage_options": bench.storage_options}
    found = [
        bench.ours("sds, warm", "ours.py", **ours, **kept),
        bench.ours("sds, warm, 2 workers", "ours.py", workers=2, **ours, **kept),
        *bench.decodes(),
    ]
    raw = {"kind": "raw cached", "source": f"{s3}/images/", "list": str(lists / "urls.txt")}
    found += bench.peer("litdata, raw, warm", "litdata", "litdata_images.py", **raw, **kept)
    chunks = {"needs": "litdata", "kind": "chunks", "source": f"{s3}/litdata/"}
    found += bench.peer("litdata, chunks, warm", "litdata", "litdata_images.py", **chunks, **kept)
    found += bench.peer("mosaic, MDS, warm", "streaming", "mosaic_images.py", needs="mds", source=f"{s3}/mds", **kept)
    tars = bench.peer("webdataset, tars, warm", "webdataset", "webdataset_images.py", needs="tars", cached=True, **kept)
    for each in tars:
        each.args["shards"] = str(bench.images.shards("tars", bench.endpoint))
    return found + tars
