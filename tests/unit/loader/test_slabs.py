"""Samples that are put where their batch will lie: the batch is the one that copies would have made, without them."""

from __future__ import annotations

import gc
import platform
import resource
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import sds
from sds.loader.collate import collate
from sds.loader.slabs import Berth, Slabs, as_array
from sds.tensors.spare import Spare
from sds.testing.media import draw_image
from sds.transforms import presets
from sds.transforms.places import lend_from, place_for


def samples_of(*shapes, dtype=torch.float32):
    made = torch.Generator().manual_seed(0)
    return [{"x": (torch.rand(shape, generator=made) * 100).to(dtype), "n": k} for k, shape in enumerate(shapes)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.int64, torch.bool, torch.complex64])
def test_a_batch_is_there_when_its_samples_are(dtype):
    samples = samples_of(*[(3, 80, 80)] * 5, dtype=dtype)
    slab = Slabs().slab(5)
    placed = [slab.put(k, sample) for k, sample in reversed(list(enumerate(samples)))][::-1]
    batch = collate(placed, own=slab.memory)
    expected = collate(samples)
    assert torch.equal(batch["x"], expected["x"]) and torch.equal(batch["n"], expected["n"])
    assert batch["x"].data_ptr() == slab.memory[0].data_ptr()


def test_the_samples_that_were_given_stay_as_they_are():
    (sample,) = samples_of((3, 80, 80))
    kept = sample["x"]
    placed = Slabs().slab(1).put(0, sample)
    assert sample["x"] is kept and placed["x"] is not kept and torch.equal(placed["x"], kept)


@pytest.mark.parametrize(
    "odd",
    [
        torch.rand(3, 81, 80),
        torch.rand(3, 80, 80, dtype=torch.float64),
        torch.rand(3, 80, 80, requires_grad=True),
        torch.rand(3, 80, 80).to(torch.bfloat16),
        None,
        "text",
    ],
    ids=["shape", "dtype", "gradient", "bfloat16", "none", "text"],
)
def test_what_does_not_fit_stays_what_it_is(odd):
    samples = [*samples_of(*[(3, 80, 80)] * 2), {"x": odd, "n": 2}]
    slab = Slabs().slab(3)
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    assert placed[2]["x"] is odd
    batch = collate(placed, own=slab.memory)
    expected = collate(samples)
    if isinstance(expected["x"], list):
        assert batch["x"][2] is odd and torch.equal(batch["x"][0], samples[0]["x"])
    else:
        assert torch.equal(batch["x"], expected["x"])


@pytest.mark.parametrize("last", [torch.rand(3, 81, 80), None, [1]], ids=["shape", "none", "list"])
@pytest.mark.parametrize("place", [0, 2])
def test_tensors_of_a_list_have_memory_of_their_own(last, place):
    samples = samples_of(*[(3, 80, 80)] * 2)
    samples.insert(place, {"x": last, "n": 2})
    slab = Slabs().slab(3)
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    listed = collate(placed, own=slab.memory)["x"]
    assert len(listed) == 3 and all(
        each.untyped_storage().nbytes() == each.nbytes for each in listed if isinstance(each, torch.Tensor)
    )


def test_what_lies_deeper_is_no_part_of_the_batch():
    piece = Spare().take(3 * 4096)
    rows = piece.view(torch.float32).view(3, 1024).fill_(7).unbind(0)
    samples = [{"x": row, "all": (row, {"array": row.numpy()}), "n": 1 if k else [row]} for k, row in enumerate(rows)]
    batch = collate(samples, own=[piece])
    assert batch["x"].data_ptr() == piece.data_ptr()
    batch["x"].zero_()
    for kept, arrays in batch["all"]:
        assert kept.untyped_storage().nbytes() == 4096
        assert float(kept.min()) == arrays["array"].min() == 7
    assert float(batch["n"][0][0].min()) == 7 and batch["n"][1:] == [1, 1]


def test_fields_of_several_shapes_are_left_alone_once_that_is_known():
    samples = samples_of((3, 80, 80), (3, 81, 80), (3, 80, 80))
    slab = Slabs().slab(3)
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    assert [placed[k]["x"] is samples[k]["x"] for k in range(3)] == [False, True, True]


def test_a_step_that_lost_a_sample_is_copied():
    samples = samples_of(*[(3, 80, 80)] * 4)
    slab = Slabs().slab(4)
    placed = [slab.put(k, sample) for k, sample in enumerate(samples) if k != 1]
    batch = collate(placed, own=slab.memory)
    assert torch.equal(batch["x"], torch.stack([samples[k]["x"] for k in (0, 2, 3)]))


def test_fields_without_memory_of_their_own_are_collated_beside_others():
    samples = [{**sample, "few": torch.eye(90).to_sparse()} for sample in samples_of(*[(3, 80, 80)] * 2)]
    slab = Slabs().slab(2)
    placed = [slab.put(k, sample) for k, sample in enumerate(samples)]
    batch = collate(placed, own=slab.memory)
    assert torch.equal(batch["few"].to_dense(), torch.eye(90).expand(2, 90, 90))
    assert batch["x"].data_ptr() == slab.memory[0].data_ptr()


def test_small_tensors_are_left_alone():
    (sample,) = samples_of((8,))
    slab = Slabs().slab(1)
    assert slab.put(0, sample)["x"] is sample["x"] and slab.memory == []


class Named(torch.Tensor):
    """A tensor of another kind, such as torchvision has them."""


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(4).to(torch.complex64).conj(),
        torch.rand(4).to(torch.complex64).conj().imag,
        torch.rand(4, requires_grad=True),
        torch.eye(4).to_sparse(),
        torch.rand(4, device="meta"),
        torch.rand(4).as_subclass(Named),
    ],
    ids=["conjugate", "negative", "graph", "sparse", "meta", "subclass"],
)
def test_what_numpy_cannot_copy(value):
    assert as_array(value) is None


def large(sample):
    number = int(sample["__sample_key__"])
    return {"x": torch.full((3, 192, 192), number, dtype=torch.uint8), "key": sample["__sample_key__"]}


def test_memory_is_used_again_only_when_nobody_has_the_batch(make):
    dataset = make(transforms=[large], shuffle_seed=1)
    kept, places = [], []
    with sds.StreamingDataLoader(dataset, 4) as loader:
        for k, batch in enumerate(loader):
            assert batch["x"][:, 0, 0, 0].tolist() == [int(key) for key in batch["key"]]
            places.append(batch["x"].data_ptr())
            if k % 3 == 0:
                kept.append((batch["x"][1], int(batch["key"][1])))  # a part of it is enough to keep it
            del batch
    assert len(kept) == 4 and all(bool((x == number).all()) for x, number in kept)
    assert len(set(places)) < len(places)


class TestLending:
    """A transform writes into the memory of the batch itself: the batch is the one that copies would have made."""

    @staticmethod
    def step(slabs, make, num=3, stream=None):
        """One step as a thread makes it; the batch, and where its memory was."""
        slab = slabs.slab(num, stream)
        placed = []
        for k in range(num):
            berth = Berth(slab)
            berth.place = k
            lend_from(berth)
            try:
                placed.append(slab.put(k, make(k)))
            finally:
                lend_from(None)
        batch = collate(placed, own=slab.memory, kept=slab.find_kept())
        return batch["x"], slab.memory[0].data_ptr()

    @staticmethod
    def write(k, field="x", value=None):
        """What ResizeImage does: into the place if there is one, into memory of its own if not."""
        place = place_for(field, (3, 80, 80), torch.uint8)
        tensor = torch.empty(3, 80, 80, dtype=torch.uint8) if place is None else place.tensor
        return tensor.fill_(10 * k if value is None else value), place is not None

    def test_the_second_batch_is_written_in_place(self):
        slabs, lent = Slabs(), []

        def make(k):
            tensor, is_lent = self.write(k)
            lent.append((is_lent, tensor.data_ptr()))
            return {"x": tensor}

        for _ in range(3):
            lent.clear()
            batch, start = self.step(slabs, make)
            assert batch[:, 0, 0, 0].tolist() == [0, 10, 20] and batch.data_ptr() == start
        assert lent == [(True, start + k * 3 * 80 * 80) for k in range(3)]

    def test_nothing_is_lent_outside_of_a_loader(self):
        assert place_for("x", (3, 80, 80), torch.uint8) is None

    @pytest.mark.parametrize("asked", [("x", (3, 80, 81), torch.uint8), ("x", (3, 80, 80), torch.int8), ("y", (1,), 0)])
    def test_only_what_the_last_batch_had_is_lent(self, asked):
        slabs, found = Slabs(), []
        self.step(slabs, lambda k: {"x": self.write(k)[0]})
        self.step(slabs, lambda k: found.append(place_for(*asked)) or {"x": self.write(k)[0]})
        assert found == [None] * 3

    def test_a_place_is_lent_once(self):
        slabs = Slabs()
        self.step(slabs, lambda k: {"x": self.write(k)[0]})

        def twice(k):
            first, _ = self.write(k)
            second, is_lent = self.write(k, value=99)
            assert not is_lent
            return {"x": first, "y": second}

        batch, _ = self.step(slabs, twice)
        assert batch[:, 0, 0, 0].tolist() == [0, 10, 20]

    @pytest.mark.parametrize(
        "keep",
        [lambda x: x, lambda x: x[0], lambda x: x.numpy(), lambda x: x.numpy()[0], lambda x: {"deep": [x.view(-1)]}],
        ids=["tensor", "view", "array", "view of array", "deep"],
    )
    def test_what_a_transform_keeps_does_not_change_with_the_batch(self, keep):
        slabs, kept = Slabs(), []

        def make(k):
            tensor, is_lent = self.write(k)
            if k == 1:
                kept.append(keep(tensor))
            return {"x": tensor}, is_lent

        for k in range(3):
            batch, _ = self.step(slabs, lambda k: make(k)[0])
            assert batch[:, 0, 0, 0].tolist() == [0, 10, 20]
            batch.zero_()  # what a training loop may do with it
            value = kept[-1]["deep"][0] if isinstance(kept[-1], dict) else kept[-1]
            assert value.max() == value.min() == 10, k
        assert (None, "x") in slabs.apart  # from then on it is copied, as before
        slab = slabs.slab(3)
        assert slab.lend(0, "x", (3, 80, 80), torch.uint8) is None

    def test_a_tensor_can_be_saved_without_the_others(self, tmp_path):
        slabs, sizes = Slabs(), []

        def make(k):
            tensor, _ = self.write(k)
            torch.save(tensor, tmp_path / "one.pt")
            sizes.append((tmp_path / "one.pt").stat().st_size)
            return {"x": tensor}

        for _ in range(2):
            self.step(slabs, make)
        assert max(sizes) < 2 * 3 * 80 * 80

    def test_a_later_transform_may_replace_it(self):
        slabs = Slabs()
        for _ in range(3):
            batch, _ = self.step(slabs, lambda k: {"x": 255 - self.write(k)[0]})
            assert batch[:, 0, 0, 0].tolist() == [255, 245, 235]

    def test_a_later_transform_may_keep_the_first_beside_its_own(self):
        slabs = Slabs()

        def make(k):
            tensor, _ = self.write(k)
            return {"x": 255 - tensor, "before": tensor}

        for _ in range(3):
            slab_batch, _ = self.step(slabs, make)
            assert slab_batch[:, 0, 0, 0].tolist() == [255, 245, 235]

    def test_it_may_be_in_two_fields(self):
        slabs = Slabs()
        for _ in range(3):
            slab = slabs.slab(2)
            placed = []
            for k in range(2):
                berth = Berth(slab)
                berth.place = k
                lend_from(berth)
                tensor, _ = self.write(k)
                placed.append(slab.put(k, {"x": tensor, "y": tensor}))
                del tensor
                lend_from(None)
            batch = collate(placed, own=slab.memory, kept=slab.find_kept())
            batch["x"].zero_()
            assert batch["y"][:, 0, 0, 0].tolist() == [0, 10]

    def test_streams_do_not_disturb_each_other(self):
        slabs = Slabs()
        self.step(slabs, lambda k: {"x": self.write(k)[0]}, stream="a")
        kept = []
        self.step(slabs, lambda k: kept.append(self.write(k)[0]) or {"x": kept[-1]}, stream="a")
        self.step(slabs, lambda k: {"x": self.write(k)[0]}, stream="b")
        assert slabs.apart == {("a", "x")}
        assert slabs.slab(1, "b").lend(0, "x", (3, 80, 80), torch.uint8) is not None

    def test_memory_for_other_processes_is_sent_as_it_is(self):
        slabs = Slabs(is_shared=True)
        for _ in range(2):
            batch, start = self.step(slabs, lambda k: {"x": self.write(k)[0]})
            assert batch.is_shared() and batch.data_ptr() == start

    @pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for pages")
    def test_memory_for_other_processes_has_all_its_pages_at_once(self):
        def faults(is_sure):
            array = Slabs(is_shared=True).piece(1024 * 4096, is_sure=is_sure).numpy()
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            array[...] = 1
            return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

        if tuple(map(int, platform.release().split(".")[:2])) < (5, 14):
            pytest.skip("this kernel gives them one by one")
        assert faults(is_sure=False) > 256 > faults(is_sure=True)

    def test_memory_of_which_little_may_be_used_is_not_taken_from_others(self, monkeypatch):
        slabs, asked = Slabs(is_shared=True), []
        given = slabs.piece
        monkeypatch.setattr(
            slabs, "piece", lambda num_bytes, *, is_sure: asked.append(is_sure) or given(num_bytes, is_sure=is_sure)
        )
        for _ in range(2):
            self.step(slabs, lambda k: {"x": self.write(k)[0]})
        assert asked == [False, True]  # the second batch is like the first

    @pytest.mark.parametrize(
        "fails", [MemoryError, OSError("no room left in /dev/shm"), RuntimeError("unable to mmap")]
    )
    def test_no_memory_is_no_fault_of_the_sample(self, fails, monkeypatch):
        slabs = Slabs(is_shared=True)
        self.step(slabs, lambda k: {"x": self.write(k)[0]})

        def piece(num_bytes, *, is_sure):
            raise fails

        monkeypatch.setattr(slabs, "piece", piece)
        slab = slabs.slab(1)
        assert slab.lend(0, "x", (3, 80, 80), torch.uint8) is None
        tensor = torch.ones(3, 80, 80, dtype=torch.uint8)
        assert slab.put(0, {"x": tensor})["x"] is tensor and slab.memory == []

    def test_fields_of_several_shapes_take_shared_memory_once(self):
        slabs = Slabs(is_shared=True)
        for expected in (1, 0, 0):
            slab = slabs.slab(2)
            for k in range(2):
                slab.put(k, {"x": torch.ones(3, 80, 80 + k)})
            assert len(slab.memory) == expected

    def test_a_place_is_lent_again_when_nobody_has_it(self):
        """As after a failure, when another row stands in."""
        slabs = Slabs()
        self.step(slabs, lambda k: {"x": self.write(k)[0]})

        def make(k):
            self.write(k, value=200)  # and fails
            tensor, is_lent = self.write(k)
            assert is_lent
            return {"x": tensor}

        batch, start = self.step(slabs, make)
        assert batch[:, 0, 0, 0].tolist() == [0, 10, 20] and batch.data_ptr() == start and not slabs.apart

    def test_a_sample_that_is_dropped_gives_its_place_back(self):
        slabs = Slabs()
        self.step(slabs, lambda k: {"x": self.write(k)[0]})
        slab = slabs.slab(2)
        for k in range(2):
            berth = Berth(slab)
            berth.place = k
            lend_from(berth)
            assert self.write(k)[1]  # and nothing comes of it
            lend_from(None)
        assert slab.find_kept() == [] and not slabs.apart

    def test_a_tensor_that_is_part_of_a_graph_stays_it(self):
        def make(k):
            place = place_for("x", (3, 80, 80), torch.float32)
            tensor = torch.empty(3, 80, 80) if place is None else place.tensor
            return {"x": tensor.fill_(10 * k)}

        slabs = Slabs()
        assert not self.step(slabs, make)[0].requires_grad
        batch, _ = self.step(slabs, lambda k: {"x": make(k)["x"].requires_grad_()})
        assert batch.requires_grad and batch[:, 0, 0, 0].tolist() == [0, 10, 20]

    def test_what_replaces_it_is_copied_there(self):
        slabs = Slabs()
        for _ in range(3):
            batch, start = self.step(slabs, lambda k: {"x": 255 - self.write(k)[0]})
            assert batch[:, 0, 0, 0].tolist() == [255, 245, 235] and batch.data_ptr() == start
        assert not slabs.apart


def keep_in(kept, how):
    """A transform that keeps something of each sample for itself."""

    def keep(sample):
        kept.append((sample["image"].clone(), how(sample)))
        return sample

    return keep


class Capsule:
    """A tensor on its way to another library."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __array__(self, dtype=None, copy=None):
        tensor = torch.from_dlpack(self.capsule)
        self.capsule = torch.to_dlpack(tensor)
        return tensor.numpy()


HOLDING = {
    "the dict": lambda sample: sample,
    "a list": lambda sample: [sample["image"]],
    "a view": lambda sample: sample["image"][0],
    "an array": lambda sample: sample["image"].numpy(),
    "the storage": lambda sample: sample["image"].untyped_storage(),
    "a memoryview": lambda sample: memoryview(sample["image"].numpy()),
    "a capsule": lambda sample: Capsule(torch.to_dlpack(sample["image"])),
}


@pytest.mark.parametrize("how", HOLDING)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_nothing_that_a_transform_keeps_changes_with_the_batch(tmp_path, how, num_workers):
    """Through a real loader, over real JPEGs, with a training loop that changes its batches in place."""
    for k in range(24):
        Image.fromarray(draw_image(k, (90, 120))[0]).save(tmp_path / f"{k:02}.jpg")
    kept: list = []

    def check(sample):
        for image, held in kept:
            value = held["image"] if isinstance(held, dict) else held[0] if isinstance(held, list) else held
            if isinstance(value, torch.UntypedStorage):
                value = torch.empty(0, dtype=torch.uint8).set_(value)
            value = torch.as_tensor(np.asarray(value)).flatten()
            if not torch.equal(value, image.flatten()[: len(value)]):
                raise ValueError("it changed")
        return sample

    chain = [*presets.create_standard_image_pipeline("jpg", (80, 80)), check, keep_in(kept, HOLDING[how])]
    with (
        sds.StreamingDataset(
            str(tmp_path),
            str(tmp_path / "dst"),
            columns_to_download=["jpg"],
            transforms=[*chain, only_image],
            shuffle_seed=1,
            on_error="raise",
        ) as dataset,
        sds.StreamingDataLoader(dataset, 4, num_workers=num_workers) as loader,
    ):
        for _ in range(3):
            for batch in loader:
                batch["image"].zero_()


def only_image(sample):
    return {"image": sample["image"]}


def test_what_lies_deeper_is_not_taken_for_the_batch(tmp_path):
    for k in range(16):
        Image.fromarray(draw_image(k, (90, 120))[0]).save(tmp_path / f"{k:02}.jpg")
    kept, is_deep = [], []

    def deepen(sample):
        if is_deep:
            inner = {"a": sample.pop("image")}
            kept.append((inner["a"].clone(), inner))
            return {"deep": inner}
        return {"image": sample["image"]}

    chain = [*presets.create_standard_image_pipeline("jpg", (80, 80)), deepen]
    with (
        sds.StreamingDataset(
            str(tmp_path), str(tmp_path / "dst"), columns_to_download=["jpg"], transforms=chain, shuffle_seed=1
        ) as dataset,
        sds.StreamingDataLoader(dataset, 4, prefetch_batches=1) as loader,
    ):
        for _ in loader:
            pass
        is_deep.append(True)
        for batch in loader:
            if "deep" in batch:
                batch["deep"]["a"].zero_()
    assert len(kept) >= 12 and all(torch.equal(image, inner["a"]) for image, inner in kept)


def count_frozen(sample):
    return {"frozen": gc.get_freeze_count()}


def test_a_worker_does_not_look_for_garbage_in_what_its_parent_had(make):
    before = gc.get_freeze_count()
    with (
        make(transforms=[count_frozen]) as dataset,
        sds.StreamingDataLoader(dataset, 4, num_workers=1, persistent_workers=True) as loader,
    ):
        counts = [int(count) for _ in range(2) for batch in loader for count in batch["frozen"]]
    assert counts[-1] > before + 10_000
    assert counts == sorted(counts, reverse=True)  # once: what comes later may be garbage
    assert gc.get_freeze_count() == before
