"""A cache that is written to a store: shards are made in a local folder and sent from there, whole, columns last.

Comes in: committed shards of a local folder. Goes out: the same objects below a URL. A shard that is sent leaves its
columns behind, which tell the keys; one that could not be sent stays, and is sent by the next writer. Names have the
hash of what is in them, so that sending one twice changes nothing. A folder belongs to one URL; writers may share it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sds.errors import OptionError
from sds.fetch import FetchClient, FetchOptions
from sds.tensors.catalog import replace_file, summary
from sds.tensors.columns import Facts
from sds.tensors.format import is_name, to_json
from sds.tensors.local import LocalPlace
from sds.tensors.places import cache_folder, store_of
from sds.tensors.remote import RemotePlace
from sds.urls import redact, root_of, split

__all__ = ["MAX_SAMPLE", "MAX_SHARD", "Uploads", "check_url"]

MAX_SHARD = 128 << 20  # an object is sent by one message
MAX_SAMPLE = 768 << 20  # of 1 GB at most, with what the shard had before, and a header

_MARK = ".outbox"


class _Owner(msgspec.Struct, frozen=True):
    """Whose shards a folder holds."""

    url: str
    store: str


class Uploads:
    """The way from a local folder to a URL.

    Args:
        url: where the cache is to be.
        dst: the local folder; None: one in the user's cache folder that belongs to the URL.
        storage_options: endpoint, region, keys, ...
    """

    def __init__(self, url: str, dst: str | Path | None, storage_options: dict[str, Any] | None) -> None:
        self.url = url.rstrip("/")
        self.folder = (cache_folder(url, storage_options) / "writing") if dst is None else Path(dst)
        self._owner = _Owner(redact(self.url), store_of(url, storage_options))
        self._client = FetchClient(FetchOptions(dst=str(self.folder / ".fetch"), settings=dict(storage_options or {})))
        self.place = RemotePlace(self.url, self._client, self.folder)

    def claim(self) -> None:
        """The folder is this URL's from now on. OptionError if it is another's, or a tensor cache of its own."""
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = self.folder / _MARK
        if not mark.exists():
            held = [name for name in ("*.index", "*.safetensors", ".parts/*") if any(self.folder.glob(name))]
            if held and not mark.exists():  # another writer of this URL may have begun meanwhile
                hint = "what is in dst is sent, and then deleted: give an empty folder; copy a cache that is done"
                raise OptionError(f"dst holds tensors that are not on their way to a store: {self.folder}", hint=hint)
            draft = mark.with_name(f"{_MARK}.{os.urandom(8).hex()}")
            draft.write_bytes(to_json(self._owner))
            try:
                os.link(draft, mark)
            except FileExistsError:
                pass
            except OSError:  # a disk without links
                os.replace(draft, mark)
            finally:
                draft.unlink(missing_ok=True)
        try:
            owner = msgspec.json.decode(mark.read_bytes(), type=_Owner)
        except msgspec.MsgspecError:
            owner = _Owner("(unknown)", "")
        if owner != self._owner:
            whose = f"{owner.url} at {owner.store}" if owner.store else owner.url
            hint = "what waits there would go to the wrong place: give each URL a dst of its own"
            raise OptionError(f"dst belongs to {whose}: {self.folder}", hint=hint)

    def learn(self) -> tuple[bytes | None, list[str]]:
        """Brings the folder up to date: columns of what the store has, and nothing of what it no longer has.

        Returns:
            The store's index.json, and the names of the shards that it has.
        """
        noted = self.place.read_file("index.json")
        if noted is None:
            (self.folder / "index.json").unlink(missing_ok=True)
        else:
            replace_file(self.folder / "index.json", noted, self.folder / f".index.json.{os.urandom(8).hex()}")
        # before the store is asked: what another writer of this folder sends from now on stays
        sent = [path for path in self.folder.glob("*.index") if not self._waits(path.stem)]
        there = sorted(self.place.names())
        for path in sent:
            if path.stem not in there:
                path.unlink(missing_ok=True)
        for name in there:
            self.place.columns(name)
        return noted, there

    def _waits(self, name: str) -> bool:
        return (self.folder / f"{name}.safetensors").exists()

    def send(self) -> None:
        """Sends every shard that waits in the folder: tensors first, then the columns, which commit it."""
        for path in sorted(self.folder.glob("*.index")):
            name, tensors = path.stem, path.with_suffix(".safetensors")
            if not is_name(name):
                continue
            try:
                data, columns = tensors.read_bytes(), path.read_bytes()
            except FileNotFoundError:
                continue  # it is there, or another writer of this folder was faster
            self._client.put(f"{self.url}/{name}.safetensors", data)
            self._client.put(f"{self.url}/{name}.index", columns)
            tensors.unlink(missing_ok=True)

    def publish(self, local: LocalPlace, hashes: Callable[[Facts], Facts]) -> None:
        """Sends index.json, until it has every shard that the store has: other writers may end at the same time.

        What another writer of this folder has committed, but not sent yet, is not in it: that one will see to it.
        """
        while True:
            noted, there = self.learn()
            told = summary(local, noted, there, hashes)
            if told == noted:
                return
            self._client.put(f"{self.url}/index.json", told)

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()


def check_url(url: str) -> None:
    """A URL that can be written to, or an OptionError."""
    if split(url).scheme in ("http", "https"):
        hint = "write to s3://, gs://, az:// or to a local folder"
        raise OptionError(f"a web server takes no tensor cache: {root_of(url)}", hint=hint)
