import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sds
from sds import cli
from sds.errors import OptionError, SourceError

SDS = Path(sys.executable).with_name("sds")


@pytest.fixture
def failing(monkeypatch):
    """`sds` whose command fails with an error of ours."""

    def fail():
        raise SourceError("nothing is here: s3://x", hint="look elsewhere")

    monkeypatch.setattr(cli, "app", fail)


def test_version():
    result = CliRunner().invoke(cli.app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"sds {sds.__version__}\n")


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["demo", "--help"]])
def test_help_has_examples(words):
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0
    assert "sds demo" in result.stdout


@pytest.mark.parametrize(
    "words",
    ["peek", "bench", "index build", "index info", "index split", "index export", "cache info", "cache warm"],
)
def test_every_command_has_examples(words):
    result = CliRunner().invoke(cli.app, [*words.split(), "-h"])
    assert result.exit_code == 0
    assert f"sds {words}" in result.stdout and "Example" in result.stdout


@pytest.mark.parametrize("words", [[], ["nothing"], ["demo", "--images", "3"], ["demo", "--batch-size", "many"]])
def test_wrong_usage_is_2(words):
    assert CliRunner().invoke(cli.app, words).exit_code == 2


def test_an_error_of_ours_is_a_message_with_a_hint(failing, capsys, monkeypatch):
    monkeypatch.delenv("SDS_LOG_LEVEL", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: nothing is here: s3://x\nhint: look elsewhere\n")


def test_a_hint_speaks_of_options(capsys, monkeypatch):
    def fail():
        raise SourceError("no", hint="storage_options={'anonymous': True}")

    monkeypatch.delenv("SDS_LOG_LEVEL", raising=False)
    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err == "error: no\nhint: --storage anonymous=true\n"


def test_debug_shows_the_traceback(failing, monkeypatch):
    monkeypatch.setenv("SDS_LOG_LEVEL", "debug")
    with pytest.raises(SourceError):
        cli.main()


def test_an_interrupt_is_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("sds.cli.demo._open_shop", interrupted)
    assert CliRunner().invoke(cli.app, ["demo"]).exit_code == 130


def test_the_command_starts_without_torch_and_arrow():
    code = "import sys; import sds.cli; print([m for m in ('torch', 'pyarrow', 'duckdb', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_command_is_installed():
    done = subprocess.run([SDS, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"sds {sds.__version__}\n")


def test_a_level_that_is_none_is_told():
    done = subprocess.run([SDS, "--version"], capture_output=True, text=True, timeout=60, env={"SDS_LOG_LEVEL": "loud"})
    assert done.returncode == 1
    assert (
        done.stderr == "error: SDS_LOG_LEVEL is unknown: 'loud'\nhint: one of debug, info, warning, error, critical\n"
    )


def test_who_stops_reading_is_told_nothing():
    code = "import sds.cli as c; c.app = lambda: print(*range(10**6), flush=True); c.main()"
    command = f"'{sys.executable}' -c '{code}' | head -c 5"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("0 1 2", "")


@pytest.mark.parametrize(
    ("typed", "place", "offered"),
    [("sds ", 1, ["bench", "cache", "index", "peek"]), ("sds index ", 2, ["build", "export", "info", "split"])],
)
def test_a_shell_can_complete_commands(typed, place, offered):
    environment = {**os.environ, "_SDS_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(place)}
    done = subprocess.run([SDS], capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0 and set(offered) <= set(done.stdout.split())


def test_the_completion_of_a_shell_is_shown():
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run(
        [SDS, "--show-completion", "bash"], capture_output=True, text=True, timeout=60, env=environment
    )
    assert "complete -o default -F _sds_completion sds" in done.stdout


def test_wrong_options_are_wrong_usage(capsys, monkeypatch):
    def fail():
        raise OptionError("--x is impossible: 3", hint="leave it out")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and "hint: leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("length", [10, 10**6])
def test_a_full_disk_is_told(length):
    code = f"import sds.cli as c; c.app = lambda: print('x' * {length}); c.main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "error: results cannot be written: No space left on device\nhint: make room where they go\n"


def test_a_closed_output_is_no_traceback():
    code = "import sds.cli as c, sys; c.app = lambda: print(sys.stdout.isatty()); c.main()"
    command = f"'{sys.executable}' -c '{code}' >&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_that_does_not_know_a_letter_gets_an_escape():
    show = "print('gr\\xfcn', c.words.to_json(['\\u65e5']))"
    code = f"import sds.cli as c; import sds.cli.words; c.app = lambda: {show}; c.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.stdout == 'gr\\xfcn [\n  "\\u65e5"\n]\n'
