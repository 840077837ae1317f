from pathlib import Path

import pytest

from sds.errors import OptionError
from sds.events import STAGES, Stats
from sds.observe import flat, log


class Loader:
    def __init__(self, number):
        self.number = number
        self.made = 0

    def __iter__(self):
        while self.made < self.number:
            self.made += 1
            yield self.made

    def stats(self):
        return Stats(samples=8 * self.made, batches=self.made, hits=self.made, misses=1, wall_s=float(self.made))


def test_stats_are_floats_under_names():
    wait, busy = {"consumer": 1.0, "room": 0.5}, {"decode": 3.0}
    found = flat(Stats(samples=10, wall_s=2.0, hits=1, misses=3, wait_s=wait, busy_s=busy, time_to_first_batch=0.5))
    assert all(type(value) is float for value in found.values())
    assert all(name.startswith("sds/") for name in found)
    assert found["sds/rows_per_s"] == 5.0
    assert found["sds/hit_rate"] == 0.25
    assert (found["sds/wait_s/room"], found["sds/busy_s/decode"]) == (0.5, 3.0)
    assert STAGES[int(found["sds/bottleneck"])] == "decode"
    assert "sds/time_to_first_batch" not in flat(Stats())


def test_rates_are_those_since_an_earlier_value():
    before, now = Stats(samples=100, wall_s=10.0, hits=10), Stats(samples=120, wall_s=12.0, hits=10, misses=4)
    found = flat(now, before)
    assert (found["sds/rows_per_s"], found["sds/hit_rate"], found["sds/samples"]) == (10.0, 0.0, 120.0)
    assert flat(now, before, seconds=4.0)["sds/rows_per_s"] == 5.0


def test_a_callback_hears_every_so_many_batches_and_the_end():
    heard = []
    assert list(log(Loader(7), heard.append, every=3)) == list(range(1, 8))
    assert [each["sds/batches"] for each in heard] == [3.0, 6.0, 7.0]
    heard = []
    assert list(log(Loader(6), callback=heard.append, every=3)) == list(range(1, 7))
    assert [each["sds/batches"] for each in heard] == [3.0, 6.0]


@pytest.mark.parametrize(
    ("loader", "callback", "every", "words"),
    [
        ([1, 2], print, 3, "no stats"),
        (Loader(1), None, 3, "no function"),
        (Loader(1), print, 0, "every"),
        (Loader(1), print, True, "every"),
        (Loader(1), print, 1.5, "every"),
    ],
)
def test_impossible_values_are_told_at_once(loader, callback, every, words):
    with pytest.raises(OptionError, match=words):
        log(loader, callback, every=every)


@pytest.mark.parametrize("number", [1, 3, 4])
def test_a_loop_that_is_left_early_is_told_too(number):
    heard = []
    for batch in log(Loader(9), heard.append, every=3):
        if batch == number:
            break
    assert [each["sds/batches"] for each in heard] == ([3.0, 4.0] if number == 4 else [number])


def test_a_loop_that_fails_is_told_too():
    heard = []

    def train():
        for batch in log(Loader(9), heard.append, every=100):
            if batch == 5:
                raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        train()
    assert [each["sds/batches"] for each in heard] == [5.0]


def test_a_callback_that_fails_is_called_once():
    heard = []

    def fail(numbers):
        heard.append(numbers)
        raise ValueError("no network")

    with pytest.raises(ValueError, match="no network"):
        list(log(Loader(9), fail, every=3))
    assert len(heard) == 1


def test_the_guide_has_the_numbers_of_the_stages():
    page = Path(__file__).parents[3] / "docs" / "guide" / "observe.md"
    words = ", ".join(f"{number} `{stage}`" for number, stage in enumerate(STAGES))
    assert words in page.read_text()
    words = ", ".join(f"{number} {stage}" for number, stage in enumerate(STAGES))
    assert words in " ".join(flat.__doc__.split())
