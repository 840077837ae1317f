"""Whose folder it is: the first host's, until it leaves or has been silent for long."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sds.errors import CacheError
from sds.fetch import owner
from sds.fetch.owner import OWNER, Claim, boot_id, host_key, lock_name


@pytest.fixture
def claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Claim]]:
    """Makes claims, the locks of which are let go of in the end."""
    monkeypatch.setattr(owner, "_SETTLE_S", 0.01)
    made: list[Claim] = []

    class Claims(Claim):
        def __init__(self) -> None:
            super().__init__(tmp_path, Path("/run/x.sock"))
            made.append(self)

        def drop(self) -> None:
            """As if the process had been killed."""
            os.close(self._lock)
            made.remove(self)

    yield Claims
    for each in made:
        os.close(each._lock)


def theirs(folder: Path, age_s: float = 0.0) -> None:
    (folder / OWNER).write_text("host 0123456789ab\nname afar\nboot b\ntoken t\n")
    os.utime(folder / OWNER, (1, time.time() - age_s))


def test_the_first_owns_the_folder_and_leaves_nothing(tmp_path: Path, claim: type[Claim]) -> None:
    mine = claim()
    assert mine.folder == tmp_path and mine.guest_of is None and not mine.has_rebooted and mine.before is None
    assert f"host {host_key()}\n" in (tmp_path / OWNER).read_text()
    mine.leave()
    assert [path.name for path in tmp_path.iterdir()] == [lock_name("server")]


def test_a_killed_server_is_followed_by_the_next_of_its_host(tmp_path: Path, claim: type[Claim]) -> None:
    claim().drop()
    second = claim()
    assert second.guest_of is None and second.before == Path("/run/x.sock") and not second.has_rebooted
    second.drop()
    lock = tmp_path / lock_name("server")
    lock.write_text(lock.read_text().replace(boot_id(), "another"))
    assert claim().has_rebooted


def test_another_host_that_lives_makes_this_one_a_guest(tmp_path: Path, claim: type[Claim]) -> None:
    theirs(tmp_path)
    guest = claim()
    assert guest.guest_of == "afar" and guest.folder == tmp_path / "hosts" / host_key() and guest.folder.is_dir()
    guest.leave()
    assert "afar" in (tmp_path / OWNER).read_text()


def test_a_silent_host_is_taken_for_dead(tmp_path: Path, claim: type[Claim]) -> None:
    theirs(tmp_path, age_s=3600)
    heir = claim()
    assert heir.guest_of is None and heir.has_rebooted  # who knows what reached the disk there
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([OWNER, lock_name("server")])


@pytest.mark.parametrize("words", [b"", bytes(100), b"host \nname afar\n", b"\xff\xfe nonsense"])
def test_a_word_without_a_host_is_nobodys(tmp_path: Path, claim: type[Claim], words: bytes) -> None:
    (tmp_path / OWNER).write_bytes(words)
    heir = claim()
    assert heir.guest_of is None and heir.folder == tmp_path and heir.has_rebooted  # who knows why it is not whole
    assert f"host {host_key()}\n" in (tmp_path / OWNER).read_text()


def test_a_longer_word_in_the_lock_leaves_no_rest(tmp_path: Path, claim: type[Claim]) -> None:
    (tmp_path / lock_name("server")).write_text("x" * 5000)
    claim()
    assert "x" not in (tmp_path / lock_name("server")).read_text().rpartition("\nat /run/x.sock")[2]


def test_a_word_that_could_not_be_written_is_written_later(
    tmp_path: Path, claim: type[Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.0)
    mine = claim()
    (tmp_path / OWNER).unlink()
    mine._is_told = False  # as on a full disk: see tests/integration/test_cache_disk.py
    assert mine.beat() and f"host {host_key()}\n" in (tmp_path / OWNER).read_text() and mine.beat()
    mine._is_told = False
    theirs(tmp_path)
    assert not mine.beat()  # another host was quicker


def test_a_sign_of_life_now_and_then(tmp_path: Path, claim: type[Claim], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.0)
    mine = claim()
    os.utime(tmp_path / OWNER, (1, 1))
    assert mine.beat() and os.stat(tmp_path / OWNER).st_mtime > 1
    theirs(tmp_path)
    assert not mine.beat()  # it was taken over
    mine.leave()
    assert "afar" in (tmp_path / OWNER).read_text()


def test_a_folder_that_was_deleted_is_nobodys(
    tmp_path: Path, claim: type[Claim], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.0)
    mine = claim()
    (tmp_path / lock_name("server")).unlink()
    assert not mine.beat()
    (tmp_path / lock_name("server")).write_text("somebody else's")
    assert not mine.beat()


@pytest.mark.parametrize("level", ["hosts", "own"])
def test_a_guests_folder_is_no_link(tmp_path: Path, claim: type[Claim], level: str) -> None:
    theirs(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    place = tmp_path / "hosts"
    if level == "own":
        place.mkdir()
        place = place / host_key()
    place.symlink_to(outside)
    with pytest.raises(CacheError, match="link"):
        claim()
    assert not list(outside.iterdir())
