"""The example of a mix runs, keeps its shares, and goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path


def test_mixed_streams(tmp_path: Path, run_example):
    def run(name: str, steps: int) -> list[str]:
        words = ("--steps", str(steps), "--checkpoint", str(tmp_path / name))
        return run_example("mixed_streams.py", *words).splitlines()

    def streams(lines: list[str]) -> list[str]:
        return [line.partition(" loss")[0] for line in lines if line.startswith("step ")]

    whole = run("whole.pt", 20)
    assert whole[-1] == "steps by stream: images 10, videos 6, latents 4"
    first, second = run("parts.pt", 7), run("parts.pt", 20)
    assert second[0] == "going on at step 7" and second[-1] == whole[-1]
    assert streams(first) + streams(second) == streams(whole)
    assert any("videos (video) (2, 3, 4, 32, 32)" in line for line in whole)
