"""The ready-made chains, their names, and what every transform promises: it pickles and prints as it was written."""

from __future__ import annotations

import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import save as save_safetensors

from sds import transforms
from sds.errors import DecodeError, OptionError, TransformError
from sds.testing.media import make_images
from sds.transforms import presets

SHORT = {
    "DecodeImageTransform": "DecodeImage",
    "ResizeImageTransform": "ResizeImage",
    "ConvertImageToByteTensorTransform": "ConvertImageToByteTensor",
    "ReshapeImageAsVideoTransform": "ReshapeImageAsVideo",
    "NormalizeFramesTransform": "NormalizeFrames",
    "DecodeVideoTransform": "DecodeVideo",
    "ResizeVideoTransform": "ResizeVideo",
    "ConvertVideoToByteTensorTransform": "ConvertVideoToByteTensor",
    "UndistortFramesTransform": "UndistortFrames",
    "DecodeAudioTransform": "DecodeAudio",
    "ConvertAudioToFloatTensorTransform": "ConvertAudioToFloatTensor",
    "AverageAudioTransform": "AverageAudio",
    "ResizeAudioTransform": "ResizeAudio",
    "NormalizeAudioTransform": "NormalizeAudio",
    "DecodeVideoAndAudioTransform": "DecodeVideoAndAudio",
    "LoadTextTransform": "LoadText",
    "LoadLatentFromDiskTransform": "LoadTensors",
    "SampleImageVAELatentTransform": "SampleImageLatent",
    "SampleVideoVAELatentTransform": "SampleVideoLatent",
    "TextEmbLoaderTransform": "LoadTextEmbedding",
    "TextEmbSamplingTransform": "SampleTextEmbedding",
    "LoadJsonMetadataTransform": "LoadJson",
    "ExtractMetadataSubfieldTransform": "ExtractSubfield",
    "OneHotEncodeTransform": "OneHotEncode",
    "ClassNameToIDTransform": "ClassNameToID",
    "LoadFromDiskTransform": "LoadFromDisk",
    "AddConstantFieldTransform": "AddConstantField",
    "AugmentNewFieldsTransform": "AddFields",
    "ConvertDTypeTransform": "ConvertDType",
    "EnsureFieldsTransform": "EnsureFields",
    "FieldsFilteringTransform": "FilterFields",
    "FindNonDummyValueTransform": "FindNonDummyValue",
    "GatherFieldsTransform": "GatherFields",
    "IdentityTransform": "Identity",
    "MergeDictFieldTransform": "MergeDictField",
    "NameToIndexTransform": "MapValue",
    "RenameFieldsTransform": "RenameFields",
}

PRESETS = [
    "create_standard_image_pipeline",
    "create_standard_video_pipeline",
    "create_standard_audio_pipeline",
    "create_standard_joint_video_audio_pipeline",
    "create_standard_text_pipeline",
    "create_standard_image_latent_pipeline",
    "create_standard_video_latent_pipeline",
    "create_standard_metadata_pipeline",
]


def run(chain, sample):
    for transform in chain:
        sample = transform(sample)
    return sample


def test_long_names_are_the_same_objects() -> None:
    for long, short in SHORT.items():
        assert getattr(presets, long) is getattr(transforms, short)
    assert {*SHORT, *PRESETS} <= set(presets.__all__)


def test_image_preset(tmp_path: Path) -> None:
    record = make_images(tmp_path, 1, (375, 500))[0]
    chain = presets.create_standard_image_pipeline("path", resolution=(256, 192))
    assert isinstance(chain, list)
    sample = run([*chain, presets.EnsureFieldsTransform(["image", "id"], drop_others=True)], dict(record))
    assert list(sample) == ["image", "id"]
    image = sample["image"]
    assert image.shape == (3, 256, 192) and image.dtype == torch.uint8 and image.is_contiguous()
    kept = run(chain, dict(record))
    assert kept["path"] == record["path"] and torch.equal(kept["image"], image)


@pytest.mark.parametrize("size", [(512, 640), (768, 1024), (1024, 1100)])
def test_a_reduced_jpeg_is_within_one_level_of_the_full_one(size, tmp_path: Path) -> None:
    chain = presets.create_standard_image_pipeline("path", (256, 256))
    for record in make_images(tmp_path, 2, size, grain=0.8):
        image = run(chain, dict(record))["image"]
        with Image.open(record["path"]) as source:
            expected = ImageOps.fit(source, (256, 256), Image.Resampling.BILINEAR)
        assert np.abs(image.permute(1, 2, 0).numpy() - np.array(expected).astype(int)).mean() <= 1


def test_images_are_made_in_the_calling_thread_alone(tmp_path: Path) -> None:
    record = make_images(tmp_path, 1, (768, 1024))[0]
    chain = presets.create_standard_image_pipeline("path", (256, 256), normalize=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        run(chain, dict(record))
        process, thread = time.process_time(), time.thread_time()
        for _ in range(30):
            run(chain, dict(record))
        process, thread = time.process_time() - process, time.thread_time() - thread
    finally:
        torch.set_num_threads(threads)
    assert process - thread < 0.1 * thread


def test_image_preset_in_place_normalised_and_as_video(tmp_path: Path) -> None:
    path = make_images(tmp_path, 1, (60, 80), format="png")[0]["path"]
    sample = run(presets.create_standard_image_pipeline("x", (32, 32), output_field="x"), {"x": path})
    assert list(sample) == ["x"] and sample["x"].shape == (3, 32, 32)
    sample = run(presets.create_standard_image_pipeline("x", (32, 32), True, normalize=True), {"x": path})
    assert set(sample) == {"x", "video"}
    assert sample["video"].shape == (1, 3, 32, 32) and sample["video"].dtype == torch.float32
    assert -1 <= sample["video"].min() < sample["video"].max() <= 1
    chain = presets.create_standard_image_pipeline(
        "x", (16, 64), resize_kwargs={"crop_before_resize": False, "interpolation_mode": "bicubic"}
    )
    assert run(chain, {"x": path})["image"].shape == (3, 16, 64)


def test_image_preset_checks_its_options() -> None:
    with pytest.raises(OptionError, match=r"resize_kwargs.*sharpen"):
        presets.create_standard_image_pipeline("x", (4, 4), resize_kwargs={"sharpen": True})
    with pytest.raises(OptionError, match="resize_kwargs"):
        presets.create_standard_image_pipeline("x", (4, 4), resize_kwargs={"resolution": (5, 5)})
    with pytest.raises(OptionError, match="resolution"):
        presets.create_standard_image_pipeline("x", 256)
    with pytest.raises(OptionError, match="image_field"):
        presets.create_standard_image_pipeline("", (4, 4))


def test_text_preset(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffEin Bär,\r\nzwei Bären\r".encode())
    sample = run(presets.create_standard_text_pipeline("txt"), {"txt": str(path)})
    assert sample == {"txt": str(path), "text": "Ein Bär,\nzwei Bären\n"}
    assert run(presets.create_standard_text_pipeline("txt", "txt", strip=True), {"txt": path})["txt"][-1] == "n"


def test_text_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"caf\xe9")
    with pytest.raises(DecodeError, match="0xe9") as caught:
        transforms.LoadText("txt")({"txt": path, "__sample_key__": 5})
    assert caught.value.url == str(path) and caught.value.key == "5"
    assert transforms.LoadText("txt", encoding="latin-1")({"txt": path})["txt"] == "café"
    assert transforms.LoadText("txt")({"txt": b""})["txt"] == ""
    with pytest.raises(DecodeError, match="more than"):
        transforms.LoadText("txt", max_bytes=3)({"txt": path})
    with pytest.raises(DecodeError):
        transforms.LoadText("txt")({"txt": tmp_path / "absent.txt"})
    for encoding in ("klingon", "base64", None):
        with pytest.raises(OptionError, match="encoding"):
            transforms.LoadText("txt", encoding=encoding)


def test_load_from_disk(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    load = transforms.LoadFromDisk(["a", "b"])
    assert load({"a": tmp_path / "a", "b": b"as it is"}) == {"a": b"abc", "b": b"as it is"}
    with pytest.raises(DecodeError):
        load({"a": tmp_path / "none", "b": b""})
    (tmp_path / "a").write_bytes(b"")
    assert load({"a": tmp_path / "a", "b": b""})["a"] == b""


def test_limits_that_are_none_cost_nothing(tmp_path) -> None:
    """An empty file takes no memory for what it might have had; and a limit may be larger than any file."""
    (tmp_path / "empty").touch()
    path = str(tmp_path / "empty")
    assert transforms.LoadFromDisk(["a"], max_bytes=10**18)({"a": path})["a"] == b""
    Image.new("RGB", (4, 3)).save(tmp_path / "image.png")
    decode = transforms.DecodeImage("a", max_pixels=2**63 - 1)
    assert decode({"a": str(tmp_path / "image.png")})["a"].shape == (3, 3, 4)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux")
def test_files_that_tell_no_size_are_read() -> None:
    found = transforms.LoadFromDisk(["a"])({"a": "/proc/self/status"})["a"]
    assert found.startswith(b"Name:")


EXAMPLES = [
    transforms.DecodeImage("a", "b", min_size=(4, 5), background=None),
    transforms.ResizeImage("a", resolution=(4, 5), crop_before_resize=False, random_resize={(4, 4): 1.0}),
    transforms.FlipImage("a", probability=0.25),
    transforms.ConvertImageToByteTensor("a"),
    transforms.ReshapeImageAsVideo("a", "b"),
    transforms.NormalizeFrames("a"),
    transforms.DecodeVideo("a", 16, "b", framerate=24, crop_interval=(1, 2), min_size=(4, 5)),
    transforms.ResizeVideo("a", resolution=(4, 5), allow_vertical=True, fit="pad"),
    transforms.ConvertVideoToByteTensor("a"),
    transforms.UndistortFrames("a", ("h", "w")),
    transforms.DecodeAudio("a", "b", "rate", duration=2.5, clip_offset_strategy="loudest"),
    transforms.ConvertAudioToFloatTensor("a"),
    transforms.AverageAudio("a"),
    transforms.ResizeAudio("a", "rate", 16_000, duration=2.5, quality="VHQ"),
    transforms.NormalizeAudio("a", measure="lufs", target_db=-30.0, sample_rate=16_000),
    transforms.DecodeVideoAndAudio("a", "v", "s", "rate", 8, decode_kwargs={"framerate": 12}),
    transforms.LoadText("a", "b", encoding="latin-1"),
    transforms.LoadTensors("a", allow_pickle=True, dtype=torch.float16),
    transforms.SampleImageLatent("a", std_field="sigma"),
    transforms.SampleVideoLatent("a", "b", framerate=8, random_offset=True, num_frames=4),
    transforms.LoadTextEmbedding("a", 77, mask_field="mask"),
    transforms.SampleTextEmbedding(["a", "b"], ["c", "d"], [0.5, 0.5], "text", "emb"),
    transforms.LoadJson("a", "meta"),
    transforms.ExtractSubfield("a.b", "c"),
    transforms.OneHotEncode("a", 10),
    transforms.ClassNameToID("a", {"cat": 0}),
    transforms.ChooseField(["a", "b"], "c", probs=[1, 2], companions={"t": ["x", "y"]}, choice_field="which"),
    transforms.LoadFromDisk(["a"]),
    transforms.AddConstantField("a", [1]),
    transforms.AddFields({"a": 1}),
    transforms.ConvertDType("a"),
    transforms.EnsureFields(["a"], drop_others=True),
    transforms.FilterFields(["a"]),
    transforms.FindNonDummyValue(["a"], "b"),
    transforms.GatherFields(["a"], "b"),
    transforms.Identity(),
    transforms.MapValue("a", {"x": 1}),
    transforms.MergeDictField("a"),
    transforms.RenameFields({"a": "b"}),
]


def facts(transform) -> dict[str, object]:
    """All that it holds; a transform inside another by how it prints."""
    return {k: repr(v) if isinstance(v, transforms.SampleTransform) else v for k, v in vars(transform).items()}


@pytest.mark.parametrize("transform", EXAMPLES, ids=lambda t: type(t).__name__)
def test_every_transform_pickles_and_prints_as_it_was_written(transform) -> None:
    copy = pickle.loads(pickle.dumps(transform))
    assert facts(copy) == facts(transform)
    assert repr(copy) == repr(transform)
    names = {name: getattr(transforms, name) for name in transforms.__all__}
    if "class" not in repr(transform):
        assert facts(eval(repr(transform), {**names, "torch": torch})) == facts(transform)


def test_every_transform_is_among_the_examples() -> None:
    classes = {
        v for v in vars(transforms).values() if isinstance(v, type) and issubclass(v, transforms.SampleTransform)
    }
    assert classes - {transforms.SampleTransform} == {type(example) for example in EXAMPLES}


def test_stages() -> None:
    assert {t.stage for t in EXAMPLES} == {"decode", "transform"}
    for transform in EXAMPLES:  # whoever opens a file decodes
        opens = type(transform).__name__.startswith(("Decode", "Load"))
        assert transform.stage == ("decode" if opens else "transform"), transform


def moments(*shape: int) -> bytes:
    return save_safetensors(
        {"mean": torch.ones(shape), "logvar": torch.zeros(shape), "input_framerate": torch.tensor(24)}
    )


def test_latent_presets() -> None:
    def seeded(chain, data, seed=3):
        return run(chain, {"file": data, "__random_seed__": seed})

    chain = presets.create_standard_image_latent_pipeline("file")
    sample = seeded(chain, moments(4, 8, 8))
    assert sample["image"].shape == (4, 8, 8) and sample["image"].dtype == torch.float32
    assert torch.equal(sample["image"], seeded(chain, moments(4, 8, 8))["image"])
    sample = seeded(presets.create_standard_image_latent_pipeline("file", True), moments(4, 8, 8))
    assert sample["video"].shape == (1, 4, 8, 8) and "image" not in sample
    for framerate, frames in ((None, 6), (24.0, 6), (8, 2)):
        sample = seeded(presets.create_standard_video_latent_pipeline("file", framerate), moments(6, 4, 8, 8))
        assert sample["video"].shape == (frames, 4, 8, 8)
    pickled = pickle.dumps({"mean": np.ones((4, 8, 8)), "logvar": np.zeros((4, 8, 8)), "input_shape": (3, 64, 64)})
    assert seeded(presets.create_standard_image_latent_pipeline("file", allow_pickle=True), pickled)["image"].ndim == 3
    with pytest.raises(DecodeError, match="allow_pickle"):
        seeded(chain, pickled)


def test_image_preset_for_portraits_and_drawn_sizes(tmp_path: Path) -> None:
    kwargs = {"allow_vertical": True, "fit": "random_crop", "interpolation_mode": "lanczos"}
    chain = presets.create_standard_image_pipeline("path", (64, 96), resize_kwargs=kwargs)
    for size, shape in (((300, 200), (96, 64)), ((200, 300), (64, 96))):
        record = make_images(tmp_path, 1, size)[0]
        assert run(chain, {**record, "__random_seed__": 1})["image"].shape == (3, *shape)
    chain = presets.create_standard_image_pipeline("path", (8, 8), resize_kwargs={"random_resize": {(100, 150): 1}})
    record = make_images(tmp_path, 1, (200, 300))[0]
    assert run(chain, {**record, "__random_seed__": 1})["image"].shape == (3, 100, 150)


def test_rng_belongs_to_the_sample() -> None:
    def draw(seed, *purpose):
        return transforms.rng({"__random_seed__": seed}, *purpose).random(4).tolist()

    assert draw(1) == draw(1) == draw(np.int64(1)) == draw(torch.tensor(1))
    assert len({tuple(draw(*arguments)) for arguments in ((1,), (2,), (1, "flip"), (1, "crop"))}) == 4
    for sample in ({}, {"__random_seed__": None}, {"__random_seed__": "x"}):
        with pytest.raises(TransformError, match="__random_seed__"):
            transforms.rng(sample)
