"""(5) Indexes of one million to a hundred million rows: from construction to the first batch."""

from rows import make_rows

NUMBER, NAME = 5, "index"
TITLE = "First batch of a large index"
ABOUT = (
    "256 random rows with a URL, a caption and a number, from construction on; what sds keeps of an index was made by "
    "a run before. Lazy: the index is read in chunks. The limit reads the whole table into memory."
)
FIGURE, UNIT, LOWER = "first_batch_s", "s", True
COLUMNS = ("first_batch_s", "rss_mb")


def cases(bench):
    found = []
    sizes = {"100k": 100_000} if bench.is_quick else {"1M": 10**6, "10M": 10**7, "100M": 10**8}
    for label, num in sizes.items():
        told = {"source": make_rows(bench.home, num), "what": "first", "batch": 256, "num": num}
        kept = {"wipe": False, "prepare": True}
        if num <= 10**7:
            found.append(bench.ours(f"sds, {label}", "rows.py", kind="sds", **told, **kept))
        found.append(bench.ours(f"sds, lazy, {label}", "rows.py", kind="lazy", **told, **kept))
        if num <= 10**6:
            found += bench.peer(f"datasets, {label}", "datasets", "rows.py", kind="datasets", **told, **kept)
            streaming = {"kind": "datasets streaming", **told}
            found += bench.peer(f"datasets streaming, {label}", "datasets", "rows.py", **streaming, **kept)
            limit = bench.limit(f"pyarrow, {label}", "pyarrow", **told)
            found.append(replaced(limit))
    return found


def replaced(case):
    """A limit that another program measures."""
    from dataclasses import replace

    return replace(case, script="rows.py", wipe=())
