"""Rows without files: Parquet files with a URL, a caption and a number. Made once, and kept."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS_IN_FILE = 1_000_000
_NUM_DIFFERENT = 2  # files; the same few under many names, so that a hundred million rows take little disk


def make_rows(home: Path, num_rows: int) -> str:
    """A wildcard over files with so many rows together."""
    size = min(ROWS_IN_FILE, num_rows)
    folder = home / f"rows-{num_rows}"
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(min(_NUM_DIFFERENT, num_rows // size)):
        path = home / f"rows-real-{size}-{k}.parquet"
        if not path.exists():
            numbers = np.arange(k * size, (k + 1) * size)
            urls = pa.array([f"https://example.com/pictures/{i:09}.jpg" for i in numbers])
            captions = pa.array([f"a picture of thing {i % 1009}, seen from side {i % 7}" for i in numbers])
            table = pa.table({"url": urls, "caption": captions, "quality": (numbers % 1000 / 1000).astype(np.float32)})
            part = path.with_suffix(".part")
            pq.write_table(table, part, row_group_size=100_000)
            part.rename(path)
    for number in range(num_rows // size):
        link = folder / f"part-{number:04}.parquet"
        if not link.exists():
            os.link(home / f"rows-real-{size}-{number % _NUM_DIFFERENT}.parquet", link)
    return str(folder / "*.parquet")
