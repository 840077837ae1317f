"""What goes wrong says what and where and what to do; and whatever an index says, no file appears outside of `dst`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fetching
import sds
import texts
from sds.errors import AccessDenied, ObjectNotFound, SchemaError, SdsError, SourceError, SourceNotFound
from sds.testing import HTTPServer, S3Server


@pytest.fixture
def dst(tmp_path: Path) -> Iterator[Path]:
    """Deep enough that what climbs out of it lands where this test looks."""
    folder = tmp_path / "one" / "two" / "dst"
    yield folder
    for pid in fetching.server_pids(folder):
        fetching.kill(pid)


@pytest.fixture(autouse=True)
def nothing_outside(tmp_path: Path, dst: Path) -> Iterator[None]:
    """Compares what lies around `dst`, and in the folder that climbing out of everything leads to."""

    def around() -> set[str]:
        found = {str(path) for path in tmp_path.rglob("*") if not path.is_relative_to(dst)}
        return found | {entry.path for folder in ("/", str(tmp_path.parent)) for entry in os.scandir(folder)}

    dst.parent.mkdir(parents=True, exist_ok=True)
    looked = around()
    yield
    made_by_test = {str(path) for path in tmp_path.rglob("*") if path.name.startswith("mine")}
    left = around() - looked - made_by_test
    assert not left, f"files outside of dst: {sorted(left)}"


def mine(folder: Path, name: str = "mine.csv", *lines: str) -> Path:
    """An index of the test's own; its name is known to the listing."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def with_hint(error: SdsError, *words: str) -> None:
    assert error.hint, f"no hint: {error.message}"
    assert f"hint: {error.hint}" in str(error)
    for word in words:
        assert word in str(error), f"{word!r} is not in: {error}"


class TestTwoDatasetsOnOneFolder:
    def test_do_not_get_into_each_others_way(
        self, s3: S3Server, new_name: Callable[[], str], tmp_path: Path, dst: Path
    ) -> None:
        """The same names, ids and index file names; other bytes."""
        buckets = [new_name(), new_name()]
        for number, bucket in enumerate(buckets):
            s3.create_bucket(bucket)
            for i in range(10):
                s3.put(bucket, f"data/{i}.txt", f"{number}: {i}".encode())
            lines = "".join(f"{i},data/{i}.txt\n" for i in range(10))
            s3.put(bucket, "index.csv", f"index,url\n{lines}".encode())

        def make(number: int) -> sds.StreamingDataset:
            return sds.StreamingDataset(
                f"s3://{buckets[number]}/index.csv",
                dst,
                columns_to_download=["url"],
                transforms=[lambda sample: {**sample, "text": Path(sample["url"]).read_text()}],
                storage_options=s3.storage_options,
            )

        for _ in range(2):  # built, and found again
            with make(0) as one, make(1) as two:
                for number, (a, b) in enumerate(zip(one, two, strict=True)):
                    assert (a["text"], b["text"]) == (f"0: {number}", f"1: {number}")
                assert one[3]["text"] == "0: 3" and two[3]["text"] == "1: 3"

    def test_with_different_queries_of_one_index(self, tmp_path: Path, dst: Path) -> None:
        src = mine(tmp_path, "mine.csv", "index,n", *(f"{i},{i}" for i in range(10)))
        few, all_of_them = (
            sds.StreamingDataset(src, dst, columns_to_download=[], sql_query=query)
            for query in ("SELECT * FROM dataframe WHERE n < 3", None)
        )
        assert (len(few), len(all_of_them)) == (3, 10)
        assert texts.keys(few) == ["0", "1", "2"]


CLIMBING = ["../../x", "../../../../../../../../x", "/x", "/etc/x", "a/../../../x", "..", ".", "x\\..\\..\\y", "~/x"]


class TestNamesThatClimb:
    @pytest.mark.parametrize("key", CLIMBING)
    def test_an_id_is_only_a_text(self, s3: S3Server, bucket: str, tmp_path: Path, dst: Path, key: str) -> None:
        s3.put(bucket, "x.txt", b"text")
        src = mine(tmp_path, "mine.csv", "index,url", f'"{key}",s3://{bucket}/x.txt')
        with sds.StreamingDataset(
            src, dst, columns_to_download=["url"], on_error="raise", storage_options=s3.storage_options
        ) as dataset:
            for sample in [*dataset, dataset[0]]:
                assert sample["__sample_key__"] == key
                assert Path(sample["url"]).resolve().is_relative_to(dst.resolve())
                assert Path(sample["url"]).read_text() == "text"

    @pytest.mark.parametrize("url", ["../../x", "/nowhere/x", "a/../../../x"])
    def test_a_local_path_is_read_where_it_is_or_not_found(self, tmp_path: Path, dst: Path, url: str) -> None:
        src = mine(tmp_path / "mine" / "mine-deep", "mine.csv", "index,url", f"a,{url}")
        with sds.StreamingDataset(src, dst, columns_to_download=["url"], on_error="raise") as dataset:
            with pytest.raises(ObjectNotFound, match="x") as caught:
                dataset[0]
            with_hint(caught.value, "not found")
            with pytest.raises(ObjectNotFound):
                list(dataset)

    @pytest.mark.parametrize(
        "key", ["../../x", "/x", "a/../../../x", "%2e%2e/%2e%2e/x", "../../../../../../../../etc/hostname"]
    )
    def test_a_key_of_a_bucket_is_only_a_key(
        self, s3: S3Server, bucket: str, tmp_path: Path, dst: Path, key: str
    ) -> None:
        src = mine(tmp_path, "mine.csv", "index,url", f"a,s3://{bucket}/{key}")
        with sds.StreamingDataset(
            src, dst, columns_to_download=["url"], on_error="raise", storage_options=s3.storage_options
        ) as dataset:
            with pytest.raises(SdsError) as caught:
                dataset[0]
            with_hint(caught.value)
            assert caught.value.key == "a"

    @pytest.mark.parametrize("url", ["../../x", "a/../../../x"])
    def test_a_relative_path_does_not_climb_above_its_bucket(
        self, s3: S3Server, bucket: str, dst: Path, url: str
    ) -> None:
        s3.put(bucket, "folder/index.csv", f"index,url\na,{url}\n".encode())
        with pytest.raises(SchemaError, match="climbs") as caught:
            sds.StreamingDataset(
                f"s3://{bucket}/folder/index.csv",
                dst,
                columns_to_download=["url"],
                storage_options=s3.storage_options,
            )
        with_hint(caught.value, url, "url")

    @pytest.mark.parametrize("name", ["../../x", "/x"])
    def test_an_http_path_is_only_a_path(self, http_server: HTTPServer, tmp_path: Path, dst: Path, name: str) -> None:
        src = mine(tmp_path, "mine.csv", "index,url", f"a,{http_server.endpoint}/{name}")
        with sds.StreamingDataset(src, dst, columns_to_download=["url"]) as dataset:
            with pytest.raises(SdsError) as caught:
                dataset[0]
            with_hint(caught.value)


class TestIndexes:
    def test_a_missing_column(self, tmp_path: Path, dst: Path) -> None:
        src = mine(tmp_path, "mine.csv", "index,url", "a,x.txt")
        with pytest.raises(SchemaError, match="picture") as caught:
            sds.StreamingDataset(src, dst, columns_to_download=["picture"])
        with_hint(caught.value, "url")

    def test_a_missing_id_column(self, tmp_path: Path, dst: Path) -> None:
        src = mine(tmp_path, "mine.csv", "index,url", "a,x.txt")
        with pytest.raises(SchemaError, match="media_id") as caught:
            sds.StreamingDataset(src, dst, index_col_name="media_id")
        with_hint(caught.value)

    @pytest.mark.parametrize("content", ["", "index,url\n"])
    def test_an_empty_index(self, tmp_path: Path, dst: Path, content: str) -> None:
        src = tmp_path / "mine.csv"
        src.write_text(content)
        with pytest.raises(SourceError) as caught:
            sds.StreamingDataset(src, dst, columns_to_download=["url"])
        with_hint(caught.value, "mine.csv")

    def test_a_query_that_leaves_nothing(self, tmp_path: Path, dst: Path) -> None:
        src = mine(tmp_path, "mine.csv", "index,n", "a,1")
        with pytest.raises(SourceError, match="query") as caught:
            sds.StreamingDataset(src, dst, columns_to_download=[], sql_query="SELECT * FROM dataframe WHERE n > 5")
        with_hint(caught.value)

    @pytest.mark.parametrize("cut", [0, 4, 100, -8])
    def test_a_corrupt_parquet_file(self, tmp_path: Path, dst: Path, cut: int) -> None:
        src = tmp_path / "mine.parquet"
        pq.write_table(pa.table({"index": [str(i) for i in range(100)], "url": ["x.txt"] * 100}), src)
        src.write_bytes(src.read_bytes()[:cut])
        with pytest.raises(SourceError, match=r"mine\.parquet") as caught:
            sds.StreamingDataset(src, dst, columns_to_download=["url"])
        with_hint(caught.value)

    def test_a_corrupt_parquet_file_on_s3(self, s3: S3Server, bucket: str, dst: Path) -> None:
        s3.put(bucket, "index.parquet", b"PAR1 and then nothing that makes sense PAR1")
        with pytest.raises(SourceError, match=r"index\.parquet") as caught:
            sds.StreamingDataset(f"s3://{bucket}/index.parquet", dst, storage_options=s3.storage_options)
        with_hint(caught.value)

    @pytest.mark.parametrize("src", ["/nowhere/index.csv", "/nowhere/*.csv", "/nowhere"])
    def test_nothing_is_there(self, dst: Path, src: str) -> None:
        with pytest.raises(SourceNotFound) as caught:
            sds.StreamingDataset(src, dst)
        with_hint(caught.value, "/nowhere")

    @pytest.mark.parametrize("name", ["index.csv", "*.csv", "folder"])
    def test_nothing_is_there_on_s3(self, s3: S3Server, bucket: str, dst: Path, name: str) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            sds.StreamingDataset(f"s3://{bucket}/{name}", dst, storage_options=s3.storage_options)
        with_hint(caught.value, bucket)

    def test_dst_is_a_file(self, tmp_path: Path) -> None:
        src = mine(tmp_path, "mine.csv", "index,n", "a,1")
        with pytest.raises(SdsError, match=r"mine-dst") as caught:
            sds.StreamingDataset(src, mine(tmp_path, "mine-dst"), columns_to_download=[])
        with_hint(caught.value)


class TestObjects:
    def test_a_404_url(self, http_server: HTTPServer, tmp_path: Path, dst: Path) -> None:
        url = f"{http_server.endpoint}/nowhere/x.txt"
        src = mine(tmp_path, "mine.csv", "index,url", f"a,{url}")
        with sds.StreamingDataset(src, dst, columns_to_download=["url"], on_error="raise") as dataset:
            for read in (lambda: dataset[0], lambda: list(dataset), lambda: list(sds.StreamingDataLoader(dataset, 1))):
                with pytest.raises(ObjectNotFound, match=r"nowhere/x\.txt") as caught:
                    read()
                with_hint(caught.value)
                assert (caught.value.url, caught.value.key, caught.value.stage) == (url, "a", "fetch")

    @pytest.mark.parametrize(
        "wrong", [{"secret_access_key": "guessed"}, {"access_key_id": "nobody"}], ids=["secret", "key id"]
    )
    def test_a_wrong_credential(
        self, s3: S3Server, bucket: str, tmp_path: Path, dst: Path, wrong: dict[str, Any]
    ) -> None:
        s3.put(bucket, "x.txt", b"text")
        s3.put(bucket, "index.csv", b"index,url\na,x.txt\n")
        options = {**s3.storage_options, **wrong}
        with pytest.raises(AccessDenied, match=bucket) as caught:
            sds.StreamingDataset(f"s3://{bucket}/index.csv", dst, storage_options=options)
        with_hint(caught.value, "storage_options")
        assert "guessed" not in str(caught.value)

        src = mine(tmp_path, "mine.csv", "index,url", f"a,s3://{bucket}/x.txt")
        with sds.StreamingDataset(src, dst, columns_to_download=["url"], storage_options=options) as dataset:
            with pytest.raises(AccessDenied) as caught:
                dataset[0]
            assert (caught.value.key, caught.value.stage) == ("a", "fetch")
            with pytest.raises(sds.errors.TooManyFailures) as spent:
                list(dataset)
            assert isinstance(spent.value.__cause__, AccessDenied)

    def test_right_and_wrong_credentials_on_one_folder(
        self, s3: S3Server, bucket: str, tmp_path: Path, dst: Path
    ) -> None:
        """One server for both, and each is served as itself."""
        for i in range(4):
            s3.put(bucket, f"{i}.txt", b"text")
        src = mine(tmp_path, "mine.csv", "index,url", *(f"{i},s3://{bucket}/{i}.txt" for i in range(4)))
        wrong = {**s3.storage_options, "secret_access_key": "guessed"}
        with (
            sds.StreamingDataset(src, dst, columns_to_download=["url"], storage_options=wrong) as refused,
            sds.StreamingDataset(src, dst, columns_to_download=["url"], storage_options=s3.storage_options) as good,
        ):
            with pytest.raises(AccessDenied):
                refused[0]
            assert Path(good[1]["url"]).read_text() == "text"
            with pytest.raises(AccessDenied):
                refused[2]
