"""Methods of other libraries: an AttributeError that says what does the same here, and only for those."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

import sds
from sds.dataset import foreign
from sds.errors import NoSuchName, OptionError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> sds.StreamingDataset:
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "rows.csv").write_text("index,caption\n" + "".join(f"{i},words\n" for i in range(6)))
    return sds.StreamingDataset(folder / "rows.csv", folder / "cache")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("map", "transforms=[f]"),
        ("shuffle", "shuffle_seed=42"),
        ("filter", 'sql_query="SELECT * FROM dataframe WHERE ...'),
        ("batch", "sds.StreamingDataLoader(dataset"),
        ("take", "max_size=100"),
        ("select", "max_size=100"),
        ("with_epoch", "infinite_iteration=True"),
        ("with_format", "sds.StreamingDataLoader(dataset"),
        ("train_test_split", "sds index split"),
    ],
)
def test_a_method_of_another_library_is_told_with_ours(dataset: sds.StreamingDataset, name: str, hint: str):
    for data in (dataset, sds.interleave([dataset, dataset])):
        with pytest.raises(NoSuchName) as caught:
            getattr(data, name)
        assert isinstance(caught.value, AttributeError) and isinstance(caught.value, OptionError)
        assert repr(name) in caught.value.message and hint in str(caught.value.hint)
        assert not hasattr(data, name)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_hints_name_what_there_is():
    hints = " ".join(foreign._FOREIGN.values())
    keywords = set(re.findall(r"\b([a-z_]+)=", hints)) - {"transforms", "world"}
    makers = (sds.StreamingDataset, sds.StreamingDataLoader)
    assert len(keywords) > 5 and keywords <= {name for maker in makers for name in inspect.signature(maker).parameters}
    assert all(hasattr(sds, name) for name in re.findall(r"\bsds\.(\w+)", hints))


def test_none_of_them_is_ours():
    assert [name for name in foreign._FOREIGN if hasattr(sds.StreamingDataset, name)] == []


def test_other_names_are_pythons_own_error(dataset: sds.StreamingDataset):
    with pytest.raises(AttributeError, match="object has no attribute 'explian'") as caught:
        dataset.explian()  # type: ignore[attr-defined]
    assert not isinstance(caught.value, NoSuchName)


class Mine(sds.StreamingDataset):
    """A dataset of a user's, with a property that fails."""

    @property
    def broken(self) -> str:
        return Path("x").no_such_thing  # type: ignore[attr-defined,no-any-return]


def test_an_error_of_a_property_is_what_it_was(dataset: sds.StreamingDataset, tmp_path: Path):
    source = tmp_path / "rows.csv"
    source.write_text("index\n1\n")
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = Mine(source, tmp_path / "cache").broken


class WithFeatures(sds.StreamingDataset):
    @property
    def features(self) -> list[str]:
        return self.nothing_like_it  # type: ignore[no-any-return, attr-defined]


def test_what_a_subclass_has_is_its_own(dataset: sds.StreamingDataset, tmp_path: Path):
    (tmp_path / "rows.csv").write_text("index\n1\n")
    with pytest.raises(AttributeError, match="nothing_like_it") as caught:
        _ = WithFeatures(tmp_path / "rows.csv", tmp_path / "cache").features
    assert not isinstance(caught.value, NoSuchName)
