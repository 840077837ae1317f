from typing import Any

import numpy as np
import numpy.typing as npt

LONGEST: int
WAYS: tuple[str, ...]

def scan_jpeg(data: bytes, /) -> tuple[int, int, int, int, bool, bytes | None] | None: ...
def resample(pixels: npt.NDArray[np.uint8], result: npt.NDArray[Any], mode: str, way: str = ..., /) -> None: ...
