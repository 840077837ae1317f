"""Ready-made chains: functions that return lists of transforms, to be added to and cut as lists are.

    transforms = presets.create_standard_image_pipeline("url", resolution=(256, 256)) + [MyTransform()]

The long names (DecodeImageTransform, ...) are the same classes as the short ones of sds.transforms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sds.errors import OptionError
from sds.transforms.audio import DecodeAudio
from sds.transforms.audio_shape import AverageAudio, ConvertAudioToFloatTensor, NormalizeAudio, ResizeAudio
from sds.transforms.base import check_field
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
from sds.transforms.presets_audio import create_standard_audio_pipeline
from sds.transforms.presets_video import create_standard_joint_video_audio_pipeline, create_standard_video_pipeline
from sds.transforms.resize import ResizeImage
from sds.transforms.source import LoadFromDisk
from sds.transforms.tensorfiles import LoadTensors
from sds.transforms.text import LoadText
from sds.transforms.values import AddConstantField, AddFields, ConvertDType, FindNonDummyValue, MapValue
from sds.transforms.video import DecodeVideo
from sds.transforms.video_audio import DecodeVideoAndAudio
from sds.transforms.video_frames import ConvertVideoToByteTensor, ResizeVideo, UndistortFrames
from sds.types import Transform

__all__ = [
    "create_standard_image_pipeline",
    "create_standard_video_pipeline",
    "create_standard_audio_pipeline",
    "create_standard_joint_video_audio_pipeline",
    "create_standard_text_pipeline",
    "create_standard_image_latent_pipeline",
    "create_standard_video_latent_pipeline",
    "create_standard_metadata_pipeline",
    "DecodeImageTransform",
    "ResizeImageTransform",
    "ConvertImageToByteTensorTransform",
    "ReshapeImageAsVideoTransform",
    "NormalizeFramesTransform",
    "DecodeVideoTransform",
    "ResizeVideoTransform",
    "ConvertVideoToByteTensorTransform",
    "UndistortFramesTransform",
    "DecodeAudioTransform",
    "ConvertAudioToFloatTensorTransform",
    "AverageAudioTransform",
    "ResizeAudioTransform",
    "NormalizeAudioTransform",
    "DecodeVideoAndAudioTransform",
    "LoadTextTransform",
    "LoadLatentFromDiskTransform",
    "SampleImageVAELatentTransform",
    "SampleVideoVAELatentTransform",
    "TextEmbLoaderTransform",
    "TextEmbSamplingTransform",
    "LoadJsonMetadataTransform",
    "ExtractMetadataSubfieldTransform",
    "OneHotEncodeTransform",
    "ClassNameToIDTransform",
    "LoadFromDiskTransform",
    "AddConstantFieldTransform",
    "AugmentNewFieldsTransform",
    "ConvertDTypeTransform",
    "EnsureFieldsTransform",
    "FieldsFilteringTransform",
    "FindNonDummyValueTransform",
    "GatherFieldsTransform",
    "IdentityTransform",
    "MergeDictFieldTransform",
    "NameToIndexTransform",
    "RenameFieldsTransform",
]

DecodeImageTransform = DecodeImage
ResizeImageTransform = ResizeImage
ConvertImageToByteTensorTransform = ConvertImageToByteTensor
ReshapeImageAsVideoTransform = ReshapeImageAsVideo
NormalizeFramesTransform = NormalizeFrames
DecodeVideoTransform = DecodeVideo
ResizeVideoTransform = ResizeVideo
ConvertVideoToByteTensorTransform = ConvertVideoToByteTensor
UndistortFramesTransform = UndistortFrames
DecodeAudioTransform = DecodeAudio
ConvertAudioToFloatTensorTransform = ConvertAudioToFloatTensor
AverageAudioTransform = AverageAudio
ResizeAudioTransform = ResizeAudio
NormalizeAudioTransform = NormalizeAudio
DecodeVideoAndAudioTransform = DecodeVideoAndAudio
LoadTextTransform = LoadText
LoadLatentFromDiskTransform = LoadTensors
SampleImageVAELatentTransform = SampleImageLatent
SampleVideoVAELatentTransform = SampleVideoLatent
TextEmbLoaderTransform = LoadTextEmbedding
TextEmbSamplingTransform = SampleTextEmbedding
LoadJsonMetadataTransform = LoadJson
ExtractMetadataSubfieldTransform = ExtractSubfield
OneHotEncodeTransform = OneHotEncode
ClassNameToIDTransform = ClassNameToID
LoadFromDiskTransform = LoadFromDisk
AddConstantFieldTransform = AddConstantField
AugmentNewFieldsTransform = AddFields
ConvertDTypeTransform = ConvertDType
EnsureFieldsTransform = EnsureFields
FieldsFilteringTransform = FilterFields
FindNonDummyValueTransform = FindNonDummyValue
GatherFieldsTransform = GatherFields
IdentityTransform = Identity
MergeDictFieldTransform = MergeDictField
NameToIndexTransform = MapValue
RenameFieldsTransform = RenameFields

# A JPEG is decoded to no less than this times the target: then the result differs from full decoding by less than one
# level on average (at 1.0, by up to four on grainy pictures), and 1024x768 -> 256 is still halved.
_DECODE_MARGIN = 1.5


def create_standard_image_pipeline(
    image_field: str,
    resolution: tuple[int, int],
    return_image_as_single_frame_video: bool = False,
    normalize: bool = False,
    resize_kwargs: Mapping[str, Any] | None = None,
    output_field: str = "image",
    video_output_field: str = "video",
) -> list[Transform]:
    """Path or bytes of an image -> uint8 RGB tensor [3, h, w], cropped to the centre and resized.

    Args:
        image_field: holds the path or the bytes; it stays in the sample, unless it is the output field.
        resolution: (h, w) of the result.
        return_image_as_single_frame_video: put a video [1, 3, h, w] into `video_output_field`, and no image.
        normalize: float32 in [-1, 1] instead of uint8.
        resize_kwargs: other options of ResizeImage: fit, interpolation_mode, allow_vertical, random_resize, ...
        output_field: gets the image.
        video_output_field: gets the video.
    """
    check_field("image_field", image_field)
    check_field("video_output_field", video_output_field)
    try:
        resize = ResizeImage(output_field, resolution=resolution, **(resize_kwargs or {}))
    except TypeError as error:  # an unknown key, or one that is given already
        raise OptionError(
            f"resize_kwargs has an option that ResizeImage does not take: {error}",
            hint="it takes fit, crop_before_resize, interpolation_mode, allow_vertical, random_resize and pad_colour",
        ) from None
    height, width = (math.ceil(side * _DECODE_MARGIN) for side in resize.largest)
    transforms: list[Transform] = [
        DecodeImage(image_field, output_field, min_size=(height, width)),  # uint8 [3, any, any]
        resize,  # uint8 [3, h, w]
    ]
    if normalize:
        transforms.append(NormalizeFrames(output_field))  # float32 [3, h, w]
    if return_image_as_single_frame_video:
        transforms.append(ReshapeImageAsVideo(output_field, video_output_field))  # [1, 3, h, w]
        if video_output_field != output_field:
            transforms.append(FilterFields(fields_to_remove=[output_field]))
    return transforms


def create_standard_text_pipeline(
    text_field: str,
    output_field: str = "text",
    encoding: str = "utf-8",
    strip: bool = False,
) -> list[Transform]:
    """Path or bytes of a text file -> str.

    Args:
        text_field: holds the path or the bytes; it stays in the sample, unless it is the output field.
        output_field: gets the text.
        encoding: of the files; others are a DecodeError.
        strip: True takes white space off both ends.
    """
    return [LoadText(text_field, output_field, encoding=encoding, strip=strip)]


def create_standard_image_latent_pipeline(
    image_latent_field: str,
    return_image_as_single_frame_video: bool = False,
    output_field: str = "image",
    video_output_field: str = "video",
    allow_pickle: bool = False,
) -> list[Transform]:
    """Path or bytes of an image's VAE moments -> one latent drawn from them, float32 [c, h, w].

    Args:
        image_latent_field: holds the path or the bytes of a file with 'mean' and 'logvar' (or 'std', or 'moments').
        return_image_as_single_frame_video: put a video [1, c, h, w] into `video_output_field`, and no image.
        output_field: gets the latent.
        video_output_field: gets the video.
        allow_pickle: read plain pickles too; nothing that they name is run.
    """
    transforms: list[Transform] = [
        LoadTensors(image_latent_field, output_field, allow_pickle=allow_pickle),  # {'mean': [c, h, w], ...}
        SampleImageLatent(output_field),  # float32 [c, h, w]
    ]
    if return_image_as_single_frame_video:
        transforms.append(ReshapeImageAsVideo(output_field, video_output_field))  # [1, c, h, w]
        if video_output_field != output_field:
            transforms.append(FilterFields(fields_to_remove=[output_field]))
    return transforms


def create_standard_video_latent_pipeline(
    video_latent_field: str,
    framerate: float | None = None,
    random_offset: bool = True,
    output_field: str = "video",
    allow_pickle: bool = False,
) -> list[Transform]:
    """Path or bytes of a video's VAE moments -> one latent drawn from them, float32 [t, c, h, w].

    Args:
        video_latent_field: holds the path or the bytes of a file with 'mean' and 'logvar' (or 'std', or 'moments').
        framerate: latent frames are left out to reach it; the file's 'input_framerate' must be a whole multiple.
        random_offset: begin at a random frame among those that leave enough.
        output_field: gets the latent.
        allow_pickle: read plain pickles too; nothing that they name is run.
    """
    return [
        LoadTensors(video_latent_field, output_field, allow_pickle=allow_pickle),  # {'mean': [t, c, h, w], ...}
        SampleVideoLatent(output_field, framerate=framerate, random_offset=random_offset),  # float32 [t', c, h, w]
    ]


def create_standard_metadata_pipeline(
    metadata_field: str,
    class_label_metadata_field: str | None = None,
    one_hot_encode_to_size: int | None = None,
    return_raw_metadata: bool = True,
    class_label_target_field: str = "class_label",
) -> list[Transform]:
    """Path or bytes of a JSON file -> its dict in 'meta', and a class label out of it.

    Args:
        metadata_field: holds the path or the bytes; it stays in the sample, unless it is 'meta'.
        class_label_metadata_field: the entry that holds the class; None: no label.
        one_hot_encode_to_size: the label becomes a float32 tensor [this size] instead of a number.
        return_raw_metadata: False leaves 'meta' out.
        class_label_target_field: gets the label.
    """
    transforms: list[Transform] = [LoadJson(metadata_field, "meta")]
    if class_label_metadata_field is not None:
        transforms.append(ExtractSubfield(class_label_metadata_field, class_label_target_field))
        if one_hot_encode_to_size is not None:
            transforms.append(OneHotEncode(class_label_target_field, one_hot_encode_to_size))
    elif one_hot_encode_to_size is not None:
        raise OptionError(
            f"one_hot_encode_to_size has nothing to encode: {one_hot_encode_to_size}",
            hint="give class_label_metadata_field too",
        )
    if not return_raw_metadata:
        transforms.append(FilterFields(fields_to_remove=["meta"]))
    return transforms
