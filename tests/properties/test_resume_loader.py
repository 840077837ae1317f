"""The same with real datasets and loaders over a small index: random stops, another world after each, to the end."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sds

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=40)

SIZES = (1, 2, 7, 24, 61)
LEG = st.tuples(st.integers(1, 4), st.integers(1, 8), st.floats(0, 1))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Small indexes, one per size, without files to fetch."""
    folder = tmp_path_factory.mktemp("sources")
    for n in SIZES:
        lines = ["index,value", *(f"{i:04},{i * i}" for i in range(n))]
        (folder / f"{n}.csv").write_text("\n".join(lines) + "\n")
    return folder


def make(sources, n, seed, **keywords):
    return sds.StreamingDataset(
        sources / f"{n}.csv", sources / "cache", columns_to_download=[], shuffle_seed=seed, **keywords
    )


def run_leg(sources, n, seed, drop_last, state, leg):
    """All ranks, side by side in this process, until the stop; the ids of each global batch and the state."""
    data_size, batch_size, share = leg
    loaders = [
        sds.StreamingDataLoader(
            make(sources, n, seed), batch_size, num_threads=1, drop_last=drop_last, world=sds.World(rank, data_size)
        )
        for rank in range(data_size)
    ]
    try:
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        epoch = loaders[0].dataset.epoch
        delivered, taken = [], loaders[0].state_dict()
        left = None
        iterators = [iter(loader) for loader in loaders]
        assert all(loader.state_dict() == taken for loader in loaders), "beginning to iterate changes nothing"
        for batches in zip(*iterators, strict=True):  # strict: ranks make the same number of steps
            states = [loader.state_dict() for loader in loaders]
            assert all(each == states[0] for each in states), "one rank's state is every rank's"
            delivered.append([key for batch in batches for key in batch["__sample_key__"]])
            taken = states[0]
            if left is None:  # the first batch says how far it is: then the stop is chosen
                left = round(share * (n - taken["position"]) / (data_size * batch_size))
            if left == 0:
                break
            left -= 1
        return delivered, taken, taken["epoch"] > epoch
    finally:
        for loader in loaders:
            loader.close()
            loader.dataset.close()


@SETTINGS
@given(
    n=st.sampled_from(SIZES),
    seed=st.none() | st.integers(0, 2**31),
    drop_last=st.booleans(),
    legs=st.lists(LEG, min_size=1, max_size=3),
    last=LEG,
)
def test_an_epoch_in_pieces_is_the_epoch(sources, n, seed, drop_last, legs, last):
    with make(sources, n, seed) as whole:
        expected = [sample["__sample_key__"] for sample in whole]
    assert sorted(expected) == [f"{i:04}" for i in range(n)]
    seen, state = [], None
    for leg in (*legs, (*last[:2], 1.0), (1, 1, 1.0)):
        delivered, state, is_over = run_leg(sources, n, seed, drop_last, state, leg)
        seen += delivered
        if is_over or (drop_last and state["position"] == 0 and not delivered):
            break
    firsts = list(dict.fromkeys(key for batch in seen for key in batch))
    if drop_last:
        assert firsts == expected[: len(firsts)]
        assert set(Counter(key for batch in seen for key in batch).values()) <= {1}
        assert n - len(firsts) < max(leg[0] * leg[1] for leg in (*legs, last))
    else:
        assert firsts == expected
        assert sum(map(len, seen)) - n < max(leg[0] for leg in (*legs, last))


@SETTINGS
@given(
    n=st.sampled_from(SIZES),
    seed=st.none() | st.integers(0, 2**31),
    stops=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), min_size=1, max_size=4),
)
def test_bare_iteration_in_pieces_goes_through_the_epochs(sources, n, seed, stops):
    """One rank after the other world size, on into the second and third epoch."""
    with make(sources, n, seed) as whole:
        expected = [(epoch, sample["__sample_key__"]) for epoch in range(3) for sample in whole]
    seen, state = [], None
    for size, count in (*stops, (1, 0)):
        datasets = [make(sources, n, seed, world=sds.World(rank, size)) for rank in range(size)]
        for dataset in datasets:
            if state is not None:
                dataset.load_state_dict(state)
        epoch = datasets[0].epoch
        if epoch >= 3:
            break
        for taken, samples in enumerate(zip(*datasets, strict=True), start=1):
            seen += [(epoch, sample["__sample_key__"]) for sample in samples]
            assert all(dataset.state_dict() == datasets[0].state_dict() for dataset in datasets)
            if taken == count:
                break
        state = datasets[0].state_dict()
    assert list(dict.fromkeys(seen)) == expected[: len(set(seen))]
    assert state["epoch"] >= 1 or len(set(seen)) < len(expected)
