"""Compiled parts of sds: how they may be found elsewhere (missing, broken), and whether others have Python then."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

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


def num_turns(work: Callable[[], object]) -> int:
    """How often this thread has Python while another one does some work."""
    thread = threading.Thread(target=work)
    thread.start()
    num = 0
    while thread.is_alive():
        time.sleep(0.001)
        num += 1
    return num
