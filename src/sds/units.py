"""Byte sizes and durations between people and programs: "10gb" -> 10_000_000_000, and back; "7d" -> 604_800 s.

Decimal suffixes (kb, mb, gb, tb) are powers of 1000, binary ones (kib, mib, gib, tib) powers of 1024.
"""

from __future__ import annotations

import re

from sds.errors import OptionError

__all__ = ["parse_bytes", "parse_seconds", "format_bytes", "counted"]

_UNITS = {"": 1, "b": 1}
for _i, _letter in enumerate("kmgtp", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}b"] = 1000**_i
    _UNITS[f"{_letter}ib"] = 1024**_i

_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_PATTERN = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(size: str | float, *, option: str = "size") -> int:
    """Turns "10gb", "512 MiB", 1e9 or 4096 into a number of bytes; `option` is the keyword that an error names."""
    hint = 'give a number of bytes, or text such as "500mb", "10gb" or "64gib"'
    if isinstance(size, bool) or not isinstance(size, str | int | float):
        raise OptionError(f"{option} is not a byte size: {size!r}", hint=hint)
    if isinstance(size, str):
        match = _PATTERN.fullmatch(size)
        if match is None or match[2].lower() not in _UNITS:
            raise OptionError(f"{option} is not a byte size: {size!r}", hint=hint)
        value = float(match[1].replace("_", "")) * _UNITS[match[2].lower()]
    else:
        value = float(size)
    if not 0 <= value < 2**63:
        raise OptionError(f"{option} is not a byte size: {size!r}", hint=hint)
    return int(value)


def parse_seconds(duration: str | float, *, option: str = "duration") -> float:
    """Turns "7d", "12h", "30 min" or 3600 into seconds, more than none; `option` is the keyword that an error names."""
    hint = 'give a number of seconds, or text such as "90s", "30min", "12h", "7d" or "2w"'
    value = -1.0
    if isinstance(duration, str):
        match = _PATTERN.fullmatch(duration)
        if match is not None and match[2].lower() in _SECONDS:
            value = float(match[1].replace("_", "")) * _SECONDS[match[2].lower()]
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        value = float(duration)
    if not 0 < value < 2**40:
        raise OptionError(f"{option} is not a duration: {duration!r}", hint=hint)
    return value


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 -> "1 file", 30000 -> "30,000 files"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(num_bytes: float) -> str:
    """Writes a number of bytes the way people read it: 1536000 -> "1.54 MB"."""
    value = float(num_bytes)
    for suffix in ("B", "KB", "MB", "GB", "TB"):
        if abs(value) < 999.5:  # what would be rounded up to 1000 is 1 of the next unit
            return f"{value:.0f} B" if suffix == "B" else f"{value:.3g} {suffix}"
        value /= 1000
    return f"{value:.3g} PB"
