import numpy as np
import pytest

from sds.errors import OptionError
from sds.units import counted, format_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("size", "num_bytes"),
    [
        (0, 0),
        (4096, 4096),
        (1e9, 10**9),
        (np.float64(2.0), 2),
        ("0", 0),
        ("17", 17),
        ("17b", 17),
        ("10gb", 10**10),
        ("10GB", 10**10),
        ("10 Gb", 10**10),
        (" 1.5kb ", 1500),
        ("1k", 1000),
        ("512 MiB", 512 * 2**20),
        ("64gib", 64 * 2**30),
        ("1tb", 10**12),
        ("1tib", 2**40),
        ("2pb", 2 * 10**15),
        ("1_000_000", 10**6),
    ],
)
def test_sizes_as_people_write_them(size, num_bytes):
    found = parse_bytes(size)
    assert found == num_bytes
    assert type(found) is int


@pytest.mark.parametrize(
    "size",
    ["", "gb", "-1", "-1gb", "10 gigs", "1e9", "1.gb", "1,5gb", "10gb extra", -1, float("nan"), float("inf"), 2**64],
)
def test_what_is_no_size_is_refused_by_name(size):
    with pytest.raises(OptionError, match=r"^cache_limit is not a byte size: ") as caught:
        parse_bytes(size, option="cache_limit")
    assert repr(size) in str(caught.value)
    assert "10gb" in caught.value.hint


@pytest.mark.parametrize("size", [None, True, [], b"10gb"])
def test_other_types_are_refused(size):
    with pytest.raises(OptionError):
        parse_bytes(size)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 KB"),
        (1536000, "1.54 MB"),
        (999_499, "999 KB"),
        (999_999, "1 MB"),
        (10**10, "10 GB"),
        (2.5e12, "2.5 TB"),
        (3e15, "3 PB"),
        (-1500, "-1.5 KB"),
    ],
)
def test_sizes_as_people_read_them(num_bytes, text):
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize("exponent", range(17))
def test_what_is_written_can_be_read(exponent):
    for factor in (1, 1.5, 9.99, 9.999):
        num_bytes = factor * 10**exponent
        assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.01, abs=1)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("7d", 604_800),
        ("12h", 43_200),
        ("30 min", 1800),
        ("5m", 300),
        ("90s", 90),
        ("2W", 1_209_600),
        (0.5, 0.5),
        (60, 60),
    ],
)
def test_durations(given: str | float, seconds: float) -> None:
    assert parse_seconds(given) == seconds


@pytest.mark.parametrize("given", ["", "d", "7y", "-7d", "7 d 3h", 0, -1, float("nan"), float("inf"), True, None, [7]])
def test_what_is_no_duration_is_an_option_error(given: object) -> None:
    with pytest.raises(OptionError, match="cache_ttl") as caught:
        parse_seconds(given, option="cache_ttl")  # type: ignore[arg-type]
    assert "7d" in str(caught.value)


def test_numbers_with_their_nouns() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 30_000)] == ["0 rows", "1 row", "2 rows", "30,000 rows"]
