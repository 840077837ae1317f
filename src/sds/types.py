"""What travels between the rooms: Row -> Sample -> Batch, and the two protocols that users' objects may follow.

A Row names files and metadata, nothing decoded. A Sample is the plain dict that transforms take and give. A Batch is a
dict of collated fields. Rows are values: nobody changes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import msgspec

__all__ = ["DataType", "ObjectInfo", "Row", "Sample", "Batch", "Failure", "Transform", "Stateful", "size_in"]

Sample: TypeAlias = dict[str, Any]


class DataType(str, Enum):
    """What the samples of a dataset are, where that is said."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"
    TEXT = "text"
    IMAGE_LATENT = "image_latent"
    VIDEO_LATENT = "video_latent"
    AUDIO_LATENT = "audio_latent"
    TEXT_LATENT = "text_latent"


class ObjectInfo(msgspec.Struct, frozen=True, gc=False):
    """What a store says of an object without giving it: its URL, its size, its version (ETag, else size and mtime)."""

    url: str
    size: int
    version: str


_SIZE = re.compile(r"(\d{1,15})-\d+\.\d{6}")  # as stores spell a version where there is no tag: size and time


def size_in(version: str | None) -> int | None:
    """The size that a version without a tag tells of."""
    match = _SIZE.fullmatch(version or "")
    return None if match is None else int(match[1])


class Row(msgspec.Struct, frozen=True, gc=False):
    """One entry of an index.

    Attributes:
        id: its place in the index, after query and limits: `dataset[id]`.
        key: its unique sample id, as text.
        values: the kept columns; files are still URLs or paths.
        versions: for columns whose files have a known version (ETag, or size and mtime), that version.
    """

    id: int
    key: str
    values: dict[str, Any]
    versions: Mapping[str, str] | None = None


class Batch(dict[str, Any]):
    """Collated fields of one step, with the stream they came from as attributes."""

    stream_name: str | None = None
    data_type: str | None = None
    num_accum_rounds_left: int = 0


class Failure(msgspec.Struct, frozen=True):
    """A row that could not be delivered: which, where in the pipeline, and why."""

    key: str
    row_id: int
    url: str | None
    stage: str
    reason: str


class Transform(Protocol):
    """Any callable from a sample to a sample, to several (fan-out), or to None (drop)."""

    def __call__(self, sample: Sample, /) -> Sample | Iterable[Sample] | None:
        """Makes the next form of the sample; may change and return the dict it was given."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Anything whose delivery can be stopped and gone on with."""

    def state_dict(self) -> dict[str, Any]:
        """A small JSON-able copy of where delivery stands."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Goes on from there at the next `iter()`."""
        ...
