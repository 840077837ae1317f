"""(1) JPEG files on S3, nothing cached."""

from data import BUCKET

NUMBER, NAME = 1, "cold"
TITLE = "JPEG files on S3, cold"
ABOUT = "The store waits 20 ms before the first byte. sds writes what it fetches to its disk cache while it decodes."
FIGURE, UNIT = "steady", "images/s"
COLUMNS = ("steady", "with_start", "first_batch_s", "rss_mb", "cpu_ms_per_image", "downloaded_mb")


def cases(bench):
    images, lists = bench.images, bench.images.lists
    urls, s3 = str(lists / "urls.txt"), f"s3://{BUCKET}"
    ours = {"index": str(lists / "urls.parquet"), "storage_options": bench.storage_options}
    found = [
        bench.ours("sds", "ours.py", **ours),
        bench.ours("sds, 2 workers", "ours.py", workers=2, **ours),
        bench.limit("bare gets", "gets", list=urls, endpoint=bench.endpoint),
        bench.limit("bare gets and decodes", "both", list=urls, endpoint=bench.endpoint),
        bench.limit("bare gets and decodes, sds's way", "both, sds's way", list=urls, endpoint=bench.endpoint),
        bench.limit("bare decodes", "decodes", list=str(lists / "files.txt")),
    ]
    raw = {"source": f"{s3}/images/", "list": urls}
    found += bench.peer("litdata, raw", "litdata", "litdata_images.py", kind="raw", **raw)
    found += bench.peer("litdata, raw, cached", "litdata", "litdata_images.py", kind="raw cached", **raw)
    chunks = {"needs": "litdata", "kind": "chunks", "source": f"{s3}/litdata/"}
    found += bench.peer("litdata, chunks", "litdata", "litdata_images.py", **chunks)
    found += bench.peer("mosaic, MDS", "streaming", "mosaic_images.py", needs="mds", source=f"{s3}/mds")
    tars = bench.peer("webdataset, tars", "webdataset", "webdataset_images.py", needs="tars")
    rows = bench.peer("datasets, Parquet", "datasets", "hf_images.py", needs="parquet-plain")
    for case, kind in ((tars, "tars"), (rows, "parquet-plain")):
        for each in case:
            each.args["shards"] = str(images.shards(kind, bench.endpoint))
        found += case
    found += bench.peer("spdl and obstore", "spdl", "spdl_images.py", list=urls)
    # one request at a time in each worker: more workers than cores are what helps
    found += bench.peer(
        "torch and s3torchconnector", "s3torchconnector", "plain_torch.py", kind="connector", list=urls, workers=8
    )
    found += bench.peer("torch and boto3", "boto3", "plain_torch.py", kind="boto3", list=urls, workers=8)
    found += bench.peer(
        "torch and fsspec", "fsspec", "plain_torch.py", kind="fsspec", list=str(images.list_http(bench.endpoint))
    )
    return found
