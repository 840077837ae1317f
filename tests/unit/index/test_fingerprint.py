"""A fingerprint is of the content: not of chunks, places or times, and of every value."""

import datetime
import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.index.fingerprint import fingerprint

NESTED = st.lists(st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=3)), max_size=20)
TEXTS = st.lists(st.one_of(st.none(), st.text(max_size=5)), max_size=20)
NUMBERS = st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=20)


def of(values, type_, cuts=()):
    edges = [0, *sorted(min(c, len(values)) for c in cuts), len(values)]
    chunks = [pa.array(values[a:b], type_) for a, b in itertools.pairwise(edges)]
    return fingerprint(pa.table({"x": pa.chunked_array(chunks, type_)}), salt="")


@settings(deadline=None)
@given(
    data=st.one_of(
        st.tuples(TEXTS, st.just(pa.string())),
        st.tuples(NUMBERS, st.just(pa.int64())),
        st.tuples(NESTED, st.just(pa.list_(pa.int64()))),
        st.tuples(
            NESTED.map(lambda x: [None if v is None else {"a": v} for v in x]),
            st.just(pa.struct([("a", pa.list_(pa.int64()))])),
        ),
        st.tuples(st.lists(st.one_of(st.none(), st.booleans())), st.just(pa.bool_())),
        st.tuples(st.lists(st.one_of(st.none(), st.dates())), st.just(pa.date32())),
        st.tuples(st.lists(st.one_of(st.none(), st.decimals(0, 9, places=2))), st.just(pa.decimal128(5, 2))),
    ),
    cuts=st.lists(st.integers(0, 20), max_size=4),
)
def test_cuts_into_chunks_leave_no_trace(data, cuts):
    values, type_ = data
    assert of(values, type_, cuts) == of(values, type_)
    whole = pa.array([*values, *values], type_)
    assert fingerprint(pa.table({"x": whole[len(values) :]}), salt="") == of(values, type_)  # nor does an offset


@settings(deadline=None)
@given(a=TEXTS, b=TEXTS)
def test_other_texts_have_another_fingerprint(a, b):
    assert (of(a, pa.string()) == of(b, pa.string())) == (a == b)


@settings(deadline=None)
@given(a=NESTED, b=NESTED)
def test_other_lists_have_another_fingerprint(a, b):
    type_ = pa.list_(pa.int64())
    assert (of(a, type_) == of(b, type_)) == (a == b)


def test_names_types_and_order_count():
    tables = [
        pa.table({"a": [1, 2], "b": [3, 4]}),
        pa.table({"a": [1, 2], "c": [3, 4]}),
        pa.table({"b": [3, 4], "a": [1, 2]}),
        pa.table({"a": [2, 1], "b": [3, 4]}),
        pa.table({"a": [1.0, 2.0], "b": [3, 4]}),
        pa.table({"a": [1, 2]}),
    ]
    prints = [fingerprint(table, salt="") for table in tables]
    assert len(set(prints)) == len(prints)
    assert fingerprint(tables[0], salt="other") != prints[0]


def test_wide_and_narrow_text_are_the_same_content():
    assert of(["a", None], pa.string()) == of(["a", None], pa.large_string())


def test_it_is_the_same_on_every_machine():
    """Pinned: a state that was saved yesterday must find its index again."""
    table = pa.table({"index": ["a", "b"], "n": [1, None], "d": [datetime.date(2020, 1, 1)] * 2})
    assert fingerprint(table, salt="key: index") == "4b82c726b8f58b2a0804368051529175"


@pytest.mark.parametrize("type_", [pa.string(), pa.int64(), pa.list_(pa.string())])
def test_what_lies_under_a_null_does_not_count(type_):
    values = {pa.string(): ["abc", "x"], pa.int64(): [5, 6], pa.list_(pa.string()): [["q"], ["r"]]}[type_]
    full = pa.array(values, type_)
    mask = pa.array([False, True])
    from_mask = pa.Array.from_buffers(
        type_,
        2,
        [pa.py_buffer(b"\x01"), *full.buffers()[1:2], *(full.buffers()[2:3] if type_ == pa.string() else [])],
        children=[full.values] if pa.types.is_list(type_) else None,
    )
    assert mask[1].as_py() and from_mask.null_count == 1
    assert fingerprint(pa.table({"x": from_mask}), salt="") == of([values[0], None], type_)
