"""What `src` means: a path, URL, wildcard, directory, text list, or several of them -> index files and sample files.

Goes out: a Source, which names every file with its version, so that its identity changes when anything there changes.
No index file is opened here. Order is fixed: names in byte order, lines of a list and entries of `src` as they stand.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from sds.errors import ObjectNotFound, OptionError, SchemaError, SourceError, SourceNotFound, UnsupportedSource
from sds.index import addresses
from sds.index.formats import (
    LIST_EXTENSION,
    Format,
    describe_known,
    extension_of,
    format_of,
    is_index_file,
    is_own_index,
    is_packed_tar,
    is_parquet_folder,
    is_tars,
    splits_of,
)
from sds.index.lance import is_lance, pin_lance
from sds.index.listing import ListedFile, file_version, list_local, list_remote
from sds.index.parts import IndexFile, SampleFiles, Source
from sds.index.patterns import expand, fixed_folder, has_wildcard, matcher
from sds.index.remote import OpenRemote
from sds.urls import SCHEMES, is_remote, root_of, split

__all__ = ["SourceLike", "find_source"]

SourceLike: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_NUM_HEADS_AT_ONCE = 16
_KINDS = (
    "give a path, a URL, a wildcard, a directory, or a list of those; rows that are in memory (records, a table, "
    "a data frame) come from a function: def rows(): return records"
)


def find_source(src: SourceLike, *, folder: Path, open_remote: OpenRemote) -> Source:
    """Finds every file that `src` means.

    Args:
        src: a path, URL, wildcard, directory or text list, or a list of those.
        folder: where indexes are built; it, and the objects cached beside it, are no part of a directory around them.
        open_remote: gives the reader of remote objects; called only if something is remote.

    Raises:
        OptionError: `src` is nothing that could be a source.
        SourceNotFound: nothing is there.
        UnsupportedSource: a file is there that no reader knows.
    """
    built = Path(addresses.absolute(os.fspath(folder)))
    # a cache inside its own source: what it made is no sample
    finder = _Finder((str(built), str(built.parent / "objects")), open_remote)
    if isinstance(src, str | os.PathLike):
        text = _text(src)
        if not (names := expand(text)) or os.path.exists(text):
            return finder.find(text)
        src = names
    if callable(src) or hasattr(src, "rows"):
        raise OptionError(
            f"src is a data provider, which has no files: {type(src).__qualname__}",
            hint="StreamingDataset takes it; an object needs __len__ and rows(ids)",
        )
    if not isinstance(src, list | tuple) or not src:
        raise OptionError(f"src is not a source: {_short(src)}", hint=_KINDS)
    sources = finder.find_all([_text(entry) for entry in src])
    if len(sources) == 1:
        return sources[0]
    parts = tuple(part for source in sources for part in source.parts)
    return Source("several", sources[0].name, parts, tuple(each for source in sources for each in source.asked))


def _text(src: str | os.PathLike[str]) -> str:
    text = os.fspath(src) if isinstance(src, str | os.PathLike) else src
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise OptionError(f"src is not a path or URL: {_short(src)}", hint=_KINDS)
    return text


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) < 80 else f"{text[:80]}..."


class _Finder:
    def __init__(self, exclude: tuple[str, ...], open_remote: OpenRemote) -> None:
        self._exclude = exclude
        self._open_remote = open_remote

    def find_all(self, texts: list[str]) -> list[Source]:
        """Several sources, in order; those of a store are asked for side by side."""
        if len(texts) < 2 or not any(map(is_remote, texts)):
            return [self.find(text) for text in texts]
        with ThreadPoolExecutor(_NUM_HEADS_AT_ONCE) as pool:
            return list(pool.map(self.find, texts))

    def find(self, text: str) -> Source:
        address = addresses.absolute(text)
        if is_lance(address):
            table, version = pin_lance(address)
            return Source("lance", _name(table), (IndexFile(table, Format("lance"), version),), (address,))
        if is_packed_tar(address):
            raise _packed(address)
        if is_remote(address):
            split(address)  # names a bucket or host
            source = self._remote(address)
        elif text.endswith("/") and not Path(address).is_dir() and not has_wildcard(address):
            raise _not_found(address)
        else:
            source = self._local(address)
        return replace(source, asked=(addresses.without_query(address),))  # a signature is another one each time

    def _local(self, path: str) -> Source:
        if Path(path).is_dir():
            return _directory(path, list_local(path, exclude=self._exclude))
        if Path(path).exists():
            return self._file(path)
        if has_wildcard(path):  # only now: a file that is there may have a bracket in its name
            root = fixed_folder(path)
            found = [p for p in glob.glob(path, recursive=True) if not Path(p).is_dir()]
            below = len(root.rstrip("/")) + 1
            return self._wildcard(path, root, [ListedFile(p[below:], _local_version(p)) for p in sorted(found)])
        raise _not_found(path)

    def _remote(self, url: str) -> Source:
        if has_wildcard(url):
            root = fixed_folder(url)
            wanted = matcher(url[len(root) + 1 :])
            files = [file for file in list_remote(root, self._open_remote()) if wanted.fullmatch(file.path)]
            return self._wildcard(url, root, files)
        if not url.endswith("/") and (is_index_file(url) or extension_of(url) == LIST_EXTENSION):
            return self._file(url)
        files = list_remote(url, self._open_remote())
        if files:
            return _directory(url.rstrip("/"), files)
        if not url.endswith("/"):
            self._version(url)  # SourceNotFound, unless it is a file of some other kind
            raise _unsupported(url)
        listed = None if addresses.is_http(url) else f"the bucket {root_of(url)} exists: check the rest of the address"
        raise _not_found(url, listed)

    def _file(self, address: str) -> Source:
        format_ = format_of(address)
        if format_ is not None:
            return Source("file", _name(address), (IndexFile(address, format_, self._version(address)),))
        if extension_of(address) == LIST_EXTENSION:
            return self._list(address)
        raise _unsupported(address)

    def _wildcard(self, pattern: str, root: str, files: list[ListedFile]) -> Source:
        if not files:
            raise _not_found(pattern)
        # the pattern's own ending decides; one without an ending means tables only if it matches nothing else
        if format_of(pattern) is not None or all(is_index_file(file.path) for file in files):
            parts: list[IndexFile | SampleFiles] = []
            for file in files:
                format_ = format_of(file.path)
                if format_ is None:
                    raise _unsupported(addresses.join(root, file.path))
                parts.append(IndexFile(addresses.join(root, file.path), format_, file.version))
            return Source("wildcard", _name(root), tuple(parts))
        return Source("wildcard", _name(root), (_samples(pattern, root, files),))

    def _list(self, address: str) -> Source:
        version = self._version(address)
        folder = addresses.folder_of(address)
        tables: list[str] = []
        samples: list[ListedFile] = []
        for line in self._lines(address):
            if is_index_file(line):
                tables.append(_from_list(folder, line, address))
            else:
                samples.append(ListedFile(line, ""))
        parts: list[IndexFile | SampleFiles] = []
        for table, table_version in zip(tables, self._versions(tables), strict=True):
            format_ = format_of(table)
            assert format_ is not None
            parts.append(IndexFile(table, format_, table_version, from_web=addresses.is_http(address)))
        if samples:
            token = f"list {address} {version}"
            parts.append(SampleFiles(address, folder, tuple(samples), token, from_list=True))
        if not parts:
            raise SourceError(
                f"list has no lines: {address}", hint="write one index file or sample file a line", url=address
            )
        return Source("list", _name(address), tuple(parts))

    def _lines(self, address: str) -> list[str]:
        content = self._open_remote().read(address) if is_remote(address) else Path(address).read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as e:
            raise SourceError(
                f"list is not UTF-8 text: {address}", hint="write one path or URL a line", url=address
            ) from e
        return [stripped for line in text.split("\n") if (stripped := line.strip())]

    def _versions(self, urls: list[str]) -> list[str]:
        if len(urls) < 2 or not any(map(is_remote, urls)):
            return [self._version(url) for url in urls]
        with ThreadPoolExecutor(_NUM_HEADS_AT_ONCE) as pool:
            return list(pool.map(self._version, urls))

    def _version(self, address: str) -> str:
        if not is_remote(address):
            return _local_version(address)
        try:
            info = self._open_remote().head(address)
        except ObjectNotFound as e:
            raise _not_found(address, e.hint) from e
        return f"{info.size}-{info.version}"


def _directory(root: str, files: list[ListedFile]) -> Source:
    if not files:
        raise SourceError(
            f"directory has no files: {root}", hint="hidden files do not count; is it the right one?", url=root
        )
    names = [file.path for file in files]
    if all(map(is_packed_tar, names)):
        raise _packed(root)
    if is_tars(names):
        shards = [file for file in files if extension_of(file.path) == "tar"]
        parts = tuple(IndexFile(addresses.join(root, file.path), Format("tar"), file.version) for file in shards)
        return Source("directory", _name(root), parts)
    if is_parquet_folder(names):
        return Source("directory", _name(root), _parquet_parts(root, files))
    samples = [file for file in files if not is_own_index(file.path)]  # an index beside its samples is none of them
    return Source("directory", _name(root), (_samples(root, root, samples),))


def _parquet_parts(root: str, files: list[ListedFile]) -> tuple[IndexFile, ...]:
    splits = splits_of([file.path for file in files])
    if len(splits) > 1:
        raise SourceError(
            f"folder has the files of several splits: {', '.join(splits)}: {root}",
            hint=f"choose one with a wildcard, such as {root.rstrip('/')}/**/*{splits[0]}*.parquet",
            url=root,
        )
    parts = []
    for file in files:
        if extension_of(file.path) in ("parquet", "pq"):
            address = addresses.join(root, file.path)
            # a listing tells less of a local file than an index file is known by
            version = file.version if is_remote(address) else _local_version(address)
            parts.append(IndexFile(address, Format("parquet"), version))
    return tuple(parts)


def _samples(origin: str, root: str, files: list[ListedFile]) -> SampleFiles:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.path}\0{file.version}\0".encode())
    return SampleFiles(origin, root, tuple(files), f"samples {root} {digest.hexdigest()}")


def _local_version(path: str) -> str:
    try:
        stat = os.stat(path)
    except FileNotFoundError as e:
        raise _not_found(path) from e
    return file_version(stat)


def _from_list(folder: str, line: str, address: str) -> str:
    if addresses.is_absolute(line):
        try:
            named = addresses.absolute(line)
        except OptionError as e:
            raise SourceError(f"line of {address} is no address: {e.message}", hint=e.hint, url=address) from e
        if addresses.is_http(address) and not is_remote(named):
            raise SchemaError(
                f"list on a web server names a local file: {line!r} in {address}",
                hint="if you trust it, copy the list to a local disk and open it there",
                url=address,
            )
        return named
    joined = addresses.normalise(addresses.join(folder, addresses.literal(folder, line)))
    if joined is None:
        raise SourceError(
            f"line of {address} climbs above its bucket: {line!r}", hint="write the whole URL", url=address
        )
    return joined


def _name(address: str) -> str:
    """A name for people, and for files: the query of an http URL, which may be a signature, is no part of it."""
    anchor, path = addresses.split_anchor(addresses.without_query(address))
    return path.rpartition("/")[2] or anchor


def _not_found(address: str, told: str | None = None) -> SourceNotFound:
    """Nothing is there; `told` is what the store says of it."""
    if is_remote(address):
        hint = f"{told or 'check bucket, path and endpoint'}; a directory needs at least one object below it"
    else:
        there = Path(address)
        while not there.exists() and there != there.parent:
            there = there.parent
        hint = f"the part of it that exists is {there}; relative paths start at the working folder"
        beside = difflib.get_close_matches(_after(there, address), _names(there), n=1, cutoff=0.8)
        if beside:
            hint = f"did you mean {str(there / beside[0])!r}? {hint}"
        if any(f"{scheme}:" in Path(address).parts for scheme in SCHEMES):
            hint = "a URL has two slashes: scheme://bucket/path"
        if "pipe:" in address:
            hint = "no command is run: give the address that it reads from, such as s3://bucket/train-{0000..0099}.tar"
    return SourceNotFound(f"nothing is at the source: {address}", hint=hint, url=address)


def _after(folder: Path, address: str) -> str:
    """The first part of a path that is not there."""
    return Path(address).relative_to(folder).parts[0] if Path(address) != folder else ""


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)[:10_000]  # enough to guess from
    except OSError:  # a file, or a folder that is not ours to look into
        return []


def _packed(address: str) -> UnsupportedSource:
    return UnsupportedSource(
        f"tar is compressed: {address}",
        hint="no byte of it can be read without all before it: decompress it (gunzip, zstd -d) and give the .tar",
        url=address,
    )


def _unsupported(address: str) -> UnsupportedSource:
    return UnsupportedSource(
        f"no reader knows this kind of file: {address}",
        hint=f"index files end in {describe_known()}; .txt is a list of files; for sample files give their folder",
        url=address,
    )
