"""What all contenders share: the clock, the decode, and the line of JSON that says what was found.

Comes in: a function that makes a loader. Goes out, on standard output: images per second, steady and with the start
counted, and the seconds to the first batch. Imports are over before the clock starts; construction is not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

SIZE = 256  # of the square images in a batch
WARM_UP = 0.1  # of the batches, before what counts as steady


def given() -> dict[str, Any]:
    """What the suite asks for."""
    return json.loads(sys.argv[1])


def tell(**found: Any) -> None:
    """Says what was found, and ends at once: what worker processes do at the end is nobody's figure."""
    print(json.dumps({**found, "cpu_main_s": time.process_time()}), flush=True)
    os._exit(0)


def decode(data: bytes) -> Any:
    """JPEG bytes -> uint8 tensor [3, SIZE, SIZE]: the centre is cut out, and resized with antialiasing."""
    import numpy as np
    import simplejpeg
    import torch

    pixels = simplejpeg.decode_jpeg(data, "RGB")  # [h, w, 3]
    height, width = pixels.shape[:2]
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    pixels = np.ascontiguousarray(pixels[top : top + side, left : left + side])
    image = torch.from_numpy(pixels[None]).permute(0, 3, 1, 2)  # [1, 3, side, side], channels last
    image = torch.nn.functional.interpolate(image, (SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return torch.from_numpy(np.ascontiguousarray(image.numpy()))  # [3, SIZE, SIZE]


def lines(path: str) -> list[str]:
    """The lines of a list."""
    with open(path) as file:
        return file.read().split()


def decode_file(path: str) -> Any:
    with open(path, "rb", buffering=0) as file:
        return decode(file.readall())


def images_in(batch: Any) -> Any:
    """The images of a batch, however a contender packs them."""
    if isinstance(batch, dict):
        batch = batch["image"]
    return batch[0] if isinstance(batch, list | tuple) else batch


def check_count(found: int, asked: int, may_miss: int = 0) -> None:
    """Ends with an error if fewer (or more) samples were delivered than asked for: the rate would be of other work.

    `may_miss` is for peers that drop incomplete batches by default: see `incomplete_batches`.
    """
    if not asked - may_miss <= found <= asked:
        less = f" (or up to {may_miss} less)" if may_miss else ""
        sys.exit(f"{found} samples were delivered in an epoch, and {asked}{less} were asked for")


def incomplete_batches(args: dict[str, Any]) -> int:
    """How many images a peer may leave out: one batch for each of its workers."""
    return int(args["batch"] * max(1, args["workers"]))


def measure(
    make: Callable[[], Iterable[Any]],
    *,
    num: int,
    may_miss: int = 0,
    epochs: int = 1,
    count: Callable[[Any], int] | None = None,
    after_epoch: Callable[[], Any] | None = None,
) -> dict[str, Any]:
    """Runs epochs over what `make` returns; figures of the last epoch, and of each where that is a list.

    `num` is how many images each epoch has, and `may_miss` how many fewer are no error.
    """
    begun = time.perf_counter()
    loader = make()
    first_batch_s, per_epoch, told = 0.0, [], []
    for epoch in range(epochs):
        start = begun if epoch == 0 else time.perf_counter()
        times: list[tuple[float, int]] = []
        done = 0
        for batch in loader:
            if count is None:
                images = images_in(batch)
                assert tuple(images.shape[1:]) == (3, SIZE, SIZE), images.shape
                done += len(images)
            else:
                done += count(batch)
            times.append((time.perf_counter(), done))
        check_count(done, num, may_miss)
        first_batch_s = first_batch_s or times[0][0] - begun
        at = min(len(times) - 2, max(0, round(WARM_UP * len(times))))
        (since, before), (until, total) = (times[at], times[-1]) if len(times) > 1 else ((start, 0), times[-1])
        per_epoch.append(
            {"images": done, "with_start": done / (until - start), "steady": (total - before) / (until - since)}
        )
        if after_epoch is not None:
            told.append(after_epoch())
    return {**per_epoch[-1], "first_batch_s": first_batch_s, "epochs": per_epoch, "told": told}
