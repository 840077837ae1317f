"""What a file is for those who look at it: a name or its first bytes -> image, video, audio or text.

Names are a promise, bytes are a fact: what is sent to a browser is decided by bytes alone.
"""

from __future__ import annotations

from sds.index.formats import extension_of

__all__ = ["HEAD", "SHOWN", "kind_of_name", "sniff"]

HEAD = 256  # bytes that tell what a file is
_NAMES = {
    "image": "jpg jpeg jfif png webp gif bmp tif tiff avif heic heif jp2 ppm",
    "video": "mp4 m4v mov mkv webm avi mpg mpeg ts flv ogv",
    "audio": "wav flac mp3 ogg oga opus m4a aac",
    "text": "txt caption cap json md cls label",
}
_KINDS = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# what every browser shows as it is; other images are drawn anew
SHOWN = ("image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp", "image/avif")
# offset, bytes, type; the first that fits
_MAGIC = (
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (0, b"BM", "image/bmp"),
    (0, b"II*\0", "image/tiff"),
    (0, b"MM\0*", "image/tiff"),
    (0, b"\0\0\0\x0cjP  ", "image/jp2"),
    (8, b"WAVE", "audio/wav"),
    (8, b"AVI ", "video/x-msvideo"),
    (0, b"fLaC", "audio/flac"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\x1aE\xdf\xa3", "video/webm"),
    (0, b"FLV\1", "video/x-flv"),
    (0, b"\0\0\1\xba", "video/mpeg"),
    (0, b"\0\0\1\xb3", "video/mpeg"),
)
_BRANDS = {b"avif": "image/avif", b"avis": "image/avif", b"M4A ": "audio/mp4", b"M4B ": "audio/mp4"}
_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


def kind_of_name(name: str) -> str | None:
    """What a path or URL promises: 'image', 'video', 'audio' or 'text'; None: nothing that is known."""
    return _KINDS.get(extension_of(name))


def sniff(head: bytes) -> str | None:
    """The media type of a file by its first bytes; None: no image, video or audio that is known."""
    if head[4:8] == b"ftyp":
        brand = head[8:12]
        return _BRANDS.get(brand, "image/heif" if brand in _HEIF_BRANDS else "video/mp4")
    for offset, magic, type_ in _MAGIC:
        if head.startswith(magic, offset):
            return type_
    if head.startswith(b"OggS"):
        return "video/ogg" if b"theora" in head[:64] else "audio/ogg"
    if len(head) > 1 and head[0] == 0xFF:  # frames of MPEG audio, layer 2 or 3, or of AAC
        if head[1] & 0xE0 == 0xE0 and head[1] & 0x06 in (0x02, 0x04):
            return "audio/mpeg"
        if head[1] & 0xF6 == 0xF0:
            return "audio/aac"
    if head[:1] == b"G" and head[188:189] == b"G":
        return "video/mp2t"
    return None
