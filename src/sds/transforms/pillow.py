"""Encoded images of any kind but plain JPEG -> RGB pixels, through Pillow.

Comes in: the whole file; its first bytes decide which decoder sees it, and no other does. Goes out: upright uint8
[h, w, 3]. Decoders raise what they like: whoever calls `decode` maps every exception.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sds.transforms.jpeg import orient, orientation_of

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["decode", "to_rgb"]

# offset, first bytes, Pillow's name of the format, the plugin to load
_KINDS = (
    (0, b"\xff\xd8\xff", "JPEG", "JpegImagePlugin"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG", "PngImagePlugin"),
    (8, b"WEBP", "WEBP", "WebPImagePlugin"),
    (0, b"GIF8", "GIF", "GifImagePlugin"),
    (4, b"ftypavif", "AVIF", "AvifImagePlugin"),
    (4, b"ftypavis", "AVIF", "AvifImagePlugin"),
    (0, b"BM", "BMP", "BmpImagePlugin"),
    (0, b"II*\0", "TIFF", "TiffImagePlugin"),
    (0, b"MM\0*", "TIFF", "TiffImagePlugin"),
    (0, b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG2000", "Jpeg2KImagePlugin"),
    (0, b"\xff\x4f\xff\x51", "JPEG2000", "Jpeg2KImagePlugin"),
    (0, b"P1", "PPM", "PpmImagePlugin"),
    (0, b"P2", "PPM", "PpmImagePlugin"),
    (0, b"P3", "PPM", "PpmImagePlugin"),
    (0, b"P4", "PPM", "PpmImagePlugin"),
    (0, b"P5", "PPM", "PpmImagePlugin"),
    (0, b"P6", "PPM", "PpmImagePlugin"),
)

_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}


def decode(data: bytes, max_pixels: int, background: tuple[int, int, int] | None) -> npt.NDArray[np.uint8]:
    """Decodes the first frame, upright, to RGB [h, w, 3].

    Raises:
        ValueError: the format is unknown, the image has more than `max_pixels`, or its values have no fixed range.
        Exception: whatever Pillow finds wrong.
    """
    with _open(data) as image:  # reads the header only
        if image.width * image.height > max_pixels:
            raise ValueError(f"{image.width} x {image.height} pixels are more than max_pixels={max_pixels}")
        image.load()
        # TIFF and HEIF are turned upright by their decoders
        orientation = 1 if image.format in ("TIFF", "HEIF") else orientation_of(_exif(image))
        pixels = np.array(to_rgb(image, background))  # [h, w, 3]
    return orient(pixels, orientation)


def to_rgb(image: Image.Image, background: tuple[int, int, int] | None) -> Image.Image:
    """Any of Pillow's modes to RGB; transparency is put over `background`, or dropped where that is None.

    Sixteen bits are cut to their upper eight, as libpng does.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):
        values = np.array(image)  # [h, w], 0 to 65535
        image = Image.fromarray((values.clip(0, 65535) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its values have no fixed range: mode {image.mode}")
    is_transparent = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    if not is_transparent:
        return image if image.mode == "RGB" else image.convert("RGB")
    if image.mode in ("RGBa", "La"):
        image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
    image = image.convert("RGBA")
    if background is None:
        return image.convert("RGB")
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


def _open(data: bytes) -> Image.Image:
    """Opens with the one decoder that the first bytes name."""
    if _is_heif(data[:64]):
        return _open_heif(data)
    from PIL import Image

    name, plugin = _kind(data[:64])
    importlib.import_module(f"PIL.{plugin}")
    return Image.open(io.BytesIO(data), formats=(name,))


def _open_heif(data: bytes) -> Image.Image:
    try:
        from pillow_heif import HeifImageFile, options
    except ImportError:
        raise ValueError("HEIF needs another package: pip install 'streaming-dataset[heif]'") from None
    options.DECODE_THREADS = 1  # the loader has threads of its own
    opened: Callable[[io.BytesIO], Image.Image] = HeifImageFile
    return opened(io.BytesIO(data))


def _is_heif(head: bytes) -> bool:
    """Whether the file type box names HEVC-coded pictures."""
    if head[4:8] != b"ftyp":
        return False
    brands = {head[at : at + 4] for at in (8, *range(16, min(int.from_bytes(head[:4], "big"), len(head)), 4))}
    return bool(brands & _HEIF_BRANDS) and not brands & _AVIF_BRANDS


def _kind(head: bytes) -> tuple[str, str]:
    if head[4:8] == b"ftyp" and b"avif" in head:  # whatever comes first among its brands
        return "AVIF", "AvifImagePlugin"
    for offset, magic, name, plugin in _KINDS:
        if head.startswith(magic, offset):
            return name, plugin
    raise ValueError(f"it begins like no image that is read here: {head[:16]!r}")


def _exif(image: Image.Image) -> bytes:
    exif = image.info.get("exif")
    if exif is None and isinstance(profile := image.info.get("Raw profile type exif"), str):  # ImageMagick's PNG
        try:
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
        except ValueError:  # no hexadecimal digits: the picture is whole all the same, and taken as upright
            exif = None
    return exif if isinstance(exif, bytes) else b""
