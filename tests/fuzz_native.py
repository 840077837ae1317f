"""Resizing in C, compiled with the sanitizers of addresses and of undefined behaviour, on shapes that are drawn.

    python tests/fuzz_native.py --count 6000

Compiles `_native.c` into a temporary folder with gcc, and starts itself once more with the sanitizers loaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "sds" / "transforms" / "_native.c"
FLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def build_and_run(count: int) -> int:
    """The exit code of the run under the sanitizers."""
    compiler = os.environ.get("CC", "gcc")
    with tempfile.TemporaryDirectory() as folder:
        include = f"-I{sysconfig.get_paths()['include']}"
        library = str(Path(folder) / "_native.so")
        subprocess.run([compiler, *FLAGS, *CHECKS, include, "-o", library, str(SOURCE)], check=True)
        names = ("libasan.so", "libubsan.so")
        loaded = [
            subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
            for name in names
        ]
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(map(str.strip, loaded)),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own, at its end
            "PYTHONPATH": folder,
        }
        command = [sys.executable, __file__, "--count", str(count), "--inside"]
        return subprocess.run(command, env=environment, check=False).returncode


def run(count: int) -> None:
    """Each shape by every way, which must agree: parts of pictures, upside down, either filter, some very long."""
    import _native
    import numpy as np

    drawn = np.random.default_rng(1)
    for number in range(count):
        most = drawn.choice([5, 40, 200, 500])
        sides = [int(side) for side in drawn.integers(1, most, 4)]
        if number % 20 == 0:
            sides[drawn.integers(4)] = int(drawn.integers(1, 5000))
        height, width, new_height, new_width = sides
        channels, gap = int(drawn.integers(1, 6)), int(drawn.integers(0, 4))
        whole = np.frombuffer(drawn.bytes(height * (width + gap) * channels), np.uint8).reshape(height, -1, channels)
        image = whole[:: int(drawn.choice([1, -1])), gap // 2 : gap // 2 + width]
        mode, results = ("bilinear", "bicubic")[drawn.integers(2)], []
        for way in _native.WAYS:
            results.append(np.empty((channels, new_height, new_width), np.uint8))
            _native.resample(image, results[-1], mode, way)
        assert all(np.array_equal(result, results[0]) for result in results), (image.shape, sides, mode)
    sys.stdout.write(f"{count} shapes, each by {', '.join(_native.WAYS)}: nothing found\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        run(given.count)
    else:
        sys.exit(build_and_run(given.count))
