"""Tensor files -> tensors: safetensors, .npy, .npz, and .pt; the first bytes decide which, not the name.

Comes in: the bytes of a file and how large its contents may be. Goes out: a tensor, or dicts and lists of tensors and
plain values. Nothing in a file is ever run: .pt goes through torch's loader of plain weights, NumPy's files without
objects, and plain pickles only where the user allows them, through pickles.py.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sds.errors import OptionError
from sds.transforms import pickles
from sds.transforms.base import SampleTransform, check_field, decode_error
from sds.transforms.source import read_bytes
from sds.types import Sample
from sds.units import format_bytes, parse_bytes

__all__ = ["LoadTensors", "read_tensors"]

_NPY = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
# torch's format before 1.6 begins with the pickle of one number
_OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PICKLE = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


class LoadTensors(SampleTransform):
    """Reads a file of tensors (or its bytes): latents, embeddings, anything that was computed before.

    safetensors and .npz become a dict {name: tensor}, .npy one tensor, .pt what was saved: a tensor, or dicts, lists
    and tuples of tensors, text and numbers. Tensors have the shapes and dtypes that they were stored with.

    Args:
        input_field: holds the path or the bytes.
        output_field: gets the tensors. Default: the input field.
        allow_pickle: read plain pickles too (files made by `pickle.dump`): only arrays, tensors, containers, text and
            numbers come out of them, and nothing that they name is run.
        dtype: floating tensors are converted to this; None keeps them.
        max_bytes: the most that a file may hold, unpacked, as a number or as text such as '1gb'.

    Raises:
        DecodeError: the file is absent, broken, too large, or of no known format, or a pickle that is not allowed.
    """

    stage = "decode"

    def __init__(
        self,
        input_field: str,
        output_field: str | None = None,
        *,
        allow_pickle: bool = False,
        dtype: torch.dtype | None = None,
        max_bytes: str | int = "1gb",
    ) -> None:
        self.input_field = check_field("input_field", input_field)
        self.output_field = check_field("output_field", input_field if output_field is None else output_field)
        self.allow_pickle = bool(allow_pickle)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise OptionError(f"dtype is not a floating torch.dtype: {dtype!r}", hint="such as torch.float32")
        self.dtype = dtype
        self.max_bytes = max_bytes
        self._limit = parse_bytes(max_bytes, option="max_bytes")

    def __call__(self, sample: Sample) -> Sample:
        """Reads the input field's tensors into the output field."""
        value = read_tensors(sample, self.input_field, self._limit, self.allow_pickle)
        sample[self.output_field] = value if self.dtype is None else _converted(value, self.dtype)
        return sample


def read_tensors(sample: Sample, field: str, max_bytes: int, allow_pickle: bool) -> Any:
    """The tensors of a field's file."""
    data, path = read_bytes(sample, field, "tensor file", max_bytes)
    if data.startswith(_PICKLE) and not data.startswith(_OLD_TORCH) and not allow_pickle:
        raise decode_error(
            sample,
            "tensor file",
            "it is a pickle, which is not allowed",
            field=field,
            path=path,
            hint="allow_pickle=True reads its arrays and tensors and runs nothing; safetensors is a better format",
        )
    try:
        return _parse(data, max_bytes)
    except Exception as error:  # the boundary to foreign decoders, which raise anything
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise decode_error(sample, "tensor file", reason, field=field, path=path) from error


def _parse(data: bytes, max_bytes: int) -> Any:
    if data.startswith(_NPY):
        return _tensor(_read_npy(data))
    if data.startswith(_ZIP):
        return _read_zip(data, max_bytes)
    if data.startswith(_OLD_TORCH):
        return _checked(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    if data.startswith(_PICKLE):
        return _with_tensors(pickles.load(data))
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") <= len(data) - 8:
        return _read_safetensors(data)
    raise ValueError(f"it begins like no tensor file that is read here: {data[:8]!r}")


def _read_safetensors(data: bytes) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load(data)


def _read_zip(data: bytes, max_bytes: int) -> Any:
    """A .npz or a .pt: both are ZIP files."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = file.infolist()
        size = sum(member.file_size for member in members)
        if size > max_bytes:
            raise ValueError(f"{format_bytes(size)} unpacked are more than {format_bytes(max_bytes)} (raise max_bytes)")
        if not any(member.filename.endswith(".npy") for member in members):
            return _checked(torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
        arrays = {member.filename.removesuffix(".npy"): file.read(member) for member in members}
    return {name: _tensor(_read_npy(array)) for name, array in arrays.items()}


def _read_npy(data: bytes) -> npt.NDArray[Any]:
    """An array of numbers; its size is compared with the file's before memory is taken."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, is_fortran, dtype = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"it is of version {version}, which holds other than numbers")
    if dtype.hasobject or dtype.fields or dtype.subdtype or dtype.kind not in "biufc":
        raise ValueError(f"it holds other than numbers: {dtype}")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(data) - file.tell():
        raise ValueError(f"{len(data) - file.tell()} bytes are not {list(shape)} numbers of {dtype}")
    values = np.frombuffer(data, dtype, count, offset=file.tell())  # [n]
    return values.reshape(shape, order="F" if is_fortran else "C")


def _tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """The array's numbers in memory of their own, in this machine's byte order."""
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True))


def _with_tensors(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _tensor(value)
    return _mapped(value, _with_tensors)


def _converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return _mapped(value, lambda each: _converted(each, dtype))


def _checked(value: Any) -> Any:
    """What torch's loader gave, if it is plain values and dense tensors all through."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            raise ValueError(f"it holds a tensor of an unusual kind: {value.layout}, {value.device}")
        return value.detach()
    if value is None or isinstance(value, str | bytes | bool | int | float | dict | list | tuple):
        return _mapped(value, _checked)
    raise ValueError(f"it holds other than tensors, text and numbers: {type(value).__name__}")


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, dict):
        return {key: function(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [function(each) for each in value] if isinstance(value, list) else tuple(map(function, value))
    return value
