"""Row -> Sample: what transforms may return, and what an error says."""

from __future__ import annotations

import collections
import pickle
import shutil
from pathlib import Path

import pytest

import sds
import texts
from sds.errors import DecodeError, FetchError, ObjectNotFound, OptionError, SchemaError, TransformError
from sds.transforms import DecodeImage, LoadFromDisk


def test_a_sample_has_its_columns_paths_and_bookkeeping(make):
    sample = make(data_type="text")[7]
    assert {"txt", "__sample_key__", "__epoch__", "__random_seed__", "__data_type__"} <= set(sample)
    assert (sample["__sample_key__"], sample["__epoch__"]) == ("007", 0)
    assert Path(sample["txt"]).read_text() == "text 007"


def test_without_a_data_type_samples_carry_none(make):
    assert "__data_type__" not in make()[0]


@pytest.mark.parametrize("several", [list, tuple, iter, lambda parts: (each for each in parts)])
def test_a_transform_may_fan_out(make, several):
    def fan(sample):
        return several([{"key": sample["__sample_key__"], "part": part} for part in (0, 1, 2)])

    def after(sample):
        sample["seen"] = True
        return sample

    dataset = make(transforms=[fan, after], max_size=2)
    expected = [{"key": key, "part": part, "seen": True} for key in ("000", "001") for part in (0, 1, 2)]
    assert list(dataset) == expected
    assert dataset[1] == expected[3:], "a row that is several samples is a list of them"


def test_a_generators_error_is_the_transforms(make):
    def fan(sample):
        yield sample
        raise ZeroDivisionError

    with pytest.raises(TransformError) as caught:
        make(transforms=[fan])[0]
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize("nothing", [None, [], ()])
def test_a_transform_may_drop(make, nothing):
    dataset = make(transforms=[lambda sample: nothing if sample["__sample_key__"] == "001" else sample], max_size=3)
    assert texts.keys(dataset) == texts.ids(0, 2)
    assert dataset.stats().failures == 0
    with pytest.raises(TransformError, match=r"dropped.*001") as caught:
        dataset[1]
    assert caught.value.key == "001"


def test_a_mapping_of_another_kind_is_a_sample(make):
    dataset = make(transforms=[lambda sample: collections.UserDict(key=sample["__sample_key__"])])
    assert dataset[2] == {"key": "002"}


@pytest.mark.parametrize("wrong", [5, "text", b"bytes", [1, 2], [{}, None], object()])
def test_what_no_sample_can_be_is_an_error(make, wrong):
    with pytest.raises(TransformError, match="returned") as caught:
        make(transforms=[lambda sample: wrong])[4]
    assert (caught.value.key, caught.value.stage) == ("004", "transform")
    assert "a transform returns" in caught.value.hint


def test_an_error_names_row_stage_and_cause(make):
    dataset = make(transforms=[texts.FailOn("005")], on_error="raise")
    with pytest.raises(TransformError, match=r"FailOn\(\).*no luck with 005") as caught:
        dataset[5]
    error = caught.value
    assert (error.key, error.stage) == ("005", "transform")
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.hint
    assert pickle.loads(pickle.dumps(error)).key == "005"


def test_a_missing_file_names_row_stage_and_url(make, tmp_path):
    (tmp_path / "index.csv").write_text("index,url\na,/nowhere/x.txt\n")
    with pytest.raises(ObjectNotFound) as caught:
        make(src=tmp_path / "index.csv", columns_to_download=["url"])[0]
    error = caught.value
    assert (error.key, error.stage, error.url) == ("a", "fetch", "/nowhere/x.txt")


@pytest.mark.parametrize("url", ["ftp://host/x.txt", "file://elsewhere/x.txt"])
def test_an_address_that_nobody_can_read_fails_its_row_only(make, tmp_path, source, url):
    rows = [f"{i},{source}/{i:03d}.txt" for i in range(12)]
    rows[3] = f"3,{url}"
    (tmp_path / "index.csv").write_text("\n".join(["index,url", *rows]))
    dataset = make(src=tmp_path / "index.csv", columns_to_download=["url"])
    assert texts.keys(dataset) == [str(i) for i in range(12) if i != 3]
    assert [(failure.key, failure.stage) for failure in dataset.quarantine()] == [("3", "fetch")]
    with pytest.raises(OptionError) as caught:
        dataset[3]
    assert caught.value.key == "3"


def test_an_sds_error_of_a_transform_passes_as_it_is(make):
    def refuse(sample):
        raise FetchError("no way", stage="there")

    with pytest.raises(FetchError, match="no way") as caught:
        make(transforms=[refuse])[0]
    assert (caught.value.key, caught.value.stage) == ("000", "there")


class TestBeforeTheDownload:
    def test_a_transform_chooses_what_is_fetched(self, make, source):
        def choose(sample):
            sample["txt"] = str(source / "030.txt")
            return sample

        assert make(pre_download_transforms=[choose], transforms=[texts.read])[0]["txt"] == "text 030"

    @pytest.mark.parametrize("wrong", [None, [{}], 5])
    def test_it_returns_one_dict(self, make, wrong):
        with pytest.raises(TransformError, match="returned no dict") as caught:
            make(pre_download_transforms=[lambda sample: wrong])[1]
        assert caught.value.key == "001"

    def test_its_error_is_counted_like_any_other(self, make):
        dataset = make(pre_download_transforms=[texts.FailOn("003")], max_size=20)
        assert "003" not in texts.keys(dataset)
        assert [failure.key for failure in dataset.quarantine()] == ["003"]

    def test_a_url_must_be_text(self, make):
        with pytest.raises(SchemaError, match="'txt' has int"):
            make(pre_download_transforms=[lambda sample: {**sample, "txt": 5}])[0]

    def test_no_url_is_no_file(self, make):
        assert make(pre_download_transforms=[lambda sample: {**sample, "txt": None}])[0]["txt"] is None


class TestRandomness:
    def test_depends_on_seed_epoch_and_sample_alone(self, make):
        one, two = make(shuffle_seed=3), make(shuffle_seed=3)
        by_key = {sample["__sample_key__"]: sample["__random_seed__"] for sample in one}
        assert len(set(by_key.values())) == 40
        assert all(two[i]["__random_seed__"] == by_key[f"{i:03d}"] for i in range(40))
        two.set_epoch(1)
        assert all(two[i]["__random_seed__"] != by_key[f"{i:03d}"] for i in range(40))
        assert make(shuffle_seed=4)[0]["__random_seed__"] != by_key["000"]

    def test_is_the_same_on_any_topology(self, make):
        def drawn(size, **loader):
            found = {}
            for rank in range(size):
                dataset = make(shuffle_seed=3, transforms=[texts.draw], world=sds.World(rank, size))
                for batch in sds.StreamingDataLoader(dataset, 4, **loader):
                    found |= dict(zip(batch["__sample_key__"], batch["drawn"].tolist(), strict=True))
            return found

        alone = drawn(1, num_threads=1)
        assert len(set(alone.values())) == 40
        assert drawn(3) == alone
        assert drawn(2, num_workers=2) == alone
        assert {
            sample["__sample_key__"]: sample["drawn"] for sample in make(shuffle_seed=3, transforms=[texts.draw])
        } == alone


class TestMissingFiles:
    """Whoever opens a file finds that it is missing; others are told before they run. It is the same error."""

    class Own(DecodeImage):
        """A user's own, which puts up with a missing file."""

        def __call__(self, sample):
            return {"key": sample["__sample_key__"]}

    @pytest.fixture
    def folder(self, source, tmp_path):
        return Path(shutil.copytree(source, tmp_path / "texts"))

    @pytest.mark.parametrize("first", [DecodeImage("txt", "image"), Own("txt", "image"), texts.read])
    def test_it_is_not_found(self, make, folder, first):
        dataset = make(src=folder, transforms=[first])
        (folder / "003.txt").unlink()
        with pytest.raises(ObjectNotFound, match=r"file not found: .*003\.txt") as caught:
            dataset[3]
        assert (caught.value.key, caught.value.stage) == ("003", "fetch")
        assert "the index names it" in caught.value.hint and caught.value.url.endswith("003.txt")

    def test_it_is_counted(self, make, folder):
        chain = [LoadFromDisk(["txt"]), lambda sample: {"key": sample["__sample_key__"]}]
        dataset = make(src=folder, transforms=chain, on_error="skip")
        (folder / "003.txt").unlink()
        assert len(list(dataset)) == 39
        (failure,) = dataset.quarantine()
        assert failure.key == "003" and failure.reason.startswith("file not found")

    def test_another_error_is_not_taken_for_it(self, make):
        with pytest.raises(DecodeError, match="cannot be decoded"):
            make(transforms=[DecodeImage("txt", "image")])[3]
