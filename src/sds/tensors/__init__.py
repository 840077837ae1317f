"""Samples remembered on disk: latents, embeddings, anything of tensors, written once and read for days.

Comes in: keys and samples (TensorCacheWriter), or existing training datasets (import_comfyui). Goes out: samples by
position whose tensors are read when they are touched (TensorCache). Nothing is pickled; every shard is plain
safetensors; docs/reference/tensor-cache.md specifies the rest.
"""

from __future__ import annotations

from sds.tensors.comfyui import import_comfyui
from sds.tensors.lazy import LazyTensor, realize
from sds.tensors.reader import TensorCache, TensorInfo
from sds.tensors.writer import TensorCacheWriter

__all__ = ["TensorCache", "TensorCacheWriter", "LazyTensor", "TensorInfo", "realize", "import_comfyui"]
