"""Ratios to physical limits, in one run, beside those of a committed baseline: has something become slower?

Comes in: benchmarks/baseline.json. Goes out: a line for each ratio, and 1 if one is more than 15% below its baseline.
Both sides of a ratio are processes that stay, asked by turns; a ratio is the median of those of single rounds, and one
that looks bad is measured again with three times the rounds before it counts.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import BUCKET, Images
from front import Front, compiled
from rows import make_rows

BASELINE = Path(__file__).parents[1] / "baseline.json"
ALLOWED = 0.15
NUM_IMAGES = 600
ROUNDS = 5
HERE = Path(__file__).parent


@dataclass
class Pair:
    """Two programs, and the figure by which they are compared: 'rate', or 'cpu_us', of which less is better."""

    ours: dict[str, Any]
    limit: dict[str, Any]
    figure: str = "rate"


class Turns:
    """A program that does a round whenever it is told to."""

    def __init__(self, args: dict[str, Any]) -> None:
        command = [sys.executable, str(HERE / "contenders" / "turns.py"), json.dumps(args)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read("ready")
        self.round()  # fills caches, and warms up

    def _read(self, what: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"a program of the check ended before it was {what}; what it said is above")
        return line

    def round(self) -> dict[str, float]:
        """Its figures of one round."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return dict(json.loads(self._read("done")))

    def close(self) -> None:
        """Ends it."""
        self._process.communicate(timeout=60)


def pairs(home: Path, images: Images, front: Front) -> dict[str, Pair]:
    """What is compared."""
    lists = images.lists
    keys = {"access_key_id": "any", "secret_access_key": "any", "region": "us-east-1"}
    remote = {"index": str(lists / "urls.parquet"), "storage_options": {"endpoint": front.endpoint, **keys}}
    local = {"index": str(lists / "files.parquet")}

    def ours(name: str, program: str, **args: Any) -> dict[str, Any]:
        dst = home / "caches" / f"check-{name}"
        shutil.rmtree(dst, ignore_errors=True)
        return {"program": program, "dst": str(dst), "num": images.num, "batch": 64, "workers": 0, "kind": name, **args}

    def limit(kind: str, **args: Any) -> dict[str, Any]:
        return ours(f"limit-{kind}", "bare", bucket=BUCKET, endpoint=front.endpoint, **args) | {"kind": kind}

    decodes = limit("decodes, sds's way", list=str(lists / "files.txt"))  # what the loader adds is what is compared
    rows = {"source": make_rows(home, 50_000), "batch": 1024, "kind": "sds"}
    python = {"program": "python", "num": 20_000}
    return {
        "cold": Pair(ours("cold", "images", **remote), limit("both, sds's way", list=str(lists / "urls.txt"))),
        "warm": Pair(ours("warm", "images", **remote), decodes),
        "local": Pair(ours("local", "images", **local), decodes),
        "transforms": Pair(decodes, limit("decodes", list=str(lists / "files.txt"))),
        "text": Pair(
            ours("text", "rows", **rows, of="sds"), ours("text-limit", "rows", **rows, of="pyarrow"), "cpu_us"
        ),
        "overhead": Pair(ours("overhead", "overhead", **local), python, "cpu_us"),
        "access": Pair(ours("access", "access", **rows), python, "cpu_us"),
    }


def ratio(pair: Pair, rounds: int) -> tuple[float, str]:
    """The median over rounds, and the medians of both sides in words."""
    with ExitStack() as stack:
        sides = []
        for args in (pair.ours, pair.limit):
            sides.append(Turns(args))
            stack.callback(sides[-1].close)
        found = []
        for number in range(rounds):
            order = sides if number % 2 == 0 else sides[::-1]
            figures = {id(side): side.round()[pair.figure] for side in order}
            found.append((figures[id(sides[0])], figures[id(sides[1])]))
    better = [a / b if pair.figure == "rate" else b / a for a, b in found]
    mine, other = (statistics.median(column) for column in zip(*found, strict=True))
    unit = "/s" if pair.figure == "rate" else " us CPU"
    return statistics.median(better), f"{mine:,.3g}{unit} beside {other:,.3g}{unit}"


def main(home: Path, *, update: bool = False) -> int:
    """0 if nothing is much slower than it was."""
    images = Images(home, NUM_IMAGES)
    images.make()
    known = json.loads(BASELINE.read_text())["ratios"] if BASELINE.exists() else {}
    found, slower = {}, []
    with Front(compiled(home), images.root, 20.0) as front:
        for name, pair in pairs(home, images, front).items():
            value, words = ratio(pair, 3 * ROUNDS if update else ROUNDS)
            if not update and value < (1 - ALLOWED) * known.get(name, 0.0):
                value, words = ratio(pair, 3 * ROUNDS)
            found[name] = value
            is_slower = not update and value < (1 - ALLOWED) * known.get(name, 0.0)
            slower += [name] if is_slower else []
            beside = f", {value / known[name]:.0%} of the baseline's {known[name]:.3f}" if name in known else ""
            print(f"{name:>9}: {value:.3f} of its limit ({words}){beside}{'  SLOWER' if is_slower else ''}", flush=True)
    if update:
        text = {
            "about": "ratios to physical limits in one run: `make bench-quick` fails 15% below",
            "ratios": {name: round(value, 3) for name, value in found.items()},
        }
        BASELINE.write_text(json.dumps(text, indent=2) + "\n")
    if slower:
        print(f"slower than the baseline by more than {ALLOWED:.0%}: {', '.join(slower)}", file=sys.stderr)
    return 1 if slower else 0
