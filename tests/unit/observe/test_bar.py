import io
import itertools

import pytest

from sds.events import Stats
from sds.observe import ProgressBar, progress
from sds.observe import bar as bars


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_items_go_through_unchanged_in_order():
    assert list(ProgressBar(range(7), stream=io.StringIO())) == list(range(7))
    assert list(ProgressBar(range(7), stream=Terminal())) == list(range(7))


def test_without_a_terminal_it_is_a_line_at_the_end():
    stream = io.StringIO()
    bar = ProgressBar(range(3), "epoch 1", stream=stream)
    for number in bar:
        bar.note(f"loss {number}")
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("epoch 1: 3/3 batches, ")
    assert line.endswith("/s, loss 2")


def test_without_a_terminal_a_long_wait_is_told(monkeypatch):
    monkeypatch.setattr(bars, "_LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    assert len(ProgressBar(range(3), stream=stream)) == len(list(ProgressBar(range(3), stream=stream)))
    assert len(stream.getvalue().splitlines()) == 3


def test_on_a_terminal_it_moves_and_shows_the_note():
    stream = Terminal()
    bar = ProgressBar(range(3), "epoch 1", unit="steps", stream=stream)
    for _ in bar:
        bar.note("loss [0.5]")
    assert "epoch 1" in stream.getvalue()
    assert "3/3" in stream.getvalue()
    assert "loss [0.5]" in stream.getvalue()


@pytest.mark.parametrize("label", ["[/x] run", "run [red]", "epoch [1/3]"])
def test_a_label_is_shown_as_it_is(label):
    stream = Terminal()
    assert list(ProgressBar([1, 2], label, stream=stream)) == [1, 2]
    assert label in stream.getvalue()


def test_breaking_off_restores_the_terminal():
    stream = Terminal()
    items = iter(ProgressBar(range(3), stream=stream))
    next(items)
    items.close()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h") or "\x1b[?25l" not in stream.getvalue()


def test_an_empty_loader_shows_nothing():
    stream = io.StringIO()
    assert list(ProgressBar([], stream=stream)) == []
    assert stream.getvalue() == ""


class Resumed:
    """A loader that goes on in the middle: fewer items than its length."""

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(range(7))


def test_a_loader_that_goes_on_in_the_middle_has_a_last_line_too():
    stream = io.StringIO()
    assert list(ProgressBar(Resumed(), "epoch 1", stream=stream)) == list(range(7))
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("epoch 1: 7/7 batches, ")
    terminal = Terminal()
    assert list(ProgressBar(Resumed(), stream=terminal)) == list(range(7))
    assert "7/7" in terminal.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["plain", "terminal"])
def test_a_loader_without_a_length_goes_on_until_it_is_left(stream, monkeypatch):
    monkeypatch.setattr(bars, "_LINE_EVERY_S", 0.0)
    bar = ProgressBar(itertools.count(), "endless", stream=stream)
    items = iter(bar)
    assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
    items.close()
    assert "endless" in stream.getvalue()
    assert stream.isatty() or stream.getvalue().splitlines()[-1].startswith("endless: 3 batches, ")
    with pytest.raises(TypeError):
        len(bar)


class Loader:
    """Batches, and stats that grow with them."""

    def __init__(self, number):
        self.number = number
        self.made = 0

    def __len__(self):
        return self.number

    def __iter__(self):
        while self.made < self.number:
            self.made += 1
            yield self.made

    def stats(self):
        busy = {"decode": 2.0 * self.made}
        wait = {"consumer": 1.0 * self.made}
        return Stats(samples=8 * self.made, wall_s=2.0, hits=3, misses=1, num_threads=2, busy_s=busy, wait_s=wait)


def test_around_a_loader_it_shows_rate_hits_and_bottleneck(monkeypatch):
    monkeypatch.setattr(bars, "_LOOK_EVERY_S", 0.0)
    stream = io.StringIO()
    assert list(progress(Loader(3), "epoch 1", stream=stream)) == [1, 2, 3]
    (line,) = stream.getvalue().splitlines()
    assert line.startswith("epoch 1: 3/3 batches, ")
    assert line.endswith(", 12 samples/s, 75% hits, bottleneck decode")
    terminal = Terminal()
    assert list(progress(Loader(3), stream=terminal)) == [1, 2, 3]
    assert "bottleneck" in terminal.getvalue()


def test_in_a_notebook_one_line_is_written_over_and_over(monkeypatch):
    monkeypatch.setattr(bars, "_is_notebook", lambda: True)
    monkeypatch.setattr(bars, "_LOOK_EVERY_S", 0.0)
    stream = io.StringIO()
    bar = progress(Loader(3), "epoch 1", stream=stream)
    for number in bar:
        bar.note("a long note" if number == 1 else "")
    text = stream.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n")
    shown = text.rstrip("\n").split("\r")[1:]
    assert len(shown) == 4
    assert "note" not in shown[-1]
    assert len(shown[1]) >= len(shown[0].rstrip()), "what was there is covered"


def test_a_plain_process_is_no_notebook():
    assert not bars._is_notebook()
