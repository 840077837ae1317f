"""The page of the command line has every command with every option, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer

from docs.pages import ROOT
from sds import cli
from sds.index.export_config import ENGINES, ExportConfig

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()


def commands(group: Any, words: str) -> Iterator[tuple[str, list[str]]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{words} {name}")
        else:
            yield f"{words} {name}", [option for each in command.params for option in each.opts if option[:2] == "--"]


COMMANDS = dict(commands(typer.main.get_command(cli.app), "sds"))


def section(command: str) -> str:
    found = re.search(rf"^## {re.escape(command)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{command} has no section"
    return found[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_its_options(command: str) -> None:
    text = section(command)
    told = set(re.findall(r"`(--[a-z-]+)", text))
    assert [option for option in COMMANDS[command] if option not in told] == []
    rows = {
        option
        for line in text.splitlines()
        if line.startswith("| `--")
        for option in re.findall(r"`(--[a-z-]+)`", line.split("|")[1])
    }
    assert sorted(rows - set(COMMANDS[command])) == []


def test_there_are_no_other_commands() -> None:
    told = re.findall(r"^## (sds [a-z -]+)$", PAGE, re.MULTILINE)
    assert sorted(told) == sorted(COMMANDS)


def test_the_guide_has_every_key_of_an_export() -> None:
    text = (ROOT / "docs" / "guide" / "export.md").read_text()
    told = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    assert set(told) == {each.name for each in fields(ExportConfig)}
    assert all(f"`{engine}`" in text for engine in ENGINES)
