"""What is in C, compiled with the sanitizers of addresses and of undefined behaviour: JPEG files, pictures, files.

    python tests/fuzz_native.py --count 6000

Compiles all of it into a temporary folder with gcc, and starts itself once more with the sanitizers loaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOM = Path(__file__).parents[1] / "src" / "sds"
SOURCES = {
    "_native": [ROOM / "transforms" / name for name in ("_native.c", "_header.c", "_jpeg.c", "_samples.c")],
    "_files": [ROOM / "_files.c"],
}
FLAGS = ["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-shared", "-fPIC"]
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def build_and_run(count: int) -> int:
    """The exit code of the run under the sanitizers."""
    compiler = os.environ.get("CC", "gcc")
    with tempfile.TemporaryDirectory() as folder:
        include = f"-I{sysconfig.get_paths()['include']}"
        for name, sources in SOURCES.items():
            library = str(Path(folder) / f"{name}.so")
            subprocess.run([compiler, *FLAGS, *CHECKS, include, "-o", library, *map(str, sources)], check=True)
        names = ("libasan.so", "libubsan.so")
        loaded = [
            subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
            for name in names
        ]
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(map(str.strip, loaded)),
            "ASAN_OPTIONS": "detect_leaks=0",  # the interpreter's own, at its end
            "PYTHONMALLOC": "malloc",  # each object by itself, or what lies beside it would hide a wrong step
            "PYTHONPATH": folder,
        }
        command = [sys.executable, __file__, "--count", str(count), "--inside"]
        return subprocess.run(command, env=environment, check=False).returncode


def scan_headers(count: int) -> None:
    """JPEG headers, cut short or with wrong bytes, each in memory of its own, which ends one byte after it."""
    import _native
    import numpy as np

    drawn = np.random.default_rng(2)
    sizes = b"\x08\x01\x77\x01\xf4\x03" + bytes(9)
    whole = b"\xff\xd8\xff\xe1\0\x20Exif\0\0" + bytes(24) + b"\xff\xdb\0\x05abc\xff\xc0\0\x11" + sizes + b"\xff\xda"
    assert _native.scan_jpeg(whole + b"\0\0") == (375, 500, 3, 8, False, b"Exif\0\0" + bytes(24))
    num_found = 0
    for _ in range(count):
        data = bytearray(whole + drawn.bytes(int(drawn.integers(0, 40))))
        for at in drawn.integers(0, len(data), int(drawn.integers(0, 4))):
            data[at] = drawn.choice([0, 1, 2, 0xC0, 0xC2, 0xE1, 0xFF, int(drawn.integers(256))])
        num_found += _native.scan_jpeg(bytes(data[: int(drawn.integers(0, len(data) + 1))])) is not None
    assert 0 < num_found < count
    sys.stdout.write(f"{count} headers, {num_found} of them usual: nothing found\n")


def decode_files(count: int) -> None:
    """JPEG files of many kinds, most of them cut short or with wrong bytes, and any part of them.

    File and pixels are each in memory of their own, which ends with them.
    """
    import io

    import _native
    import numpy as np
    from PIL import Image

    if not _native.DECODES:
        sys.stdout.write("JPEG files are others' on this processor\n")
        return
    drawn = np.random.default_rng(4)
    num_made = num_changed = 0
    for number in range(count):
        if number % 10 == 0:  # another picture
            height, width = (int(side) for side in drawn.integers(16, drawn.choice([40, 200]), 2))
            grain = drawn.choice([1, 30, 256])
            picture = drawn.integers(0, grain, (height, width, 3), np.uint8) + np.uint8(drawn.integers(0, 257 - grain))
            options = {"quality": int(drawn.integers(1, 101)), "subsampling": int(drawn.integers(0, 3))}
            more = drawn.choice([{}, {"optimize": True}, {"restart_marker_blocks": int(drawn.integers(1, 9))}])
            stream = io.BytesIO()
            Image.fromarray(picture).save(stream, "JPEG", **options, **more)
            whole = stream.getvalue() + bytes(drawn.choice([0, 4096]))  # short ones with tables of their own are left
        data = bytearray(whole)
        is_whole = number % 10 < 2
        if not is_whole:
            scan = data.find(b"\xff\xda")
            for _ in range(int(drawn.integers(1, 5))):
                first, end = (2, scan) if drawn.random() < 0.5 else (scan, len(data))
                data[int(drawn.integers(first, end))] = drawn.integers(256)
            if drawn.random() < 0.3:
                del data[int(drawn.integers(2, len(data))) :]
        top, left = int(drawn.integers(height)), int(drawn.integers(width))
        part = top, left, int(drawn.integers(1, height - top + 1)), int(drawn.integers(1, width - left + 1))
        found = _native.decode_jpeg(bytes(data), np.empty((height, width, 3), np.uint8), part)
        assert found or not is_whole or len(data) < 4096, "a file of the usual kind"
        num_made += found
        num_changed += found and not is_whole
    assert 0 < num_changed < num_made < count
    sys.stdout.write(f"{count} JPEG files, {num_made} of them decoded, {num_changed} though changed: nothing found\n")


def handle_files(count: int) -> None:
    """Files of any size, in any number of chunks, and what cannot be read or written."""
    import _files
    import numpy as np

    drawn = np.random.default_rng(3)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            most = int(drawn.choice([10, 5000, 100_000]))
            chunks = [drawn.bytes(int(size)) for size in drawn.integers(0, most, int(drawn.integers(0, 5)))]
            _files.write_file(folder, "draft", "name", chunks if number % 2 else [memoryview(c) for c in chunks])
            size, is_file, data = _files.read_file(f"{folder}/name", int(drawn.choice([100, 10**9])))
            assert is_file and size == sum(map(len, chunks)) and data in (None, b"".join(chunks))
            for wrong in ((f"{folder}/none", "draft", "name", chunks), (folder, "draft", "name", [*chunks, None])):
                try:
                    _files.write_file(*wrong)
                except (OSError, TypeError):
                    continue
                raise AssertionError(wrong)
    sys.stdout.write(f"{count} files: nothing found\n")


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
        scan_headers(10 * given.count)
        decode_files(5 * given.count)
        handle_files(given.count)
        run(given.count)
    else:
        sys.exit(build_and_run(given.count))
