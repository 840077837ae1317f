"""Notes of what a generation was made by: a small file in the cache, so that a change can be named.

Comes in: hashes of the parts of a chain, by names for people. Goes out: which of them differ from another generation's.
Names and hashes only: no value of an argument is ever written down. Readers of tensors have no use for these files.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from sds.tensors.catalog import replace_file
from sds.tensors.remember_code import CHAIN

__all__ = ["note_name", "tell_difference", "write_note"]

_MAX_SHOWN = 5


def note_name(fingerprint: str) -> str:
    """The name of a generation's note."""
    mark = hashlib.blake2b(fingerprint.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f".made-by-{mark}.json"


def write_note(folder: Path, fingerprint: str, parts: Mapping[str, str]) -> None:
    """Notes what a generation is made by, if that is not noted yet."""
    note = folder / note_name(fingerprint)
    if parts and not note.exists():
        with suppress(OSError):  # a disk that is full is the writer's to tell
            replace_file(note, msgspec.json.encode(parts), note.with_suffix(f".{os.urandom(8).hex()}"))


def tell_difference(folder: Path, fingerprint: str, parts: Mapping[str, str], other: str) -> str:
    """What a generation has that another has not, in words; an empty text if that is not known."""
    if fingerprint.startswith("version ") or other.startswith("version "):
        return f"now {fingerprint}, before {other or '(not said)'}"
    try:
        before = msgspec.json.decode((folder / note_name(other)).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ""  # made by hand, or copied without it
    labels = [label for label in {**before, **parts} if before.get(label) != parts.get(label)]
    labels.sort(key=lambda label: (label != CHAIN, label))
    more = f", and {len(labels) - _MAX_SHOWN} others" if len(labels) > _MAX_SHOWN else ""
    return f"what differs: {', '.join(labels[:_MAX_SHOWN])}{more}" if labels else ""
