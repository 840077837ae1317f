"""Where contenders run: sds in the environment that runs the suite, the others in one of their own, made once.

Comes in: a cache folder. Goes out: the interpreter of each, which packages it has in which versions, and why others are
not there: what cannot be installed is left out of the benchmark with a note in its report.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"
# package -> (requirement, options of pip). Each is installed by itself, so that one that fails takes no other with it.
PEERS = {
    "litdata": ("litdata==0.2.76", ()),
    "webdataset": ("webdataset==1.0.2", ()),
    "datasets": ("datasets==5.2.0", ()),
    "s3torchconnector": ("s3torchconnector==1.5.0", ()),
    "spdl": ("spdl==0.8.0", ()),
    # its requirements pull torch for CUDA, and another NumPy
    "streaming": ("mosaicml-streaming==0.13.0", ("--no-deps",)),
    "lance": ("pylance==14.0.0", ()),
}
BASE = (
    "numpy==2.4.6",
    "simplejpeg==1.9.0",
    "pillow==13.0.0",
    "obstore==0.12.1",
    "boto3",
    "psutil",
    "fsspec",
    "aiohttp",
)
# what they need and do not ask for
MORE = {
    "litdata": ("zstd",),
    "streaming": ("zstandard", "python-snappy", "xxhash<4", "catalogue", "tqdm", "requests", "Brotli"),
}

_ASK = """
import importlib.metadata as m, json
print(json.dumps({d.metadata["Name"].lower(): d.version for d in m.distributions()}))
"""


class Venv:
    """An environment for the peers. `notes` says what it lacks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "bin" / "python")
        self._notes = folder / "notes.json"

    def make(self) -> None:
        """Installs what can be installed, once."""
        if self._notes.exists():
            return
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        self._install("base", [TORCH, *BASE], ())
        notes = {}
        for package, (requirement, options) in PEERS.items():
            print(f"installing {requirement}", file=sys.stderr, flush=True)
            try:
                self._install(package, [requirement], options)
                if package in MORE:
                    self._install(package, list(MORE[package]), ())
            except RuntimeError as error:
                notes[package] = str(error)
        self._notes.write_text(json.dumps(notes))

    def _install(self, name: str, requirements: list[str], options: tuple[str, ...]) -> None:
        constraints = self.folder / "constraints.txt"
        constraints.write_text(f"{TORCH}\nnumpy==2.4.6\n")
        command = [self.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--prefer-binary"]
        done = subprocess.run(
            [*command, "-c", str(constraints), *options, *requirements], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            raise RuntimeError(f"{name} cannot be installed: {lines[-1]}")

    @property
    def notes(self) -> dict[str, str]:
        """Package -> why it is not there."""
        return dict(json.loads(self._notes.read_text())) if self._notes.exists() else {}

    def versions(self) -> dict[str, str]:
        """What is installed."""
        return versions(self.python)


def versions(python: str) -> dict[str, str]:
    """What an interpreter has installed."""
    return dict(json.loads(subprocess.run([python, "-c", _ASK], check=True, capture_output=True, text=True).stdout))
