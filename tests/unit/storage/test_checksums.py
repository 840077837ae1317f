"""What a store says of a body's checksum, and when a body is believed."""

from __future__ import annotations

import base64
import hashlib

import pytest

from sds.storage.checksums import Checks, digest_of_headers, digest_of_tag, md5

DIGEST = hashlib.md5(b"body", usedforsecurity=False).hexdigest()
TEXT = base64.b64encode(bytes.fromhex(DIGEST)).decode()


@pytest.mark.parametrize("tag", ["abc", f"{DIGEST}-5", DIGEST.upper(), "0x8D1", "", "5-1700000000.000000"])
def test_tags_that_are_no_digests(tag: str) -> None:
    assert digest_of_tag(tag) is None


def test_where_a_digest_is_found() -> None:
    assert digest_of_tag(DIGEST) == digest_of_headers(TEXT, None) == DIGEST
    assert digest_of_headers(None, f"crc32c=AAAAAA==,md5={TEXT}") == DIGEST
    for nonsense in ("", "???", "YWJj", "crc32c=AAAA"):
        assert digest_of_headers(nonsense, nonsense) is None
    assert md5([b"bo", memoryview(b"dy")]) == DIGEST


def test_two_that_agree_with_each_other_are_believed_where_nothing_has_agreed() -> None:
    checks = Checks()
    assert not checks.agrees("r", DIGEST, "one", None) and not checks.agrees("r", DIGEST, "two", "one")
    assert checks.wants("r", DIGEST) and not checks.wants("r", None)
    assert checks.agrees("r", DIGEST, "two", "two")
    assert not checks.wants("r", DIGEST) and checks.wants("other", DIGEST)


def test_what_a_header_says_always_holds() -> None:
    checks = Checks()
    for root in ("http://h", "https://h"):
        assert not checks.agrees(root, DIGEST, "two", "two") and checks.wants(root, DIGEST)


def test_users_are_told_once_of_each_bucket_that_is_no_longer_checked() -> None:
    told: list[str] = []
    checks = Checks(told.append)
    for root in ("s3://a", "s3://a", "gs://b"):
        assert checks.agrees(root, DIGEST, "two", "two")
    assert [each.rpartition(" ")[2] for each in told] == ["s3://a", "gs://b"]


def test_where_tags_are_checksums_the_same_mistake_twice_is_not_believed() -> None:
    checks = Checks()
    assert checks.agrees("r", DIGEST, DIGEST, None)
    assert not checks.agrees("r", DIGEST, "two", "two")
    assert checks.wants("r", DIGEST)
