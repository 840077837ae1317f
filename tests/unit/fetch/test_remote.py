"""An object that may be read by ranges, where a whole copy was there from the start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sds.fetch import RemoteFile

URL = "https://host/clip.wav?X-Amz-Signature=secret"


@pytest.fixture
def whole(tmp_path: Path) -> RemoteFile:
    (tmp_path / "clip.wav").write_bytes(b"0123456789")
    return RemoteFile.at(str(tmp_path / "clip.wav"), URL, 10)


def test_it_is_read_from_the_copy(whole: RemoteFile) -> None:
    assert whole.open().read() == b"0123456789" and whole.read_at(8, 10) == b"89"
    whole.expect([(0, 5)])
    assert os.fspath(whole) == whole.path and Path(whole).read_bytes() == b"0123456789"
    assert (whole.url, whole.is_ranged, whole.fell_back, whole.error) == (URL, False, False, None)
    whole.close()


def test_whoever_takes_it_for_text_is_told_what_to_do(whole: RemoteFile) -> None:
    with pytest.raises(AttributeError, match=r"'replace'.*os\.fspath\(\).*remote='whole'"):
        whole.replace(".wav", ".json")  # type: ignore[attr-defined]
    assert not hasattr(whole, "encode")
    assert str(whole).startswith("https://host/clip.wav") and "secret" not in str(whole)
