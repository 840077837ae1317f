"""Every error that sds raises on purpose, in one tree.

    SdsError
    ├ OptionError(ValueError)         an argument is unknown or impossible; names the keyword
    │ └ NoSuchName(AttributeError)    a method that other libraries have; says what is here instead
    ├ SourceError                     the source cannot be turned into an index
    │ ├ SourceNotFound(FileNotFoundError)
    │ ├ UnsupportedSource
    │ ├ SchemaError                   a column is missing or of the wrong type
    │ └ QueryError                    the SQL does not run
    ├ FetchError(OSError)             an object could not be had
    │ ├ ObjectNotFound(FileNotFoundError)
    │ ├ AccessDenied(PermissionError)
    │ ├ FetchTimeout(TimeoutError)
    │ └ IntegrityError                the body is not what was promised
    ├ CacheError(OSError)             the cache folder cannot be used
    │ └ CacheFull                     the limit is too small for what is in use
    ├ SampleError                     one sample could not be made
    │ ├ DecodeError
    │ ├ TransformError
    │ └ TooManyFailures               the failure budget is spent
    ├ TensorCacheError
    │ └ ShardCorrupt
    └ StateError(ValueError)          a state cannot be taken or loaded
      ├ StateVersion
      └ StateMismatch

A message is `fact: value`; the `hint:` line under it says what to do. The facts travel as fields and survive pickling.
URLs in them show neither user and password nor the values of a query, which may be a signature.
"""

from __future__ import annotations

from typing import Any

from sds.redaction import redact, redact_text

__all__ = [
    "SdsError",
    "OptionError",
    "NoSuchName",
    "SourceError",
    "SourceNotFound",
    "UnsupportedSource",
    "SchemaError",
    "QueryError",
    "FetchError",
    "ObjectNotFound",
    "AccessDenied",
    "FetchTimeout",
    "IntegrityError",
    "CacheError",
    "CacheFull",
    "SampleError",
    "DecodeError",
    "TransformError",
    "TooManyFailures",
    "TensorCacheError",
    "ShardCorrupt",
    "StateError",
    "StateVersion",
    "StateMismatch",
]


class SdsError(Exception):
    """Base of all errors of sds.

    Attributes:
        message: what happened, as `fact: value`.
        hint: what to do about it.
        url: the object concerned, if there is one.
        key: the id of the sample concerned.
        stage: where in the pipeline it happened: 'fetch', 'decode', 'transform', ...
        rank: the rank that reports it.
    """

    def __init__(
        self,
        message: str = "",
        *,
        hint: str | None = None,
        url: str | None = None,
        key: str | None = None,
        stage: str | None = None,
        rank: int | None = None,
    ) -> None:
        shown = None if url is None else redact(url)
        message = _shown(message, url, shown)
        super().__init__(message)
        self.message = message
        self.hint = None if hint is None else _shown(hint, url, shown)
        self.url = shown
        self.key = key
        self.stage = stage
        self.rank = rank

    @property
    def facts(self) -> dict[str, Any]:
        """The fields beside the message that are set."""
        names = ("hint", "url", "key", "stage", "rank")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _shown(text: str, url: str | None, redacted: str | None) -> str:
    """The text, in which the error's own URL is redacted exactly, and others as well as can be."""
    return redact_text(text.replace(url, redacted) if url and redacted else text)


def _rebuild(cls: type[SdsError], message: str, facts: dict[str, Any]) -> SdsError:
    return cls(message, **facts)


class OptionError(SdsError, ValueError):
    """An argument is unknown or impossible."""


class NoSuchName(OptionError, AttributeError):
    """A dataset has no such method or attribute; in other libraries it does."""


class SourceError(SdsError):
    """A source cannot be turned into an index."""


class SourceNotFound(SourceError, FileNotFoundError):
    """Nothing is at the source's address."""


class UnsupportedSource(SourceError):
    """The source is of a kind that no reader knows."""


class SchemaError(SourceError):
    """A column is missing or of the wrong type."""


class QueryError(SourceError):
    """The SQL query does not run."""


class FetchError(SdsError, OSError):
    """An object could not be had."""


class ObjectNotFound(FetchError, FileNotFoundError):
    """No object is at that URL."""


class AccessDenied(FetchError, PermissionError):
    """The store refuses the credentials, or wants some."""


class FetchTimeout(FetchError, TimeoutError):
    """An object did not come in time."""


class IntegrityError(FetchError):
    """A body is shorter, longer or other than the store promised."""


class CacheError(SdsError, OSError):
    """The cache folder cannot be used."""


class CacheFull(CacheError):
    """The cache limit is too small for what is in use at once."""


class SampleError(SdsError):
    """One sample could not be made."""


class DecodeError(SampleError):
    """A file is not what its decoder expects."""


class TransformError(SampleError):
    """A transform failed, or returned what no sample can be."""


class TooManyFailures(SampleError):
    """More samples failed than the failure budget allows."""


class TensorCacheError(SdsError):
    """A tensor cache cannot be written or read."""


class ShardCorrupt(TensorCacheError):
    """A shard's bytes are not the ones that were written."""


class StateError(SdsError, ValueError):
    """A state cannot be taken or loaded."""


class StateVersion(StateError):
    """A state was written by a version that this one cannot read."""


class StateMismatch(StateError):
    """A state belongs to another index, query or seed."""
