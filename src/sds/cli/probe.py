"""Media -> width, height, duration: read from the headers of files, by byte ranges where those are remote.

Comes in: a table whose columns name files. Goes out: the table with columns of facts, null where there are none, and a
line for each file that could not be read. Images are measured as they are shown: upright.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from sds.errors import SdsError
from sds.urls import redact

if TYPE_CHECKING:
    import pyarrow as pa

    from sds.fetch import FetchClient, RemoteFile

__all__ = ["Probed", "probe_file", "probe_table", "probe_urls"]

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


class Probed(NamedTuple):
    """What is known of a file: its facts, and why there are none."""

    facts: dict[str, Any]
    failure: str | None = None


def probe_table(
    table: pa.Table, columns: tuple[str, ...], probe: Callable[[str, Sequence[str | None]], list[Probed]]
) -> tuple[pa.Table, list[str]]:
    """Adds `width`, `height` and `duration`, of the one column of media or with the names of several before them.

    Args:
        table: names files.
        columns: where it does.
        probe: looks at the files of a column, which has a name.

    Returns:
        The table, and a line for each file that could not be read.
    """
    import pyarrow as pa

    media = [name for name in columns if name in table.column_names and _kind(table[name]) is not None]
    failures: list[str] = []
    for name in media:
        found = probe(name, table[name].to_pylist())
        failures += [each.failure for each in found if each.failure is not None]
        prefix = "" if len(media) == 1 else f"{name}_"
        for fact, type_ in _FACTS.items():
            values = pa.array([each.facts.get(fact) for each in found], getattr(pa, type_)())
            if values.null_count < len(values) and f"{prefix}{fact}" not in table.column_names:
                table = table.append_column(f"{prefix}{fact}", values)
    return table, failures


def probe_urls(urls: Sequence[str | None], client: FetchClient, num_threads: int) -> Iterator[Probed]:
    """The facts of files, in their order; those of no file are none."""
    with ThreadPoolExecutor(num_threads) as pool:
        asked = [None if url is None else pool.submit(probe_file, url, client) for url in urls]
        try:
            for url, future in zip(urls, asked, strict=True):
                if url is None or future is None:
                    yield Probed({})
                    continue
                try:
                    yield Probed(future.result())
                except SdsError as error:
                    yield Probed({}, f"{redact(url)}: {error.message}")
                except Exception as error:  # noqa: BLE001 (decoders raise what they like; a file is left without)
                    yield Probed({}, f"{redact(url)}: {_reason(error)}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _reason(error: Exception) -> str:
    """What is wrong with a file, without names of classes and addresses in memory."""
    name, text = type(error).__name__, " ".join(str(error).split())
    if name == "UnidentifiedImageError":
        return "not an image, or of no format that is known"
    if name == "InvalidDataError":
        return "not a video or sound, or of no format that is known"
    if name == "DecompressionBombError":
        return "the image says that it is too large to be true"
    return text or name


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
            if not head:
                raise ValueError("it is empty")
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
