"""ResizeImage and its neighbours: exact shapes, types and ranges, and agreement with Pillow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from sds.errors import DecodeError, OptionError, TransformError
from sds.testing.media import draw_image
from sds.transforms import ConvertImageToByteTensor, FlipImage, NormalizeFrames, ReshapeImageAsVideo, ResizeImage
from sds.transforms.geometry import crop_to_aspect


def tensor(size: tuple[int, int], number: int = 0) -> torch.Tensor:
    return torch.from_numpy(draw_image(number, size)[0]).permute(2, 0, 1)  # [3, h, w]


def resize(image: object, resolution: tuple[int, int], **options: object) -> torch.Tensor:
    return ResizeImage("x", "y", resolution=resolution, **options)({"x": image})["y"]


MODES = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


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
        # all round (and clip) between the two passes; Pillow's weights have other precisions
        assert difference.mean() < 0.3 and difference.max() <= (1 if mode == "bilinear" else 8)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("num_channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("target", [(20, 24), (90, 108)])
def test_any_number_of_channels_is_what_torch_makes_in_memory_of_its_own(mode, dtype, num_channels, target) -> None:
    images = [(torch.rand(num_channels, 50, 60) * 255).to(dtype) for _ in range(2)]
    found = [resize(image, target, interpolation_mode=mode) for image in images]
    for image, resized in zip(images, found, strict=True):  # the second has not overwritten the first
        last = image[None].contiguous(memory_format=torch.channels_last)
        expected = torch.nn.functional.interpolate(last, target, mode=mode, antialias=True)[0]
        assert resized.is_contiguous() and torch.equal(resized, expected)


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


def columns(height: int, width: int) -> torch.Tensor:
    """A picture whose values say which column they are in."""
    return torch.arange(width, dtype=torch.uint8).expand(3, height, width)


def drawn(transform, seed: int = 0, **fields: object) -> dict[str, object]:
    return transform({**fields, "__random_seed__": seed})


def test_a_random_crop_is_anywhere_and_belongs_to_the_sample() -> None:
    crop = ResizeImage("x", resolution=(10, 10), fit="random_crop")
    starts = [int(drawn(crop, seed, x=columns(10, 30))["x"][0, 0, 0]) for seed in range(200)]
    assert set(starts) == set(range(21))
    assert starts == [int(drawn(crop, seed, x=columns(10, 30))["x"][0, 0, 0]) for seed in range(200)]
    with pytest.raises(TransformError, match="random seed"):
        crop({"x": columns(10, 30)})
    assert torch.equal(drawn(crop, x=columns(10, 10))["x"], columns(10, 10))


def test_the_pictures_of_a_sample_are_cropped_and_flipped_alike() -> None:
    for seed in range(30):
        chain = [
            *(ResizeImage(name, resolution=(10, 10), fit="random_crop") for name in "ab"),
            *(FlipImage(name) for name in "ab"),
        ]
        sample = {"a": columns(10, 30), "b": columns(20, 60), "__random_seed__": seed}
        for transform in chain:
            sample = transform(sample)
        assert (sample["a"].float() - sample["b"].float() / 2).abs().max() <= 2


def test_padding_shows_the_whole_picture() -> None:
    image = torch.full((3, 20, 40), 200, dtype=torch.uint8)
    padded = resize(image, (30, 30), fit="pad", pad_colour=(1, 2, 3))
    assert padded.shape == (3, 30, 30) and padded.is_contiguous()
    assert (padded[:, 7:22] == 200).all() and padded[:, 0, 0].tolist() == [1, 2, 3] == padded[:, -1, -1].tolist()
    assert (resize(image.mT, (30, 30), fit="pad")[:, :, :7] == 0).all()
    assert resize(image[:1], (30, 30), fit="pad", pad_colour=(9, 0, 0))[0, 0, 0] == 9
    floating = resize(image.float() / 100 - 1, (30, 30), fit="pad")
    assert floating.dtype == torch.float32 and floating[0, 0, 0] == 0 and floating[0, 15, 15] == 1
    assert torch.equal(resize(image, (20, 40), fit="pad"), image)


def test_stretching_by_its_two_names() -> None:
    image = tensor((30, 50))
    assert torch.equal(resize(image, (20, 20), fit="stretch"), resize(image, (20, 20), crop_before_resize=False))
    assert torch.equal(resize(image, (20, 20), fit="crop"), resize(image, (20, 20)))


def test_portrait_pictures_get_the_resolution_upright() -> None:
    options = {"allow_vertical": True}
    assert resize(tensor((80, 60)), (20, 30), **options).shape == (3, 30, 20)
    assert resize(tensor((60, 80)), (20, 30), **options).shape == (3, 20, 30)
    assert resize(tensor((80, 60)), (30, 20), **options).shape == (3, 30, 20)
    assert resize(tensor((80, 60)), (20, 30)).shape == (3, 20, 30)


def test_a_resolution_drawn_from_several() -> None:
    weights = {(16, 16): 1, (32, 32): 3, (64, 64): 4}
    draw = ResizeImage("x", resolution=(8, 8), random_resize=weights)
    sizes = [tuple(drawn(draw, seed, x=tensor((48, 48)))["x"].shape[1:]) for seed in range(200)]
    assert set(sizes) == {(16, 16), (32, 32)} and 25 < sizes.count((16, 16)) < 80  # 64 is larger than the picture
    assert drawn(draw, x=tensor((9, 9)))["x"].shape == (3, 8, 8)
    assert draw.largest == (64, 64)
    both = ResizeImage("x", resolution=(8, 20), random_resize={(30, 10): 1}, allow_vertical=True)
    assert both.largest == (30, 20)


def test_flips() -> None:
    image, video = tensor((9, 11)), tensor((9, 11)).expand(2, 3, 9, 11)
    flips = [torch.equal(drawn(FlipImage("x", "y"), seed, x=image)["y"], image.flip(-1)) for seed in range(100)]
    assert 30 < sum(flips) < 70
    always = drawn(FlipImage("x", probability=1), x=video)["x"]
    assert torch.equal(always, video.flip(-1)) and always.is_contiguous()
    assert torch.equal(drawn(FlipImage("x", probability=0), x=image)["x"], image)
    for probability in (-1, 2, "x", True, float("nan")):
        with pytest.raises(OptionError, match="probability"):
            FlipImage("x", probability=probability)


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (9, 1), (2, 3)])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_tiny_images_grow(size, mode) -> None:
    image = torch.full((3, *size), 77, dtype=torch.uint8)
    for target in ((256, 256), (1, 1), (3, 500)):
        assert (resize(image, target, interpolation_mode=mode) == 77).all()


def test_an_image_of_the_right_size_is_unchanged() -> None:
    image = tensor((64, 80))
    assert torch.equal(resize(image, (64, 80)), image)
    assert resize(image, (64, 80)).is_contiguous()
    assert torch.equal(resize(image, (64, 64)), image[:, :, 8:72])
    half = torch.rand(3, 64, 80, dtype=torch.bfloat16)  # which NumPy does not know
    assert torch.equal(resize(half, (64, 80)), half)


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
        ({"resolution": (4, 4), "fit": "squeeze"}, "fit"),
        ({"resolution": (4, 4), "fit": "pad", "crop_before_resize": False}, "fit"),
        ({"resolution": (4, 4), "pad_colour": (0, 0, 256)}, "pad_colour"),
        ({"resolution": (4, 4), "random_resize": {}}, "random_resize"),
        ({"resolution": (4, 4), "random_resize": {(4, 4): -1}}, "random_resize"),
        ({"resolution": (4, 4), "random_resize": {4: 1}}, "random_resize"),
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
