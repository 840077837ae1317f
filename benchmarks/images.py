"""How many JPEG files of 1024x768 become uint8 tensors [3, 256, 256] in a second, beside other libraries.

    python benchmarks/images.py [--count 48] [--rounds 7] [--qualities 75 90]

Every row reads a file, crops the centre square, resizes with antialiasing and gives a contiguous tensor. Rows marked
`scaled` let the JPEG decoder halve the picture first, as sds does. Columns are images per second on one thread and on
two (worker processes for the DataLoader), and their ratios to Pillow. Rounds interleave the rows; medians are printed.
`difference` is the mean distance to Pillow's result, in levels of 255. Packages that are not installed are left out:

    pip install opencv-python-headless kornia-rs imagecodecs pyvips-binary pyvips
"""

from __future__ import annotations

import argparse
import importlib
import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset

from sds.testing.media import make_images
from sds.transforms import presets

SIDE, HEIGHT, WIDTH = 256, 768, 1024
Make = Callable[[str], torch.Tensor]


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def planes(pixels: np.ndarray) -> torch.Tensor:
    """[h, w, 3] -> contiguous [3, h, w]."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def crop(pixels: np.ndarray) -> np.ndarray:
    height, width = pixels.shape[:2]
    left = (width - height) // 2
    return pixels[:, left : left + height]


def torch_resize(pixels: np.ndarray) -> torch.Tensor:
    batch = torch.from_numpy(np.ascontiguousarray(pixels)[None]).permute(0, 3, 1, 2)  # [1, 3, h, w]
    return interpolate(batch, (SIDE, SIDE), mode="bilinear", antialias=True)[0].contiguous()


def with_sds() -> Make:
    chain = presets.create_standard_image_pipeline("path", (SIDE, SIDE))

    def make(path: str) -> torch.Tensor:
        sample = {"path": path}
        for transform in chain:
            sample = transform(sample)
        return sample["image"]

    return make


def with_pillow(path: str) -> torch.Tensor:
    with Image.open(io.BytesIO(read(path))) as image:
        left = (image.width - image.height) // 2
        image = image.convert("RGB").crop((left, 0, left + image.height, image.height))
        return planes(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))


def with_pillow_draft(path: str) -> torch.Tensor:
    with Image.open(io.BytesIO(read(path))) as image:
        image.draft("RGB", (WIDTH // 2, HEIGHT // 2))
        left = (image.width - image.height) // 2
        image = image.crop((left, 0, left + image.height, image.height))
        return planes(np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)))


def with_turbojpeg(path: str) -> torch.Tensor:
    return torch_resize(crop(simplejpeg.decode_jpeg(read(path), "RGB")))


def with_opencv(flag: str) -> Make:
    import cv2

    cv2.setNumThreads(1)
    how = getattr(cv2, flag)

    def make(path: str) -> torch.Tensor:
        pixels = cv2.imdecode(np.frombuffer(read(path), np.uint8), how)
        small = cv2.resize(np.ascontiguousarray(crop(pixels)), (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        return planes(cv2.cvtColor(small, cv2.COLOR_BGR2RGB))

    return make


def with_kornia() -> Make:
    from kornia_rs.io import read_image_jpegturbo

    return lambda path: torch_resize(crop(np.asarray(read_image_jpegturbo(path))))


def with_imagecodecs() -> Make:
    import imagecodecs

    return lambda path: torch_resize(crop(imagecodecs.jpeg8_decode(read(path))))


def with_vips() -> Make:
    import pyvips

    def make(path: str) -> torch.Tensor:
        image = pyvips.Image.thumbnail_buffer(read(path), SIDE, height=SIDE, crop="centre")
        return planes(image.numpy())

    return make


def rows() -> dict[str, Make]:
    found: dict[str, Make] = {
        "Pillow": with_pillow,
        "sds (scaled)": with_sds(),
        "turbojpeg + torch": with_turbojpeg,
        "Pillow (scaled)": with_pillow_draft,
    }
    for name, package, start in (
        ("OpenCV", "cv2", lambda: with_opencv("IMREAD_COLOR")),
        ("OpenCV (scaled)", "cv2", lambda: with_opencv("IMREAD_REDUCED_COLOR_2")),
        ("kornia-rs + torch", "kornia_rs", with_kornia),
        ("imagecodecs + torch", "imagecodecs", with_imagecodecs),
        ("vips (scaled)", "pyvips", with_vips),
    ):
        try:
            importlib.import_module(package)
            found[name] = start()
        except ImportError:
            print(f"{name}: not installed")
    return found


class Files(Dataset):  # type: ignore[type-arg]
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> torch.Tensor:
        return with_pillow(self.paths[place])


def rate(paths: list[str], consume: Callable[[], Iterator[object]], clock: Callable[[], float]) -> float:
    start = clock()
    for _ in consume():
        pass
    return len(paths) / (clock() - start)


def measure(paths: list[str], makers: dict[str, Make], rounds: int, cpu: bool) -> dict[tuple[str, int], float]:
    rates: dict[tuple[str, int], list[float]] = {}
    loaders = {
        threads: DataLoader(Files(paths), batch_size=8, num_workers=workers, persistent_workers=workers > 0)
        for threads, workers in ((1, 0), (2, 2))
    }
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(2) as two:
        for number in range(rounds + 1):
            for threads, pool in ((1, one), (2, two)):
                clock = time.process_time if cpu and threads == 1 else time.perf_counter
                for name, make in makers.items():
                    done = rate(paths, lambda pool=pool, make=make: pool.map(make, paths), clock)
                    if number:  # the first round warms up
                        rates.setdefault((name, threads), []).append(done)
                done = rate(paths, lambda threads=threads: iter(loaders[threads]), clock)
                if number:
                    rates.setdefault(("DataLoader + Pillow", threads), []).append(done)
    return {key: statistics.median(values) for key, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--qualities", type=int, nargs="+", default=[75, 90])
    parser.add_argument("--cpu", action="store_true", help="one thread: by CPU time, for a machine that others use too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    makers = rows()
    for quality in options.qualities:
        with tempfile.TemporaryDirectory() as folder:
            paths = [record["path"] for record in make_images(folder, options.count, (HEIGHT, WIDTH), quality=quality)]
            size = statistics.mean(Path(path).stat().st_size for path in paths)
            print(f"\nJPEG {WIDTH}x{HEIGHT}, quality {quality}, {size / 1000:.0f} KB on average -> [3, {SIDE}, {SIDE}]")
            medians = measure(paths, makers, options.rounds, options.cpu)
            expected = {path: with_pillow(path).float() for path in paths[:12]}
            print(f"{'':24}{'1 thread':>9}{'x Pillow':>10}{'2 threads':>11}{'x Pillow':>10}{'difference':>12}")
            for name in sorted({name for name, _ in medians}, key=lambda name: -medians[name, 1]):
                ratios = [medians[name, threads] / medians["Pillow", threads] for threads in (1, 2)]
                make = makers.get(name, with_pillow)
                away = statistics.mean(float((make(p).float() - e).abs().mean()) for p, e in expected.items())
                print(
                    f"{name:24}{medians[name, 1]:9.0f}{ratios[0]:10.2f}"
                    f"{medians[name, 2]:11.0f}{ratios[1]:10.2f}{away:12.2f}"
                )


if __name__ == "__main__":
    main()
