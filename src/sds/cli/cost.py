"""`sds cost`: what a run over a source will cost, or what a recorded one has cost."""

from __future__ import annotations

import tempfile
from typing import Annotated

import typer

from sds.cli.file_columns import tell_forgotten
from sds.cli.words import AsJson, Download, IdColumn, Query, Storage, open_dataset, parse_limit, show
from sds.errors import OptionError

__all__ = ["EXAMPLES", "HELP", "command"]

HELP = "Say what going through a source will cost, before a byte of it is read; or what a recorded run has cost."
EXAMPLES = (
    "Examples:  sds cost s3://bucket/photos.parquet --download image --epochs 3 --cache-limit 100gb  |  "
    "sds cost --run run.jsonl --json"
)


def command(
    src: Annotated[str | None, typer.Argument(metavar="SRC", help="An index file, a folder; a path or a URL.")] = None,
    run: Annotated[str | None, typer.Option(help="What loader.record(path) wrote: what it has cost.")] = None,
    download: Download = None,
    id_column: IdColumn = "index",
    query: Query = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times to go through it.")] = 1,
    cache_limit: Annotated[
        str, typer.Option("--limit", "--cache-limit", help="What the cache may hold; 'none': everything.")
    ] = "10gb",
    prices: Annotated[str | None, typer.Option(help="A JSON or YAML table of prices.")] = None,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Estimates, or adds up."""
    if (src is None) == (run is None):
        hint = "sds cost SRC estimates; sds cost --run RUN adds up what was recorded"
        raise OptionError("sds cost needs a source or a run, and not both", hint=hint)
    asked = {"--download": download, "--query": query, "--storage": storage, "--id-column": id_column != "index"}
    asked |= {"--epochs": epochs != 1, "--cache-limit": cache_limit != "10gb"}
    for option, is_given in asked.items():
        if run is not None and is_given:
            hint = "leave it out, or estimate a run that is to come: sds cost SRC"
            raise OptionError(f"{option} is for an estimate: a recorded run has cost what it has cost", hint=hint)
    from sds.observe.costs import priced
    from sds.observe.runs import read_runs
    from sds.stats import summed_traffic

    if run is not None:
        paid = priced(summed_traffic([one.stats.traffic for one in read_runs(run)]), prices)
        show(paid.to_dict(), str(paid), as_json)
        return
    from sds.observe.estimates import estimate

    assert src is not None
    # nothing of it is kept: the cache of the run is somewhere else
    with (
        tempfile.TemporaryDirectory(prefix="sds-cost-", ignore_cleanup_errors=True) as dst,
        open_dataset(
            src,
            dst=dst,
            download=download,
            id_column=id_column,
            query=query,
            storage=storage,
            allow_missing_columns=False,
        ) as dataset,
    ):
        tell_forgotten(dataset.delivery.pipeline.index)
        found = estimate(dataset, epochs=epochs, cache_limit=parse_limit(cache_limit), prices=prices)
    show(found.to_dict(), str(found), as_json)
