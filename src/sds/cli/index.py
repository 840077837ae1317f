"""`sds index`: indexes made, looked at, split and exported. Each of them has a file of its own."""

from __future__ import annotations

import typer

from sds.cli.index_build import EXAMPLES as BUILD_EXAMPLES
from sds.cli.index_build import command as build
from sds.cli.index_export import EXAMPLES as EXPORT_EXAMPLES
from sds.cli.index_export import command as export
from sds.cli.index_info import EXAMPLES as INFO_EXAMPLES
from sds.cli.index_info import command as info
from sds.cli.index_split import EXAMPLES as SPLIT_EXAMPLES
from sds.cli.index_split import command as split
from sds.cli.words import HELP_NAMES

__all__ = ["app"]

app = typer.Typer(
    help="Indexes: build one, look at one, split one, export one from a database.",
    epilog="Example:  sds index build s3://bucket/photos -o photos.parquet",
    no_args_is_help=True,
    context_settings=HELP_NAMES,
)
app.command("build", epilog=BUILD_EXAMPLES)(build)
app.command("info", epilog=INFO_EXAMPLES)(info)
app.command("split", epilog=SPLIT_EXAMPLES)(split)
app.command("export", epilog=EXPORT_EXAMPLES)(export)
