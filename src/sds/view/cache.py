"""A cache folder, for those who look at it: how much is in it, and whether a file is.

Comes in: a folder, a URL. Goes out: counts, yes or no. Nothing is locked, asked for or changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["describe", "endpoints", "is_cached", "object_folders"]

_CLOUDS = ("AWS_", "GOOGLE_", "AZURE_")  # as the fetch server gets them
_ENDINGS = ("endpoint", "endpoint_url", "base_url")


def object_folders(folder: Path) -> list[Path]:
    """Where objects lie: those of this host, which may be a guest in a folder of another's."""
    from sds.fetch.owner import host_key

    return [path for path in (folder / "objects", folder / "hosts" / host_key() / "objects") if path.is_dir()]


def describe(folder: Path) -> dict[str, Any]:
    """Whole files and their bytes."""
    from sds.fetch.folder import scan

    whole = [found for objects in object_folders(folder) for found in scan(str(objects)) if found.key is not None]
    return {"path": str(folder), "files": len(whole), "bytes": sum(found.size for found in whole)}


def endpoints(settings: Mapping[str, Any]) -> set[str | None]:
    """Where stores may have been reached, as far as can be told from here: a file's name depends on it."""
    given = [settings, *(each for each in settings.values() if isinstance(each, dict))]
    named = {str(each[name]) for each in given for name in each if name.lower().endswith(_ENDINGS)}
    clouds = {value for name, value in os.environ.items() if name.startswith(_CLOUDS) and "ENDPOINT" in name}
    return {None, *named, *clouds}


def is_cached(folder: Path, url: str, version: str | None, places: set[str | None]) -> bool:
    """Whether a whole copy of an object is there."""
    from sds.fetch.folder import key_of

    for objects in object_folders(folder):
        for place in places:
            key = key_of(url, version, place)
            try:
                if any(name.startswith(f"{key}-") for name in os.listdir(objects / key[:2])):
                    return True
            except OSError:  # there is no such bucket
                continue
    return False
