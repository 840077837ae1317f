"""Whole numbers that callers hand in: value -> int, or an OptionError that names the argument."""

from __future__ import annotations

import operator
from typing import SupportsIndex

from sds.errors import OptionError

__all__ = ["whole"]


def whole(name: str, value: SupportsIndex, *, least: int | None = None, most: int | None = None) -> int:
    """The value as a plain int within [least, most]; a bound that is None does not bind."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise OptionError(f"{name} is not a whole number: {value!r}", hint=f"give an int as {name}")
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"{name} >= {least}" if most is None else f"{least} <= {name} <= {most}"
        raise OptionError(f"{name} is out of range: {number}", hint=bounds)
    return number
