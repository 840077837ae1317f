"""Hints that speak of Python's keywords -> hints that speak of what can be typed in a shell."""

from __future__ import annotations

import re

__all__ = ["for_shell"]

_STORAGE = re.compile(r"storage_options=\{([^{}]*)\}")
_ENTRY = re.compile(r"'(\w+)': ('[^']*'|[^,]+)")
_SECRETS = ("access_key_id", "secret_access_key", "session_token", "account_name", "account_key")
_OPTIONS = (
    (re.compile(r"columns_to_download=\[\.\.\.\]|\bcolumns_to_download\b(?!=)"), "--download"),
    (re.compile(r"index_col_name=\.\.\.|\bindex_col_name\b(?!=)"), "--id"),
    (re.compile(r"\bsql_query\b(?!=|:)"), "--sql"),
    (re.compile(r"\bcache_limit\b"), "--limit"),
    (re.compile(r"`dst`|\bdst\b(?!=)"), "--dst"),
)


def for_shell(hint: str, *, has_keys: bool = False) -> str:
    """The hint with options of the command line in the place of keywords; secrets come from the environment alone.

    Args:
        hint: of an error.
        has_keys: whether the command reads a configuration, whose keys have the names of keywords.
    """
    hint = _STORAGE.sub(_typed, hint)
    for pattern, option in () if has_keys else _OPTIONS:
        hint = pattern.sub(option, hint)
    return hint


def _typed(found: re.Match[str]) -> str:
    entries = _ENTRY.findall(found[1])
    if not entries or any(name in _SECRETS for name, _ in entries):
        return "the variables that the store's own tools read"
    return " ".join(f"--storage {name}={_value(value)}" for name, value in entries)


def _value(text: str) -> str:
    plain = text.strip().strip("'")
    return {"True": "true", "False": "false", "...": "VALUE"}.get(plain, plain)
