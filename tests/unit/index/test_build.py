"""What is built is built once, kept under the identity of its source, and used in place where nothing has to change."""

import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from sds.errors import CacheError, OptionError, SourceError
from sds.index import IndexOptions, open_index
from sds.index import lock as lock_module
from sds.index.lock import held


def files(folder: Path) -> list[str]:
    return sorted(p.suffix for p in folder.iterdir())


@pytest.fixture
def dst(tmp_path):
    return tmp_path / "dst" / "index"


def write_csv(path, *ids):
    path.parent.mkdir(exist_ok=True)
    path.write_text("index\n" + "".join(f"{i}\n" for i in ids))
    return path


def test_a_warm_open_reads_nothing_of_the_source(tmp_path, dst, open_, keys, monkeypatch):
    path = write_csv(tmp_path / "i.csv", "a", "b")
    cold = open_(path)
    monkeypatch.setattr("sds.index.opening._build", lambda *args: pytest.fail("built again"))
    warm = open_(path)
    assert keys(warm) == ["a", "b"] and warm.fingerprint == cold.fingerprint and warm.facts == cold.facts
    assert files(dst) == [".arrow"]  # no lock, no temporary file


def test_a_changed_source_is_noticed(tmp_path, open_, keys):
    path = write_csv(tmp_path / "i.csv", "a")
    first = open_(path)
    write_csv(path, "a", "b")
    second = open_(path)
    assert keys(second) == ["a", "b"] and first.fingerprint != second.fingerprint
    assert keys(first) == ["a"]  # what is open stays as it was
    stat = path.stat()
    replacement = write_csv(tmp_path / "other.csv", "c", "d")
    os.utime(replacement, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    replacement.replace(path)  # same size, same time, another file
    assert keys(open_(path)) == ["c", "d"]


def test_two_datasets_in_one_folder_do_not_meet(tmp_path, dst, open_, keys):
    one = open_(write_csv(tmp_path / "one" / "i.csv", "a"))
    two = open_(write_csv(tmp_path / "two" / "i.csv", "b"))
    assert (keys(one), keys(two)) == (["a"], ["b"])
    assert keys(open_(tmp_path / "one" / "i.csv")) == ["a"]
    for options in ({"max_size": 1}, {"index_cols_to_keep": []}, {"sql_query": "FROM dataframe"}):
        assert keys(open_(tmp_path / "two" / "i.csv", **options)) == ["b"]
    assert len(files(dst)) == 5


def test_a_small_parquet_that_needs_no_change_is_used_where_it_lies(tmp_path, dst, open_, values):
    path = tmp_path / "i.parquet"
    parquet.write_table(pa.table({"index": ["a", "b"], "url": ["/a", "s3://b/b"], "n": [1, 2]}), path)
    for _ in range(2):
        index = open_(path, columns_to_download=["url"], index_cols_to_keep=[], max_size=1)
        assert values(index) == [{"index": "a", "url": "/a"}]
        assert index.facts.in_place and index.facts.path == str(path)
    assert files(dst) == [".json"]


def test_a_parquet_that_needs_a_change_is_converted(tmp_path, dst, open_, monkeypatch):
    path = tmp_path / "i.parquet"
    parquet.write_table(pa.table({"index": ["a", None], "url": ["/a", "b"], "n": ["", "x"]}), path)
    assert not open_(path, columns_to_download=["url"]).facts.in_place  # a relative path
    assert not open_(path).facts.in_place  # a row without an id
    assert open_(path, index_col_name="url").facts.in_place
    assert not open_(path, columns_to_download=["n"], index_col_name="url").facts.in_place  # a row left out
    assert not open_(path, index_col_name="url", sql_query="FROM dataframe").facts.in_place
    monkeypatch.setattr("sds.index.opening._MAX_PARQUET_BYTES", 10)
    assert not open_(path, index_col_name="url", max_size=2).facts.in_place  # too large to decode in every process


def test_arrow_files_are_mapped_where_they_lie_unless_compressed(tmp_path, dst, open_, values):
    table = pa.table({"index": ["a", "b"], "n": [1, None], "c": pa.array(["x", "y"]).dictionary_encode()})
    for name, compression in (("i.arrow", "uncompressed"), ("i.feather", "zstd")):
        feather.write_feather(table, tmp_path / name, compression=compression)
        index = open_(tmp_path / name)
        assert values(index) == table.to_pylist()
        assert index.facts.in_place == (compression == "uncompressed")


def test_a_source_used_in_place_that_changes_is_an_error_for_a_pickled_index(tmp_path, open_):
    path = tmp_path / "i.parquet"
    parquet.write_table(pa.table({"index": ["a"]}), path)
    data = pickle.dumps(open_(path))
    assert len(pickle.loads(data)) == 1
    parquet.write_table(pa.table({"index": ["b", "c"]}), path)
    with pytest.raises(SourceError, match="changed"):
        pickle.loads(data)


def test_a_source_that_changes_while_it_is_read_is_noticed(tmp_path, open_, monkeypatch):
    from sds.index import gather

    read = gather.read_index_file

    def read_and_change(path, *args, **kwargs):
        result = read(path, *args, **kwargs)
        parquet.write_table(pa.table({"index": ["b"]}), path)
        return result

    path = tmp_path / "i.parquet"
    parquet.write_table(pa.table({"index": ["a"]}), path)
    monkeypatch.setattr(gather, "read_index_file", read_and_change)
    with pytest.raises(SourceError, match="changed since"):
        open_(path)


def test_tables_of_earlier_versions_go_when_they_are_long_unused(tmp_path, dst, open_, keys):
    path, other = tmp_path / "i.csv", write_csv(tmp_path / "o" / "i.csv", "x")
    eight_days_ago = time.time() - 8 * 24 * 3600

    def built():
        return set(dst.glob("*.arrow"))

    open_(other)
    open_(write_csv(path, "a", "b"), max_size=1)
    others = built()  # of another source, and of other options
    used = open_(write_csv(path, "a"))
    (table,) = built() - others
    open_(write_csv(path, "b", "b"))
    (unused,) = built() - others - {table}
    for each in built():
        os.utime(each, (eight_days_ago, eight_days_ago))
    assert keys(pickle.loads(pickle.dumps(used))) == ["a"]  # a worker opens it again
    assert keys(open_(write_csv(path, "c", "c", "c"))) == ["c", "c", "c"]
    assert {table, *others} < built() and not unused.exists() and len(built()) == len(others) + 2
    assert keys(used) == ["a"]


def test_notes_of_earlier_versions_go_too(tmp_path, dst, open_):
    for name in ("a", "b"):
        parquet.write_table(pa.table({"index": [name]}), tmp_path / "i.parquet")
        for note in dst.glob("*.json"):
            os.utime(note, (0, 0))
        open_(tmp_path / "i.parquet")
    assert files(dst) == [".json"]


@pytest.mark.parametrize("src", [lambda ids: ids, type("Provider", (), {"rows": lambda self, ids: []})()])
def test_data_providers_are_no_tables(open_, src):
    with pytest.raises(OptionError, match="data provider, which has no files"):
        open_(src)


def test_a_damaged_table_is_built_anew(tmp_path, dst, open_, keys):
    path = write_csv(tmp_path / "i.csv", "a")
    built = Path(open_(path).facts.path)
    for content in (b"", b"ARROW1", built.read_bytes()[:-100]):
        built.write_bytes(content)
        assert keys(open_(path)) == ["a"]


def test_a_moved_folder_still_serves(tmp_path, dst, open_, keys, monkeypatch):
    path = write_csv(tmp_path / "i.csv", "a")
    open_(path)
    dst.parent.rename(tmp_path / "moved")
    monkeypatch.setattr("sds.index.opening._build", lambda *args: pytest.fail("built again"))
    assert keys(open_(path, folder=tmp_path / "moved" / "index")) == ["a"]


def test_a_folder_that_cannot_be_used(tmp_path, open_):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"(?s)file.*hint"):
        open_(write_csv(tmp_path / "i.csv", "a"), folder=tmp_path / "file" / "index")


def open_in_process(src, folder, barrier, results):
    barrier.wait()
    from sds.index import build

    original = build.draft

    def counted(*args, **kwargs):
        time.sleep(0.2)
        results.put("built")
        return original(*args, **kwargs)

    build.draft = counted
    index = open_index(src, IndexOptions(), folder=folder, remote=None)
    results.put([row.key for row in index.rows(range(len(index)))])


def test_many_processes_build_once(tmp_path, dst):
    path = write_csv(tmp_path / "i.csv", "a", "b")
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(5), context.Queue()
    workers = [context.Process(target=open_in_process, args=(path, dst, barrier, results)) for _ in range(5)]
    for worker in workers:
        worker.start()
    answers = [results.get(timeout=20) for _ in range(6)]
    for worker in workers:
        worker.join(20)
    assert answers.count("built") == 1 and answers.count(["a", "b"]) == 5
    assert files(dst) == [".arrow"]


def hold(path, ready):
    with held(path, timeout_s=1):
        scratch = path.with_suffix(".tmp")
        scratch.mkdir()
        (scratch / "half").write_text("written")
        ready.set()
        time.sleep(60)


def start_holder(path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=hold, args=(path, ready))
    holder.start()
    assert ready.wait(20)
    return holder


def test_a_waiter_names_the_lock_and_its_holder(tmp_path, dst):
    path = write_csv(tmp_path / "i.csv", "a")
    dst.mkdir(parents=True)
    open_index(path, IndexOptions(), folder=dst, remote=None)
    built = next(dst.iterdir())
    built.unlink()
    lock = built.with_suffix(".lock")
    holder = start_holder(lock)
    try:
        with pytest.raises(CacheError, match=f"(?s){lock.name}.*pid {holder.pid}.*hint"):
            open_index(path, IndexOptions(), folder=dst, remote=None, timeout_s=0.1)
        os.kill(holder.pid, signal.SIGKILL)  # a builder that dies lets go, and leaves nothing
        index = open_index(path, IndexOptions(), folder=dst, remote=None, timeout_s=10)
        assert len(index) == 1 and files(dst) == [".arrow"]
    finally:
        holder.kill()
        holder.join()


def test_what_killed_builders_of_other_indexes_left_is_cleared_unless_they_live(tmp_path, dst, open_):
    dst.mkdir(parents=True)
    dead, alive = start_holder(dst / "dead.lock"), start_holder(dst / "alive.lock")
    try:
        dead.kill()
        dead.join()
        open_(write_csv(tmp_path / "i.csv", "a"))
        assert files(dst) == [".arrow", ".lock", ".tmp"] and (dst / "alive.tmp" / "half").exists()
    finally:
        alive.kill()
        alive.join()


def test_a_lock_is_held_by_one(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "_POLL_S", 0.001)
    path = tmp_path / "x.lock"
    with held(path, timeout_s=1), pytest.raises(CacheError), held(path, timeout_s=0):
        pass
    with held(path, timeout_s=0):
        assert path.exists()
    assert not path.exists()


def test_a_failed_build_leaves_nothing(tmp_path, dst, open_):
    with pytest.raises(Exception, match="no rows"):
        open_(write_csv(tmp_path / "i.csv"))
    assert files(dst) == []
