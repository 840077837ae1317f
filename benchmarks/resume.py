"""Time to the first batch, from the start and from 90% of a large index.

    python benchmarks/resume.py [--rows 100000000] [--repeats 5] [--folder DIR]

Makes a Parquet index of one narrow column in chunks, opens it once (sds may build what it keeps of it), then measures
fresh processes, from the start and from a state at 90% by turns: construction to first batch, load_state_dict included,
the import of torch not. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHUNK = 2_000_000


def write_index(path: Path, num_rows: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("label", pa.int32())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, num_rows, CHUNK):
            stop = min(start + CHUNK, num_rows)
            labels = (np.arange(start, stop, dtype=np.int64) * 2654435761 % 1000).astype(np.int32)
            writer.write_table(pa.table({"label": labels}, schema=schema))


def first_batch(folder: str, share: float, seed: str) -> None:
    """One measurement, in a process of its own."""
    import sds

    assert sds.StreamingDataset and sds.StreamingDataLoader  # names resolve on first use: this imports torch
    begin = time.perf_counter()
    ds = sds.StreamingDataset(
        Path(folder, "rows.parquet"),
        Path(folder, "cache"),
        columns_to_download=[],
        shuffle_seed=None if seed == "none" else int(seed),
    )
    opened = time.perf_counter()
    loader = sds.StreamingDataLoader(ds, 256)
    if share:
        state = ds.state_dict()
        state["position"] = int(share * len(ds))
        loader.load_state_dict(state)
    batch = next(iter(loader))
    end = time.perf_counter()
    assert len(batch["label"]) == 256
    loader.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"open_s": opened - begin, "first_batch_s": end - begin, "peak_rss_mb": peak}))


def measure(folder: Path, share: float, seed: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--first-batch", str(folder), str(share), seed]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def main() -> None:
    if sys.argv[1:2] == ["--first-batch"]:
        return first_batch(sys.argv[2], float(sys.argv[3]), sys.argv[4])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the index is made; default: a temporary folder")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sds-resume-", dir=args.folder))
    report: dict[str, object] = {"rows": args.rows, "cores": os.cpu_count(), "python": platform.python_version()}
    try:
        begin = time.perf_counter()
        write_index(folder / "rows.parquet", args.rows)
        report["write_s"] = round(time.perf_counter() - begin, 2)
        once = measure(folder, 0.0, "7")
        report["first_open_s"], report["first_open_peak_rss_mb"] = round(once["open_s"], 2), round(once["peak_rss_mb"])
        sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        report["index_mb"] = round(sizes[folder / "rows.parquet"] / 1e6)
        report["kept_mb"] = round((sum(sizes.values()) - sizes[folder / "rows.parquet"]) / 1e6)
        for name, seed in (("shuffled", "7"), ("in order", "none")):
            runs: dict[str, list[dict[str, float]]] = {"start": [], "90%": []}
            for _ in range(args.repeats):  # by turns: the machine drifts
                runs["start"].append(measure(folder, 0.0, seed))
                runs["90%"].append(measure(folder, 0.9, seed))
            medians = {k: statistics.median(run["first_batch_s"] for run in v) for k, v in runs.items()}
            report[name] = {
                **{f"first batch from {k}, s": round(v, 4) for k, v in medians.items()},
                "ratio": round(medians["90%"] / medians["start"], 3),
                "peak_rss_mb": round(max(run["peak_rss_mb"] for each in runs.values() for run in each)),
            }
    finally:
        shutil.rmtree(folder)
    print(json.dumps(report, indent=2))
    return None


if __name__ == "__main__":
    main()
