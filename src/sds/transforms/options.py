"""Arguments that sound and moving pictures have in common: seconds, rates, packages that may be missing.

Comes in: what a user gave. Goes out: the same as a plain value, or an OptionError that names the option.
"""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

from sds.errors import OptionError, TransformError
from sds.transforms.base import check_field, require, wrong
from sds.types import Sample

__all__ = [
    "check_interval",
    "check_optional_field",
    "check_positive",
    "load_package",
    "number_of",
]


def check_positive(option: str, value: float, *, unit: str, allow_zero: bool = False) -> float:
    """A finite number above zero (or from zero on)."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and not allow_zero):
        raise OptionError(f"{option} is not a number above zero: {value!r}", hint=f"give {unit}, such as {option}=2.0")
    return float(value)


def check_optional_field(option: str, name: str | None) -> str | None:
    """A field name or None."""
    return None if name is None else check_field(option, name)


def check_interval(option: str, interval: tuple[float, float]) -> tuple[float, float]:
    """A (start, end) in seconds."""
    hint = f"give start and end in seconds, such as {option}=(1.5, 4.0)"
    try:
        start, end = (float(part) for part in interval)
    except (TypeError, ValueError):
        raise OptionError(f"{option} is not a (start, end): {interval!r}", hint=hint) from None
    if not (0 <= start < end < math.inf):
        raise OptionError(f"{option} is not a (start, end): {interval!r}", hint=hint)
    return start, end


def number_of(sample: Sample, field: str) -> float:
    """The finite number that a field holds (a string of one will do), or a TransformError."""
    value: Any = require(sample, field)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise _no_number(sample, field, value)
    return number


def _no_number(sample: Sample, field: str, value: object) -> TransformError:
    return wrong(sample, f"field is not a number: {field!r} is {value!r}", hint="leave such rows out by sql_query")


def load_package(name: str, extra: str) -> ModuleType:
    """Imports a package of one of our extras when it is first needed.

    Raises:
        OptionError: it is not installed; names the extra.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OptionError(
            f"package is not installed: {name} ({error})",
            hint=f"pip install 'streaming-dataset[{extra}]'",
        ) from error
