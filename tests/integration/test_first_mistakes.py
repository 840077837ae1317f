"""What a new user gets wrong in the first hour, each provoked: the error is ours, says what is wrong, and what to do.

Most are local and take milliseconds; those about stores share one server. Each has a few words of the message and a few
of the hint that a reader needs.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader

import fetching
import sds
from sds.errors import (
    AccessDenied,
    CacheFull,
    FetchError,
    NoSuchName,
    OptionError,
    QueryError,
    SchemaError,
    SdsError,
    SourceError,
    SourceNotFound,
    StateError,
    StateMismatch,
    TooManyFailures,
    TransformError,
)
from sds.loader import collate as collating
from sds.testing import Fault, FaultyProxy, S3Server
from sds.testing.media import make_images
from sds.transforms import DecodeImage, presets


def chain(field: str) -> list[Any]:
    return presets.create_standard_image_pipeline(field, resolution=(16, 16))


def dataset(src: Any = "photos.csv", **keywords: Any) -> sds.StreamingDataset:
    return sds.StreamingDataset(src, **keywords)


def train(src: Any = "photos.csv", num_workers: int = 0, **keywords: Any) -> list[Any]:
    with dataset(src, **keywords) as data, sds.StreamingDataLoader(data, 4, num_workers=num_workers) as loader:
        return list(loader)


def spawned(data: sds.StreamingDataset) -> list[Any]:
    with sds.StreamingDataLoader(data, 4, num_workers=1, multiprocessing_context="spawn") as loader:
        return list(loader)


def forgets_to_return(sample: dict[str, Any]) -> None:
    sample["words"] = 3


def sometimes_has_a_caption(sample: dict[str, Any]) -> dict[str, Any]:
    return {"id": sample["id"], **({"caption": "x"} if sample["quality"] > 0.5 else {})}


class Mistake(NamedTuple):
    """One mistake: what is done, the error, words of its message, words of its hint."""

    make: Callable[[], Any]
    error: type[SdsError]
    message: str
    hint: str


MISTAKES = {
    # where the data is
    "an empty folder": Mistake(lambda: dataset("empty"), SourceError, "has no files", "is it the right one"),
    "a folder's name misspelt": Mistake(lambda: dataset("photo"), SourceNotFound, "photo", "did you mean "),
    "an index's name misspelt": Mistake(lambda: dataset("photo.csv"), SourceNotFound, "photo.csv", "photos.csv"),
    "a URL with one slash": Mistake(lambda: dataset("s3:/b/x.csv"), SourceNotFound, "s3:/b", "two slashes"),
    "a command": Mistake(lambda: dataset("pipe:cat x.tar"), SourceNotFound, "pipe:cat", "no command is run"),
    "a URL without a bucket": Mistake(lambda: dataset("s3://"), OptionError, "no bucket", "s3://<bucket>"),
    "a scheme nobody knows": Mistake(lambda: dataset("hdfs://b/x.csv"), OptionError, "hdfs", "s3"),
    "a spreadsheet": Mistake(lambda: dataset("photos.xlsx"), SourceError, "photos.xlsx", ".csv"),
    "records in memory": Mistake(lambda: dataset([{"id": "a"}]), OptionError, "{'id': 'a'}", "a function"),
    "a table in memory": Mistake(lambda: dataset(pa.table({"id": ["a"]})), OptionError, "not a source", "a function"),
    # which columns
    "a column misspelt": Mistake(
        lambda: dataset(columns_to_download=["imgae"]), SchemaError, "'imgae'", "did you mean 'image'"
    ),
    "an extension with its dot": Mistake(
        lambda: dataset("photos", columns_to_download=[".jpg"]), SchemaError, ".jpg", "without the dot"
    ),
    "an extension that no file has": Mistake(
        lambda: dataset("photos", columns_to_download=["png"]), SchemaError, "png", "there are: jpg"
    ),
    "pictures of several endings": Mistake(
        lambda: dataset("endings"), SourceError, "every row lacks", "columns_to_download=['jpg;png']"
    ),
    "alternatives of a table": Mistake(
        lambda: dataset(columns_to_download=["jpg;png"]), SchemaError, "'jpg;png'", "coalesce(jpg, png)"
    ),
    "a text instead of a list": Mistake(lambda: dataset(columns_to_download="image"), OptionError, "'image'", "a list"),
    "an id column that is not there": Mistake(
        lambda: dataset(index_col_name="idx"), SchemaError, "'idx'", "did you mean 'id'"
    ),
    "a CSV with semicolons": Mistake(
        lambda: dataset("semicolons.csv", columns_to_download=["image"]), SchemaError, "'image'", "commas"
    ),
    "files that are not there": Mistake(
        lambda: train("gone.csv", columns_to_download=["image"]), TooManyFailures, "nowhere", "relative to the index"
    ),
    "a field that is not there": Mistake(
        lambda: train("photos", columns_to_download=["jpg"], transforms=chain("image")),
        TooManyFailures,
        "field is missing: 'image'",
        "columns_to_download",
    ),
    "columns_to_download forgotten": Mistake(
        lambda: train("remote.csv", transforms=chain("image")), TooManyFailures, "s3://", "columns_to_download"
    ),
    "columns_to_download forgotten, in another folder": Mistake(
        lambda: train("lists/photos.csv", transforms=chain("image")), TooManyFailures, "up/", "relative to its index"
    ),
    # SQL
    "a column misspelt in SQL": Mistake(
        lambda: dataset(sql_query="SELECT * FROM dataframe WHERE qualty > 1"), QueryError, "qualty", "quality"
    ),
    "a text in double quotes": Mistake(
        lambda: dataset(sql_query='SELECT * FROM dataframe WHERE image = "red"'), QueryError, "red", "single quotes"
    ),
    "another table's name": Mistake(
        lambda: dataset(sql_query="SELECT * FROM photos"), QueryError, "photos", "named dataframe"
    ),
    "a condition only": Mistake(
        lambda: dataset(sql_query="quality > 0.5"), QueryError, "not SQL", "SELECT * FROM dataframe WHERE"
    ),
    "a query that leaves nothing": Mistake(
        lambda: dataset(sql_query="SELECT * FROM dataframe WHERE quality > 5"), SourceError, "none of 12", "loosen"
    ),
    "a query without the id": Mistake(
        lambda: dataset(index_col_name="id", sql_query="SELECT image FROM dataframe"), SchemaError, "'id'", "select"
    ),
    # keywords
    "a keyword misspelt": Mistake(lambda: dataset(shufle_seed=1), OptionError, "shufle_seed", "`shuffle_seed`"),
    "batch_size for the dataset": Mistake(
        lambda: dataset(batch_size=4), OptionError, "batch_size", "sds.StreamingDataLoader"
    ),
    "shuffle for the loader": Mistake(
        lambda: sds.StreamingDataLoader(dataset(), 4, shuffle=True), OptionError, "shuffle", "shuffle_seed=42"
    ),
    "probabilities for a mix": Mistake(
        lambda: sds.interleave([dataset()], probabilities=[1.0]), OptionError, "probabilities", "`ratios`"
    ),
    "a keyword of the prefetcher misspelt": Mistake(
        lambda: sds.DevicePrefetcher([], dept=2), OptionError, "DevicePrefetcher", "`depth`"
    ),
    # methods of other libraries
    "map": Mistake(lambda: dataset().map(len), NoSuchName, "'map'", "transforms=[f]"),
    "shuffle": Mistake(lambda: dataset().shuffle(seed=42), NoSuchName, "'shuffle'", "shuffle_seed=42"),
    "filter": Mistake(lambda: dataset().filter(bool), NoSuchName, "'filter'", "sql_query="),
    "batch": Mistake(lambda: dataset().batch(4), NoSuchName, "'batch'", "sds.StreamingDataLoader"),
    "take": Mistake(lambda: dataset().take(4), NoSuchName, "'take'", "max_size=100"),
    "select": Mistake(lambda: dataset().select([1, 2]), NoSuchName, "'select'", "sql_query"),
    "with_format": Mistake(lambda: dataset().with_format("torch"), NoSuchName, "'with_format'", "transforms return"),
    # values
    "a seed that is True": Mistake(lambda: dataset(shuffle_seed=True), OptionError, "shuffle_seed", "whole number"),
    "a size in words": Mistake(lambda: dataset(cache_limit="10 gigs"), OptionError, "cache_limit", "10gb"),
    "a batch of none": Mistake(lambda: sds.StreamingDataLoader(dataset(), 0), OptionError, "batch_size", "at least 1"),
    "a list instead of a dataset": Mistake(
        lambda: sds.StreamingDataLoader([1, 2], 4), OptionError, "list", "sds.StreamingDataset"
    ),
    "one number for a resolution": Mistake(
        lambda: presets.create_standard_image_pipeline("jpg", 256), OptionError, "256", "(256, 256)"
    ),
    "options as fsspec spells them": Mistake(
        lambda: dataset("s3://b/x.csv", storage_options={"key": "a"}), OptionError, "'key'", "'access_key_id'"
    ),
    "an endpoint without a scheme": Mistake(
        lambda: dataset("s3://b/x.csv", storage_options={"endpoint": "localhost:9000"}),
        OptionError,
        "localhost:9000",
        "http://host:port",
    ),
    "a dst that is a file": Mistake(lambda: dataset(dst="photos.csv"), SdsError, "photos.csv", "another dst"),
    # transforms
    "a preset inside the list": Mistake(
        lambda: dataset(transforms=[chain("image"), forgets_to_return]), OptionError, "cannot be called", "with +"
    ),
    "a class instead of its object": Mistake(
        lambda: dataset(transforms=[DecodeImage]), OptionError, "DecodeImage", "DecodeImage(...)"
    ),
    "no return": Mistake(
        lambda: train(transforms=[forgets_to_return]), TransformError, "dropped every sample", "`return sample`"
    ),
    "samples with different fields": Mistake(
        lambda: train(transforms=[sometimes_has_a_caption]), TransformError, "'caption'", "EnsureFieldsTransform"
    ),
    "a lambda for spawned workers": Mistake(
        lambda: spawned(dataset(transforms=[lambda sample: sample])), OptionError, "pickle", "top of a module"
    ),
    # epochs and states
    "an epoch before the first": Mistake(lambda: dataset().set_epoch(-1), OptionError, "epoch", "at least 0"),
    "a state of another dataset": Mistake(
        lambda: dataset("photos").load_state_dict(dataset().state_dict()), StateMismatch, "another index", "strict"
    ),
    "a state of another seed": Mistake(
        lambda: dataset(shuffle_seed=2).load_state_dict(dataset(shuffle_seed=1).state_dict()),
        StateMismatch,
        "shuffle_seed",
        "shuffle_seed=1",
    ),
    "the state of the model": Mistake(
        lambda: dataset().load_state_dict(torch.nn.Linear(1, 1).state_dict()), StateError, "not a state", "state_dict()"
    ),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a new user has it."""
    folder = tmp_path_factory.mktemp("desk")
    make_images(folder / "photos", 12, size=(24, 32))
    make_images(folder / "mixed" / "wide", 2, size=(24, 32))
    make_images(folder / "mixed" / "high", 2, size=(32, 24))
    (folder / "empty").mkdir()
    for name in ("endings/a.jpg", "endings/b.png", "endings/labels.csv", "lists/photos.csv"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("id,image\n" + "".join(f"{i},up/{i}.jpg\n" for i in range(12)))
    (folder / "photos.xlsx").write_bytes(b"PK")
    rows = [("id", "image", "quality"), *((f"{i:06}", f"photos/{i:06}.jpg", f"{i / 12:.2f}") for i in range(12))]
    for name, mark, place in [
        ("photos", ",", "photos/"),
        ("semicolons", ";", "photos/"),
        ("gone", ",", "nowhere/"),
        ("remote", ",", "s3://my-bucket/photos/"),
    ]:
        text = "\n".join(mark.join(row) for row in rows)
        (folder / f"{name}.csv").write_text(text.replace("photos/", place) + "\n")
    return folder


@pytest.fixture(autouse=True)
def at_the_desk(desk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(desk)
    monkeypatch.setenv("SDS_CACHE_DIR", str(tmp_path / "cache"))
    yield
    fetching.kill_servers_below(tmp_path)


def told(error: SdsError, message: str, hint: str) -> None:
    assert message in error.message, error
    assert error.hint is not None and hint in error.hint, error


@pytest.mark.filterwarnings("ignore:Got pickle error")  # torch's own word about the lambda
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_is_told_with_what_to_do(mistake: Mistake):
    with pytest.raises(mistake.error) as caught:
        mistake.make()
    told(caught.value, mistake.message, mistake.hint)


def test_images_of_different_sizes_stay_a_list_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys.modules[collating.__module__], "_told", [])
    with caplog.at_level(logging.WARNING, "sds"):
        for _ in range(2):
            (batch,) = train("mixed", columns_to_download=["jpg"], transforms=[DecodeImage("jpg", "image")])
    assert isinstance(batch["image"], list)
    (warning,) = caplog.messages
    assert "[3, 24, 32], [3, 32, 24]" in warning and "bucket_by" in warning and "collate_fn" in warning


def test_none_in_a_field_is_a_list_with_none():
    (batch, *_) = train(transforms=[lambda s: {"score": None if s["quality"] > 0.1 else torch.zeros(2)}])
    assert batch["score"][-1] is None and len(batch["score"]) == 4


def test_the_state_of_workers_of_a_plain_loader():
    with dataset() as data:
        batches = iter(DataLoader(data, 4, num_workers=1, multiprocessing_context="fork"))
        next(batches)
        with pytest.raises(StateError) as caught:
            data.state_dict()
        told(caught.value, "not known here", "sds.StreamingDataLoader")
        del batches


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "av", None)  # as if it were not
    with pytest.raises(OptionError) as caught:
        presets.create_standard_video_pipeline("mp4", 8, (16, 16))
    told(caught.value, "not installed: av", "pip install 'streaming-dataset[video]'")


def test_a_script_without_the_guard_that_spawn_needs(tmp_path: Path):
    """The worker runs the script again, and says so; the script itself ends by the death of its worker."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sds\n"
        "loader = sds.StreamingDataLoader(\n"
        "    sds.StreamingDataset('photos.csv'), 4, num_workers=1, multiprocessing_context='spawn'\n"
        ")\n"
        "print(len(list(loader)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert done.returncode == 1 and done.stdout == ""
    assert "hint: spawned workers import the script: put what it does under `if __name__ == " in done.stderr
    assert "DataLoader worker" in done.stderr.splitlines()[-1], done.stderr


def test_endings_that_nobody_named_are_told_of():
    with dataset("endings", columns_to_download=["jpg"]) as data:
        assert len(data) == 1 and "other files: 2 of 3" in data.explain()


@pytest.fixture(scope="module")
def bucket(s3: S3Server, desk: Path) -> str:
    s3.upload_folder(desk / "photos", "mistakes", "photos")
    text = (desk / "remote.csv").read_text().replace("my-bucket", "mistakes")
    s3.put("mistakes", "photos.csv", text.encode())
    return "s3://mistakes"


class TestStores:
    def test_a_bucket_misspelt(self, s3: S3Server, bucket: str):
        with pytest.raises(SourceNotFound) as caught:
            dataset("s3://mistake/photos.csv", storage_options=s3.storage_options)
        told(caught.value, "s3://mistake/", "there is no bucket s3://mistake")

    def test_a_key_misspelt(self, s3: S3Server, bucket: str):
        with pytest.raises(SourceNotFound) as caught:
            dataset(f"{bucket}/photo.csv", storage_options=s3.storage_options)
        told(caught.value, "photo.csv", f"the bucket {bucket} exists")

    def test_no_credentials(self, s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        with pytest.raises(AccessDenied) as caught:
            dataset(f"{bucket}/photos.csv", storage_options={"endpoint": s3.endpoint})
        told(caught.value, "no credentials were found", "storage_options={'anonymous': True}")

    def test_another_region(self, s3: S3Server, bucket: str):
        """S3 answers 301 to a request for a bucket of another region."""
        with FaultyProxy(s3.endpoint, [Fault("status", status=301, method=None)]) as proxy:
            options = {**s3.storage_options, "endpoint": f"http://127.0.0.1:{proxy.port}"}
            with pytest.raises(FetchError) as caught:
                dataset(f"{bucket}/photos.csv", storage_options=options)
        told(caught.value, "another region", "storage_options={'region': ")

    def test_a_cache_that_has_room_for_no_file(self, s3: S3Server, bucket: str, tmp_path: Path):
        with pytest.raises((CacheFull, TooManyFailures)) as caught:
            train(
                f"{bucket}/photos.csv",
                dst=tmp_path / "small",
                columns_to_download=["image"],
                storage_options=s3.storage_options,
                cache_limit=100,
            )
        told(caught.value, "100", "cache_limit")
