"""Latents drawn from their moments: the right distribution, the same draw for the same sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sds.errors import OptionError, TransformError
from sds.transforms import SampleImageLatent, SampleVideoLatent


def moments(*shape: int, logvar: float = 0.0) -> dict[str, torch.Tensor]:
    mean = torch.arange(np.prod(shape), dtype=torch.float32).reshape(shape)
    return {"mean": mean, "logvar": torch.full(shape, logvar)}


def draw(transform, stored, seed=7) -> torch.Tensor:
    return transform({"latent": stored, "__random_seed__": seed})["latent"]


def test_a_latent_is_drawn_from_its_moments() -> None:
    stored = {"mean": torch.full((4, 64, 64), 3.0), "logvar": torch.full((4, 64, 64), float(np.log(0.25)))}
    latent = draw(SampleImageLatent("latent"), stored)
    assert latent.shape == (4, 64, 64) and latent.dtype == torch.float32
    assert abs(latent.mean() - 3.0) < 0.02 and abs(latent.std() - 0.5) < 0.02


def test_the_draw_belongs_to_the_sample() -> None:
    sample_image = SampleImageLatent("latent")
    first, again, other = (draw(sample_image, moments(4, 8, 8), seed) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    two = SampleImageLatent("other")({"other": moments(4, 8, 8), "__random_seed__": 1})["other"]
    assert not torch.equal(first, two)  # two latents of a sample are independent
    with pytest.raises(TransformError, match="random seed"):
        sample_image({"latent": moments(4, 8, 8)})


def test_std_logvar_and_moments_say_the_same() -> None:
    plain = moments(4, 8, 8, logvar=-1.0)
    std = {"mean": plain["mean"].half(), "std": torch.exp(plain["logvar"] / 2)}
    both = {"moments": torch.cat([plain["mean"], plain["logvar"]])}  # [2c, h, w]
    arrays = {"mu": plain["mean"].numpy(), "lv": plain["logvar"].numpy()}
    expected = draw(SampleImageLatent("latent"), plain)
    for found in (
        draw(SampleImageLatent("latent"), std),
        draw(SampleImageLatent("latent"), both),
        draw(SampleImageLatent("latent", mean_field="mu", logvar_field="lv"), arrays),
    ):
        torch.testing.assert_close(found, expected)


def test_extreme_variances_stay_finite() -> None:
    for logvar in (-1e9, 1e9, float("inf")):
        assert torch.isfinite(draw(SampleImageLatent("latent"), moments(1, 4, 4, logvar=logvar))).all()


def test_all_frames_of_a_video() -> None:
    stored = moments(6, 4, 2, 2, logvar=-1e9)
    latent = draw(SampleVideoLatent("latent"), stored)
    assert latent.shape == (6, 4, 2, 2)
    torch.testing.assert_close(latent, stored["mean"], atol=1e-4, rtol=0)
    assert draw(SampleVideoLatent("latent", random_offset=True), stored).shape == (6, 4, 2, 2)


def starts(transform, stored, num_seeds=40) -> set[int]:
    size = stored["mean"][0].numel()
    return {round(float(draw(transform, stored, seed).flatten()[0]) / size) for seed in range(num_seeds)}


def test_another_framerate_leaves_frames_out() -> None:
    stored = {**moments(9, 1, 2, 2, logvar=-1e9), "input_framerate": 24.0}
    latent = draw(SampleVideoLatent("latent", framerate=8), stored)
    torch.testing.assert_close(latent, stored["mean"][::3], atol=1e-4, rtol=0)
    assert starts(SampleVideoLatent("latent", framerate=8, random_offset=True), stored) == {0, 1, 2}
    for rate in (torch.tensor(24.0), np.float32(24), "24"):
        assert len(draw(SampleVideoLatent("latent", framerate=12), {**stored, "input_framerate": rate})) == 4
    for rate in (None, 20, 4, "fast"):
        with pytest.raises(TransformError, match=r"input_framerate|whole multiple"):
            draw(SampleVideoLatent("latent", framerate=8), {**stored, "input_framerate": rate})


def test_a_number_of_frames() -> None:
    stored = {**moments(9, 1, 2, 2, logvar=-1e9), "input_framerate": 24.0}
    take = SampleVideoLatent("latent", num_frames=7, random_offset=True)
    assert draw(take, stored).shape == (7, 1, 2, 2) and starts(take, stored) == {0, 1, 2}
    assert starts(SampleVideoLatent("latent", num_frames=7), stored) == {0}
    with pytest.raises(TransformError, match="9 frames"):
        draw(SampleVideoLatent("latent", num_frames=4, framerate=8), stored)


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (None, "NoneType"),
        (torch.zeros(4, 8, 8), "Tensor"),
        ({}, "'moments'"),
        ({"mean": torch.zeros(4, 8, 8)}, "'std'"),
        ({"mean": torch.zeros(4, 8, 8), "logvar": torch.zeros(4, 8, 7)}, "two shapes"),
        ({"mean": torch.zeros(1, 4, 8, 8), "logvar": torch.zeros(1, 4, 8, 8)}, r"\[c, h, w\]"),
        ({"mean": "text", "logvar": torch.zeros(4, 8, 8)}, "numbers"),
        ({"moments": torch.zeros(5, 8, 8)}, "odd"),
    ],
)
def test_what_is_no_latent_is_a_transform_error(stored, reason) -> None:
    with pytest.raises(TransformError, match=reason):
        draw(SampleImageLatent("latent"), stored)


def test_options_are_checked_by_name() -> None:
    for options, name in (
        ({"framerate": 0}, "framerate"),
        ({"framerate": "x"}, "framerate"),
        ({"num_frames": 0}, "num"),
    ):
        with pytest.raises(OptionError, match=name):
            SampleVideoLatent("latent", **options)
    with pytest.raises(OptionError, match="mean_field"):
        SampleImageLatent("latent", mean_field="")
