"""How fast files pass through the fetch server and the disk, beside bare obstore gets in the same run.

    python benchmarks/fetch.py [--files 4000] [--size 50000] [--threads 64] [--rounds 3]

Rows: `bare get` (obstore, threads, nothing written), `bare get+write` (the same, each body to a new file), `cold`
(through server and disk into an empty cache), `warm` (the same files again), and both with a cache_limit into which all
just fits. The web server, nginx if there is one, else Caddy, shares the machine, so ratios say more than rates; where
others work too, CPU time per file (client and fetch server together) says most. Rounds interleave the rows; medians are
printed. TMPDIR=/dev/shm leaves the disk out.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from sds.fetch import FetchClient, FetchOptions, File, prefetched
from sds.testing import HTTPServer

_NGINX = """
worker_processes 1; worker_rlimit_nofile 65536; pid {run}/nginx.pid; error_log {run}/error.log; daemon off;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000; open_file_cache max=10000;
  client_body_temp_path {run}; proxy_temp_path {run}; fastcgi_temp_path {run};
  uwsgi_temp_path {run}; scgi_temp_path {run};
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""

# obstore runs in a process of its own, as it does in the fetch server: this one has a Link thread and no runtime
_BARE = """
import os, queue, sys, threading, time
import obstore
from obstore.store import HTTPStore
base, num_files, num_threads, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = HTTPStore(base, client_options={"allow_http": True})
names = queue.SimpleQueue()
for i in range(num_files): names.put(f"{i}.bin")
for _ in range(num_threads): names.put(None)
threading.excepthook = lambda args: (sys.excepthook(*args[:3]), os._exit(1))
def work():
    while (name := names.get()) is not None:
        data = obstore.get(store, name).buffer()
        if folder:
            part = f"{folder}/{name[:-4]}.part"
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(descriptor, data)
            os.close(descriptor)
            os.rename(part, f"{folder}/{name}")
threads = [threading.Thread(target=work) for _ in range(num_threads)]
start = time.perf_counter()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(num_files / (time.perf_counter() - start), 1e6 * time.process_time() / num_files)
"""


@contextlib.contextmanager
def web_server(root: Path) -> Iterator[str]:
    """The URL of a web server over a folder."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        with HTTPServer(root) as caddy:
            yield caddy.endpoint
        return
    with tempfile.TemporaryDirectory() as run, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        config = Path(run, "nginx.conf")
        config.write_text(_NGINX.format(run=run, port=port, root=root))
        process = subprocess.Popen([nginx, "-c", str(config), "-p", run], stderr=subprocess.DEVNULL)
        try:
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait()


def bare(url: str, args: argparse.Namespace, folder: str = "") -> tuple[float, float]:
    """Files per second of a plain loop in threads, and CPU microseconds per file."""
    command = [sys.executable, "-c", _BARE, url, str(args.files), str(args.threads), folder]
    rate, cpu_us = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(rate), float(cpu_us)


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def through_server(url: str, args: argparse.Namespace, dst: str, limit: int | None = None) -> tuple[float, float]:
    """Files per second through server and disk, with the prefetch window of a dataset; CPU microseconds per file."""
    client = FetchClient(FetchOptions(dst=dst, num_connections=args.threads, limit=limit))
    client.head(f"{url}/0.bin")  # the server is up
    urls = [f"{url}/{i}.bin" for i in range(args.files)]
    pids = [os.getpid(), *(each.pid for each in psutil.Process().children() if dst in each.cmdline())]
    before = sum(map(cpu_s, pids))
    start = time.perf_counter()
    for _, ticket in prefetched(client, urls, lambda each: [File(each)], args.ahead):
        ticket.take()
        ticket.release()
    seconds = time.perf_counter() - start
    cpu_us = 1e6 * (sum(map(cpu_s, pids)) - before) / args.files
    client.close()
    return args.files / seconds, cpu_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=4000)
    parser.add_argument("--size", type=int, default=50_000)
    parser.add_argument("--threads", type=int, default=64)
    parser.add_argument("--ahead", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        root.mkdir()
        Path(folder).chmod(0o755)  # nginx's worker may be another user
        for i in range(args.files):
            (root / f"{i}.bin").write_bytes(os.urandom(args.size))
        limits = {"": None, ", limit": args.files * args.size}
        rows = ["bare get", "bare get+write", *(f"{row}{which}" for which in limits for row in ("cold", "warm"))]
        rates: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
        with web_server(root) as url:
            for number in range(args.rounds):
                written = Path(folder, f"written-{number}")
                written.mkdir()
                rates["bare get"].append(bare(url, args))
                rates["bare get+write"].append(bare(url, args, str(written)))
                shutil.rmtree(written)
                for which in sorted(limits, reverse=number % 2 == 1):  # by turns: who comes second finds warm caches
                    dst = Path(folder, f"dst-{number}{'-limit' if which else ''}")
                    for row in ("cold", "warm"):
                        rates[f"{row}{which}"].append(through_server(url, args, str(dst), limits[which]))
                    shutil.rmtree(dst, ignore_errors=True)  # its server is about to end
    loop = statistics.median(rate for rate, _ in rates["bare get+write"])
    for name, found in rates.items():
        middle, cpu_us = (statistics.median(column) for column in zip(*found, strict=True))
        spread = f"{min(found)[0]:,.0f} to {max(found)[0]:,.0f}"
        of_loop = f"{middle / loop:5.0%} of bare get+write"
        print(f"{name:>15}: {middle:7,.0f} files/s ({spread}), {of_loop}, {cpu_us:4.0f} us CPU per file")
    for row in ("cold", "warm"):
        without, with_limit = (statistics.median(rate for rate, _ in rates[f"{row}{which}"]) for which in limits)
        print(f"a limit, {row}: {with_limit / without:.1%} of the rate without one")


if __name__ == "__main__":
    main()
