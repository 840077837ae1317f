"""URL -> local file, by way of one fetch server per node and cache folder.

Comes in: URLs with their versions. Goes out: leased paths inside the cache folder (or the local file itself), or bytes.
A leased file stays while it is held; the bytes on disk never pass the limit; nothing here opens a connection: that is
done by the server process, which is started when first needed and ends shortly after its last client.
"""

from __future__ import annotations

from sds.fetch.client import FetchClient, Ticket
from sds.fetch.protocol import FetchOptions, File
from sds.fetch.remote import RemoteFile
from sds.fetch.spans import HEAD
from sds.fetch.window import prefetched

__all__ = ["HEAD", "FetchClient", "FetchOptions", "File", "RemoteFile", "Ticket", "prefetched"]
