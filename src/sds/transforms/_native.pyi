from typing import Any

import numpy as np
import numpy.typing as npt

def resample(pixels: npt.NDArray[np.uint8], result: npt.NDArray[Any], mode: str, is_plain: bool = ..., /) -> None: ...
