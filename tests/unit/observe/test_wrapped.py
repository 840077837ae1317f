"""Wrappers go around each other, and have what the loader inside of them has."""

import io
import pickle

import pytest

import sds
from sds.observe import log, progress


@pytest.fixture
def loader(make):
    with sds.StreamingDataLoader(make(shuffle_seed=1), 8, num_threads=1) as loader:
        yield loader


@pytest.mark.parametrize("is_log_outside", [True, False])
def test_in_any_order(loader, is_log_outside):
    heard, stream = [], io.StringIO()
    if is_log_outside:
        wrapped = log(progress(loader, "both", stream=stream), heard.append, every=2)
    else:
        wrapped = progress(log(loader, heard.append, every=2), "both", stream=stream)
    assert len(wrapped) == len(loader) == 5
    for _ in wrapped:
        assert wrapped.state_dict() == loader.state_dict()
    assert wrapped.stats().samples == loader.stats().samples == 40
    assert [each["sds/batches"] for each in heard] == [2.0, 4.0, 5.0]
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("both: 5/5 batches, ")
    assert "samples/s" in line and "bottleneck" in line


def test_a_wrapper_goes_on_from_a_state(loader):
    wrapped = progress(log(loader, print), stream=io.StringIO())
    batches = iter(wrapped)
    next(batches)
    state = wrapped.state_dict()
    rest = [batch["__sample_key__"] for batch in batches]
    wrapped.load_state_dict(state)
    assert [batch["__sample_key__"] for batch in loader] == rest


def test_what_the_loader_does_not_have_a_wrapper_has_not():
    wrapped = progress([1, 2], stream=io.StringIO())
    assert not hasattr(wrapped, "stats")
    with pytest.raises(sds.errors.OptionError, match="no stats"):
        log(wrapped, print)
    with pytest.raises(AttributeError, match="_missing"):
        wrapped._missing  # noqa: B018 (the look is what fails)
    assert len(pickle.loads(pickle.dumps(log(Counted(), print)))) == 3


class Counted:
    def __len__(self):
        return 3

    def stats(self):
        return None


def test_items_of_a_dataset_are_samples(make):
    stream, heard = io.StringIO(), []
    list(progress(make(), "bare", stream=stream))
    assert stream.getvalue().startswith("bare: 40/40 samples, ")
    list(progress(log(make(), heard.append), "logged", stream=stream))
    assert stream.getvalue().splitlines()[1].startswith("logged: 40/40 samples, ")
    assert heard[-1]["sds/samples"] == 40.0
