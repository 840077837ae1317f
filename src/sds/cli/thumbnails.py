"""Pictures in a terminal: an image -> the text that makes a terminal show it.

Four ways: the graphics of kitty, of iTerm2, sixels, and half blocks in 24-bit colours, which most terminals know.
`choose` finds out which by the environment alone; nothing is asked of the terminal.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["WAYS", "choose", "draw"]

WAYS = ("kitty", "iterm", "sixel", "blocks")

_PIXELS = 192  # the longer side, where pixels are shown
_COLUMNS = 32  # the width in half blocks
_CHUNK = 4096  # kitty takes no more at once
_SIXEL_COLOURS = 64
_SIXEL_TERMS = ("foot", "mlterm", "yaft", "contour")


def choose(asked: str, environment: Mapping[str, str], *, is_terminal: bool) -> str | None:
    """How to show pictures; None: not at all, since nobody looks, or the terminal cannot."""
    if asked != "auto":
        return None if asked == "off" else asked
    if not is_terminal:
        return None
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if environment.get("TMUX") or term.startswith(("screen", "tmux")):  # what is inside does not get through
        return "blocks" if environment.get("COLORTERM") in ("truecolor", "24bit") else None
    if "KITTY_WINDOW_ID" in environment or "kitty" in term or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "vscode"):
        return "iterm"
    if term.split("-")[0] in _SIXEL_TERMS or "sixel" in term:
        return "sixel"
    return "blocks" if environment.get("COLORTERM") in ("truecolor", "24bit") else None


def draw(image: Image.Image, way: str) -> str:
    """The text to print; the image is made small first."""
    image = image.convert("RGB")
    if way == "blocks":
        return _blocks(image)
    image.thumbnail((_PIXELS, _PIXELS))
    return {"kitty": _kitty, "iterm": _iterm, "sixel": _sixel}[way](image)


def _blocks(image: Image.Image) -> str:
    """Two pixels a letter: the upper half in its own colour, the lower one in that of the ground."""
    width = _COLUMNS
    height = max(2, round(image.height * width / image.width))
    height += height % 2
    pixels: Any = image.resize((width, height)).load()
    lines = []
    for y in range(0, height, 2):
        line = ""
        for x in range(width):
            upper, lower = pixels[x, y], pixels[x, y + 1]
            line += "\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*upper, *lower)
        lines.append(f"{line}\x1b[0m")
    return "\n".join(lines)


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _kitty(image: Image.Image) -> str:
    data = base64.b64encode(_png(image)).decode()
    chunks = [data[start : start + _CHUNK] for start in range(0, len(data), _CHUNK)]
    words = []
    for number, chunk in enumerate(chunks):
        first = "a=T,f=100," if number == 0 else ""
        words.append(f"\x1b_G{first}m={int(number < len(chunks) - 1)};{chunk}\x1b\\")
    return "".join(words)


def _iterm(image: Image.Image) -> str:
    data = _png(image)
    return f"\x1b]1337;File=inline=1;size={len(data)};preserveAspectRatio=1:{base64.b64encode(data).decode()}\x07"


def _sixel(image: Image.Image) -> str:
    """Bands of six lines; in each, a row of letters for every colour there is."""
    reduced = image.quantize(_SIXEL_COLOURS)
    palette = reduced.getpalette() or []
    pixels: Any = reduced.load()
    width, height = reduced.size
    text = f'\x1bPq"1;1;{width};{height}'
    for number in range(len(palette) // 3):
        red, green, blue = (round(value * 100 / 255) for value in palette[3 * number : 3 * number + 3])
        text += f"#{number};2;{red};{green};{blue}"
    for top in range(0, height, 6):
        bits: dict[int, list[int]] = {}
        for y in range(top, min(top + 6, height)):
            for x in range(width):
                bits.setdefault(pixels[x, y], [0] * width)[x] |= 1 << (y - top)
        text += "$".join(f"#{colour}{_runs(line)}" for colour, line in bits.items()) + "-"
    return f"{text}\x1b\\"


def _runs(bits: list[int]) -> str:
    """Letters of a line, those that repeat counted."""
    text, start = "", 0
    for end in range(1, len(bits) + 1):
        if end == len(bits) or bits[end] != bits[start]:
            letter, count = chr(63 + bits[start]), end - start
            text += letter * count if count < 4 else f"!{count}{letter}"
            start = end
    return text
