"""DecodeAudio and its neighbours: strategies, lengths, channels, loudness. Formats are in tests/integration."""

from __future__ import annotations

import io
import math
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given
from hypothesis import strategies as st

from sds.errors import DecodeError, OptionError, TransformError
from sds.transforms import (
    AverageAudio,
    ConvertAudioToFloatTensor,
    DecodeAudio,
    NormalizeAudio,
    ResizeAudio,
    presets,
)
from sds.transforms.loudness import integrated_lufs, loudest_offset, peak_db, rms_db

RATE = 8000


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """4 s of stereo: the left channel counts the samples, the right is loud from 2.0 s to 2.5 s."""
    name = tmp_path_factory.mktemp("sound") / "a.wav"
    count = np.arange(4 * RATE) / (8 * RATE)
    burst = np.where((np.arange(4 * RATE) // (RATE // 2)) == 4, np.sin(np.arange(4 * RATE)), 0)
    soundfile.write(name, np.stack([count, burst], 1).astype(np.float32), RATE, subtype="FLOAT")
    return str(name)


def decode(source: object, seed: int = 0, **options: object) -> tuple[torch.Tensor, int]:
    """The clip, and which sample it begins with."""
    transform = DecodeAudio("x", "a", "rate", clip_start_output_field="start", **options)
    sample = transform({"x": source, "__random_seed__": seed})
    assert sample["rate"] == RATE and sample["a"].dtype == torch.float32 and sample["a"].is_contiguous()
    first = round(float(sample["a"][0, 0]) * 8 * RATE)
    assert sample["start"] == pytest.approx(first / RATE)
    return sample["a"], first


def test_strategies(path: str) -> None:
    assert decode(path)[0].shape == (2, 4 * RATE)
    for strategy, first in (("start", 0), ("end", 3 * RATE), ("center", 3 * RATE // 2), ("centre", 3 * RATE // 2)):
        clip, found = decode(path, duration=1.0, clip_offset_strategy=strategy)
        assert clip.shape == (2, RATE) and found == first
    _, found = decode(Path(path).read_bytes(), duration=0.5, clip_offset_strategy="loudest")
    assert abs(found - 2 * RATE) <= 0.05 * RATE
    firsts = {decode(path, seed, duration=0.5)[1] for seed in range(20)}
    assert len(firsts) > 15 and firsts == {decode(path, seed, duration=0.5)[1] for seed in range(20)}
    loud = [
        decode(path, seed, duration=0.5, clip_offset_strategy="random_loud", loudness_cutoff=-9.0)[0]
        for seed in range(9)
    ]
    assert all(rms_db(clip.numpy()) > -9.1 for clip in loud)
    _, found = decode(path, duration=0.5, clip_offset_strategy="random_loud", loudness_cutoff=-1.0)
    assert abs(found - 2 * RATE) <= 0.05 * RATE  # none is that loud: the loudest


def test_shorter_files_and_limits(path: str) -> None:
    with pytest.raises(DecodeError, match="shorter than 9"):
        decode(path, duration=9)
    assert decode(path, duration=9, allow_shorter_audio=True)[0].shape == (2, 4 * RATE)
    with pytest.raises(DecodeError, match="max_samples=1000"):
        decode(path, max_samples=1000)
    assert decode(path, duration=0.01, max_samples=1000)[0].shape == (2, 80)
    for bad in (b"", b"no sound at all", "/absent.wav", 3, None):
        with pytest.raises(DecodeError, match="audio cannot be decoded"):
            decode(bad)
    file = io.BytesIO()
    soundfile.write(file, np.array([0.5, math.nan], np.float32), RATE, format="WAV", subtype="FLOAT")
    with pytest.raises(DecodeError, match="no numbers"):
        decode(file.getvalue())


@given(st.integers(1, 4), st.integers(1, 3000), st.sampled_from([8000, 11025, 16000]), st.floats(0.001, 0.5))
def test_resize_gives_the_exact_length(channels, length, rate, seconds) -> None:
    wave = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (channels, length)).astype(np.float32))
    found = ResizeAudio("a", "rate", rate, "b", duration=seconds)({"a": wave, "rate": 8000})["b"]
    assert found.shape == (channels, round(rate * seconds)) and found.abs().max() <= 1
    if rate == 8000:
        kept = min(length, found.shape[1])
        assert torch.equal(found[:, :kept], wave[:, :kept]) and not found[:, kept:].any()
    kept = ResizeAudio("a", "rate", rate)({"a": wave, "rate": 8000})["a"]
    assert len(kept) == channels and abs(kept.shape[1] - length * rate / 8000) <= 0.5  # of two as near, either
    timed = ResizeAudio("a", "rate", rate, clip_duration_field="s")({"a": wave, "rate": 8000, "s": seconds})["a"]
    assert torch.equal(timed, found)


def test_convert_and_average() -> None:
    for dtype, values in (
        (np.uint8, [0, 128, 255]),
        (np.int16, [-32768, 0, 32767]),
        (np.int32, [-(2**31), 0, 2**31 - 1]),
        (np.float64, [-1.5, 0.0, 1.0]),
    ):
        found = ConvertAudioToFloatTensor("x")({"x": np.array(values, dtype)})["x"]
        assert found.shape == (1, 3) and found.dtype == torch.float32
        assert found[0].tolist() == pytest.approx([-1, 0, 1], abs=0.01)
    wave = torch.tensor([[1.0, 0.0, -0.5], [0.0, 0.5, -0.5]])
    assert AverageAudio("x")({"x": wave})["x"].tolist() == [[0.5, 0.25, -0.5]]
    assert AverageAudio("x")({"x": wave[0]})["x"].tolist() == [[1.0, 0.0, -0.5]]
    for bad in (None, "a.wav", torch.zeros(2, 2, 2), np.zeros((0, 4)), np.array(["a"])):
        for transform in (AverageAudio("x"), ConvertAudioToFloatTensor("x"), NormalizeAudio("x")):
            with pytest.raises(TransformError, match="not a waveform"):
                transform({"x": bad})
    for rate in (0, -1, None, "fast"):
        with pytest.raises(TransformError):
            ResizeAudio("x", "rate", 8000)({"x": wave, "rate": rate})


def test_normalize_by_peak_rms_and_loudness() -> None:
    tone = 0.1 * torch.sin(torch.arange(48_000) * 2 * math.pi * 1000 / 48_000)[None]
    assert NormalizeAudio("x")({"x": tone})["x"].abs().max() == pytest.approx(0.95, abs=1e-4)
    assert peak_db(NormalizeAudio("x", target_db=-6)({"x": tone})["x"].numpy()) == pytest.approx(-6, abs=1e-3)
    assert rms_db(NormalizeAudio("x", measure="rms")({"x": tone})["x"].numpy()) == pytest.approx(-20, abs=1e-3)
    found = NormalizeAudio("x", measure="lufs", sample_rate=48_000)({"x": tone})["x"]
    assert integrated_lufs(found.numpy(), 48_000) == pytest.approx(-23, abs=1e-2)
    loud = NormalizeAudio("x", measure="rms", target_db=0.0)({"x": tone})["x"]
    assert loud.abs().max() == pytest.approx(1.0)  # a gain that would clip is lowered
    assert NormalizeAudio("x", max_gain_db=6)({"x": tone})["x"].abs().max() == pytest.approx(0.1995, abs=1e-3)
    for measure in ("peak", "rms", "lufs"):
        silence = NormalizeAudio("x", measure=measure, sample_rate=8000)({"x": torch.zeros(2, 900)})["x"]
        assert not silence.any()


def test_loudness_of_the_standards_reference() -> None:
    """A full-scale 1 kHz sine in one of two channels is -3.01 LUFS (ITU-R BS.1770-4)."""
    tone = np.sin(np.arange(48_000 * 3) * 2 * np.pi * 997 / 48_000).astype(np.float32)
    assert integrated_lufs(np.stack([tone, 0 * tone]), 48_000) == pytest.approx(-3.01, abs=0.02)
    assert integrated_lufs(np.stack([tone, tone]), 48_000) == pytest.approx(0.0, abs=0.02)
    assert integrated_lufs(tone[None, :8000], 48_000) == pytest.approx(-3.01, abs=0.1)  # shorter than a block
    assert integrated_lufs(np.zeros((1, 8000), np.float32), 8000) == -math.inf
    assert loudest_offset(np.concatenate([0 * tone[:9600], tone[:4800], 0 * tone[:9600]])[None], 4800, 480) == 9600


def test_audio_preset(path: str) -> None:
    chain = presets.create_standard_audio_pipeline("x", 1.5, mono_audio=True, target_audio_sr=16_000)
    sample = {"x": path, "__random_seed__": 1}
    for transform in chain:
        sample = transform(sample)
    assert sample["audio"].shape == (1, 24_000) and sample["audio"].dtype == torch.float32
    assert sample["audio"].abs().max() == pytest.approx(0.95, abs=1e-3)
    assert sample["original_audio_sampling_rate"] == RATE and sample["x"] == path
    short = {"allow_shorter_audio": True, "clip_offset_strategy": "start"}
    chain = presets.create_standard_audio_pipeline("x", 5, normalize_audio=False, audio_decoding_kwargs=short)
    sample = {"x": path}
    for transform in chain:
        sample = transform(sample)
    assert sample["audio"].shape == (2, 5 * 44_100) and not sample["audio"][:, 4 * 44_100 + 10 :].any()
    with pytest.raises(OptionError, match="unknown option"):
        presets.create_standard_audio_pipeline("x", 5, audio_decoding_kwargs={"louder": True})


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: DecodeAudio("x", duration=0), "duration"),
        (lambda: DecodeAudio("x", clip_offset_strategy="best"), "clip_offset_strategy"),
        (lambda: DecodeAudio(""), "input_field"),
        (lambda: ResizeAudio("x", "r", 0), "target_audio_sr"),
        (lambda: ResizeAudio("x", "r", 8000, quality="best"), "quality"),
        (lambda: ResizeAudio("x", "r", 8000, clip_duration_field="a", duration=1), "duration"),
        (lambda: NormalizeAudio("x", measure="loud"), "measure"),
        (lambda: NormalizeAudio("x", target_db=3), "target_db"),
        (lambda: NormalizeAudio("x", measure="lufs"), "sample rate"),
    ],
)
def test_options_are_checked_by_name(make, name) -> None:
    with pytest.raises(OptionError, match=name):
        make()


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, make in (("soundfile", lambda: DecodeAudio("x")), ("soxr", lambda: ResizeAudio("x", "r", 8000))):
        with monkeypatch.context() as context:
            context.setitem(sys.modules, package, None)
            with pytest.raises(OptionError, match=rf"{package}.*\n.*streaming-dataset\[audio\]"):
                make()


def test_pickles_and_prints_as_written() -> None:
    for each in (
        DecodeAudio("x", duration=2, clip_offset_strategy="loudest"),
        ResizeAudio("x", "rate", 16_000, duration=2),
        NormalizeAudio("x", measure="lufs", sample_rate=16_000),
    ):
        assert repr(pickle.loads(pickle.dumps(each))) == repr(each) == repr(eval(repr(each)))
