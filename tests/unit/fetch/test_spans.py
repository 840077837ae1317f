"""Parts of objects: their grid, and what their names say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sds.errors import UnsupportedSource
from sds.fetch.cache import Cache, key_of
from sds.fetch.spans import HEAD, Origin, block, blocks_between, origin_of, suffix_of


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(1, 10**6))
def test_the_blocks_of_some_bytes_hold_them_all_and_no_block_too_many(start: int, length: int, size: int) -> None:
    blocks = blocks_between(start, start + length, size)
    if not length:
        assert not blocks
        return
    assert block(blocks[0], size)[0] <= start < block(blocks[0], size)[1]
    assert block(blocks[-1], size)[0] < start + length <= block(blocks[-1], size)[1]


def test_the_first_block_is_the_head() -> None:
    assert block(0, HEAD[1]) == HEAD


def test_a_name_tells_size_and_version_of_the_whole() -> None:
    one, other = suffix_of(75_000_000, '"v1"'), suffix_of(75_000_000, "v2")
    first, second = origin_of(f"/c/00/{'0' * 32}-262144{one}"), origin_of(f"/c/00/{'0' * 32}-262144{other}")
    assert first is not None and second is not None
    assert first.size == second.size == 75_000_000 and first != second
    assert origin_of(f"/c/00/{'0' * 32}-262144{one}") == Origin(75_000_000, first.tag)
    with pytest.raises(UnsupportedSource):
        suffix_of(None, "v")


@pytest.mark.parametrize("name", ["x.mp4", "x", "x.of12", "x.of12.mp4", f"x.of12.{'g' * 16}", "a.of1/x.mp4"])
def test_a_whole_object_has_no_origin(name: str) -> None:
    assert origin_of(f"/c/{name}") is None


def test_a_part_is_found_again_by_the_next_server(tmp_path) -> None:
    cache, key = Cache(tmp_path), key_of("u", None, None, (0, 4))
    assert cache.reserve(4)
    part = cache.part_path(key)
    with open(part, "wb") as file:
        file.write(b"1234")
    cache.release(cache.commit(key, part, 4, suffix_of(100, "v")))
    again = Cache(tmp_path)
    found = again.find(key)
    assert found is not None and found.size == 4 and origin_of(found.path) == origin_of("x" + suffix_of(100, "v"))
    assert again.used == 4


def test_a_part_has_a_key_of_its_own() -> None:
    keys = {key_of("u", "v", None, span) for span in (None, (0, 1), (0, 11), (1, 1), (1, 11))}
    assert len(keys) == 5
