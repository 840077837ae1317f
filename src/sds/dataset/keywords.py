"""Misspelt keywords: an OptionError that names the one that was probably meant, where Python would have a TypeError.

Comes in: a class whose constructor has keywords. Goes out: the same class, with the signature that it had.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Iterable
from typing import Any, TypeVar

from sds.errors import OptionError

__all__ = ["check_keywords", "guess"]

C = TypeVar("C", bound=type)

_LOADER = "the loader has it: sds.StreamingDataLoader(dataset, batch_size, ...)"
_ORDER = "the dataset orders its rows: StreamingDataset(..., shuffle_seed=42); torch's samplers take dataset.as_map()"
# what torch and other libraries call a thing -> where it is here
_ELSEWHERE = {
    "shuffle": _ORDER,
    "sampler": _ORDER,
    "batch_sampler": _ORDER,
    "generator": _ORDER,
    "seed": _ORDER,
    "batch_size": _LOADER,
    "num_workers": _LOADER,
    "drop_last": _LOADER,
    "collate_fn": _LOADER,
    "worker_init_fn": "transforms carry what they need; random numbers are the sample's: sds.transforms.rng(sample)",
    "split": "each split is an index of its own; `sds index split` makes them",
    "remote": "`src` is where the data lies",
    "input_dir": "`src` is where the data lies",
    "local": "`dst` is the cache folder",
    "cache_dir": "`dst` is the cache folder",
    "max_cache_size": "did you mean `cache_limit`?",
    "predownload": "did you mean `prefetch`?",
}


def check_keywords(cls: C) -> C:
    """A decorator of classes: a keyword that the constructor does not know is an OptionError."""
    init: Any = cls.__init__  # type: ignore[misc]  # it is looked at, and put back
    known = list(inspect.signature(init).parameters)[1:]

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        for keyword in given:
            if keyword not in known:
                hint = _ELSEWHERE.get(keyword) or guess(keyword, known)
                raise OptionError(f"{cls.__name__} has no such keyword: {keyword!r}", hint=hint)
        init(self, *args, **given)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def guess(name: str, known: Iterable[str]) -> str:
    """A hint for a name that nobody knows: the nearest that is known, else all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known: {', '.join(names)}"
