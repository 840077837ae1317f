"""What the fetch server is doing for somebody who waits, in words: why it takes so long, and what would help.

Comes in: flights and the cache, under the server's lock. Goes out: text, or the error that says which limit would do.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from sds.errors import CacheFull
from sds.fetch.cache import Cache
from sds.fetch.flights import Flight
from sds.fetch.folder import written_bytes
from sds.units import counted, format_bytes
from sds.urls import redact

__all__ = ["describe", "too_small"]


def describe(flights: Sequence[Flight], cache: Cache) -> str:
    """Why these are not here yet: the first of them that is not."""
    missing = [flight for flight in flights if flight.key not in cache]
    if not missing:
        return "it asks the store which version there is" if not flights else "it is here, and about to be sent"
    flight = missing[0]
    others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    return f"{_state(flight, cache)}{others}"


def _state(flight: Flight, cache: Cache) -> str:
    if flight.is_parked:
        waited_s = time.monotonic() - (flight.waits_since or flight.parked_at)  # it may have tried in between
        return (
            f"it waits for room in the cache for {waited_s:.0f} s: {format_bytes(flight.wanted)} are wanted, "
            f"{format_bytes(cache.leased_bytes)} of {_limit(cache)} are in use"
        )
    num_attempts = flight.counts["requests"]
    if not num_attempts:
        return "it is in the queue for a connection"
    if flight.size is None:
        return f"attempt {num_attempts}: connecting, or no answer yet"
    return f"attempt {num_attempts}: {format_bytes(_written(flight))} of {format_bytes(flight.size)} so far"


def _written(flight: Flight) -> int:
    """Bytes of a flight that are on disk; a small body is in memory until it is whole."""
    return min(written_bytes(flight.part), flight.size or 0) if flight.part else 0


def _limit(cache: Cache) -> str:
    return "a disk that is full" if cache.is_disk_full else format_bytes(cache.limit or 0)


def too_small(
    cache: Cache, flight: Flight, waited_s: float, num_holders: int, wanted: int, largest: int = 0
) -> CacheFull:
    """The error of somebody for whom there will be no room.

    Args:
        cache: the cache that has none.
        flight: the first that waits for it.
        waited_s: for how long.
        num_holders: clients that hold files.
        wanted: bytes of all that somebody waits for.
        largest: bytes of the largest object so far.
    """
    held, url = cache.leased_bytes, redact(flight.url)
    needed = held + max(wanted, flight.wanted)
    hint = (
        f"cache_limit of at least {needed} bytes for what is asked for now; later batches of paths may need more: "
        f"room for prefetch_batches + 2 of them (for each worker), at {max(largest, flight.wanted)} bytes a file, the "
        "largest so far, is on the safe side; or fewer processes, or smaller batches"
    )
    if cache.is_disk_full:
        missing = format_bytes(max(needed - (cache.room or 0), flight.wanted))
        hint = f"free some disk (at least {missing}), or choose another `dst`; or fewer processes, or smaller batches"
    return CacheFull(
        f"no room in the cache for {waited_s:.0f} s: {format_bytes(held)} of {_limit(cache)} are in use "
        f"by {counted(num_holders, 'client')}, and {format_bytes(flight.wanted)} more are wanted for {url}",
        hint=hint,
        url=url,
    )
