"""Videos of every codec, frame by frame against the ffmpeg command: colours, times, seeks, odd and broken files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from media_files import ffmpeg, reference_frames, reference_times
from sds.errors import DecodeError
from sds.testing.media import draw_image
from sds.transforms import DecodeVideo
from sds.transforms.video_pixels import Scale
from sds.transforms.video_reader import Limits, VideoReader

SIZE = (60, 80)
LIMITS = Limits(1 << 20, 10_000, 30.0)
X264 = ("-c:v", "libx264", "-preset", "veryfast", "-qp", 20, "-pix_fmt", "yuv420p")

# name: (extension, options of the encoder)
KINDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "h264": ("mp4", (*X264, "-g", 24, "-bf", 3)),
    "h264 in one piece": ("mp4", (*X264, "-g", 1000, "-bf", 3, "-sc_threshold", 0)),
    "h264 open groups": ("mp4", (*X264, "-bf", 3, "-x264-params", "open-gop=1:keyint=15:min-keyint=15:scenecut=0")),
    "h264 open groups, mkv": ("mkv", (*X264, "-x264-params", "open-gop=1:keyint=15:min-keyint=15:bframes=4")),
    "h264 intra refresh": ("mkv", (*X264, "-x264-params", "intra-refresh=1:keyint=15")),
    "h264 fragments": ("mp4", (*X264, "-g", 24, "-movflags", "frag_keyframe+empty_moov")),
    "h264 no b-frames": ("mp4", (*X264, "-g", 24, "-bf", 0, "-movflags", "faststart")),
    "hevc": (
        "mp4",
        ("-c:v", "libx265", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-x265-params", "log-level=0:keyint=20"),
    ),
    "hevc mkv": ("mkv", ("-c:v", "libx265", "-preset", "fast", "-x265-params", "log-level=0:keyint=20:bframes=4")),
    "vp9": ("webm", ("-c:v", "libvpx-vp9", "-g", 20, "-deadline", "realtime", "-cpu-used", 8, "-b:v", "300k")),
    "vp9 alt-ref": ("webm", ("-c:v", "libvpx-vp9", "-g", 30, "-deadline", "good", "-cpu-used", 5, "-auto-alt-ref", 1)),
    "av1": ("mp4", ("-c:v", "libaom-av1", "-g", 20, "-cpu-used", 8, "-usage", "realtime", "-b:v", "300k")),
    "mpeg4": ("mp4", ("-c:v", "mpeg4", "-g", 12, "-bf", 2, "-q:v", 3)),
    "mpeg4 avi": ("avi", ("-c:v", "mpeg4", "-g", 12, "-q:v", 3)),
    "mpeg2": ("mpg", ("-c:v", "mpeg2video", "-g", 12, "-bf", 2, "-q:v", 3)),
    "mjpeg": ("avi", ("-c:v", "mjpeg", "-pix_fmt", "yuvj420p", "-q:v", 3)),
    "variable rate": ("mp4", ("-vf", "select='mod(n\\,3)*mod(n\\,7)'", "-fps_mode", "vfr", *X264, "-g", 12)),
    "variable rate, mkv": ("mkv", ("-vf", "select='mod(n\\,3)*mod(n\\,7)'", "-fps_mode", "vfr", *X264, "-g", 12)),
    "ntsc": ("mkv", ("-r", "30000/1001", *X264, "-g", 24)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def video(folder: Path):
    """Makes a video of a kind when it is first asked for."""

    def make(kind: str) -> Path:
        extension, options = KINDS[kind]
        path = folder / f"{kind.replace(' ', '-')}.{extension}"
        if not path.exists():
            ffmpeg("-f", "lavfi", "-i", "testsrc2=size=80x60:rate=30:duration=2.4", *options, path)
        return path

    return make


def read(media: object, times: list[float], scale: Scale | None = None) -> tuple[np.ndarray, list[float]]:
    with VideoReader(media, LIMITS) as reader:
        return reader.read(times, scale)


@pytest.mark.parametrize("kind", KINDS)
def test_every_frame_and_every_seek_is_that_of_the_ffmpeg_command(kind: str, video) -> None:
    path = video(kind)
    (times, tick), expected = reference_times(path), reference_frames(path, SIZE)
    assert len(times) == len(expected) > 30
    frames, stamps = read(str(path), times)
    assert np.allclose(stamps, times, atol=1e-6)
    assert np.array_equal(frames, expected), np.abs(frames.astype(int) - expected).max((1, 2, 3))
    rng = random.Random(kind)
    last = times[-1] + 0.01
    for _ in range(12):
        start, step = rng.uniform(0, last), rng.choice([1 / 60, 1 / 30, 1 / 24, 0.1, 0.5])
        wanted = [moment for moment in (start + k * step for k in range(5)) if moment < last]
        shown = [max(k for k, each in enumerate(times) if each < moment + tick / 2 or k == 0) for moment in wanted]
        media = str(path) if rng.random() < 0.5 else path.read_bytes()
        frames, stamps = read(media, wanted)
        assert np.allclose(stamps, [times[k] for k in shown], atol=1e-6), (start, step)
        assert np.array_equal(frames, expected[shown]), (start, step)


def test_a_transport_stream_seeks_without_an_index(video, tmp_path: Path) -> None:
    source, path = video("h264"), tmp_path / "a.ts"
    ffmpeg("-i", source, "-c", "copy", path)  # the command writes such files, and crashes when it reads them
    times, expected = reference_times(source)[0], reference_frames(source, SIZE)
    rng = random.Random(1)
    for start in [0.0, *(rng.uniform(0, 2.0) for _ in range(8))]:
        frames, stamps = read(str(path), [start, start + 0.1])
        shown = [max(k for k, each in enumerate(times) if each <= moment + 1e-5) for moment in (start, start + 0.1)]
        assert np.array_equal(frames, expected[shown]) and np.allclose(stamps, [times[k] for k in shown], atol=1e-4)


@pytest.mark.parametrize(
    ("turn", "flips", "size"),
    [
        (90, (), (80, 60)),
        (180, (), (60, 80)),
        (270, (), (80, 60)),
        (90, ("-display_hflip",), (80, 60)),
        (0, ("-display_vflip",), (60, 80)),
    ],
)
def test_rotated_videos_stand_upright(turn, flips, size, video, tmp_path: Path) -> None:
    path = tmp_path / "turned.mp4"
    ffmpeg("-display_rotation", turn, *flips, "-i", video("h264"), "-c", "copy", path)
    expected = reference_frames(path, size)
    times, _ = reference_times(path)
    # the command converts to RGB after it turned, so colours at edges differ a little
    frames, _ = read(str(path), times)
    assert frames.shape == expected.shape
    assert np.abs(frames.astype(int) - expected).mean() < 1
    small, _ = read(str(path), times[:2], Scale((30, 30)))
    assert small.shape[2:] == ((40, 30) if size == (80, 60) else (30, 40))


def test_no_keyframe_at_the_start(video, tmp_path: Path) -> None:
    for kind, cut in (("h264", 0.3), ("vp9", 0.3), ("mpeg4", 0.15)):
        source, path = video(kind), tmp_path / f"{kind}.mkv"
        ffmpeg("-i", source, "-c", "copy", "-copyinkf", "-ss", cut, path)
        whole = reference_frames(source, SIZE)
        with VideoReader(str(path), LIMITS) as reader:
            frames, stamps = reader.read([0.0, 0.05, 1.0, 1.5], None)
        assert stamps[0] == stamps[1] > 0, (
            kind,
            stamps,
        )  # the first frame that can be shown stands for those before it
        assert stamps == sorted(stamps) and stamps[2] <= 1.001
        for frame in frames:
            assert min(np.abs(frame.astype(int) - each).max() for each in whole) == 0, kind


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.mp4", ("-c:v", "libx264", "-pix_fmt", "yuv444p", "-qp", 10)),
        ("b.webm", ("-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", 8)),
    ],
)
def test_odd_sizes(name, options, tmp_path: Path) -> None:
    path = tmp_path / name
    ffmpeg("-f", "lavfi", "-i", "testsrc=size=97x61:rate=10:duration=1", *options, path)
    times, _ = reference_times(path)
    frames, _ = read(str(path), times)
    expected = reference_frames(path, (61, 97))
    assert frames.shape == expected.shape == (10, 3, 61, 97)
    # libswscale's versions differ in the colour of the odd last line
    assert np.abs(frames.astype(int) - expected)[..., :60, :96].max() <= 2


@pytest.mark.parametrize(
    ("matrix", "tag", "span", "pixels", "bound"),
    [
        ("bt709", "bt709", "tv", "yuv420p", 0),
        ("bt601", "smpte170m", "tv", "yuv420p", 0),
        ("bt709", "bt709", "pc", "yuv420p", 0),
        ("bt709", "bt709", "tv", "yuv444p", 0),
        ("bt2020", "bt2020nc", "tv", "yuv420p10le", 1.0),
    ],
)
def test_colours_are_those_of_the_ffmpeg_command(matrix, tag, span, pixels, bound, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    drawn, _ = draw_image(2, (96, 128), grain=0.3)
    Image.fromarray(drawn).save(tmp_path / "a.png")
    codec = ("libx265", "-x265-params", "log-level=0:qp=4") if "10" in pixels else ("libx264", "-qp", 4)
    convert = f"scale=out_color_matrix={matrix}:out_range={span},format={pixels}"
    ffmpeg(
        "-loop",
        1,
        "-i",
        tmp_path / "a.png",
        "-frames:v",
        3,
        "-vf",
        convert,
        "-colorspace",
        tag,
        "-color_range",
        span,
        "-c:v",
        *codec,
        path,
    )
    times, _ = reference_times(path)
    frames, _ = read(str(path), times)
    expected = reference_frames(path, (96, 128))
    assert np.abs(frames.astype(int) - expected).mean() <= bound
    # scaled while it is decoded: the same as the command's accurate scaler
    small, _ = read(str(path), times, Scale((48, 48)))
    options = ("-vf", "scale=64:48:flags=bilinear+accurate_rnd+full_chroma_int")
    expected = reference_frames(path, (48, 64), *options).astype(int)
    assert np.abs(small - expected).mean() < 0.6
    # and no colour cast against the picture that was encoded
    truth = np.array(Image.fromarray(drawn).resize((64, 48), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs((small.astype(float) - truth).mean((0, 2, 3))).max() < 0.8
    assert np.abs(small - truth.astype(int)).mean() < 1.2


def test_threads_change_nothing(video) -> None:
    for kind in ("h264", "hevc", "vp9"):
        results = []
        for options in ({}, {"num_threads": 2}, {"thread_type": "FRAME", "num_threads": 3}, {"thread_type": "SLICE"}):
            decode = DecodeVideo("x", 8, "video", random_offset=False, crop_interval=(0.9, 2.0), **options)
            results.append(decode({"x": str(video(kind))})["video"])
        assert all(torch.equal(each, results[0]) for each in results)


def test_a_track_that_is_shorter_than_its_file(tmp_path: Path) -> None:
    """WebM tells only how long the whole file is: here the sound goes on after the pictures."""
    path = tmp_path / "a.mkv"
    ffmpeg(
        "-f", "lavfi", "-i", "testsrc2=size=80x60:rate=10:duration=1", "-f", "lavfi", "-i", "sine=duration=4",
        *X264, "-c:a", "libopus", "-fflags", "+bitexact", path,
    )  # fmt: skip
    for seed in range(8):
        sample = DecodeVideo("x", 4, "v", frame_timestamps_output_field="t")({"x": str(path), "__random_seed__": seed})
        assert sample["v"].shape == (4, 3, 60, 80)
        assert torch.allclose(sample["t"].diff(), torch.tensor(0.1, dtype=torch.float64), atol=2e-3)


def test_a_file_cut_short_is_a_decode_error(video, tmp_path: Path) -> None:
    for kind in ("h264 no b-frames", "h264 open groups, mkv", "mpeg4 avi", "vp9"):
        path = tmp_path / video(kind).name
        data = video(kind).read_bytes()
        for share in (0.3, 0.6, 0.9):
            path.write_bytes(data[: int(len(data) * share)])
            for source in (str(path), path.read_bytes()):
                with pytest.raises(DecodeError, match="video cannot be decoded"):
                    DecodeVideo("x", 72, "v", random_offset=False)({"x": source})


def test_nothing_stays_open(video, tmp_path: Path) -> None:
    import gc
    import os

    path = str(video("h264"))
    broken = tmp_path / "broken.mp4"
    data = bytearray(video("h264").read_bytes())
    data[2000:6000] = bytes(4000)
    broken.write_bytes(data)
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            DecodeVideo("x", 4, "v", random_offset=False)({"x": path})
            with pytest.raises(DecodeError):
                DecodeVideo("x", 72, "v", random_offset=False)({"x": str(broken)})
        assert len(os.listdir("/proc/self/fd")) == before
        # and no frame waits for a collection of garbage
        assert not [each for each in gc.get_objects() if type(each).__name__ in ("VideoFrame", "InputContainer")]
    finally:
        gc.enable()
