"""Gangs of real ranks for tests: a process that has torch loaded forks them on request, so that a gang takes a second.

`python gang.py serve` reads requests, one JSON line each, and answers each with what its ranks returned or raised.
`python gang.py rank SCENARIO JSON` is one rank under another launcher. A scenario is a function of this file.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

import sds
from sds.testing.resume import sample_keys

HERE = Path(__file__).resolve()


def dataset(args, **keywords):
    keywords = {"columns_to_download": [], "shuffle_seed": 7, "timeout": 2.0, **keywords}
    return sds.StreamingDataset(args["src"], args["cache"], **keywords)


def steps_of(loader):
    return [sample_keys(batch) for batch in loader]


# ---- scenarios: each runs in every rank, with torch.distributed initialised ----------------------------------------


def world(args):
    """Who am I: in this process, in a forked and in a spawned worker, and what each of them reads."""
    ds = dataset(args)
    found = {"here": ds.world.replica, "bare": [s["__sample_key__"] for s in ds]}
    for method in args["methods"]:
        ds.set_epoch(0)
        found[method] = sorted(
            key
            for batch in DataLoader(ds, 2, num_workers=1, multiprocessing_context=method)
            for key in batch["__sample_key__"]
        )
    return found


def plain_steps(args):
    """The steps of one epoch, by threads and by workers; the loaders' lengths."""
    keywords = args.get("keywords", {})
    loader = sds.StreamingDataLoader(dataset(args), 3, **keywords)
    with_workers = sds.StreamingDataLoader(dataset(args), 3, num_workers=2, **keywords)
    made = {"threads": steps_of(loader), "workers": steps_of(with_workers), "length": len(loader)}
    made["state"] = loader.state_dict()
    return made


def drawn_seed(args):
    ds = dataset(args, shuffle_seed=-1)
    return {"seed": ds.state_dict()["key"]["seed"], "keys": [s["__sample_key__"] for s in ds]}


def drawn_seed_goes_on(args):
    """A run with a drawn seed goes on with that seed, whatever this run would have drawn."""
    ds = dataset(args, shuffle_seed=-1)
    ds.load_state_dict(args["state"])
    return [s["__sample_key__"] for s in ds]


def differing(args):
    """One rank has another index (or seed, or query)."""
    mine = args["others"].get(str(dist.get_rank()), {})
    ds = dataset({**args, **mine.get("args", {})}, **mine.get("keywords", {}))
    return steps_of(sds.StreamingDataLoader(ds, 3))


def failing(args):
    """One rank cannot make its dataset, or dies, or never comes; the others wait for it at their first step."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"gang/{dist.get_rank()}", "has met the others")
    if dist.get_rank() == args["rank"]:
        if args["how"] == "dies":  # not while another rank is still inside init_process_group: that is torch's to tell
            store.wait([f"gang/{rank}" for rank in range(dist.get_world_size())])
            os.kill(os.getpid(), signal.SIGKILL)
        if args["how"] == "is late":
            time.sleep(30)
        args = {**args, "src": "/nowhere/at/all.csv"}
    ds = dataset(args, timeout=0.4, shuffle_seed=args.get("seed", 7))
    return steps_of(sds.StreamingDataLoader(ds, 3))


def validation_on_one_rank(args):
    """Rank 0 alone goes through a dataset of its own before and after all of them go through the common one."""
    alone = [s["__sample_key__"] for s in dataset(args, world=sds.World())] if dist.get_rank() == 0 else None
    together = steps_of(sds.StreamingDataLoader(dataset(args), 3))
    return {"alone": alone, "together": together}


def replicas(args):
    """Tensor-parallel groups of two among four ranks: by mesh, by a mesh in the other order, by explicit numbers."""
    from torch.distributed.device_mesh import init_device_mesh

    found = {}
    for dims in (("dp", "tp"), ("tp", "dp")):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=dims)
        mine = sds.World.from_mesh(mesh, "dp")
        found["-".join(dims)] = [mine.replica, steps_of(sds.StreamingDataLoader(dataset(args), 3, world=mine))]
        group = sds.World.from_mesh(mesh, ("dp", "tp"))
        found["both " + "-".join(dims)] = group.replica
    rank = dist.get_rank()
    mine = sds.World(rank, 4, data_rank=(rank + 1) % 4 // 2, data_size=2)  # groups {1, 2} and {3, 0}
    found["explicit"] = [mine.replica, steps_of(sds.StreamingDataLoader(dataset(args, world=mine), 3))]
    return found


class Odd:
    """A loader with batches of every kind."""

    def __init__(self, num_batches=3, fails_at=None, fails_first=False, secret_at=None, stateless_at=None):
        self.num_batches, self.fails_at, self.fails_first, self.position = num_batches, fails_at, fails_first, 0
        self.secret_at, self.stateless_at = secret_at, stateless_at

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        if self.fails_first:
            raise ValueError("cannot begin")
        return self._batches()

    def _batches(self):
        for k in range(self.position, self.num_batches):
            if k == self.fails_at:
                raise RuntimeError("a broken batch")
            self.position = k + 1
            yield {
                "empty": torch.empty(0, 3),
                "scalar": torch.tensor(float(k)),
                "strided": torch.arange(6).reshape(2, 3).t() + k,
                "half": torch.full((2,), k, dtype=torch.bfloat16),
                "eighth": torch.full((2,), k).to(torch.float8_e4m3fn),
                "complex": torch.full((2,), k + 1j),
                "conjugate": torch.full((2,), k + 1j).conj(),  # views: the sign is not in memory
                "negative": torch.full((2,), k + 1j).conj().imag,
                "flag": torch.tensor([True, False]),
                "nested": [{"a": torch.tensor([k])}, ("text", None, 2.5), b"bytes"],
                "kept": sds.Batch({"b": torch.tensor([k])}),
                "secret": (lambda: None) if k == self.secret_at else None,  # cannot be pickled
            }
        self.position = 0

    def state_dict(self):
        if self.position - 1 == self.stateless_at:
            raise RuntimeError("no state now")
        return {"position": self.position, "deep": [self.position]}

    def load_state_dict(self, state):
        self.position = state["position"]


def _plain(value):
    if isinstance(value, torch.Tensor):
        return [
            str(value.dtype),
            list(value.shape),
            str(value.tolist() if value.dtype != torch.float8_e4m3fn else value.float().tolist()),
        ]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else str(value)


def _groups():
    """Two groups that are not consecutive; the one of this rank."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    return groups[dist.get_rank() % 2]


def broadcast(args):
    """One rank of each of two groups reads; the others have no loader and no dataset."""
    group, rank = _groups(), dist.get_rank()
    mine = sds.World(rank, 4, data_rank=rank % 2, data_size=2)
    loader = sds.StreamingDataLoader(dataset(args), 3, world=mine) if rank < 2 else None
    shared = sds.BroadcastLoader(loader, group)
    found = {"length": len(shared), "first": shared.state_dict()["position"], "steps": [], "states": []}
    shared.trace(f"{args['cache']}/trace.json")
    shared.record(f"{args['cache']}/run.jsonl", every_s=1000)
    for batch in shared:
        found["steps"].append(sample_keys(batch))
        found["states"].append(shared.state_dict())
    found["counted"] = [shared.stats().batches, shared.stats().samples]
    found["second epoch"] = steps_of(shared)
    shared.load_state_dict(found["states"][1])
    for k, batch in enumerate(shared):  # all ranks leave after the same batch, and begin anew
        found["resumed"] = sample_keys(batch)
        if k == 1:
            break
    found["again"] = len(steps_of(shared))
    found["after"] = steps_of(sds.StreamingDataLoader(dataset(args), 3))  # a dataset of all ranks, afterwards
    shared.close()
    return found


def mix(args, **keywords):
    """A mix of two streams over the same index, one with rounds."""
    streams = [{"name": "a", "ratio": 0.6, "batch_gpu": 2}, {"name": "b", "ratio": 0.4, "num_accum_rounds": 2}]
    options = sds.StreamOptions.init_group(streams, args.get("strategy", "no_mixing"))
    b = dataset({**args, **args.get("b", {})}, shuffle_seed=8, timeout=args.get("timeout", 2.0))
    return sds.MultiStreamDataLoader([dataset(args), b], options, **{"stop": "first", **keywords})


def described(batch):
    return [batch.stream_name, batch.num_accum_rounds_left, sample_keys(batch)]


def broadcast_mix(args):
    """One rank of each of two groups reads a mix; a state taken in the middle is gone on with."""
    group, rank = _groups(), dist.get_rank()
    mine = sds.World(rank, 4, data_rank=rank % 2, data_size=2)
    shared = sds.BroadcastLoader(mix(args, world=mine) if rank < 2 else None, group)
    found = {"length": len(shared), "steps": [], "states": []}
    for batch in shared:
        found["steps"].append(described(batch))
        found["states"].append(shared.state_dict())
    shared.load_state_dict(found["states"][2])
    found["rest"] = [described(batch) for batch in shared]
    shared.close()
    return found


def mixed_ranks(args):
    """What each rank takes, and its state; one of them may have another dataset."""
    if args.get("rank") == dist.get_rank():
        args = {**args, "b": args["other"]}
    loader = mix(args)
    steps = [described(batch) for batch in loader]
    return {"steps": steps, "state": loader.state_dict()}


def broadcast_of_anything(args):
    group = _groups()
    reads = dist.get_rank() < 2
    shared = sds.BroadcastLoader(Odd() if reads else None, group)
    batches = [_plain(batch) for batch in shared]
    assert all(isinstance(batch["kept"], sds.Batch) for batch in shared)
    shared.load_state_dict({"position": 2, "deep": [2]})
    rest = [_plain(batch) for batch in shared]
    return {"batches": batches, "rest": rest, "length": len(shared), "state": shared.state_dict()}


def broadcast_errors(args):
    """What the reading rank raises, all ranks of the group raise."""
    group, reads, found = _groups(), dist.get_rank() < 2, {}
    for name, keywords in (
        ("in the middle", {"fails_at": 1}),
        ("at the start", {"fails_first": True}),
        ("not picklable", {"secret_at": 1}),
        ("without a state", {"stateless_at": 1}),
    ):
        shared = sds.BroadcastLoader(Odd(**keywords) if reads else None, group)
        taken = 0
        try:
            for _ in shared:
                taken += 1
        except sds.SdsError as error:
            found[name] = [taken, type(error).__name__, error.message, error.rank]
    return found


def broadcast_to_two_groups(args):
    """Rank 0 reads for rank 1 in one group and for rank 2 in another: their lengths and batches."""
    groups = [dist.new_group([0, 1]), dist.new_group([0, 2])]
    rank = dist.get_rank()
    mine = [0, 1] if rank == 0 else [rank - 1]
    shared = [sds.BroadcastLoader(Odd(2 * (k + 1)) if rank == 0 else None, groups[k]) for k in mine]
    return [[len(each), [_plain(batch["scalar"])[2] for batch in each]] for each in shared]


def broadcast_out_of_step(args):
    """The reading rank leaves its loop one batch before the other one of its group."""
    group, reads = _groups(), dist.get_rank() < 2
    shared = sds.BroadcastLoader(Odd() if reads else None, group)
    for k, _ in enumerate(shared):
        if reads and k == 0:
            break
    for _ in shared:
        break


def reader_fails(args):
    """The rank that reads cannot make its dataset: the other must not wait for it."""
    group = _groups()
    ds = dataset({**args, "src": "/nowhere/at/all.csv"}) if dist.get_rank() < 2 else None
    return len(sds.BroadcastLoader(ds and sds.StreamingDataLoader(ds, 3), group))


def samplers(args):
    """The map-style view under torch's own samplers."""
    view = dataset(args).as_map()
    rank, size = dist.get_rank(), dist.get_world_size()
    sampler = DistributedSampler(view, size, rank, shuffle=True, seed=3)
    found = {}
    for epoch in range(2):
        sampler.set_epoch(epoch)
        loader = DataLoader(view, 4, sampler=sampler, num_workers=epoch)  # without and with a worker
        found[f"epoch {epoch}"] = [key for batch in loader for key in batch["__sample_key__"]]
    drawn = RandomSampler(view, generator=torch.Generator().manual_seed(rank))
    batches = DataLoader(view, batch_sampler=BatchSampler(drawn, 5, drop_last=False))
    found["random"] = sorted(key for batch in batches for key in batch["__sample_key__"])
    return found


def train(args):
    """Two epochs, in step with the other ranks; after every step the ids and the state are on disk. To be killed."""
    loader = sds.StreamingDataLoader(dataset(args), args["batch_size"], num_workers=args["num_workers"])
    if args["state"] is not None:
        loader.load_state_dict(args["state"])
    log = os.open(Path(args["folder"], f"{dist.get_rank()}.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while loader.dataset.epoch < 2:
        epoch = loader.dataset.epoch
        for batch in loader:
            dist.all_reduce(torch.ones(1))
            line = {"epoch": epoch, "keys": sample_keys(batch), "state": loader.state_dict()}
            os.write(log, json.dumps(line).encode() + b"\n")
            time.sleep(0.002)
    loader.close()
    return "finished"


def lazy_counts(args):
    """A query over a lazy index, each rank with a cache folder of its own; one of them may die in its second share."""
    from sds.index import lazy_together

    rank, done, count = dist.get_rank(), [], lazy_together.CountJob.count
    store = dist.distributed_c10d._get_default_store()
    work_off = lazy_together.work_off

    def noted(job, pieces, weights):
        store.set(f"gang/{rank}", "has begun")
        store.wait([f"gang/{other}" for other in range(dist.get_world_size())])  # nobody is done before all begin
        found = count(job, pieces, weights)
        done.append(pieces[0].start)
        if rank == args.get("dies") and len(done) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    lazy_together._SHARE_ROWS = 1
    lazy_together.CountJob.count = noted
    lazy_together.work_off = lambda *words, **more: work_off(*words, patience_s=3.0, **more)
    with dataset({**args, "cache": f"{args['cache']}-{rank}"}, **args["keywords"]) as ds:
        return {"length": len(ds), "counts": ds._index.chunk_sizes.tolist(), "done": done, "first": ds[0]["x"]}


# ---- for tests that start processes of their own -------------------------------------------------------------------


def read_file(sample):
    """A transform: the content of what was fetched."""
    return {"__sample_key__": sample["__sample_key__"], "content": Path(sample["file"]).read_bytes()}


def spawned_rank(rank, dataset, folder):
    """A rank that torch.multiprocessing.spawn starts with a dataset that was made elsewhere."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    seen = [sample["__sample_key__"] for sample in dataset]
    for method in ("fork", "spawn"):  # the workers of a rank are of its world too, not of who sent the dataset
        dataset.set_epoch(0)
        loader = torch.utils.data.DataLoader(dataset, num_workers=1, batch_size=None, multiprocessing_context=method)
        assert [sample["__sample_key__"] for sample in loader] == seen, method
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()


def loop(args):
    """A training loop that is interrupted: after every step the ids and the state are on disk."""
    ds = sds.StreamingDataset(
        args["src"],
        args["cache"],
        columns_to_download=["file"],
        transforms=[read_file],
        shuffle_seed=7,
        storage_options=args["storage_options"],
    )
    loader = sds.StreamingDataLoader(ds, 2, num_workers=args["num_workers"])
    if args["state"] is not None:
        loader.load_state_dict(args["state"])
    if args["bare"]:  # all but the data: how long a process with torch takes to end on this machine, as busy as it is
        Path(args["log"]).write_text("ready")
        time.sleep(60)
    with open(args["log"], "a", buffering=1) as log:
        for batch in loader:
            log.write(json.dumps({"keys": sample_keys(batch), "state": loader.state_dict()}) + "\n")
            time.sleep(args["seconds"])


# ---- the machinery -------------------------------------------------------------------------------------------------


def run_rank(scenario, args):
    try:
        return {"result": globals()[scenario](args)}
    except Exception as error:
        traceback.print_exc()
        return {"error": type(error).__name__, "message": str(error), "rank": getattr(error, "rank", None)}


def fork_rank(request, rank, port, folder, start):
    """A rank: a child of this process with torch.distributed, which leaves its answer in a file."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stderr = open(folder / f"{rank}.err", "w")  # noqa: SIM115
        os.dup2(sys.stderr.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        size = request["size"]
        if request.get("environment", True):
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        answer = run_rank(request["scenario"], request["args"])
        answer["seconds"] = time.monotonic() - start
        temporary = folder / f"{rank}.tmp"
        temporary.write_text(json.dumps(answer))
        temporary.rename(folder / f"{rank}.json")
        # a rank that is done closes its connections, which another one may be about to write to
        deadline = time.monotonic() + request.get("linger", 10.0)
        while len(list(folder.glob("*.json"))) < size and time.monotonic() < deadline:
            time.sleep(0.005)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)  # no farewell: a rank that waits for another one must not keep the test


def run_gang(request):
    folder = Path(request["folder"])
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    waiting = {fork_rank(request, rank, port, folder, start): rank for rank in range(request["size"])}
    kill_at, killed = request.get("kill_at"), False
    while waiting and time.monotonic() < start + request["timeout"]:
        for pid in list(waiting):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del waiting[pid]
        if kill_at is not None and not killed:
            logs = [Path(request["args"]["folder"], f"{rank}.jsonl") for rank in range(request["size"])]
            if max((log.read_bytes().count(b"\n") for log in logs if log.exists()), default=0) >= kill_at["steps"]:
                time.sleep(kill_at["seconds"])
                killed = True
                for pid in waiting:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    hung = sorted(waiting.values())
    for pid in waiting:
        os.kill(pid, signal.SIGABRT)
    answers = []
    for rank in range(request["size"]):
        answer = folder / f"{rank}.json"
        found = json.loads(answer.read_text()) if answer.exists() else {"dead": True}
        answers.append({**found, "log": (folder / f"{rank}.err").read_text()[-4000:]})
    return {"ranks": answers, "hung": hung, "left": wait_for_orphans(), "killed": killed}


def wait_for_orphans():
    """What ranks leave behind becomes a child of this process: it must be gone soon (a fetch server stays 2 s)."""
    deadline = time.monotonic() + 8  # torch's workers look every 5 s whether their parent lives
    while time.monotonic() < deadline:
        left = psutil.Process().children(recursive=True)
        if not left:
            return []
        for child in left:
            try:
                os.waitpid(child.pid, os.WNOHANG)
            except ChildProcessError:
                pass
        time.sleep(0.01)
    return [" ".join(child.cmdline()) for child in left if child.is_running()]


def serve():
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(run_gang(json.loads(line))), file=answers, flush=True)


def main():
    if sys.argv[1] == "serve":
        serve()
    elif sys.argv[1] == "loop":
        loop(json.loads(sys.argv[2]))
    else:
        dist.init_process_group("gloo")
        rank, (_, _, scenario, args) = dist.get_rank(), sys.argv
        args = json.loads(args)
        Path(args["folder"], f"{rank}.json").write_text(json.dumps(run_rank(scenario, args)))
        dist.destroy_process_group()


class Gangs:
    """The test's side of `serve`."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE), "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, scenario, size, folder, *, timeout=30, allow_dead=False, **request):
        """What each rank returned or raised. Fails if one hung, died, or left a process behind."""
        request = {"scenario": scenario, "size": size, "folder": str(folder), "timeout": timeout, **request}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        logs = "\n".join(f"--- rank {k}\n{each['log']}" for k, each in enumerate(answer["ranks"]))
        assert not answer["hung"], f"ranks {answer['hung']} hung\n{logs}"
        assert not answer["left"], f"left behind: {answer['left']}\n{logs}"
        dead = [k for k, each in enumerate(answer["ranks"]) if "dead" in each]
        assert allow_dead or answer["killed"] or not dead, f"ranks {dead} died\n{logs}"
        return answer["ranks"]

    def results(self, *args, **keywords):
        """What each rank returned; fails if one raised."""
        ranks = self.run(*args, **keywords)
        for k, each in enumerate(ranks):
            assert "result" in each, f"rank {k} raised {each.get('error')}: {each.get('message')}\n{each['log']}"
        return [each["result"] for each in ranks]

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


if __name__ == "__main__":
    main()
