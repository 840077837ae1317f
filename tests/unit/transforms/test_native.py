"""Resizing in C: to the bit what torch makes, whatever the shape, and nothing but errors where it does not fit."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import compiled
from sds.transforms import ResizeImage, pixels
from sds.transforms import _native as native

MODES = {"bilinear": torch._C._nn._upsample_bilinear2d_aa, "bicubic": torch._C._nn._upsample_bicubic2d_aa}
SIDES = st.integers(1, 90) | st.integers(1, 5) | st.sampled_from([15, 16, 17, 31, 32, 33, 63, 64, 65, 300])
UNTOUCHED = 77


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Bytes at both ends of their range, where rounding and clamping show."""
    drawn = np.random.default_rng(seed)
    return np.where(drawn.random(shape) < 0.3, drawn.choice([0, 255], shape), drawn.integers(0, 256, shape)).astype(
        "u1"
    )


def by_torch(image: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    image = image.copy()  # torch takes no negative strides
    return MODES[mode](torch.from_numpy(image[None].transpose(0, 3, 1, 2)), size, False, None, None).numpy()[0]


def torch_is_right(size: tuple[int, int]) -> bool:
    """Its code for other processors is wrong where the result is one pixel wide: Pillow makes what we make."""
    return size[1] > 1 or torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def by_us(image: np.ndarray, size: tuple[int, int], mode: str, *way: str) -> np.ndarray:
    """The result lies between two others, as in a batch, which must stay what they are."""
    batch = np.full((3, image.shape[2], *size), UNTOUCHED, np.uint8)
    native.resample(image, batch[1], mode, *way)
    assert (batch[0] == UNTOUCHED).all() and (batch[2] == UNTOUCHED).all()
    return batch[1]


@settings(max_examples=300, deadline=None)
@given(
    size=st.tuples(SIDES, SIDES),
    target=st.tuples(SIDES, SIDES),
    channels=st.integers(1, 4),
    mode=st.sampled_from(list(MODES)),
    seed=st.integers(0, 9),
    gap=st.integers(0, 40),
    step=st.sampled_from([1, -1, 3]),
)
def test_it_is_what_torch_makes_to_the_bit(size, target, channels, mode, seed, gap, step) -> None:
    assume(torch_is_right(target))
    height, width = size
    whole = noise(height * abs(step), width + gap, channels, seed=seed)
    image = whole[::step, gap // 2 : gap // 2 + width]  # a part of it, upside down, or every third row
    expected = by_torch(image, target, mode)
    np.testing.assert_array_equal(by_us(image, target, mode), expected)
    for way in native.WAYS:
        np.testing.assert_array_equal(by_us(image, target, mode, way), expected, err_msg=way)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", native.WAYS)
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
    found = by_us(image, target, mode, way)
    if torch_is_right(target):
        np.testing.assert_array_equal(found, by_torch(image, target, mode))
    else:
        np.testing.assert_array_equal(found, by_us(image, target, mode, "plain"))


@pytest.mark.parametrize("way", native.WAYS)
@pytest.mark.parametrize("size", [(1, 1), (16, 16), (17, 33), (40, 100), (65, 31), (64, 64)])
def test_nothing_is_read_beyond_the_picture(size, way) -> None:
    """The picture ends where a page ends, and the next page cannot be read."""
    num_bytes, page = size[0] * size[1] * 3, mmap.PAGESIZE
    num_pages = -(-num_bytes // page)
    memory = mmap.mmap(-1, (num_pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + num_pages * page), page, 0) == 0
    try:
        start = num_pages * page - num_bytes
        image = np.frombuffer(memory, np.uint8, num_bytes, start).reshape(*size, 3)
        image[...] = noise(*size, 3)
        for target in ((20, 20), (100, 7), (64, 64)):
            np.testing.assert_array_equal(by_us(image, target, "bilinear", way), by_torch(image, target, "bilinear"))
    finally:
        libc.mprotect(ctypes.c_void_p(address + num_pages * page), page, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("shape", [(1, 50, 60), (3, 50, 1), (3, 1, 60), (2, 7, 9), (1, 1, 1)])
def test_tensors_of_any_layout_give_the_same(shape) -> None:
    image = torch.from_numpy(noise(*shape))  # [c, h, w]
    expected = by_torch(image.permute(1, 2, 0).numpy(), (33, 21), "bilinear")
    resize = ResizeImage("x", resolution=(33, 21), fit="stretch")
    for same in (image, image.permute(1, 2, 0).contiguous().permute(2, 0, 1), image.expand(2, *shape)[1]):
        np.testing.assert_array_equal(resize({"x": same})["x"].numpy(), expected)


def test_channels_do_not_mix() -> None:
    image = noise(70, 45, 7)
    alone = np.concatenate([by_us(np.ascontiguousarray(image[:, :, [c]]), (33, 91), "bicubic") for c in range(7)])
    np.testing.assert_array_equal(by_us(image, (33, 91), "bicubic"), alone)


@pytest.mark.parametrize("value", [0, 1, 128, 254, 255])
def test_a_picture_of_one_colour_stays_one(value) -> None:
    for mode in MODES:
        assert (by_us(np.full((123, 77, 3), value, np.uint8), (50, 200), mode) == value).all()


PIXELS, RESULT = np.zeros((4, 4, 3), "u1"), np.zeros((3, 2, 2), "u1")


@pytest.mark.parametrize(
    ("image", "result", "mode", "says"),
    [
        (np.zeros((4, 4), "u1"), RESULT, "bilinear", "pixels are uint8"),
        (np.zeros((4, 4, 3)), RESULT, "bilinear", "pixels are uint8"),
        (np.zeros((4, 4, 3), "i1"), RESULT, "bilinear", "pixels are uint8"),
        (np.zeros((4, 0, 3), "u1"), RESULT, "bilinear", "pixels are uint8"),
        (np.broadcast_to(np.zeros((1, 4, 3), "u1"), (2**40, 4, 3)), RESULT, "bilinear", "pixels are uint8"),
        (np.zeros((4, 8, 3), "u1")[:, ::2], RESULT, "bilinear", "pixels are uint8"),
        (np.zeros((3, 4, 4), "u1").transpose(1, 2, 0), RESULT, "bilinear", "pixels are uint8"),
        (PIXELS, np.zeros((4, 2, 2), "u1"), "bilinear", "the result is uint8"),
        (PIXELS, np.zeros((3, 2), "u1"), "bilinear", "the result is uint8"),
        (PIXELS, np.zeros((3, 0, 2), "u1"), "bilinear", "the result is uint8"),
        (PIXELS, np.zeros((3, 2, 2), "f4"), "bilinear", "the result is uint8"),
        (PIXELS, np.zeros((3, 2, 4), "u1")[:, :, ::2], "bilinear", "not C-contiguous"),
        (PIXELS, np.frombuffer(bytes(12), "u1").reshape(3, 2, 2), "bilinear", "read-only"),
        (PIXELS, RESULT, "lanczos", "no such filter: lanczos"),
    ],
)
def test_what_does_not_fit_is_refused_and_let_go_of(image, result, mode, says) -> None:
    before = sys.getrefcount(image), sys.getrefcount(result)
    for _ in range(20):
        with pytest.raises((ValueError, BufferError), match=says):
            native.resample(image, result, mode)
    assert (sys.getrefcount(image), sys.getrefcount(result)) == before


def test_what_was_resized_is_let_go_of() -> None:
    image, result = noise(40, 40, 3), np.zeros((3, 9, 9), np.uint8)
    before = sys.getrefcount(image), sys.getrefcount(result)
    for _ in range(20):
        native.resample(image, result, "bilinear")
    assert (sys.getrefcount(image), sys.getrefcount(result)) == before


def test_a_way_that_this_machine_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="no such way here: sse9"):
        by_us(noise(4, 4, 3), (2, 2), "bilinear", "sse9")


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


def test_others_have_python_meanwhile() -> None:
    image, result = noise(3000, 3000, 3), np.empty((3, 2900, 2900), np.uint8)

    def work() -> None:
        for _ in range(5):  # tenths of a second each
            native.resample(image, result, "bicubic", "plain")

    assert compiled.num_turns(work) > 20  # one or two for each call, if it kept Python to itself


def test_it_can_be_loaded_again_and_again() -> None:
    """Somebody who clears sys.modules makes the module once more."""
    code = (
        "import sys\n"
        "for _ in range(10):\n"
        "    import sds.transforms._native as native\n"
        "    found = native.WAYS\n"
        "    del sys.modules['sds.transforms._native']\n"
        "print(*found)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert found.stdout.split() == list(native.WAYS)


@pytest.mark.parametrize("mode", MODES)
def test_without_a_compiler_torch_makes_the_same(mode, monkeypatch) -> None:
    image = torch.from_numpy(noise(375, 500, 3)).permute(2, 0, 1)
    resize = ResizeImage("x", "y", resolution=(256, 200), interpolation_mode=mode)
    ours = resize({"x": image})["y"]
    monkeypatch.setattr(pixels, "native", None)
    assert torch.equal(resize({"x": image})["y"], ours)


def test_a_side_that_is_too_long_for_us_is_torchs() -> None:
    image = torch.zeros(1, 1, native.LONGEST + 1, dtype=torch.uint8)
    assert ResizeImage("x", resolution=(1, 2), fit="stretch")({"x": image})["x"].shape == (1, 1, 2)
    long = (1, native.LONGEST + 1)
    assert ResizeImage("x", resolution=long, fit="stretch")({"x": image[..., :2]})["x"].shape == (1, *long)


@pytest.mark.parametrize(
    ("state", "says"), [("missing", "None"), ("broken", "ImportError: undefined symbol")], ids=["missing", "broken"]
)
def test_where_it_is_missing_it_goes_without_and_where_it_is_broken_it_says_so(state, says) -> None:
    code = "from sds.transforms import pixels\nprint(pixels.native)"
    assert compiled.last_line("sds.transforms._native", state, code) == says


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_results_are_here_whatever_torchs_default_device_is(dtype) -> None:
    image = torch.from_numpy(noise(40, 50, 3)).permute(2, 0, 1).to(dtype)
    with torch.device("meta"):
        found = ResizeImage("x", "y", resolution=(20, 20))({"x": image})["y"]
    assert found.device.type == "cpu" and found.dtype == dtype
