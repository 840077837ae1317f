"""Text in, the same text out without the secrets of the URLs in it: users, passwords, queries and fragments.

A URL by itself is taken apart exactly. Text around URLs is a guess, made so that it rather hides too much.
"""

from __future__ import annotations

import re

__all__ = ["redact", "redact_text"]

_AUTHORITY = re.compile(r"[^/?#]*")
_ODD_PORT = re.compile(r"(?<!\[):(?![\d:]*(\]|$))")  # user:secret, where a host would have user:80
_USER = re.compile(r"(\w://)[^\s/]*@")
# whatever stands between the scheme and the question mark, spaces and quotes too, is taken for the path
_QUERY = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\n?]*)\?[^\s'\"]*[^\s'\":,;)]", re.IGNORECASE)
_FRAGMENT = re.compile(r"(\bhttps?://[^\s#'\"]*)#[^\s'\"]*[^\s'\":,;)]", re.IGNORECASE)


def redact(url: str) -> str:
    """The URL without what may be secret in it: user, password, and the values of its query and its fragment."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    authority = _AUTHORITY.match(rest)
    assert authority is not None
    if "@" in authority[0]:
        rest = rest[authority[0].rindex("@") + 1 :]
    elif "@" in rest and _ODD_PORT.search(authority[0]):  # a password with a slash or a question mark in it
        rest = rest.rpartition("@")[2]
    rest, _, query = rest.partition("?")
    is_web = scheme.lower() in ("http", "https")  # elsewhere, # is a letter of the key
    rest, _, fragment = rest.partition("#") if is_web else (rest, "", "")
    return f"{scheme}://{rest}" + ("?..." if query else "#..." if fragment else "")


def redact_text(text: str) -> str:
    """The text without what may be secret in the URLs that it holds."""
    if "://" not in text:
        return text
    return _FRAGMENT.sub(r"\1#...", _QUERY.sub(r"\1?...", _USER.sub(r"\1", text)))
