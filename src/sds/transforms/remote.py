"""Which fields of a transform may be read by byte ranges: so that a clip of a long file needs only parts of it.

Comes in: what the user chose. Goes out: fields, with the size from which on it is worth it; the pipeline gives such a
field a RemoteFile instead of a path, if no transform before it may want a path.
"""

from __future__ import annotations

__all__ = ["REMOTE", "ranged_fields"]

REMOTE = ("auto", "ranges", "whole")
_WORTH_IT = 16 * 2**20  # smaller objects come in one piece: parts of them take as long


def ranged_fields(remote: str, *fields: str) -> dict[str, int]:
    """Each field that may be read by ranges, and the bytes that an object must have more than."""
    return {} if remote == "whole" else dict.fromkeys(fields, 0 if remote == "ranges" else _WORTH_IT)
