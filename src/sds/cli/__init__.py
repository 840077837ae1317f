"""The command `sds`: one file per subcommand. Results on stdout, progress and logs on stderr.

Exit codes: 0 fine, 1 failed, 2 wrong usage, 130 interrupted. An error of ours is a message with a hint, without a
traceback; SDS_LOG_LEVEL=debug shows that too.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from sds import __version__, logs
from sds.cli import demo, tensors
from sds.errors import SdsError

__all__ = ["app", "main"]

app = typer.Typer(
    name="sds",
    help="Streams training data from anywhere straight into PyTorch.",
    epilog="Try it: sds demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo", help=demo.HELP, epilog=demo.EXAMPLES)(demo.command)
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
        app()
    except SdsError as error:
        if os.environ.get("SDS_LOG_LEVEL", "").strip().lower() == "debug":
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
