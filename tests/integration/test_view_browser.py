"""The viewer's page in a real browser: pictures, playing clips and sounds, SQL, keys; and nobody else is asked.

With SDS_UPDATE_DOCS=1 the screenshots in docs/assets are taken anew.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from browsing import BROWSER, Browser
from sds.testing.videos import make_videos
from sds.view.server import Viewer
from viewing import HUGE_CHUNK, huge, make_clips, make_photos, served

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser here: install Debian's chromium")

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
NUMBERS = itertools.count()
IS_FOR_DOCS = bool(os.environ.get("SDS_UPDATE_DOCS"))
READY = "document.querySelectorAll('.open').length > 0 && document.getElementById('bar').hidden"
PICTURES = "[...document.querySelectorAll('#grid img')]"
KEYS = "[...document.querySelectorAll('#grid .key')].map(each => each.textContent)"


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """Instead of the usual guard: the browser and its connections outlive a test; `browser` ends them, or fails."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser"), (1080, 620) if IS_FOR_DOCS else (720, 420)) as browser:
        move(browser, "reduce")
        yield browser


def move(browser: Browser, wish: str) -> None:
    """What the system is set to: "reduce" motion, or "no-preference"."""
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": wish}])


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[[Viewer, str], Browser]]:
    """look(viewer, "seed=1"): the page, when its rows are there. At the end: nobody but the viewer was asked."""
    ports = []

    def one(viewer: Viewer, words: str = "") -> Browser:
        ports.append(viewer.port)
        browser.requests.clear()
        browser.errors.clear()
        fresh = f"{viewer.url}?{next(NUMBERS)}"  # another #, and the browser would not load it anew
        browser.open(f"{fresh}#{words}" if words else fresh)
        browser.until(f"document.readyState !== 'loading' && !!document.querySelector('#empty') && {READY}")
        return browser

    yield one
    browser.run("1")  # events that are still on their way come before its answer
    asked = {urlsplit(url).netloc for url in browser.requests if urlsplit(url).scheme not in ("data", "about", "blob")}
    assert asked == {f"127.0.0.1:{port}" for port in ports}, "a request left loopback"
    assert browser.errors == [], "the page failed, or asked for what it forbids itself"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("photos"), 60, (180, 240) if IS_FOR_DOCS else (48, 64))


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_clips(tmp_path_factory.mktemp("clips"), 4 if IS_FOR_DOCS else 2)


@pytest.fixture(scope="module")
def viewer(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    with served(photos, tmp_path_factory.mktemp("dst"), data_type="image", resolution=128) as viewer:
        yield viewer


def keep(browser: Browser, name: str) -> None:
    """Takes a screenshot for the documentation, where that is wanted."""
    if IS_FOR_DOCS:
        path = ASSETS / f"view-{name}.png"
        browser.shoot(path)
        image = Image.open(path).convert("RGB")
        image.quantize(palette=image.quantize(256)).save(path, optimize=True)  # dithered, to be small


def test_images_are_shown_and_one_that_is_broken_says_so(look, viewer):
    page = look(viewer, "seed=42")
    loaded = f"{PICTURES}.filter(each => each.complete && each.naturalWidth > 0).length"
    failed = "document.querySelectorAll('#grid .bad').length"
    page.until(f"{loaded} + {failed} === 24")
    assert page.run("document.getElementById('summary').textContent") == "60 rows, shuffled by seed 42, epoch 0"
    keep(page, "images")
    page = look(viewer, "num=12")
    page.until(f"{loaded} >= 10 && {failed} === 1")
    assert "file not found" in page.run("document.querySelector('#grid .bad').textContent")
    assert page.run("document.querySelector('.caption').textContent").startswith("a")
    check_names(page)


def check_names(page: Browser) -> None:
    """Everything has a name that can be read out."""
    page.call("Accessibility.enable")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    page.call("Accessibility.disable")
    controls = [
        node
        for node in nodes
        if not node.get("ignored")
        and node["role"]["value"] in ("button", "textbox", "spinbutton", "slider", "combobox", "image", "link")
    ]
    roles = {node["role"]["value"] for node in controls}
    assert {"button", "textbox", "spinbutton", "slider", "combobox"} <= roles
    assert [node for node in controls if not node.get("name", {}).get("value")] == []
    live = "[...document.querySelectorAll('[aria-live], [role=alert]')].map(each => each.id)"
    assert {"error", "status"} <= set(page.run(live))


def test_a_sample_has_its_row_and_what_transforms_make_side_by_side(look, viewer):
    page = look(viewer, "seed=42&at=24")
    page.press("Tab")
    assert page.run("document.activeElement.className") == "skip"
    page.press("Enter")  # to the samples, and what is shown stays
    page.until("document.activeElement === document.querySelector('.open')")
    assert page.run(f"{READY} && location.hash") == "#seed=42&at=24"
    page.press("ArrowRight", "Enter")
    page.until(
        "document.querySelectorAll('#made img').length === 1 && document.querySelectorAll('#row img').length === 1"
    )
    page.until("[...document.querySelectorAll('#sample img')].every(each => each.naturalWidth > 0)")
    assert page.run("document.querySelector('#made img').naturalWidth") == 128
    title = page.run("document.getElementById('sample-title').textContent")
    assert title.startswith("Position 25, epoch 0 · row "), title
    assert "comes at position" in page.run("document.getElementById('row').textContent")
    keep(page, "sample")
    page.press("ArrowRight")
    page.until("document.getElementById('sample-title').textContent.startsWith('Position 26, epoch 0 · row')")
    page.press("Escape")
    page.until("!document.getElementById('sample').open")
    page.until("document.activeElement === document.querySelectorAll('.open')[2]")  # the focus is back


def test_a_sample_that_fails_says_why_and_is_counted_and_a_page_can_be_checked(look, viewer):
    page = look(viewer, "at=7&num=12")
    page.press("ArrowRight", "Enter")
    page.until("!!document.querySelector('#made .problem')")
    assert "image" in page.run("document.querySelector('#made .problem').textContent")
    page.until("document.getElementById('num-failures').textContent >= '1'")
    page.press("Escape")
    page.run("document.getElementById('failures').click()")
    page.until("document.querySelectorAll('#panel-body button').length > 0")
    assert "000007" in page.run("document.getElementById('panel-body').textContent")
    page.run("document.querySelector('#panel-body button').click()")
    page.until("document.getElementById('sample').open && !!document.querySelector('#made .problem')")
    page.press("Escape")
    for name, words in (("about", "rows: 60 of 60"), ("cache", "files of this page")):
        page.run(f"document.getElementById('{name}').click()")
        page.until(f"document.getElementById('panel-body').textContent.includes('{words}')")
        page.press("Escape")
        page.until("!document.getElementById('panel').open")
    page.run("document.getElementById('check').click()")
    page.until("document.getElementById('status').textContent === '10 fine, 2 failed'")
    assert page.run("document.querySelectorAll('.pill.failed').length") == 2


def test_keys_page_and_move(look, viewer):
    page = look(viewer, "num=12")
    first = page.run(KEYS)
    page.press("PageDown")
    page.until("document.getElementById('at').value === '12'")
    page.until(f"{KEYS}[0] === '000012'")
    page.press("PageUp")
    page.until(f"{KEYS}[0] === '{first[0]}'")
    page.press("End")
    page.until(f"{KEYS}[0] === '000048'")
    assert page.run("document.getElementById('next').disabled")
    page.press("Home")
    page.until(f"{KEYS}[0] === '000000' && document.activeElement.classList.contains('open')")
    page.press("ArrowLeft")  # before the first there is nothing
    page.press(*["ArrowRight"] * 12)  # past the last card of the page
    page.until(f"{KEYS}[0] === '000012' && document.activeElement === document.querySelectorAll('.open')[0]")
    page.press("ArrowLeft")
    page.until(f"{KEYS}[0] === '000000' && document.activeElement === document.querySelectorAll('.open')[11]")
    page.press("ArrowUp")
    assert page.run("[...document.querySelectorAll('.open')].indexOf(document.activeElement)") < 11
    page.press("/")
    assert page.run("document.activeElement.id") == "sql"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    page.press("Tab")
    assert page.run(f"document.activeElement.id === 'seed' && {outline} !== 'none'"), "the focus is seen"


def test_sql_errors_stand_under_the_box_and_an_empty_result_is_none(look, viewer):
    page = look(viewer, "at=12" if IS_FOR_DOCS else "at=12&num=12")
    page.run("document.getElementById('sql').focus()")
    page.call("Input.insertText", text="SELECT * FROM dataframe WHERE qualty > 0.5")
    page.press("Enter")
    page.until("!document.getElementById('error').hidden")
    text = page.run("document.getElementById('error').innerText")
    assert "qualty" in text and "hint: " in text and "quality" in text
    assert page.run("document.getElementById('sql').getAttribute('aria-invalid')") == "true"
    assert page.run("document.querySelectorAll('.open').length") >= 12, "what was there stays"
    page.until(f"{PICTURES}.every(each => each.complete)")
    keep(page, "sql-error")
    page.run("document.querySelector('.open').click()")
    page.until("document.getElementById('sample-title').textContent === 'Position 12 · row 12 · 000012'")
    page.press("Escape")  # of what was there, a sample still opens
    page.until("document.activeElement === document.querySelector('.open')")
    page.run("document.getElementById('sql').focus()")
    page.run("document.getElementById('sql').value = 'SELECT * FROM dataframe WHERE quality > 5'")
    page.press("Enter")
    page.until("!document.getElementById('empty').hidden && document.getElementById('error').hidden")
    assert page.run("document.querySelectorAll('.open').length") == 0
    assert "query leaves none of 60 rows" in page.run("document.getElementById('empty').innerText")
    keep(page, "empty")
    page.run("document.getElementById('sql').value = 'SELECT * FROM dataframe WHERE quality > 0.9 ORDER BY quality'")
    page.press("Enter")
    page.until(f"{READY} && document.getElementById('empty').hidden")
    assert page.run("document.getElementById('summary').textContent").endswith(" of 60 rows, in the order of the index")
    page.run("history.back()")
    page.until("!document.getElementById('empty').hidden")


def test_whatever_a_table_holds_is_text(look, tmp_path):
    bad = "<img src=x onerror='document.title = 1'>"
    columns = {"id": [bad], "caption": [{"en": bad}], bad: [f"{bad}!"], "constructor": ["c"], "__proto__": ["p"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with served(tmp_path / "t.parquet", tmp_path / "dst") as viewer:
        page = look(viewer)
        page.until("document.title.endsWith('sds view') && document.title !== 'sds view'")
        card = page.run("document.querySelector('.card').innerText")
        assert card.startswith(json.dumps({"en": bad}, separators=(",", ":"))) and f"{bad}\t{bad}!" in card
        assert "constructor\tc" in card and "__proto__\tp" in card
        page.press("ArrowRight", "Enter")
        page.until("!!document.querySelector('#made table')")
        assert page.run("document.querySelectorAll('#grid img, #sample img').length") == 0
        assert page.run("document.title") != "1"
        page.press("Escape")


def test_clips_play(look, clips, tmp_path):
    with served(clips[0], tmp_path / "dst", data_type="video") as viewer:
        page = look(viewer)
        page.press("ArrowRight")
        assert page.run("document.activeElement.querySelector('video').paused"), "less motion is wished for"
        move(page, "no-preference")
        page.press("ArrowRight", "ArrowLeft")
        page.until("(v => v.readyState >= 3 && v.currentTime > 0.2)(document.querySelector('.open video'))")
        assert page.run("document.querySelector('.open video').videoWidth") == 320
        keep(page, "video")
        move(page, "reduce")
        page.press("Enter")
        page.until("document.querySelector('#row video')?.readyState >= 1")
        page.until("document.querySelector('#made img')?.naturalWidth > 64")
        assert page.run("document.querySelector('#row video').duration") > 1.9
        page.run("document.querySelector('#row video').currentTime = 1.5")
        page.until("(v => !v.seeking && v.readyState >= 2)(document.querySelector('#row video'))")
        page.press("Escape")


def test_a_clip_that_the_browser_cannot_play_shows_its_first_frame(look, tmp_path):
    make_videos(tmp_path / "clips", 1)  # MPEG-4 part 2
    (tmp_path / "t.csv").write_text("id,video\na,clips/000000.mp4\n")
    with served(tmp_path / "t.csv", tmp_path / "dst") as viewer:
        page = look(viewer)
        move(page, "no-preference")
        page.press("ArrowRight")
        page.until("document.querySelector('.open img')?.naturalWidth === 96")
        move(page, "reduce")
        page.press("Enter")
        page.until("document.getElementById('row').textContent.includes('cannot play this codec')")
        page.press("Escape")


def test_sounds_play(look, clips, tmp_path):
    with served(clips[1], tmp_path / "dst", data_type="audio") as viewer:
        page = look(viewer)
        page.until(
            "[...document.querySelectorAll('#grid audio')].every(each => each.readyState >= 1 && each.duration > 1.9)"
        )
        page.run("document.querySelector('#grid audio').play()")
        page.until("document.querySelector('#grid audio').currentTime > 0.1")
        keep(page, "audio")
        page.press("ArrowRight", "Enter")
        page.until("document.querySelector('#made audio')?.readyState >= 1")
        assert 4.9 < page.run("document.querySelector('#made audio').duration") < 5.1, "the preset's five seconds"
        page.press("Escape")


def test_a_hundred_million_rows(look, tmp_path_factory):
    src, dst = huge(tmp_path_factory)
    with served(src, dst, id_column="index", lazy_index_chunk_size=HUGE_CHUNK) as viewer:
        page = look(viewer, "seed=7")
        page.run("document.getElementById('at').focus(); document.getElementById('at').select()")
        page.call("Input.insertText", text="87654321")
        page.press("Enter")
        page.until(f"{READY} && document.getElementById('status').textContent.startsWith('87,654,321 to')")
        page.until(f"{PICTURES}.length === 24 && {PICTURES}.every(each => each.naturalWidth > 0)")
        assert page.run("document.getElementById('summary').textContent").startswith("100,000,000 rows, shuffled")
        keep(page, "100m")
        page.run("document.getElementById('last').click()")
        page.until("document.getElementById('status').textContent.endsWith('99,999,999 of 100,000,000')")
