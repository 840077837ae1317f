"""Everything below a folder, listed in parallel by prefix.

Comes in: the URL of a folder. Goes out: its objects in byte order of their keys, without folder markers. One listing
pages through a prefix at a few thousand keys a second, so subfolders are listed side by side.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from sds.storage.options import StoreOptions
from sds.storage.store import Stores
from sds.types import ObjectInfo
from sds.urls import split

__all__ = ["list_below"]

_MANY = 16  # prefixes enough to keep the listing threads busy
_MAX_DEPTH = 3


def list_below(stores: Stores, url: str, options: StoreOptions) -> list[ObjectInfo]:
    """All objects below the folder at `url`, their full URLs inside."""
    base, key = url.rstrip("/"), split(url).key
    root = f"{key.rstrip('/')}/" if key.strip("/") else ""
    found: list[ObjectInfo] = []
    prefixes = [root]

    # each prefix is tried again by itself: one failure among thousands must not begin the whole walk anew
    def directly(prefix: str) -> tuple[list[str], list[ObjectInfo]]:
        return stores.call(url, options, lambda store, _: store.list_folder(prefix))

    def below(prefix: str) -> list[ObjectInfo]:
        return stores.call(url, options, lambda store, _: [info for page in store.list_all(prefix) for info in page])

    for _ in range(_MAX_DEPTH):
        if len(prefixes) >= _MANY or not prefixes:
            break
        deeper: list[str] = []
        for prefix in prefixes:
            folders, objects = directly(prefix)
            deeper += folders
            found += objects
        prefixes = deeper
    with ThreadPoolExecutor(_MANY) as pool:
        for infos in pool.map(below, prefixes):
            found += infos
    place = base[: len(base) - len(key.rstrip("/"))].rstrip("/")
    kept = {info.url: info for info in found if not info.url.endswith("/") and info.url.startswith(root)}
    ordered = sorted(kept, key=lambda k: k.encode("utf-8", "surrogatepass"))
    return [ObjectInfo(f"{place}/{k}", kept[k].size, kept[k].version) for k in ordered]
