"""The examples that users begin with, as they would write them: real servers, real files, torch's own DataLoader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

import texts
from sds import StreamingDataset
from sds.testing import HTTPServer, S3Server
from sds.testing.media import make_images
from sds.transforms import rng
from sds.transforms.presets import EnsureFieldsTransform, create_standard_image_pipeline


class RandomFlip:
    """A user's own transform: half of the images are mirrored, by the sample's own randomness."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if rng(sample).random() < 0.5:
            sample["image"] = sample["image"].flip(-1)  # [c, h, w]
        return sample


@pytest.fixture
def photos(s3: S3Server, bucket: str, tmp_path: Path) -> tuple[str, list[dict[str, Any]], Path]:
    """Two hundred images with a JSON file each on S3, fifty of them narrow, and a Parquet index beside them."""
    folder = tmp_path / "photos"
    records = make_images(folder / "images", 150, (36, 64)) + make_images(folder / "narrow", 50, (36, 32), seed=1)
    rows = []
    for number, record in enumerate(records):
        image = Path(record["path"]).relative_to(folder)
        meta = Path("meta") / f"{number:06d}.json"
        (folder / meta).parent.mkdir(exist_ok=True)
        (folder / meta).write_text(json.dumps({"caption": record["caption"]}))
        row = {"media_id": f"{number:06d}", "width": record["width"], "caption": record["caption"]}
        rows.append({**row, "image": f"s3://{bucket}/{image}", "meta": str(meta)})  # a URL, and a relative path
    s3.upload_folder(folder, bucket)
    pq.write_table(pa.Table.from_pylist(rows), folder / "index.parquet")
    s3.put(bucket, "index.parquet", (folder / "index.parquet").read_bytes())
    return f"s3://{bucket}/index.parquet", rows, folder


def test_a_parquet_index_on_s3(photos: Any, s3: S3Server, dst: Path) -> None:
    src, rows, folder = photos
    ds = StreamingDataset(
        src,
        dst,
        columns_to_download=["image", "meta"],
        index_col_name="media_id",
        data_type="image",
        sql_query="SELECT * FROM dataframe WHERE width >= 64 ORDER BY media_id",
        max_size=140,
        shuffle_seed=42,
        transforms=[
            *create_standard_image_pipeline("image", resolution=(32, 32)),
            RandomFlip(),
            EnsureFieldsTransform(fields_whitelist=["image", "media_id"], drop_others=True),
        ],
        storage_options=s3.storage_options,
    )
    assert len(ds) == 140

    sample = ds[123]
    assert set(sample) == {"image", "media_id"}
    assert sample["media_id"] == "000123"
    assert sample["image"].shape == (3, 32, 32) and sample["image"].dtype == torch.uint8
    plain = {"image": str(folder / "images" / "000123.jpg")}
    for transform in create_standard_image_pipeline("image", resolution=(32, 32)):
        plain = transform(plain)
    assert torch.equal(sample["image"], plain["image"]) or torch.equal(sample["image"], plain["image"].flip(-1))

    loader = DataLoader(ds, batch_size=3, num_workers=2, drop_last=True)
    orders = []
    for _ in range(2):
        seen: list[str] = []
        for batch in loader:
            assert set(batch) == {"image", "media_id"}
            assert batch["image"].shape == (3, 3, 32, 32)
            seen += batch["media_id"]
        assert len(seen) == len(set(seen)) == 3 * 2 * (70 // 3), "each worker drops what does not fill its last batch"
        assert set(seen) <= {row["media_id"] for row in rows[:140]}
        orders.append(seen)
    assert orders[0] != orders[1] != sorted(orders[1])
    assert ds.epoch == 2
    ds.close()


def read(sample: dict[str, Any]) -> dict[str, Any]:
    with open(sample["txt"]) as file:
        sample["text"] = file.read()
    return sample


def check_texts(ds: StreamingDataset, num_workers: int = 0) -> None:
    assert len(ds) == 20
    seen = {}
    for batch in DataLoader(ds, batch_size=4, num_workers=num_workers):
        assert set(batch["__data_type__"]) == {"text"}
        seen |= dict(zip(batch["__sample_key__"], batch["text"], strict=True))
    assert seen == {f"{i:03d}": f"text {i:03d}" for i in range(20)}


def test_a_local_folder_of_texts(tmp_path: Path, dst: Path) -> None:
    folder = texts.write(tmp_path / "texts", 20)
    before = sorted(folder.iterdir())
    with StreamingDataset(folder, dst, data_type="text", columns_to_download=["txt"], transforms=[read]) as ds:
        check_texts(ds)
        assert Path(ds[3]["txt"]) == folder / "003.txt", "local files are read in place"
    assert sorted(folder.iterdir()) == before
    assert not (dst / "objects").exists() or not any((dst / "objects").rglob("*.txt"))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_same_folder_on_s3(s3: S3Server, bucket: str, tmp_path: Path, dst: Path, num_workers: int) -> None:
    s3.upload_folder(texts.write(tmp_path / "texts", 20), bucket, "texts/")
    with StreamingDataset(
        f"s3://{bucket}/texts",
        dst,
        data_type="text",
        columns_to_download=["txt"],
        transforms=[read],
        storage_options=s3.storage_options,
    ) as ds:
        check_texts(ds, num_workers)
        assert Path(ds[3]["txt"]).is_relative_to(dst)


def test_urls_in_a_csv(http_server: HTTPServer, new_name: Callable[[], str], tmp_path: Path, dst: Path) -> None:
    folder = new_name()
    for i in range(20):
        http_server.put(f"{folder}/{i:03d}.txt", f"text {i:03d}".encode())
    lines = [f"{i:03d},{http_server.url(f'{folder}/{i:03d}.txt')}" for i in range(20)]
    (tmp_path / "index.csv").write_text("\n".join(["index,txt", *lines]))
    with StreamingDataset(
        tmp_path / "index.csv", dst, data_type="text", columns_to_download=["txt"], transforms=[read], shuffle_seed=0
    ) as ds:
        check_texts(ds)
        requests = http_server.requests()
        ds.set_epoch(1)
        check_texts(ds)
        assert http_server.requests() == requests, "the second epoch comes from the cache"
