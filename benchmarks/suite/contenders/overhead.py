"""What a sample costs in sds beside its decode: rows, tickets, files, transforms that do nothing, collation.

CPU microseconds a sample, of this process (all its threads) and of the fetch server if there is one.
"""

import time

import psutil
import torch
from timing import check_count, given, tell

import sds

assert sds.StreamingDataset and sds.StreamingDataLoader
IMAGE = torch.zeros(3, 8, 8, dtype=torch.uint8)


def nothing(_):
    return {"image": IMAGE}


def server_cpu_s(dst):
    used = 0.0
    for process in psutil.process_iter(["cmdline", "cpu_times"]):
        line = process.info["cmdline"] or []
        if "sds.fetch.server" in line and any(str(dst) == part for part in line):
            used += process.info["cpu_times"].user + process.info["cpu_times"].system
    return used


def main(args):
    torch.set_num_threads(1)
    dataset = sds.StreamingDataset(
        args["index"],
        args["dst"],
        columns_to_download=args.get("columns", ["url"]),
        transforms=[nothing],
        shuffle_seed=1,
        cache_limit=args.get("cache_limit"),
        storage_options=args.get("storage_options"),
        on_error="raise",
    )
    loader = sds.StreamingDataLoader(dataset, args["batch"], num_threads=args.get("threads"))
    num = sum(len(batch["image"]) for batch in loader)  # fills the cache, and warms up
    check_count(num, args["num"])
    wall, cpu, server = time.perf_counter(), time.process_time(), server_cpu_s(args["dst"])
    for _ in range(args["epochs"]):
        for _ in loader:
            pass
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    server = server_cpu_s(args["dst"]) - server
    total = num * args["epochs"]
    loader.close()
    dataset.close()
    return {
        "images": total,
        "steady": total / wall,
        "overhead_us": 1e6 * (cpu + server) / total,
        "client_us": 1e6 * cpu / total,
        "server_us": 1e6 * server / total,
        "wall_us": 1e6 * wall / total,
    }


if __name__ == "__main__":
    tell(**main(given()))
