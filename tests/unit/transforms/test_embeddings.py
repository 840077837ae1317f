"""Text embeddings: one length for all, and one of several chosen by weight."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save

from sds.errors import DecodeError, OptionError, TransformError
from sds.transforms import ChooseField, LoadTextEmbedding, SampleTextEmbedding

TOKENS = torch.arange(1, 13, dtype=torch.float32).reshape(4, 3)  # [n, d]


def load(data: object, num_tokens: int, **options: object):
    return LoadTextEmbedding("emb", num_tokens, **options)({"emb": data})


def npy(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_tokens_are_cut_or_filled_up() -> None:
    for data in (npy(TOKENS.numpy()), npy(TOKENS[None].numpy()), save({"embeddings": TOKENS})):
        assert torch.equal(load(data, 4)["emb"], TOKENS)
        assert torch.equal(load(data, 2)["emb"], TOKENS[:2])
        found = load(data, 6, mask_field="mask")
        assert torch.equal(found["emb"], torch.cat([TOKENS, torch.zeros(2, 3)]))
        assert found["mask"].tolist() == [True] * 4 + [False] * 2


def test_rows_after_the_last_token_are_zeros() -> None:
    data = save({"embeddings": TOKENS.half(), "eot_location": torch.tensor(1)})
    found = load(data, 4, mask_field="mask")
    assert (
        found["emb"].dtype == torch.float16
        and found["emb"][2:].eq(0).all()
        and torch.equal(found["emb"][:2], TOKENS[:2].half())
    )
    assert found["mask"].tolist() == [True, True, False, False]


def test_pickles_of_the_predecessor() -> None:
    data = pickle.dumps({"embeddings": TOKENS.numpy(), "eot_location": np.int64(2)})
    with pytest.raises(DecodeError, match="allow_pickle"):
        load(data, 4)
    assert load(data, 4, allow_pickle=True)["emb"][3].eq(0).all()


def test_missing_ones_are_none_when_allowed() -> None:
    for sample in ({}, {"emb": None}, {"emb": ""}):
        found = LoadTextEmbedding("emb", 4, "out", True, mask_field="mask")(dict(sample))
        assert found["out"] is None and found["mask"] is None
    with pytest.raises(TransformError, match="'emb'"):
        LoadTextEmbedding("emb", 4)({})


def test_other_shapes_and_names_are_decode_errors() -> None:
    for data in (npy(np.zeros(3)), npy(np.zeros((2, 2, 2))), npy(np.zeros((2, 0))), save({"other": TOKENS})):
        with pytest.raises(DecodeError):
            load(data, 4)
    with pytest.raises(DecodeError, match="last token"):
        load(save({"embeddings": TOKENS, "eot_location": torch.tensor(-2)}), 4)


FIELDS = {"input_text_fields": ["a", "b"], "input_text_emb_fields": ["ea", "eb"], "output_text_field": "caption"}


def test_one_caption_is_taken_with_its_embedding() -> None:
    take = SampleTextEmbedding(**FIELDS, probabilities=[1, 3], output_text_emb_field="emb")
    taken = []
    for seed in range(400):
        sample = take({"a": "short", "b": "long", "ea": 1, "eb": 2, "id": 5, "__random_seed__": seed})
        assert set(sample) == {"caption", "emb", "id", "__random_seed__"}
        assert (sample["caption"], sample["emb"]) in (("short", 1), ("long", 2))
        taken.append(sample["emb"])
    assert 70 < taken.count(1) < 130
    kept = SampleTextEmbedding(**FIELDS, probabilities=[1, 0], output_text_emb_field="emb", cleanup=False)
    assert kept({"a": "short", "b": "long", "ea": 1, "eb": 2, "__random_seed__": 1})["b"] == "long"


def test_missing_embeddings() -> None:
    options = {**FIELDS, "probabilities": [1, 1], "output_text_emb_field": "emb"}
    for seed in range(8):
        sample = {"a": "short", "b": "long", "ea": None, "eb": 2, "__random_seed__": seed}
        assert SampleTextEmbedding(**options, allow_missing=True)(dict(sample))["emb"] == 2
        with pytest.raises(TransformError, match="'ea'"):
            SampleTextEmbedding(**options)(dict(sample))
    with pytest.raises(TransformError, match="no field has a value"):
        SampleTextEmbedding(**options, allow_missing=True)({"a": "x", "b": "y", "__random_seed__": 0})


def test_choose_field_by_weight_and_sample() -> None:
    choose = ChooseField(
        ["x", "y", "z"], "out", probs=[0, 1, 3], companions={"caption": ["cx", "cy", "cz"]}, choice_field="which"
    )

    def one(seed: int) -> dict[str, object]:
        return choose({**{k: f"s3://{k}" for k in "xyz"}, "cx": 1, "cy": 2, "cz": 3, "__random_seed__": seed})

    samples = [one(seed) for seed in range(400)]
    assert [one(seed) for seed in range(400)] == samples
    for sample in samples:
        assert set(sample) == {"out", "caption", "which", "__random_seed__"}
        assert sample["out"] == f"s3://{sample['which']}" and sample["caption"] == {"y": 2, "z": 3}[sample["which"]]
    assert 70 < sum(sample["which"] == "y" for sample in samples) < 130


def test_choose_field_among_what_is_there() -> None:
    choose = ChooseField(["x", "y"], "x")
    assert choose({"x": None, "y": "there", "__random_seed__": 0}) == {"x": "there", "__random_seed__": 0}
    assert ChooseField(["x"], "out", cleanup=False)({"x": 1, "__random_seed__": 0}) == {
        "x": 1,
        "out": 1,
        "__random_seed__": 0,
    }
    with pytest.raises(TransformError, match="absent"):
        choose({"x": "", "__random_seed__": 0})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"fields": "emb"}, "fields"),
        ({"fields": []}, "fields"),
        ({"output_field": ""}, "output_field"),
        ({"probs": [1]}, "probs"),
        ({"probs": [0, 0]}, "probs"),
        ({"probs": [1, -1]}, "probs"),
        ({"probs": [1, float("nan")]}, "probs"),
        ({"probs": ["a", 1]}, "probs"),
        ({"companions": {"c": ["one"]}}, "companions"),
        ({"companions": ["c"]}, "companions"),
    ],
)
def test_options_of_choose_field_are_checked_by_name(options, name) -> None:
    with pytest.raises(OptionError, match=name):
        ChooseField(**{"fields": ["a", "b"], "output_field": "out", **options})


def test_options_of_embeddings_are_checked_by_name() -> None:
    with pytest.raises(OptionError, match="num_tokens"):
        LoadTextEmbedding("emb", 0)
    with pytest.raises(OptionError, match="input_text_fields"):
        SampleTextEmbedding(["a"], ["ea", "eb"], [1, 1], "t", "e")
    with pytest.raises(OptionError, match="probabilities"):
        SampleTextEmbedding(["a"], ["ea"], [1, 1], "t", "e")
