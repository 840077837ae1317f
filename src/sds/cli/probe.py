"""Media -> width, height, duration: read from the headers of files, by byte ranges where those are remote.

Comes in: a table whose columns name files. Goes out: the table with columns of facts, null where there are none, and a
line for each file that could not be read. Images are measured as they are shown: upright.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from sds.errors import SdsError
from sds.urls import redact

if TYPE_CHECKING:
    import pyarrow as pa

    from sds.fetch import FetchClient, RemoteFile

__all__ = ["probe_file", "probe_table"]

_IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "jp2")
_STREAMS = (
    "mp4",
    "mov",
    "mkv",
    "webm",
    "avi",
    "m4v",
    "mpg",
    "mpeg",
    "ts",
    "flv",
    "wav",
    "flac",
    "mp3",
    "ogg",
    "opus",
    "m4a",
    "aac",
)
_KINDS = {**dict.fromkeys(_IMAGES, "image"), **dict.fromkeys(_STREAMS, "stream")}
_FACTS = {"width": "int32", "height": "int32", "duration": "float64"}
_HEAD_BYTES = 2**16
_MAX_HEAD_BYTES = 2**25


def probe_table(
    table: pa.Table, columns: tuple[str, ...], client: FetchClient, num_threads: int
) -> tuple[pa.Table, list[str]]:
    """Adds `width`, `height` and `duration`, of the one column of media or with the names of several before them."""
    import pyarrow as pa

    from sds.observe import ProgressBar

    media = [name for name in columns if name in table.column_names and _kind(table[name]) is not None]
    failures: list[str] = []
    with ThreadPoolExecutor(num_threads) as pool:
        for name in media:
            urls = table[name].to_pylist()
            asked = [None if url is None else pool.submit(probe_file, url, client) for url in urls]
            found: list[dict[str, Any]] = []
            try:
                for url, future in zip(urls, ProgressBar(asked, f"probe {name}", unit="files"), strict=True):
                    found.append({})
                    if future is None:
                        continue
                    try:
                        found[-1] = future.result()
                    except SdsError as error:
                        failures.append(f"{redact(url)}: {error.message}")
                    except Exception as error:  # noqa: BLE001 (decoders raise what they like; a file is left without)
                        failures.append(f"{redact(url)}: {type(error).__name__}: {' '.join(str(error).split())}")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            prefix = "" if len(media) == 1 else f"{name}_"
            for fact, type_ in _FACTS.items():
                values = pa.array([each.get(fact) for each in found], getattr(pa, type_)())
                if values.null_count < len(values) and f"{prefix}{fact}" not in table.column_names:
                    table = table.append_column(f"{prefix}{fact}", values)
    return table, failures


def _kind(column: pa.ChunkedArray) -> str | None:
    """What the files of a column are, by the extension of the first."""
    import pyarrow as pa

    from sds.index.formats import extension_of

    if not pa.types.is_string(column.type):
        return None
    first = next((value for value in column.slice(0, 1000).to_pylist() if value), "")
    return _KINDS.get(extension_of(first))


def probe_file(url: str, client: FetchClient) -> dict[str, Any]:
    """The facts of one file. Raises whatever is wrong with it."""
    from sds.fetch import HEAD, File
    from sds.index.formats import extension_of

    (ticket,) = client.submit([[File(url, None, HEAD)]])
    try:
        (media,) = ticket.take_files()
        return _image(media) if _KINDS.get(extension_of(url)) == "image" else _stream(media)
    finally:
        ticket.release()


def _image(media: str | RemoteFile) -> dict[str, Any]:
    """Width and height, from as much of the beginning as that takes."""
    from PIL import Image, UnidentifiedImageError

    with open(media, "rb") if isinstance(media, str) else media.open() as file:
        size, head = _HEAD_BYTES, b""
        while True:
            more = file.read(size - len(head)) or b""
            head += more
            try:
                with _opened(head) as image:
                    width, height = image.size
                    return (
                        {"width": height, "height": width} if _is_turned(image) else {"width": width, "height": height}
                    )
            except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
                if not more or size >= _MAX_HEAD_BYTES:
                    raise
                size *= 8


def _is_turned(image: Any) -> bool:
    """Whether it is shown with width and height exchanged; asking Pillow for it would decode some formats whole."""
    from PIL import Image

    exif = Image.Exif()
    exif.load(image.info.get("exif") or b"")
    return image.format not in ("TIFF", "HEIF") and exif.get(0x0112, 1) >= 5  # those are upright as they come


def _opened(head: bytes) -> Any:
    from PIL import Image

    if head[4:8] == b"ftyp" and b"avif" not in head[:64]:
        from pillow_heif import HeifImageFile

        opened: Callable[[io.BytesIO], Any] = HeifImageFile
        return opened(io.BytesIO(head))
    return Image.open(io.BytesIO(head))


def _stream(media: str | RemoteFile) -> dict[str, Any]:
    """Duration in seconds, and width and height where there are pictures."""
    from sds.transforms.container import open_container, unread

    if isinstance(media, str) and not os.path.getsize(media):
        raise ValueError("it is empty")
    with open_container(media) as container:
        facts: dict[str, Any] = {}
        if container.duration:
            facts["duration"] = container.duration / 1e6
        pictures = [each for each in container.streams.video if each.disposition.value & 1024 == 0]  # no cover art
        if pictures:
            facts["width"], facts["height"] = pictures[0].codec_context.width, pictures[0].codec_context.height
    error = unread(media)
    if error is not None:
        raise error
    return facts
