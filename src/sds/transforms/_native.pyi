from typing import Any

import numpy as np
import numpy.typing as npt

LONGEST: int
WAYS: tuple[str, ...]

def resample(pixels: npt.NDArray[np.uint8], result: npt.NDArray[Any], mode: str, way: str = ..., /) -> None: ...
