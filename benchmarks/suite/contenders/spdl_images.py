"""spdl's threads: obstore gets (or file reads), its own decode stage in threads."""

import os
import random

import torch
from spdl.pipeline import PipelineBuilder
from timing import decode, given, lines, measure, tell


def make(args):
    names = lines(args["list"])
    random.Random(1).shuffle(names)
    if args["endpoint"]:
        from bare import getter

        get, start = getter(args), len(f"s3://{args['bucket']}/")

        def read(name):
            return bytes(get(name[start:]))
    else:
        from bare import read_file as read
    pipeline = (
        PipelineBuilder()
        .add_source(names)
        .pipe(read, concurrency=32 if args["endpoint"] else 2)
        .pipe(decode, concurrency=len(os.sched_getaffinity(0)))
        .aggregate(args["batch"])
        .pipe(torch.stack)
        .add_sink(4)
        .build(num_threads=36)
    )

    class Batches:
        def __iter__(self):
            with pipeline.auto_stop():
                yield from pipeline.get_iterator()

    return Batches()


if __name__ == "__main__":
    args = given()
    torch.set_num_threads(1)
    tell(**measure(lambda: make(args), num=args["num"]))
