"""Resizing in C: to the bit what torch makes, whatever the shape, and nothing but errors where it does not fit."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sds.transforms import ResizeImage, pixels
from sds.transforms import _native as native

MODES = {"bilinear": torch._C._nn._upsample_bilinear2d_aa, "bicubic": torch._C._nn._upsample_bicubic2d_aa}
SIDES = st.integers(1, 90) | st.integers(1, 5) | st.sampled_from([15, 16, 17, 31, 32, 33, 63, 64, 65, 300])


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Bytes at both ends of their range, where rounding and clamping show."""
    drawn = np.random.default_rng(seed)
    return np.where(drawn.random(shape) < 0.3, drawn.choice([0, 255], shape), drawn.integers(0, 256, shape)).astype(
        "u1"
    )


def by_torch(image: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    return MODES[mode](torch.from_numpy(image[None].transpose(0, 3, 1, 2)), size, False, None, None).numpy()[0]


def by_us(image: np.ndarray, size: tuple[int, int], mode: str, *way: int) -> np.ndarray:
    result = np.full((image.shape[2], *size), 77, np.uint8)
    native.resample(image, result, mode, *way)
    return result


@settings(max_examples=300, deadline=None)
@given(
    size=st.tuples(SIDES, SIDES),
    target=st.tuples(SIDES, SIDES),
    channels=st.integers(1, 4),
    mode=st.sampled_from(list(MODES)),
    seed=st.integers(0, 9),
)
def test_it_is_what_torch_makes_to_the_bit(size, target, channels, mode, seed) -> None:
    image = noise(*size, channels, seed=seed)
    expected = by_torch(image, target, mode)
    np.testing.assert_array_equal(by_us(image, target, mode), expected)
    for way in range(len(native.WAYS)):
        np.testing.assert_array_equal(by_us(image, target, mode, way), expected, err_msg=native.WAYS[way])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", range(len(native.WAYS)))
@pytest.mark.parametrize(
    ("size", "target"),
    [
        ((375, 500), (256, 256)),
        ((1080, 1920), (256, 455)),
        ((4000, 30), (3, 300)),
        ((30, 4000), (300, 3)),
        ((2, 3), (700, 900)),
        ((1, 1), (64, 64)),
        ((257, 256), (256, 256)),
        ((3000, 2), (1, 1)),
    ],
)
def test_sizes_that_people_have_and_some_that_nobody_has(size, target, mode, way) -> None:
    image = noise(*size, 3)
    np.testing.assert_array_equal(by_us(image, target, mode, way), by_torch(image, target, mode))


def test_parts_of_pictures_and_pictures_upside_down_are_read_where_they_lie() -> None:
    image = noise(120, 200, 3)
    for part in (image[10:90, 33:140], image[::-1], image[::3, 5:], image[7:8], image[:, 9:10]):
        np.testing.assert_array_equal(
            by_us(np.ascontiguousarray(part), (50, 60), "bilinear"),
            ResizeImage("x", resolution=(50, 60), fit="stretch")({"x": part})["x"].numpy(),
        )
    np.testing.assert_array_equal(
        by_us(image[::-1], (50, 60), "bilinear"), by_us(image[::-1].copy(), (50, 60), "bilinear")
    )


def test_channels_do_not_mix() -> None:
    image = noise(70, 45, 7)
    alone = np.concatenate([by_us(np.ascontiguousarray(image[:, :, [c]]), (33, 91), "bicubic") for c in range(7)])
    np.testing.assert_array_equal(by_us(image, (33, 91), "bicubic"), alone)


def test_a_picture_of_one_colour_stays_one() -> None:
    for value in (0, 1, 128, 254, 255):
        image = np.full((123, 77, 3), value, np.uint8)
        for mode in MODES:
            assert (by_us(image, (50, 200), mode) == value).all()


@pytest.mark.parametrize(
    ("image", "result", "mode", "says"),
    [
        (np.zeros((4, 4)), np.zeros((3, 2, 2), "u1"), "bilinear", "pixels are bytes"),
        (np.zeros((4, 4, 3)), np.zeros((3, 2, 2), "u1"), "bilinear", "pixels are bytes"),
        (np.zeros((4, 0, 3), "u1"), np.zeros((3, 2, 2), "u1"), "bilinear", "pixels are bytes"),
        (np.zeros((4, 8, 3), "u1")[:, ::2], np.zeros((3, 2, 2), "u1"), "bilinear", "pixels are bytes"),
        (np.zeros((3, 4, 4), "u1").transpose(1, 2, 0), np.zeros((3, 2, 2), "u1"), "bilinear", "pixels are bytes"),
        (np.zeros((4, 4, 3), "u1"), np.zeros((4, 2, 2), "u1"), "bilinear", "the result is bytes"),
        (np.zeros((4, 4, 3), "u1"), np.zeros((3, 2), "u1"), "bilinear", "the result is bytes"),
        (np.zeros((4, 4, 3), "u1"), np.zeros((3, 0, 2), "u1"), "bilinear", "the result is bytes"),
        (np.zeros((4, 4, 3), "u1"), np.zeros((3, 2, 2), "f4"), "bilinear", "the result is bytes"),
        (np.zeros((4, 4, 3), "u1"), np.zeros((3, 2, 2), "u1"), "lanczos", "no such filter: lanczos"),
    ],
)
def test_what_does_not_fit_is_refused(image, result, mode, says) -> None:
    with pytest.raises(ValueError, match=says):
        native.resample(image, result, mode)


@pytest.mark.parametrize("way", [-1, len(native.WAYS)])
def test_a_way_that_this_machine_does_not_have_is_refused(way) -> None:
    with pytest.raises(ValueError, match="no such way"):
        by_us(noise(4, 4, 3), (2, 2), "bilinear", way)


def test_memory_that_cannot_be_written_to_is_refused_and_nothing_leaks() -> None:
    image, result = noise(40, 40, 3), np.zeros((3, 9, 9), np.uint8)
    result.flags.writeable = False
    before = sys.getrefcount(image), sys.getrefcount(result)
    for _ in range(20):
        with pytest.raises((ValueError, BufferError)):
            native.resample(image, result, "bilinear")
    assert (sys.getrefcount(image), sys.getrefcount(result)) == before


def test_threads_resize_side_by_side() -> None:
    images = [noise(200 + 10 * k, 300, 3, seed=k) for k in range(4)]
    expected = [by_us(image, (99, 101), "bilinear") for image in images]
    wrong: list[int] = []

    def work(k: int) -> None:
        found = [by_us(images[k], (99, 101), "bilinear") for _ in range(50)]
        wrong.extend(k for each in found if not np.array_equal(each, expected[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("mode", MODES)
def test_without_a_compiler_torch_makes_the_same(mode, monkeypatch) -> None:
    image = torch.from_numpy(noise(375, 500, 3)).permute(2, 0, 1)
    resize = ResizeImage("x", "y", resolution=(256, 200), interpolation_mode=mode)
    ours = resize({"x": image})["y"]
    monkeypatch.setattr(pixels, "_native", None)
    assert torch.equal(resize({"x": image})["y"], ours)
