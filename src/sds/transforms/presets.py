"""Ready-made chains: functions that return lists of transforms, to be added to and cut as lists are.

    transforms = presets.create_standard_image_pipeline("url", resolution=(256, 256)) + [MyTransform()]

The long names (DecodeImageTransform, ...) are the same classes as the short ones of sds.transforms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sds.errors import OptionError
from sds.transforms.base import check_field
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
from sds.types import Transform

__all__ = [
    "create_standard_image_pipeline",
    "create_standard_text_pipeline",
    "DecodeImageTransform",
    "ResizeImageTransform",
    "ConvertImageToByteTensorTransform",
    "ReshapeImageAsVideoTransform",
    "NormalizeFramesTransform",
    "LoadTextTransform",
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
LoadTextTransform = LoadText
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
        resize_kwargs: other options of ResizeImage: crop_before_resize, interpolation_mode.
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
            hint="it takes crop_before_resize and interpolation_mode",
        ) from None
    height, width = (math.ceil(side * _DECODE_MARGIN) for side in resize.resolution)
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
