"""Whoever waits long is told for what: URL, rank, stage, what the server does about it. Once, then ever less often."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fetching
import sds
from sds.fetch import FetchClient, FetchOptions
from sds.testing import HTTPServer


@pytest.fixture(autouse=True)
def listening(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "sds.fetch")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "waited" in record.getMessage()]


def test_a_store_that_says_nothing(
    dst: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with fetching.RawServer(lambda _: None) as server:
        client = FetchClient(FetchOptions(dst=str(dst), timeout_s=2.0, num_retries=0))
        begun = time.monotonic()
        tickets = client.submit([[(f"{server.url}/{i}.bin?X-Signature=SECRET", None)] for i in range(4)])
        with ThreadPoolExecutor(4) as pool, pytest.raises(sds.errors.FetchError):
            list(pool.map(lambda ticket: ticket.take(), tickets))
        assert time.monotonic() - begun < 20
        client.close()
    first = warnings(caplog)[0]
    assert "/0.bin" in first and "rank 3, stage fetch" in first and "attempt 1: connecting, or no answer yet" in first
    assert "SECRET" not in caplog.text
    assert len(warnings(caplog)) <= 2  # not one for each thread


def test_no_room_in_the_cache(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    urls = fetching.publish(http_server, new_name(), [10_000] * 2)
    client = FetchClient(FetchOptions(dst=str(dst), limit=10_000, timeout_s=2.0))
    held, wanted = client.submit([[(url, None)] for url in urls])
    held.take()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wanted.take)
        fetching.until(lambda: warnings(caplog))
        held.release()
        client.head(urls[0])
        waiting.result(timeout=10)
    assert "waits for room in the cache" in caplog.text and "10 KB of 10 KB are in use" in caplog.text
    client.close()


def slow(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["index"] == "1":
        time.sleep(1.6)
    return {"index": int(sample["index"])}


def test_a_transform_that_takes_long(tmp_path: Path, dst: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "index.csv").write_text("index\n0\n1\n2\n")
    dataset = sds.StreamingDataset(tmp_path / "index.csv", dst, transforms=[slow], timeout=1.0)
    with sds.StreamingDataLoader(dataset, 1) as loader:
        assert [int(batch["index"][0]) for batch in loader] == [0, 1, 2]
    (warning,) = warnings(caplog)
    assert "the next batch" in warning and "stage loader" in warning and "sample '1'" in warning
