"""Images and their metadata from a Parquet index on S3: filtered, shuffled, decoded, flipped, batched.

    python examples/images_with_captions_from_s3.py s3://my-bucket/photos.parquet --image image --id id

Credentials come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL.
"""

from __future__ import annotations

import argparse

import sds
from sds.transforms import presets, rng


def flip(sample):
    """Mirrors half of the images; which ones depends on seed, epoch and sample alone."""
    if rng(sample, "flip").random() < 0.5:
        sample["image"] = sample["image"].flip(2)  # [3, h, w]
    return sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", help="index of images: a file, a wildcard or a folder, anywhere")
    parser.add_argument("--image", default="image", help="column with the URLs of the images")
    parser.add_argument("--caption", default="caption", help="column with the captions")
    parser.add_argument("--id", default="id", help="column with the ids")
    parser.add_argument("--where", default="true", help='SQL condition, such as "quality > 0.5 AND width >= 256"')
    parser.add_argument("--resolution", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--cache", help="cache folder; default: the user's")
    parser.add_argument("--cache-limit", default="10gb")
    args = parser.parse_args()

    dataset = sds.StreamingDataset(
        args.src,
        args.cache,
        columns_to_download=[args.image],
        index_col_name=args.id,
        sql_query=f"SELECT * FROM dataframe WHERE {args.where}",
        shuffle_seed=args.seed,
        cache_limit=args.cache_limit,
        transforms=[
            *presets.create_standard_image_pipeline(
                args.image, (args.resolution, args.resolution), output_field="image"
            ),
            flip,
            presets.EnsureFieldsTransform(["image", args.caption, args.id], drop_others=True),
        ],
    )
    print(dataset.explain())

    with dataset, sds.StreamingDataLoader(dataset, args.batch_size, drop_last=True) as loader:
        for epoch in range(args.epochs):
            for batch in loader:
                images, captions = batch["image"], batch[args.caption]  # uint8 [b, 3, h, w], list of b texts
            print(f"epoch {epoch}: {len(loader)} batches of {tuple(images.shape)}, the last begins: {captions[0]}")
        print(loader.stats())


if __name__ == "__main__":
    main()
