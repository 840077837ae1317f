"""sds streams training data from anywhere straight into PyTorch.

Public names resolve on first use (PEP 562), so `import sds` loads no torch and no arrow, and starts nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sds import errors as errors
    from sds import observe as observe
    from sds import plan as plan
    from sds import tensors as tensors
    from sds import testing as testing
    from sds import transforms as transforms
    from sds.dataset import StreamingDataset as StreamingDataset
    from sds.dataset import concatenate as concatenate
    from sds.dataset import interleave as interleave
    from sds.errors import SdsError as SdsError
    from sds.loader import BroadcastLoader as BroadcastLoader
    from sds.loader import DevicePrefetcher as DevicePrefetcher
    from sds.loader import MultiStreamDataLoader as MultiStreamDataLoader
    from sds.loader import StreamingDataLoader as StreamingDataLoader
    from sds.loader import StreamOptions as StreamOptions
    from sds.types import Batch as Batch
    from sds.world import World as World

# public name -> the room that has it; a room maps to itself
_HOMES = {
    "StreamingDataset": "sds.dataset",
    "StreamingDataLoader": "sds.loader",
    "MultiStreamDataLoader": "sds.loader",
    "StreamOptions": "sds.loader",
    "interleave": "sds.dataset",
    "concatenate": "sds.dataset",
    "DevicePrefetcher": "sds.loader",
    "BroadcastLoader": "sds.loader",
    "World": "sds.world",
    "Batch": "sds.types",
    "SdsError": "sds.errors",
    "errors": "sds.errors",
    "plan": "sds.plan",
    "transforms": "sds.transforms",
    "tensors": "sds.tensors",
    "observe": "sds.observe",
    "testing": "sds.testing",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sds' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"sds.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
