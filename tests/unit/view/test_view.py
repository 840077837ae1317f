"""The parts of the viewer that need no server: ranges, kinds of files, values for JSON, pictures, the shelf."""

from __future__ import annotations

import io
import json
import math
import threading
import time
import wave
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from sds.errors import OptionError, SourceError
from sds.fetch.folder import key_of, name_of
from sds.transforms import ResizeAudio
from sds.view import cache, pictures
from sds.view.kinds import SHOWN, kind_of_name, sniff
from sds.view.outputs import parts_of, plain, sample_rate
from sds.view.ranges import Unsatisfiable, parse_range
from sds.view.shelf import Shelf, View, while_waiting


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (None, None),
        ("bytes=0-", (0, 100)),
        ("bytes=0-0", (0, 1)),
        ("bytes=10-19", (10, 20)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=20-10", None),
        ("bytes=0-1,5-6", None),
        ("bytes=-", None),
        ("lines=0-1", None),
        ("bytes=9999999999999999999-", None),
    ],
)
def test_a_range_is_what_a_browser_asked_for(header, wanted):
    assert parse_range(header, 100) == wanted


@pytest.mark.parametrize(("header", "size"), [("bytes=100-", 100), ("bytes=0-", 0), ("bytes=-0", 100)])
def test_a_range_past_the_end_is_refused(header, size):
    with pytest.raises(Unsatisfiable):
        parse_range(header, size)


def encoded(format: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize("format", ["jpeg", "png", "gif", "webp", "bmp", "tiff", "avif"])
def test_real_images_are_known_by_their_bytes(format):
    assert sniff(encoded(format)) == f"image/{format}"
    assert (f"image/{format}" in SHOWN) == (format != "tiff"), "no browser but one shows TIFF"


@pytest.mark.parametrize(
    ("head", "type_"),
    [
        (b"\0\0\0\x20ftypisom", "video/mp4"),
        (b"\0\0\0\x20ftypM4A ", "audio/mp4"),
        (b"\0\0\0\x18ftypheic", "image/heif"),
        (b"RIFF\0\0\0\0WAVEfmt ", "audio/wav"),
        (b"\x1aE\xdf\xa3", "video/webm"),
        (b"ID3\4", "audio/mpeg"),
        (b"\xff\xfb\x90", "audio/mpeg"),
        (b"\xff\xf1\x50", "audio/aac"),
        (b"OggS" + b"\0" * 24 + b"\x01vorbis", "audio/ogg"),
        ("text".encode("utf-16"), None),
        (b"<svg onload=alert(1)>", None),
        (b"<!doctype html><script>", None),
        (b"%PDF-1.7", None),
        (b"", None),
    ],
)
def test_what_may_be_sent_to_a_browser_is_decided_by_bytes(head, type_):
    assert sniff(head) == type_


def test_names_are_a_promise():
    names = ["a.JPG", "s3://b/a.mp4", "https://h/x.flac?sig=a.png", "a.svg", "a.html", "jpg", "a/b.txt"]
    assert [kind_of_name(name) for name in names] == ["image", "video", "audio", None, None, None, "text"]


def test_every_value_becomes_json_that_a_browser_reads():
    values = [
        float("nan"),
        float("inf"),
        2**60,
        -(2**60),
        5,
        0.5,
        "\ud800",
        b"abc",
        {"a": [None, True]},
        {1},
        "x" * 99,
    ]
    text = json.dumps([plain(each, 10) for each in values], allow_nan=False)
    whole = [5, 0.5, "?", "<3 bytes>", {"a": [None, True]}, "{1}", "x" * 10 + "…"]
    assert json.loads(text) == ["nan", "inf", str(2**60), str(-(2**60)), *whole]


def test_outputs_are_drawn_by_what_they_are():
    sample = {
        "image": torch.zeros(3, 8, 8, dtype=torch.uint8),
        "frames": torch.zeros(20, 3, 8, 6),
        "audio": torch.zeros(2, 800),
        "latent": {"samples": torch.randn(16, 8, 8).to(torch.bfloat16)},
        "embedding": torch.zeros(77, 768),
        "n": 3,
        "nested": [torch.zeros(2), "x"],
        "empty": torch.zeros(3, 0, 0),
        "sound": torch.zeros(400),
        "small": torch.zeros(4, 8, 8).to(torch.float8_e4m3fn),
        "sparse": torch.eye(3).to_sparse(),
    }
    parts = {part.name: part for part in parts_of(sample, 8000)}
    kinds = {name: (part.kind, part.draw is not None) for name, part in parts.items()}
    assert kinds == {
        "image": ("image", True),
        "frames": ("video", True),
        "audio": ("audio", True),
        "latent.samples": ("tensor", True),
        "embedding": ("tensor", False),
        "n": ("value", False),
        "nested.0": ("tensor", False),
        "nested.1": ("text", False),
        "empty": ("tensor", False),
        "sound": ("audio", True),
        "small": ("tensor", True),
        "sparse": ("tensor", False),
    }
    drawn = {name: part.draw() for name, part in parts.items() if part.draw is not None}
    for name in ("image", "frames", "latent.samples"):
        Image.open(io.BytesIO(drawn[name][1])).load()
    assert Image.open(io.BytesIO(drawn["image"][1])).size == (8, 8)
    with wave.open(io.BytesIO(drawn["audio"][1])) as sound:
        assert (sound.getnchannels(), sound.getframerate(), sound.getnframes()) == (2, 8000, 800)
    assert "0.10 s at 8000 Hz" in parts["audio"].text
    with wave.open(io.BytesIO(drawn["sound"][1])) as sound:
        assert (sound.getnchannels(), sound.getnframes()) == (1, 400)


def test_the_rate_of_a_sound_is_that_of_the_last_resampling():
    resize = ResizeAudio("audio", "sr", 22_050, duration=1.0)
    assert sample_rate({"sr": 48_000}, [resize]) == 22_050
    assert sample_rate({"original_audio_sampling_rate": 48_000}, []) == 48_000
    assert sample_rate({"scores": 5}, []) == 16_000


@pytest.mark.parametrize(
    ("values", "wanted"),
    [([0.0, 1.0], [0, 255]), ([-1.0, 0.0], [0, 128]), ([0.0, 10.0], [0, 255]), ([5.0, 5.0], [0, 0])],
)
def test_values_become_pixels_by_their_meaning(values, wanted):
    assert pictures.to_bytes(np.array(values)).tolist() == wanted


def test_pixels_are_counted_by_the_header_alone():
    assert pictures.num_pixels(io.BytesIO(encoded("png"))) == 64
    huge = bytearray(encoded("png"))
    huge[16:24] = (30_000).to_bytes(4, "big") * 2
    huge[29:33] = zlib.crc32(huge[12:29]).to_bytes(4, "big")
    assert pictures.num_pixels(io.BytesIO(huge)) == math.inf
    assert pictures.num_pixels(io.BytesIO(b"no image")) == 0


def test_a_file_in_the_cache_is_found_whatever_endpoint_it_came_from(tmp_path):
    key = key_of("s3://b/a.jpg", "v1", "http://127.0.0.1:1")
    place = tmp_path / "objects" / key[:2] / name_of(key, 5, ".jpg")
    place.parent.mkdir(parents=True)
    place.write_bytes(b"12345")
    endpoints = cache.endpoints({"s3": {"aws_endpoint_url": "http://127.0.0.1:1"}})
    assert cache.is_cached(tmp_path, "s3://b/a.jpg", "v1", endpoints)
    assert not cache.is_cached(tmp_path, "s3://b/a.jpg", "v2", endpoints)
    assert not cache.is_cached(tmp_path, "s3://b/a.jpg", "v1", {None})
    assert cache.describe(tmp_path) == {"path": str(tmp_path), "files": 1, "bytes": 5}


class Fake:
    """What the shelf knows of a dataset."""

    def __init__(self) -> None:
        self.num_closed = 0
        self.fingerprint = "rows"
        self.delivery = SimpleNamespace(pipeline=SimpleNamespace(index=None))

    def close(self) -> None:
        self.num_closed += 1


def test_a_dataset_is_opened_once_however_many_ask_at_once():
    opened, is_open, num_in = [], threading.Event(), threading.Semaphore(0)

    def open_slowly(query, seed):
        opened.append((query, seed))
        assert is_open.wait(10)
        return Fake()

    shelf, found = Shelf(open_slowly), []

    def ask():
        num_in.release()
        with shelf.use(View("q", 1)) as dataset:
            found.append(dataset)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for _ in threads:
        num_in.acquire()
    is_open.set()
    for thread in threads:
        thread.join()
    assert opened == [("q", 1)]
    assert len(found) == 5 and len(set(map(id, found))) == 1


def test_the_longest_unused_are_closed_and_never_one_that_is_used():
    shelf = Shelf(lambda query, seed: Fake(), most=2)
    with shelf.use(View(None, 0)) as held:
        for seed in range(1, 6):
            with shelf.use(View(None, seed)) as dataset:
                pass
        assert held.num_closed == 0, "somebody looks at it"
        assert dataset.num_closed == 0, "it was used last"
        shelf.close()
        assert held.num_closed == 0
        assert dataset.num_closed == 1
    assert held.num_closed == 1
    with pytest.raises(OptionError, match="closed"), shelf.use(View(None, 0)):
        pass


def test_an_error_of_opening_is_tried_again():
    answers = [SourceError("no"), Fake()]

    def open_dataset(query, seed):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    shelf = Shelf(open_dataset)
    with pytest.raises(SourceError), shelf.use(View(None, None)):
        pass
    with shelf.use(View(None, None)) as dataset:
        assert dataset.num_closed == 0


def test_a_name_stands_for_the_rows_that_were_shown():
    shelf = Shelf(lambda query, seed: Fake())
    with pytest.raises(OptionError, match="unknown"):
        shelf.find(View(None, None, "rows").id)
    with shelf.use(View(None, None)) as dataset:
        name = shelf.name(View(None, None), dataset)
    assert shelf.find(name) == View(None, None, "rows")
    with shelf.use(shelf.find(name)) as dataset:
        dataset.fingerprint = "others"
    with pytest.raises(OptionError, match="have changed"), shelf.use(shelf.find(name)):
        pass
    shelf.close()


def test_whoever_leaves_is_not_waited_for_and_the_next_gets_a_dataset_of_its_own():
    gates, opened = [threading.Event(), threading.Event()], []

    def open_dataset(query, seed):
        opened.append(Fake())
        number = len(opened) - 1
        assert gates[number].wait(10)
        return opened[number]

    shelf, asked = Shelf(open_dataset), threading.Event()

    def has_left():
        asked.set()
        return True

    def leave():
        with pytest.raises(ConnectionAbortedError), while_waiting(has_left), shelf.use(View("q", None)):
            pass

    thread = threading.Thread(target=leave)
    thread.start()
    assert asked.wait(10)
    while shelf._places:  # until it is let go of
        time.sleep(0.001)
    gates[1].set()
    with shelf.use(View("q", None)) as dataset:
        assert dataset is opened[1]
    gates[0].set()
    thread.join()
    shelf.close()
    while [each.num_closed for each in opened] != [1, 1]:  # also the one that nobody waited for: its thread closes it
        time.sleep(0.001)
