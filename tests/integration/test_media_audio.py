"""Sound of every format against the ffmpeg command: samples, seeks, loudness, and sound that belongs to a video."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest
import torch

from media_files import ffmpeg, reference_audio, reference_frames, reference_times
from sds.errors import DecodeError
from sds.transforms import DecodeAudio, DecodeVideo, DecodeVideoAndAudio, NormalizeAudio, ResizeAudio, presets
from sds.transforms.audio_reader import open_audio
from sds.transforms.loudness import integrated_lufs

# name: (file, options of the encoder, largest difference to the command's samples)
KINDS: dict[str, tuple[str, tuple[object, ...], float]] = {
    "wav 8 bit": ("a.wav", ("-c:a", "pcm_u8"), 0),
    "wav 16 bit": ("b.wav", ("-c:a", "pcm_s16le"), 0),
    "wav 24 bit": ("c.wav", ("-c:a", "pcm_s24le"), 0),
    "wav 32 bit": ("d.wav", ("-c:a", "pcm_s32le"), 0),
    "wav float": ("e.wav", ("-c:a", "pcm_f32le"), 0),
    "flac": ("a.flac", ("-c:a", "flac"), 0),
    "flac 24 bit": ("b.flac", ("-c:a", "flac", "-sample_fmt", "s32"), 0),
    "mp3": ("a.mp3", ("-c:a", "libmp3lame", "-b:a", "128k"), 2e-4),
    "vorbis": ("a.ogg", ("-c:a", "libvorbis", "-q:a", 5), 2e-4),
    "aac in mp4": ("a.m4a", ("-c:a", "aac", "-b:a", "128k"), 1e-5),
    "aac alone": ("a.aac", ("-c:a", "aac", "-b:a", "128k"), 1e-5),
    "alac": ("b.m4a", ("-c:a", "alac"), 0),
    "pcm in mov": ("a.mov", ("-c:a", "pcm_s16be"), 0),
    "opus in webm": ("a.webm", ("-c:a", "libopus"), 1e-4),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sounds")


@pytest.fixture(scope="module")
def source(folder: Path) -> Path:
    """3 s of stereo at 48 kHz: a sweep left, noise that comes and goes right."""
    path = folder / "source.wav"
    left = "aevalsrc=0.5*sin(2*PI*(200*t+300*t*t)):s=48000:d=3"
    right = "anoisesrc=r=48000:d=3:seed=7:a=0.3:c=pink"
    ffmpeg(
        "-f", "lavfi", "-i", left, "-f", "lavfi", "-i", right, "-filter_complex", "amerge", "-c:a", "pcm_f32le", path
    )
    return path


@pytest.fixture(scope="module")
def sound(folder: Path, source: Path):
    def make(kind: str) -> Path:
        name, options, _ = KINDS[kind]
        path = folder / name
        if not path.exists():
            ffmpeg("-i", source, *options, path)
        return path

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_the_ffmpeg_command(kind: str, sound) -> None:
    path, bound = sound(kind), KINDS[kind][2]
    expected = reference_audio(path, 2)
    for source in (str(path), path.read_bytes()):
        sample = DecodeAudio("x", "audio", "rate")({"x": source})
        found = sample["audio"]
        assert sample["rate"] == 48_000 and found.dtype == torch.float32 and found.is_contiguous()
        assert abs(found.shape[1] - expected.shape[1]) <= (0 if bound == 0 else 2400)
        length = min(found.shape[1], expected.shape[1])
        assert np.abs(found.numpy()[:, :length] - np.clip(expected, -1, 1)[:, :length]).max() <= bound
        assert found.abs().max() <= 1 and found.abs().mean() > 0.05


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "opus in webm"])
def test_a_span_after_a_seek_is_part_of_the_whole(kind: str, sound) -> None:
    with open_audio(str(sound(kind))) as reader:
        whole = reader.read(0, reader.num_samples)
    rng = np.random.default_rng(0)
    for start in [0, 1, 1024, *rng.integers(0, whole.shape[1] - 24_000, 6)]:
        with open_audio(str(sound(kind))) as reader:
            part = reader.read(int(start), 20_000)
        assert part.shape == (2, 20_000)
        # AAC makes noise by dice that are thrown from the start of the file on: the tone is left
        channels, bound = (slice(0, 1), 1e-3) if "aac in" in kind else (slice(0, 2), 1e-6)
        assert np.abs(part - whole[:, start : start + 20_000])[channels].max() <= bound, start


@pytest.mark.parametrize("rate", [16_000, 44_100, 96_000])
def test_resampling_keeps_a_tone_and_leaves_out_what_does_not_fit(rate: int, tmp_path: Path) -> None:
    seconds = np.arange(48_000 * 2) / 48_000
    tones = (
        np.stack([np.sin(2 * np.pi * 1000 * seconds), np.sin(2 * np.pi * 15_000 * seconds)]).astype(np.float32) * 0.5
    )
    resize = ResizeAudio("a", "rate", rate, duration=1.5)
    found = resize({"a": torch.from_numpy(tones), "rate": 48_000})["a"].numpy()
    assert found.shape == (2, round(rate * 1.5))
    middle = slice(rate // 4, rate)
    expected = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(found.shape[1]) / rate)
    assert np.abs(found[0] - expected)[middle].max() < 1e-4
    if rate == 16_000:
        assert np.abs(found[1][middle]).max() < 1e-4  # 15 kHz is beyond what 16 kHz can hold


def test_loudness_is_that_of_the_ffmpeg_command(source: Path, folder: Path) -> None:
    cases = {
        "stereo": (),
        "mono": ("-ac", 1),
        "quiet": ("-af", "volume=-26dB"),
        "44100": ("-ar", 44_100),
        "16000": ("-ar", 16_000),
        "gaps": ("-af", "volume=0.002:enable='between(t,1,2)'"),
    }
    for name, options in cases.items():
        path = folder / f"loud-{name}.wav"
        ffmpeg("-i", source, *options, "-c:a", "pcm_f32le", path)
        sample = DecodeAudio("x", "audio", "rate")({"x": str(path)})
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-nostdin", "-i", path, "-af", "ebur128", "-f", "null", "-"]
        report = subprocess.run(command, capture_output=True, text=True, timeout=60).stderr
        expected = float(re.findall(r"I:\s+(-?[\d.]+) LUFS", report)[-1])
        assert integrated_lufs(sample["audio"].numpy(), sample["rate"]) == pytest.approx(expected, abs=0.15), name
        levelled = NormalizeAudio("audio", measure="lufs", target_db=-30, sample_rate_field="rate")(dict(sample))[
            "audio"
        ]
        assert integrated_lufs(levelled.numpy(), sample["rate"]) == pytest.approx(-30, abs=0.05)


def test_a_file_cut_short_is_a_decode_error(sound, tmp_path: Path) -> None:
    for kind in ("wav 16 bit", "wav 24 bit", "flac", "aac in mp4", "alac"):
        path = tmp_path / sound(kind).name
        data = sound(kind).read_bytes()
        for share in (0.2, 0.5, 0.9):
            path.write_bytes(data[: int(len(data) * share)])
            for value in (str(path), path.read_bytes()):
                with pytest.raises(DecodeError, match="audio cannot be decoded"):
                    DecodeAudio("x", "audio")({"x": value, "kind": (kind, share)})


# -- sound and pictures ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flashes(folder: Path) -> Path:
    """2 s at 25 frames a second; a tone from 0.8 s to 1.2 s, when the picture is white; the sound ends at 1.5 s."""
    path = folder / "flashes.mp4"
    picture = "color=black:size=64x48:rate=25:duration=2,drawbox=color=white:t=fill:enable='between(t,0.799,1.199)'"
    tone = "aevalsrc='if(between(t,0.8,1.2),0.8*sin(2*PI*1000*t),0)':s=44100:d=1.5"
    ffmpeg("-f", "lavfi", "-i", picture, "-f", "lavfi", "-i", tone, "-c:v", "libx264", "-g", 10, "-pix_fmt", "yuv420p",
           "-c:a", "aac", "-b:a", "160k", path)  # fmt: skip
    ffmpeg("-i", path, "-vn", "-c:a", "pcm_s16le", folder / "flashes.wav")
    return path


@pytest.mark.parametrize("is_apart", [False, True])
def test_the_tone_sounds_while_the_picture_is_white(flashes: Path, is_apart: bool) -> None:
    beside = {"audio_input_field": "wav"} if is_apart else {}
    for seed in range(12):
        decode = DecodeVideoAndAudio(
            "x", "video", "audio", "rate", 20, frame_timestamps_output_field="t", duration_output_field="s",
            audio_span_output_field="span", **beside,
        )  # fmt: skip
        sample = decode({"x": str(flashes), "wav": str(flashes.with_suffix(".wav")), "__random_seed__": seed})
        assert sample["video"].shape == (20, 3, 48, 64) and sample["s"] == pytest.approx(0.8)
        assert sample["audio"].shape == (1, round(0.8 * 44_100)) and sample["rate"] == 44_100
        start = float(sample["t"][0])
        assert sample["span"].tolist() == pytest.approx([start, start + 0.8])
        loud = (
            sample["audio"][0].reshape(20, -1).pow(2).mean(1).sqrt() > 0.2
        )  # [t]: is there a tone in each frame's time
        white = sample["video"].float().mean((1, 2, 3)) > 128  # [t]
        inner = (loud == white).float()
        assert inner.mean() >= 0.9, (start, loud, white)  # the frames at both ends of the tone are loud in part
        heard = sample["audio"][0, round(max(0.0, 1.55 - start) * 44_100) :]
        assert heard.numel() == 0 or heard.abs().max() < 1e-3  # silence after the end of the sound


def test_sound_at_every_start_is_the_sound_of_the_whole(flashes: Path) -> None:
    whole = reference_audio(flashes, 1)
    for start in np.linspace(0, 1.1, 9):
        decode = DecodeVideoAndAudio(
            "x",
            "v",
            "a",
            "rate",
            8,
            decode_kwargs={"random_offset": False, "crop_interval": (float(start), 2.0), "framerate": 25},
        )
        found = decode({"x": str(flashes)})["a"].numpy()
        first = round(start * 44_100)
        expected = np.zeros_like(found)
        part = whole[:, first : first + found.shape[1]]
        expected[:, : part.shape[1]] = part
        assert np.abs(found - expected).max() < 1e-4, start


def test_a_video_without_sound(folder: Path) -> None:
    path = folder / "silent.mp4"
    ffmpeg(
        "-f", "lavfi", "-i", "testsrc2=size=64x48:rate=10:duration=1", "-c:v", "libx264", "-pix_fmt", "yuv420p", path
    )
    with pytest.raises(DecodeError, match="no sound"):
        DecodeVideoAndAudio("x", "v", "a", "rate", 5)({"x": str(path), "__random_seed__": 1})
    chain = presets.create_standard_joint_video_audio_pipeline("x", 5, (32, 32), missing_audio="silence")
    sample = {"x": str(path), "__random_seed__": 1}
    for transform in chain:
        sample = transform(sample)
    assert sample["audio"].shape == (1, 8000) and not sample["audio"].any()
    with pytest.raises(DecodeError, match="no sound"):
        DecodeAudio("x")({"x": str(path)})
    with pytest.raises(DecodeError, match="no video"):
        DecodeVideo("x", 1)({"x": str(folder / "source.wav"), "__random_seed__": 1})


def test_joint_preset(flashes: Path) -> None:
    chain = presets.create_standard_joint_video_audio_pipeline(
        "x",
        16,
        (32, 32),
        decode_kwargs={"framerate": 12.5, "frame_timestamps_output_field": "t"},
        target_audio_sr=16_000,
    )
    sample = {"x": str(flashes), "__random_seed__": 5}
    for transform in chain:
        sample = transform(sample)
    assert sample["video"].shape == (16, 3, 32, 32) and sample["video"].dtype == torch.uint8
    assert sample["clip_duration"] == pytest.approx(16 / 12.5)
    assert sample["audio"].shape == (1, round(16_000 * 16 / 12.5))
    assert sample["audio"].abs().max() == pytest.approx(0.95, abs=1e-4)
    times, frames = reference_times(flashes)[0], reference_frames(flashes, (48, 64))
    assert len(times) == len(frames) == 50
