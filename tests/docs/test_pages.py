"""What the pages say of names and places is true: keywords, errors, links."""

from __future__ import annotations

import inspect
import os
import re
import runpy
from pathlib import Path

import pytest
import yaml

import sds
from docs.pages import ROOT, blocks_of, pages
from docs.references import PAGES
from sds import errors, logs, tensors
from sds.transforms import presets

LINK = re.compile(r"\]\(([^)\s]+)\)")


def text(page: str) -> str:
    return (ROOT / "docs" / "reference" / page).read_text()


@pytest.mark.parametrize(
    ("page", "thing"),
    [
        ("dataset.md", sds.StreamingDataset),
        ("loader.md", sds.StreamingDataLoader),
        ("loader.md", sds.MultiStreamDataLoader),
        ("loader.md", sds.StreamOptions),
        ("loader.md", sds.DevicePrefetcher),
    ],
)
def test_the_reference_has_every_keyword_with_its_default(page: str, thing: type):
    # a page may have several things, each under its own heading
    part = text(page).partition(f"# sds.{thing.__name__}\n")[2].partition("\n# sds.")[0]
    rows = [line for line in part.splitlines() if line.startswith("| `")]
    for name, parameter in inspect.signature(thing).parameters.items():
        row = next((row for row in rows if f"`{name}`" in row.split("|")[1]), None)
        assert row is not None, f"{name} is not in {page}"
        if parameter.default is not inspect.Parameter.empty:
            assert f"`{parameter.default!r}`" in row.split("|")[2], f"{name} has another default in {page}"


def test_the_reference_has_every_public_name():
    everything = "".join((ROOT / page).read_text() for page in pages() if page.parts[:2] == ("docs", "reference"))
    names = [name for name in sds.__all__ if name != "__version__"]
    assert [name for name in names if f"sds.{name}" not in everything] == []


def test_the_reference_has_the_error_tree_as_it_is():
    drawn = [line.strip() for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    page = [line.strip() for line in text("errors.md").splitlines()]
    assert [line for line in drawn if line not in page] == []
    assert [name for name in errors.__all__ if name not in text("errors.md")] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_reference_is_what_the_docstrings_say(page: str):
    made = PAGES[page]()
    if os.environ.get("SDS_UPDATE_DOCS"):
        (ROOT / "docs" / "reference" / page).write_text(made)
    assert text(page) == made, "the code has moved on: `make reference` writes the page anew"


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


def test_every_page_of_the_docs_is_in_the_contents_and_in_the_site():
    docs = {page.relative_to("docs").as_posix() for page in pages() if page.parts[0] == "docs"}
    listed = (ROOT / "docs" / "index.md").read_text()
    assert sorted(page for page in docs if f"({page})" not in listed and page != "index.md") == []
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert sorted(leaves(site["nav"])) == sorted(docs)


def leaves(nav: object) -> list[str]:
    if isinstance(nav, dict):
        return [page for part in nav.values() for page in leaves(part)]
    return [page for part in nav for page in leaves(part)] if isinstance(nav, list) else [str(nav)]


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "concepts").glob("*.md")), ids=lambda page: page.name)
def test_every_concept_has_a_drawing(page: Path):
    drawings = [block.code for block in blocks_of(page.relative_to(ROOT)) if block.language == "text"]
    assert any("──" in drawing for drawing in drawings), "a drawing is a block of text with lines"


def test_the_pictures_of_orders_are_those_of_the_plans():
    script = runpy.run_path(str(ROOT / "docs" / "assets" / "orders.py"))
    for name, rows in script["orders"]().items():
        drawn = (ROOT / "docs" / "assets" / f"{name}.svg").read_text()
        assert drawn == script["draw"](rows), f"{name}: python docs/assets/orders.py"


def test_what_is_called_ours_exists():
    """The tables of `moving.md` have their words on the left, ours on the right: keywords, names, presets."""
    ours = [
        cell
        for line in (ROOT / "docs" / "guide" / "moving.md").read_text().splitlines()
        if line.startswith("| ")
        for cell in re.findall(r"`([^`]+)`", line.split("|")[2])
    ]
    makers = [sds.StreamingDataset, sds.StreamingDataLoader, sds.interleave, sds.transforms.LoadTensors]
    makers += [tensors.TensorCacheWriter, presets.create_standard_audio_pipeline]
    keywords = {name for maker in makers for name in inspect.signature(maker).parameters}
    told = {word for cell in ours for word in re.findall(r"(?:^|[(,] ?)([a-z_]+)=", cell)}
    assert len(told) > 15 and sorted(told - keywords) == []
    names = {name for cell in ours for name in re.findall(r"\bsds\.(\w+)", cell)} - {"transforms"}
    assert len(names) > 4 and sorted(names - set(sds.__all__)) == []
    chains = {name for cell in ours for name in re.findall(r"\b(create_\w+)", cell)}
    assert sorted(chains - set(presets.__all__)) == []


def test_the_dockerfile_copies_what_is_there_and_installs_extras_that_exist():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert {"pyproject.toml", "src", "README.md", "LICENSE"} <= set(copied)  # what the build of a wheel asks for
    assert [name for name in copied if not (ROOT / name).exists()] == []
    extras = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(lines))
    known = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert extras and set(extras[0].split(",")) <= set(known)


def test_every_decision_has_its_parts():
    for page in (ROOT / "docs" / "decisions").glob("*.md"):
        body = page.read_text()
        assert re.match(rf"# {page.name[:4]}: ", body), page
        assert re.search(r"^Status: \w+ · Date: \d{4}-\d{2}-\d{2}$", body, re.MULTILINE), page
        assert "## Context" in body and "## Decision" in body and "## What it costs" in body, page
