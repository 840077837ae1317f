"""Pictures as text: which way, and what the letters say."""

from __future__ import annotations

import base64
import io
import re

import pytest
from PIL import Image

from sds.cli.thumbnails import WAYS, choose, draw


@pytest.mark.parametrize(
    ("environment", "way"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, "blocks"),
        ({"TERM": "xterm-kitty", "TMUX": "x", "COLORTERM": "truecolor"}, "blocks"),
        ({"TERM": "xterm-256color"}, None),
        ({}, None),
    ],
)
def test_a_terminal_gets_what_it_can_show(environment: dict[str, str], way: str | None) -> None:
    assert choose("auto", environment, is_terminal=True) == way
    assert choose("auto", environment, is_terminal=False) is None
    assert choose("off", environment, is_terminal=True) is None
    assert choose("sixel", environment, is_terminal=False) == "sixel"


@pytest.fixture
def image() -> Image.Image:
    image = Image.new("RGB", (64, 32), (255, 0, 0))
    image.paste((0, 0, 255), (0, 16, 64, 32))
    return image


def test_blocks_have_the_colours_of_the_picture(image: Image.Image) -> None:
    lines = draw(image, "blocks").split("\n")
    assert len(lines) == 8 and all(line.count("▀") == 32 and line.endswith("\x1b[0m") for line in lines)
    assert "38;2;255;0;0;48;2;255;0;0m" in lines[0] and "38;2;0;0;255;48;2;0;0;255m" in lines[-1]


def test_kitty_and_iterm_get_a_png(image: Image.Image) -> None:
    kitty = draw(image, "kitty")
    assert kitty.startswith("\x1b_Ga=T,f=100,m=0;") and kitty.endswith("\x1b\\")
    iterm = draw(image, "iterm")
    for text in (kitty.partition(";")[2][:-2], iterm.rpartition(":")[2][:-1]):
        with Image.open(io.BytesIO(base64.b64decode(text))) as shown:
            assert shown.size == (64, 32) and shown.convert("RGB").getpixel((0, 0)) == (255, 0, 0)


def test_a_large_picture_goes_to_kitty_in_pieces() -> None:
    noise = Image.effect_noise((400, 400), 100)
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", draw(noise, "kitty"))
    assert len(pieces) > 1 and all(len(data) <= 4096 for _, data in pieces)
    assert [head for head, _ in pieces] == ["a=T,f=100,m=1", *["m=1"] * (len(pieces) - 2), "m=0"]
    with Image.open(io.BytesIO(base64.b64decode("".join(data for _, data in pieces)))) as shown:
        assert shown.size == (192, 192)


def test_sixels_are_read_back_as_the_picture(image: Image.Image) -> None:
    text = draw(image, "sixel")
    head = re.match(r'\x1bPq"1;1;64;32', text)
    assert head is not None and text.endswith("\x1b\\")
    body = text[head.end() : -2]
    colours = {int(n): (int(r), int(g), int(b)) for n, r, g, b in re.findall(r"#(\d+);2;(\d+);(\d+);(\d+)", body)}
    pixels: dict[tuple[int, int], tuple[int, int, int]] = {}
    for band, line in enumerate(re.sub(r"#\d+;2;\d+;\d+;\d+", "", body).split("-")):
        for row in filter(None, line.split("$")):
            number, letters = re.match(r"#(\d+)(.*)", row).groups()  # type: ignore[union-attr]
            expanded = re.sub(r"!(\d+)(.)", lambda m: m[2] * int(m[1]), letters)
            for x, letter in enumerate(expanded):
                for bit in range(6):
                    if ord(letter) - 63 & 1 << bit:
                        pixels[x, 6 * band + bit] = colours[int(number)]
    assert len(pixels) == 64 * 32
    assert pixels[5, 2] == (100, 0, 0) and pixels[60, 30] == (0, 0, 100)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [(1, 1), (1000, 3), (3, 1000)])
def test_odd_shapes_are_shown_too(way: str, size: tuple[int, int]) -> None:
    assert draw(Image.new("L", size, 128), way)
