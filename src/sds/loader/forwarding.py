"""Forwarding: what worker processes log -> the log of the process that trains, at once, with rank and worker.

A worker that hangs says so while it hangs, and a program with logging of its own gets the records of its workers as it
gets its own. One datagram is one record: a worker that is killed leaves no half of one. Where the process at home reads
nothing for a while, records are lost, rather than holding up the work.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
from typing import Any

import msgspec

__all__ = ["Forwarding", "Sender"]

_MAX_TEXT = 32_000
_JOIN_S = 2.0
_PATIENCE = struct.pack("ll", 2, 0)  # seconds and microseconds that a record waits for room: queues are short


class _Record(msgspec.Struct, array_like=True):
    """A log record on its way."""

    name: str
    level: int
    text: str
    worker: int


class Sender(logging.Handler):
    """In a worker: sends records home instead of showing them. Travels to workers of every start method."""

    def __init__(self, outgoing: socket.socket, level: int) -> None:
        super().__init__()
        self._outgoing = outgoing
        self._wanted = level  # of the logger at home, which may have been set in code
        self._worker = 0
        self._is_heard = True  # the last record found room in time

    def install(self, worker: int) -> None:
        """From now on, this process's records go home, and nowhere else."""
        self._worker = worker
        logger = logging.getLogger("sds")
        logger.handlers = [self]
        logger.propagate = False  # a forked child has the handlers of its parent
        logger.setLevel(self._wanted)

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one record, if there is room."""
        text = self.format(record)[:_MAX_TEXT]
        frame = msgspec.msgpack.encode(_Record(record.name, record.levelno, text, self._worker))
        try:
            self._outgoing.send(frame, 0 if self._is_heard else socket.MSG_DONTWAIT)
            self._is_heard = True
        except OSError:
            self._is_heard = False  # nobody reads, or too slowly: the work goes on

    def __reduce__(self) -> tuple[Any, ...]:
        return Sender, (self._outgoing, self._wanted)


class Forwarding:
    """At home: a thread that hands records of workers to the loggers they are of. Close it to end it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._incoming, self._outgoing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._outgoing.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _PATIENCE)
        self._thread = threading.Thread(target=self._run, name="sds-logs", daemon=True)
        self._thread.start()

    @property
    def sender(self) -> Sender:
        """What a worker installs."""
        return Sender(self._outgoing, logging.getLogger("sds").getEffectiveLevel())

    def _run(self) -> None:
        decoder = msgspec.msgpack.Decoder(_Record)
        while frame := self._incoming.recv(2 * _MAX_TEXT * 4):
            try:
                found = decoder.decode(frame)
            except msgspec.MsgspecError:
                continue
            logger = logging.getLogger(found.name)
            if not logger.isEnabledFor(found.level):
                continue
            text = f"rank {self._rank} worker {found.worker}: {found.text}"
            record = logger.makeRecord(found.name, found.level, "(worker)", 0, "%s", (text,), None)
            record.rank, record.worker = self._rank, found.worker
            logger.handle(record)

    def close(self) -> None:
        """Hands over what has come, and ends the thread."""
        try:
            self._outgoing.send(b"")  # a datagram that is the last one
        except OSError:  # no room: what waits is not read to its end
            self._incoming.shutdown(socket.SHUT_RD)
        if self._thread is not threading.current_thread():  # dropped loaders are collected by any thread
            self._thread.join(_JOIN_S)
        self._outgoing.close()
        self._incoming.close()
