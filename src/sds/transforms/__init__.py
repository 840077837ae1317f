"""Sample -> Sample: small callables on dicts that decode files, shape tensors and choose fields.

Comes in: a dict that names files (or holds their bytes) and metadata. Goes out: a dict of tensors, text and numbers. A
broken file is a DecodeError, a missing field a TransformError, and every random choice is drawn from `rng(sample)`.
"""

from __future__ import annotations

import numpy as np

from sds.errors import TransformError
from sds.seeds import derive
from sds.transforms import presets
from sds.transforms.base import SampleTransform
from sds.transforms.fields import EnsureFields, FilterFields, GatherFields, Identity, MergeDictField, RenameFields
from sds.transforms.image import (
    ConvertImageToByteTensor,
    DecodeImage,
    NormalizeFrames,
    ReshapeImageAsVideo,
    ResizeImage,
)
from sds.transforms.source import LoadFromDisk
from sds.transforms.text import LoadText
from sds.transforms.values import AddConstantField, AddFields, ConvertDType, FindNonDummyValue, MapValue
from sds.types import Sample

__all__ = [
    "presets",
    "rng",
    "SampleTransform",
    "DecodeImage",
    "ResizeImage",
    "ConvertImageToByteTensor",
    "ReshapeImageAsVideo",
    "NormalizeFrames",
    "LoadText",
    "LoadFromDisk",
    "AddConstantField",
    "AddFields",
    "ConvertDType",
    "EnsureFields",
    "FilterFields",
    "FindNonDummyValue",
    "GatherFields",
    "Identity",
    "MapValue",
    "MergeDictField",
    "RenameFields",
]


def rng(sample: Sample, *purpose: int | str) -> np.random.Generator:
    """The sample's own NumPy generator: the same numbers for the same seed, epoch and sample, on any machine.

    Each call begins anew. Name a purpose, as in `rng(sample, "flip")`, so that two transforms draw independently.

    Raises:
        TransformError: the sample has no `__random_seed__`; a transform before this one dropped it.
    """
    try:
        seed = int(sample["__random_seed__"])
    except (KeyError, TypeError, ValueError):
        key = sample.get("__sample_key__")
        raise TransformError(
            f"sample has no random seed: '__random_seed__' is {sample.get('__random_seed__', 'missing')}",
            hint="draw before fields are dropped, or keep '__random_seed__' among them",
            key=None if key is None else str(key),
            stage="transform",
        ) from None
    return derive(seed, "transform", *purpose)
