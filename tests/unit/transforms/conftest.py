from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from sds.testing.media import draw_image

Encode = Callable[..., bytes]


@pytest.fixture
def picture() -> Image.Image:
    """A natural-looking RGB picture of an odd size."""
    pixels, _ = draw_image(0, (123, 181))
    return Image.fromarray(pixels)


@pytest.fixture
def encode() -> Encode:
    def save(image: Image.Image, format: str, **options: Any) -> bytes:
        file = io.BytesIO()
        image.save(file, format, **options)
        return file.getvalue()

    return save
