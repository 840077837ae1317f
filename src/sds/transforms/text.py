"""Text: a path or bytes -> str, decoded strictly.

Comes in: a file of a known encoding. Goes out: its text without a byte-order mark, every line end a newline. Bytes that
are no text in that encoding are a DecodeError that says where they are.
"""

from __future__ import annotations

from sds.errors import OptionError
from sds.transforms.base import SampleTransform, check_field, decode_error
from sds.transforms.source import read_bytes
from sds.types import Sample
from sds.units import parse_bytes

__all__ = ["LoadText"]


class LoadText(SampleTransform):
    """Reads a text file (or bytes) into a str.

    Args:
        input_field: holds the path or the bytes.
        output_field: gets the text. Default: the input field.
        encoding: of the file.
        strip: True takes white space off both ends.
        max_bytes: the largest file to read, as a number or as text such as '64mb'.

    Raises:
        DecodeError: the file is absent, too large, or not text in that encoding. An empty file is empty text.
    """

    stage = "decode"

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        *,
        encoding: str = "utf-8",
        strip: bool = False,
        max_bytes: str | int = "64mb",
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        try:
            b"a".decode(encoding)  # also refuses codecs that are no text encodings
        except UnicodeError:
            pass  # known, and not for a single byte
        except (LookupError, TypeError):
            raise OptionError(f"encoding is unknown: {encoding!r}", hint="such as 'utf-8' or 'latin-1'") from None
        self.encoding = encoding
        self.strip = bool(strip)
        self.max_bytes = max_bytes
        self._limit = parse_bytes(max_bytes, option="max_bytes")

    def __call__(self, sample: Sample) -> Sample:
        """Reads the input field's text into the output field."""
        data, path = read_bytes(sample, self.input_field, "text", self._limit, allow_empty=True)
        try:
            text = data.decode(self.encoding)
        except UnicodeError as error:
            hint = f"give the file's encoding instead of {self.encoding!r}"
            raise decode_error(sample, "text", error, field=self.input_field, path=path, hint=hint) from error
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        sample[self.output_field] = text.strip() if self.strip else text
        return sample
