"""Sources that hold their samples, on real servers and in real workers: tar shards, bytes in tables, data providers."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sds
from sds.errors import FetchError, OptionError, SourceError
from sds.testing.resume import Topology, check_resume, sample_keys

NUM_SHARDS, PER_SHARD = 3, 20
ROWS = NUM_SHARDS * PER_SHARD


def image(i):
    return bytes([i % 256]) * (30_000 + 10 * i)


def shard(rows):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for i in rows:
            for name, content in ((f"{i:04}.cls", b"%d" % i), (f"{i:04}.jpg", image(i)), (f"{i:04}.txt", b"t")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def shards():
    return [shard(range(n * PER_SHARD, (n + 1) * PER_SHARD)) for n in range(NUM_SHARDS)]


class Numbers:
    """A data provider that must be able to travel."""

    def __init__(self, size=24):
        self.size = size

    def __len__(self):
        return self.size

    def rows(self, ids):
        return [{"index": f"{i:03}", "data": bytes([i])} for i in ids]


def length_of(sample):
    return {"__sample_key__": sample["__sample_key__"], "length": len(sample["jpg"])}


class TestTarsInAStore:
    def test_are_shuffled_by_ranges(self, s3_logged, new_name, tmp_path, shards):
        bucket = new_name()
        s3_logged.create_bucket(bucket)
        for n, content in enumerate(shards):
            s3_logged.put(bucket, f"train-{n:02}.tar", content)
        make = lambda **more: sds.StreamingDataset(  # noqa: E731
            f"s3://{bucket}/train-{{00..02}}.tar",
            shuffle_seed=1,
            storage_options=s3_logged.storage_options,
            on_error="raise",
            **{"dst": tmp_path / "dst", **more},
        )
        with make() as ds:
            seen = {sample["__sample_key__"]: sample for sample in ds}
            assert list(seen) != sorted(seen)
            assert sorted(seen) == [f"{i:04}" for i in range(ROWS)]
            for i in range(ROWS):
                found = seen[f"{i:04}"]
                assert (found["jpg"], found["cls"], found["txt"]) == (image(i), b"%d" % i, b"t")
            stats = ds.stats()
            assert stats.requests == NUM_SHARDS, "they fit into the cache: blocks of many samples"
            assert stats.bytes_downloaded <= sum(map(len, shards)), "each byte once"
        with make() as ds:
            assert len(list(ds)) == ROWS
            assert ds.stats().bytes_downloaded == 0, "from the cache"
        with make(columns_to_download=["cls"]) as ds:
            assert ds[41]["cls"] == b"41"
            assert ds.stats().bytes_downloaded == 2, "few bytes of a shard are wanted: each sample by itself"
        with make(cache_limit="2mb", dst=tmp_path / "small") as ds:
            assert sorted(sample["cls"] for sample in ds) == sorted(b"%d" % i for i in range(ROWS))
            assert ds.stats().requests == ROWS, "too small a cache for blocks: a request for the members of a sample"

    def test_are_read_by_workers_and_resumed(self, s3, bucket, tmp_path, shards):
        for n, content in enumerate(shards):
            s3.put(bucket, f"w/{n}.tar", content)
        make = lambda: sds.StreamingDataset(  # noqa: E731
            f"s3://{bucket}/w/",
            tmp_path / "dst",
            transforms=[length_of],
            shuffle_seed=2,
            storage_options=s3.storage_options,
            on_error="raise",
        )
        with make() as ds, sds.StreamingDataLoader(ds, 8, num_workers=2, multiprocessing_context="fork") as loader:
            seen = {key: int(n) for batch in loader for key, n in zip(sample_keys(batch), batch["length"], strict=True)}
            assert seen == {f"{i:04}": 30_000 + 10 * i for i in range(ROWS)}

        def loader_of(topology, world):
            return sds.StreamingDataLoader(make(), topology.batch_size, world=world)

        assert check_resume(loader_of, [Topology(1, 15), Topology(2, 10)], num_epochs=1) > 4

    def test_that_changed_since_are_an_error_and_not_other_bytes(self, s3, bucket, tmp_path, shards):
        s3.put(bucket, "c/0.tar", shards[0])
        options = {"storage_options": s3.storage_options, "on_error": "raise", "cache_limit": "700kb"}
        with sds.StreamingDataset(f"s3://{bucket}/c/0.tar", tmp_path / "dst", **options) as ds:
            assert ds[0]["jpg"] == image(0)
            s3.put(bucket, "c/0.tar", shard(range(100, 100 + PER_SHARD)))
            with pytest.raises(FetchError):
                ds[1]
        with sds.StreamingDataset(f"s3://{bucket}/c/0.tar", tmp_path / "dst", **options) as ds:
            assert ds[1]["jpg"] == image(101)

    def test_that_are_cut_short_are_an_error(self, s3, bucket, tmp_path, shards):
        s3.put(bucket, "d/0.tar", shards[0][:50_000])
        with pytest.raises(SourceError, match="tar cannot be read"):
            sds.StreamingDataset(f"s3://{bucket}/d/0.tar", tmp_path / "dst", storage_options=s3.storage_options)

    def test_on_a_web_server(self, http_server, new_name, tmp_path, shards):
        name = new_name()
        for n, content in enumerate(shards):
            http_server.put(f"{name}/{n}.tar", content)
        urls = [http_server.url(f"{name}/{n}.tar") for n in range(NUM_SHARDS)]
        with sds.StreamingDataset(urls, tmp_path / "dst", shuffle_seed=0, on_error="raise") as ds:
            assert sorted(sample["cls"] for sample in ds) == sorted(b"%d" % i for i in range(ROWS))


class TestProviders:
    def test_travel_into_workers(self, tmp_path):
        with sds.StreamingDataset(
            Numbers(), tmp_path / "dst", columns_to_download=["data"], shuffle_seed=1, on_error="raise"
        ) as ds:
            order = ds.plan.rows(0, 0, 24).tolist()
            with sds.StreamingDataLoader(
                ds, 4, num_workers=1, multiprocessing_context="spawn", collate_fn=list
            ) as loader:
                samples = [sample for batch in loader for sample in batch]
            assert [sample["data"][0] for sample in samples] == order

    def test_that_cannot_travel_say_so(self, tmp_path):
        source = Numbers()
        source.file = (Path(tmp_path) / "open").open("w")
        with (
            source.file,
            sds.StreamingDataset(source, tmp_path / "dst") as ds,
            sds.StreamingDataLoader(ds, 4, num_workers=1, multiprocessing_context="spawn") as loader,
            pytest.raises(OptionError, match="cannot be pickled"),
        ):
            next(iter(loader))


class TestBytesInTablesOfAStore:
    def test_are_fetched_by_row_groups_and_paths_as_files(self, s3, bucket, tmp_path):
        files = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        s3.put(bucket, "h/mask.png", b"mask")
        s3.put(bucket, "h/data/x.jpg", b"from a file")
        for n in range(2):
            rows = [{"bytes": image(i), "path": f"{i}.jpg"} for i in range(20 * n, 20 * n + 20)]
            if n == 1:
                rows[3] = {"bytes": None, "path": "x.jpg"}
            table = pa.table(
                {"image": pa.array(rows, files), "mask": ["../mask.png"] * 20, "n": range(20 * n, 20 * n + 20)}
            )
            sink = io.BytesIO()
            pq.write_table(table, sink, row_group_size=5, compression="snappy")
            s3.put(bucket, f"h/data/train-{n:05}-of-00002.parquet", sink.getvalue())
        with sds.StreamingDataset(
            f"s3://{bucket}/h/data/train-*.parquet",
            tmp_path / "dst",
            columns_to_download=["image", "mask"],
            shuffle_seed=1,
            storage_options=s3.storage_options,
            on_error="raise",
            transforms=[read_mask],
        ) as ds:
            before = ds.stats().bytes_downloaded
            assert ds[7]["image"] == image(7)
            one = ds.stats().bytes_downloaded - before
            assert one < 5 * 31_000 + 20_000, "a row group and a footer, not the file"
            seen = {sample["n"]: sample for sample in ds}
            assert len(seen) == 40
            for i in range(40):
                assert seen[i]["mask"] == b"mask"
                assert seen[i]["image"] == (b"from a file" if i == 23 else image(i))
            num_files = sum(path.stat().st_size for path in (tmp_path / "dst" / "index").rglob("*") if path.is_file())
            assert num_files < 20_000, "the bytes are not in the index"


def read_mask(sample):
    sample["mask"] = Path(sample["mask"]).read_bytes()
    if isinstance(sample["image"], str):
        sample["image"] = Path(sample["image"]).read_bytes()
    return sample
