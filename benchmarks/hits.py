"""How many samples of warm epochs come from a cache that holds a part of the data, beside the best possible.

    python benchmarks/hits.py [--objects 4000] [--shares 0.25 0.5 0.75] [--workers 0 1 4] [--epochs 3]

With each sample used once per epoch in random order, a cache that holds a share c of the data can at best hit c of the
time. Each row makes a cold epoch and then `--epochs` warm ones over a web server on loopback, with a prefetch window of
1% of the objects over all processes. Also checks that the bytes downloaded are those of the misses.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import sds
from sds.testing import HTTPServer


def read(sample: dict[str, Any]) -> dict[str, Any]:
    """The content instead of its path."""
    return {"key": sample["__sample_key__"], "size": len(Path(sample["file"]).read_bytes())}


def measure(src: Path, dst: Path, *, objects: int, size: int, share: float, workers: int, epochs: int) -> float:
    """The hit rate over warm epochs."""
    dataset = sds.StreamingDataset(
        src,
        dst,
        columns_to_download=["file"],
        transforms=[read],
        shuffle_seed=1,
        cache_limit=round(share * objects * size),
        prefetch=max(1, objects // 100),
    )
    loader = sds.StreamingDataLoader(dataset, 8, num_workers=workers, prefetch_batches=1)
    for _ in loader:
        pass
    cold = loader.stats()
    for _ in range(epochs):
        for _ in loader:
            pass
    warm = loader.stats()
    loader.close()
    dataset.close()
    hits, misses = warm.hits - cold.hits, warm.misses - cold.misses
    assert hits + misses == epochs * objects, (hits, misses)
    assert warm.bytes_downloaded == warm.misses * size, "bytes downloaded are not those of the misses"
    return hits / (hits + misses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=4000)
    parser.add_argument("--size", type=int, default=2000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.25, 0.5, 0.75])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 4])
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "files")
        root.mkdir()
        for i in range(args.objects):
            (root / f"{i}.bin").write_bytes(i.to_bytes(4, "big") * (args.size // 4))
        with HTTPServer(root) as server:
            src = Path(folder, "index.csv")
            src.write_text("file\n" + "\n".join(f"{server.endpoint}/{i}.bin" for i in range(args.objects)) + "\n")
            print("cache / data | workers | hit rate | below the best possible")
            for share in args.shares:
                for workers in args.workers:
                    with tempfile.TemporaryDirectory(dir=folder) as dst:
                        hit_rate = measure(
                            src,
                            Path(dst),
                            objects=args.objects,
                            size=args.size,
                            share=share,
                            workers=workers,
                            epochs=args.epochs,
                        )
                    print(f"{share:12.0%} | {workers:7} | {hit_rate:8.1%} | {100 * (share - hit_rate):.2f} points")


if __name__ == "__main__":
    main()
