"""A RemoteFile as a file object, for decoders that read one.

Comes in: reads and seeks of a decoder. Goes out: bytes of the object. A read into a buffer fills it as far as the
object goes, since decoders take less for its end.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from sds.errors import SdsError

if TYPE_CHECKING:
    from sds.fetch.remote import RemoteFile

__all__ = ["RemoteStream"]


class RemoteStream(io.RawIOBase):
    """A place in a RemoteFile."""

    def __init__(self, file: RemoteFile, is_tolerant: bool) -> None:
        self._file = file
        self._is_tolerant = is_tolerant
        self._place = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The place of the next byte."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a place, and says which; it may lie past the end."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(0, base + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        """Bytes from its place on; maybe fewer than asked for, none at the end."""
        if size is None or size < 0:
            return self.readall()
        try:
            data = self._file.read_at(self._place, size) if size and self._place < self._file.size else b""
        except SdsError:
            if not self._is_tolerant:
                raise
            data = b""
        self._place += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typing.Buffer is Python 3.12
        """Fills a buffer; how many bytes there were."""
        filled = 0
        while filled < len(buffer) and (data := self.read(len(buffer) - filled)):
            buffer[filled : filled + len(data)] = data
            filled += len(data)
        return filled
