"""`sds bench`: streams some batches of a source and says how fast that was, and what was in the way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sds.cli.file_columns import tell_forgotten
from sds.cli.tensors_build import load_chain
from sds.cli.words import AsJson, Download, Dst, IdColumn, Query, Src, Storage, open_dataset, parse_limit, show
from sds.errors import OptionError

if TYPE_CHECKING:
    from sds.events import Stats

__all__ = ["EXAMPLES", "command"]

EXAMPLES = (
    "Examples:  sds bench photos --image jpg  |  "
    "sds bench s3://bucket/photos.parquet --id id --image image --batches 200 --workers 2  |  "
    "sds bench clips.parquet --download video --transforms my_code:chain"
)
_SHOWN = (
    "samples",
    "rows_per_s",
    "bytes_per_s",
    "bytes_downloaded",
    "requests",
    "retries",
    "hits",
    "misses",
    "evictions",
    "failures",
    "time_to_first_batch",
    "wall_s",
    "wait_s",
    "busy_s",
    "bottleneck",
)


def command(
    src: Src,
    batches: Annotated[int, typer.Option(min=1, help="How many batches.")] = 100,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a batch.")] = 32,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes; 0: threads of this one.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that decode. Default: the loader's.")] = None,
    image: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Decode and resize the images of a column.")
    ] = None,
    resolution: Annotated[int, typer.Option(min=1, help="The size that --image makes them.")] = 256,
    transforms: Annotated[str | None, typer.Option(help="module:name of a chain, in place of --image.")] = None,
    download: Download = None,
    id_column: IdColumn = "index",
    query: Query = None,
    shuffle: Annotated[int | None, typer.Option(min=0, metavar="SEED", help="Shuffled by this seed.")] = None,
    dst: Dst = None,
    limit: Annotated[str, typer.Option("--limit", "--cache-limit", help="Bytes that the cache may hold.")] = "none",
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Stream batches, and print how fast that was and what was in the way."""
    import sds
    from sds.observe import ProgressBar

    if image is not None and transforms is not None:
        raise OptionError("--image and --transforms exclude each other", hint="put the decoding into your chain")
    chain: list[Any] = []
    if transforms is not None:
        chain = load_chain(transforms)
    elif image is not None:
        from sds.transforms import presets

        chain = [*presets.create_standard_image_pipeline(image, resolution=(resolution, resolution))]
        download = sorted({*(download or ()), image})
    dataset = open_dataset(
        src,
        dst=dst,
        download=download,
        id_column=id_column,
        query=query,
        storage=storage,
        transforms=chain,
        shuffle_seed=shuffle,
        infinite_iteration=True,
        cache_limit=parse_limit(limit),
        allow_missing_columns=False,
    )
    tell_forgotten(dataset.delivery.pipeline.index)
    began = time.monotonic()
    with (
        dataset,
        sds.StreamingDataLoader(
            dataset, batch_size, num_workers=workers, num_threads=threads, collate_fn=_count
        ) as loader,
    ):
        stream = iter(loader)
        for _ in ProgressBar(range(batches), "bench"):
            next(stream)
        stats = loader.stats()
    seconds = time.monotonic() - began
    facts = {"batches": batches, "batch_size": batch_size, "seconds": round(seconds, 3), **_jsonable(stats)}
    show(facts, f"{batches} batches of {batch_size} in {seconds:.2f} s\n{stats}", as_json)


def _count(samples: list[Any]) -> int:
    """A collation that keeps nothing: how batches are put together is up to each user, and samples may differ."""
    return len(samples)


def _jsonable(stats: Stats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in _SHOWN}
