"""Compiled parts of sds as they may be found elsewhere: missing, where there was no compiler, or broken."""

from __future__ import annotations

import subprocess
import sys

_STATES = {
    "missing": "import sys; sys.modules[{module!r}] = None",
    "broken": """
from importlib.machinery import ExtensionFileLoader as Loader
load = Loader.create_module
def broken(self, spec):
    if spec.name == {module!r}:
        raise ImportError("undefined symbol")
    return load(self, spec)
Loader.create_module = broken
""",
}


def last_line(module: str, state: str, code: str) -> str:
    """What a program says at last where a compiled module is 'missing' or 'broken'."""
    whole = f"{_STATES[state].format(module=module)}\n{code}"
    found = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False, timeout=100)
    return (found.stdout or found.stderr).splitlines()[-1]
