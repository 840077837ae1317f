"""What client and fetch server say to each other: frames of msgpack messages over a Unix socket.

A frame is a 4-byte big-endian length and that many bytes: a list of messages. Requests carry an id that their reply
repeats; replies come in any order. Nothing is ever unpickled.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from sds import errors
from sds.errors import FetchError, SdsError
from sds.types import ObjectInfo

__all__ = [
    "STORAGE_OPTIONS",
    "VERSION",
    "FetchOptions",
    "File",
    "Hello",
    "Get",
    "Release",
    "Want",
    "Pause",
    "Ask",
    "Read",
    "Head",
    "List",
    "Put",
    "Welcome",
    "Trip",
    "Got",
    "Parts",
    "Listing",
    "Done",
    "Failed",
    "Later",
    "Told",
    "Trim",
    "Request",
    "Reply",
    "Wire",
    "encode",
]

T = TypeVar("T")

# what `storage_options` may say without naming a scheme; storage/options.py knows what each store makes of it
STORAGE_OPTIONS = frozenset(
    [
        "endpoint",
        "region",
        "access_key_id",
        "secret_access_key",
        "session_token",
        "anonymous",
        "requester_pays",
        "account_name",
        "account_key",
        "checksums",
    ]
)
VERSION = 2
MAX_FRAME = 2**30


class File(NamedTuple):
    """What is asked for: an object, or a part of it.

    Attributes:
        url: of the object.
        version: of the object, if the index knows it.
        span: only the bytes [start, stop) of it, fewer if it ends before that; a whole copy that is there will do.
        whole_up_to: an object of no more bytes is wanted whole after all (the client sees to that).
    """

    url: str
    version: str | None = None
    span: tuple[int, int] | None = None
    whole_up_to: int = 0


class FetchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants of the fetch room.

    Attributes:
        dst: the cache folder.
        limit: bytes of objects that may be on disk; None: no limit.
        policy: what to evict: 'keep' the file released last, 'lru' the one released first.
        num_connections: downloads at once.
        num_retries: how often a request that may yet succeed is tried again.
        timeout_s: how long a connection may be silent, and how long a download waits for room.
        settings: the user's storage_options.
        ttl_s: how old a file may be before it is fetched again; None: any age.
        revalidate: whether to ask the store for the version of a URL that has none: 'never', once per 'run', 'always'.
        run: names the run that this client belongs to, for revalidate='run'; all its processes have the same.
        ahead_bytes: how much a client holds before the rest of what it asked for is put off; None: its share.
    """

    dst: str
    limit: int | None = None
    policy: str = "keep"
    num_connections: int = 64
    num_retries: int = 3
    timeout_s: float = 60.0
    settings: dict[str, Any] = {}
    ttl_s: float | None = None
    revalidate: str = "never"
    run: str = ""
    ahead_bytes: int | None = None

    def __repr__(self) -> str:
        # settings may hold keys: a traceback or a log must not
        return f"FetchOptions(dst={self.dst!r}, limit={self.limit}, policy={self.policy!r})"


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """A client's first word; `environment` has its cloud variables."""

    version: int
    options: FetchOptions
    environment: dict[str, str]

    def __repr__(self) -> str:
        return f"Hello({self.options!r})"


class Get(msgspec.Struct, frozen=True, tag="get", gc=False):
    """Fetch these files into the cache, and keep them there until I release this id."""

    id: int
    files: list[File]


class Release(msgspec.Struct, frozen=True, tag="release"):
    """I am done with what these ids got, or no longer want it."""

    ids: list[int]


class Want(msgspec.Struct, frozen=True, tag="want"):
    """Somebody waits for what this id asked for: do not put it off any longer."""

    id: int


class Pause(msgspec.Struct, frozen=True, tag="pause"):
    """Whether whoever takes this client's batches does something else right now; what it holds comes free later.

    `is_stuck`: nothing that this client holds comes free by itself, since all who hold something wait for more, and
    have waited for the same since it last said so. `in_use`: the ids of what they hold then.
    """

    is_paused: bool
    is_stuck: bool = False
    in_use: list[int] = []


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """What is being done for this id, and why does it take so long?"""

    id: int


class Read(msgspec.Struct, frozen=True, tag="read"):
    """Bytes of an object, past the cache: the whole, or [start, stop) ranges."""

    id: int
    url: str
    ranges: list[tuple[int, int]] | None


class Head(msgspec.Struct, frozen=True, tag="head"):
    """Size and version of an object."""

    id: int
    url: str


class List(msgspec.Struct, frozen=True, tag="list"):
    """Everything below a folder."""

    id: int
    url: str


class Put(msgspec.Struct, frozen=True, tag="put"):
    """Write an object."""

    id: int
    url: str
    data: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The server takes the client; `warning` is for the user's log."""

    pid: int
    warning: str | None = None


class Trip(NamedTuple):
    """A file that a store was asked for, on behalf of whoever asked first.

    Attributes:
        slot: which of the request's files.
        requests: made for it.
        num_bytes: that came.
        began_at: when, by the machine's monotonic clock.
        seconds: from then until it was here.
        storage_class: of the object; 'standard' where the store says nothing.
    """

    slot: int
    requests: int
    num_bytes: int
    began_at: float
    seconds: float
    storage_class: str = "standard"


class Got(msgspec.Struct, frozen=True, tag="got", gc=False):
    """The files, as local paths, and what it took to have them."""

    id: int
    paths: list[str]
    counts: dict[str, int]
    trips: tuple[Trip, ...] = ()


class Parts(msgspec.Struct, frozen=True, tag="parts"):
    """Bytes that were read."""

    id: int
    parts: list[bytes]


class Listing(msgspec.Struct, frozen=True, tag="listing"):
    """Objects that were found, in byte order of their keys."""

    id: int
    objects: list[ObjectInfo]


class Done(msgspec.Struct, frozen=True, tag="done"):
    """A put came through."""

    id: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """A request failed; the error's class, message and facts, and what stores were asked for in vain."""

    id: int
    kind: str
    message: str
    facts: dict[str, Any]
    trips: tuple[Trip, ...] = ()

    @classmethod
    def of(cls, id: int, error: SdsError, trips: Sequence[Trip] = ()) -> Failed:
        """Puts one of our errors into words; a kind that only the server knows goes by the name of its base."""
        kind = next(each.__name__ for each in type(error).__mro__ if each.__name__ in errors.__all__)
        return cls(id, kind, error.message, error.facts, tuple(trips))

    def error(self) -> SdsError:
        """The error again, on the other side."""
        kind = getattr(errors, self.kind, FetchError) if self.kind in errors.__all__ else FetchError
        known = {k: v for k, v in self.facts.items() if k in ("hint", "url", "key", "stage", "rank")}
        result = kind(self.message, **known)
        assert isinstance(result, SdsError)
        return result


class Later(msgspec.Struct, frozen=True, tag="later"):
    """This client holds its share of the cache: the request waits until something is released, or is wanted now."""

    id: int


class Told(msgspec.Struct, frozen=True, tag="told"):
    """What is being done for an id, in words."""

    id: int
    text: str


class Trim(msgspec.Struct, frozen=True, tag="trim"):
    """Somebody starves for room: give back what you only prefetched; what is held to be kind, too, if it lasts."""

    waited_s: float = 0.0


Request: TypeAlias = Hello | Get | Release | Want | Pause | Ask | Read | Head | List | Put
Reply: TypeAlias = Welcome | Got | Parts | Listing | Done | Failed | Later | Told | Trim

_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_REQUESTS: msgspec.msgpack.Decoder[list[Request]] = msgspec.msgpack.Decoder(list[Request])
_REPLIES: msgspec.msgpack.Decoder[list[Reply]] = msgspec.msgpack.Decoder(list[Reply])


def encode(messages: Sequence[Request | Reply]) -> bytes:
    """One frame. FetchError if it cannot be said: too large, or text or options that msgpack has no words for."""
    try:
        body = _ENCODER.encode(messages)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # the value itself may be a secret: only its kind is named
        hint = "URLs are text without lone surrogates; storage_options are text, numbers, booleans and dicts of those"
        raise FetchError(f"request cannot be sent: {type(error).__name__}", hint=hint) from None
    if len(body) > MAX_FRAME:
        raise FetchError(f"message is too large: {len(body)} bytes", hint="read or write in smaller pieces")
    return _LENGTH.pack(len(body)) + body


class Wire:
    """One end of a connection. One thread receives; senders take turns by a lock of their own."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, frame: bytes | memoryview) -> None:
        """Sends a frame; OSError if the other side is gone. Blocks while the other side does not read."""
        self._socket.sendall(frame)

    def send_now(self, frame: bytes) -> memoryview:
        """Sends what the other side can take without waiting; what remains of the frame."""
        rest = memoryview(frame)
        try:
            while rest:
                rest = rest[self._socket.send(rest, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass
        return rest

    def receive_requests(self) -> list[Request] | None:
        """The next frame from a client; None when it hung up or spoke nonsense."""
        return _decode(_REQUESTS, self._receive())

    def receive_replies(self) -> list[Reply] | None:
        """The next frame from the server; None when it is gone."""
        return _decode(_REPLIES, self._receive())

    def _receive(self) -> bytearray | None:
        head = self._exactly(_LENGTH.size)
        if head is None:
            return None
        (length,) = _LENGTH.unpack(head)
        return None if length > MAX_FRAME else self._exactly(length)

    def _exactly(self, num_bytes: int) -> bytearray | None:
        data = bytearray(num_bytes)
        view, got = memoryview(data), 0
        try:
            while got < num_bytes:
                n = self._socket.recv_into(view[got:])
                if not n:
                    return None
                got += n
        except OSError:  # reset by a killed peer, or shut down by our own close
            return None
        return data

    @property
    def is_hung_up(self) -> bool:
        """Whether the other side is gone, whatever it said before that and nobody has read yet."""
        if self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def hang_up(self) -> None:
        """Ends the conversation from any thread; a blocked receive returns."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self) -> None:
        """Closes the descriptor. Only the receiving thread (or a forked child) may do this."""
        self._socket.close()


def _decode(decoder: msgspec.msgpack.Decoder[list[T]], body: bytearray | None) -> list[T] | None:
    try:
        return None if body is None else decoder.decode(body)
    except (ValueError, TypeError, RecursionError):  # msgspec's own, bad UTF-8, unhashable keys, bottomless nesting
        return None
