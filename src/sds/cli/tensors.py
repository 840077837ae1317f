"""`sds tensors`: tensor caches from the command line: what is in one, one out of a dataset, one out of ComfyUI's files.

A build keeps what a chain of transforms makes of each row. It can be interrupted, killed and started again: what was
computed stays, and no tensor of it is read to find that out.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.errors import OptionError
from sds.units import format_bytes

if TYPE_CHECKING:
    from sds.tensors import TensorCache
    from sds.types import Sample

__all__ = ["app"]

app = typer.Typer(
    help="Tensor caches: look at one, build one, convert one.",
    epilog="Example:  sds tensors info latents",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_BATCH = 8  # rows per step of a build: what a bar counts, and what an interrupt may cost in time
_MAX_SHOWN = 8  # kinds of samples that are printed

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command("info", epilog="Examples:  sds tensors info latents  |  sds tensors info s3://bucket/latents --json")
def info(
    path: Annotated[str, typer.Argument(help="A folder, or the URL of one.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read everything and compare it with its hashes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is in a tensor cache; reads no tensor, unless it is to verify them."""
    from sds.tensors import TensorCache

    with TensorCache(path) as cache:
        if verify:
            cache.verify()
        facts = _facts(cache)
    if verify:
        facts["verified"] = True
    print(json.dumps(facts, indent=2) if as_json else _text(facts))


@app.command("import-comfyui", epilog="Example:  sds tensors import-comfyui output/my-dataset my-dataset.tensors")
def import_comfyui(
    folder: Annotated[str, typer.Argument(help="What ComfyUI saved: shard_0000.pkl and so on.")],
    path: Annotated[str, typer.Argument(help="The tensor cache to write.")],
    drop: Annotated[
        bool, typer.Option("--drop-opaque", help="Leave out hooks and control nets; else: refuse.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Convert a training dataset of ComfyUI, without running anything that is in it."""
    from sds import tensors

    with tensors.import_comfyui(folder, path, opaque="drop" if drop else "refuse") as cache:
        facts = _facts(cache)
    print(json.dumps(facts, indent=2) if as_json else _text(facts))


@app.command(
    "build",
    epilog="Example:  sds tensors build s3://bucket/photos.parquet latents --transforms my_code:chain --download image",
)
def build(
    src: Annotated[str, typer.Argument(help="An index file, a folder, a URL: whatever a StreamingDataset takes.")],
    path: Annotated[str, typer.Argument(help="The tensor cache to write, or to go on with.")],
    transforms: Annotated[
        str, typer.Option(help="module:name of a chain: a list of transforms, or a function that returns one.")
    ],
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that compute. Default: the cores.")] = None,
    download: Annotated[list[str] | None, typer.Option(help="A column to download; may be repeated.")] = None,
    id_column: Annotated[str, typer.Option("--id", help="The column of ids: the keys of the cache.")] = "index",
    query: Annotated[str | None, typer.Option(help="A SELECT over a table named dataframe.")] = None,
    dst: Annotated[str | None, typer.Option(help="The cache folder of fetched files.")] = None,
    shard_size: Annotated[str, typer.Option(help="Bytes of tensors per file.")] = "512mb",
    version: Annotated[str | None, typer.Option(help="Says what the chain does, in place of its code's hash.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a chain over a dataset and keep what it makes; started again, it goes on where it stopped."""
    import sds
    from sds.observe import ProgressBar
    from sds.tensors import TensorCache
    from sds.transforms import Remember

    chain = load_chain(transforms)
    dataset = sds.StreamingDataset(
        src,
        dst,
        transforms=[Remember(chain, path, version=version, by="key", shard_size=shard_size), KeepKey()],
        columns_to_download=download,
        index_col_name=id_column,
        sql_query=query,
    )
    with dataset, sds.StreamingDataLoader(dataset, _BATCH, num_threads=threads, collate_fn=len) as loader:
        bar = ProgressBar(loader, f"build {path}", unit="steps")
        for _ in bar:
            bar.note(f"{loader.stats().samples} samples")
        failures = list({failure.key: failure for failure in dataset.quarantine()}.values())  # stand-ins may repeat one
    with TensorCache(path) as cache:
        facts = {**_facts(cache), "rows": len(dataset), "failures": len(failures)}
    print(json.dumps(facts, indent=2) if as_json else _text(facts))
    for failure in failures[:_MAX_SHOWN]:
        print(f"failed: {failure.key} at stage {failure.stage}: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


class KeepKey:
    """Lets go of everything but the key: a build has no use for what it has written already, so it is not read."""

    takes_lazy = True

    def __call__(self, sample: Sample) -> Sample:
        """The sample's key, if the chain left it that."""
        return {"key": sample.get("__sample_key__", "")}


def load_chain(name: str) -> list[Any]:
    """The transforms that `module:name` stands for.

    Raises:
        OptionError: there is no such module or name, or it is no chain.
    """
    module_name, _, attribute = name.partition(":")
    hint = "module:name, where name is a list of transforms, or a function without arguments that returns one"
    if not module_name or not attribute:
        raise OptionError(f"transforms is not module:name: {name!r}", hint=hint)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it: a script beside the data is the usual case
    try:
        value = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise OptionError(f"transforms cannot be imported: {name!r}: {error}", hint=hint) from error
    try:
        chain = value() if callable(value) else value
    except TypeError as error:
        raise OptionError(f"transforms is no chain: {name!r}: {error}", hint=hint) from error
    if not isinstance(chain, Iterable) or isinstance(chain, str | bytes | dict):
        raise OptionError(f"transforms is no chain: {name!r} is {type(chain).__name__}", hint=hint)
    return list(chain)


def _facts(cache: TensorCache) -> dict[str, Any]:
    """What is in a cache, for people and for JSON."""
    numbers, infos = cache.buckets()
    kinds = [
        {
            "samples": int((numbers == number).sum()),
            "tensors": {
                field: {"shape": list(info.shape), "dtype": str(info.dtype).removeprefix("torch.")}
                for field, info in each.items()
            },
        }
        for number, each in enumerate(infos)
    ]
    return {
        "path": cache.path,
        "samples": len(cache),
        "bytes": cache.nbytes,
        "shards": len(cache.shard_names),
        "fingerprint": cache.fingerprint,
        "other_fingerprints": [each for each in cache.fingerprints if each != cache.fingerprint],
        "kinds": sorted(kinds, key=lambda kind: -kind["samples"]),
    }


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"{facts['samples']} samples, {format_bytes(facts['bytes'])} in {facts['shards']} shards: {facts['path']}",
        f"made by: {facts['fingerprint'] or '(not said)'}",
    ]
    if facts["other_fingerprints"]:
        lines.append(f"older generations: {', '.join(map(repr, facts['other_fingerprints']))}")
    for kind in facts["kinds"][:_MAX_SHOWN]:
        lines.append(f"{kind['samples']} samples with")
        lines += [f"  {field}: {each['dtype']} {each['shape']}" for field, each in kind["tensors"].items()]
    if len(facts["kinds"]) > _MAX_SHOWN:
        lines.append(f"and {len(facts['kinds']) - _MAX_SHOWN} other kinds (--json has all)")
    if facts.get("verified"):
        lines.append("verified: every hash is right")
    if "failures" in facts:
        lines.append(f"rows: {facts['rows']}, failed: {facts['failures']}")
    return "\n".join(lines)
