"""Rows by number: right, quick, and the same in every process."""

import datetime
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

from sds.errors import SourceNotFound
from sds.index import Index, IndexOptions, TableIndex, open_index
from sds.index.cells import cell_reader

ARRAYS = [
    pa.array(["a", "", None, "ü", "x" * 100]),
    pa.array(["a", None], pa.large_string()),
    pa.array([b"\x00", b"", None, b"\xff"]),
    pa.array([1, None, -5], pa.int8()),
    pa.array([1, 2**63], pa.uint64()),
    pa.array([1.5, None, float("inf")]),
    pa.array([1.5, 2.5], pa.float32()),
    pa.array([True, None, False]),
    pa.array([[1, 2], None, []]),
    pa.array([{"a": 1, "b": ["x"]}, None]),
    pa.array([{"part": i, "offset": 512 * i, "name": f"{i}"} for i in range(5)]),
    pa.array([{"a": 1, "b": None}, None, {"a": None, "b": {"c": "x"}}]),
    pa.array([{}, None], pa.struct([])),
    pa.array([datetime.date(2020, 1, 1), None]),
    pa.nulls(3),
    pa.array([None, None], pa.string()),
    pa.array(["x", "y", None, "x"]).dictionary_encode(),
    pa.array(["", ""]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type))
def test_a_cell_is_what_arrow_says_it_is(array):
    for part in (array, pa.concat_arrays([array] * 5)[3:], array[1:], array[:1]):
        read = cell_reader(part)
        assert [read(i) for i in range(len(part))] == part.to_pylist()


@given(values=st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8")))), cut=st.integers(0, 20))
def test_texts_are_read_from_any_slice(values, cut):
    array = pa.array(values, pa.string())[cut:]
    read = cell_reader(array)
    assert [read(i) for i in range(len(array))] == values[cut:]


def write_chunked(folder):
    """An index of 10,000 rows in batches of all sizes, used where it lies."""
    numbers = np.arange(10_000)
    table = pa.table({"index": numbers.astype(str), "n": numbers, "t": [f"text {n}" for n in numbers]})
    with pa.ipc.new_file(folder / "i.arrow", table.schema) as writer:
        for start, stop in ((0, 1), (1, 1), (1, 7000), (7000, 7003), (7003, 10_000)):
            writer.write_table(table[start:stop])
    index = open_index(folder / "i.arrow", IndexOptions(), folder=folder / "index", remote=None)
    assert index.facts.in_place
    return index


@pytest.fixture
def chunked(tmp_path):
    return write_chunked(tmp_path)


@pytest.fixture(scope="module")
def shared_chunked(tmp_path_factory):
    return write_chunked(tmp_path_factory.mktemp("chunked"))


@given(ids=st.lists(st.integers(0, 9_999), max_size=100))
@settings(max_examples=50, deadline=None)
def test_rows_come_in_the_order_asked_for(shared_chunked, ids):
    for asked in (ids, np.asarray(ids, np.int64), np.asarray(ids, np.int32), tuple(ids)):
        rows = shared_chunked.rows(asked)
        assert [row.id for row in rows] == ids
        assert [row.values for row in rows] == [{"index": str(i), "n": i, "t": f"text {i}"} for i in ids]
        assert [row.key for row in rows] == [str(i) for i in ids]


@pytest.mark.parametrize("size", [7, 31, 32, 33, 400])
def test_many_rows_of_a_batch_are_read_by_columns_and_few_one_by_one(chunked, size):
    ids = np.random.default_rng(size).integers(0, 10_000, size)
    rows = chunked.rows(ids)
    assert [(row.id, row.key, row.values["t"]) for row in rows] == [(i, str(i), f"text {i}") for i in ids.tolist()]


def test_rows_that_are_not_there_are_an_index_error(chunked):
    for ids in ([10_000], [-1], [5, 10_000], [*range(100), -1]):
        with pytest.raises(IndexError, match=str(ids[-1])):
            chunked.rows(ids)
    assert chunked.rows([]) == []


def test_it_follows_the_protocol_of_an_index(chunked):
    index: Index = chunked
    assert len(index) == 10_000 and index.schema.names == ["index", "n", "t"]


def test_it_survives_pickling(chunked):
    copy = pickle.loads(pickle.dumps(chunked))
    assert isinstance(copy, TableIndex) and copy.rows([7001, 3]) == chunked.rows([7001, 3])
    assert copy.fingerprint == chunked.fingerprint and len(pickle.dumps(chunked)) < 2000
    os.unlink(chunked.facts.path)
    with pytest.raises(SourceNotFound, match="gone"):
        pickle.loads(pickle.dumps(chunked))


def test_it_can_be_closed(chunked):
    chunked.close()
    with pytest.raises(IndexError):
        chunked.rows([0])


def test_threads_may_share_it(chunked):
    wrong: list[object] = []

    def work(seed):
        asked = np.random.default_rng(seed).integers(0, 10_000, (50, 20)).tolist()
        wrong.extend(ids for ids in asked if [row.values["n"] for row in chunked.rows(ids)] != ids)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_reads_what_its_parent_opened_and_opens_its_own(tmp_path):
    """After pyarrow and DuckDB ran threads in the parent; in a process of its own, so that a hang ends with it."""
    parquet.write_table(
        pa.table({"index": [str(i) for i in range(200_000)], "n": range(200_000)}), tmp_path / "i.parquet"
    )
    program = f"""
        import os, pickle
        from pathlib import Path
        from sds.index import IndexOptions, open_index
        src, folder = {str(tmp_path / "i.parquet")!r}, Path({str(tmp_path)!r})
        query = "SELECT * FROM dataframe WHERE n % 2 = 0"
        def check():
            index = open_index(src, IndexOptions(sql_query=query), folder=folder / str(os.getpid()), remote=None)
            ids = list(range(0, len(index), 7))
            assert [row.values["n"] for row in index.rows(ids)] == [2 * i for i in ids]
            return index
        index = check()
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                assert index.rows([99_999])[0].key == "199998"
                assert len(pickle.loads(pickle.dumps(index))) == 100_000
                check()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        print("fine")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    assert done.stdout == "fine\n", done.stderr


def test_a_dictionary_column_in_place_is_read_as_values(tmp_path, open_):
    feather.write_feather(
        pa.table({"c": pa.array(["x", None, "x"]).dictionary_encode()}),
        tmp_path / "i.arrow",
        compression="uncompressed",
    )
    assert [row.values["c"] for row in open_(tmp_path / "i.arrow").rows([0, 1, 2])] == ["x", None, "x"]
