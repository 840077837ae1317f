"""The fetch server: one small process per node and cache folder, run as `python -m sds.fetch.server DST SOCKET`.

Comes in: requests of the same user's processes, over a Unix socket. Goes out: leased paths and bytes. One thread reads
each connection (session.py); downloads have threads of their own (flights.py). The server is the one owner of the
folder, which makes its limit exact, and ends shortly after its last client.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from sds.errors import CacheError, SdsError
from sds.fetch import protocol as p
from sds.fetch.cache import Cache
from sds.fetch.flights import Flight, Flights
from sds.fetch.launch import READY, SCANNING, peer_uid, short_name
from sds.fetch.owner import Claim
from sds.fetch.reports import too_small
from sds.fetch.session import Session
from sds.fetch.ticket import Ticket
from sds.fetch.versions import Versions
from sds.units import format_bytes

__all__ = ["Server", "main"]

_TICK_S = 0.1
_IDLE_S = 1.0  # how long the server outlives its last client
_FIRST_CLIENT_S = 10.0
_TRIM_EVERY_S = 0.1  # at first; the longer it lasts, the less often
_MAX_TRIM_EVERY_S = 5.0
_PATIENCE_S = 1.0  # how long a flight waits for room while others are on their way
_GRACE_S = 2.0  # after a server was killed, its clients have this long to hold their files again
_YOUNG_S = 60.0
_DISTRUST_S = 120.0  # what a disk had written so long before the machine went down is safe
_EXPIRE_EVERY_S = 1.0
_ANSWER_S = 5.0  # how long a client may take to say whether it is paused
_OWN_PATIENCE = 10  # times the timeout, for a client that holds files itself: it may let go of them when it goes on
_STUCK_S = 5.0  # how long all who hold files must say that nothing comes free by itself: then it is said at once
_STUCK_ON_DISK_S = 20.0  # the same when the disk is full: others may free some of it


class Server:
    """Owns the cache folder while it lives."""

    def __init__(self, claim: Claim, *, was_killed: bool = False) -> None:
        self._claim = claim
        self.lock = threading.RLock()
        distrust_s = _DISTRUST_S if claim.has_rebooted else None
        self.cache = Cache(claim.folder / "objects", on_progress=_show_life, distrust_s=distrust_s)
        self.flights = Flights(self.cache, self.lock, self.flush, time.monotonic() + _GRACE_S if was_killed else 0.0)
        self.flights.on_warning = self._warn
        self.versions = Versions(self.flights.stores, self.lock, self.flush)
        self.errands = ThreadPoolExecutor(16, thread_name_prefix="errand")
        self.unsent: deque[Session] = deque()
        self._sessions: set[Session] = set()
        self._idle_since = time.monotonic() + _FIRST_CLIENT_S - _IDLE_S
        self._trimmed_at = 0.0
        self._lent: list[tuple[Ticket, list[int]]] = []  # files that made way for somebody
        self._expired_at = 0.0
        self._has_warned_of_disk = False
        self.cache.on_full_disk = self._warn_of_full_disk

    def flush(self) -> None:
        """Sends what was posted to clients. Not under the lock."""
        while True:
            try:
                session = self.unsent.popleft()
            except IndexError:
                return
            session.flush()

    def welcome(self, session: Session) -> str | None:
        """Takes a client in: the smallest limit of all present holds. Under the lock."""
        self.flights.ensure_threads(session.options.num_connections)
        before = _smallest_limit(self._present())
        self._sessions.add(session)
        self._apply_limits()
        limit = self.cache.limit
        if limit is not None and (before is None or limit < before):
            self._warn(_smaller(limit), but=session)
        own = session.options.limit
        warnings = [_smaller(limit)] if limit is not None and (own is None or own > limit) else []
        if self._claim.guest_of is not None:
            warnings.append(_guest(self._claim))
        return "; ".join(warnings) or None

    def _warn(self, text: str, but: Session | None = None) -> None:
        """Leaves a warning for all clients' logs. Under the lock."""
        for session in self._sessions - {but}:
            session.post(p.Welcome(os.getpid(), text))

    def forget(self, session: Session) -> None:
        """A client is gone."""
        with self.lock:
            session.release_all()
            self._sessions.discard(session)
            self._idle_since = time.monotonic()
            if self._sessions:
                self._apply_limits()

    def _present(self) -> list[p.FetchOptions]:
        """What those want who are here: a client that has just been closed may still be in the books."""
        return [session.options for session in self._sessions if not session.is_gone]

    def _apply_limits(self) -> None:
        present = self._present()
        if present:  # else all goes on as it was, until the next one comes
            self.cache.limit = _smallest_limit(present)
            self.cache.policy = "lru" if all(options.policy == "lru" for options in present) else "keep"
            ages = [options.ttl_s for options in present if options.ttl_s is not None]
            self.cache.ttl_s = min(ages, default=None)
        self.cache.expire()
        self.cache.shrink()
        self.flights.admit()
        for session in self._sessions:
            session.begin_deferred()

    @property
    def share(self) -> int | None:
        """How many bytes a client may hold without somebody waiting for them; None: as many as it likes."""
        return None if self.cache.limit is None else self.cache.limit // max(1, len(self._sessions))

    def serve(self, listener: socket.socket) -> None:
        """Accepts clients until there have been none for a while."""
        listener.settimeout(_TICK_S)
        while True:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                with self.lock:
                    if not self._sessions and time.monotonic() - self._idle_since > _IDLE_S:
                        return
                    if not self._claim.beat():  # the folder is gone, or another host's: clients find what is there now
                        return
                    self._look_after()
                self.flush()
                continue
            except OSError:  # no descriptor left: somebody will hang up, and the caller waits in the queue
                time.sleep(_TICK_S)
                continue
            if peer_uid(connection) != os.getuid():
                connection.close()
                continue
            connection.setblocking(True)
            with self.lock:
                self._idle_since = time.monotonic() + 1.0  # it will say hello
            session = Session(self, p.Wire(connection))
            threading.Thread(target=session.run, name="session", daemon=True).start()

    def _look_after(self) -> None:
        """What is due now and then."""
        now = time.monotonic()
        if now - self._expired_at > _EXPIRE_EVERY_S:
            self._expired_at = now
            self.cache.expire()
            if (starving := self.flights.starving()) is not None:
                self.cache.look_at_disk(starving[1].wanted)
        self._relieve()

    def _warn_of_full_disk(self) -> None:
        """Once is enough."""
        if not self._has_warned_of_disk:
            self._has_warned_of_disk = True
            for session in self._sessions:
                session.post(p.Welcome(os.getpid(), _full_disk(self.cache)))

    def _relieve(self) -> None:
        """Helps flights that wait for room: asks for what was only prefetched; in the end, says what is wrong."""
        self.flights.admit()  # a grace may have ended
        self.seek_lent()
        starving = self.flights.starving()
        if starving is None or self.flights.is_careful:
            return
        since, _ = starving
        now = time.monotonic()
        waited_s = now - since
        if self.flights.num_active and waited_s < _PATIENCE_S:
            return  # what is on its way may land and be let go of soon
        blocked = [(f, t) for f in self.flights.parked() for t in _wanted(f)]
        if not blocked:
            return  # nobody needs it yet
        if self._end_hopeless(blocked):
            return
        self.flights.probe()
        if now - max(since, self._trimmed_at) > max(_TRIM_EVERY_S, min(waited_s / 20, _MAX_TRIM_EVERY_S)):
            self._trimmed_at = now
            for session in self._sessions:
                session.post(p.Trim(waited_s))
            self._make_way()
        if self.flights.num_active or self._end_stuck(blocked, now):
            return
        for flight, ticket in blocked:
            if not flight.is_parked:
                continue  # it asks for its size
            waited_s = now - max(ticket.wanted_since or now, self.flights.landed_at)
            timeout_s = ticket.session.options.timeout_s
            # a client may pause where nobody can see it, and hold what its own threads wait for
            patience = _OWN_PATIENCE if ticket.session.holds_files else 1
            if waited_s > patience * timeout_s and not self._is_anybody_paused(now):
                self._give_up(flight, ticket, waited_s)
                return

    def _make_way(self) -> None:
        """Lets the ticket that is waited for longest have room that others hold for files of which more are missing.

        Each of several could have some of its files, and none all of them.
        """
        first = self._first()
        if first is None or not any(flight.is_parked for flight in first.flights):
            return
        tickets = [t for session in self._sessions for t in session.tickets.values() if t.num_missing]
        self._lent += [(t, t.make_way()) for t in tickets if t is not first and any(t.entries)]
        self.flights.admit()

    def _first(self) -> Ticket | None:
        """The ticket that is waited for longest."""
        tickets = (
            t for s in self._sessions for t in s.tickets.values() if t.num_missing and t.wanted_since is not None
        )
        return min(tickets, key=_wanted_at, default=None)

    def seek_lent(self) -> None:
        """Seeks the files that made way, when the one that they did it for has room. Under the lock."""
        if not self._lent:
            return
        first = self._first()
        if first is not None and any(flight.is_parked for flight in first.flights):
            return
        lent, self._lent = self._lent, []
        for ticket, slots in sorted(lent, key=lambda each: each[0].wanted_since or math.inf):
            ticket.session.seek_again(ticket, slots)

    def _end_hopeless(self, blocked: list[tuple[Flight, Ticket]]) -> bool:
        """Tells the first who waits that the limit is too small, if its files alone are larger; whether that is so."""
        limit = self.cache.limit
        if not blocked or limit is None or sum(_sizes([blocked[0][1]]).values()) <= limit:
            return False
        self._give_up(*blocked[0], time.monotonic() - (blocked[0][1].wanted_since or 0.0))
        return True

    def _end_stuck(self, blocked: list[tuple[Flight, Ticket]], now: float) -> bool:
        """Tells the first who waits that the limit is too small, if that is sure: all who hold files wait for more."""
        room = self.cache.room
        if not blocked or room is None:
            return False
        stuck_s = _STUCK_ON_DISK_S if self.cache.is_disk_full else _STUCK_S
        if now - self.flights.landed_at < stuck_s:
            return False  # something came, and may be let go of
        if not all(session.is_stuck(now - stuck_s, self._trimmed_at) for session in self._sessions):
            return False
        if self.flights.ask_sizes([flight for flight, _ in blocked]):
            return True  # the error shall name a limit that does
        flight, ticket = blocked[0]
        held = [each for session in self._sessions for id in session.in_use if (each := session.tickets.get(id))]
        if sum(_sizes([ticket, *held]).values()) <= room:
            return False  # it waits behind another, or for what is only prefetched
        self._give_up(flight, ticket, now - (ticket.wanted_since or now))
        return True

    def _give_up(self, flight: Flight, ticket: Ticket, waited_s: float) -> None:
        num_holders = sum(any(any(t.entries) for t in s.tickets.values()) for s in self._sessions)
        error = too_small(
            self.cache, flight, waited_s, num_holders, _wanted_by(self._sessions), self.flights.largest_size
        )
        for each in [flight, *ticket.flights]:
            if each.is_parked:
                self.flights.give_up(each, ticket, error)

    def _is_anybody_paused(self, now: float) -> bool:
        """Whether room comes free when somebody's training loop goes on; who was just asked may yet say so."""
        return any(
            session.holds_files
            and (session.is_paused or (session.answered_at < self._trimmed_at and now - self._trimmed_at < _ANSWER_S))
            for session in self._sessions
        )


def _wanted(flight: Flight) -> list[Ticket]:
    """Those who asked for a flight and are waited for by somebody."""
    tickets = {id(each.waiter): each.waiter for each in flight.waiters if isinstance(each.waiter, Ticket)}
    return [ticket for ticket in tickets.values() if ticket.wanted_since is not None]


def _wanted_at(ticket: Ticket) -> float:
    """Since when somebody waits for a ticket."""
    return ticket.wanted_since or 0.0


def _sizes(tickets: list[Ticket]) -> dict[str, int]:
    """Bytes by key of the files of some tickets that are here, or wait for room and have told their size."""
    entries = {entry.key: entry.size for ticket in tickets for entry in ticket.entries if entry is not None}
    return {f.key: f.size for ticket in tickets for f in ticket.flights if f.is_parked and f.size is not None} | entries


def _wanted_by(sessions: Iterable[Session]) -> int:
    """Bytes of all that somebody waits for."""
    waiting = (t for session in sessions for t in session.tickets.values() if t.wanted_since is not None)
    flights = {flight.key: flight for ticket in waiting for flight in ticket.flights if flight.is_parked}
    return sum(flight.size or flight.wanted for flight in flights.values())


def _smallest_limit(options: Iterable[p.FetchOptions]) -> int | None:
    return min((each.limit for each in options if each.limit is not None), default=None)


def _smaller(limit: int) -> str:
    return f"another dataset or program on this cache folder has a smaller limit, which holds: {format_bytes(limit)}"


def _guest(claim: Claim) -> str:
    return (
        f"another host uses this cache folder ({claim.guest_of}): this one keeps its files in {claim.folder}, "
        "up to a limit of its own; a `dst` on a local disk is faster"
    )


def _full_disk(cache: Cache) -> str:
    limit = "there is no cache_limit" if cache.limit is None else f"cache_limit is {format_bytes(cache.limit)}"
    return (
        f"the disk is full: the cache goes on with {format_bytes(cache.room or 0)} ({limit}); "
        "free some disk, or choose another `dst`"
    )


def _show_life() -> None:
    """Whoever started us waits: a large folder takes time to look through."""
    with suppress(OSError):  # nobody does any more
        sys.stdout.write(f"{SCANNING}\n")
        sys.stdout.flush()


def _listen(address: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_name(address) as name:
            listener.bind(name)
        listener.listen(4096)
    except OSError as error:
        hint = "set XDG_RUNTIME_DIR or TMPDIR to a folder of your own"
        raise CacheError(f"fetch server cannot listen: {address}: {error.strerror or error}", hint=hint) from error
    return listener


def _sweep(folder: Path) -> None:
    """Removes the sockets that killed servers left behind; a young one may be about to be listened at."""
    for place in folder.glob("*.sock"):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, short_name(place) as name:
            before = os.lstat(place)
            if time.time() - before.st_mtime < _YOUNG_S:
                continue
            probe.settimeout(1.0)
            try:
                probe.connect(name)
            except ConnectionRefusedError:
                if os.lstat(place).st_ino == before.st_ino:  # or a new server has just put its own there
                    place.unlink()


def _make_modest() -> None:
    """What arrives takes no core from threads that decode: it waits until one of them sleeps, or has had its turn."""
    if hasattr(os, "SCHED_BATCH"):  # Linux
        with suppress(OSError):  # some sandboxes forbid it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main(dst: str, address: str) -> None:
    """Serves one folder at one address; prints "ready", or what is wrong, for whoever started it."""
    _make_modest()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer; this process ends when it does
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    place = Path(address)
    try:
        claim = Claim(Path(dst), place)
        # a server that ended by itself took its socket along
        was_killed = os.path.lexists(place) or (claim.before is not None and os.path.lexists(claim.before))
        place.unlink(missing_ok=True)
        _sweep(place.parent)
        server = Server(claim, was_killed=was_killed)
        listener = _listen(place)
    except SdsError as error:
        sys.stdout.write(f"{error}\n")
        return
    sys.stdout.write(f"{READY}\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # whoever started us need not live as long as we do
    os.close(null)
    try:
        server.serve(listener)
    finally:
        place.unlink(missing_ok=True)
    with server.lock:  # nobody begins another file
        server.cache.sweep()
        claim.leave()
        os._exit(0)  # download threads may be inside native calls; everything on disk is whole at any moment


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
