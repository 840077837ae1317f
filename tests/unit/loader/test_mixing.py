"""Which stream comes when: shares are exact, evenly spread, reached at any step, and dealt to ranks."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from sds.errors import OptionError
from sds.loader.mixing import SCHEDULES, WINDOW, Mix, Schedule
from sds.loader.multistream_walk import Cursor, Place, Walk
from sds.plan.turns import apportion, balanced, count_turns, occurrences

EXACT = [kind for kind in SCHEDULES if kind != "random"]
EVEN = ["consecutive_interleaved", "round_robin"]


def deviation(chosen, counts):
    """How far any prefix is from the exact shares, in turns."""
    so_far = np.eye(len(counts))[chosen].cumsum(0)  # [n, streams]
    shares = np.arange(1, len(chosen) + 1)[:, None] * np.asarray(counts) / sum(counts)
    return np.abs(so_far - shares).max()


class TestCounts:
    @pytest.mark.parametrize(
        ("ratios", "precision", "expected"),
        [
            ((0.7, 0.2, 0.1), 6, (7, 2, 1)),
            ((7, 2, 1), 6, (7, 2, 1)),
            ((1 / 3, 1 / 3, 1 / 3), 6, (1, 1, 1)),
            ((0.999, 0.001), 6, (999, 1)),
            ((0.5, 0.25, 0.25), 2, (2, 1, 1)),
            ((0.34, 0.66), 1, (3, 7)),
            ((0.5, 0.0, 0.5), 6, (1, 0, 1)),
        ],
    )
    def test_are_the_rounded_ratios_over_their_greatest_common_divisor(self, ratios, precision, expected):
        assert count_turns(ratios, precision) == expected

    def test_need_a_ratio(self):
        with pytest.raises(OptionError, match="above 0"):
            count_turns((0.0, 1e-9))

    @pytest.mark.parametrize("ratios", [(0.7, 0.2, 0.1), (1, 1, 1), (0.001, 0.999), (1, 2, 3, 4, 5, 6, 7)])
    def test_can_be_made_to_sum_to_anything(self, ratios):
        counts = apportion(ratios, 1000)
        assert sum(counts) == 1000
        assert all(abs(c - 1000 * r / sum(ratios)) < 1 for c, r in zip(counts, ratios, strict=True))

    def test_occurrences(self):
        assert occurrences(np.array([1, 0, 1, 1, 0])).tolist() == [0, 0, 1, 2, 1]


class TestSchedules:
    @pytest.mark.parametrize("kind", EXACT)
    @pytest.mark.parametrize("ratios", [(0.7, 0.2, 0.1), (0.999, 0.001), (0.5, 0.3, 0.1, 0.05, 0.05), (1,)])
    def test_hold_the_counts_in_every_meta_iteration(self, kind, ratios):
        counts = count_turns(ratios)
        chosen = Schedule(kind, counts, seed=3).choices(np.arange(3 * sum(counts)))[:, 0]
        for part in chosen.reshape(3, -1):
            assert np.bincount(part, minlength=len(counts)).tolist() == list(counts)

    @pytest.mark.parametrize("kind", EVEN)
    @pytest.mark.parametrize("ratios", [(0.7, 0.2, 0.1), (0.999, 0.001), (0.998, 0.001, 0.001), (1, 1, 1), (2, 3, 4)])
    def test_even_ones_are_within_one_turn_in_any_prefix(self, kind, ratios):
        counts = count_turns(ratios)
        chosen = Schedule(kind, counts).choices(np.arange(2 * sum(counts)))[:, 0]
        assert deviation(chosen, counts) <= 1

    def test_equal_shares_take_turns(self):
        assert Schedule("round_robin", (1, 1, 1)).choices(np.arange(6))[:, 0].tolist() == [0, 1, 2, 0, 1, 2]

    def test_consecutive_is_one_after_the_other(self):
        assert Schedule("consecutive", (2, 3, 1)).choices(np.arange(7))[:, 0].tolist() == [0, 0, 1, 1, 1, 2, 0]

    def test_a_fixed_order_repeats_and_another_does_not(self):
        steps = np.arange(300)
        fixed = Schedule("fixed_random_order", (50, 30, 20), seed=1).choices(steps)[:, 0].reshape(3, -1)
        drawn = Schedule("random_order", (50, 30, 20), seed=1).choices(steps)[:, 0].reshape(3, -1)
        assert (fixed[0] == fixed[1]).all() and (fixed[1] == fixed[2]).all()
        assert (drawn[0] != drawn[1]).any() and (drawn[1] != drawn[2]).any()
        assert (np.diff(fixed[0]) != 0).sum() > 20, "it is mixed, not in blocks"

    @pytest.mark.parametrize("kind", ["random", "random_order", "fixed_random_order"])
    def test_another_seed_is_another_order(self, kind):
        one, two = (Schedule(kind, (5, 3, 2), seed=seed).choices(np.arange(100)) for seed in (1, 2))
        assert (one != two).any()

    def test_random_comes_near_the_shares(self):
        chosen = Schedule("random", (7, 2, 1), seed=5).choices(np.arange(20_000))[:, 0]
        assert np.abs(np.bincount(chosen) / 20_000 - [0.7, 0.2, 0.1]).max() < 0.015
        assert Counter(itertools.pairwise(chosen.tolist()))[1, 1] > 500, "draws do not know of each other"

    @pytest.mark.parametrize("kind", SCHEDULES)
    @pytest.mark.parametrize("size", [1, 3])
    def test_a_step_far_away_is_reached_at_once(self, kind, size):
        schedule = Schedule(kind, (7, 2, 1), (0, 0, 1), seed=3)
        far = 10**12 + np.arange(5)
        assert (schedule.choices(far, size) == np.stack([schedule.choices(far[[k]], size)[0] for k in range(5)])).all()

    def test_a_meta_iteration_without_end_is_refused(self):
        with pytest.raises(OptionError, match="counts_precision") as caught:
            Schedule("consecutive", (10**9, 1))
        assert "divide ratios by their sum" in caught.value.hint
        Schedule("random", (10**9, 1)).choices(np.arange(5))


class TestGroups:
    @pytest.mark.parametrize("kind", SCHEDULES)
    def test_streams_alone_in_their_group_are_taken_by_all_ranks(self, kind):
        chosen = Schedule(kind, (7, 2, 1), (0, 1, 2), seed=3).choices(np.arange(100), 4)
        assert (chosen == chosen[:, :1]).all()
        assert (chosen[:, 0] == Schedule(kind, (7, 2, 1), (0, 1, 2), seed=3).choices(np.arange(100), 1)[:, 0]).all()

    @pytest.mark.parametrize("kind", EXACT)
    @pytest.mark.parametrize("groups", [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 2)])
    @pytest.mark.parametrize("size", [1, 2, 3, 8])
    def test_shares_over_all_ranks_are_exact_in_every_meta_iteration(self, kind, groups, size):
        chosen = Schedule(kind, (7, 2, 1), groups, seed=3).choices(np.arange(30), size)
        for part in chosen.reshape(3, -1):
            assert np.bincount(part, minlength=3).tolist() == [7 * size, 2 * size, size]

    @pytest.mark.parametrize("kind", [k for k in SCHEDULES if k != "consecutive"])
    def test_ranks_of_one_step_take_different_streams_of_a_group(self, kind):
        chosen = Schedule(kind, (1, 1, 1, 1), (0, 0, 1, 1), seed=3).choices(np.arange(200), 4)
        assert (chosen != chosen[:, :1]).any()
        assert ((chosen < 2).all(1) | (chosen >= 2).all(1)).all(), "and of that group only"

    @pytest.mark.parametrize("kind", EVEN)
    def test_draws_of_one_group_are_even(self, kind):
        chosen = Schedule(kind, (7, 2, 1), (0, 0, 0)).choices(np.arange(60), 4)
        so_far = np.eye(3)[chosen].sum(1).cumsum(0)  # [n, streams]: batches after each step, over all ranks
        assert np.abs(so_far - np.arange(1, 61)[:, None] * 4 * np.array([0.7, 0.2, 0.1])).max() <= 1
        assert all(len(set(chosen[:, rank].tolist())) == 3 for rank in range(4)), "every rank gets to see them all"

    @pytest.mark.parametrize("kind", [kind for kind in EXACT if kind != "random_order"])
    @pytest.mark.parametrize("counts", [(7, 1), (3, 1), (5, 3), (2, 1, 1)])
    @pytest.mark.parametrize("size", [2, 4, 8])
    def test_every_rank_has_its_exact_share_in_as_many_meta_iterations_as_ranks(self, kind, counts, size):
        steps = np.arange(size * sum(counts))
        chosen = Schedule(kind, counts, (0,) * len(counts), seed=3).choices(steps, size)
        for rank in range(size):
            assert np.bincount(chosen[:, rank]).tolist() == [size * count for count in counts]

    @pytest.mark.parametrize("kind", ["fixed_random_order", *EVEN])
    @pytest.mark.parametrize("ratios", [(7, 1), (2, 1)])
    def test_also_where_ratios_are_a_function(self, kind, ratios):
        chosen = Mix(kind, lambda step: ratios, groups=(0, 0), seed=3).choices(0, 4 * WINDOW, 4)
        counts = apportion(ratios, WINDOW)
        assert all(np.bincount(chosen[:, rank]).tolist() == [4 * count for count in counts] for rank in range(4))


class TestPhases:
    def test_ratios_change_at_their_step(self):
        mix = Mix("round_robin", [(0, (1, 1)), (10, (1, 0)), (15, (0, 1))])
        chosen = mix.choices(0, 20)[:, 0].tolist()
        assert chosen == [0, 1] * 5 + [0] * 5 + [1] * 5
        assert mix.choices(8, 4)[:, 0].tolist() == chosen[8:12]

    def test_a_function_is_asked_every_so_many_steps(self):
        asked = []

        def ratios(step):
            asked.append(step)
            return (1.0, step / WINDOW)

        mix = Mix("fixed_random_order", ratios, seed=1)
        chosen = mix.choices(0, 3 * WINDOW)[:, 0].reshape(3, -1)
        assert asked == [0, WINDOW, 2 * WINDOW]
        assert [int((part == 1).sum()) for part in chosen] == [0, 500, 667]
        fresh = Mix("fixed_random_order", ratios, seed=1)
        assert (fresh.choices(1500, 10)[:, 0] == chosen.ravel()[1500:1510]).all()

    @pytest.mark.parametrize("kind", ["random", "random_order"])
    def test_every_phase_is_drawn_anew(self, kind):
        chosen = Mix(kind, lambda step: (1.0, 1.0)).choices(0, 2 * WINDOW)[:, 0].reshape(2, -1)
        assert (chosen[0] != chosen[1]).any()

    def test_a_mix_that_begins_later_begins_a_meta_iteration_there(self):
        mix = Mix("consecutive", (2, 1)).begun_at(100)
        assert mix.choices(100, 6)[:, 0].tolist() == [0, 0, 1, 0, 0, 1]
        pieces = Mix("consecutive", [(0, (2, 1)), (103, (1, 2))]).begun_at(101)
        assert pieces.choices(101, 5)[:, 0].tolist() == [0, 0, 0, 1, 1]


LENGTHS = (10, 7, 3)


def walk(rank=0, size=1, *, kind="round_robin", groups=(0, 1, 2), batches=(2, 3, 1), rounds=(1, 1, 1), stop="never"):
    mix = Mix(kind, (3, 2, 1), groups=groups, seed=1)
    return Walk(mix, batches, rounds, lambda i, epoch: LENGTHS[i], rank, size, stop)


START = Cursor(0, 0, 0, 0, (Place(0, 0),) * 3, (0,) * 3)


class TestWalk:
    def test_cursors_travel_as_integers(self):
        item = next(walk(stop="all").items(START))
        assert Cursor.from_ints(item.after.to_ints()) == item.after

    def test_rounds_come_in_a_row(self):
        items = walk(rounds=(1, 3, 1)).items(START)
        made = [next(items) for _ in range(12)]
        assert [(i.stream, i.rounds_left) for i in made[:6]] == [(0, 0), (1, 2), (1, 1), (1, 0), (0, 0), (2, 0)]
        assert [i.position for i in made if i.stream == 1][:3] == [0, 3, 6]

    def test_ranks_that_chose_the_same_stream_share_its_positions(self):
        ranks = [walk(rank, 3, kind="random", groups=(0, 0, 0)).items(START) for rank in range(3)]
        for items in zip(*([next(r) for _ in range(50)] for r in ranks), strict=True):
            assert all(item.after == items[0].after for item in items)
            for stream in range(3):
                mine = [item for item in items if item.stream == stream]
                firsts = [item.position for item in mine]
                assert firsts == [firsts[0] + k * mine[0].size for k in range(len(mine))] if mine else True

    def done_after(self, items):
        taken = [sum(item.size for item in items if item.stream == i) for i in range(3)]
        return [t >= n for t, n in zip(taken, LENGTHS, strict=True)]

    def test_a_pass_is_over_when_a_stream_comes_that_has_been_gone_through(self):
        items = list(walk(stop="first").items(START))
        coming = walk().items(START)
        following = [next(coming) for _ in range(len(items) + 1)][-1]
        assert self.done_after(items)[following.stream]
        assert not any(self.done_after(items[:k])[item.stream] for k, item in enumerate(items))
        assert (items[-1].after.epoch, items[-1].after.since) == (1, (0, 0, 0))

    def test_or_when_all_have_been(self):
        items = list(walk(stop="all").items(START))
        assert all(self.done_after(items)) and not all(self.done_after(items[:-1]))
        assert (items[-1].after.epoch, items[-1].after.since) == (1, (0, 0, 0))

    @pytest.mark.parametrize("stop", ["first", "all"])
    @pytest.mark.parametrize("rounds", [(1, 1, 1), (1, 2, 3)])
    @pytest.mark.parametrize("size", [1, 2])
    def test_its_length_is_known_beforehand(self, stop, rounds, size):
        cursor = START
        for _ in range(3):
            made = walk(0, size, stop=stop, rounds=rounds)
            items = list(made.items(cursor))
            assert made.num_items(cursor) == len(items)
            assert made.num_items(items[len(items) // 2].after) == len(items)
            assert made.begun(items[len(items) // 2].after) == cursor
            cursor = items[-1].after

    @pytest.mark.parametrize("kind", EXACT)
    def test_the_length_of_a_long_pass_is_known_at_once(self, kind):
        mix = Mix(kind, (7, 2, 1), groups=(0, 1, 2), seed=1)
        made = Walk(mix, (1, 1, 1), (1, 1, 1), lambda i, epoch: (7, 2, 1)[i] * 10**8, 0, 1, "all")
        assert made.num_items(START) == 10**9

    def test_a_pass_that_never_ends_has_no_length(self):
        def ratios(step):
            return (1.0, 1.0, 0.0) if step < 5000 else (1.0, 0.0, 0.0)

        lengths = (10, 7, 10)
        made = Walk(Mix("fixed_random_order", ratios), (1,) * 3, (1,) * 3, lambda i, e: lengths[i], 0, 1, "all", "abc")
        with pytest.raises(OptionError, match="stop='all' does not come: stream 'c'") as caught:
            made.num_items(START)
        assert caught.value.hint

    def test_a_stream_without_a_share_does_not_keep_a_pass_from_ending(self):
        made = Walk(Mix("round_robin", (1, 0)), (2, 2), (1, 0), lambda i, epoch: 5, 0, 1, "all")
        assert len(list(made.items(Cursor(0, 0, 0, 0, (Place(0, 0),) * 2, (0, 0))))) == 3


def test_even_orders_are_made_in_time():
    assert np.bincount(balanced((333, 333, 334))).tolist() == [333, 333, 334]
