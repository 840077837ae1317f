"""How an index that is read in chunks behaves as it grows, and how fast its pass for a query is beside DuckDB's own.

    python benchmarks/lazy.py grow [--rows 1e6,1e7,1e8,1e9] [--folder DIR] [--svg FILE]
    python benchmarks/lazy.py filter [--rows 1e7] [--pairs 9] [--folder DIR]

`grow`: real Parquet files with a million rows each, the same few of them under many names (hard links), so that a
billion rows take little disk. For each size, in a fresh process: seconds to open, seconds from there to the first batch
of a shuffled loader with a worker process, memory of that worker and of its parent. `filter`: a WHERE on one column of
one file; our pass (which opens the index, counts rows per chunk and writes that down) and DuckDB's own count(*) with a
new connection, both with all cores, in turns; the median of the ratios of pairs, by the clock and by CPU time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROWS_IN_FILE = 1_000_000
ROW_GROUP = 250_000
NUM_DIFFERENT = 4
CHUNK = 50_000


def make_files(folder: Path, num_rows: int) -> None:
    """Files of a million rows each under as many names as are needed; four of them differ."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir(parents=True, exist_ok=True)
    size = min(ROWS_IN_FILE, num_rows)
    for k in range(NUM_DIFFERENT):
        path = folder / f"real-{size}-{k}"
        if not path.exists():
            numbers = np.arange(size, dtype=np.int32) % 1000 + k
            words = pa.array([f"https://example.com/pictures/{i:06}.jpg" for i in range(1000)])
            urls = pa.DictionaryArray.from_arrays(pa.array(numbers % 1000), words)
            table = pa.table({"url": urls, "quality": (numbers / 1004).astype(np.float32)})
            parquet.write_table(table, path, row_group_size=ROW_GROUP, compression="zstd")
    data = folder / f"data-{num_rows}"
    data.mkdir(exist_ok=True)
    for number in range(num_rows // size):
        link = data / f"part-{number:06}.parquet"
        if not link.exists():
            os.link(folder / f"real-{size}-{number % NUM_DIFFERENT}", link)


def rss_mb(pid: int | str = "self") -> float:
    """Memory of a process now."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def measure(folder: str, num_rows: int) -> None:
    """In a fresh process: opens, takes batches, prints the figures as JSON."""
    import sds

    sds.StreamingDataset  # noqa: B018 (imports torch: not what is measured)
    sds.StreamingDataLoader  # noqa: B018
    before = rss_mb()
    dst = Path(folder) / f"dst-{num_rows}"
    shutil.rmtree(dst, ignore_errors=True)
    found: dict[str, float] = {"imported_mb": before}
    start = time.perf_counter()
    dataset = sds.StreamingDataset(
        f"{folder}/data-{num_rows}/*.parquet",
        dst,
        columns_to_download=[],
        shuffle_seed=7,
        lazy_index_chunk_size=CHUNK,
    )
    found["open_s"] = time.perf_counter() - start
    assert len(dataset) == num_rows
    start = time.perf_counter()
    loader = sds.StreamingDataLoader(dataset, 256, num_workers=1)
    batches = iter(loader)
    next(batches)
    found["first_batch_s"] = time.perf_counter() - start
    start = time.perf_counter()
    for _ in range(400):
        next(batches)
    found["rows_per_s"] = 400 * 256 / (time.perf_counter() - start)
    (worker,) = [process.pid for process in multiprocessing.active_children()]
    found["worker_mb"], found["parent_mb"] = rss_mb(worker), rss_mb()
    loader.close()
    start = time.perf_counter()
    dataset[num_rows // 2 + 1]
    found["random_row_s"] = time.perf_counter() - start
    dataset.close()
    start = time.perf_counter()
    again = sds.StreamingDataset(
        f"{folder}/data-{num_rows}/*.parquet",
        dst,
        columns_to_download=[],
        shuffle_seed=7,
        lazy_index_chunk_size=CHUNK,
    )
    found["open_again_s"] = time.perf_counter() - start
    again.close()
    print(json.dumps(found))


def grow(folder: Path, sizes: list[int]) -> list[tuple[int, dict[str, float]]]:
    """The figures for each size."""
    print("| rows | files | open s | again s | first batch s | rows/s | row s | MB at import | MB parent | MB worker |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    found = []
    for num_rows in sizes:
        make_files(folder, num_rows)
        command = [sys.executable, __file__, "measure", "--folder", str(folder), "--rows", str(num_rows)]
        facts = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        found.append((num_rows, facts))
        print(
            f"| {num_rows:.0e} | {max(1, num_rows // ROWS_IN_FILE)} | {facts['open_s']:.2f} | "
            f"{facts['open_again_s']:.2f} | {facts['first_batch_s']:.2f} | {facts['rows_per_s']:.0f} | "
            f"{facts['random_row_s']:.2f} | {facts['imported_mb']:.0f} | {facts['parent_mb']:.0f} | "
            f"{facts['worker_mb']:.0f} |",
            flush=True,
        )
    return found


def draw(found: list[tuple[int, dict[str, float]]], path: Path) -> None:
    """A small plot of memory over rows."""
    width, height, left, top = 480, 220, 60, 20
    steps = max(1, len(found) - 1)
    points = [
        (left + k * (width - left - 20) / steps, top + (height - top - 40) * (1 - facts["worker_mb"] / 600))
        for k, (_, facts) in enumerate(found)
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for mb in (0, 200, 400, 600):
        y = top + (height - top - 40) * (1 - mb / 600)
        lines.append(f'<line x1="{left}" x2="{width - 20}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{mb} MB</text>')
    path_text = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    lines.append(f'<polyline points="{path_text}" fill="none" stroke="#246" stroke-width="2"/>')
    for (x, y), (num_rows, facts) in zip(points, found, strict=True):
        lines.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="#246"/>')
        lines.append(f'<text x="{x:.0f}" y="{y - 8:.0f}" text-anchor="middle">{facts["worker_mb"]:.0f}</text>')
        lines.append(f'<text x="{x:.0f}" y="{height - 18}" text-anchor="middle">{num_rows:.0e}</text>')
    lines.append(f'<text x="{width / 2:.0f}" y="{height - 3}" text-anchor="middle">rows of the index</text></svg>')
    path.write_text("\n".join(lines) + "\n")


def compare_filter(folder: Path, num_rows: int, num_pairs: int) -> None:
    """Our pass and DuckDB's own, on the same file, in turns."""
    import duckdb
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from sds.index import IndexOptions
    from sds.index.lazy_opening import open_lazy

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"filter-{num_rows}.parquet"
    if not path.exists():
        rng = np.random.default_rng(0)
        values = rng.random(num_rows)
        urls = pa.array([f"https://example.com/{i:09}.jpg" for i in range(num_rows)])
        parquet.write_table(pa.table({"url": urls, "quality": values}), path, row_group_size=1_000_000)
    query = "SELECT * FROM dataframe WHERE quality > 0.7"

    def ours() -> int:
        options = IndexOptions(lazy_index_chunk_size=CHUNK, sql_query=query)
        with tempfile.TemporaryDirectory(dir=folder) as dst:
            return len(open_lazy(str(path), options, folder=Path(dst), remote=lambda: None))  # type: ignore[arg-type, return-value]

    def theirs() -> int:
        with duckdb.connect(":memory:") as connection:
            text = f"SELECT count(*) FROM read_parquet('{path}') WHERE quality > 0.7"
            return int(connection.execute(text).fetchall()[0][0])

    assert ours() == theirs()  # and both are imported, and the file is in memory
    pairs = [(timed(ours), timed(theirs)) for _ in range(num_pairs)]
    for k, clock in enumerate(("by the clock", "CPU time")):
        mine, other = (statistics.median(pair[side][k] for pair in pairs) for side in (0, 1))
        each = sorted(round(theirs_[k] / ours_[k], 2) for ours_, theirs_ in pairs)
        print(f"{num_rows:.0e} rows, {clock}: ours {mine:.3f} s, DuckDB {other:.3f} s")
        print(f"  speed beside DuckDB's: {statistics.median(each):.2f} (median of {num_pairs} pairs: {each})")


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time of all threads."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["grow", "filter", "measure"])
    parser.add_argument("--rows", default=None)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sds-lazy-benchmark")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--svg", type=Path, default=None)
    args = parser.parse_args()
    if args.what == "measure":
        measure(str(args.folder), int(float(args.rows)))
    elif args.what == "grow":
        sizes = [int(float(each)) for each in (args.rows or "1e6,1e7,1e8,1e9").split(",")]
        found = grow(args.folder, sizes)
        if args.svg is not None:
            draw(found, args.svg)
    else:
        compare_filter(args.folder, int(float(args.rows or "1e7")), args.pairs)


if __name__ == "__main__":
    main()
