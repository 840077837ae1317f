"""What the workloads read: JPEG files in a bucket of the store, in the formats of all contenders. Made once, and kept.

Few pictures are drawn; each is written under many names, which nobody can see: no contender compares content.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sds.testing.media import make_images

BUCKET = "bench"
NUM_DRAWN = 128
HERE = Path(__file__).parent


class Images:
    """`num` JPEG files of 500x375 and about 68 KB in the folder of a store, and what leads to them."""

    def __init__(self, root: Path, num: int) -> None:
        self.num = num
        self.root = root / f"store-{num}"
        self.bucket = self.root / BUCKET
        self.lists = root / f"lists-{num}"

    def make(self) -> None:
        """Draws and writes, unless that was done."""
        done = self.root / ".done"
        if not done.exists():
            shutil.rmtree(self.root, ignore_errors=True)
            records = make_images(
                self.root / "drawn", min(self.num, NUM_DRAWN), size=(375, 500), quality=91, grain=0.75
            )
            (self.bucket / "images").mkdir(parents=True)
            for number in range(self.num):
                drawn = Path(records[number % len(records)]["path"])
                shutil.copyfile(drawn, self.bucket / "images" / f"{number:06}.jpg")
            shutil.rmtree(self.root / "drawn")
            done.touch()
        self.lists.mkdir(exist_ok=True)
        paths = [str(self.bucket / "images" / f"{number:06}.jpg") for number in range(self.num)]
        urls = [f"s3://{BUCKET}/images/{number:06}.jpg" for number in range(self.num)]
        for name, places in (("files", paths), ("urls", urls)):
            (self.lists / f"{name}.txt").write_text("\n".join(places) + "\n")
            pq.write_table(pa.table({"url": places}), self.lists / f"{name}.parquet")

    def list_http(self, endpoint: str) -> Path:
        """A list of addresses without S3, which change with every start of the store."""
        return self._list("http", [f"{endpoint}/{BUCKET}/images/{number:06}.jpg" for number in range(self.num)])

    def shards(self, kind: str, endpoint: str) -> Path:
        """A list of shards, over HTTP or here."""
        names = sorted(path.name for path in (self.bucket / kind).iterdir())
        base = f"{endpoint}/{BUCKET}" if endpoint else str(self.bucket)
        return self._list(f"{kind}-{'http' if endpoint else 'local'}", [f"{base}/{kind}/{name}" for name in names])

    def _list(self, name: str, places: list[str]) -> Path:
        path = self.lists / f"{name}.txt"
        path.write_text("\n".join(places) + "\n")
        return path

    @property
    def num_bytes(self) -> int:
        """Of all files together."""
        return sum(path.stat().st_size for path in (self.bucket / "images").iterdir())

    def convert(self, python: str, kind: str) -> str | None:
        """Writes the images in another format; None, or why that failed."""
        out = self.bucket / kind
        if out.exists():
            return None
        shutil.rmtree(out.with_name(f".{kind}.part"), ignore_errors=True)
        asked = json.dumps({"kind": kind, "list": str(self.lists / "files.txt"), "out": str(out)})
        command = [python, str(HERE / "contenders" / "convert.py"), asked]
        print(f"converting to {kind}", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
        return None if done.returncode == 0 and out.exists() else (done.stderr.strip().splitlines() or ["failed"])[-1]
