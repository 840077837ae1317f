"""DecodeVideo and its neighbours: options, policies, times in and out, sizes. Codecs are in tests/integration."""

from __future__ import annotations

import io
import os
import pickle
import sys
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

from sds.errors import DecodeError, OptionError, TransformError
from sds.transforms import (
    ConvertVideoToByteTensor,
    DecodeVideo,
    DecodeVideoAndAudio,
    NormalizeFrames,
    ResizeVideo,
    UndistortFrames,
    presets,
)

RATE, COUNT = 10, 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """2 s at 10 frames a second, 32 x 48; frame k is grey of level 10 + 10 k."""
    name = tmp_path_factory.mktemp("video") / "a.mp4"
    name.write_bytes(encode((32, 48)))
    return str(name)


def encode(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=RATE)
        stream.height, stream.width = size
        stream.pix_fmt, stream.gop_size, stream.bit_rate = "yuv420p", 5, 4_000_000
        for number in range(COUNT):
            pixels = np.full((*size, 3), 10 + 10 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def numbers(video: torch.Tensor) -> list[int]:
    """Which frame each is, by its grey; -1 for black."""
    return [round((float(frame.float().mean()) - 10) / 10) for frame in video]


def decode(source: object, num_frames: int, seed: int = 0, **options: object) -> tuple[list[int], list[float]]:
    transform = DecodeVideo("x", num_frames, "v", frame_timestamps_output_field="t", **options)
    sample = transform({"x": source, "__random_seed__": seed, "start": 0.5, "end": "1.2", "times": [0.3, 1.9, 0.3]})
    assert sample["v"].dtype == torch.uint8 and sample["v"].shape[1:] == (3, 32, 48)
    assert sample["t"].dtype == torch.float64
    return numbers(sample["v"]), sample["t"].tolist()


def test_from_a_path_and_from_bytes(path: str) -> None:
    for source in (path, Path(path), Path(path).read_bytes(), bytearray(Path(path).read_bytes())):
        found, times = decode(source, COUNT, random_offset=False)
        assert found == list(range(COUNT)) and times == pytest.approx([k / 10 for k in range(COUNT)])


def test_random_clips_are_consecutive_and_belong_to_the_sample(path: str) -> None:
    starts = set()
    for seed in range(30):
        found, times = decode(path, 8, seed)
        assert found == list(range(found[0], found[0] + 8)) and times[0] == pytest.approx(found[0] / 10)
        assert (found, times) == decode(path, 8, seed)
        starts.add(found[0])
    assert starts <= set(range(13)) and len(starts) > 8


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"framerate": 5}, [0, 2, 4, 6]),
        ({"framerate": 20}, [0, 0, 1, 1]),
        ({"speedup_factor": 3}, [0, 3, 6, 9]),
        ({"framerate": 5, "speedup_factor": 2.0}, [0, 4, 8, 12]),
        ({"spread_frames": True}, [2, 7, 12, 17]),
        ({"crop_interval": (1.0, 2.0)}, [10, 11, 12, 13]),
        ({"crop_interval": (0.98, 2.0), "framerate": 10}, [10, 11, 12, 13]),
        ({"crop_interval_fields": ("start", "end")}, [5, 6, 7, 8]),
        ({"crop_interval": (0.0, 0.2), "crop_interval_type": "soft"}, [0, 1, 2, 3]),
        ({"crop_interval": (1.9, 2.0), "crop_interval_type": "soft"}, [16, 17, 18, 19]),
        ({"crop_interval": (0.9, 1.1), "crop_interval_type": "soft"}, [8, 9, 10, 11]),
    ],
)
def test_which_frames(path: str, options, expected) -> None:
    assert decode(path, 4, random_offset=False, **options)[0] == expected


def test_times_of_another_video(path: str) -> None:
    found, times = decode(path, 8, frame_timestamps_input_field="times")
    assert found == [3, 19, 3] and times == pytest.approx([0.3, 1.9, 0.3])
    with pytest.raises(DecodeError, match="ends after 2"):
        DecodeVideo("x", 1, frame_timestamps_input_field="t")({"x": path, "t": torch.tensor([0.0, 5.0])})
    for bad in (None, [], ["a"], [-1.0], float("nan")):
        with pytest.raises(TransformError, match="no times"):
            DecodeVideo("x", 1, frame_timestamps_input_field="t")({"x": path, "t": bad})


def test_shorter_videos_by_policy(path: str) -> None:
    short = {"random_offset": False, "crop_interval": (1.7, 2.0)}
    with pytest.raises(DecodeError, match=r"3 of the 8 frames.*shorter_videos"):
        decode(path, 8, **short)
    assert decode(path, 8, shorter_videos="repeat_last", **short)[0] == [17, 18, 19, 19, 19, 19, 19, 19]
    assert decode(path, 8, shorter_videos="loop", **short)[0] == [17, 18, 19, 17, 18, 19, 17, 18]
    found, times = decode(path, 5, shorter_videos="pad", **short)
    assert found == [17, 18, 19, -1, -1] and times[3:] == [-1, -1]
    assert decode(path, 8, shorter_videos="fewer", **short)[0] == [17, 18, 19]
    assert decode(path, 8, allow_shorter_videos=True, **short)[0] == [17, 18, 19]
    assert decode(path, 30, shorter_videos="repeat_last")[0] == [*range(20), *[19] * 10]


def test_limits(path: str) -> None:
    for options, reason in (
        ({"max_pixels": 1000}, "max_pixels=1000"),
        ({"max_decoded_frames": 3}, "max_decoded_frames=3"),
        ({"frame_seek_timeout_sec": 1e-9}, "takes longer"),
        ({"crop_interval": (7.0, 8.0)}, "past its end"),
    ):
        with pytest.raises(DecodeError, match=reason) as caught:
            decode(path, 8, **options)
        assert caught.value.stage == "decode" and caught.value.url == path


def test_what_is_no_video_is_a_decode_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty.mp4"
    empty.touch()
    text = tmp_path / "text.mp4"
    text.write_text("this is no video " * 100)
    listing = tmp_path / "list.m3u8"
    listing.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for source in (empty, text, listing, pipe, tmp_path, tmp_path / "absent", "concat:a|b", b"", b"x" * 99, 7, None):
        with pytest.raises(DecodeError, match="video cannot be decoded"):
            DecodeVideo("x", 1)({"x": source, "__random_seed__": 0})
    with pytest.raises(TransformError, match="field is missing"):
        DecodeVideo("x", 1)({})
    with pytest.raises(TransformError, match="random seed"):
        DecodeVideo("x", 1)({"x": str(text)})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"num_frames": 0}, "num_frames"),
        ({"framerate": 0}, "framerate"),
        ({"framerate": float("nan")}, "framerate"),
        ({"speedup_factor": -1}, "speedup_factor"),
        ({"crop_interval": (2, 1)}, "crop_interval"),
        ({"crop_interval": 3}, "crop_interval"),
        ({"crop_interval": (0, 1), "crop_interval_fields": ("a", "b")}, "crop_interval"),
        ({"crop_interval_fields": "ab"}, "crop_interval_fields"),
        ({"crop_interval_type": "firm"}, "crop_interval_type"),
        ({"shorter_videos": "cry"}, "shorter_videos"),
        ({"min_size": 3}, "min_size"),
        ({"num_threads": -1}, "num_threads"),
        ({"thread_type": "MANY"}, "thread_type"),
        ({"max_pixels": 0}, "max_pixels"),
        ({"frame_seek_timeout_sec": 0}, "frame_seek_timeout_sec"),
    ],
)
def test_options_are_checked_by_name(options, name) -> None:
    with pytest.raises(OptionError, match=name):
        DecodeVideo("x", **{"num_frames": 1, **options})


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(OptionError, match=r"av.*\n.*streaming-dataset\[video\]"):
        DecodeVideo("x", 1)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(OptionError, match=r"streaming-dataset\[audio\]"):
        DecodeVideoAndAudio("x", "v", "a", "sr", 1)


def test_pickles_and_prints_as_written() -> None:
    transform = DecodeVideo("x", 16, framerate=8, crop_interval=(1, 2), min_size=(64, 64))
    assert repr(transform) == (
        "DecodeVideo(input_field='x', num_frames=16, output_field='x', framerate=8.0, crop_interval=(1.0, 2.0), "
        "min_size=(64, 64))"
    )
    for each in (transform, ResizeVideo("x", resolution=(4, 4)), UndistortFrames("x", ("h", "w"))):
        assert repr(pickle.loads(pickle.dumps(each))) == repr(each)


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_video_preset(path: str) -> None:
    chain = presets.create_standard_video_pipeline("x", 4, (16, 16))
    sample = {"x": path, "__random_seed__": 3}
    for transform in chain:
        sample = transform(sample)
    assert sample["video"].shape == (4, 3, 16, 16) and sample["video"].dtype == torch.uint8
    assert sample["video"].is_contiguous() and sample["x"] == path
    first = numbers(sample["video"])[0]
    assert numbers(sample["video"]) == list(range(first, first + 4))
    chain = presets.create_standard_video_pipeline(
        "x", 4, (16, 16), {"min_size": None}, normalize=True, output_field="v"
    )
    full = {"x": path, "__random_seed__": 3}
    for transform in chain:
        full = transform(full)
    expected = NormalizeFrames("video")(dict(sample))["video"]
    assert full["v"].dtype == torch.float32 and (full["v"] - expected).abs().max() < 0.03
    with pytest.raises(OptionError, match="decode_kwargs"):
        presets.create_standard_video_pipeline("x", 4, (16, 16), {"quick": True})
    with pytest.raises(OptionError, match="resize_kwargs"):
        presets.create_standard_video_pipeline("x", 4, (16, 16), resize_kwargs={"quick": True})


def test_portrait_videos_may_turn_the_target(tmp_path: Path, path: str) -> None:
    upright = tmp_path / "upright.mp4"
    upright.write_bytes(encode((64, 32)))
    chain = presets.create_standard_video_pipeline("x", 2, (12, 24), resize_kwargs={"allow_vertical": True})
    for source, shape in ((str(upright), (2, 3, 24, 12)), (path, (2, 3, 12, 24))):
        sample = {"x": source, "__random_seed__": 3}
        for transform in chain:
            sample = transform(sample)
        assert sample["video"].shape == shape


def test_scaling_while_decoding_covers_the_size() -> None:
    data = encode((96, 160))
    for least, shape in (((30, 30), (30, 50)), ((96, 10), (96, 160)), ((200, 200), (96, 160)), ((10, 80), (48, 80))):
        video = DecodeVideo("x", 2, "v", min_size=least, random_offset=False)({"x": data})["v"]
        assert video.shape == (2, 3, *shape) and numbers(video) == [0, 1]


def test_resize_takes_tensors_and_lists() -> None:
    clip = torch.randint(0, 255, (3, 3, 20, 30), dtype=torch.uint8)
    images = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in clip]
    expected = ResizeVideo("x", "y", resolution=(10, 10))({"x": clip})["y"]
    assert expected.shape == (3, 3, 10, 10) and expected.is_contiguous()
    assert torch.equal(ResizeVideo("x", resolution=(10, 10))({"x": images})["x"], expected)
    assert torch.equal(ConvertVideoToByteTensor("x")({"x": images})["x"], clip)
    grey = ConvertVideoToByteTensor("x")({"x": clip[:, :1]})["x"]
    assert torch.equal(grey, clip[:, :1].expand(-1, 3, -1, -1))
    view = clip.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert ConvertVideoToByteTensor("x")({"x": view})["x"].is_contiguous()
    cut = [
        ResizeVideo("x", resolution=(8, 8), fit="random_crop")({"x": clip, "__random_seed__": 4})["x"] for _ in range(2)
    ]
    assert torch.equal(*cut)
    for bad in (None, clip[0], [], torch.zeros(0, 3, 2, 2)):
        for transform in (ResizeVideo("x", resolution=(4, 4)), ConvertVideoToByteTensor("x")):
            with pytest.raises(TransformError, match="not a clip"):
                transform({"x": bad})
    with pytest.raises(TransformError, match="differ in shape"):
        ConvertVideoToByteTensor("x")({"x": [images[0], images[1].resize((5, 5))]})


def test_undistort() -> None:
    clip = torch.zeros(2, 3, 40, 40, dtype=torch.uint8)
    undistort = UndistortFrames("x", ("h", "w"))
    assert undistort({"x": clip, "h": 720, "w": 1280})["x"].shape == (2, 3, 22, 40)
    assert undistort({"x": clip, "h": "100", "w": 100.4})["x"] is clip
    assert undistort({"x": clip, "h": None, "w": 100})["x"] is clip
    assert undistort({"x": clip})["x"] is clip
    for bad in (0, "wide", -3):
        with pytest.raises(TransformError):
            undistort({"x": clip, "h": 100, "w": bad})
    chain = presets.create_standard_video_pipeline("x", 2, (8, 8), original_resolution_fields=("h", "w"))
    assert [type(each).__name__ for each in chain] == [
        "DecodeVideo", "UndistortFrames", "ResizeVideo", "ConvertVideoToByteTensor",
    ]  # fmt: skip
