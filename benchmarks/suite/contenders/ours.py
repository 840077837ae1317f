"""sds over JPEG files, on S3 or on this disk."""

from timing import given, measure, tell

import sds

assert sds.StreamingDataset and sds.StreamingDataLoader  # names resolve on first use: this imports torch
from sds.transforms import presets  # noqa: E402


def make(args):
    dataset = sds.StreamingDataset(
        args["index"],
        args["dst"],
        columns_to_download=["url"],
        index_cols_to_keep=["url"],
        transforms=[*presets.create_standard_image_pipeline("url", resolution=(256, 256)), keep_image],
        shuffle_seed=1,
        cache_limit=args.get("cache_limit"),
        storage_options=args.get("storage_options"),
        on_error="raise",
    )
    return sds.StreamingDataLoader(dataset, args["batch"], num_workers=args["workers"])


def keep_image(sample):
    return {"image": sample["image"]}


if __name__ == "__main__":
    args = given()
    loaders = []
    found = measure(lambda: loaders.append(make(args)) or loaders[0], num=args["num"], epochs=args["epochs"])
    loaders[0].close()
    loaders[0].dataset.close()
    tell(**found)
