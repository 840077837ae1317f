"""Envelopes: what a worker sends of a step."""

from __future__ import annotations

import pickle
import threading
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

from sds.errors import TransformError
from sds.loader.workers import Envelope

LOOP: list[Any] = []
LOOP.append(LOOP)


def sent(batch: Any) -> tuple[Envelope, int]:
    """What arrives, and the bytes that were sent."""
    envelope = Envelope(batch, 2, None, "", [], [], 7)
    data = ForkingPickler.dumps(envelope)
    return pickle.loads(data), len(data)


@pytest.mark.parametrize(
    "batch",
    [
        [{"jpg": b"x" * 1000, "__sample_key__": "a", "n": 1, "f": 0.5, "is": True, "no": None, "t": (1, [2])}] * 2,
        {"bytes": [b"x", b"y"], 3: {"deeper": []}},
        None,
        b"alone",
        "\udcff",
    ],
)
def test_plain_batches_arrive_as_they_are(batch: Any) -> None:
    found, _ = sent(batch)
    assert found.batch == batch and (found.num_samples, found.num_bytes, found.error) == (2, 7, None)


def test_the_bytes_of_a_plain_batch_are_sent_once_and_not_in_a_pickle_of_their_own() -> None:
    batch = [{"jpg": bytes([k]) * 100_000} for k in range(5)]
    found, size = sent(batch)
    function, arguments = Envelope(batch, 5, None, "", []).__reduce__()
    assert found.batch == batch and size < 501_000
    assert function is Envelope and arguments[0] is batch


def test_other_objects_arrive() -> None:
    found, _ = sent({"array": np.arange(6).reshape(2, 3), "name": ["a", "b"], "set": {1}})
    assert found.batch["array"].tolist() == [[0, 1, 2], [3, 4, 5]] and found.batch["name"] == ["a", "b"]


@pytest.mark.parametrize("value", [threading.Lock(), lambda: None])
def test_what_cannot_be_sent_is_an_error_that_says_so(value: Any) -> None:
    found, _ = sent([{"a": 1, "b": value}])
    assert found.batch is None and isinstance(found.error, TransformError)
    assert "cannot be sent" in str(found.error) and "num_workers=0" in str(found.error.hint)


def test_a_list_that_has_itself_inside_arrives() -> None:
    found, _ = sent(LOOP)
    assert found.batch[0] is found.batch and found.error is None


def test_a_batch_of_many_lists_is_not_looked_through() -> None:
    batch = {"tokens": [[1, 2, 3]] * 1000, "deep": None}
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    assert Envelope(batch, 5, None, "", []).__reduce__()[0] is not Envelope
    assert sent(batch)[0].batch == batch and sent(deep)[0].batch == deep
