"""What is installed: all that sds needs, with the compiled part where there is a compiler, and without it elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that are built from, without what earlier builds left."""
    tree = tmp_path_factory.mktemp("tree") / "sds"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    return tree


def build(tree: Path, kind: str, **environment: str) -> Path:
    """The wheel or sdist of a tree, by setuptools alone: nothing is fetched."""
    out = tree.parent / f"{kind}-{len(list(tree.parent.iterdir()))}"
    code = f"import os, setuptools.build_meta as build; os.makedirs({str(out)!r}); build.build_{kind}({str(out)!r})"
    for left in (tree / "build", *(tree / "src").glob("*.egg-info")):
        shutil.rmtree(left, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (made,) = out.iterdir()
    return made


def sources() -> set[str]:
    """What Python imports, and what it opens."""
    files = (path for path in (ROOT / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    named = {path.relative_to(ROOT / "src").as_posix() for path in files}
    return {name for name in named if name.startswith("sds/") and not name.endswith((".c", ".h", ".so"))}


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.split("/")[0].endswith(".dist-info")}


def test_a_wheel_has_everything_and_the_compiled_part(tree: Path) -> None:
    found = files_of(build(tree, "wheel"))
    compiled = {name for name in found if name.endswith(".so")}
    assert found - compiled == sources()
    assert {name.split(".")[0] for name in compiled} == {"sds/_files", "sds/transforms/_native"}


def test_without_a_compiler_it_is_built_without_the_compiled_part(tree: Path) -> None:
    assert files_of(build(tree, "wheel", CC="false")) == sources()


def test_what_is_given_to_others_as_source_can_be_compiled(tree: Path) -> None:
    with tarfile.open(build(tree, "sdist")) as archive:
        names = archive.getnames()
    found = {name.split("/")[-1] for name in names if name.endswith((".c", ".h"))}
    assert found == {
        "_files.c",
        "_native.c",
        "_native.h",
        "_header.c",
        "_header.h",
        "_jpeg.c",
        "_samples.c",
        "_samples.h",
    }
    assert {"/".join(name.split("/")[2:]) for name in names} >= sources()
