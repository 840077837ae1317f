"""What the pages and examples find when they run: a folder of photos, indexes of them, the same in a bucket.

photos/            000000.jpg, 000000.txt, ...
texts/             monday/00.txt, tuesday/00.txt, ...
photos.parquet     id, image (path), caption, width, height, quality
photos.csv         the same
urls.csv           id, image (an http URL), caption
my_code.py         chain: a list of transforms
export.yaml        an export of photos.parquet
faces.tensors      a small tensor cache
run.jsonl          the record of a run
output/my-dataset  a training dataset as ComfyUI saves it
s3://my-bucket/    faces.tensors/, photos/, texts/, photos.parquet (with s3:// URLs), shards/part-*.parquet (its parts)
"""

from __future__ import annotations

import csv
import gc
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
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


def rows_of(records, prefix: str) -> list[dict[str, object]]:
    return [
        {
            "id": record["id"],
            "image": f"{prefix}{record['id']}.jpg",
            "caption": record["caption"],
            "width": record["width"],
            "height": record["height"],
            "quality": (number * 37 % 100) / 100,
        }
        for number, record in enumerate(records)
    ]


def write_csv(path: Path, rows: list[dict[str, object]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory, s3: S3Server, http_server: HTTPServer) -> Path:
    """Makes everything once; the bucket is filled from it."""
    folder = tmp_path_factory.mktemp("home")
    records = make_images(folder / "photos", NUM_PHOTOS, size=(96, 128))
    for record in records:
        (folder / "photos" / f"{record['id']}.txt").write_text(record["caption"])
        http_server.put(f"photos/{record['id']}.jpg", Path(record["path"]).read_bytes())
    for number in range(20):
        path = folder / "texts" / ("monday" if number % 2 else "tuesday") / f"{number // 2:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text number {number}\n")
    local = rows_of(records, "photos/")
    pq.write_table(pa.Table.from_pylist(local), folder / "photos.parquet")
    write_csv(folder / "photos.csv", local)
    fetched = [{**row, "image": http_server.url(str(row["image"]))} for row in local]
    write_csv(folder / "urls.csv", [{k: row[k] for k in ("id", "image", "caption")} for row in fetched])

    (folder / "my_code.py").write_text(CODE)
    (folder / "export.yaml").write_text(EXPORT)
    begun = Beginning(time.time(), 0, sds.__version__, 1)
    moments = [Moment(float(k), Stats(samples=10 * k, batches=k, wall_s=float(k))) for k in range(1, 4)]
    (folder / "run.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (begun, *moments)))
    with TensorCacheWriter(folder / "faces.tensors") as writer:
        for number in range(8):
            writer.add(f"face-{number}", {"latent": torch.full((4, 8, 8), float(number)), "age": 20 + number})
    (folder / "output" / "my-dataset").mkdir(parents=True)
    comfy = {"latents": [{"samples": torch.zeros(1, 4, 2, 2)}], "conditioning": [[[torch.zeros(1, 3, 8), {}]]]}
    torch.save(comfy, folder / "output" / "my-dataset" / "shard_0000.pkl")

    bucket = tmp_path_factory.mktemp("bucket")
    shutil.copytree(folder / "faces.tensors", bucket / "faces.tensors")
    shutil.copytree(folder / "photos", bucket / "photos")
    shutil.copytree(folder / "texts", bucket / "texts")
    remote = rows_of(records, "s3://my-bucket/photos/")
    pq.write_table(pa.Table.from_pylist(remote), bucket / "photos.parquet")
    (bucket / "shards").mkdir()
    for part in range(4):
        pq.write_table(pa.Table.from_pylist(remote[part::4]), bucket / "shards" / f"part-{part}.parquet")
    s3.upload_folder(bucket, "my-bucket")
    return folder


@pytest.fixture
def home(
    furnished: Path, s3: S3Server, http_server: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A fresh copy of the folder as the working folder, and the environment that a user of S3 has."""
    folder = tmp_path / "home"
    shutil.copytree(furnished, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
    monkeypatch.setenv("AWS_REGION", s3.region)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "cache"))
    yield folder
    gc.collect()  # datasets that a page did not close let go of the fetch server here
