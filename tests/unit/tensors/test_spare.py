"""Memory of batches comes back when nobody uses it, and not before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

import sds
from sds.tensors import TensorCacheWriter
from sds.tensors.spare import _MAX_FREE, _SMALL, Spare


def test_memory_comes_back_with_the_last_tensor_on_it():
    spare = Spare()
    one = spare.take(_SMALL)
    address, view = one.data_ptr(), one.view(torch.float32)[7:9]
    del one
    assert spare.take(_SMALL).data_ptr() != address, "a view is a tensor on it"
    view.fill_(3)
    assert view.tolist() == [3, 3]
    del view
    assert address in {spare.take(_SMALL).data_ptr() for _ in range(2)}


def test_memory_is_for_its_own_size():
    spare = Spare()
    sizes = [_SMALL, 2 * _SMALL, 3 * _SMALL]
    addresses = {size: spare.take(size).data_ptr() for size in sizes}
    for size in reversed(sizes):
        taken = spare.take(size)
        assert taken.data_ptr() == addresses[size] and taken.shape == (size,) and taken.dtype == torch.uint8
        assert taken.untyped_storage().nbytes() == size


def test_few_pieces_wait_and_none_of_small_ones():
    spare = Spare()
    held = [spare.take(_SMALL) for _ in range(_MAX_FREE + 3)] + [spare.take(_SMALL - 1), spare.take(0)]
    assert len({piece.data_ptr() for piece in held}) == len(held)
    del held
    assert len(spare._free) == _MAX_FREE
    spare.clear()
    assert not spare._free


def saved_for_backward(batch: torch.Tensor) -> object:
    """What autograd keeps of a batch."""
    return (batch.view(torch.float32) * torch.ones(1, requires_grad=True)).grad_fn._saved_self


def in_a_traceback(batch: torch.Tensor) -> object:
    """An error whose frames have the batch."""
    try:
        raise ValueError(batch.shape)
    except ValueError as error:
        return error.__traceback__.tb_frame.f_locals["batch"]


@pytest.mark.parametrize(
    "way",
    [
        lambda batch: batch[7:9],
        lambda batch: batch.view(torch.int64).unbind(0)[5],
        lambda batch: batch.numpy(),
        lambda batch: batch.numpy()[::3],
        lambda batch: np.from_dlpack(batch),
        lambda batch: from_dlpack(to_dlpack(batch)),
        lambda batch: memoryview(batch.numpy()),
        lambda batch: pa.py_buffer(batch.numpy()),
        lambda batch: torch.empty(0, dtype=torch.uint8).set_(batch.untyped_storage()),
        lambda batch: batch.share_memory_(),
        lambda batch: batch.detach().data,
        lambda batch: copy.copy(batch),
        saved_for_backward,
        in_a_traceback,
    ],
)
def test_memory_stays_in_whichever_way_it_is_held(way: Callable[[torch.Tensor], Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sds.tensors.spare._SMALL", 4096)
    spare = Spare()
    batch = spare.take(4096).fill_(3)
    kept = way(batch)
    del batch
    before = bytes(memoryview(np.ascontiguousarray(kept)).cast("B"))
    for _ in range(_MAX_FREE):
        spare.take(4096).fill_(9)
    assert len(before) > 0 and bytes(memoryview(np.ascontiguousarray(kept)).cast("B")) == before


@pytest.fixture
def latents(tmp_path: Path) -> Path:
    """Forty samples, of which eight fill a piece that is worth to be kept."""
    path = tmp_path / "latents.tensors"
    with TensorCacheWriter(path, "1mb") as writer:
        for number in range(40):
            writer.add(f"{number:02}", {"latent": torch.full((_SMALL // 32,), float(number))})
    return path


@pytest.mark.parametrize("num_threads", [1, 3])
def test_batches_that_are_held_stay_as_they_are(latents: Path, tmp_path: Path, num_threads: int):
    with sds.StreamingDataset(latents, tmp_path / "cache", shuffle_seed=2) as dataset:
        loader = sds.StreamingDataLoader(dataset, 8, num_threads=num_threads)
        held = [(batch["__sample_key__"], batch["latent"]) for _ in range(2) for batch in loader]
        assert len({latent.data_ptr() for _, latent in held}) == len(held) == 10
        for keys, latent in held:
            assert torch.equal(latent, torch.tensor([float(key) for key in keys])[:, None].expand_as(latent))
        row = held[0][1][3]
        expected = row.clone()
        held.clear()
        assert sum(len(batch["latent"]) for batch in loader) == 40
        assert torch.equal(row, expected), "a part of a batch keeps all of it"
        assert dataset.delivery.pipeline.index.cache.spare._free, "what nobody holds is there for the next"
