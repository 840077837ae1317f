"""Faults by script: which request fails, and how. A pure function of seed, key and attempt, whatever the timing.

Comes in: what is asked for (method, key, range). Goes out: the Fault that it meets, or None. `FaultyProxy` injects them
into real connections, `FaultyStore` into a Store; both count what they injected.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sds.errors import OptionError
from sds.seeds import derive_key

__all__ = ["KINDS", "Fault", "Script"]

KINDS = {
    "delay": "nothing is said for `seconds`, then all goes well",
    "stall": "the body stops half-way for `seconds`, then goes on",
    "reset": "the connection is reset half-way through the body",
    "refuse": "the connection is reset before a byte of the answer",
    "short": "the body ends half-way; with `matching`, the length that was promised agrees with that",
    "empty": "there is no body, and none was promised",
    "long": "the body has `num_bytes` more; with `matching`, the length that was promised agrees with that",
    "flip": "one byte of the body is another",
    "status": "the answer is `status`, with `retry_after_s` if given",
    "redirect": "the answer is 302, to `location`",
}


@dataclass(frozen=True)
class Fault:
    """One way to fail, and the requests that meet it.

    Attributes:
        kind: one of KINDS.
        share: of the requests that fit, so many meet it.
        key: a pattern (re.search) that the key or path must match.
        attempts: which attempts at a key and range meet it, the first is 1; None: all.
        method: the HTTP method, or None for any.
        times: it is met so often at most; None: always.
        seconds: how long 'delay' and 'stall' last.
        status: what 'status' answers.
        retry_after_s: the Retry-After that 'status' sends.
        num_bytes: what 'long' adds.
        matching: whether the promised length of 'short' and 'long' is the one that comes.
        location: where 'redirect' leads.
        at: where 'flip' strikes, 0 is the first byte and 1 the end; None: drawn from the seed, anew for each attempt.
    """

    kind: str
    share: float = 1.0
    key: str = ""
    attempts: Sequence[int] | None = None
    method: str | None = "GET"
    times: int | None = None
    seconds: float = 0.5
    status: int = 503
    retry_after_s: float | None = None
    num_bytes: int = 100
    matching: bool = False
    location: str = ""
    at: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"kind of fault is unknown: {self.kind!r}", hint=f"one of {', '.join(KINDS)}")
        if not 0.0 <= self.share <= 1.0:
            raise OptionError(f"share of a fault is no share: {self.share!r}", hint="a number between 0 and 1")
        if self.at is not None and not 0.0 <= self.at <= 1.0:
            raise OptionError(f"place of a fault is not within the body: {self.at!r}", hint="a number between 0 and 1")

    def flipped(self, body: bytes) -> bytes:
        """The body with one byte that is another."""
        other = bytearray(body)
        if other:
            other[min(int((self.at or 0.0) * len(other)), len(other) - 1)] ^= 1
        return bytes(other)


@dataclass
class Script:
    """Faults in the order in which they are tried; the first that applies is met.

    Whether a request meets a fault depends on the seed, its key and range, and how often these were asked for before:
    two runs that ask for the same meet the same, in whatever order their threads come.
    """

    faults: Sequence[Fault] = ()
    seed: int = 0
    injected: Counter[str] = field(default_factory=Counter)
    _attempts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _met: Counter[int] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self, method: str, key: str, range: str = "") -> Fault | None:
        """The fault that this request meets."""
        with self._lock:
            self._attempts[method, key, range] += 1
            attempt = self._attempts[method, key, range]
            for number, fault in enumerate(self.faults):
                if self._applies(fault, number, method, key, range, attempt):
                    self._met[number] += 1
                    self.injected[fault.kind] += 1
                    if fault.kind == "flip" and fault.at is None:
                        place = derive_key(self.seed, "place", method, key, range, attempt)
                        return replace(fault, at=place / 2**63)
                    return fault
        return None

    def _applies(self, fault: Fault, number: int, method: str, key: str, range: str, attempt: int) -> bool:
        if fault.method is not None and fault.method != method:
            return False
        if fault.attempts is not None and attempt not in fault.attempts:
            return False
        if fault.times is not None and self._met[number] >= fault.times:
            return False
        if fault.key and not re.search(fault.key, key):
            return False
        return fault.share >= 1.0 or derive_key(self.seed, number, method, key, range, attempt) < fault.share * 2**63
