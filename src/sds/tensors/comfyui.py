"""ComfyUI's training datasets -> a tensor cache: `shard_*.pkl`, which are torch files of latents and conditionings.

Comes in: the folder. Goes out: a cache whose samples are {'latent': {...}, 'conditioning': [...]}. The files are
mapped, not loaded; nothing that they name is ever called: what is not tensors, containers, text and numbers is
refused, or dropped where the user says so.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch

from sds.errors import OptionError, TensorCacheError
from sds.tensors.reader import TensorCache
from sds.tensors.writer import TensorCacheWriter

__all__ = ["import_comfyui"]

_log = logging.getLogger("sds")
_SHARD = re.compile(r"shard_(\d+)\.pkl", re.ASCII)
_MAX_METADATA = 1 << 20
_DROP = "opaque='drop' leaves such objects out; on the command line: --drop-opaque"


def import_comfyui(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    opaque: str = "refuse",
    shard_size: str | int = "512mb",
) -> TensorCache:
    """Converts a training dataset of ComfyUI; one that was interrupted goes on where it stopped.

    Keys are the shard's name and the place in it, such as 'shard_0000/17'.

    Args:
        folder: holds `shard_0000.pkl`, ... and `metadata.json`, if it was written. Shards beyond the number that it
            tells are left-overs of another dataset, and are not read.
        path: the folder of the tensor cache.
        opaque: objects that are no tensors, containers, text or numbers (hooks, control nets): 'refuse' ends with an
            error that names them, 'drop' leaves them out, with a warning.
        shard_size: as for TensorCacheWriter.

    Raises:
        TensorCacheError: a file is absent, broken, of another kind, or holds opaque objects.
    """
    if opaque not in ("refuse", "drop"):
        raise OptionError(f"opaque is unknown: {opaque!r}", hint="'refuse' or 'drop'")
    files = _files(Path(folder))
    was_there = os.path.lexists(path)
    try:
        with TensorCacheWriter(path, shard_size) as writer:
            for file in files:
                _convert(file, writer, opaque == "drop")
    except TensorCacheError:
        if not was_there:
            _remove_if_empty(Path(path))
        raise
    return TensorCache(path)


def _convert(file: Path, writer: TensorCacheWriter, drop: bool) -> None:
    for place, sample in _samples(file, drop):
        key = f"{file.stem}/{place}"
        if key not in writer:
            try:
                writer.add(key, sample)
            except TensorCacheError as error:
                message = f"ComfyUI dataset cannot be converted: {file}: sample {place}: {error.message}"
                raise TensorCacheError(message, hint=error.hint, url=str(file), key=key) from error


def _remove_if_empty(folder: Path) -> None:
    """What was refused before its first sample leaves nothing; one that was taken waits for the next try."""
    for each in (folder / ".parts", folder):
        with suppress(OSError):  # it has something in it, or is no folder
            each.rmdir()


def _files(folder: Path) -> list[Path]:
    """The shards in order, those that metadata.json tells of."""
    hint = "it is the folder that ComfyUI's node for saving training datasets wrote, with shard_0000.pkl in it"
    try:
        numbers = sorted(int(match[1]) for name in os.listdir(folder) if (match := _SHARD.fullmatch(name)))
    except OSError as error:
        raise TensorCacheError(f"no ComfyUI dataset: {folder}: {error.strerror}", hint=hint, url=str(folder)) from error
    named = {int(match[1]): name for name in os.listdir(folder) if (match := _SHARD.fullmatch(name))}
    expected = _num_shards(folder / "metadata.json")
    if expected is not None:
        missing = [number for number in range(expected) if number not in named]
        if missing:
            fact = f"shard_{missing[0]:04d}.pkl is not there; metadata.json tells of {expected} shards"
            raise TensorCacheError(f"ComfyUI dataset is incomplete: {folder}: {fact}", hint="copy it again, whole")
        if len(numbers) > expected:
            _log.warning("%s: %d shards are left-overs and were not read", folder, len(numbers) - expected)
        numbers = list(range(expected))
    if not numbers:
        raise TensorCacheError(f"no ComfyUI dataset: {folder}: no shards", hint=hint, url=str(folder))
    return [folder / named[number] for number in numbers]


def _num_shards(path: Path) -> int | None:
    try:
        with open(path, "rb") as file:
            found = msgspec.json.decode(file.read(_MAX_METADATA), type=dict[str, Any])
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        hint = "delete the file if it is broken: all shards are taken then"
        raise TensorCacheError(f"metadata.json cannot be read: {path}: {error}", hint=hint) from error
    number = found.get("num_shards")
    return number if type(number) is int and 0 <= number < 10**6 else None


def _samples(file: Path, drop: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    data = _load(file, drop)
    latents, conditioning = (data.get(name) if isinstance(data, dict) else None for name in ("latents", "conditioning"))
    if not isinstance(latents, list) or not isinstance(conditioning, list) or len(latents) != len(conditioning):
        hint = "it must be {'latents': [...], 'conditioning': [...]}, both of one length"
        raise TensorCacheError(f"not a shard of a ComfyUI dataset: {file}", hint=hint, url=str(file))
    dropped: set[str] = set()
    for place, (latent, conditions) in enumerate(zip(latents, conditioning, strict=True)):
        sample = {"latent": latent, "conditioning": conditions}
        yield place, _without_opaque(sample, dropped) if drop else sample
    if dropped:
        _log.warning("%s: objects were left out: %s", file, ", ".join(sorted(dropped)[:10]))


def _load(file: Path, drop: bool) -> Any:
    """The file's content, its tensors mapped."""
    try:
        if not drop:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        # the module that torch unpickles with is ours, and finds nothing but stand-ins
        return torch.load(file, map_location="cpu", weights_only=False, mmap=True, pickle_module=_careful)
    except Exception as error:  # the boundary to a foreign decoder, which raises anything
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        if named:
            message = f"ComfyUI dataset holds an opaque object: {file}: {named[1]}"
            raise TensorCacheError(message, hint=_DROP, url=str(file)) from error
        reason = (str(error).strip() or type(error).__name__).split("\n")[0][:300]
        hint = "a shard is what torch.save wrote: copy it again, or save it with a current version"
        raise TensorCacheError(f"ComfyUI dataset cannot be read: {file}: {reason}", hint=hint, url=str(file)) from error


class _Opaque:
    """What an object becomes that we do not know: nothing it was made of is looked at."""

    name = "?"

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return super().__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """Lists and their kind are filled one by one."""

    def extend(self, values: Any) -> None:
        """Or many at once."""


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> torch.Tensor:
    """A view of a storage of the file, all of it inside."""
    sizes = [offset, *size, *stride]
    is_plain = isinstance(storage, torch.storage.TypedStorage) and len(size) == len(stride) <= 64
    if not is_plain or not all(type(number) is int and 0 <= number < 2**62 for number in sizes):
        raise ValueError("a tensor of unknown form")
    flat = torch.empty(0, dtype=storage.dtype).set_(storage)  # [n]
    last = offset + sum((side - 1) * step for side, step in zip(size, stride, strict=True))
    if 0 not in size and last >= len(flat):
        raise ValueError(f"a tensor {list(size)} over {len(flat)} numbers")
    return flat.as_strided(size, stride, offset) if 0 not in size else flat.new_empty(size)


def _parameter(data: Any, *_: Any) -> Any:
    return data


def _dtype(name: str) -> torch.dtype | None:
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): torch.Size,
}


# The one in Python: its memo is a dict, which a number in a file cannot blow up
class _Unpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        if module == "torch" and _dtype(name) is not None:
            return _dtype(name)
        return type("_Unknown", (_Opaque,), {"name": f"{module}.{name}"})

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Opaque | OrderedDict):  # a tensor's state would be a way around our checks
            raise ValueError(f"a state for {type(self.stack[-1]).__name__}")
        del state

    dispatch[pickle.BUILD[0]] = load_build


_careful = types.ModuleType("sds.tensors.comfyui._careful")
_careful.Unpickler = _Unpickler  # type: ignore[attr-defined]


def _without_opaque(value: Any, dropped: set[str]) -> Any:
    """The value without opaque objects: entries of dicts and items of lists that are such are left out."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not _is_opaque(each, dropped)}
        return {key: _without_opaque(each, dropped) for key, each in kept.items() if not _is_opaque(key, dropped)}
    if isinstance(value, list | tuple):
        items = [_without_opaque(each, dropped) for each in value if not _is_opaque(each, dropped)]
        return items if isinstance(value, list) else tuple(items)
    return value


def _is_opaque(value: Any, dropped: set[str]) -> bool:
    name = value.name if isinstance(value, _Opaque) else None
    if name is None and isinstance(value, type) and issubclass(value, _Opaque):
        name = value.name
    if name is not None:
        dropped.add(name)
    return name is not None
