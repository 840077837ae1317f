"""(11) One, two and four processes on one node, and what a sample costs without its decode."""

NUMBER, NAME = 11, "processes"
TITLE = "1, 2 and 4 processes on one node"
ABOUT = (
    "Images from the cache, all processes together. Two rows decode nothing: CPU microseconds of everything that "
    "sds does for a sample, from local files and from the cache (fetch server included)."
)
FIGURE, UNIT = "steady", "images/s"
COLUMNS = ("steady", "rss_mb", "cpu_ms_per_image", "overhead_us")
COMPARED = False  # with and without decode


def cases(bench):
    lists = bench.images.lists
    told = {
        "index": str(lists / "urls.parquet"),
        "storage_options": bench.storage_options,
        "wipe": False,
        "prepare": True,
    }
    found = [bench.ours(f"sds, {num} processes", "ranks.py", processes=num, **told) for num in (1, 2, 4)]
    found += bench.decodes()
    epochs = {"epochs": 1 if bench.is_quick else 5}
    found.append(bench.ours("sds, no decode, local", "overhead.py", index=str(lists / "files.parquet"), **epochs))
    found.append(bench.ours("sds, no decode, cache", "overhead.py", **{**told, **epochs}))
    return found
