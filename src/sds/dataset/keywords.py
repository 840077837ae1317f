"""Misspelt keywords: an OptionError that names the one that was probably meant, where Python would have a TypeError.

Comes in: a class whose constructor has keywords, or a function. Goes out: the same, with the signature that it had.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sds.errors import OptionError

__all__ = ["check_keywords", "guess"]

C = TypeVar("C", bound=Callable[..., Any])

_LOADER = "the loader has it: sds.StreamingDataLoader(dataset, batch_size, ...)"
_ORDER = "the dataset orders its rows: StreamingDataset(..., shuffle_seed=42); torch's samplers take dataset.as_map()"
# what other libraries call a keyword -> ours, where what is called has it
_MEANT = {
    "seed": ("shuffle_seed",),
    "probabilities": ("ratios",),
    "probs": ("ratios",),
    "weights": ("ratios",),
    "stopping_strategy": ("stop",),
    "iterate_over_all": ("stop",),
    "longest": ("stop",),
    "urls": ("src",),
    "data_files": ("src",),
    "remote": ("src",),
    "input_dir": ("src",),
    "local": ("dst",),
    "cache_dir": ("dst",),
    "max_cache_size": ("cache_limit",),
    "predownload": ("prefetch",),
    "max_pre_download": ("prefetch",),
    "download_retry": ("num_downloading_retries",),
    "download_timeout": ("timeout",),
    "subsample": ("max_size",),
    "handler": ("on_error",),
    "resampled": ("infinite_iteration",),
    "prefetch_factor": ("prefetch_batches", "depth"),
    "num_prefetch": ("depth",),
    "prefetch_batches": ("depth",),
}
# what torch and other libraries call a thing -> where it is here
_ELSEWHERE = {
    "shuffle": _ORDER,
    "shardshuffle": _ORDER,
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
    "streaming": "leave it out: everything is streamed",
    "non_blocking": "leave it out: copies are made ahead, on a stream of their own",
}


def check_keywords(maker: C) -> C:
    """A decorator of classes and functions: a keyword that they do not know is an OptionError."""
    if not isinstance(maker, type):
        return _checked(maker, maker.__name__, list(inspect.signature(maker).parameters))
    init: Any = maker.__init__  # type: ignore[misc]  # it is looked at, and put back
    maker.__init__ = _checked(init, maker.__name__, list(inspect.signature(init).parameters)[1:])  # type: ignore[misc]
    return maker


def _checked(function: C, name: str, known: list[str]) -> C:
    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        for keyword in given:
            if keyword not in known:
                raise OptionError(f"{name} has no such keyword: {keyword!r}", hint=_hint(keyword, known))
        return function(*args, **given)

    return checked  # type: ignore[return-value]  # it has the signature of what it wraps


def _hint(keyword: str, known: list[str]) -> str:
    for meant in _MEANT.get(keyword, ()):
        if meant in known:
            return f"did you mean `{meant}`?"
    return _ELSEWHERE.get(keyword) or guess(keyword, known)


def guess(name: str, known: Iterable[str]) -> str:
    """A hint for a name that nobody knows: the nearest that is known, else all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"known: {', '.join(names)}"
