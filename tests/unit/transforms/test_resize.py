"""ResizeImage and its neighbours: exact shapes, types and ranges, and agreement with Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sds.errors import DecodeError, OptionError, TransformError
from sds.testing.media import draw_image
from sds.transforms import ConvertImageToByteTensor, NormalizeFrames, ReshapeImageAsVideo, ResizeImage
from sds.transforms.geometry import crop_to_aspect


def tensor(size: tuple[int, int], number: int = 0) -> torch.Tensor:
    return torch.from_numpy(draw_image(number, size)[0]).permute(2, 0, 1)  # [3, h, w]


def resize(image: object, resolution: tuple[int, int], **options: object) -> torch.Tensor:
    return ResizeImage("x", "y", resolution=resolution, **options)({"x": image})["y"]


MODES = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("size", "target"),
    [
        ((375, 500), (256, 256)),
        ((500, 375), (256, 256)),
        ((768, 1024), (256, 256)),
        ((333, 517), (100, 300)),
        ((97, 101), (250, 260)),
        ((64, 64), (64, 32)),
        ((50, 50), (51, 49)),
        ((7, 300), (64, 64)),
    ],
)
def test_agrees_with_pillow_within_one_level(mode, size, target) -> None:
    image = tensor(size)
    for crop in (True, False):
        top, left, height, width = crop_to_aspect(size, target) if crop else (0, 0, *size)
        source = Image.fromarray(image.permute(1, 2, 0).numpy()).crop((left, top, left + width, top + height))
        expected = np.array(source.resize((target[1], target[0]), MODES[mode])).astype(int)
        found = resize(image, target, crop_before_resize=crop, interpolation_mode=mode)
        assert found.shape == (3, *target) and found.dtype == torch.uint8 and found.is_contiguous()
        difference = np.abs(found.permute(1, 2, 0).numpy() - expected)
        # torch makes the cheaper pass first, and rounds (and clips) between the two
        assert difference.mean() < 0.3 and difference.max() <= (1 if mode == "bilinear" else 4)


def test_the_centre_is_cropped_to_the_targets_aspect() -> None:
    assert crop_to_aspect((375, 500), (256, 256)) == (0, 62, 375, 375)
    assert crop_to_aspect((500, 375), (256, 256)) == (62, 0, 375, 375)
    assert crop_to_aspect((100, 100), (50, 100)) == (25, 0, 50, 100)
    assert crop_to_aspect((256, 256), (256, 256)) == (0, 0, 256, 256)
    assert crop_to_aspect((1, 1000), (512, 8)) == (0, 499, 1, 1)
    image = torch.zeros(3, 10, 30, dtype=torch.uint8)
    image[:, :, 10:20] = 200
    assert (resize(image, (5, 5)) == 200).all()
    assert (resize(image, (5, 5), crop_before_resize=False)[:, :, 0] == 0).all()


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (9, 1), (2, 3)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_tiny_images_grow(size, mode) -> None:
    image = torch.full((3, *size), 77, dtype=torch.uint8)
    for target in ((256, 256), (1, 1), (3, 500)):
        assert (resize(image, target, interpolation_mode=mode) == 77).all()


def test_an_image_of_the_right_size_is_unchanged() -> None:
    image = tensor((64, 80))
    assert torch.equal(resize(image, (64, 80)), image)
    assert resize(image, (64, 80)).is_contiguous()
    assert torch.equal(resize(image, (64, 64)), image[:, :, 8:72])


def test_takes_tensors_of_any_layout_arrays_and_pillow_images() -> None:
    view = tensor((90, 120))
    array = view.permute(1, 2, 0).numpy()
    expected = resize(view, (40, 40))
    frozen = array.copy()
    frozen.flags.writeable = False
    for image in (view.contiguous(), array, array[:, ::-1][:, ::-1], frozen, Image.fromarray(array)):
        assert torch.equal(resize(image, (40, 40)), expected)
    assert resize(view[:1], (40, 40)).shape == (1, 40, 40)
    assert resize(array[:, :, 0], (40, 40)).shape == (1, 40, 40)
    floating = resize(view.float() / 255, (40, 40))
    assert floating.dtype == torch.float32 and (floating * 255 - expected).abs().max() < 2


def test_is_deterministic_and_leaves_its_input_alone() -> None:
    image = tensor((90, 121))
    before = image.clone()
    assert torch.equal(resize(image, (33, 44)), resize(image, (33, 44)))
    assert torch.equal(image, before)


@pytest.mark.parametrize(
    "image", [None, "path.jpg", b"bytes", torch.zeros(3, 4), torch.zeros(3, 0, 4), np.zeros((2, 2, 3, 1))]
)
def test_what_is_no_image_is_a_transform_error(image) -> None:
    for transform in (ResizeImage("x", resolution=(4, 4)), ConvertImageToByteTensor("x"), ReshapeImageAsVideo("x")):
        with pytest.raises(TransformError, match="'x'"):
            transform({"x": image})


def test_a_lazy_pillow_image_that_is_broken_is_a_decode_error(tmp_path, picture) -> None:
    path = tmp_path / "a.png"
    picture.save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with Image.open(path) as image, pytest.raises(DecodeError):
        ConvertImageToByteTensor("x")({"x": image})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"resolution": 256}, "resolution"),
        ({"resolution": (256,)}, "resolution"),
        ({"resolution": (256, -1)}, "resolution"),
        ({"resolution": (4, 4), "interpolation_mode": "magic"}, "interpolation_mode"),
    ],
)
def test_options_are_checked_by_name(options, name) -> None:
    with pytest.raises(OptionError, match=name):
        ResizeImage("x", **options)


def test_convert_to_byte_tensor() -> None:
    view = tensor((9, 11))
    array = view.permute(1, 2, 0).numpy()
    opaque = np.dstack([array, np.full((9, 11), 255, np.uint8)])
    images = (
        view,
        array,
        Image.fromarray(array),
        opaque,
        Image.fromarray(opaque),
        torch.from_numpy(opaque).movedim(-1, 0),
    )
    for image in images:
        found = ConvertImageToByteTensor("x")({"x": image})["x"]
        assert found.is_contiguous() and torch.equal(found, view)
    for grey in (array[:, :, 0], view[:1], Image.fromarray(array[:, :, 0])):
        found = ConvertImageToByteTensor("x", "y")({"x": grey})["y"]
        assert torch.equal(found, view[:1].expand(3, -1, -1))
    with pytest.raises(TransformError, match="uint8"):
        ConvertImageToByteTensor("x")({"x": view.float()})


def test_normalize_frames_is_exact_at_both_ends() -> None:
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16)
    values = NormalizeFrames("x")({"x": levels})["x"]
    assert values.dtype == torch.float32 and values.shape == levels.shape
    assert values.min() == -1 and values.max() == 1
    assert torch.equal(values, levels.float() / 127.5 - 1)
    for bad in (values, None, [1]):
        with pytest.raises(TransformError, match="uint8"):
            NormalizeFrames("x")({"x": bad})


def test_reshape_as_video() -> None:
    image = tensor((9, 11))
    sample = ReshapeImageAsVideo("image", "video")({"image": image})
    assert sample["video"].shape == (1, 3, 9, 11) and torch.equal(sample["video"][0], image)
