"""Images and tensor files against an independent decoder, and thousands of broken ones: nothing but a DecodeError.

`SDS_FUZZ_FILES` says how many broken files of each kind are made: 2,000, and 10,000 in `make fuzz-media`.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import resource
import subprocess
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pillow_heif
import pytest
import torch
from PIL import Image
from safetensors.torch import save as save_safetensors

from sds.errors import DecodeError
from sds.testing.media import draw_image
from sds.transforms import DecodeImage, LoadJson, LoadTensors, LoadTextEmbedding, presets

NUM_FILES = int(os.environ.get("SDS_FUZZ_FILES", "2000"))
MAX_SECONDS_A_FILE = 5.0
MAX_MEMORY_KB = 1_000_000


def encode(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    if format == "HEIF":
        pillow_heif.from_pillow(image).save(file, **options)
    else:
        image.save(file, format, **options)
    return file.getvalue()


def picture(size: tuple[int, int], mode: str = "RGB", number: int = 5) -> Image.Image:
    return Image.fromarray(draw_image(number, size)[0]).convert(mode)


def ffmpeg(path: Path, size: tuple[int, int]) -> np.ndarray:
    """What the ffmpeg command makes of the file's first frame: [h, w, 3]."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-noautorotate", "-i", str(path), "-frames:v", "1"]
    scaler = ["-sws_flags", "bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"]
    done = subprocess.run(
        [*command, *scaler, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True, timeout=60
    )
    return np.frombuffer(done.stdout, np.uint8).reshape(*size, 3)


GOLDEN = {
    # name: (format, mode, options, most that may differ on average)
    "jpeg 4:4:4": ("JPEG", "RGB", {"quality": 92, "subsampling": 0}, 1.0),
    "jpeg 4:2:2": ("JPEG", "RGB", {"quality": 92, "subsampling": 1}, 2.0),
    "jpeg 4:2:0": ("JPEG", "RGB", {"quality": 92, "subsampling": 2}, 2.0),
    "jpeg progressive": ("JPEG", "RGB", {"quality": 92, "subsampling": 0, "progressive": True}, 1.0),
    "jpeg grey": ("JPEG", "L", {"quality": 92}, 1.0),
    "png": ("PNG", "RGB", {}, 0.0),
    "png grey": ("PNG", "L", {}, 0.0),
    "png palette": ("PNG", "P", {}, 0.0),
    "png one bit": ("PNG", "1", {}, 0.0),
    "bmp": ("BMP", "RGB", {}, 0.0),
    "gif": ("GIF", "P", {}, 0.0),
    "tiff": ("TIFF", "RGB", {"compression": "tiff_lzw"}, 0.0),
    "webp lossless": ("WEBP", "RGB", {"lossless": True}, 0.0),
    "webp": ("WEBP", "RGB", {"quality": 90}, 2.5),
    "avif": ("AVIF", "RGB", {"quality": 90, "subsampling": "4:4:4"}, 1.5),
}


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("size", [(122, 180), (97, 133)])
def test_images_are_as_ffmpeg_decodes_them(name, size, tmp_path):
    format, mode, options, tolerance = GOLDEN[name]
    path = tmp_path / f"picture.{format.lower()}"
    path.write_bytes(encode(picture(size, mode), format, **options))
    found = DecodeImage("path")({"path": str(path)})["path"].permute(1, 2, 0).numpy()  # [h, w, 3]
    assert np.abs(found.astype(int) - ffmpeg(path, size)).mean() <= tolerance


@pytest.mark.parametrize("size", [(768, 1024), (1000, 750), (2100, 1500)])
def test_scaled_decoding_stays_within_a_level_of_ffmpegs_full_size(size, tmp_path):
    path = tmp_path / "photo.jpg"
    path.write_bytes(encode(picture(size), "JPEG", quality=90, subsampling=0))
    sample: dict[str, Any] = {"path": str(path)}
    for transform in presets.create_standard_image_pipeline("path", (256, 256), resize_kwargs={"fit": "stretch"}):
        sample = transform(sample)
    full = Image.fromarray(ffmpeg(path, size)).resize((256, 256), Image.Resampling.BILINEAR)
    assert np.abs(sample["image"].permute(1, 2, 0).numpy() - np.array(full).astype(int)).mean() <= 1


# ---------------------------------------------------------------- broken files


def exif() -> bytes:
    tags = Image.Exif()
    tags[0x0112] = 6
    return tags.tobytes()


def torch_saved(value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file, **options)
    return file.getvalue()


def numpy_saved(save: Callable[..., None], *arguments: Any, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arguments, **arrays)
    return file.getvalue()


SMALL, TINY = (48, 64), (24, 32)
LATENT = {"mean": torch.arange(64.0).reshape(4, 4, 4), "logvar": torch.zeros(4, 4, 4), "half": torch.ones(3).bfloat16()}
ARRAYS = {name: value.float().numpy() for name, value in LATENT.items()}
NESTED = {**LATENT, "input_shape": (16, 3, 256, 256), "input_framerate": 24.0, "more": [1, "text", None]}

KINDS: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: encode(picture(SMALL), "JPEG", quality=85, exif=exif()),
    "jpeg progressive": lambda: encode(picture(SMALL), "JPEG", quality=85, progressive=True),
    "jpeg cmyk": lambda: encode(picture(SMALL, "CMYK"), "JPEG"),
    "png": lambda: encode(picture(SMALL), "PNG", exif=exif()),
    "png palette": lambda: encode(picture(SMALL, "P"), "PNG"),
    "webp": lambda: encode(picture(SMALL), "WEBP", exif=exif()),
    "gif": lambda: encode(picture(SMALL, "P"), "GIF"),
    "tiff": lambda: encode(picture(SMALL), "TIFF", compression="tiff_lzw"),
    "bmp": lambda: encode(picture(TINY), "BMP"),
    "jpeg 2000": lambda: encode(picture(TINY), "JPEG2000"),
    "avif": lambda: encode(picture(TINY), "AVIF", exif=exif()),
    "heif": lambda: encode(picture(TINY), "HEIF", exif=exif()),
    "safetensors": lambda: save_safetensors(LATENT),
    "npz": lambda: numpy_saved(np.savez, **ARRAYS),
    "npz compressed": lambda: numpy_saved(np.savez_compressed, **ARRAYS),
    "npy": lambda: numpy_saved(np.save, ARRAYS["mean"]),
    "pt": lambda: torch_saved(NESTED),
    "pt of old torch": lambda: torch_saved(NESTED, _use_new_zipfile_serialization=False),
    "pickle": lambda: pickle.dumps({**NESTED, "array": ARRAYS["mean"], "scalar": np.float32(2)}),
    "pickle of protocol 2": lambda: pickle.dumps({**NESTED, "array": ARRAYS["mean"]}, 2),
    "json": lambda: json.dumps({"label": 3, "tags": ["a", "b"] * 20, "nested": {"x": [1.5, None, True, "é"]}}).encode(),
    "text embedding": lambda: save_safetensors({"embeddings": torch.ones(6, 4), "eot_location": torch.tensor(3)}),
}


def reader_of(kind: str) -> Callable[[bytes], Any]:
    if kind == "json":
        return lambda data: LoadJson("file")({"file": data})
    if kind == "text embedding":
        return lambda data: LoadTextEmbedding("file", 8)({"file": data})["file"].sum()
    if kind.split()[0] in ("safetensors", "npz", "npy", "pt", "pickle"):
        load = LoadTensors("file", allow_pickle=True, max_bytes="64mb")
        return lambda data: load({"file": data})
    decode, resize = presets.create_standard_image_pipeline("file", (16, 16))
    return lambda data: resize(decode({"file": data}))["image"]


def broken(data: bytes, rng: random.Random) -> bytes:
    """The file with bits flipped, bytes at their extremes, a part doubled, lost or moved, or its end cut off."""
    mutated = bytearray(data)
    region = min(len(data), 250) if rng.random() < 0.5 else len(data)  # headers, where sizes and tables are
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(region)
        match rng.randrange(8):
            case 0 | 1 | 2 | 3:
                mutated[place % len(mutated)] ^= 1 << rng.randrange(8)
            case 4 | 5:
                value = rng.choice((0x00, 0x7F, 0x80, 0xFF))
                for offset in range(rng.choice((1, 2, 4))):
                    mutated[(place + offset) % len(mutated)] = value
            case 6:
                length = rng.randint(1, 16)
                mutated[place:place] = mutated[place : place + length]
            case _:
                del mutated[place : place + rng.randint(1, 16)]
        if not mutated:
            break
    return bytes(mutated[: rng.randrange(len(mutated) + 1)] if rng.random() < 0.15 else mutated)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_broken_files_only_ever_give_a_decode_error(kind):
    data, read, rng = KINDS[kind](), reader_of(kind), random.Random(zlib.crc32(kind.encode()))
    read(data)
    memory, slowest, failures = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow and torch speak of odd metadata
        for _ in range(NUM_FILES):
            start = time.perf_counter()
            try:
                read(broken(data, rng))
            except DecodeError as error:
                assert error.stage == "decode" and error.hint
                failures += 1
            slowest = max(slowest, time.perf_counter() - start)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert failures > NUM_FILES // 20
    assert slowest < MAX_SECONDS_A_FILE, f"{slowest:.1f} s"
    assert grown < MAX_MEMORY_KB, f"{grown} KB"


def cut_at(data: bytes) -> list[int]:
    return sorted({len(data) * share // 20 for share in range(1, 20)})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("gif", "bmp")])
def test_a_file_cut_short_is_an_error(kind):
    data, read = KINDS[kind](), reader_of(kind)
    for length in cut_at(data):
        with pytest.raises(DecodeError):
            read(data[:length])
