"""A field that names a media file or holds its bytes -> an open PyAV container, closed again whatever happens.

Comes in: a path, bytes, or a RemoteFile, which is read by byte ranges. Goes out: a container of a format that holds its
own data: playlists, which name other files or addresses, are not opened. FFmpeg's own words go nowhere: what it finds
wrong is in the exception.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from sds.errors import SdsError
from sds.fetch import RemoteFile
from sds.transforms.base import decode_error, require
from sds.transforms.options import load_package
from sds.types import Sample

if TYPE_CHECKING:
    import av.container

__all__ = ["Media", "locate", "open_container", "open_media", "unread", "waited_s"]

Media = str | bytes | RemoteFile  # the path of a regular file, or what is in one, or an object of a store

# Containers by FFmpeg's names; none of them can lead to another file.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,live_flv,asf,asf_o,ogg,wav,w64,rf64,flac,mp3,aac,"
    "ac3,eac3,aiff,au,caf,amr,ape,wv,tta,dts,gif,apng,mxf,nut,ivf,dv,rm,vob,h264,hevc,obu,av1,m4v,mjpeg,y4m,yuv4mpegpipe,nsv,"
    "swf,dsf,adts,latm,loas,truehd,opus,spx"
)
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}
_READ_SIZE = 1 << 18  # of bytes in memory: each read is a call into Python
_RANGE_SIZE = 1 << 15  # of a remote file: what is read beyond the need may be one more block to fetch


def locate(sample: Sample, field: str, kind: str) -> tuple[Media, str | None]:
    """Returns (media, path); the path is None if the field held the bytes themselves, a URL for a remote file.

    A remote file that is here whole is read from its path.

    Raises:
        DecodeError: there is no such file, or it is empty, a folder or a pipe.
    """
    value = require(sample, field)
    if isinstance(value, bytes | bytearray | memoryview):
        if memoryview(value).nbytes == 0:
            raise decode_error(sample, kind, "it is empty", field=field)
        return bytes(value), None
    if isinstance(value, RemoteFile):
        return (value if value.path is None else value.path), value.name
    if not isinstance(value, str | os.PathLike):
        hint = "the field must hold a path or bytes; is the column in columns_to_download?"
        raise decode_error(sample, kind, f"it is of type {type(value).__name__}", field=field, hint=hint)
    path = os.fsdecode(value)
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a path with a null byte in it
        reason = getattr(error, "strerror", None) or str(error)
        hint = "check that the path is right and readable"
        raise decode_error(sample, kind, reason, field=field, path=path, hint=hint) from error
    if not stat.S_ISREG(status.st_mode):  # a pipe or device could go on for ever
        raise decode_error(sample, kind, "it is not a regular file", field=field, path=path)
    if status.st_size == 0:
        raise decode_error(sample, kind, "it is empty", field=field, path=path)
    return path, path


def open_media(media: Media, *, is_tolerant: bool = False) -> BinaryIO | io.RawIOBase:
    """What reads it from the start; tolerant: a remote file seems to end where bytes of it cannot be had."""
    if isinstance(media, str):
        return open(media, "rb")
    return media.open(is_tolerant=is_tolerant) if isinstance(media, RemoteFile) else io.BytesIO(media)


def waited_s(media: Media) -> float:
    """How long its reader waited for bytes: no fault of the file."""
    return media.waited_s if isinstance(media, RemoteFile) else 0.0


def unread(media: Media) -> SdsError | None:
    """Why bytes of it could not be had: what a decoder then says of the file, or makes of it, means nothing."""
    return media.error if isinstance(media, RemoteFile) else None


@contextlib.contextmanager
def open_container(media: Media, extra: str = "video") -> Iterator[av.container.InputContainer]:
    """Opens it for as long as the block runs. Raises whatever PyAV does for what is no media file."""
    av = load_package("av", extra)
    if isinstance(media, RemoteFile) and media.path is not None:
        media = media.path  # it is here whole
    # without "file:", a name such as "concat:a|b" or "http:..." would be an address
    source: Any = f"file:{os.path.abspath(media)}" if isinstance(media, str) else open_media(media)
    size = _RANGE_SIZE if isinstance(media, RemoteFile) else _READ_SIZE
    container = av.open(source, container_options=_OPTIONS, metadata_errors="replace", buffer_size=size)
    try:
        yield container
    finally:
        container.close()
