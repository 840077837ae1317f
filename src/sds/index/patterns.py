"""Wildcards: which names a pattern means, equally for a folder on disk and for a listing of a bucket.

`*` and `?` stay inside one folder, `[abc]` and `[!abc]` choose a letter, `**` as a whole part is any number of folders.
Hidden names (a part that begins with a dot) match only where the pattern has that dot.
"""

from __future__ import annotations

import re

from sds.errors import OptionError

__all__ = ["expand", "fixed_folder", "has_wildcard", "matcher"]

_MAGIC = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{},]*(?:,[^{},]*)+))\}")
_MAX_NAMES = 1_000_000


def expand(pattern: str) -> list[str]:
    """The names that braces stand for: 'a-{000..002}.tar', 'a-{x,y}.tar'; nothing, if there are none.

    Raises:
        OptionError: they are too many.
    """
    match = _BRACES.search(pattern)
    if match is None:
        return []
    first, last, words = match.groups()
    if words is None:
        low, high = int(first), int(last)
        if high - low >= _MAX_NAMES:
            raise OptionError(f"braces stand for too many names: {pattern}", hint="give a wildcard, or a list")
        width = max(len(first), len(last)) if first[0] == "0" or last[0] == "0" else 0
        choices = [f"{number:0{width}}" for number in range(low, high + 1)]
        if not choices:
            raise OptionError(f"braces stand for no name: {pattern}", hint="the smaller number is first: {000..099}")
    else:
        choices = words.split(",")
    before, after = pattern[: match.start()], pattern[match.end() :]
    found: list[str] = []
    for rest in expand(after) or [after]:
        found += [f"{before}{choice}{rest}" for choice in choices]
        if len(found) > _MAX_NAMES:
            raise OptionError(f"braces stand for too many names: {pattern}", hint="give a wildcard, or a list")
    return found


def has_wildcard(address: str) -> bool:
    """Whether an address is a pattern; in an http URL, '?' begins the query part and '[' is no letter of a path."""
    if address.lower().startswith(("http://", "https://")):
        return "*" in address.partition("?")[0]
    return _MAGIC.search(address) is not None


def fixed_folder(pattern: str) -> str:
    """The folder of a pattern before its first wildcard: the root of everything it can match."""
    magic = _MAGIC.search(pattern)
    return pattern[: magic.start() if magic else len(pattern)].rpartition("/")[0] or "/"


def matcher(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern; use `fullmatch` on paths of the same form."""
    parts = pattern.split("/")
    pieces: list[str] = []
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if part == "**":
            pieces.append(r"(?:[^/.][^/]*/)*" + ("[^/.][^/]*" if last else ""))
        else:
            pieces.append(_part(part) + ("" if last else "/"))
    return re.compile("".join(pieces), re.DOTALL)


def _part(part: str) -> str:
    out = "(?![.])" if part[:1] in ("*", "?", "[") else ""
    i = 0
    while i < len(part):
        letter, i = part[i], i + 1
        if letter == "*":
            out += "[^/]*"
        elif letter == "?":
            out += "[^/]"
        elif letter == "[" and (end := part.find("]", i + (2 if part[i : i + 1] == "!" else 1))) > 0:
            chosen, i = part[i:end].replace("\\", "\\\\").replace("[", "\\[").replace("&", "\\&"), end + 1
            chosen = f"^/{chosen[1:]}" if chosen.startswith("!") else chosen.replace("^", "\\^", 1)
            out += f"[{chosen}]"
        else:
            out += re.escape(letter)
    return out
