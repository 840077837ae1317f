"""What transforms made of a sample, field by field, as a browser can show it.

Comes in: samples. Goes out: a Part for each field, nested ones by their path: what it is in words, and, where it is a
picture, a clip, a sound or a latent, how to draw it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sds.types import Sample
from sds.view import pictures
from sds.view.pictures import Encoded

__all__ = ["Part", "parts_of", "plain", "sample_rate"]

_MAX_TEXT = 20_000
_MAX_ITEMS = 200
_MAX_DEPTH = 4
_EXACT = 2**53  # whole numbers above are not exact in a browser
_SOUNDS = ("audio", "wav", "sound", "speech", "music")
_RATES = ("sample_rate", "sampling_rate", "audio_sr", "sr")
_USUAL_RATE = 16_000


@dataclass(frozen=True)
class Part:
    """A field of a sample.

    Attributes:
        name: its path: "meta.size.0".
        kind: 'image', 'video', 'audio', 'tensor', 'text' or 'value'.
        text: what it is, in words.
        draw: makes what a browser shows; None: the text is all.
    """

    name: str
    kind: str
    text: str
    draw: Callable[[], Encoded] | None = None


def parts_of(sample: Sample, rate: int) -> list[Part]:
    """The fields of a sample, in their order; `rate` is that of sounds."""
    return list(_walk("", sample, rate, 0))


def sample_rate(sample: Sample, transforms: Sequence[Any]) -> int:
    """Samples per second of what a chain gives: what its last resampling says, else a field of the sample."""
    for transform in reversed(transforms):
        rate = getattr(transform, "target_audio_sr", None)
        if isinstance(rate, int):
            return rate
    for name, value in sample.items():
        if any(word in name.lower() for word in _RATES) and isinstance(value, int | float) and 1000 <= value < 10**6:
            return int(value)
    return _USUAL_RATE


def plain(value: Any, longest: int = _MAX_TEXT) -> Any:
    """A value as JSON can have it, cut where it is long."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -_EXACT <= value <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()  # a lone surrogate is no text
        return text if len(text) <= longest else f"{text[:longest]}…"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {str(key): plain(each, longest) for key, each in list(value.items())[:_MAX_ITEMS]}
    if isinstance(value, list | tuple):
        return [plain(each, longest) for each in value[:_MAX_ITEMS]]
    return plain(str(value), longest)


def _walk(name: str, value: Any, rate: int, depth: int) -> Iterator[Part]:
    inside = f"{name}." if name else ""
    if isinstance(value, dict) and depth < _MAX_DEPTH:
        for key, each in list(value.items())[:_MAX_ITEMS]:
            yield from _walk(f"{inside}{key}", each, rate, depth + 1)
    elif isinstance(value, list | tuple) and depth < _MAX_DEPTH and any(_array(each) is not None for each in value):
        for number, each in enumerate(value[:_MAX_ITEMS]):
            yield from _walk(f"{inside}{number}", each, rate, depth + 1)
    elif (array := _array(value)) is not None:
        yield _array_part(name, array, rate)
    elif isinstance(value, str):
        yield Part(name, "text", plain(value))
    else:
        yield Part(name, "value", str(plain(value)))


def _array(value: Any) -> Any:
    """A tensor or array as NumPy has it; None: it is neither."""
    if isinstance(value, np.ndarray):
        return value
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    tensor = value.detach().cpu()
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    is_known = not tensor.is_floating_point() or tensor.dtype in (torch.float32, torch.float64)
    return (tensor if is_known else tensor.float()).numpy()  # NumPy knows no bfloat16, and no float of eight bits


def _array_part(name: str, array: Any, rate: int) -> Part:
    shape = list(array.shape)
    text = f"{array.dtype} {shape}"
    if array.size and array.dtype.kind in "biuf":
        text += f", {_number(array.min())} to {_number(array.max())}, mean {_number(array.mean())}"
    if array.dtype.kind not in "uif" or not array.size:
        return Part(name, "tensor", text)
    is_wave = array.ndim in (1, 2) and math.prod(shape[:-1]) <= 8 < shape[-1]
    if is_wave and any(word in name.lower() for word in _SOUNDS):
        words = f"{text}, {shape[-1] / rate:.2f} s at {rate} Hz"
        return Part(name, "audio", words, lambda: pictures.sound(array, rate))
    if array.ndim == 4 and shape[1] in (1, 3) and min(shape[2:]) > 1:
        return Part(name, "video", text, lambda: pictures.draw_frames(array))
    if array.ndim == 3 and min(shape[1:]) > 1:
        is_picture = shape[0] in (1, 3)
        draw = pictures.draw_image if is_picture else pictures.draw_tiles
        return Part(name, "image" if is_picture else "tensor", text, lambda: draw(array))
    return Part(name, "tensor", text)


def _number(value: Any) -> str:
    return f"{float(value):.4g}"
