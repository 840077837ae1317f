"""A folder of text files, local or remote, through a plain torch DataLoader.

python examples/text_folder.py texts
python examples/text_folder.py s3://my-bucket/texts --workers 2
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch.utils.data import DataLoader

import sds


def read(sample):
    """sample["txt"] is the path of a local file, wherever it came from."""
    return {"name": sample["__sample_key__"], "text": Path(sample["txt"]).read_text().strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", help="folder of .txt files")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cache", help="cache folder; default: the user's")
    args = parser.parse_args()

    dataset = sds.StreamingDataset(
        args.src, args.cache, data_type="text", columns_to_download=["txt"], transforms=[read]
    )
    with dataset:
        for batch in DataLoader(dataset, batch_size=args.batch_size, num_workers=args.workers):
            for name, text in zip(batch["name"], batch["text"], strict=True):
                print(f"{name}: {text}")


if __name__ == "__main__":
    main()
