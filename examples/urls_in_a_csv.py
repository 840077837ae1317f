"""A CSV of http(s) URLs: look at a sample, count what cannot be had, and say why.

python examples/urls_in_a_csv.py urls.csv --column image --id id
"""

from __future__ import annotations

import argparse

import sds
from sds.transforms import presets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", help="CSV file, local or remote")
    parser.add_argument("--column", default="image", help="column with the URLs")
    parser.add_argument("--id", default="id", help="column with the ids")
    parser.add_argument("--max-failures", type=float, default=0.5, help="share of broken URLs that is tolerable")
    parser.add_argument("--cache", help="cache folder; default: the user's")
    args = parser.parse_args()

    dataset = sds.StreamingDataset(
        args.src,
        args.cache,
        columns_to_download=[args.column],
        index_col_name=args.id,
        transforms=presets.create_standard_image_pipeline(args.column, (64, 64), output_field="image"),
        max_failures=args.max_failures,
        num_downloading_retries=2,
        timeout=20,
    )
    with dataset:
        num_fine = sum(1 for _ in dataset)
        print(f"{num_fine} of {len(dataset)} images came")
        for failure in dataset.quarantine():
            print(f"{failure.key}: {failure.stage}: {failure.reason}")


if __name__ == "__main__":
    main()
