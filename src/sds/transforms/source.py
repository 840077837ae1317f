"""A field that names a file or holds its bytes -> those bytes, whole, in memory, never more than allowed.

Comes in: a path (str or PathLike) or a bytes-like value. Goes out: bytes and the name that an error calls them by.
What cannot be read (absent, a folder, a pipe, too large) is a DecodeError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from sds.files import read_file, read_unsized
from sds.transforms.base import SampleTransform, check_fields, decode_error, require
from sds.types import Sample
from sds.units import format_bytes, parse_bytes

__all__ = ["LoadFromDisk", "read_bytes"]

_BYTES = (bytes, bytearray, memoryview)


def read_bytes(
    sample: Sample, field: str, kind: str, max_bytes: int, *, allow_empty: bool = False
) -> tuple[bytes, str | None]:
    """Returns (bytes, path); the path is None if the field held the bytes themselves."""
    value = require(sample, field)
    if isinstance(value, _BYTES):
        reason = _refusal(memoryview(value).nbytes, max_bytes, allow_empty)
        if reason:
            raise decode_error(sample, kind, reason, field=field)
        return bytes(value), None
    if not isinstance(value, str | os.PathLike):
        hint = "the field must hold a path or bytes; is the column in columns_to_download?"
        raise decode_error(sample, kind, f"it is of type {type(value).__name__}", field=field, hint=hint)
    path = value if type(value) is str else os.fsdecode(value)
    try:
        size, is_file, data = read_file(path, min(max_bytes, sys.maxsize))
        if data is not None:
            return data, path
        # a pipe or device could go on for ever
        reason = _refusal(size, max_bytes, allow_empty) if is_file else "it is not a regular file"
        if not reason:
            return read_unsized(path, max_bytes), path
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte in it
        reason = getattr(error, "strerror", None) or str(error)
        hint = "check that the path is right and readable"
        if not os.path.isabs(path):
            hint += f"; if it is relative to its index, name {field!r} in columns_to_download"
        if "://" in path:
            hint = f"it is a URL that was not fetched: name {field!r} in columns_to_download"
        raise decode_error(sample, kind, reason, field=field, path=path, hint=hint) from error
    raise decode_error(sample, kind, reason, field=field, path=path)


def _refusal(size: int, max_bytes: int, allow_empty: bool) -> str:
    if size == 0 and not allow_empty:
        return "it is empty"
    if size > max_bytes:
        return f"{format_bytes(size)} are more than {format_bytes(max_bytes)} (raise max_bytes or max_pixels)"
    return ""


class LoadFromDisk(SampleTransform):
    """Replaces paths by the bytes of their files.

    Args:
        fields_to_load: the fields that hold paths.
        max_bytes: the largest file to read, as a number or as text such as '1gb'.
    """

    stage = "decode"

    def __init__(self, fields_to_load: Iterable[str], max_bytes: str | int = "1gb") -> None:
        self.fields_to_load = check_fields("fields_to_load", fields_to_load)
        self.max_bytes = max_bytes
        self._limit = parse_bytes(max_bytes, option="max_bytes")

    def __call__(self, sample: Sample) -> Sample:
        """Reads each field's file."""
        for field in self.fields_to_load:
            sample[field], _ = read_bytes(sample, field, "file", self._limit, allow_empty=True)
        return sample
