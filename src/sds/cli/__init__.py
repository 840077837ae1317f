"""The command `sds`: one file per subcommand. Results on stdout, progress and logs on stderr.

Exit codes: 0 fine, 1 failed, 2 wrong usage, 130 interrupted. An error of ours is a message with a hint, without a
traceback; SDS_LOG_LEVEL=debug shows that too. Whoever reads the results may stop reading: `sds peek x | head` is fine.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from sds import __version__, logs
from sds.cli import bench, cache, cost, demo, index, peek, report, tensors
from sds.cli.words import HELP_NAMES
from sds.errors import OptionError, SdsError

__all__ = ["app", "main"]

app = typer.Typer(
    name="sds",
    help="Streams training data from anywhere straight into PyTorch.",
    epilog="Try it: sds demo  |  sds peek FOLDER  |  sds --install-completion",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings=HELP_NAMES,
)
app.command("demo", help=demo.HELP, epilog=demo.EXAMPLES)(demo.command)
app.command("peek", epilog=peek.EXAMPLES)(peek.command)
app.command("bench", epilog=bench.EXAMPLES)(bench.command)
app.command("cost", help=cost.HELP, epilog=cost.EXAMPLES)(cost.command)
app.command("report", help=report.HELP, epilog=report.EXAMPLES)(report.command)
app.add_typer(index.app, name="index")
app.add_typer(cache.app, name="cache")
app.add_typer(tensors.app, name="tensors")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"sds {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """What stands before a subcommand."""


def main() -> None:
    """Runs the command line of this process."""
    try:
        logs.set_up()
    except SdsError as error:
        _fail(error, 1)
    try:
        app()
    except SdsError as error:
        if os.environ.get("SDS_LOG_LEVEL", "").strip().lower() == "debug":
            raise
        _fail(error, 2 if isinstance(error, OptionError) else 1)
    except BrokenPipeError:  # nobody reads any more; Python would say so once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(error: SdsError, code: int) -> NoReturn:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(code)
