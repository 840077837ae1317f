"""2,000 broken files of each kind: a clip or a DecodeError, soon, in little memory; `make fuzz-media` has 10,000."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fuzz_media

COUNT = int(os.environ.get("SDS_FUZZ_FILES", "1000"))


@pytest.mark.timeout(120 + COUNT // 5)
def test_broken_media_only_ever_give_a_decode_error(tmp_path: Path) -> None:
    kinds = list(fuzz_media.KINDS)
    lanes = [["h264", "hevc", "av1", "wav", "mp3", "aac"], ["ts", "vp9", "mpeg4", "flac", "vorbis"]]
    assert sorted([*lanes[0], *lanes[1]]) == sorted(kinds)
    running = []
    try:
        for number, lane in enumerate(lanes):
            folder = tmp_path / str(number)
            folder.mkdir()
            running.append((lane, folder, fuzz_media.start(lane, folder, COUNT, seed=1)))
        for lane, folder, process in running:
            assert len(fuzz_media.finish(lane, folder, process).splitlines()) == len(lane)
    finally:
        for _, _, process in running:
            process.kill()
            process.wait()
