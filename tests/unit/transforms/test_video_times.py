"""Which moments a clip shows: pure numbers, for any video and any request."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sds.transforms.video_times import SHORTER, Request, Timeline, fill, plan_clip

rates = st.sampled_from([1.0, 10.0, 23.976, 24.0, 25.0, 30000 / 1001, 30.0, 59.94, 120.0])
videos = st.builds(Timeline, duration=st.floats(0.05, 5000), framerate=rates)
draws = st.floats(0, 1, exclude_max=True)
speeds = st.sampled_from([0.5, 1.0, 1.5, 2.0, 7.0])


@given(videos, st.integers(1, 200), st.none() | rates, speeds, draws)
def test_a_clip_lies_inside_the_video(video, num_frames, framerate, speedup, draw) -> None:
    request = Request(num_frames, framerate, speedup)
    clip = plan_clip(video, request, draw)
    frame = 1 / video.framerate
    assert 1 <= len(clip.times) <= num_frames
    assert list(clip.times) == sorted(set(clip.times))
    assert clip.start >= -1e-9 and clip.times[0] >= clip.start
    assert clip.times[-1] < max(video.duration + frame / 2, frame) + 1e-6
    step = speedup / (framerate or video.framerate)
    assert clip.end - clip.start == pytest.approx(num_frames * step)
    for earlier, later in zip(clip.times, clip.times[1:], strict=False):
        assert later - earlier == pytest.approx(step, abs=1e-6)
    if len(clip.times) < num_frames:  # one more would not fit
        assert clip.times[-1] + step > video.duration - frame


@given(videos, st.integers(1, 50), st.none() | rates, speeds, draws, draws, st.data())
def test_a_hard_interval_is_kept(video, num_frames, framerate, speedup, draw, low, data) -> None:
    frame = 1 / video.framerate
    low *= video.duration
    high = data.draw(st.floats(low, video.duration)) + 1e-6
    assume(min(high, video.duration) - low > 2 * frame)
    clip = plan_clip(video, Request(num_frames, framerate, speedup, interval=(low, high)), draw)
    assert clip.start >= low - frame / 4 - 1e-6
    assert clip.times[-1] <= high + frame / 2 + 1e-6


@given(videos, st.integers(1, 50), rates, draws, st.data())
def test_a_soft_interval_grows_as_far_as_the_video_goes(video, num_frames, framerate, low, data) -> None:
    low *= video.duration
    high = data.draw(st.floats(low, video.duration)) + 1e-6
    assume(min(high, video.duration) - low > 1 / video.framerate)
    request = Request(num_frames, framerate, interval=(low, high), is_soft=True)
    clip, whole = plan_clip(video, request), plan_clip(video, Request(num_frames, framerate))
    assert len(clip.times) >= len(whole.times) - 1  # as many as the whole video would give
    assert clip.start >= 0


@given(st.integers(1, 2000), rates, st.integers(1, 30), draws)
def test_consecutive_frames_are_looked_up_in_their_middle(count, framerate, num_frames, draw) -> None:
    assume(count >= num_frames)
    clip = plan_clip(Timeline(count / framerate, framerate), Request(num_frames), draw)
    first = round(clip.start * framerate)
    assert [moment * framerate - 0.5 for moment in clip.times] == pytest.approx(list(range(first, first + num_frames)))
    assert 0 <= first <= count - num_frames


def test_every_start_is_equally_likely() -> None:
    video = Timeline(2.0, 10.0)
    starts = [round(plan_clip(video, Request(16), draw / 100).start * 10) for draw in range(100)]
    assert [starts.count(each) for each in range(5)] == [20] * 5


def test_spread_frames_lie_evenly_in_the_interval() -> None:
    clip = plan_clip(Timeline(10.0, 30.0), Request(4, spread=True))
    assert clip.times == (1.25, 3.75, 6.25, 8.75) and (clip.start, clip.end) == (0, 10)
    clip = plan_clip(Timeline(10.0, 30.0), Request(2, spread=True, interval=(8, 20)))
    assert clip.times == (8.5, 9.5)


def test_an_interval_past_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="past its end"):
        plan_clip(Timeline(2.0, 10.0), Request(1, interval=(2.5, 3)))


def test_a_scene_that_begins_at_a_rounded_time_begins_with_its_own_frame() -> None:
    frame = 100 / 29.97
    for start in (frame, round(frame, 3), round(frame, 2), frame - 0.004):
        clip = plan_clip(Timeline(60.0, 29.97), Request(8, interval=(start, 50)))
        assert round(clip.start * 29.97) == 100


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from(SHORTER))
def test_fill(num_found, num_frames, policy) -> None:
    places = fill(num_found, num_frames, policy)
    kept = min(num_found, num_frames)
    assert places[:kept] == list(range(kept))
    rest = places[kept:]
    if policy == "fewer":
        assert not rest
    else:
        assert len(places) == num_frames
        expected = {"loop": lambda k: k % num_found, "repeat_last": lambda k: num_found - 1}
        assert rest == [expected.get(policy, lambda k: None)(k) for k in range(kept, num_frames)]
