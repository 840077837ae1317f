"""Metrics: stats -> the text that Prometheus reads, and a small endpoint that serves it.

Comes in: Stats, or a loader. Goes out: text exposition format 0.0.4. The endpoint listens on loopback unless told
otherwise, answers GET /metrics, and ends with `close`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sds.errors import OptionError
from sds.stats import STAGES, Stats

__all__ = ["COUNTS", "Endpoint", "prometheus", "serve"]

log = logging.getLogger("sds")

_KIND = "text/plain; version=0.0.4; charset=utf-8"
# fields of Stats that only grow, and what they count
COUNTS = {
    "samples": "Samples handed to the training loop.",
    "batches": "Batches handed to the training loop.",
    "bytes_downloaded": "Bytes of objects that were downloaded.",
    "requests": "Requests to stores.",
    "retries": "Requests that were made again after a failure.",
    "hedges": "Second requests for what was late.",
    "hits": "Files that were in the cache.",
    "misses": "Files that were not in the cache.",
    "evictions": "Files that were evicted from the cache.",
    "waits": "Downloads that waited for room in the cache.",
    "failures": "Rows that could not be made.",
    "stand_ins": "Rows that took the place of failed ones.",
    "dropped": "Rows that transforms dropped.",
    "range_reads": "Remote files that were read in parts.",
    "range_fallbacks": "Those of them that were fetched whole after all.",
    "from_tensors": "Samples that were read from a tensor cache.",
}


def prometheus(stats: Stats, labels: Mapping[str, str] | None = None) -> str:
    """Stats as Prometheus reads them.

    Args:
        stats: what happened so far.
        labels: put on every sample, such as {"rank": "0", "job": "train"}.
    """
    if labels is not None and not isinstance(labels, Mapping):
        raise OptionError(f"labels are no table: {labels!r}", hint='such as {"rank": "0"}')
    given = dict(labels or {})
    for name in given:
        is_name = isinstance(name, str) and name.isidentifier() and name.isascii()
        if not is_name or name.startswith("__"):
            hint = "letters, digits and underscores, such as 'rank'"
            raise OptionError(f"label has a name that Prometheus does not take: {name!r}", hint=hint)
    return "".join(f"{line}\n" for line in _lines(stats, given))


def _lines(stats: Stats, given: dict[str, str]) -> Iterator[str]:
    def family(name: str, kind: str, words: str, values: list[tuple[dict[str, str], float]]) -> Iterator[str]:
        if values:
            yield f"# HELP sds_{name} {words}"
            yield f"# TYPE sds_{name} {kind}"
            for own, value in values:
                yield f"sds_{name}{_labels(given | own)} {float(value)!r}"

    for name, words in COUNTS.items():
        yield from family(f"{name}_total", "counter", words, [({}, getattr(stats, name))])
    wait = [({"stage": stage}, seconds) for stage, seconds in sorted(stats.wait_s.items())]
    busy = [({"stage": stage}, seconds) for stage, seconds in sorted(stats.busy_s.items())]
    yield from family("wait_seconds_total", "counter", "Seconds spent waiting, over all threads.", wait)
    yield from family("busy_seconds_total", "counter", "Seconds of work, over all threads.", busy)
    stores = [({"store": t.store, "storage_class": t.storage_class}, t) for t in stats.traffic]
    words = "Requests by bucket or host, and storage class."
    yield from family("store_requests_total", "counter", words, [(own, t.requests) for own, t in stores])
    words = "Bytes by bucket or host, and storage class."
    yield from family("store_bytes_total", "counter", words, [(own, t.num_bytes) for own, t in stores])
    yield from family("wall_seconds", "gauge", "From the first iter() to the last batch.", [({}, stats.wall_s)])
    if stats.time_to_first_batch is not None:
        words = "From the first iter() to the first batch."
        yield from family("time_to_first_batch_seconds", "gauge", words, [({}, stats.time_to_first_batch)])
    ready = [({"queue": queue}, depth) for queue, depth in sorted(stats.queue_depths.items())]
    yield from family("ready", "gauge", "What was ready when it was asked for, on average.", ready)
    named = [({"stage": stage}, float(stage == stats.bottleneck)) for stage in STAGES]
    yield from family("bottleneck", "gauge", "1 for the stage that the others wait for.", named)


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Server(ThreadingHTTPServer):
    """Says nothing, either: who asks may hang up in the middle of the answer."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the library's)
        """Into the log."""
        log.debug("metrics were not sent to %s", client_address, exc_info=True)


class Endpoint:
    """A web server for one loader's metrics. A context manager; `close` ends it."""

    def __init__(self, loader: Any, port: int, host: str, labels: Mapping[str, str] | None) -> None:
        class Handler(BaseHTTPRequestHandler):
            """Answers GET /metrics."""

            timeout = 10

            def do_GET(self) -> None:
                """Sends the numbers as they are now."""
                self._answer(has_body=True)

            def do_HEAD(self) -> None:
                """Sends how long they are."""
                self._answer(has_body=False)

            def _answer(self, *, has_body: bool) -> None:
                if self.path.partition("?")[0] != "/metrics":
                    self.send_error(404)
                    return
                body = prometheus(loader.stats(), labels).encode()
                self.send_response(200)
                self.send_header("Content-Type", _KIND)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if has_body:
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Says nothing: a library does not print."""

        try:
            self._server = _Server((host, port), Handler)
        except (OSError, OverflowError, TypeError) as error:
            hint = "is the port taken? port=0 chooses a free one"
            raise OptionError(f"metrics cannot be served at {host}:{port}: {error}", hint=hint) from error
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="sds-metrics", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where Prometheus shall look."""
        return f"http://{self.host}:{self.port}/metrics"

    def close(self) -> None:
        """Ends the server. Harmless when repeated."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Endpoint:  # noqa: PYI034 (typing.Self is Python 3.11)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(loader: Any, port: int = 0, *, host: str = "127.0.0.1", labels: Mapping[str, str] | None = None) -> Endpoint:
    """Serves a loader's metrics over HTTP until it is closed.

    Args:
        loader: anything with `stats()`.
        port: 0 chooses a free one; `Endpoint.port` says which.
        host: the address to listen at. The default is reached from this machine only; "0.0.0.0" is for all who can
            reach it, and the metrics name your buckets.
        labels: put on every sample, such as {"rank": "0"}.
    """
    if not callable(getattr(loader, "stats", None)):
        raise OptionError(f"loader has no stats(): {type(loader).__name__}", hint="give a loader of sds")
    prometheus(Stats(), labels)  # impossible labels are told now, not to whoever asks for the metrics
    return Endpoint(loader, port, host, labels)
