"""Text embeddings: files of one tensor for each token -> tensors of one length, and the choice of one among several.

Comes in: a file with [n, d] numbers, or a dict with them and the place of the last token. Goes out: [num_tokens, d],
cut or filled up with zeros, so that batches can be stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sds.errors import OptionError
from sds.transforms.base import (
    SampleTransform,
    check_field,
    check_fields,
    check_int,
    check_weights,
    decode_error,
    require,
    wrong,
)
from sds.transforms.choose import draw_field, missing_fields
from sds.transforms.tensorfiles import read_tensors
from sds.transforms.values import dummy_reason
from sds.types import Sample
from sds.units import parse_bytes

__all__ = ["LoadTextEmbedding", "SampleTextEmbedding"]


class LoadTextEmbedding(SampleTransform):
    """Reads a text embedding (path or bytes) into a tensor [num_tokens, d] of the dtype it was stored with.

    The file (safetensors, .npz, .npy, .pt) holds the tensor [n, d] alone, or under 'embeddings' with an 'eot_location':
    the place of the last token that counts, after which rows become zeros.

    Args:
        input_field: holds the path or the bytes.
        num_tokens: more are cut off, fewer are filled up with zeros.
        output_field: gets the tensor. Default: the input field.
        allow_missing: a field that is absent, None or empty gives None instead of an error.
        allow_pickle: read plain pickles too; nothing that they name is run.
        mask_field: gets a bool tensor [num_tokens], True where there is a token.
        embeddings_name: the file's name for the tensor.
        end_name: the file's name for the place of the last token.
        max_bytes: the most that a file may hold, as a number or as text such as '256mb'.
    """

    stage = "decode"

    def __init__(
        self,
        input_field: str,
        num_tokens: int,
        output_field: str | None = None,
        allow_missing: bool = False,
        *,
        allow_pickle: bool = False,
        mask_field: str | None = None,
        embeddings_name: str = "embeddings",
        end_name: str = "eot_location",
        max_bytes: str | int = "256mb",
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.num_tokens = check_int("num_tokens", num_tokens)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.allow_missing = bool(allow_missing)
        self.allow_pickle = bool(allow_pickle)
        self.mask_field = None if mask_field is None else check_field("mask_field", mask_field)
        self.embeddings_name = check_field("embeddings_name", embeddings_name)
        self.end_name = check_field("end_name", end_name)
        self.max_bytes = max_bytes
        self._limit = parse_bytes(max_bytes, option="max_bytes")

    def __call__(self, sample: Sample) -> Sample:
        """Reads the input field's embedding into the output field."""
        if self.allow_missing and dummy_reason(sample.get(self.input_field)):
            sample[self.output_field] = None
            if self.mask_field is not None:
                sample[self.mask_field] = None
            return sample
        path = sample.get(self.input_field)
        stored = read_tensors(sample, self.input_field, self._limit, self.allow_pickle)
        try:
            tokens, length = self._tokens(stored)  # [n, d]
        except (TypeError, ValueError, RuntimeError) as error:
            path = str(path) if isinstance(path, str) else None
            raise decode_error(sample, "text embedding", error, field=self.input_field, path=path) from error
        embedding = tokens.new_zeros(self.num_tokens, tokens.shape[1])  # [num_tokens, d]
        embedding[:length] = tokens[:length]
        sample[self.output_field] = embedding
        if self.mask_field is not None:
            sample[self.mask_field] = torch.arange(self.num_tokens) < length  # [num_tokens]
        return sample

    def _tokens(self, stored: Any) -> tuple[torch.Tensor, int]:
        """The tensor [n, d], and how many of its rows are wanted."""
        last = None
        if isinstance(stored, Mapping):
            last = stored.get(self.end_name)
            if self.embeddings_name not in stored:
                raise ValueError(f"it has no {self.embeddings_name!r}, but {sorted(map(str, stored))}")
            stored = stored[self.embeddings_name]
        tokens = torch.as_tensor(stored)
        if tokens.ndim == 3 and tokens.shape[0] == 1:
            tokens = tokens[0]  # [n, d]; some encoders keep the batch
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"its shape is {list(tokens.shape)}, not [tokens, numbers]")
        length = min(len(tokens), self.num_tokens)
        if last is not None:
            place = int(last)
            if place < 0:
                raise ValueError(f"its last token is at {place}")
            length = min(length, place + 1)
        return tokens, length


class SampleTextEmbedding(SampleTransform):
    """Takes one of several captions with its embedding, by weight.

    The embeddings are loaded, or files still: `ChooseField` among the pre_download_transforms makes the same choice
    before anything is fetched.

    Args:
        input_text_fields: the captions.
        input_text_emb_fields: their embeddings, in the same order.
        probabilities: one weight for each; they need not sum to 1.
        output_text_field: gets the caption.
        output_text_emb_field: gets the embedding.
        cleanup: remove the others.
        allow_missing: choose among those embeddings that have a value; False: one without is a TransformError.
    """

    def __init__(
        self,
        input_text_fields: Sequence[str],
        input_text_emb_fields: Sequence[str],
        probabilities: Sequence[float],
        output_text_field: str,
        output_text_emb_field: str,
        cleanup: bool = True,
        allow_missing: bool = False,
    ) -> None:
        self.input_text_fields = check_fields("input_text_fields", input_text_fields)
        self.input_text_emb_fields = check_fields("input_text_emb_fields", input_text_emb_fields)
        if len(self.input_text_fields) != len(self.input_text_emb_fields):
            raise OptionError(
                f"input_text_fields are not as many as input_text_emb_fields: {self.input_text_fields}",
                hint="give one embedding for each caption",
            )
        self.probabilities = check_weights("probabilities", probabilities, len(self.input_text_fields))
        self.output_text_field = check_field("output_text_field", output_text_field)
        self.output_text_emb_field = check_field("output_text_emb_field", output_text_emb_field)
        self.cleanup = bool(cleanup)
        self.allow_missing = bool(allow_missing)

    def __call__(self, sample: Sample) -> Sample:
        """Adds the caption and the embedding chosen."""
        fields = self.input_text_emb_fields
        if not self.allow_missing and (missing := missing_fields(sample, fields)):
            raise wrong(sample, f"embeddings have no value: {missing}", hint="set allow_missing, or filter the rows")
        chosen = draw_field(sample, fields, self.probabilities)
        text = require(sample, self.input_text_fields[chosen])
        embedding = sample[fields[chosen]]
        if self.cleanup:
            for field in (*self.input_text_fields, *self.input_text_emb_fields):
                sample.pop(field, None)
        sample[self.output_text_field] = text
        sample[self.output_text_emb_field] = embedding
        return sample
