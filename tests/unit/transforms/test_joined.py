"""DecodeImage and ResizeImage as one: the same samples, bit for bit, with nothing of one image left in another."""

from __future__ import annotations

import io
import threading
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

from sds.errors import DecodeError
from sds.testing.media import draw_image
from sds.transforms import DecodeImage, FlipImage, ResizeImage, jpeg, pixels
from sds.transforms.base import join_neighbours
from sds.transforms.places import Place, lend_from
from sds.transforms.resize import FITS
from sds.transforms.scratch import scratch


@pytest.fixture(autouse=True, params=["C", "torch"])
def resized_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there was no compiler, everything is the same."""
    if request.param == "torch":
        monkeypatch.setattr(pixels, "native", None)
        monkeypatch.setattr(jpeg, "native", None)


def encoded(size: tuple[int, int], kind: str = "JPEG", number: int = 0, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(draw_image(number, size)[0]).save(file, kind, **options)
    return file.getvalue()


def turned(size: tuple[int, int], orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(size, exif=exif)


def apart(sample: dict, decode: DecodeImage, resize: ResizeImage) -> torch.Tensor:
    return resize(decode(dict(sample)))["x"]


FILES = {
    "jpeg": encoded((375, 500)),
    "upright": encoded((500, 375)),
    "large": encoded((512, 384)),
    "target's size": encoded((64, 96)),
    "one pixel": encoded((1, 1)),
    "turned": turned((120, 200), 6),
    "flipped": turned((120, 200), 2),
    "progressive": encoded((200, 300), progressive=True),
    "png": encoded((200, 300), "PNG"),
    "webp": encoded((90, 200), "WEBP"),
}
OTHER = encoded((375, 500), number=3)


@pytest.mark.parametrize("name", FILES)
def test_joined_makes_the_same(name):
    for target, fit in product([(64, 96), (1, 1), (300, 200)], FITS):
        decode, resize = DecodeImage("x", min_size=(96, 144)), ResizeImage("x", resolution=target, fit=fit)
        (joined,) = join_neighbours([decode, resize])
        sample = {"x": FILES[name], "__random_seed__": 7}
        found = joined(dict(sample))["x"]
        assert torch.equal(found, apart(sample, decode, resize)), (target, fit)
        assert found.is_contiguous() and found.untyped_storage().nbytes() == found.nbytes
        kept = found.clone()
        joined({"x": OTHER, "__random_seed__": 1})  # the scratch memory has another image now
        assert torch.equal(found, kept), (target, fit)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_every_interpolation(mode):
    decode, resize = DecodeImage("x"), ResizeImage("x", resolution=(50, 70), interpolation_mode=mode)
    (joined,) = join_neighbours([decode, resize])
    assert torch.equal(joined({"x": FILES["jpeg"]})["x"], apart({"x": FILES["jpeg"]}, decode, resize))


@pytest.mark.parametrize(
    "chain",
    [
        [DecodeImage("url", "x"), ResizeImage("y", resolution=(8, 8))],
        [DecodeImage("url", "x"), ResizeImage("x", "small", resolution=(8, 8))],
        [DecodeImage("url", "x"), FlipImage("x"), ResizeImage("x", resolution=(8, 8))],
        [ResizeImage("x", resolution=(8, 8)), DecodeImage("x")],
        [lambda sample: sample, ResizeImage("x", resolution=(8, 8))],
        [],
    ],
)
def test_others_stay_as_they_are(chain):
    assert join_neighbours(chain) == tuple(chain)


class MyResize(ResizeImage):
    """Does something else."""


class MyDecode(DecodeImage):
    """Does something else."""


@pytest.mark.parametrize(
    "chain",
    [
        [DecodeImage("x"), MyResize("x", resolution=(8, 8))],
        [MyDecode("x"), ResizeImage("x", resolution=(8, 8))],
    ],
)
def test_a_subclass_is_not_joined(chain):
    assert join_neighbours(chain) == tuple(chain)


class Lends:
    """A lender with one place."""

    def __init__(self, form):
        self.form = form
        self.place = torch.zeros(form[0], dtype=form[1])
        self.num = 0

    def lend(self, field, shape, dtype):
        if (field, shape, dtype) != ("x", *self.form):
            return None
        self.num += 1
        return Place(self.place, self.place.numpy())


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", ["jpeg", "upright", "large", "png", "turned"])
def test_it_writes_the_same_into_a_place_of_the_batch(mode, name):
    resize = ResizeImage("x", resolution=(64, 96), interpolation_mode=mode)
    (joined,) = join_neighbours([DecodeImage("x"), resize])
    expected = joined({"x": FILES[name]})["x"]
    lender = Lends(((3, 64, 96), torch.uint8))
    lend_from(lender)
    try:
        found = joined({"x": FILES[name]})["x"]
    finally:
        lend_from(None)
    assert lender.num == 1 and found.data_ptr() == lender.place.data_ptr() and torch.equal(found, expected)


def test_an_error_names_the_field_and_the_sample():
    (joined,) = join_neighbours([DecodeImage("x"), ResizeImage("x", resolution=(8, 8))])
    with pytest.raises(DecodeError, match="field 'x'") as caught:
        joined({"x": FILES["jpeg"][:500], "__sample_key__": "7"})
    assert (caught.value.key, caught.value.stage) == ("7", "decode")
    assert "DecodeImage(" in repr(joined) and "ResizeImage(" in repr(joined)


class TestScratch:
    def test_it_is_the_same_memory_each_time(self):
        first, second = scratch("here", (4, 5, 3)), scratch("here", (4, 5, 3))
        assert first is second and first.batch.shape == (1, 3, 4, 5)
        smaller = scratch("here", (2, 2, 3), np.uint16)
        assert np.may_share_memory(first.pixels, smaller.pixels) and smaller.pixels.dtype == np.uint16
        assert not np.may_share_memory(scratch("there", (4, 5, 3)).pixels, first.pixels)

    def test_another_thread_has_its_own(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(scratch("here", (4, 5, 3))))
        thread.start()
        thread.join()
        assert not np.may_share_memory(found[0].pixels, scratch("here", (4, 5, 3)).pixels)

    def test_what_is_very_large_is_not_kept(self):
        shape = (2400, 2400, 3)
        assert scratch("large", shape) is not scratch("large", shape)
