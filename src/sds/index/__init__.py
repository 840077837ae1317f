"""Index: source -> addressable rows.

Comes in: a path, URL, wildcard, directory, text list, or several. Goes out: an Index, whose rows name files and
metadata and are reached by number. Its length is exact, its order fixed, and equal content has an equal fingerprint.
"""

from __future__ import annotations

from sds.index.opening import open_index
from sds.index.options import IndexOptions
from sds.index.remote import Remote
from sds.index.table import Index, IndexFacts, TableIndex

__all__ = ["Index", "IndexFacts", "IndexOptions", "Remote", "TableIndex", "open_index"]
