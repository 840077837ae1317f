"""The command `sds` in this process, as a shell would run it: words in, exit code and both outputs out."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from sds import cli

__all__ = ["Done", "Sds"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Sds:
    """sds("peek", "photos"): what a shell would see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.delenv("SDS_LOG_LEVEL", raising=False)
        monkeypatch.setenv("COLUMNS", "200")

    def __call__(self, *words: object) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["sds", *map(str, words)])
        self._capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Done(code, *self._capsys.readouterr())

    def well(self, *words: object) -> str:
        """What it printed; it must have ended well."""
        done = self(*words)
        assert done.code == 0, done.err
        return done.out
