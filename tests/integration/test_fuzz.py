"""A few hundred broken indexes, cache folders and messages of each kind; `make fuzz` has 100,000."""

from __future__ import annotations

import os

import pytest

import fuzz_index

COUNT = int(os.environ.get("SDS_FUZZ_CASES", "150"))  # of each kind


@pytest.mark.timeout(120 + COUNT)
def test_what_is_broken_is_used_or_refused() -> None:
    lanes = [list(fuzz_index.KINDS[::2]), list(fuzz_index.KINDS[1::2])]
    running = [fuzz_index.start(lane, COUNT, seed=1) for lane in lanes]
    try:
        for lane, process in zip(lanes, running, strict=True):
            assert len(fuzz_index.finish(process).splitlines()) == len(lane)
    finally:
        for process in running:
            process.kill()
            process.wait()
