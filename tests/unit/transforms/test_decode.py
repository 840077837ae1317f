"""DecodeImage on real files: every mode, format and orientation against Pillow's own reading."""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from sds.errors import DecodeError, OptionError, TransformError
from sds.testing.media import draw_image
from sds.transforms import DecodeImage, jpeg


def decode(data: object, **options: object) -> np.ndarray:
    """Decodes and returns [h, w, 3], having checked that it came as uint8 [3, h, w]."""
    image = DecodeImage("file", "image", **options)({"file": data})["image"]
    assert isinstance(image, torch.Tensor) and image.dtype == torch.uint8 and image.ndim == 3 and image.shape[0] == 3
    return image.permute(1, 2, 0).numpy()


def pillow(data: bytes) -> np.ndarray:
    return np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))


def test_from_path_str_and_bytes_like_values(tmp_path: Path, picture, encode) -> None:
    data = encode(picture, "JPEG", quality=90)
    path = tmp_path / "a picture.jpg"
    path.write_bytes(data)
    for value in (path, str(path), data, bytearray(data), memoryview(data)):
        np.testing.assert_array_equal(decode(value), pillow(data))


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_are_exact(format, picture, encode) -> None:
    np.testing.assert_array_equal(decode(encode(picture, format)), np.array(picture))


@pytest.mark.parametrize("format", ["JPEG", "WEBP", "JPEG2000", "AVIF"])
def test_lossy_formats_are_as_pillow_reads_them(format, picture, encode) -> None:
    data = encode(picture, format)
    np.testing.assert_array_equal(decode(data), pillow(data))


def heif(image: Image.Image, **options: object) -> bytes:
    import pillow_heif

    file = io.BytesIO()
    pillow_heif.from_pillow(image).save(file, quality=95, **options)
    return file.getvalue()


def test_heif(picture) -> None:
    data = heif(picture)
    assert data[4:12] == b"ftypheic"
    pixels = decode(data)
    assert pixels.shape == (123, 181, 3) and np.abs(pixels - np.array(picture).astype(int)).mean() < 2.5
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = decode(heif(picture, exif=exif.tobytes()))
    assert np.abs(turned.astype(int) - np.rot90(pixels, -1)).mean() < 1
    with pytest.raises(DecodeError, match="max_pixels"):
        decode(data, max_pixels=1000)
    for share in (0.1, 0.5, 0.9, 0.99):
        with pytest.raises(DecodeError):
            decode(data[: int(len(data) * share)])


def test_heif_without_its_package_says_what_to_install(picture, monkeypatch) -> None:
    data = heif(picture)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(DecodeError, match=r"streaming-dataset\[heif\]"):
        decode(data)


def test_avif_that_names_the_general_brand_first(picture, encode) -> None:
    data = encode(picture, "AVIF")
    assert data[8:12] == b"avif" and b"mif1" in data[16:32]
    np.testing.assert_array_equal(decode(data[:8] + b"mif1" + data[12:]), decode(data))


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"quality": 30}])
def test_jpeg_kinds(options, picture, encode) -> None:
    data = encode(picture, "JPEG", **options)
    np.testing.assert_array_equal(decode(data), pillow(data))


def test_grey_jpeg_and_png(picture, encode) -> None:
    for format in ("JPEG", "PNG"):
        data = encode(picture.convert("L"), format)
        np.testing.assert_array_equal(decode(data), pillow(data))


def test_one_bit_png(picture, encode) -> None:
    data = encode(picture.convert("1"), "PNG")
    assert set(np.unique(decode(data))) == {0, 255}
    np.testing.assert_array_equal(decode(data), pillow(data))


def test_cmyk_jpeg(picture, encode) -> None:
    data = encode(picture.convert("CMYK"), "JPEG", quality=95)
    assert jpeg.scan(data).num_components == 4
    np.testing.assert_array_equal(decode(data), pillow(data))
    assert np.abs(decode(data).astype(int) - np.array(picture)).mean() < 6


def test_sixteen_bit_grey_png_keeps_its_upper_bits(encode) -> None:
    values = np.arange(256 * 40, dtype=np.uint16).reshape(40, 256) * 6
    pixels = decode(encode(Image.fromarray(values), "PNG"))
    np.testing.assert_array_equal(pixels, np.repeat((values >> 8).astype(np.uint8)[:, :, None], 3, axis=2))


def test_sixteen_bit_tiff(encode) -> None:
    values = np.full((5, 7), 0x8000, np.uint16)
    assert (decode(encode(Image.fromarray(values), "TIFF")) == 0x80).all()


def test_floating_tiff_has_no_range_and_is_refused(encode) -> None:
    with pytest.raises(DecodeError, match="no fixed range"):
        decode(encode(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"))


@pytest.mark.parametrize(("mode", "format"), [("RGBA", "PNG"), ("RGBA", "WEBP"), ("LA", "PNG")])
def test_transparency_is_put_over_the_background(mode, format, picture, encode) -> None:
    image = picture.convert(mode)
    alpha = Image.fromarray(np.tile(np.linspace(0, 255, image.width).astype(np.uint8), (image.height, 1)))
    image.putalpha(alpha)
    data = encode(image, format, **({"lossless": True, "exact": True} if format == "WEBP" else {}))
    source = np.array(image.convert("RGBA")).astype(float)
    share = source[:, :, 3:] / 255
    for background in ((255, 255, 255), (10, 200, 30)):
        expected = source[:, :, :3] * share + np.array(background) * (1 - share)
        assert np.abs(decode(data, background=background) - expected).max() <= 1
    np.testing.assert_array_equal(decode(data, background=None), source[:, :, :3].astype(np.uint8))


def test_palette_with_transparency(encode) -> None:
    image = Image.new("P", (2, 2))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2, 1])
    for transparency, first in ((0, [9, 9, 9]), (b"\x00\xff\xff", [9, 9, 9])):
        for format in ("PNG", "GIF") if transparency == 0 else ("PNG",):
            pixels = decode(encode(image, format, transparency=transparency), background=(9, 9, 9))
            assert pixels.reshape(-1, 3).tolist() == [first, [0, 255, 0], [0, 0, 255], [0, 255, 0]]


def test_colour_key_transparency(encode) -> None:
    image = Image.new("RGB", (2, 1), (10, 20, 30))
    image.putpixel((1, 0), (1, 2, 3))
    pixels = decode(encode(image, "PNG", transparency=(1, 2, 3)))
    assert pixels.tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_gif_gives_its_first_frame(encode) -> None:
    first, second = Image.new("RGB", (8, 6), (200, 10, 10)), Image.new("RGB", (8, 6), (10, 200, 10))
    data = encode(first, "GIF", save_all=True, append_images=[second])
    assert (decode(data) == [200, 10, 10]).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_exif_orientation(orientation, format, picture, encode) -> None:
    exif = Image.Exif()
    exif[0x010F] = "a maker"
    exif[0x0112] = orientation
    data = encode(picture, format, exif=exif)
    pixels = decode(data)
    assert pixels.shape[:2] == ((181, 123) if orientation >= 5 else (123, 181))
    np.testing.assert_array_equal(pixels, pillow(data))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_a_cmyk_and_of_a_reduced_jpeg(orientation, encode) -> None:
    pixels, _ = draw_image(3, (300, 500))
    image, exif = Image.fromarray(pixels), Image.Exif()
    exif[0x0112] = orientation
    cmyk = encode(image.convert("CMYK"), "JPEG", exif=exif)
    np.testing.assert_array_equal(decode(cmyk), pillow(cmyk))
    data = encode(image, "JPEG", exif=exif)
    wanted = (200, 140) if orientation >= 5 else (140, 200)
    reduced = decode(data, min_size=wanted)
    assert reduced.shape[:2] == ((250, 150) if orientation >= 5 else (150, 250))
    full = Image.fromarray(pillow(data)).reduce(2)
    assert np.abs(reduced.astype(int) - np.array(full)).mean() < 3


@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_is_read_in_both_byte_orders(order) -> None:
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif.endian = order
        exif[0x0112] = orientation
        assert jpeg.orientation_of(exif.tobytes()) == orientation


def test_broken_exif_is_upright(picture, encode) -> None:
    for junk in (
        b"",
        b"Exif\0\0",
        b"Exif\0\0II",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff",
        b"xx",
    ):
        assert jpeg.orientation_of(junk) == 1
        assert jpeg.orientation_of(junk + bytes(50)) == 1
        np.testing.assert_array_equal(decode(encode(picture, "JPEG", exif=junk + bytes(20))).shape, (123, 181, 3))


@pytest.mark.parametrize(
    ("size", "least", "factor"),
    [
        ((375, 500), (256, 256), 1),
        ((768, 1024), (256, 256), 2),
        ((511, 511), (256, 256), 2),  # 511 / 2 rounds up
        ((510, 510), (256, 256), 1),
        ((4096, 4096), (256, 256), 8),
        ((4096, 300), (256, 256), 1),
        ((100, 100), (256, 256), 1),
        ((4096, 4096), None, 1),
    ],
)
def test_reduction_never_goes_below_the_size_wanted(size, least, factor, encode) -> None:
    assert jpeg.reduction(size, least) == factor
    data = encode(Image.new("RGB", (size[1], size[0])), "JPEG")
    assert decode(data, min_size=least).shape == (-(-size[0] // factor), -(-size[1] // factor), 3)


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (3, 5), (1, 999), (17, 16), (7, 8)])
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF"])
def test_tiny_and_odd_sizes(size, format, encode) -> None:
    data = encode(Image.new("RGB", (size[1], size[0]), (120, 130, 140)), format)
    assert decode(data).shape == (*size, 3)
    assert decode(data, min_size=(4, 4)).shape[0] >= min(size[0], 4)


def test_jpeg_with_harmless_faults_is_read(picture, encode) -> None:
    data = encode(picture, "JPEG")
    np.testing.assert_array_equal(decode(data + b"trailing bytes"), pillow(data))
    np.testing.assert_array_equal(decode(data[:-2] + b"junk" + data[-2:]), pillow(data))


def test_the_tensor_can_be_written_to_and_outlives_its_source(picture, encode) -> None:
    for format in ("JPEG", "PNG"):
        image = DecodeImage("file")({"file": encode(picture, format)})["file"]
        image[:] = 7
        assert int(image.sum()) == 7 * image.numel()


def test_too_many_pixels_are_refused_before_decoding(encode) -> None:
    for format in ("JPEG", "PNG", "WEBP", "GIF"):
        data = encode(Image.new("RGB", (40, 30)), format)
        with pytest.raises(DecodeError, match="40 x 30 pixels are more than max_pixels=1199"):
            decode(data, max_pixels=1199)
        decode(data, max_pixels=1200)


def test_a_decompression_bomb_takes_no_memory(encode) -> None:
    head = bytearray(encode(Image.new("RGB", (8, 8)), "JPEG"))
    at = head.index(b"\xff\xc0") + 5
    head[at : at + 4] = b"\xff\xdc\xff\xdc"  # 65500 x 65500
    with pytest.raises(DecodeError, match="65500 x 65500"):
        decode(bytes(head))
    png = bytearray(encode(Image.new("RGB", (8, 8)), "PNG"))
    png[16:24] = b"\x00\x01\x00\x00\x00\x01\x00\x00"
    with pytest.raises(DecodeError):
        decode(bytes(png))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_of_endless_scans_is_refused(picture, encode, mode) -> None:
    data = encode(picture.convert(mode), "JPEG", progressive=True)
    at = data.rindex(b"\xff\xda")
    with pytest.raises(DecodeError, match="scans"):
        decode(data[:-2] + data[at:-2] * 600 + data[-2:])


@pytest.mark.parametrize("profile", ["\nexif\n 4\nnot hexadecimal\n", "\nexif\n 3\n4d4\n", "", "\n\n\n\x00"])
def test_a_broken_exif_profile_leaves_a_png_upright(picture, encode, profile) -> None:
    info = PngInfo()
    info.add_text("Raw profile type exif", profile)
    np.testing.assert_array_equal(decode(encode(picture, "PNG", pnginfo=info)), np.array(picture))


def test_a_jpeg_of_endless_fill_bytes_is_refused_at_once() -> None:
    with pytest.raises(DecodeError, match="segments"):
        decode(b"\xff\xd8" + b"\xff" * 50_000_000)


def test_errors_name_file_and_sample(tmp_path: Path) -> None:
    path = tmp_path / "broken.jpg"
    path.write_bytes(b"\xff\xd8\xff\xe0 this is no picture")
    with pytest.raises(DecodeError) as caught:
        DecodeImage("file")({"file": str(path), "__sample_key__": "row 7"})
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.url, error.key, error.stage) == (str(path), "row 7", "decode")
    assert str(path) in str(error) and "hint:" in str(error)


@pytest.mark.parametrize(
    "value", [b"", b"\xff", b"hello", b"%!PS-Adobe-3.0 EPSF-3.0\n", "no/such/file.jpg", "nul\0byte.jpg", None, 3, ["a"]]
)
def test_what_is_no_image_is_a_decode_error(value) -> None:
    with pytest.raises(DecodeError):
        decode(value)


def test_folders_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(DecodeError):
            decode(path)


def test_errors_about_bytes_name_the_field() -> None:
    with pytest.raises(DecodeError, match="field 'file'") as caught:
        decode(b"no picture")
    assert caught.value.url is None


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TransformError, match=r"'file'.*\['caption', 'image'\]"):
        DecodeImage("file")({"image": b"", "caption": ""})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"input_field": ""}, "input_field"),
        ({"input_field": 3}, "input_field"),
        ({"input_field": "a", "output_field": ""}, "output_field"),
        ({"input_field": "a", "min_size": 256}, "min_size"),
        ({"input_field": "a", "min_size": (256, 0)}, "min_size"),
        ({"input_field": "a", "min_size": (1.5, 2)}, "min_size"),
        ({"input_field": "a", "background": (0, 0)}, "background"),
        ({"input_field": "a", "background": (0, 0, 256)}, "background"),
        ({"input_field": "a", "max_pixels": 0}, "max_pixels"),
        ({"input_field": "a", "max_pixels": "many"}, "max_pixels"),
    ],
)
def test_options_are_checked_by_name(options, name) -> None:
    with pytest.raises(OptionError, match=name):
        DecodeImage(**options)
