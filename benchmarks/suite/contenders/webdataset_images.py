"""webdataset over tar shards."""

import os

import webdataset as wds
from timing import decode, given, incomplete_batches, lines, measure, tell
from torch.utils.data import default_collate


def as_image(sample):
    return decode(sample["jpg"])


def make(args):
    urls = lines(args["shards"])
    more = {"cache_dir": args["dst"]} if args.get("cached") else {}
    os.makedirs(args["dst"], exist_ok=True)
    dataset = (
        wds.WebDataset(urls, shardshuffle=len(urls), nodesplitter=None, **more)
        .shuffle(1000, initial=100)
        .map(as_image)
        .batched(args["batch"], collation_fn=default_collate)
    )
    # the documented way: batches are made in the workers
    return wds.WebLoader(dataset, batch_size=None, num_workers=args["workers"])


if __name__ == "__main__":
    args = given()
    may_miss = incomplete_batches(args)
    tell(**measure(lambda: make(args), num=args["num"], may_miss=may_miss, epochs=args["epochs"]))
