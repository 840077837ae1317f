"""Sources for tests of the viewer, and a viewer over one: images, clips, sounds, a hundred million rows."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from media_files import ffmpeg
from sds.cli.view import Opener
from sds.testing.media import make_images
from sds.view.gallery import Gallery
from sds.view.server import Viewer
from sds.view.shelf import Shelf

__all__ = ["HUGE_CHUNK", "Answer", "get", "huge", "make_clips", "make_photos", "served"]

ROWS_IN_FILE = 1_000_000
HUGE_CHUNK = 20_000


class Answer(NamedTuple):
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def get(url: str, **headers: str) -> Answer:
    """What a server answers, whatever it is."""
    request = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return Answer(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, error.headers, error.read())


@contextmanager
def served(src: Any, dst: Path, *, sql: str | None = None, **options: Any) -> Iterator[Viewer]:
    """A viewer over a source, in this process."""
    given = {"download": None, "chain": None, "data_type": None, "resolution": 64, "id_column": "id", "storage": None}
    opener = Opener(str(src), dst=str(dst), **{**given, "cache_limit": None, **options})
    opener.look(sql)
    with Viewer(Gallery(Shelf(opener)), start={"sql": sql}) as viewer:
        viewer.begin()
        yield viewer


def make_photos(folder: Path, number: int = 60, size: tuple[int, int] = (180, 240)) -> Path:
    """Photos, captions and qualities as a table; row 7 names a broken file, row 8 one that is not there."""
    rows = [
        {
            "id": each["id"],
            "image": f"photos/{each['id']}.jpg",
            "caption": each["caption"],
            "quality": k * 37 % 100 / 100,
        }
        for k, each in enumerate(make_images(folder / "photos", number, size=size, grain=0.1))
    ]
    whole = (folder / "photos" / "000007.jpg").read_bytes()
    (folder / "photos" / "000007.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "photos" / "000008.jpg").unlink()
    pq.write_table(pa.Table.from_pylist(rows), folder / "photos.parquet")
    return folder / "photos.parquet"


def make_clips(folder: Path, number: int = 4, seconds: float = 2.0) -> tuple[Path, Path]:
    """H.264 clips with sound as a table, and sounds as another."""
    folder.mkdir(parents=True, exist_ok=True)
    clips, sounds = [], []
    for k in range(number):
        picture = f"testsrc2=size=320x240:rate=24:duration={seconds},hue=h={k * 360 // number}"
        tone = f"sine=frequency={220 * (k + 1)}:duration={seconds}:sample_rate=16000"
        codecs = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac")
        ffmpeg("-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", tone, *codecs, folder / f"{k:02d}.mp4")
        ffmpeg("-f", "lavfi", "-i", tone, "-af", f"tremolo=f={k + 1}:d=0.9", folder / f"{k:02d}.wav")
        clips.append(
            {"id": f"{k:02d}", "video": f"{k:02d}.mp4", "caption": f"a test card, turned by {k * 360 // number}°"}
        )
        sounds.append(
            {"id": f"{k:02d}", "sound": f"{k:02d}.wav", "text": f"a tone of {220 * (k + 1)} Hz", "hz": 220 * (k + 1)}
        )
    pq.write_table(pa.Table.from_pylist(clips), folder / "clips.parquet")
    pq.write_table(pa.Table.from_pylist(sounds), folder / "sounds.parquet")
    return folder / "clips.parquet", folder / "sounds.parquet"


def huge(factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A hundred million rows and a cache for them, made once for all tests: the source, and where it is kept."""
    folder = factory.getbasetemp() / "huge-view"
    src = f"{folder}/part-*.parquet" if folder.exists() else _make_huge(folder)
    return src, folder / "dst"


def _make_huge(folder: Path, num_files: int = 100, num_images: int = 16) -> str:
    """A hundred million rows: one Parquet file under a hundred names (hard links); the wildcard that names them all."""
    folder.mkdir(parents=True, exist_ok=True)
    records = make_images(folder / "photos", num_images, size=(180, 240), grain=0.1)
    numbers = np.arange(ROWS_IN_FILE, dtype=np.int32)

    def words(values: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(numbers % num_images), pa.array(values))

    table = pa.table(
        {
            "image": words([f"photos/{each['id']}.jpg" for each in records]),
            "caption": words([each["caption"] for each in records]),
            "quality": ((numbers * np.int64(7919) % 1000) / 1000).astype(np.float32),
        }
    )
    pq.write_table(table, folder / "one", row_group_size=HUGE_CHUNK, compression="zstd")
    for number in range(num_files):
        os.link(folder / "one", folder / f"part-{number:03d}.parquet")
    return f"{folder}/part-*.parquet"
