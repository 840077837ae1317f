"""Sample -> Sample: small callables on dicts that decode files, shape tensors and choose fields.

Comes in: a dict that names files (or holds their bytes) and metadata. Goes out: a dict of tensors, text and numbers. A
broken file is a DecodeError, a missing field a TransformError, and every random choice is drawn from `rng(sample)`.
"""

from __future__ import annotations

from sds.transforms import presets
from sds.transforms.audio import DecodeAudio
from sds.transforms.audio_shape import AverageAudio, ConvertAudioToFloatTensor, NormalizeAudio, ResizeAudio
from sds.transforms.base import SampleTransform, rng
from sds.transforms.choose import ChooseField
from sds.transforms.embeddings import LoadTextEmbedding, SampleTextEmbedding
from sds.transforms.fields import EnsureFields, FilterFields, GatherFields, Identity, MergeDictField, RenameFields
from sds.transforms.image import (
    ConvertImageToByteTensor,
    DecodeImage,
    NormalizeFrames,
    ReshapeImageAsVideo,
)
from sds.transforms.latents import SampleImageLatent, SampleVideoLatent
from sds.transforms.metadata import ClassNameToID, ExtractSubfield, LoadJson, OneHotEncode
from sds.transforms.remember import Remember
from sds.transforms.resize import FlipImage, ResizeImage
from sds.transforms.source import LoadFromDisk
from sds.transforms.tensorfiles import LoadTensors
from sds.transforms.text import LoadText
from sds.transforms.values import AddConstantField, AddFields, ConvertDType, FindNonDummyValue, MapValue
from sds.transforms.video import DecodeVideo
from sds.transforms.video_audio import DecodeVideoAndAudio
from sds.transforms.video_frames import ConvertVideoToByteTensor, ResizeVideo, UndistortFrames

__all__ = [
    "presets",
    "rng",
    "SampleTransform",
    "DecodeImage",
    "ResizeImage",
    "FlipImage",
    "ConvertImageToByteTensor",
    "ReshapeImageAsVideo",
    "NormalizeFrames",
    "DecodeVideo",
    "ResizeVideo",
    "ConvertVideoToByteTensor",
    "UndistortFrames",
    "DecodeAudio",
    "ConvertAudioToFloatTensor",
    "AverageAudio",
    "ResizeAudio",
    "NormalizeAudio",
    "DecodeVideoAndAudio",
    "LoadText",
    "LoadTensors",
    "SampleImageLatent",
    "SampleVideoLatent",
    "LoadTextEmbedding",
    "SampleTextEmbedding",
    "LoadJson",
    "ExtractSubfield",
    "OneHotEncode",
    "ClassNameToID",
    "ChooseField",
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
    "Remember",
]
