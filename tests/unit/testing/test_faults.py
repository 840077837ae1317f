"""Scripts of faults: the same seed, the same faults, whatever the order; and that what is asked for is injected."""

from __future__ import annotations

import random

import pytest

from sds.errors import OptionError
from sds.testing import Fault, FaultyStore
from sds.testing.faults import KINDS, Script


def met(script: Script, keys: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for key in keys:
        fault = script.choose("GET", key)
        found.setdefault(key, []).append("" if fault is None else fault.kind)
    return found


def test_the_order_of_requests_does_not_matter() -> None:
    keys = [f"k{i}" for i in range(500)] * 3
    faults = [Fault("reset", share=0.1), Fault("status", share=0.05)]
    one, two, other = Script(faults, seed=1), Script(faults, seed=1), Script(faults, seed=2)
    shuffled = random.Random(0).sample(keys, len(keys))
    assert met(one, keys) == met(two, shuffled) != met(other, keys)
    assert one.injected == two.injected
    assert 100 < one.injected["reset"] < 200 and 40 < one.injected["status"] < 110


def test_who_meets_a_fault() -> None:
    script = Script([Fault("reset", key=r"/b$", attempts=(2,), times=1)])
    assert met(script, ["a/b", "a/b", "a/b", "c", "c"]) == {"a/b": ["", "reset", ""], "c": ["", ""]}
    assert met(script, ["d/b", "d/b"]) == {"d/b": ["", ""]}  # once, and that was it
    assert Script([Fault("reset")]).choose("PUT", "x") is None
    assert Script([Fault("reset", method=None)]).choose("PUT", "x") is not None
    ranged = Script([Fault("reset", attempts=(1,))])
    assert [ranged.choose("GET", "x", each) is None for each in ("0-1", "2-3", "0-1")] == [False, False, True]


def test_a_flip_is_another_one_at_each_attempt_and_the_same_in_each_run() -> None:
    def bodies(seed: int, **options: float) -> list[bytes]:
        script = Script([Fault("flip", **options)], seed)  # type: ignore[arg-type]
        return [fault.flipped(bytes(1000)) for _ in range(5) if (fault := script.choose("GET", "x")) is not None]

    assert bodies(1) == bodies(1) != bodies(2) and len(set(bodies(1))) == 5
    assert all(sum(body) == 1 and len(body) == 1000 for body in bodies(1))
    assert bodies(1, at=0.5) == [bytes(500) + b"\1" + bytes(499)] * 5
    assert Fault("flip", at=1.0).flipped(b"ab") == b"ac" and Fault("flip").flipped(b"") == b""
    with pytest.raises(OptionError, match="not within the body"):
        Fault("flip", at=5)


def test_faults_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="kind of fault is unknown: 'rest'"):
        Fault("rest")
    with pytest.raises(OptionError, match="no share"):
        Fault("reset", share=5)
    with pytest.raises(OptionError, match="no redirects"):
        FaultyStore(None, [Fault("redirect")])  # type: ignore[arg-type]
    assert all(Fault(kind) for kind in KINDS)
