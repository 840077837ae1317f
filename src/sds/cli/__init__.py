"""The command `sds`: one file per subcommand. Results on stdout, progress and logs on stderr.

Exit codes: 0 fine, 1 failed, 2 wrong usage, 130 interrupted. An error of ours is a message with a hint, without a
traceback; SDS_LOG_LEVEL=debug shows that too. Whoever reads the results may stop reading: `sds peek x | head` is fine.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from sds import __version__, logs
from sds.cli import bench, cache, cost, demo, index, peek, report, tensors, view
from sds.cli.hints import for_shell
from sds.cli.words import HELP_NAMES
from sds.errors import OptionError, SdsError

__all__ = ["app", "main"]

_NO_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

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
app.command("view", help=view.HELP, epilog=view.EXAMPLES)(view.command)
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
    _set_up_outputs()
    try:
        logs.set_up()
    except SdsError as error:
        _fail(error, 1)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # here, where it can be told if that fails
    except SdsError as error:
        if os.environ.get("SDS_LOG_LEVEL", "").strip().lower() == "debug":
            raise
        _fail(error, 2 if isinstance(error, OptionError) else 1)
    except BrokenPipeError:  # nobody reads any more
        _drop_output()
        sys.exit(1)
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_OUTPUT:
            raise
        _drop_output()
        print(f"error: results cannot be written: {error.strerror}\nhint: make room where they go", file=sys.stderr)
        sys.exit(1)


def _set_up_outputs() -> None:
    """A letter that a terminal does not know becomes an escape; results that nobody wants go nowhere."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started this: the next file to be opened would get its number
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What is left of the results goes nowhere: Python would fail with it once more at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: SdsError, code: int) -> NoReturn:
    has_keys = sys.argv[1:3] == ["index", "export"]
    hint = f"\nhint: {for_shell(error.hint, has_keys=has_keys)}" if error.hint else ""
    print(f"error: {error.message}{hint}", file=sys.stderr)
    sys.exit(code)
