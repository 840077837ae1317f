"""(10) Text rows without files."""

from rows import make_rows

from workloads.index import replaced

NUMBER, NAME = 10, "text"
TITLE = "Text rows without files, one process"
ABOUT = "Batches of 1,024 random rows with a URL, a caption and a number. The limit takes them from a table in memory."
FIGURE, UNIT = "steady", "rows/s"
COLUMNS = ("steady", "with_start", "first_batch_s", "rss_mb")


def cases(bench):
    num = 20_000 if bench.is_quick else 10**6
    told = {"source": make_rows(bench.home, num), "what": "all", "batch": 1024, "num": num, "epochs": 1}
    kept = {"wipe": False, "prepare": True}
    found = [bench.ours("sds, rows", "rows.py", kind="sds", **told, **kept)]
    found.append(replaced(bench.limit("pyarrow, rows", "pyarrow", **told)))
    found += bench.peer("datasets, rows", "datasets", "rows.py", kind="datasets", **told, **kept)
    found += bench.peer("datasets streaming, rows", "datasets", "rows.py", kind="datasets streaming", **told, **kept)
    return found
