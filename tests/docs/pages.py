"""The code in our pages: fenced blocks, with the line they stand on and the marker before them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Block", "blocks_of", "pages"]

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(\w*)\s*$")
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")
_FROM = re.compile(r"^<!-- from: (.+) -->$")


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    line: int  # of its first line of code, counted from 1
    code: str
    not_run: str | None  # the reason why it cannot run
    source: str | None = None  # the file that it is a part of, which is run elsewhere

    @property
    def runs(self) -> bool:
        return self.language == "python" and not self.not_run and not self.source


def pages() -> list[Path]:
    """Every page that we show to people, relative to the root."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
    found += (ROOT / "docs").rglob("*.md")
    return sorted(path.relative_to(ROOT) for path in found)


def blocks_of(page: Path) -> list[Block]:
    blocks: list[Block] = []
    marker = source = None
    opened: tuple[str, int] | None = None
    body: list[str] = []
    for number, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is None:
            if fence:
                opened, body = (fence[1], number + 1), []
            elif line.strip():
                marker, source = (
                    found[1] if (found := kind.match(line.strip())) else None for kind in (_NOT_RUN, _FROM)
                )
        elif line.strip() == "```":
            blocks.append(Block(*opened, "\n".join(body) + "\n", marker, source))
            opened = marker = source = None
        else:
            body.append(line)
    assert opened is None, f"{page} has a block that does not end"
    return blocks


def said(marker: re.Pattern[str], line: str) -> str | None:
    found = marker.match(line.strip())
    return found[1] if found else None
