"""(3) The same files on this disk."""

NUMBER, NAME = 3, "local"
TITLE = "JPEG files on local disk"
ABOUT = "No store and no cache: files are read where they lie."
FIGURE, UNIT = "steady", "images/s"
COLUMNS = ("steady", "with_start", "first_batch_s", "rss_mb", "cpu_ms_per_image")


def cases(bench):
    images, lists = bench.images, bench.images.lists
    files, here = str(lists / "files.txt"), {"remote": False}
    found = [
        bench.ours("sds, local", "ours.py", index=str(lists / "files.parquet")),
        bench.ours("sds, local, 2 workers", "ours.py", index=str(lists / "files.parquet"), workers=2),
        *bench.decodes(),
        bench.limit("bare reads", "reads", list=files),
    ]
    raw = {"kind": "raw", "source": str(images.bucket / "images"), "list": files}
    found += bench.peer("litdata, raw, local", "litdata", "litdata_images.py", **raw, **here)
    chunks = {"needs": "litdata", "kind": "chunks", "source": str(images.bucket / "litdata")}
    found += bench.peer("litdata, chunks, local", "litdata", "litdata_images.py", **chunks, **here)
    source = str(images.bucket / "mds")
    found += bench.peer("mosaic, MDS, local", "streaming", "mosaic_images.py", needs="mds", source=source, **here)
    tars = bench.peer("webdataset, tars, local", "webdataset", "webdataset_images.py", needs="tars", **here)
    rows = bench.peer("datasets, Parquet, local", "datasets", "hf_images.py", needs="parquet-plain", **here)
    for case, kind in ((tars, "tars"), (rows, "parquet-plain")):
        for each in case:
            each.args["shards"] = str(images.shards(kind, ""))
        found += case
    found += bench.peer("spdl, local", "spdl", "spdl_images.py", list=files, **here)
    found += bench.peer("torch, files", "torch", "plain_torch.py", kind="files", list=files, **here)
    return found
