"""Rows without files: how soon the first batch of a large index is there, how many rows a second, and one at a time.

`kind` is sds, lazy (sds that reads the index in chunks), datasets, datasets streaming, or pyarrow (the limit).
`what` is first (the first batch of 256, in random order), all (an epoch of batches), or access (one row at a time).
"""

import random
import statistics
import time

from timing import given, measure, tell


def ours(args):
    import sds

    lazy = {"lazy_index_chunk_size": 50_000} if args["kind"] == "lazy" else {}
    dataset = sds.StreamingDataset(
        args["source"], args["dst"], columns_to_download=[], shuffle_seed=1, on_error="raise", **lazy
    )
    return dataset, sds.StreamingDataLoader(dataset, args["batch"])


def theirs(args):
    import datasets
    from torch.utils.data import DataLoader

    datasets.disable_progress_bars()
    streams = args["kind"] == "datasets streaming"
    rows = datasets.load_dataset(
        "parquet", data_files=args["source"], split="train", streaming=streams, cache_dir=args["dst"]
    )
    if streams:
        return rows, DataLoader(rows.shuffle(seed=1, buffer_size=1000), batch_size=args["batch"])
    return rows, DataLoader(rows, batch_size=args["batch"], shuffle=True)


def bare(args):
    """Random rows of a table in memory, as lists of Python values: what any loader of rows ends with."""
    import glob

    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.concat_tables(pq.read_table(path) for path in sorted(glob.glob(args["source"])))
    table = table.combine_chunks()

    class Batches:
        def __iter__(self):
            order = np.random.default_rng(1).permutation(len(table))
            for start in range(0, len(order), args["batch"]):
                yield table.take(order[start : start + args["batch"]]).to_pydict()

    return table, Batches()


def first(args, make):
    begun = time.perf_counter()
    _, loader = make(args)
    batch = next(iter(loader))
    took = time.perf_counter() - begun
    assert len(batch["url"]) == args["batch"]
    return {"first_batch_s": took}


def all_rows(args, make):
    return measure(lambda: make(args)[1], num=args["num"], epochs=args["epochs"], count=lambda batch: len(batch["url"]))


def access(args, make):
    table, _ = make(args)
    rows = [random.Random(k).randrange(args["num"]) for k in range(500)]
    times = []
    for row in rows:
        start = time.perf_counter()
        if args["kind"] == "pyarrow":
            table.slice(row, 1).to_pylist()
        else:
            table[row]
        times.append(1000 * (time.perf_counter() - start))
    return {"median_ms": statistics.median(times), "p99_ms": sorted(times)[int(0.99 * len(times))]}


if __name__ == "__main__":
    args = given()
    if args["kind"] in ("sds", "lazy"):
        import sds

        assert sds.StreamingDataset and sds.StreamingDataLoader  # imports are not what is measured
        make = ours
    elif args["kind"] == "pyarrow":
        make = bare
    else:
        import datasets  # noqa: F401
        import torch  # noqa: F401

        make = theirs
    tell(**{"first": first, "all": all_rows, "access": access}[args["what"]](args, make))
