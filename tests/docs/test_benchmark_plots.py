"""Benchmarks in the documentation: one command puts tables, plots and sentences in place, and they agree."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from docs.pages import ROOT, pages

SHOWN = ["cold", "warm", "local", "facts"]
PLOT = re.compile(r"\]\(([\w./]*bench-\w+\.svg)\)")
SVG = "{http://www.w3.org/2000/svg}"


def runs(kind: str, *rates: float) -> list[dict[str, Any]]:
    return [{"kind": kind, "steady": rate, "first_batch_s": 0.5, "rss_mb": 100.0} for rate in rates]


def results(*names: str, **facts: Any) -> dict[str, Any]:
    found = {
        "sds": runs("ours", 90, 95, 100, 120, 130),
        "other & co": runs("peer", 50, 50, 50, 55, 60),
        "in chunks": runs("shards", 150, 150, 150, 155, 160),
        "bare decodes": runs("limit", 190, 195, 200, 205, 210),
        "bare decodes, sds's way": runs("limit", 180, 180, 180, 180, 180),
        "bare reads": runs("limit", 9000, 9000, 9000, 9000, 9000),
    }
    told = {"date": "2026-01-01", "commit": "abc", "cores": 2, "python": "3", "repeats": 5, "versions": {"torch": "2"}}
    return {
        "facts": {**told, "peers": {"other": "1"}, **facts},
        "workloads": dict.fromkeys(names, found),
        "notes": ["warm: another failed: no folder /home/somebody/caches/another, see https://host.example/simple"],
    }


@pytest.fixture(scope="module")
def publishing() -> Iterator[Any]:
    folder = str(ROOT / "benchmarks" / "suite")
    sys.path.insert(0, folder)
    import publish

    yield publish
    sys.path.remove(folder)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """The pages that are written to, as they are."""
    (tmp_path / "docs" / "assets").mkdir(parents=True)
    for page in ("docs/benchmarks.md", "docs/index.md", "README.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    return tmp_path / "docs"


def publish(publishing: Any, docs: Path, found: dict[str, Any]) -> dict[Path, str]:
    (docs.parent / "results.json").write_text(json.dumps(found))
    return {page: page.read_text() for page in publishing.publish(docs.parent, docs)}


def test_one_command_puts_everything_in_place(publishing: Any, docs: Path):
    written = publish(publishing, docs, results("local", "cold", "warm"))
    assert list(written) == [docs / "benchmarks.md", docs / "index.md", docs.parent / "README.md"]
    for page, text in written.items():
        plots = PLOT.findall(text)
        assert [Path(plot).stem for plot in plots] == ["bench-cold", "bench-warm", "bench-local"]
        assert all((page.parent / plot).is_file() for plot in plots)
        assert "commit abc" in text
    table, *fronts = written.values()
    assert "| **sds** | 100 (90-130) |" in table and "| in chunks † | 150 (150-160) |" in table
    assert "another failed: no folder …/another, see <URL>" in table  # not where it happened
    for front in fronts:
        assert "sds: 100 images/s (90-130), 50% of what bare decodes make as peers do them, " in front
        assert "as peers do them, and 56% of the same loop with its own transforms. The fastest" in front
        assert "others that read these files: other & co, 50. " in front and "before: in chunks, 150." in front
    assert publish(publishing, docs, results("local", "cold", "warm")) == written  # nothing is there twice


def test_what_was_not_measured_is_not_shown(publishing: Any, docs: Path):
    publish(publishing, docs, results("cold", "warm", "local"))
    written = publish(publishing, docs, results("cold"))
    assert [PLOT.findall(text) for text in written.values()] == [
        ["assets/bench-cold.svg"],
        ["assets/bench-cold.svg"],
        ["docs/assets/bench-cold.svg"],
    ]
    assert [path.name for path in (docs / "assets").iterdir()] == ["bench-cold.svg"]


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"repeats": 4}, "4 repeats and 1 peers: .* at least 5 repeats, and peers"),
        ({"peers": {}}, "5 repeats and 0 peers: .* at least 5 repeats, and peers"),
        ({"repeats": 6}, "cold has 5 repeats where the report says 6"),
        ({"commit": "abc (cold: 3 repeats of def)"}, "is not one commit"),
    ],
)
def test_what_is_not_one_whole_run_is_not_published(publishing: Any, docs: Path, facts: dict[str, Any], why: str):
    before = (docs / "index.md").read_text()
    with pytest.raises(SystemExit, match=why):
        publish(publishing, docs, results("cold", **facts))
    assert (docs / "index.md").read_text() == before and list((docs / "assets").iterdir()) == []


def test_bars_begin_at_zero_and_one_that_is_cut_off_says_so(publishing: Any, docs: Path):
    publish(publishing, docs, results("local"))
    drawn = ElementTree.parse(docs / "assets" / "bench-local.svg").getroot()
    bars = [each for each in drawn.iter(f"{SVG}rect") if each.get("height") == "16"]
    assert len({bar.get("x") for bar in bars}) == 1
    widths = {bar.get("class"): float(bar.get("width", 0)) for bar in reversed(bars)}  # the first of a kind
    assert widths["peer"] == pytest.approx(widths["ours"] / 2, abs=0.2)
    assert widths["shards"] == pytest.approx(widths["ours"] * 1.5, abs=0.2)
    words = [each.text for each in drawn.iter(f"{SVG}text")]
    assert "in chunks †" in words and "→ 9,000" in words and "200" in words
    (bound,) = (each for each in drawn.iter(f"{SVG}line") if each.get("class") == "bound")
    at = float(bars[0].get("x", 0)) + 1.8 * widths["ours"]
    assert float(bound.get("x1", 0)) == pytest.approx(at, abs=0.2)  # at 180, bare decodes by our own transforms


def test_pages_have_places_for_plots_and_name_those_that_exist():
    for page in ("docs/index.md", "README.md"):
        marks = re.findall(
            r"<!-- bench:(\w+) -->\n(?:(?!<!-- bench).)*?<!-- /bench -->", (ROOT / page).read_text(), re.S
        )
        assert marks == SHOWN, page
    named = {
        (ROOT / page).parent.joinpath(plot).resolve()
        for page in pages()
        for plot in PLOT.findall((ROOT / page).read_text())
    }
    assert named == set((ROOT / "docs" / "assets").glob("bench-*.svg"))


def test_the_landing_page_and_the_readme_say_the_same_of_benchmarks():
    def between(page: str) -> list[str]:
        return re.findall(r"<!-- bench:.*?<!-- /bench -->", (ROOT / page).read_text().replace("](docs/", "]("), re.S)

    assert between("README.md") == between("docs/index.md")
