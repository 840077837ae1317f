"""The keywords of StreamingDataset, sorted into one frozen value per room, and checked.

Comes in: flat keywords, as users know them. Goes out: Options, whose parts each room understands. An unknown or
impossible value is an OptionError that names its keyword.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import platformdirs

from sds.errors import OptionError
from sds.fetch import FetchOptions
from sds.fetch.evict import POLICIES
from sds.fetch.protocol import STORAGE_OPTIONS
from sds.index import IndexOptions
from sds.index.provider import describe_provider, is_provider
from sds.plan.blocks import DEFAULT_REACH
from sds.plan.weights import WeightSchedule
from sds.tensors.remember import MemoryOptions, find_memory
from sds.types import DataType, Transform
from sds.units import parse_bytes, parse_seconds
from sds.urls import SCHEMES, host_of, is_remote, redact
from sds.world import World

__all__ = ["Options", "FailureOptions", "check_choice", "check_count", "check_flag", "check_world", "default_dst"]


@dataclass(frozen=True)
class FailureOptions:
    """What happens when a sample cannot be made.

    Attributes:
        on_error: 'skip' counts it and goes on, 'raise' raises in the training loop.
        max_failures: the budget of 'skip': an int is a count, a float a share of attempts.
        print_exceptions: log each failure.
        print_traceback: log each failure with its traceback.
    """

    on_error: str = "skip"
    max_failures: int | float = 0.1
    print_exceptions: bool = False
    print_traceback: bool = False

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ("skip", "raise"))
        budget = self.max_failures
        is_count = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
        is_share = isinstance(budget, float) and 0.0 <= budget <= 1.0
        if not (is_count or is_share):
            hint = "an int is a count of failures, a float between 0 and 1 a share of attempts"
            raise OptionError(f"max_failures is neither a count nor a share: {budget!r}", hint=hint)


@dataclass(frozen=True)
class LazyOptions:
    """How an index is read in chunks, if it is.

    Attributes:
        num_threads: chunks that are read at once.
        prefetch_factor: chunks that are read ahead, for each of them.
        reach: chunks whose rows are shuffled with each other.
    """

    num_threads: int = 2
    prefetch_factor: int = 3
    reach: int = DEFAULT_REACH

    def __post_init__(self) -> None:
        check_count("lazy_index_num_threads", self.num_threads, minimum=1)
        check_count("lazy_index_prefetch_factor", self.prefetch_factor, minimum=1)
        check_count("lazy_index_reach", self.reach, minimum=1)

    @property
    def ahead(self) -> int:
        """Chunks that are read ahead."""
        return self.num_threads * self.prefetch_factor


@dataclass(frozen=True)
class Options:
    """All that a dataset was asked for, by room."""

    src: Any
    name: str
    index: IndexOptions
    fetch: FetchOptions
    failures: FailureOptions
    transforms: tuple[Transform, ...] = ()
    pre_download_transforms: tuple[Transform, ...] = ()
    data_type: str | None = None
    shuffle_seed: int | None = None
    prefetch: int = 128
    refill_below: int | None = None
    infinite: bool = False
    unaligned: bool = False
    node_affine: bool | int = False
    weight_schedule: WeightSchedule | None = None
    lazy: LazyOptions = field(default_factory=LazyOptions)
    memory: MemoryOptions | None = None

    @property
    def source_text(self) -> str:
        """The source, for people: what may be secret in its URLs is not shown."""
        sources = self.src if isinstance(self.src, list | tuple) else [self.src]
        texts = [redact(os.fspath(each)) if isinstance(each, str | os.PathLike) else repr(each) for each in sources]
        return texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more"


_SAMPLES_IN_BYTES = 1024  # fetched ahead at most, when only their bytes are bounded
_FLAGS = (
    "allow_missing_columns",
    "print_exceptions",
    "print_traceback",
    "infinite_iteration",
    "unaligned_worker_index",
)


def sort_keywords(given: Mapping[str, Any]) -> Options:
    """Makes Options out of the constructor's keywords."""
    check_choice("revalidate", given["revalidate"], ("never", "run", "always"))
    check_choice("cache_policy", given["cache_policy"], POLICIES)
    check_count("num_downloading_workers", given["num_downloading_workers"], minimum=1)
    check_count("num_downloading_retries", given["num_downloading_retries"], minimum=0)
    prefetch, ahead_bytes = _prefetch(given["prefetch"])
    if given["min_num_pending_tasks_thresh"] is not None:
        check_count("min_num_pending_tasks_thresh", given["min_num_pending_tasks_thresh"], minimum=0)
    for keyword in _FLAGS:
        check_flag(keyword, given[keyword])
    affine = given["node_affine"]
    if not isinstance(affine, bool):
        check_count("node_affine", affine, minimum=1)
    if affine and given["unaligned_worker_index"]:
        hint = "with unaligned_worker_index every rank reads all rows: leave one of them out"
        raise OptionError("node_affine and unaligned_worker_index exclude each other", hint=hint)
    _check_weights(given)
    _check_lazy(given)
    seed = given["shuffle_seed"]
    if seed is not None:
        check_count("shuffle_seed", seed, minimum=-1)
    timeout = given["timeout"]
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < 86400:
        raise OptionError(f"timeout is not a number of seconds: {timeout!r}", hint="give seconds, such as timeout=60")
    settings = given["storage_options"] or {}
    _check_settings(settings)
    limit, ttl = given["cache_limit"], given["cache_ttl"]
    transforms = _transforms("transforms", given["transforms"])
    pre_download = _transforms("pre_download_transforms", given["pre_download_transforms"])
    data_type = _data_type(given["data_type"])
    dst, name = given["dst"], _name_of(given["src"]) if given["name"] is None else _folder_name(given["name"])
    return Options(
        # a provider is known by its name: what it has open may not travel to workers
        src=describe_provider(given["src"]) if is_provider(given["src"]) else given["src"],
        name=name,
        index=IndexOptions(
            columns_to_download=given["columns_to_download"],
            index_col_name=None if given["index_col_name"] == "index" else given["index_col_name"],
            allow_missing_columns=bool(given["allow_missing_columns"]),
            index_cols_to_keep=given["index_cols_to_keep"],
            sql_query=given["sql_query"],
            max_size=given["max_size"],
            max_index_files_to_use=given["max_index_files_to_use"],
            weight_col_name=given["weight_col_name"],
            lazy_index_chunk_size=given["lazy_index_chunk_size"],
            lazy_index_plan=given["lazy_index_plan"],
        ),
        fetch=FetchOptions(
            dst=str(default_dst(name) if dst is None else _local(dst)),
            limit=None if limit is None else _cache_limit(limit),
            policy=given["cache_policy"],
            num_connections=given["num_downloading_workers"],
            num_retries=given["num_downloading_retries"],
            timeout_s=float(timeout),
            settings=dict(settings),
            ttl_s=None if ttl is None else parse_seconds(ttl, option="cache_ttl"),
            revalidate=given["revalidate"],
            run=secrets.token_hex(8) if given["revalidate"] == "run" else "",
            ahead_bytes=ahead_bytes,
        ),
        failures=FailureOptions(
            given["on_error"], given["max_failures"], bool(given["print_exceptions"]), bool(given["print_traceback"])
        ),
        transforms=transforms,
        pre_download_transforms=pre_download,
        data_type=data_type,
        shuffle_seed=seed,
        prefetch=prefetch,
        refill_below=given["min_num_pending_tasks_thresh"],
        infinite=bool(given["infinite_iteration"]),
        unaligned=bool(given["unaligned_worker_index"]),
        node_affine=given["node_affine"],
        weight_schedule=given["weight_schedule"],
        lazy=_lazy_options(given),
        memory=find_memory(transforms, pre_download, data_type),
    )


def _lazy_options(given: Mapping[str, Any]) -> LazyOptions:
    options = LazyOptions(
        given["lazy_index_num_threads"], given["lazy_index_prefetch_factor"], given["lazy_index_reach"]
    )
    if given["lazy_index_chunk_size"] is None and options.reach != DEFAULT_REACH:
        hint = "set lazy_index_chunk_size too, or leave lazy_index_reach out: without chunks, all rows are shuffled"
        raise OptionError(f"lazy_index_reach is for a lazy index: {options.reach}", hint=hint)
    return options


def _check_weights(given: Mapping[str, Any]) -> None:
    schedule = given["weight_schedule"]
    if schedule is not None and not callable(schedule):
        hint = "a function (epoch, values of the weight column) -> weights"
        raise OptionError(f"weight_schedule cannot be called: {schedule!r}", hint=hint)
    if schedule is not None and given["weight_col_name"] is None:
        hint = "weight_col_name names the column whose values weight_schedule gets"
        raise OptionError("weight_schedule is given without weight_col_name", hint=hint)
    if given["weight_col_name"] is not None and given["node_affine"]:
        hint = "leave one of them out: copies of a row are dealt to all nodes"
        raise OptionError("weight_col_name and node_affine exclude each other", hint=hint)


def check_chunks(options: Options, has_chunks: bool) -> None:
    """OptionError if chunks were asked for and the source has none."""
    if options.index.lazy_index_chunk_size is not None and not has_chunks:
        hint = "leave lazy_index_chunk_size out: this source is not read as a whole anyway"
        raise OptionError(f"lazy_index_chunk_size needs index files: {options.source_text}", hint=hint)


def _check_lazy(given: Mapping[str, Any]) -> None:
    if given["lazy_index_chunk_size"] is not None and given["node_affine"]:
        hint = "leave one of them out: chunks are mixed over the borders of nodes' shares"
        raise OptionError("lazy_index_chunk_size and node_affine exclude each other", hint=hint)


def _prefetch(given: Any) -> tuple[int, int | None]:
    """How far to fetch ahead: samples, and bytes if those are bounded too."""
    if isinstance(given, str):
        return _SAMPLES_IN_BYTES, parse_bytes(given, option="prefetch")
    samples, num_bytes = given if isinstance(given, tuple | list) and len(given) == 2 else (given, None)
    check_count("prefetch", samples, minimum=0)
    return samples, None if num_bytes is None else parse_bytes(num_bytes, option="prefetch")


def _cache_limit(given: Any) -> int:
    """Bytes, at least one: nobody means a part of one, nor a cache that can hold nothing."""
    limit = parse_bytes(given, option="cache_limit")
    is_number = not isinstance(given, str) or not given.strip()[-1].isalpha()
    if limit < 1 or (is_number and float(given) % 1):
        hint = 'bytes, as text such as "500mb" or "10gb", or as a whole number; None: no limit'
        raise OptionError(f"cache_limit is impossible: {given!r}", hint=hint)
    return limit


# what other libraries call them
_STORAGE_WORDS = {
    "key": "did you mean 'access_key_id'? ",
    "secret": "did you mean 'secret_access_key'? ",
    "token": "did you mean 'session_token'? ",
    "anon": "did you mean 'anonymous'? ",
    "endpoint_url": "did you mean 'endpoint'? ",
    "profile": "profiles are chosen by the variable AWS_PROFILE. ",
}


def _check_settings(settings: Any) -> None:
    """A misspelt option must not send a user's requests to somebody else's endpoint."""
    if not isinstance(settings, Mapping):
        raise OptionError("storage_options is not a dict", hint="storage_options={'endpoint': ..., 'region': ...}")
    for name, value in settings.items():
        if name in ("file", "headers", "http", "https"):
            hint = "headers go to the one host that they are given for: {'https://host': {'headers': {...}}}"
            raise OptionError(f"storage_options has no place for {name!r}", hint=hint)
        if isinstance(value, Mapping) and (name in SCHEMES or host_of(str(name))):
            continue
        if name not in STORAGE_OPTIONS or isinstance(value, Mapping):
            close = difflib.get_close_matches(str(name), STORAGE_OPTIONS, n=1)
            meant = _STORAGE_WORDS.get(str(name)) or (f"did you mean {close[0]!r}? " if close else "")
            hint = f"{meant}known: {', '.join(sorted(STORAGE_OPTIONS))}; others under their scheme: {{'s3': {{...}}}}"
            raise OptionError(f"storage_options has an unknown entry: {name!r}", hint=hint)
    for place in (settings, *(value for value in settings.values() if isinstance(value, Mapping))):
        endpoint = place.get("endpoint")
        if endpoint is not None and not str(endpoint).startswith(("http://", "https://")):
            raise OptionError(
                f"storage_options has an endpoint without a scheme: {endpoint!r}",
                hint="http://host:port or https://host",
            )


def check_choice(keyword: str, value: Any, choices: Iterable[str]) -> None:
    """One of a few words, or an OptionError that names the keyword."""
    if value not in tuple(choices):
        raise OptionError(f"{keyword} is unknown: {value!r}", hint="one of " + ", ".join(map(repr, choices)))


def check_count(keyword: str, value: Any, *, minimum: int) -> None:
    """A whole number of at least `minimum`, or an OptionError that names the keyword."""
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise OptionError(f"{keyword} is impossible: {value!r}", hint=f"a whole number of at least {minimum}")


def check_flag(keyword: str, value: Any) -> None:
    """True or False, or an OptionError that names the keyword."""
    if isinstance(value, str) or value not in (True, False):
        raise OptionError(f"{keyword} is neither True nor False: {value!r}", hint=f"{keyword}=True, or leave it out")


def check_world(world: Any) -> None:
    """A World or None, or an OptionError."""
    if world is not None and not isinstance(world, World):
        raise OptionError(f"world is no World: {world!r}", hint="world=sds.World(rank=..., size=...), or leave it out")


def default_dst(name: str) -> Path:
    """Where a dataset's cache lies when nobody says: SDS_CACHE_DIR or the user's cache folder, by name."""
    base = os.environ.get("SDS_CACHE_DIR") or platformdirs.user_cache_dir("sds", appauthor=False)
    return Path(base) / name


def _name_of(src: Any) -> str:
    """A folder name that says what it is, and differs for different sources."""
    if is_provider(src):
        src = describe_provider(src)
    text = str(src) if isinstance(src, str | os.PathLike) else repr(src)[:4096]
    stem = re.sub(r"[^A-Za-z0-9]+", "-", re.split(r"[/\\]", text.rstrip("/"))[-1].partition("?")[0]).strip("-")[:40]
    return f"{stem or 'dataset'}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def _folder_name(name: Any) -> str:
    if not isinstance(name, str) or not name or name in (".", "..") or "/" in name or "\0" in name:
        raise OptionError(f"name is no folder name: {name!r}", hint="a word such as 'photos'; `dst` takes a whole path")
    return name


def _local(dst: str | os.PathLike[str]) -> Path:
    if not isinstance(dst, str | os.PathLike) or not os.fspath(dst):
        raise OptionError(f"dst is not a path: {dst!r}", hint="give a local folder")
    if is_remote(os.fspath(dst)):
        raise OptionError(f"dst is not a local folder: {dst}", hint="the cache lies on a disk of this machine")
    return Path(os.path.abspath(os.path.expanduser(os.fspath(dst))))


def _transforms(keyword: str, given: Sequence[Transform] | Callable[..., Any] | None) -> tuple[Transform, ...]:
    chain = () if given is None else (given,) if callable(given) or not isinstance(given, Iterable) else tuple(given)
    for transform in chain:
        if not callable(transform):
            hint = "give callables: functions, or objects with __call__"
            if isinstance(transform, list | tuple):
                hint = "it is a list, as presets return them: join lists with +, or unpack them with *"
            raise OptionError(f"{keyword} has an entry that cannot be called: {transform!r}", hint=hint)
        if isinstance(transform, type) and not issubclass(transform, Mapping | list | tuple):
            hint = f"give one of its objects: {transform.__name__}(...)"
            raise OptionError(f"{keyword} has a class where a transform should be: {transform.__name__}", hint=hint)
    return chain


def _data_type(given: str | DataType | None) -> str | None:
    if given is None:
        return None
    try:
        return DataType(given).value
    except ValueError:
        hint = "one of " + ", ".join(repr(kind.value) for kind in DataType)
        raise OptionError(f"data_type is unknown: {given!r}", hint=hint) from None
