"""Hugging Face datasets, streaming Parquet files that hold the bytes."""

import datasets
from timing import decode, given, incomplete_batches, lines, measure, tell
from torch.utils.data import DataLoader


def as_image(row):
    return {"image": decode(row["jpg"])}


def make(args):
    files = lines(args["shards"])
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    rows = rows.shuffle(seed=1, buffer_size=1000).map(as_image, remove_columns=["jpg"])
    return DataLoader(rows.with_format("torch"), batch_size=args["batch"], num_workers=args["workers"])


if __name__ == "__main__":
    args = given()
    datasets.disable_progress_bars()
    may_miss = incomplete_batches(args)
    tell(**measure(lambda: make(args), num=args["num"], may_miss=may_miss, epochs=args["epochs"]))
