"""What all transforms share: arguments are checked once and remembered, a missing field has one message, one dice.

Comes in: the arguments of a transform and the samples it meets. Goes out: OptionError at construction, TransformError
or DecodeError at a call; each names the option, the field, the file and the sample. Nothing else is raised. `rng` is
where every random choice of a transform comes from.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

import numpy as np

from sds.errors import DecodeError, OptionError, TransformError
from sds.seeds import derive
from sds.types import Sample, Transform

__all__ = [
    "SampleTransform",
    "check_choice",
    "check_field",
    "check_fields",
    "check_int",
    "check_size",
    "check_weights",
    "decode_error",
    "join_neighbours",
    "name_of",
    "require",
    "rng",
    "several",
    "wrong",
]


class SampleTransform:
    """A transform whose attributes are named like its arguments, so that it prints as it was written.

    Attributes:
        stage: whose time its calls count as: 'decode' or 'transform'.
        opens_input: whether each call opens the file that its input field names, and fails if it is not there. It holds
            for the class that says so, and not for others that are made of it.
    """

    stage: ClassVar[str] = "transform"
    opens_input: ClassVar[bool] = False

    def __call__(self, sample: Sample) -> Sample:
        """Makes the next form of the sample; may change and return the dict it was given."""
        raise NotImplementedError

    def joined(self, following: Transform) -> Transform | None:  # noqa: ARG002 (for those who can)
        """One transform that does the same as this one and the next of its chain, faster; None if there is none."""
        return None

    def __repr__(self) -> str:
        options = (
            f"{name}={getattr(self, name)!r}"
            for name, parameter in inspect.signature(type(self)).parameters.items()
            if parameter.default is inspect.Parameter.empty or getattr(self, name) != parameter.default
        )
        return f"{type(self).__name__}({', '.join(options)})"


def join_neighbours(transforms: Iterable[Transform]) -> tuple[Transform, ...]:
    """The same chain, with neighbours that are faster as one made one."""
    chain: list[Transform] = []
    for transform in transforms:
        joined = chain[-1].joined(transform) if chain and isinstance(chain[-1], SampleTransform) else None
        chain[-1:] = [joined] if joined is not None else [*chain[-1:], transform]
    return tuple(chain)


def several(transform: Transform, result: Any) -> list[Sample]:
    """What a transform returned, as a list: [] dropped, one, or many."""
    if result is None:
        return []
    if isinstance(result, Mapping):
        return [result if isinstance(result, dict) else dict(result)]
    if isinstance(result, Iterable) and not isinstance(result, str | bytes):
        result = list(result)
    if not isinstance(result, list) or not all(isinstance(each, dict) for each in result):
        hint = "a transform returns a dict, several dicts (list or generator), or None to drop the sample"
        raise TransformError(f"{name_of(transform)} returned {type(result).__name__}", hint=hint)
    return result


def name_of(transform: Transform) -> str:
    """What an error calls a transform: a function by its name, an object as it prints itself."""
    return transform.__qualname__ if isinstance(transform, FunctionType) else repr(transform)


def check_field(option: str, name: str) -> str:
    """A field name, or an OptionError that names the option."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"{option} is not a field name: {name!r}", hint="give the name of a field as text")
    return name


def check_fields(option: str, names: Iterable[str], *, allow_empty: bool = False) -> tuple[str, ...]:
    """Field names; a bare string is refused, since it would be taken for its letters."""
    hint = f"give a list, such as {option}=['image', 'caption']"
    if isinstance(names, str | bytes) or not isinstance(names, Collection):
        raise OptionError(f"{option} is not a list of field names: {names!r}", hint=hint)
    if not names and not allow_empty:
        raise OptionError(f"{option} is empty: {names!r}", hint=hint)
    return tuple(check_field(option, name) for name in names)


def check_int(option: str, value: int, *, minimum: int = 1) -> int:
    """A whole number (of any integer type) that is at least `minimum`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = minimum - 1
    if isinstance(value, bool) or number < minimum:
        raise OptionError(f"{option} is not a whole number of at least {minimum}: {value!r}", hint="check its value")
    return number


def check_size(option: str, size: Iterable[int]) -> tuple[int, int]:
    """A (height, width) in pixels."""
    hint = f"give height and width in pixels, such as {option}=(256, 256)"
    try:
        height, width = (check_int(option, side) for side in size)
    except (TypeError, ValueError):  # not iterable, not two, not positive numbers
        raise OptionError(f"{option} is not a (height, width): {size!r}", hint=hint) from None
    return height, width


def check_choice(option: str, value: str, choices: Sequence[str]) -> str:
    """One of the choices, or an OptionError that lists them."""
    if value not in choices:
        raise OptionError(f"{option} is unknown: {value!r}", hint=f"choose one of {list(choices)}")
    return value


def check_weights(option: str, weights: Iterable[float], num: int) -> tuple[float, ...]:
    """One weight for each of `num` things: none below 0, at least one above; they need not sum to 1."""
    try:
        values = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError):
        values = ()
    if len(values) != num or not all(0 <= value < math.inf for value in values) or not sum(values) > 0:
        raise OptionError(
            f"{option} is not {num} weights: {weights!r}", hint="give a number of at least 0 for each, and one above 0"
        )
    return values


def rng(sample: Sample, *purpose: int | str) -> np.random.Generator:
    """The sample's own NumPy generator: the same numbers for the same seed, epoch and sample, on any machine.

    Each call begins anew. Name a purpose, as in `rng(sample, "flip")`, so that two transforms draw independently.

    Raises:
        TransformError: the sample has no `__random_seed__`; a transform before this one dropped it.
    """
    try:
        seed = int(sample["__random_seed__"])
    except (KeyError, TypeError, ValueError):
        raise wrong(
            sample,
            f"sample has no random seed: '__random_seed__' is {sample.get('__random_seed__', 'missing')}",
            hint="draw before fields are dropped, or keep '__random_seed__' among them",
        ) from None
    return derive(seed, "transform", *purpose)


def require(sample: Sample, field: str) -> Any:
    """The field's value, or a TransformError that says which fields there are."""
    try:
        return sample[field]
    except KeyError:
        raise TransformError(
            f"field is missing: {field!r} (the sample has {sorted(map(str, sample))})",
            hint="check the transform's field names, columns_to_download and index_cols_to_keep",
            key=_key(sample),
            stage="transform",
        ) from None


def wrong(sample: Sample, message: str, *, hint: str) -> TransformError:
    """A TransformError about this sample, ready to be raised."""
    return TransformError(message, hint=hint, key=_key(sample), stage="transform")


def decode_error(
    sample: Sample, kind: str, reason: object, *, field: str, path: str | None = None, hint: str | None = None
) -> DecodeError:
    """A DecodeError about this sample's file (or the bytes in its field), ready to be raised."""
    return DecodeError(
        f"{kind} cannot be decoded: {path or f'field {field!r}'}: {reason}",
        hint=hint or "look at the file with another program; on_error='skip' goes on without it",
        url=path,
        key=_key(sample),
        stage="decode",
    )


def _key(sample: Sample) -> str | None:
    key = sample.get("__sample_key__")
    return None if key is None else str(key)
