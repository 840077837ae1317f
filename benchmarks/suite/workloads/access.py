"""(7) One sample at a time, anywhere."""

from data import BUCKET
from rows import make_rows

from workloads.index import replaced

NUMBER, NAME = 7, "access"
TITLE = "Random access, one at a time"
ABOUT = (
    "`dataset[i]` for random i, milliseconds: rows of an index with a million, and the bytes of an image that is in "
    "the cache (nothing is decoded)."
)
FIGURE, UNIT, LOWER = "median_ms", "ms", True
COLUMNS = ("median_ms", "p99_ms", "rss_mb")
COMPARED = False  # rows and images


def cases(bench):
    num = 20_000 if bench.is_quick else 10**6
    told = {"source": make_rows(bench.home, num), "what": "access", "batch": 1, "num": num}
    kept = {"wipe": False, "prepare": True}
    found = [
        bench.ours("sds, rows", "rows.py", kind="sds", **told, **kept),
        bench.ours("sds, lazy rows", "rows.py", kind="lazy", **told, **kept),
    ]
    images = {"num": bench.images.num, "what": "access"}
    index, options = str(bench.images.lists / "urls.parquet"), bench.storage_options
    found.append(
        bench.ours("sds, images", "access.py", kind="sds", source=index, storage_options=options, **images, **kept)
    )
    found += bench.peer("datasets, rows", "datasets", "rows.py", kind="datasets", **told, **kept)
    s3 = f"s3://{BUCKET}"
    chunks = {"needs": "litdata", "kind": "litdata", "source": f"{s3}/litdata/"}
    found += bench.peer("litdata, chunks, images", "litdata", "access.py", **chunks, **images, **kept)
    mds = {"needs": "mds", "kind": "mosaic", "source": f"{s3}/mds"}
    found += bench.peer("mosaic, MDS, images", "streaming", "access.py", **mds, **images, **kept)
    found.append(replaced(bench.limit("pyarrow, a row", "pyarrow", **told)))
    return found
