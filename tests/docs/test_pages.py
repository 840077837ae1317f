"""What the pages say of names and places is true: keywords, errors, links."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import sds
from docs.pages import ROOT, pages
from sds import errors, logs, transforms
from sds.transforms import presets

TRANSFORMS_PAGE = """\
# sds.transforms

All take a sample (a dict) and return one. An input field may hold a path or bytes. The long names are the same
classes, in `sds.transforms.presets`. This page is made of the docstrings (`make reference`);
`help(sds.transforms.ResizeImage)` and the like explain every argument.

| class | long name | what it does |
|---|---|---|
{transforms}

## Presets

| function | the chain that it returns |
|---|---|
{presets}

## Randomness

`sds.transforms.rng(sample, *purpose)` is the sample's own NumPy generator: the same numbers for the same seed, epoch
and sample, on any machine.
"""
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
    assert [
        name for name in sds.__all__ if name[0].isupper() and f"sds.{name}" not in everything and name != "Batch"
    ] == []


def test_the_reference_has_the_error_tree_as_it_is():
    drawn = [line.strip() for line in (errors.__doc__ or "").splitlines() if line.startswith("    ")]
    page = [line.strip() for line in text("errors.md").splitlines()]
    assert [line for line in drawn if line not in page] == []
    assert [name for name in errors.__all__ if name not in text("errors.md")] == []


def transform_rows() -> list[str]:
    """The table of transforms as the code has it: name with arguments, long name, first line of the docstring."""
    classes = {name: thing for name in transforms.__all__ if inspect.isclass(thing := getattr(transforms, name))}
    others = [name for name in presets.__all__ if inspect.isclass(getattr(presets, name))]
    rows = []
    for name, thing in classes.items():
        if name == "SampleTransform":
            continue
        aliases = ", ".join(f"`{other}`" for other in others if getattr(presets, other) is thing)
        rows.append(f"| `{name}{arguments(thing)}` | {aliases} | {first_line(thing)} |")
    return rows


def preset_rows() -> list[str]:
    makers = [getattr(presets, name) for name in presets.__all__ if name.startswith("create_")]
    return [f"| `presets.{maker.__name__}{arguments(maker)}` | {first_line(maker)} |" for maker in makers]


def arguments(thing: Callable[..., object]) -> str:
    signature = inspect.signature(thing)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text).replace("|", "\\|")


def first_line(thing: Callable[..., object]) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|").rstrip(".")


def test_the_reference_of_transforms_is_what_the_docstrings_say():
    page = TRANSFORMS_PAGE.format(transforms="\n".join(transform_rows()), presets="\n".join(preset_rows()))
    if os.environ.get("SDS_UPDATE_DOCS"):
        (ROOT / "docs" / "reference" / "transforms.md").write_text(page)
    assert text("transforms.md") == page, "the code has moved on: `make reference` writes the page anew"


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
