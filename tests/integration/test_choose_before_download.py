"""One of five embeddings is chosen before anything is fetched: only its file is, the same one on any topology."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sds
from sds.testing import S3Server
from sds.transforms import ChooseField, LoadTextEmbedding, RenameFields

NUM_ROWS, COLUMNS = 24, [f"emb_{number}" for number in range(5)]
WEIGHTS = [0.1, 0.1, 0.1, 0.1, 0.6]


@pytest.fixture(scope="module")
def bucket(s3_logged: S3Server) -> str:
    """A bucket with five embeddings for each row, which say what they are, and an index of them."""
    name = "choose-before-download"
    s3_logged.create_bucket(name)
    rows = []
    for row in range(NUM_ROWS):
        record: dict[str, object] = {"id": f"{row:03d}"}
        for number, column in enumerate(COLUMNS):
            file = io.BytesIO()
            np.save(file, np.full((3, 4), row * 10 + number, np.float32))
            s3_logged.put(name, f"{column}/{row:03d}.npy", file.getvalue())
            record[column] = f"s3://{name}/{column}/{row:03d}.npy"
            record[f"caption_{number}"] = f"caption {number} of {row}"
        rows.append(record)
    table = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), table)
    s3_logged.put(name, "index.parquet", table.getvalue())
    return name


def dataset(bucket: str, server: S3Server, dst: Path, **options) -> sds.StreamingDataset:
    captions = [f"caption_{number}" for number in range(5)]
    return sds.StreamingDataset(
        f"s3://{bucket}/index.parquet",
        dst,
        columns_to_download=COLUMNS,
        index_col_name="id",
        shuffle_seed=3,
        pre_download_transforms=[ChooseField(COLUMNS, "embedding", WEIGHTS, companions={"caption": captions})],
        transforms=[LoadTextEmbedding("embedding", 3)],
        storage_options=server.storage_options,
        **options,
    )


def fetched(server: S3Server, bucket: str, before: int) -> list[str]:
    return [
        each.path.removeprefix(f"/{bucket}/")
        for each in server.request_log()[before:]
        if each.method == "GET" and each.path.endswith(".npy")
    ]


def test_only_the_chosen_file_of_each_row_is_fetched(bucket, s3_logged, dst):
    before = len(s3_logged.request_log())
    with dataset(bucket, s3_logged, dst) as ds:
        samples = list(ds)
    assert len(samples) == NUM_ROWS
    expected = []
    for sample in samples:
        row, number = divmod(int(sample["embedding"][0, 0]), 10)
        assert f"{row:03d}" == sample["id"] and sample["caption"] == f"caption {number} of {row}"
        assert not set(COLUMNS) & set(sample)
        expected.append(f"emb_{number}/{row:03d}.npy")
    assert sorted(fetched(s3_logged, bucket, before)) == sorted(expected)  # one of five, once
    assert Counter(name.split("/")[0] for name in expected)["emb_4"] > NUM_ROWS // 3


def choices(batches) -> dict[str, int]:
    return {
        key: int(value) % 10
        for batch in batches
        for key, value in zip(batch["id"], batch["embedding"][:, 0, 0], strict=True)
    }


def test_the_choice_is_the_same_on_any_topology(bucket, s3_logged, dst):
    found = []
    for size, num_workers in ((1, 0), (2, 0), (1, 2)):
        chosen: dict[str, int] = {}
        for rank in range(size):
            with (
                dataset(bucket, s3_logged, dst) as ds,
                sds.StreamingDataLoader(ds, 4, num_workers=num_workers, world=sds.World(rank, size)) as loader,
            ):
                chosen.update(choices(loader))
        found.append(chosen)
    assert len(found[0]) == NUM_ROWS and found[0] == found[1] == found[2]
    with dataset(bucket, s3_logged, dst) as ds:
        ds.set_epoch(1)
        other = {sample["id"]: int(sample["embedding"][0, 0]) % 10 for sample in ds}
    assert other != found[0] and set(other) == set(found[0])


def test_a_file_is_fetched_under_the_name_it_was_given_and_a_copied_url_stays_text(bucket, s3_logged, dst):
    def keep_url(sample):
        sample["url"] = sample["emb_0"]
        return sample

    before = len(s3_logged.request_log())
    with sds.StreamingDataset(
        f"s3://{bucket}/index.parquet",
        dst,
        columns_to_download=["emb_0", "emb_1"],
        index_col_name="id",
        pre_download_transforms=[keep_url, RenameFields({"emb_1": "second"})],
        storage_options=s3_logged.storage_options,
    ) as ds:
        sample = ds[0]
    assert sample["url"] == f"s3://{bucket}/emb_0/000.npy"
    assert [int(np.load(sample[name])[0, 0]) for name in ("emb_0", "second")] == [0, 1]
    assert sorted(fetched(s3_logged, bucket, before)) == ["emb_0/000.npy", "emb_1/000.npy"]
