"""Disks that are full or read-only: the cache goes on with what the disk has, or says what is wrong.

A small tmpfs is a real full disk. It is mounted in a namespace of its own, so that nothing is left behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fetching
from sds.errors import CacheError
from sds.fetch import FetchClient, FetchOptions
from sds.testing import HTTPServer

SIZE = 100_000

WALK = (
    fetching.WARNINGS
    + """
right_ones, error = 0, ''
try:
    for _ in range(args['rounds']):
        for url, ticket in prefetched(client, args['urls'], lambda each: [(each, None)], args['ahead']):
            right_ones += right(ticket.take()[0], url, args['size'])
            ticket.release()
except Exception as caught:
    error = f'{type(caught).__name__}: {caught}'
walk = os.walk(args['options']['dst'] + '/objects')
on_disk = sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in walk for name in names)
evictions = client.tally.stats().evictions
client.close()
found = {'right': right_ones, 'error': error, 'warnings': warnings, 'on_disk': on_disk, 'evictions': evictions}
print(json.dumps(found))
"""
)


# the fetch server says after a second that it is stuck, where others wait for twenty
IMPATIENT = """
import subprocess
server = "import sys; from sds.fetch import server; server._STUCK_ON_DISK_S = 1.0; server.main(*sys.argv[1:3])"
popen = subprocess.Popen
def start(command, **options):
    if command[1:3] == ['-m', 'sds.fetch.server']:
        command = [command[0], '-c', server, *command[3:], 'sds.fetch.server']
    return popen(command, **options)
subprocess.Popen = start
"""


def can_mount() -> bool:
    """Whether this user may mount in a namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "sh", "-c", "mount -t tmpfs -o size=64k none /mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="mounting needs root, or a kernel that allows it to users")


def on_small_disk(dst: Path, disk: int, script: str, after: str = "", **args: Any) -> Any:
    """Runs a client whose cache folder is a disk of so many bytes; `after` is run in its shell before it."""
    dst.mkdir()
    shell = f'mount -t tmpfs -o size={disk} none "$1" && {after or "true"} && exec "$2" -c "$3" "$4"'
    command = ["unshare", "-m", "sh", "-c", shell, "sh", str(dst), sys.executable, fetching.CLIENT + script]
    process = subprocess.run(
        [*command, json.dumps({**args, "options": {"dst": str(dst), **args["options"]}})],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@needs_mount
@pytest.mark.parametrize("limit", [None, 100 * SIZE])
def test_a_disk_smaller_than_the_limit_is_used_as_far_as_it_goes(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], limit: int | None
) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE] * 30)
    options = {"limit": limit, "num_connections": 4}
    found = on_small_disk(dst, 12 * SIZE, WALK, options=options, urls=urls, size=SIZE, ahead=2, rounds=2)
    fetching.say(f"disk of {12 * SIZE}, limit {limit}: {found}")
    assert found["right"] == 60 and not found["error"]
    assert 5 * SIZE <= found["on_disk"] <= 12 * SIZE and found["evictions"] > 20
    assert len([text for text in found["warnings"] if "disk is full" in text]) == 1


@needs_mount
def test_a_disk_without_room_for_one_object_is_an_error(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str]
) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE])
    found = on_small_disk(dst, SIZE // 2, WALK, options={"limit": 10 * SIZE}, urls=urls, size=SIZE, ahead=2, rounds=1)
    assert found["error"].startswith("CacheError") and "No space left" in found["error"]
    assert "hint: free some disk" in found["error"] and found["right"] == 0 and found["on_disk"] == 0


@needs_mount
def test_a_disk_that_others_fill_and_free(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    """Somebody else takes the disk while files are held: downloads wait, and go on when one is let go of."""
    urls = fetching.publish(http_server, new_name(), [SIZE] * 6)
    script = """
held = client.submit([[(url, None)] for url in args['urls'][:3]])
paths = [ticket.take()[0] for ticket in held]
theirs = os.open(args['options']['dst'] + '/theirs', os.O_WRONLY | os.O_CREAT)
try:
    while True: os.write(theirs, bytes(4096))
except OSError: pass
(next_one,) = client.submit([[(args['urls'][3], None)]])
import threading
threading.Timer(0.5, held[0].release).start()
threading.Timer(0.6, lambda: client.head(args['urls'][0])).start()
good = right(next_one.take()[0], args['urls'][3], args['size'])
good = good and all(right(path, url, args['size']) for path, url in zip(paths[1:], args['urls'][1:]))
client.close()
print(json.dumps(good))
"""
    assert on_small_disk(dst, 8 * SIZE, script, options={"limit": None}, urls=urls, size=SIZE) is True


@needs_mount
@pytest.mark.parametrize("limit", [None, 10_000 * SIZE])
def test_more_files_in_use_than_the_disk_has_room_for_is_told(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], limit: int | None
) -> None:
    """Who holds all files waits for more: that never ends, unless somebody frees some disk, and nobody does."""
    urls = fetching.publish(http_server, new_name(), [SIZE] * 12)
    script = """
held, error = client.submit([[(url, None)] for url in args['urls']]), ''
try:
    paths = [ticket.take()[0] for ticket in held]
except Exception as caught:
    error = f'{type(caught).__name__}: {caught}'
client.close()
print(json.dumps({'error': error, 'warnings': warnings}))
"""
    script = fetching.WARNINGS + IMPATIENT + script
    options = {"limit": limit, "timeout_s": 60}  # for which, or ten times that, one waits where it is not sure
    found = on_small_disk(dst, 6 * SIZE, script, options=options, urls=urls)
    fetching.say(f"disk of {6 * SIZE}, limit {limit}: {found}")
    assert found["error"].startswith("CacheFull") and "hint: free some disk (at least" in found["error"]
    (warning,) = [text for text in found["warnings"] if "disk is full" in text]
    told = re.search(r"goes on with ([\d.]+) KB .*; free some disk, or choose another `dst`", warning)
    assert told is not None and 0 < float(told[1]) * 1000 <= 6 * SIZE


@needs_mount
def test_a_disk_that_others_free_is_noticed(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    """All who hold files wait for more, but the disk is somebody else's: nobody is told, and it goes on at once."""
    urls = fetching.publish(http_server, new_name(), [SIZE] * 4)
    script = """
import threading
held = client.submit([[(url, None)] for url in args['urls'][:3]])
paths = [ticket.take()[0] for ticket in held]
name = args['options']['dst'] + '/theirs'
theirs = os.open(name, os.O_WRONLY | os.O_CREAT)
try:
    while True: os.write(theirs, bytes(4096))
except OSError: os.close(theirs)
(next_one,) = client.submit([[(args['urls'][3], None)]])
threading.Timer(1.5, os.unlink, [name]).start()
began = time.monotonic()
good = right(next_one.take()[0], args['urls'][3], args['size'])
seconds = time.monotonic() - began
client.close()
print(json.dumps([good, seconds]))
"""
    good, seconds = on_small_disk(dst, 8 * SIZE, script, options={"limit": None}, urls=urls, size=SIZE)
    fetching.say(f"a disk that came free after 1.5 s was used after {seconds:.1f} s")
    assert good and seconds < 30, "not after the minute for which a full disk is believed to be full"


@needs_mount
@pytest.mark.parametrize("before", ["ended", "was killed", "left an empty word", "was another host's"])
def test_a_warm_cache_on_a_disk_that_is_full_by_now(
    http_server: HTTPServer, dst: Path, new_name: Callable[[], str], before: str
) -> None:
    """The next server finds no room for a single byte: it starts, hands out what is there, and makes room for more."""
    urls = fetching.publish(http_server, new_name(), [SIZE] * 6)
    script = """
from pathlib import Path
from sds.fetch.owner import OWNER, lock_name
dst, owner = Path(args['options']['dst']), Path(args['options']['dst'], OWNER)
def get(urls):
    for url, ticket in prefetched(client, urls, lambda each: [(each, None)], 2):
        assert right(ticket.take()[0], url, args['size'])
        ticket.release()
get(args['urls'][:4])
for k, path in enumerate(dst.rglob('objects/*/*')):
    os.utime(path, (1, 1000 * k))  # all but the last are long safe, whatever happened to the machine
client.close()
os.kill(int((dst / lock_name('server')).read_text().split()[1]), signal.SIGKILL)
if args['before'] == 'ended': owner.unlink(missing_ok=True)
if args['before'] == 'left an empty word': owner.write_bytes(b'')
if args['before'] == "was another host's":
    owner.write_text('host 0123456789ab\\nname afar\\nboot b\\ntoken t\\n')
    os.utime(owner, (1, 1))
theirs = os.open(dst / 'theirs', os.O_WRONLY | os.O_CREAT)
try:
    while True: os.write(theirs, bytes(4096))
except OSError: pass
hits = client.tally.stats().hits
get(args['urls'][:4])
hits = client.tally.stats().hits - hits
get(args['urls'][4:])
found = {'hits': hits, 'is_guest': (dst / 'hosts').exists(), 'word': owner.read_text() if owner.exists() else None}
client.close()
print(json.dumps(found))
"""
    options = {"limit": None, "num_connections": 2}
    found = on_small_disk(dst, 8 * SIZE, script, options=options, urls=urls, size=SIZE, before=before)
    fetching.say(f"full disk, and the last server {before}: {found}")
    is_doubtful = before in ("left an empty word", "was another host's")
    assert found["hits"] == (3 if is_doubtful else 4) and not found["is_guest"]
    assert found["word"] is None or found["word"].startswith("host ")  # never an empty one


@needs_mount
def test_a_read_only_folder_is_named(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    urls = fetching.publish(http_server, new_name(), [SIZE])
    arguments = {"options": {}, "urls": urls, "size": SIZE, "ahead": 2, "rounds": 1}
    found = on_small_disk(dst, 10 * SIZE, WALK, after='mount -o remount,ro "$1"', **arguments)
    assert found["error"].startswith("CacheError") and "Read-only file system" in found["error"]
    assert "choose another `dst`" in found["error"]


def test_files_larger_than_the_system_allows(http_server: HTTPServer, dst: Path, new_name: Callable[[], str]) -> None:
    """RLIMIT_FSIZE: writing fails in the middle; the small ones come, the large one is an error, no part stays."""
    urls = fetching.publish(http_server, new_name(), [10_000, 200_000])
    script = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
small, large = client.submit([[(url, None)] for url in args['urls']])
good = right(small.take()[0], args['urls'][0], 10_000)
try: large.take()
except Exception as caught: error = f'{type(caught).__name__}: {caught}'
client.close()
print(json.dumps([good, error]))
"""
    process = fetching.start(script, options={"dst": str(dst)}, urls=urls)
    good, error = fetching.result(process)
    assert good and error.startswith("CacheError") and "File too large" in error and "hint:" in error
    assert fetching.num_bytes_on_disk(dst) == 10_000


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o500)
    with pytest.raises(CacheError, match=r"cannot be used.*Permission denied"):
        FetchClient(FetchOptions(dst=str(folder / "dst"))).head("http://127.0.0.1:1/x")
