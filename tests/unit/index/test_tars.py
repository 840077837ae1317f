"""Tar shards: headers as tarfile writes and reads them, samples as WebDataset groups them, places that are exact."""

from __future__ import annotations

import io
import os
import pickle
import random
import tarfile

import pytest

import sds
import texts
from sds.errors import (
    CacheError,
    IntegrityError,
    OptionError,
    SchemaError,
    SourceError,
    SourceNotFound,
    UnsupportedSource,
)
from sds.fetch.spans import suffix_of
from sds.index.held import HeldPart
from sds.index.patterns import expand
from sds.index.tars import members
from sds.index.tars_members import BLOCK, Members, block_size, spans_of
from sds.testing.resume import Topology, check_resume


def write_tar(path, files, format=tarfile.GNU_FORMAT, pax=None):
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.pax_headers = pax or {}
            tar.addfile(info, io.BytesIO(content))
    return path


def read_members(path, **kwargs):
    data = path.read_bytes()
    reads = []

    def read(start, stop):
        reads.append(stop - start)
        return data[start:stop]

    return [(m.name, data[m.offset : m.offset + m.size]) for m in members(read, len(data), str(path), **kwargs)], reads


def sample(i):
    return [(f"{i:04}.cls", str(i % 7).encode()), (f"{i:04}.jpg", bytes([i % 256]) * (100 + i))]


@pytest.fixture
def shards(tmp_path):
    """Three shards with 10, 11 and 12 samples."""
    folder, first = tmp_path / "shards", 0
    folder.mkdir()
    for number in range(3):
        rows = range(first, first + 10 + number)
        write_tar(folder / f"s-{number:03}.tar", [file for i in rows for file in sample(i)])
        first = rows.stop
    return folder


@pytest.fixture
def make(tmp_path):
    def made(src, **options):
        return sds.StreamingDataset(src, tmp_path / "dst", **{"on_error": "raise", **options})

    return made


class TestHeaders:
    @pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    @pytest.mark.parametrize("is_far", [False, True])
    def test_are_those_that_tarfile_reads(self, tmp_path, format, is_far):
        choose = random.Random(1)
        names = ["a.txt", "d/b.txt", "x" * 98 + ".t", f"{'p' * 120}/{'n' * 80}.txt", "ö-ü.txt"]
        if format != tarfile.USTAR_FORMAT:
            names += [f"{'q' * 300}/{'m' * 300}.jpg"]
        files = [(name, choose.randbytes(choose.choice([0, 1, 511, 512, 513, 70_000]))) for name in names * 4]
        path = write_tar(tmp_path / "t.tar", files, format)
        with tarfile.open(path) as tar:
            assert [member.name for member in tar] == [name for name, _ in files], "the test's own premise"
        assert read_members(path, is_far=is_far)[0] == files

    def test_attributes_of_pax_count(self, tmp_path):
        path = write_tar(tmp_path / "t.tar", [("a.txt", b"x")], tarfile.PAX_FORMAT, {"path": "other/name.txt"})
        assert read_members(path)[0] == [("other/name.txt", b"x")]

    def test_of_what_is_no_file_are_passed_over(self, tmp_path):
        with tarfile.open(tmp_path / "t.tar", "w") as tar:
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
                info = tarfile.TarInfo("some.jpg")
                info.type, info.linkname = kind, "other"
                tar.addfile(info)
            info = tarfile.TarInfo("a.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
        assert read_members(tmp_path / "t.tar")[0] == [("a.txt", b"x")]

    def test_large_sizes_are_in_base_256(self):
        info = tarfile.TarInfo("a.bin")
        info.size = 20 << 30
        header = info.tobuf(tarfile.GNU_FORMAT)
        total = len(header) + info.size + 1024
        read = lambda start, stop: (header + bytes(stop))[start:stop] if start == 0 else bytes(stop - start)  # noqa: E731
        (member,) = members(read, total, "t.tar")
        assert member == ("a.bin", 512, 20 << 30)

    def test_large_members_are_hopped_over_and_small_ones_read_over(self, tmp_path):
        large = write_tar(tmp_path / "l.tar", [(f"{i}.bin", bytes(1 << 20)) for i in range(8)])
        _, reads = read_members(large, is_far=True)
        assert len(reads) <= 9 and sum(reads) < 9 * (33 << 10), "a request each, and nearly no bytes"
        small = write_tar(tmp_path / "s.tar", [(f"{i}.bin", bytes(20_000)) for i in range(400)])
        _, reads = read_members(small, is_far=True)
        assert len(reads) < 12, "few requests"

    @pytest.mark.parametrize("length", [512 + 100, 1024])
    def test_a_tar_without_an_end_is_one_if_its_members_are_whole(self, tmp_path, length, caplog):
        path = write_tar(tmp_path / "t.tar", [("a.txt", b"x" * 100), ("b.txt", b"y")])
        path.write_bytes(path.read_bytes()[:length])
        assert read_members(path)[0] == [("a.txt", b"x" * 100)]
        assert "tar has no end: members may be missing" in caplog.text
        path.write_bytes(path.read_bytes().ljust(1024, b"\0") + bytes(1024))
        caplog.clear()
        assert read_members(path)[0] == [("a.txt", b"x" * 100)] and caplog.text == ""

    def test_tars_behind_each_other_are_an_error(self, tmp_path):
        path = write_tar(tmp_path / "t.tar", [("a.txt", b"x")])
        data = path.read_bytes()
        path.write_bytes(data + data)
        with pytest.raises(SourceError, match=f"goes on after its end, at byte {len(data)}"):
            read_members(path)
        path.write_bytes(data + b"signed by me" * 100)
        assert read_members(path)[0] == [("a.txt", b"x")]

    def test_a_link_at_the_end_has_no_content_whatever_it_says(self, tmp_path):
        path = write_tar(tmp_path / "t.tar", [("a.txt", b"x")])
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname, link.size = tarfile.LNKTYPE, "a.txt", 100_000
        path.write_bytes(path.read_bytes()[:1024] + link.tobuf() + bytes(1024))
        assert read_members(path)[0] == [("a.txt", b"x")]

    @pytest.mark.parametrize("length", [1, 511, 512 + 99, 1024 + 100, 1024 + 511])
    def test_a_tar_that_is_cut_short_is_an_error(self, tmp_path, length):
        path = write_tar(tmp_path / "t.tar", [("a.txt", b"x" * 100), ("b.txt", b"y" * 600)])
        path.write_bytes(path.read_bytes()[:length])
        with pytest.raises(SourceError, match="tar cannot be read"):
            read_members(path)

    def test_what_is_no_tar_is_an_error(self, tmp_path):
        (tmp_path / "t.tar").write_bytes(random.Random(1).randbytes(5000))
        with pytest.raises(SourceError, match="no header at byte 0"):
            read_members(tmp_path / "t.tar")

    def test_any_damage_is_an_error_or_harmless(self, tmp_path):
        data = write_tar(tmp_path / "t.tar", [file for i in range(3) for file in sample(i)]).read_bytes()
        choose = random.Random(2)
        for _ in range(2000):
            broken = bytearray(data)
            for _ in range(choose.randint(1, 4)):
                broken[choose.randrange(len(broken))] = choose.randrange(256)
            length = choose.choice([len(broken), choose.randrange(len(broken))])
            try:
                found = list(members(lambda a, b: bytes(broken[a:b]), length, "t.tar"))  # noqa: B023
            except SourceError:
                continue
            assert all(member.offset + member.size <= length for member in found)


class TestSamples:
    def test_hold_the_bytes_of_their_members(self, shards, make):
        with make(shards) as ds:
            assert len(ds) == 33
            for i, found in enumerate(ds):
                assert found["jpg"] == sample(i)[1][1] and found["cls"] == sample(i)[0][1]
                assert found["__sample_key__"] == found["index"] == f"{i:04}"
            assert found["shard"] == "s-002.tar"
            assert ds[12]["jpg"] == sample(12)[1][1]

    @pytest.mark.parametrize("kind", ["wildcard", "braces", "list", "file list", "folder with more beside"])
    def test_may_be_named_in_every_way(self, shards, make, kind):
        (shards / "list.txt").write_text("s-000.tar\ns-001.tar\ns-002.tar\n")
        if kind == "folder with more beside":
            (shards / "sizes.json").write_text("{}")
        source = {
            "wildcard": shards / "*.tar",
            "braces": f"{shards}/s-{{000..002}}.tar",
            "list": [shards / f"s-00{i}.tar" for i in range(3)],
            "file list": shards / "list.txt",
            "folder with more beside": shards,
        }[kind]
        with make(source, columns_to_download=["jpg"]) as ds:
            assert texts.keys(ds) == [f"{i:04}" for i in range(33)]
            assert "cls" not in ds[0]

    def test_are_grouped_as_webdataset_does(self, tmp_path, make):
        files = ["a/one.jpg", "a/one.seg.PNG", "__meta__", "__info__/i.json", "two.jpg", "noextension"]
        files += ["x.y/three.jpg", "two.jpg", "a/._two.jpg", "a/.DS_Store", "._x.jpg"]
        write_tar(tmp_path / "t.tar", [(name, name.encode()) for name in files])
        with make(tmp_path / "t.tar", allow_missing_columns=True) as ds:
            assert [s["__sample_key__"] for s in ds] == [f"t/{key}" for key in ("a/one", "two", "x.y/three", "two")]
            assert ds[0]["seg.png"] == b"a/one.seg.PNG" and ds[1]["seg.png"] is None

    def test_that_lack_an_extension_are_left_out_and_counted(self, tmp_path, make):
        write_tar(tmp_path / "t.tar", [*sample(0), ("0001.jpg", b"x"), *sample(2)])
        with make(tmp_path / "t.tar") as ds:
            assert texts.keys(ds) == ["0000", "0002"]
            assert "left out: 1 rows" in ds.explain()
        assert len(make(tmp_path / "t.tar", columns_to_download=["jpg"])) == 3

    def test_with_one_id_in_several_shards_are_told_apart(self, tmp_path, make):
        for name in ("a", "b"):
            write_tar(tmp_path / f"{name}.tar", [*sample(0), *sample(1)])
        with make(tmp_path / "*.tar") as ds:
            assert texts.keys(ds) == ["a/0000", "a/0001", "b/0000", "b/0001"]

    def test_are_shuffled_over_all_shards_and_resumed_exactly(self, shards, make):
        with make(shards, shuffle_seed=1) as ds:
            order = texts.keys(ds)
            assert sorted(order) == [f"{i:04}" for i in range(33)] and order != sorted(order)

        def loader(topology, world):
            ds = make(shards / "s-000.tar", shuffle_seed=1)
            return sds.StreamingDataLoader(ds, topology.batch_size, world=world)

        assert check_resume(loader, [Topology(1, 4), Topology(2, 3)]) > 10

    def test_can_be_queried_by_id_and_size(self, shards, make):
        query = "SELECT * FROM dataframe WHERE jpg.size >= 120 AND shard = 's-001.tar' ORDER BY jpg.size DESC"
        with make(shards, sql_query=query) as ds:
            assert texts.keys(ds) == ["0020"]
            assert ds[0]["jpg"] == sample(20)[1][1]
        query = 'SELECT "index", jpg FROM dataframe LIMIT 5'
        with make(shards, sql_query=query, columns_to_download=["jpg"]) as ds:
            assert ds[4]["jpg"] == sample(4)[1][1] and len(ds) == 5

    def test_without_downloads_are_metadata(self, shards, make):
        with make(shards, columns_to_download=[]) as ds:
            assert {name for name in ds[0] if not name.startswith("__")} == {"index", "shard"}

    def test_pre_download_transforms_choose_and_rename(self, shards, make):
        def choose(row):
            row["image"] = row.pop("jpg")
            del row["cls"]
            return row

        with make(shards, pre_download_transforms=[choose]) as ds:
            assert ds[3]["image"] == sample(3)[1][1]
            assert "cls" not in ds[3] and "jpg" not in ds[3]

    def test_travel_into_a_copy(self, shards, make):
        assert pickle.loads(pickle.dumps(make(shards)))[5]["jpg"] == sample(5)[1][1]

    def test_an_empty_member_is_empty_bytes(self, tmp_path, make):
        write_tar(tmp_path / "t.tar", [("a.txt", b""), ("a.jpg", b"x")])
        with make(tmp_path / "t.tar") as ds:
            assert ds[0]["txt"] == b"" and ds[0]["jpg"] == b"x"


class TestIdentity:
    def test_a_changed_shard_is_indexed_anew(self, shards, make):
        before = make(shards).fingerprint
        assert make(shards).fingerprint == before
        write_tar(shards / "s-001.tar", sample(99))
        with make(shards) as ds:
            assert len(ds) == 23 and ds.fingerprint != before

    def test_a_shard_that_changes_under_a_dataset_is_an_error(self, shards, make):
        with make(shards) as ds:
            assert ds[0]["jpg"]
            os.utime(shards / "s-000.tar", ns=(1, 1))
            with pytest.raises(SourceError, match="changed since it was indexed"):
                ds[0]
            (shards / "s-001.tar").unlink()
            with pytest.raises(SourceNotFound, match="gone"):
                ds[10]

    def test_rows_have_the_version_of_their_shard(self, shards, open_):
        (row,) = open_(shards).rows([12])
        assert set(row.versions) == {"cls", "jpg"}
        assert row.versions["jpg"].startswith(f"{(shards / 's-001.tar').stat().st_size}-")

    def test_the_fingerprint_does_not_depend_on_the_place(self, shards, make, tmp_path):
        before = make(shards).fingerprint
        moved = shards.rename(tmp_path / "elsewhere")
        assert make(moved).fingerprint == before


class TestRefusals:
    @pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "a.tar.zst"])
    def test_compressed_tars(self, tmp_path, make, name):
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / name).write_bytes(b"x")
        for src in (tmp_path / "d" / name, tmp_path / "d"):
            with pytest.raises(UnsupportedSource, match="tar is compressed") as caught:
                make(src)
            assert "decompress" in caught.value.hint

    def test_tars_beside_tables(self, shards, make):
        (shards / "t.csv").write_text("index\na\n")
        with pytest.raises(UnsupportedSource, match="mixed"):
            make([shards / "s-000.tar", shards / "t.csv"])

    def test_an_extension_that_is_not_there(self, shards, make):
        with pytest.raises(SchemaError, match="'png'") as caught:
            make(shards, columns_to_download=["png"])
        assert "jpg" in caught.value.hint

    def test_a_shard_that_is_not_there(self, shards, make):
        with pytest.raises(SourceNotFound, match=r"s-003\.tar"):
            make(f"{shards}/s-{{000..003}}.tar")

    def test_an_extension_with_the_name_of_a_column(self, tmp_path, make):
        write_tar(tmp_path / "t.tar", [("a.shard", b"x")])
        with pytest.raises(SchemaError, match="'shard'"):
            make(tmp_path / "t.tar")

    def test_two_members_with_one_name(self, tmp_path, make):
        write_tar(tmp_path / "t.tar", [("a.jpg", b"x"), ("a.JPG", b"y")])
        with pytest.raises(SourceError, match="two members"):
            make(tmp_path / "t.tar")

    def test_a_tar_without_samples(self, tmp_path, make):
        write_tar(tmp_path / "t.tar", [])
        with pytest.raises(SourceError, match="no rows"):
            make(tmp_path / "t.tar")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", []),
        ("a-{00..02}.tar", ["a-00.tar", "a-01.tar", "a-02.tar"]),
        ("a-{8..10}.tar", ["a-8.tar", "a-9.tar", "a-10.tar"]),
        ("a-{x,y}-{0..1}", ["a-x-0", "a-y-0", "a-x-1", "a-y-1"]),
        ("a-{x}.tar", []),
    ],
)
def test_braces_stand_for_names(pattern, names):
    assert sorted(expand(pattern)) == sorted(names)


@pytest.mark.parametrize("pattern", ["{0..99999999}", "{5..1}", "{0..9999}{0..9999}"])
def test_braces_that_are_impossible_are_refused(pattern):
    with pytest.raises(OptionError):
        expand(pattern)


def test_members_beside_each_other_are_one_span():
    place = lambda offset, size: {"offset": offset, "size": size}  # noqa: E731
    assert spans_of([place(1024, 10), place(0, 500)]) == [(0, 1034)]
    assert spans_of([place(0, 500), place(1 << 20, 10)]) == [(0, 500), (1 << 20, (1 << 20) + 10)]
    assert spans_of([place(512, 0)]) == []


GB, MB = 1 << 30, 1 << 20


@pytest.mark.parametrize(
    ("total", "wanted", "num_samples", "limit", "is_block"),
    [
        (GB, GB, 10_000, None, True),
        (GB, GB, 10_000, 10 * GB, True),
        (GB, GB, 10_000, GB, False),  # no room for all
        (GB, GB // 10, 10_000, None, False),  # few of the bytes are wanted
        (GB, GB, 100, None, False),  # samples of 10 MB
    ],
)
def test_blocks_are_for_small_samples_of_shards_that_fit(total, wanted, num_samples, limit, is_block):
    assert block_size(total, wanted, num_samples, limit) == (BLOCK if is_block else None)


class TestRemoteMembers:
    URL = "s3://bucket/t.tar"

    def fetched(self, tmp_path, files, data, tag="v1"):
        """The spans that were asked for, as the cache names them."""
        paths = []
        for file in files:
            path = tmp_path / f"{file.span[0]}{suffix_of(len(data), tag)}"
            path.write_bytes(data[slice(*file.span)])
            paths.append(str(path))
        return paths

    @pytest.mark.parametrize("block", [None, 1000, 4096, 1 << 20])
    def test_are_cut_out_of_what_was_fetched(self, tmp_path, block):
        data = random.Random(1).randbytes(20_000)
        shard = Members([HeldPart(self.URL, "v1", len(data))], block)
        for start in range(0, 19_000, 700):
            sizes = {"a": (start, 10), "b": (start + 10, 900), "c": (start + 500, 0), "d": (19_999, 1)}
            places = {name: {"part": 0, "offset": at, "size": size} for name, (at, size) in sizes.items()}
            files = shard.files(places)
            assert len(set(files)) == len(files)
            content = shard.read(places, files, self.fetched(tmp_path, files, data))
            assert content == {name: data[at : at + size] for name, (at, size) in sizes.items()}

    @pytest.mark.parametrize(
        ("sizes", "spans"),
        [
            ([(0, 10), (900, 100)], [(0, 1000)]),  # up to the end of a block
            ([(1000, 1)], [(1000, 2000)]),
            ([(900, 101)], [(0, 1000), (1000, 2000)]),
            ([(900, 10), (1990, 11)], [(0, 1000), (1000, 2000), (2000, 3000)]),
            ([(5000, 0)], []),  # nothing, at the end of the shard: there is no block
            ([(100, 10), (5000, 0)], [(0, 1000)]),
        ],
    )
    def test_are_in_these_blocks(self, sizes, spans):
        shard = Members([HeldPart(self.URL, "v1", 5000)], 1000)
        places = {str(at): {"part": 0, "offset": at, "size": size} for at, size in sizes}
        assert [file.span for file in shard.files(places)] == spans

    def test_may_come_out_of_a_whole_copy(self, tmp_path):
        data = random.Random(1).randbytes(5000)
        (tmp_path / "whole.tar").write_bytes(data)
        shard = Members([HeldPart(self.URL, "v1", len(data))], 1000)
        places = {"a": {"part": 0, "offset": 900, "size": 1200}}
        files = shard.files(places)
        assert [file.span for file in files] == [(0, 1000), (1000, 2000), (2000, 3000)]
        assert shard.read(places, files, [str(tmp_path / "whole.tar")] * 3) == {"a": data[900:2100]}

    def test_of_a_span_that_was_cut_short_are_an_error(self, tmp_path):
        data = bytes(5000)
        shard = Members([HeldPart(self.URL, "v1", len(data))])
        places = {"a": {"part": 0, "offset": 0, "size": 10}, "b": {"part": 0, "offset": 1000, "size": 10}}
        files = shard.files(places)
        (path,) = self.fetched(tmp_path, files, data)
        assert shard.read(places, files, [path]) == {"a": bytes(10), "b": bytes(10)}
        os.truncate(path, 1005)
        with pytest.raises(IntegrityError, match="shorter"):
            shard.read(places, files, [path])

    def test_of_another_object_or_lost_are_errors(self, tmp_path):
        data = bytes(5000)
        shard = Members([HeldPart(self.URL, "v1", len(data) + 1)])
        places = {"a": {"part": 0, "offset": 0, "size": 10}}
        files = shard.files(places)
        with pytest.raises(IntegrityError, match="5000 bytes, not the 5001"):
            shard.read(places, files, self.fetched(tmp_path, files, data))
        with pytest.raises(CacheError, match="cannot be read"):
            shard.read(places, files, [str(tmp_path / "gone")])
