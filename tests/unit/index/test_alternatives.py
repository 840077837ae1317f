"""Images of several endings are one column; 'jpg;jpeg;png' says so; words about a folder and indexes are no samples."""

import io
import tarfile

import pyarrow as pa
import pytest
from pyarrow import parquet

from sds.errors import OptionError, SchemaError, SourceError
from sds.index.alternatives import column_names, one_of, spelling

MIXED = ("cat/0.JPG", "cat/1.jpeg", "dog/0.png", "dog/1.jpg")


@pytest.fixture
def pets(tmp_path):
    return make(tmp_path / "pets", *MIXED)


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def files(index, column="jpg"):
    return [row[column].rpartition("pets/")[2] for row in (row.values for row in index.rows(range(len(index))))]


def test_alternatives_are_one_column_named_by_the_first_whatever_their_case(pets, open_, keys):
    index = open_(pets, columns_to_download=["jpg;jpeg;png"])
    assert index.columns_to_download == ("jpg",) and index.schema.names == ["index", "jpg"]
    assert keys(index) == ["cat/0", "cat/1", "dog/0", "dog/1"]
    assert files(index) == list(MIXED) and index.facts.num_other_files == 0


def test_of_a_sample_that_has_several_the_first_named_counts(pets, open_):
    make(pets, "dog/1.png")
    assert files(open_(pets, columns_to_download=["png;jpg"]), "png") == ["cat/0.JPG", "dog/0.png", "dog/1.png"]
    assert files(open_(pets, columns_to_download=["jpg;png"]))[-1] == "dog/1.jpg"


def test_a_sample_needs_its_other_columns_all_the_same(pets, open_, keys):
    make(pets, "cat/0.txt", "dog/0.txt")
    index = open_(pets, columns_to_download=["jpg;jpeg;png", "txt"])
    assert keys(index) == ["cat/0", "dog/0"] and index.facts.rows_left_out == 2


def test_wildcards_and_several_sources_have_alternatives(pets, open_):
    assert files(open_(f"{pets}/**/*", columns_to_download=["jpg;jpeg;png"])) == list(MIXED)
    several = [f"{pets}/**/*.jpg", f"{pets}/**/*.png"]
    assert files(open_(several, columns_to_download=["jpg;png"])) == ["dog/1.jpg", "dog/0.png"]


def test_a_query_sees_one_column(pets, open_):
    query = "SELECT *, split_part(index, '/', 1) AS label FROM dataframe WHERE jpg LIKE '%g'"
    index = open_(pets, columns_to_download=["jpg;jpeg;png"], sql_query=query)
    assert [row.values["label"] for row in index.rows(range(len(index)))] == ["cat", "dog", "dog"]


def test_tars_have_alternatives(tmp_path, open_):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name in ("0.jpg", "0.cls", "1.png", "1.cls"):
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    index = open_(tmp_path / "a.tar", columns_to_download=["jpg;png", "cls"])
    assert len(index) == 2 and index.columns_to_download == ("jpg", "cls")
    assert all(row.values["jpg"] is not None for row in index.rows([0, 1]))
    with pytest.raises(SourceError) as caught:
        open_(tmp_path / "a.tar")
    assert "['jpg;png']" in caught.value.hint


def test_a_folder_with_one_image_a_sample_opens_by_itself(pets, open_):
    make(pets, "README.md", "cat/Thumbs.db")
    index = open_(pets)
    assert files(index) == list(MIXED) and index.columns_to_download == ("jpg",)
    assert index.facts.num_other_files == 2


def test_an_image_and_its_mask_stay_two_columns(pets, open_):
    make(pets, "dog/1.png")
    index = open_(pets, columns_to_download=["jpg", "png"])
    assert index.columns_to_download == ("jpg", "png") and len(index) == 1
    with pytest.raises(SourceError) as caught:
        open_(pets)
    assert "columns_to_download=['jpg;jpeg;png']" in caught.value.hint
    assert "--download 'jpg;jpeg;png'" in caught.value.hint


def test_where_files_may_be_missing_every_ending_is_a_column(pets, open_):
    assert open_(pets, allow_missing_columns=True).columns_to_download == ("jpeg", "jpg", "png")


def test_a_folder_of_nothing_but_words_has_them_as_samples(tmp_path, open_, keys):
    assert keys(open_(make(tmp_path / "pets", "README.md"))) == ["README"]
    assert keys(open_(make(tmp_path / "more", "readme.txt", "readme.jpg"))) == ["readme"]


def test_files_that_nobody_asked_for_are_counted(pets, open_):
    facts = open_(pets, columns_to_download=["jpg"]).facts
    assert (facts.rows, facts.num_other_files, facts.num_sample_files) == (2, 2, 4)


def test_in_a_table_a_name_is_a_name(tmp_path, open_):
    parquet.write_table(pa.table({"a;b": ["x.jpg"], "c": ["y.jpg"]}), tmp_path / "t.parquet")
    assert open_(tmp_path / "t.parquet", columns_to_download=["a;b"]).columns_to_download == ("a;b",)
    with pytest.raises(SchemaError) as caught:
        open_(tmp_path / "t.parquet", columns_to_download=["c;d"])
    assert "coalesce(c, d)" in caught.value.hint


def test_tables_that_were_built_in_a_folder_are_no_samples(pets, open_):
    index = pets / "index"
    make(index, "a-0123456789ab-0123456789ab0123456789ab.arrow", "b-0123456789ab-0123456789ab0123456789ab.json")
    assert open_(pets).facts.num_sample_files == 4
    make(index, "mine.json")
    assert open_(pets, columns_to_download=["json"]).facts.num_sample_files == 5


@pytest.mark.parametrize("names", [["jpg;"], [";"], ["jpg;;png"], ["jpg;JPG"], ["jpg;png", "png"], ["a", "b;a"]])
def test_alternatives_that_cannot_be(names):
    with pytest.raises(OptionError) as caught:
        one_of(names)
    assert "jpg;jpeg;png" in caught.value.hint


def test_names():
    assert column_names(("jpg; png", "txt")) == ("jpg", "txt") and column_names(None) is None
    assert spelling(["txt", "png", "jpg"]) == "jpg;png" and spelling(["jpg", "txt"]) is None
