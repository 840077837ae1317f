"""How many latents of 128 KB become batches in a second, in random order, beside other formats; and how a cache opens.

    python benchmarks/tensors.py [--samples 8000] [--batch 64] [--batches 40] [--rounds 5] [--folder DIR]
    python benchmarks/tensors.py --open 1000000
    python benchmarks/tensors.py --loader

Every row fills one tensor [batch, 16, 32, 64] of float32, again and again. `cold` has the files' pages dropped before
(posix_fadvise), `warm` reads the same batches again. Each measurement is a process of its own; rounds interleave the
rows; medians are printed, the growth of peak memory in batches, mapped pages included, and CPU time of a warm sample.
`preadv` is the limit: bare calls for the same bytes by so many threads, their places known beforehand; `fadvise` is
the same by one thread that asks the disk for the whole batch first. `torch.load mmap` keeps its shards mapped, `whole`
loads a shard when it needs one, `npz` keeps its files open. `--loader` measures the same samples as shuffled batches of
a StreamingDataLoader, warm, beside a plain DataLoader. Packages that are not installed are left out:

    pip install litdata pylance
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch

SHAPE = (16, 32, 64)
PER_SHARD = 1000
Read = Callable[[list[int], torch.Tensor], object]  # rows, and where to put them


def latent_of(number: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(number))


def shards(num: int) -> Iterator[tuple[int, range]]:
    for number, start in enumerate(range(0, num, PER_SHARD)):
        yield number, range(start, min(start + PER_SHARD, num))


def write_sds(folder: Path, num: int) -> None:
    from sds.tensors import TensorCacheWriter

    with TensorCacheWriter(folder, "128mb") as writer:
        for number in range(num):
            if str(number) not in writer:
                writer.add(str(number), {"latent": latent_of(number)})


def read_sds(folder: Path) -> Read:
    from sds.tensors import TensorCache

    cache = TensorCache(folder)
    return lambda rows, out: cache.stack(rows, "latent", out=out)


def read_bare(num_threads: int, folder: Path, is_asked_first: bool = False) -> Read:
    """The limit: preadv into the tensor, and nothing else."""
    from concurrent.futures import ThreadPoolExecutor

    from sds.tensors import TensorCache

    cache, pool = TensorCache(folder), ThreadPoolExecutor(num_threads)
    files: dict[str, int] = {}
    places = []
    for _, columns, row in cache.locate_all(range(len(cache))):
        if columns.name not in files:
            files[columns.name] = os.open(folder / f"{columns.name}.safetensors", os.O_RDONLY)
        places.append((files[columns.name], columns.data_start + columns.starts_of(row)[0]))

    def copy(part: list[tuple[int, int, memoryview]]) -> None:
        for file, start, into in part:
            os.preadv(file, [into], start)

    def read(rows: list[int], out: torch.Tensor) -> None:
        memory = out.view(len(rows), -1).view(torch.uint8).numpy()
        wanted = sorted((*places[row], memory[place].data) for place, row in enumerate(rows))
        if is_asked_first:
            for file, start, into in wanted:
                os.posix_fadvise(file, start, len(into), os.POSIX_FADV_WILLNEED)
        if num_threads == 1:
            copy(wanted)
        else:
            list(pool.map(copy, [wanted[start::num_threads] for start in range(num_threads)]))

    return read


def read_sds_mapped(folder: Path) -> Read:
    from sds.tensors import TensorCache

    cache = TensorCache(folder, access="mmap")
    return lambda rows, out: cache.stack(rows, "latent", out=out)


def read_sds_samples(folder: Path) -> Read:
    from sds.tensors import TensorCache

    cache = TensorCache(folder)
    return lambda rows, out: torch.stack([sample["latent"] for sample in cache.read(rows)], out=out)


def write_torch(folder: Path, num: int) -> None:
    for number, rows in shards(num):
        torch.save([{"latent": latent_of(row)} for row in rows], folder / f"shard_{number:04d}.pt")


def read_torch(folder: Path) -> Read:
    opened: dict[int, list[dict[str, torch.Tensor]]] = {}

    def sample(row: int) -> torch.Tensor:
        number = row // PER_SHARD
        if number not in opened:
            opened[number] = torch.load(folder / f"shard_{number:04d}.pt", mmap=True, weights_only=True)
        return opened[number][row % PER_SHARD]["latent"]

    return lambda rows, out: torch.stack([sample(row) for row in rows], out=out)


def read_torch_whole(folder: Path) -> Read:
    """What people do today: a shard is loaded for each sample that is not in the last one."""
    last: list[object] = [None, None]

    def sample(row: int) -> torch.Tensor:
        if last[0] != row // PER_SHARD:
            last[:] = [row // PER_SHARD, torch.load(folder / f"shard_{row // PER_SHARD:04d}.pt", weights_only=True)]
        return last[1][row % PER_SHARD]["latent"]  # type: ignore[index]

    return lambda rows, out: torch.stack([sample(row) for row in rows], out=out)


def write_npz(folder: Path, num: int) -> None:
    for number, rows in shards(num):
        np.savez(folder / f"shard_{number:04d}.npz", **{str(row): latent_of(row).numpy() for row in rows})


def read_npz(folder: Path) -> Read:
    opened: dict[int, np.lib.npyio.NpzFile] = {}

    def sample(row: int) -> torch.Tensor:
        number = row // PER_SHARD
        if number not in opened:
            opened[number] = np.load(folder / f"shard_{number:04d}.npz")
        return torch.from_numpy(opened[number][str(row)])

    return lambda rows, out: torch.stack([sample(row) for row in rows], out=out)


def litdata_sample(number: int) -> dict[str, torch.Tensor]:
    return {"latent": latent_of(number)}


def write_litdata(folder: Path, num: int) -> None:
    import litdata

    litdata.optimize(litdata_sample, list(range(num)), str(folder), chunk_bytes="64MB", num_workers=1)


def read_litdata(folder: Path) -> Read:
    import litdata

    dataset = litdata.StreamingDataset(str(folder))
    return lambda rows, out: torch.stack([dataset[row]["latent"] for row in rows], out=out)


def write_lance(folder: Path, num: int) -> None:
    import lance
    import pyarrow as pa

    size = int(np.prod(SHAPE))
    schema = pa.schema([("latent", pa.list_(pa.float32(), size))])

    def batches() -> Iterator[pa.RecordBatch]:
        for _, rows in shards(num):
            values = pa.array(np.concatenate([latent_of(row).numpy().ravel() for row in rows]))
            yield pa.record_batch([pa.FixedSizeListArray.from_arrays(values, size)], schema=schema)

    lance.write_dataset(batches(), str(folder / "latents.lance"), schema=schema)


def read_lance(folder: Path) -> Read:
    import lance

    dataset = lance.dataset(str(folder / "latents.lance"))

    def read(rows: list[int], out: torch.Tensor) -> None:
        column = dataset.take(rows).column("latent").combine_chunks()
        np.copyto(out.view(-1).numpy(), column.flatten().to_numpy(zero_copy_only=False))

    return read


# row -> folder, package, writer, reader, share of the batches that is worth the wait
ROWS: dict[str, tuple[str, str, Callable[[Path, int], None], Callable[[Path], Read], float]] = {
    "sds stack": ("sds", "sds", write_sds, read_sds, 1),
    "sds stack mmap": ("sds", "sds", write_sds, read_sds_mapped, 1),
    "sds read": ("sds", "sds", write_sds, read_sds_samples, 1),
    "preadv, 1 thread": ("sds", "sds", write_sds, partial(read_bare, 1), 1),
    "preadv, 4 threads": ("sds", "sds", write_sds, partial(read_bare, 4), 1),
    "preadv, 16 threads": ("sds", "sds", write_sds, partial(read_bare, 16), 1),
    "fadvise, preadv": ("sds", "sds", write_sds, partial(read_bare, 1, is_asked_first=True), 1),
    "torch.load mmap": ("torch", "torch", write_torch, read_torch, 1),
    "torch.load whole": ("torch", "torch", write_torch, read_torch_whole, 0.05),
    "npz": ("npz", "numpy", write_npz, read_npz, 1),
    "litdata": ("litdata", "litdata", write_litdata, read_litdata, 1),
    "lance": ("lance", "lance", write_lance, read_lance, 1),
}


def drop_pages(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def measure(row: str, folder: Path, num: int, batch: int, num_batches: int) -> dict[str, float]:
    """One process: cold, then warm; samples per second, and peak memory beyond what opening took, in batches."""
    _, _, _, make, share = ROWS[row]
    num_batches = max(2, round(share * num_batches))
    order = random.Random(os.getpid()).sample(range(num), (num_batches + 1) * batch)
    batches = [order[start : start + batch] for start in range(0, len(order), batch)]
    read, out = make(folder), torch.empty(batch, *SHAPE)
    read(batches.pop(), out)
    drop_pages(folder)
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    result = {}
    for name in ("cold", "warm", "warm"):
        begin, cpu = time.perf_counter(), time.process_time()
        for rows in batches:
            read(rows, out)
        result[name] = batch * len(batches) / (time.perf_counter() - begin)
        result["cpu"] = (time.process_time() - cpu) / (batch * len(batches))
    result["memory"] = (peak_bytes() - before) / out.nbytes
    assert torch.equal(out[3], latent_of(batches[-1][3]))
    return result


def open_large(folder: Path, num: int) -> None:
    """Builds a real cache of so many small samples, and opens it in a fresh process."""
    from sds.tensors import TensorCacheWriter

    begin = time.perf_counter()
    with TensorCacheWriter(folder, "1mb") as writer:
        latent = torch.zeros(1, 4, 4, 4)
        for number in range(num):
            if (key := f"image-{number:09d}") not in writer:
                latent[0, 0, 0, 0] = number
                writer.add(key, {"latent": {"samples": latent}, "caption": "a cat on a mat"})
    print(f"built {num} samples in {time.perf_counter() - begin:.0f} s")
    program = """
import sys, time, psutil, sds.tensors
me = psutil.Process(); rss = me.memory_info().rss
begin = time.perf_counter(); cache = sds.tensors.TensorCache(sys.argv[1]); took = time.perf_counter() - begin
print(f"opened {len(cache)} samples, {len(cache._shards)} shards: {1000 * took:.1f} ms", end=", ")
print(f"{(me.memory_info().rss - rss) / 1e6:.1f} MB")
begin = time.perf_counter(); numbers, infos = cache.buckets(); took = time.perf_counter() - begin
print(f"shapes of {len(numbers)} samples: {1000 * took:.0f} ms, {cache.num_reads} reads of tensors")
"""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program, str(folder)], check=True)


def measure_loader(folder: Path, num: int, batch: int, rounds: int) -> None:
    """Epochs of shuffled batches: ours, and torch's DataLoader over the same cache; samples per second, medians."""
    from torch.utils.data import DataLoader, RandomSampler

    from sds import StreamingDataLoader, StreamingDataset
    from sds.tensors import TensorCache

    with tempfile.TemporaryDirectory() as dst, StreamingDataset(folder, dst, shuffle_seed=1) as dataset:
        cache = TensorCache(folder)
        plain = DataLoader(cache, batch, sampler=RandomSampler(cache))  # type: ignore[arg-type]
        loaders = {"StreamingDataLoader": StreamingDataLoader(dataset, batch), "DataLoader": plain}
        found: dict[str, list[float]] = {name: [] for name in loaders}
        for _ in range(rounds + 1):
            for name, loader in loaders.items():
                begin = time.perf_counter()
                for each in loader:
                    assert each["latent"].shape[1:] == SHAPE
                found[name].append(num / (time.perf_counter() - begin))
    for name, rates in found.items():
        print(f"{name:20} {statistics.median(rates[1:]):8.0f} samples/s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--open", type=int)
    parser.add_argument("--loader", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, help="measure these rows")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        folder = given.folder / ROWS[given.row][0]
        print(json.dumps(measure(given.row, folder, given.samples, given.batch, given.batches)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        base = given.folder or Path(scratch)
        if given.open:
            open_large(base / f"open-{given.open}", given.open)
            return
        rows = [row for row in given.only or ROWS if importlib.util.find_spec(ROWS[row][1])]
        rows = [row for row in rows if ROWS[row][0] == "sds"] if given.loader else rows
        for row in rows:
            folder = base / ROWS[row][0]
            if not (folder / "done").exists():
                folder.mkdir(parents=True, exist_ok=True)
                begin = time.perf_counter()
                ROWS[row][2](folder, given.samples)
                (folder / "done").touch()
                print(f"{ROWS[row][0]} written in {time.perf_counter() - begin:.0f} s")
        if given.loader:
            measure_loader(base / "sds", given.samples, given.batch, given.rounds)
            return
        found: dict[str, list[dict[str, float]]] = {row: [] for row in rows}
        sizes = ["--samples", given.samples, "--batch", given.batch, "--batches", given.batches, "--folder", base]
        for _ in range(given.rounds):
            for row in rows:
                command = [sys.executable, __file__, "--row", row, *map(str, sizes)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[row].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"{'':18} {'cold/s':>8} {'warm/s':>8} {'memory, batches':>16} {'warm CPU, us':>13}")
        for row in rows:
            median = {name: statistics.median(each[name] for each in found[row]) for name in found[row][0]}
            figures = (
                f"{median['cold']:8.0f} {median['warm']:8.0f} {median['memory']:16.1f} {1e6 * median['cpu']:13.1f}"
            )
            print(f"{row:18} {figures}")


if __name__ == "__main__":
    main()
