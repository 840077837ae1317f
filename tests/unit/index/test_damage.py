"""Files whose layout is whole and whose content is not: found when they are read, not when a row is."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from sds.errors import SourceError
from sds.index import readers
from sds.index.fingerprint import fingerprint

NOT_TEXT = pa.array([b"a", b"\xff\xfe"]).view(pa.string())  # what a mistaken writer, or a flipped bit, makes


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_text_that_is_no_unicode(tmp_path: Path, open_, suffix: str) -> None:
    table = pa.table({"index": ["0", "1"], "caption": NOT_TEXT})
    src = tmp_path / f"i.{suffix}"
    write = parquet.write_table if suffix == "parquet" else feather.write_feather
    write(table, str(src))
    with pytest.raises(SourceError, match=r"cannot be read: .*i\..*UTF8"):
        open_(src)


def test_text_in_json_that_is_no_unicode(tmp_path: Path, open_) -> None:
    (tmp_path / "i.jsonl").write_bytes(b'{"index": "0", "caption": "\xff"}\n')
    with pytest.raises(SourceError, match="cannot be read"):
        open_(tmp_path / "i.jsonl")


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl"])
@pytest.mark.parametrize("codec", ["gz", "bz2", "zst"])
def test_what_grows_without_end_when_it_is_decompressed(
    tmp_path: Path, open_, monkeypatch: pytest.MonkeyPatch, ending: str, codec: str
) -> None:
    monkeypatch.setattr(readers, "_MAX_UNPACKED_BYTES", 1 << 20)
    line = b'{"index": "0"}' if ending.startswith("json") else b"0" * 20
    src = tmp_path / f"i.{ending}.{codec}"
    for num_lines in (1, 200_000):
        lines = b"[" + b",\n".join([line] * num_lines) + b"]" if ending == "json" else b"\n".join([line] * num_lines)
        with pa.CompressedOutputStream(str(src), {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}[codec]) as file:
            file.write(lines if ending.startswith("json") else b"index\n" + lines)
        if num_lines == 1:
            assert len(open_(src)) == 1
    assert src.stat().st_size * 200 < len(lines)
    with pytest.raises(SourceError, match=r"too large when it is decompressed: .*i\..* became more than") as caught:
        open_(src)
    assert "decompress it and name the plain file" in str(caught.value) and str(src) in str(caught.value)


def test_offsets_in_a_buffer_of_odd_length() -> None:
    offsets = b"\0\0\0\0\1\0\0\0\3\0\0\0"
    longer = [pa.py_buffer(offsets + more) for more in (b"", b"7")]
    columns = [pa.StringArray.from_buffers(2, buffer, pa.py_buffer(b"abb")) for buffer in longer]
    plain, odd = (fingerprint(pa.table({"index": column}), salt="") for column in columns)
    assert plain == odd
