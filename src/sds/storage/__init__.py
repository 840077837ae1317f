"""URL -> bytes. The only room that opens connections, and the only one where foreign errors are met.

Comes in: a URL and the asking process's options. Goes out: bytes, an ObjectInfo, or one of our FetchErrors, after the
retries that the options allow. Only the fetch server imports this room: processes that train never load it.
"""

from __future__ import annotations

from sds.storage.options import StoreOptions
from sds.storage.store import Body, Buffer, Request, Store, Stores, is_other

__all__ = ["Body", "Buffer", "Request", "Store", "StoreOptions", "Stores", "is_other"]
