"""The first words between a client and its fetch server: a connection that was said welcome on, or an error."""

from __future__ import annotations

import os
from collections.abc import Callable

from sds.errors import CacheError
from sds.fetch import protocol as p
from sds.fetch.launch import connect

__all__ = ["greet"]

_HANDSHAKE_S = 30.0
_RECONNECTS = 8


def greet(options: p.FetchOptions, keep: Callable[[p.Wire], None]) -> list[p.Reply]:
    """Finds or starts the server and says hello; what it said. The wire goes to `keep` before a word is spoken."""
    environment = {k: v for k, v in os.environ.items() if k.startswith(("AWS_", "GOOGLE_", "AZURE_"))}
    hello = p.encode([p.Hello(p.VERSION, options, environment)])
    for _ in range(_RECONNECTS):
        connection = connect(options.dst)
        # known at once, or a child that is forked now would keep the connection open without knowing of it
        wire = p.Wire(connection)
        keep(wire)
        try:
            connection.settimeout(_HANDSHAKE_S)
            wire.send(hello)
            replies = wire.receive_replies()
            connection.settimeout(None)
        except OSError:
            replies = None
        if replies is None:  # it was just about to end: the next one will stay
            wire.close()
            continue
        for reply in replies:
            if isinstance(reply, p.Failed):
                wire.close()
                raise reply.error()
        return replies
    hint = "look for what kills processes on this machine (memory limits?)"
    raise CacheError(f"fetch server hangs up on every client: {options.dst}", hint=hint)
