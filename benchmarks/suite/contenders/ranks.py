"""Several processes on one node, as a launcher starts them: each reads its share of every batch, all share a cache."""

import json
import os
import subprocess
import sys
import time

from timing import check_count, given, tell


def start(args, rank, size):
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    environment["LOCAL_WORLD_SIZE"] = str(size)
    command = [sys.executable, __file__, json.dumps({**args, "rank": rank})]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def rank(args):
    """One of them: says when it is ready, waits for the word, and then how many it had."""
    from ours import make

    loader = make({**args, "workers": 0})
    print("ready", flush=True)
    sys.stdin.readline()
    num = sum(len(batch["image"]) for batch in loader)
    print(num, flush=True)
    loader.close()
    loader.dataset.close()


def main(args):
    size = args["processes"]
    ranks = [start(args, k, size) for k in range(size)]
    for each in ranks:
        assert each.stdout.readline() == "ready\n"
    begun = time.perf_counter()
    for each in ranks:
        each.stdin.write("go\n")
        each.stdin.flush()
    num = sum(int(each.stdout.readline()) for each in ranks)
    took = time.perf_counter() - begun
    check_count(num, args["num"])
    for each in ranks:
        each.wait()
    return {"images": num, "steady": num / took, "with_start": num / took}


if __name__ == "__main__":
    args = given()
    if "rank" in args:
        rank(args)
    else:
        tell(**main(args))
