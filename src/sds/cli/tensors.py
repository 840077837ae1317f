"""`sds tensors`: tensor caches from the command line: what is in one, one out of a dataset, one out of ComfyUI's files,
and one without what nobody wants any more.

A build keeps what a chain of transforms makes of each row. It can be interrupted, killed and started again: what was
computed stays, and no tensor of it is read to find that out.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.ray_engine import check_engine
from sds.cli.tensors_build import Build, compute_on_ray, load_chain
from sds.cli.words import HELP_NAMES, AsJson, Query, Storage, show
from sds.units import format_bytes

if TYPE_CHECKING:
    from sds.tensors import TensorCache

__all__ = ["app"]

app = typer.Typer(
    help="Tensor caches: look at one, build one, convert one, delete what is old in one.",
    epilog="Example:  sds tensors info latents",
    no_args_is_help=True,
    context_settings=HELP_NAMES,
)

_MAX_SHOWN = 8  # kinds of samples that are printed


@app.command("info", epilog="Examples:  sds tensors info latents  |  sds tensors info s3://bucket/latents --json")
def info(
    path: Annotated[str, typer.Argument(help="A folder, or the URL of one.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read everything and compare it with its hashes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is in a tensor cache, and which generations; reads no tensor, unless it is to verify them."""
    from sds.tensors import TensorCache

    with TensorCache(path) as cache:
        if verify:
            cache.verify()
        facts = _facts(cache)
    if verify:
        facts["verified"] = True
    show(facts, _text(facts), as_json)


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
    show(facts, _text(facts), as_json)


@app.command(
    "build",
    epilog="Example:  sds tensors build s3://bucket/photos.parquet latents --transforms my_code:chain --download image",
)
def build(
    src: Annotated[str, typer.Argument(help="An index file, a folder, a URL: whatever a StreamingDataset takes.")],
    path: Annotated[str, typer.Argument(help="The tensor cache to write, or to go on with: a local folder.")],
    transforms: Annotated[
        str, typer.Option(help="module:name of a chain: a list of transforms, or a function that returns one.")
    ],
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that compute. Default: the cores.")] = None,
    download: Annotated[list[str] | None, typer.Option(help="A column to download; may be repeated.")] = None,
    id_column: Annotated[str, typer.Option("--id", help="The column of ids: the keys of the cache.")] = "index",
    query: Query = None,
    dst: Annotated[str | None, typer.Option(help="The cache folder of fetched files.")] = None,
    storage: Storage = None,
    shard_size: Annotated[str, typer.Option(help="Bytes of tensors per file.")] = "512mb",
    version: Annotated[str | None, typer.Option(help="Says what the chain does, in place of its code's hash.")] = None,
    engine: Annotated[str | None, typer.Option(help="ray: spread over Ray's workers, which share PATH.")] = None,
    num_workers: Annotated[
        int | None, typer.Option(min=1, help="With an engine: how many workers. Default: 2.")
    ] = None,
    worker_gpus: Annotated[
        float | None, typer.Option(min=0, help="With an engine: GPUs of a worker. Default: 0.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a chain over a dataset and keep what it makes; started again, it goes on where it stopped."""
    from sds.observe import ProgressBar
    from sds.tensors import TensorCache

    asked = Build(src, path, transforms, threads, download, id_column, query, dst, shard_size, version, storage)
    asked.check()
    is_spread = check_engine(engine, num_workers=num_workers, worker_gpus=worker_gpus)
    if is_spread:
        load_chain(transforms)  # what is wrong with it is told before anything is started
        compute_on_ray(asked, num_workers or 2, worker_gpus or 0.0)
    with asked.open() as dataset, asked.load(dataset) as loader:
        memory, num_rows = dataset.delivery.pipeline.memory, len(dataset)
        assert memory is not None
        bar = ProgressBar(loader, f"build {path}", unit="steps")
        for _ in bar:
            there = f", {memory.num_found} were there" if memory.num_found and not is_spread else ""
            bar.note(f"{loader.stats().samples} samples{there}")
        num_found = min(memory.num_found, num_rows)  # stand-ins may be among them
        failures = list({failure.key: failure for failure in dataset.quarantine()}.values())  # stand-ins may repeat one
    with TensorCache(path) as cache:
        facts = {**_facts(cache), "rows": num_rows, "failures": len(failures)}
    if not is_spread:  # else: what the workers made would count
        facts["already_there"] = num_found
    show(facts, _text(facts), as_json)
    for failure in failures[:_MAX_SHOWN]:
        print(f"failed: {failure.key} at stage {failure.stage}: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


@app.command(
    "prune", epilog="Examples:  sds tensors prune latents  |  sds tensors prune latents --keep 'code 5b1d87d17778fe31'"
)
def prune(
    path: Annotated[str, typer.Argument(help="A tensor cache: a local folder.")],
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FINGERPRINT", help="A generation that stays; may be repeated. Default: the current one alone."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete older generations of a tensor cache: what other transforms or arguments made."""
    from sds.tensors.generations import prune as delete

    deleted = delete(path, keep or ())
    num_bytes = sum(each.bytes for each in deleted)
    lines = [f"deleted: {_line(asdict(each))}" for each in deleted]
    lines.append(f"{format_bytes(num_bytes)} in {len(deleted)} generations deleted: {path}")
    show({"path": path, "bytes": num_bytes, "deleted": [asdict(each) for each in deleted]}, "\n".join(lines), as_json)


def _facts(cache: TensorCache) -> dict[str, Any]:
    """What is in a cache, for people and for JSON."""
    from sds.tensors.catalog import load
    from sds.tensors.generations import generations_of
    from sds.tensors.local import LocalPlace

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
    catalog = load(cache.place, is_listed=isinstance(cache.place, LocalPlace))
    return {
        "path": cache.path,
        "samples": len(cache),
        "bytes": cache.nbytes,
        "shards": len(cache.shard_names),
        "fingerprint": cache.fingerprint,
        "generations": [asdict(each) for each in generations_of(catalog)],
        "kinds": sorted(kinds, key=lambda kind: -kind["samples"]),
    }


def _text(facts: dict[str, Any]) -> str:
    lines = [
        f"{facts['samples']} samples, {format_bytes(facts['bytes'])} in {facts['shards']} shards: {facts['path']}",
        f"made by: {facts['fingerprint'] or '(not said)'}",
    ]
    if len(facts["generations"]) > 1:
        lines.append(f"{len(facts['generations'])} generations, the oldest first:")
        lines += [f"  {_line(each)}" for each in facts["generations"]]
    for kind in facts["kinds"][:_MAX_SHOWN]:
        lines.append(f"{kind['samples']} samples with")
        lines += [f"  {field}: {each['dtype']} {each['shape']}" for field, each in kind["tensors"].items()]
    if len(facts["kinds"]) > _MAX_SHOWN:
        lines.append(f"and {len(facts['kinds']) - _MAX_SHOWN} other kinds (--json has all)")
    if facts.get("verified"):
        lines.append("verified: every hash is right")
    if "failures" in facts:
        lines.append(f"rows: {facts['rows']}, failed: {facts['failures']}")
    if facts.get("already_there"):
        lines.append(f"already there: {facts['already_there']} of {facts['rows']}")
    return "\n".join(lines)


def _line(generation: dict[str, Any]) -> str:
    """A generation, in one line."""
    size = f"{generation['samples']} samples, {format_bytes(generation['bytes'])}"
    current = " (current)" if generation["is_current"] else ""
    return f"{generation['fingerprint'] or '(not said)'}: {size}{current}"
