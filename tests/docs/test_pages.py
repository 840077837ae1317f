"""What the pages say of names and places is true: keywords, errors, links."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import sds
from docs.pages import ROOT, pages
from sds import errors, logs, transforms
from sds.transforms import presets

LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(page: str) -> str:
    return (ROOT / "docs" / "reference" / page).read_text()


@pytest.mark.parametrize(
    ("page", "thing"), [("dataset.md", sds.StreamingDataset), ("loader.md", sds.StreamingDataLoader)]
)
def test_the_reference_has_every_keyword_with_its_default(page: str, thing: type):
    rows = [line for line in text(page).splitlines() if line.startswith("| `")]
    for name, parameter in inspect.signature(thing).parameters.items():
        row = next((row for row in rows if f"`{name}`" in row.split("|")[1]), None)
        assert row is not None, f"{name} is not in {page}"
        if parameter.default is not inspect.Parameter.empty:
            assert f"`{parameter.default!r}`" in row.split("|")[2], f"{name} has another default in {page}"


def test_the_reference_has_the_error_tree_as_it_is():
    drawn = [line.strip() for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    page = [line.strip() for line in text("errors.md").splitlines()]
    assert [line for line in drawn if line not in page] == []
    assert [name for name in errors.__all__ if name not in text("errors.md")] == []


def test_the_reference_has_every_transform():
    names = [name for name in (*transforms.__all__, *presets.__all__) if name not in ("presets", "SampleTransform")]
    assert [name for name in names if f"{name}" not in text("transforms.md")] == []


def test_the_reference_has_every_log_level():
    assert [level for level in logs.LEVELS if f"`{level}`" not in text("environment.md")] == []


@pytest.mark.parametrize("page", pages(), ids=str)
def test_links_lead_somewhere(page: Path):
    for target in LINK.findall((ROOT / page).read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / page).parent / path if path else ROOT / page
        assert there.exists(), target
        if anchor:
            headings = [line.lstrip("# ").lower() for line in there.read_text().splitlines() if line.startswith("#")]
            assert anchor in [re.sub(r"[^\w -]", "", heading).replace(" ", "-") for heading in headings], target


def test_every_page_of_the_docs_is_in_its_contents():
    listed = (ROOT / "docs" / "README.md").read_text()
    docs = [page.relative_to("docs").as_posix() for page in pages() if page.parts[0] == "docs"]
    assert [page for page in docs if page not in listed and page != "README.md"] == []


def test_every_decision_has_its_parts():
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        body = page.read_text()
        assert re.match(rf"# {page.name[:4]}: ", body), page
        assert re.search(r"^Status: \w+ · Date: \d{4}-\d{2}-\d{2}$", body, re.MULTILINE), page
        assert "## Context" in body and "## Decision" in body and "## What it costs" in body, page
