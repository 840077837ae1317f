"""The examples with videos run, and print what they promise."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("name", "lines", "expected"),
    [
        ("video.py", 6, "epoch 1: (4, 8, 3, 64, 64) torch.uint8: "),
        ("audio_video.py", 4, "a .wav beside it: video (4, 12, 3, 48, 48), sound (4, 1, 16000), 1.0 s each"),
        (
            "video_to_video_on_shared_timestamps.py",
            2,
            "source (4, 6, 3, 64, 64), target (4, 6, 3, 32, 32), at most 0.0",
        ),
    ],
)
def test_an_example_with_videos_runs(name: str, lines: int, expected: str, run_example) -> None:
    out = run_example(name)
    assert len(out.splitlines()) == lines
    assert expected in out
