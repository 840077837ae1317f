"""Native: what was compiled of the transforms (_native.c), or None where it was installed without a compiler."""

from __future__ import annotations

__all__ = ["native"]

try:
    import sds.transforms._native as native
except ModuleNotFoundError:  # one that is there and broken says so
    native = None  # type: ignore[assignment]
