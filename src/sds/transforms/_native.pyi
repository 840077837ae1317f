from typing import Any

import numpy as np
import numpy.typing as npt

LONGEST: int
DECODES: bool
WAYS: tuple[str, ...]

def scan_jpeg(data: bytes, /) -> tuple[int, int, int, int, bool, bytes | None] | None: ...
def decode_jpeg(data: bytes, pixels: npt.NDArray[np.uint8], part: tuple[int, int, int, int], /) -> bool: ...
def resample(pixels: npt.NDArray[np.uint8], result: npt.NDArray[Any], mode: str, way: str = ..., /) -> None: ...
