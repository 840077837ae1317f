"""`sds tensors`: tensor caches from the command line: what is in one, one out of a dataset, one out of ComfyUI's files.

A build keeps what a chain of transforms makes of each row. It can be interrupted, killed and started again: what was
computed stays, and no tensor of it is read to find that out.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.tensors_build import Build, compute_on_ray, load_chain
from sds.errors import OptionError
from sds.units import format_bytes

if TYPE_CHECKING:
    from sds.tensors import TensorCache

__all__ = ["app"]

app = typer.Typer(
    help="Tensor caches: look at one, build one, convert one.",
    epilog="Example:  sds tensors info latents",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

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

    asked = Build(src, path, transforms, threads, download, id_column, query, dst, shard_size, version)
    if engine == "ray":
        load_chain(transforms)  # what is wrong with it is told before anything is started
        with redirect_stdout(sys.stderr):  # Ray speaks of what dies; results alone are for stdout
            compute_on_ray(asked, num_workers or 2, worker_gpus or 0.0)
    elif engine is not None:
        raise OptionError(f"engine is unknown: {engine!r}", hint="'ray', or leave it out for this process")
    elif num_workers is not None or worker_gpus is not None:
        hint = "add --engine ray; in this process, --threads says how many compute side by side"
        raise OptionError("--num-workers and --worker-gpus are for an engine", hint=hint)
    with asked.open() as dataset, asked.load(dataset) as loader:
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
