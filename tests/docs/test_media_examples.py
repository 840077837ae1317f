"""The examples about images and latents run as programs of their own would."""

from __future__ import annotations


def test_images_with_captions(run):
    out = run("images_with_captions.py")
    assert out.count("(4, 3, 128, 128) ") == 3
    out = run("images_with_captions.py", "photos", "--resolution", "32", "--batch-size", "64")
    assert out.startswith("(64, 3, 32, 32) ") and out.rstrip().endswith("ground")


def test_image_to_image(run):
    out = run("image_to_image.py")
    losses = [float(line.rpartition(" ")[2]) for line in out.splitlines()]
    assert len(losses) == 4 and losses[-1] < losses[0]


def test_latents(run):
    out = run("latents.py").splitlines()
    assert len(out) == 2 and out[0] != out[1]
    assert "latents (8, 3, 8, 12), embeddings (8, 8, 16)" in out[0]


def test_lora_from_a_folder_on_s3(run):
    options = ("s3://my-bucket/photos", "--checkpoint", "lora.pt", "--cache", "cache")
    first = run("lora_from_a_folder_on_s3.py", *options, "--steps", "20")
    assert "step 20: loss" in first and "128 files fetched" in first  # 64 pictures and captions, once
    second = run("lora_from_a_folder_on_s3.py", *options, "--steps", "24")
    assert "going on at step 20" in second and "step 24: loss" in second and "\n0 files fetched" in second
