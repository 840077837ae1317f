"""World: this process among nodes, ranks and data-parallel replicas. The one reader of rank variables.

Comes in: the environment of a launcher, or an initialised torch.distributed, or explicit numbers. Goes out: a value.
`data_rank` of `data_size` is which share of the samples this process reads; it always lies in [0, data_size).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sds.errors import OptionError

__all__ = ["World"]


@dataclass(frozen=True)
class World:
    """Who am I among the others.

    Attributes:
        rank: this process among all.
        size: how many processes there are.
        local_rank: this process among those of its node.
        local_size: how many processes its node has.
        data_rank: which share of each global batch it reads; equal within a tensor-parallel group. Default: rank.
        data_size: how many shares there are. Default: size.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    data_rank: int | None = None
    data_size: int | None = None

    def __post_init__(self) -> None:
        if (self.data_rank is None) != (self.data_size is None):
            raise OptionError("world has only one of data_rank and data_size", hint="give both, or neither")
        for rank, size in (("rank", "size"), ("local_rank", "local_size"), ("data_rank", "data_size")):
            r, n = getattr(self, rank), getattr(self, size)
            if r is not None and not 0 <= r < n:
                raise OptionError(f"world has an impossible {rank} of {size}: {r} of {n}", hint=f"0 <= {rank} < {size}")

    @property
    def replica(self) -> tuple[int, int]:
        """(data_rank, data_size), with their defaults filled in."""
        if self.data_rank is None or self.data_size is None:
            return self.rank, self.size
        return self.data_rank, self.data_size

    @property
    def node(self) -> tuple[int, int]:
        """(node, num_nodes), for equally filled nodes."""
        return self.rank // self.local_size, -(-self.size // self.local_size)

    @classmethod
    def detect(cls) -> World:
        """Asks torch.distributed if it is initialised, else the variables that launchers set, else: alone."""
        torch: Any = sys.modules.get("torch")  # a process that has not loaded torch has not initialised it either
        local_rank, local_size = _env("LOCAL_RANK", 0), _env("LOCAL_WORLD_SIZE", 1)
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, size = _env("RANK", 0), _env("WORLD_SIZE", 1)
        return cls(rank, size, local_rank, max(local_size, local_rank + 1))

    @classmethod
    def from_mesh(cls, mesh: Any, data_dims: str | Sequence[str]) -> World:
        """The world of a torch DeviceMesh: ranks that differ only outside `data_dims` get the same samples.

        Args:
            mesh: a `torch.distributed.device_mesh.DeviceMesh` with named dimensions.
            data_dims: the dimensions along which the data differs, such as "dp" or ("replicate", "shard"); the others
                (tensor-, sequence-, pipeline-parallel) hold replicas.
        """
        names = tuple(mesh.mesh_dim_names or ())
        dims = (data_dims,) if isinstance(data_dims, str) else tuple(data_dims)
        unknown = [dim for dim in dims if dim not in names]
        if unknown or not dims:
            raise OptionError(f"mesh has no dimension {unknown}: it has {list(names)}", hint="name its data dimensions")
        place = mesh.get_coordinate()
        if place is None:
            raise OptionError("this rank is not in the mesh", hint="make the loader only on ranks of the mesh")
        data_rank, data_size = 0, 1
        for dim, coordinate, length in zip(names, place, mesh.shape, strict=True):
            if dim in dims:  # in the mesh's own order, so that all ranks count alike
                data_rank, data_size = data_rank * length + coordinate, data_size * length
        found = cls.detect()
        return cls(found.rank, found.size, found.local_rank, found.local_size, data_rank, data_size)


def _env(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text.strip() else default
    except ValueError:
        raise OptionError(
            f"{name} is not a number: {text!r}", hint=f"unset {name}, or pass world=sds.World(...)"
        ) from None
