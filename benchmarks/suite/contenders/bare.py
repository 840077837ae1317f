"""The physical limits: gets, decodes, both, memcpy and disk reads, in bare loops."""

import math
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time

from timing import SIZE, decode, given, lines, tell

NUM_GETS = 64  # at once


def spread(names, num_threads, work):
    """Calls work(name) for all names, in threads; returns when all are done."""
    waiting = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    for _ in range(num_threads):
        waiting.put(None)

    def run():
        while (name := waiting.get()) is not None:
            work(name)

    threading.excepthook = lambda given: (sys.excepthook(*given[:3]), os._exit(1))
    threads = [threading.Thread(target=run) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def getter(args):
    """name -> bytes, from the store."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        args["bucket"],
        endpoint=args["endpoint"],
        access_key_id="any",
        secret_access_key="any",
        region="us-east-1",
        client_options={"allow_http": True},
    )
    return lambda name: obstore.get(store, name).buffer()


def keys(args):
    start = len(f"s3://{args['bucket']}/")
    return [name[start:] for name in lines(args["list"])]


def gets(args):
    """Bodies that nobody keeps."""
    names, get = keys(args), getter(args)
    begun = time.perf_counter()
    spread(names, NUM_GETS, get)
    rate = len(names) / (time.perf_counter() - begun)
    return {"images": len(names), "steady": rate, "with_start": rate}


def collated(num, batch, image_of):
    """image_of(k, place) for k up to num, in batches, in a thread for each core: a loader's work without a loader.

    What is not in its place yet is copied there.
    """
    import torch

    torch.set_num_threads(1)
    batches = [torch.empty(batch, 3, SIZE, SIZE, dtype=torch.uint8) for _ in range(4)]
    places = [[torch.from_numpy(image) for image in each.numpy()] for each in batches]
    times = []

    def work(k):
        place = places[k // batch % len(batches)][k % batch]
        image = image_of(k, place)
        if image is not place:
            place[...] = image
        times.append(time.perf_counter())

    begun = time.perf_counter()
    spread(range(num), num_cores(), work)
    return rates(sorted(times), begun, batch)


def rates(times, begun, batch):
    """Figures from the moments at which images were done."""
    num = len(times)
    at = num // 10
    return {
        "images": num,
        "steady": (num - 1 - at) / (times[-1] - times[at]),
        "with_start": num / (times[-1] - begun),
        "first_batch_s": times[min(batch, num) - 1] - begun,
    }


def num_cores():
    return len(os.sched_getaffinity(0))


def read_file(path):
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def decodes(args):
    """Files of this disk, decoded in a thread for each core."""
    names = lines(args["list"])
    return collated(len(names), args["batch"], lambda k, _: decode(read_file(names[k])))


class Lender:
    """Has transforms write to one place."""

    def __init__(self, place):
        self._place = place

    def lend(self, *_):
        return self._place


def our_way():
    """path, place -> image, by sds's own transforms, joined as its pipeline joins them, without dataset and loader."""
    from sds.transforms import presets
    from sds.transforms.base import join_neighbours
    from sds.transforms.places import Place, lend_from

    lenders = {}  # of each place, made once

    chain = join_neighbours(presets.create_standard_image_pipeline("url", resolution=(SIZE, SIZE)))

    def image_of(path, place):
        lender = lenders.get(id(place))
        if lender is None:
            lender = lenders[id(place)] = Lender(Place(place, place.numpy()))
        lend_from(lender)
        sample = {"url": path}
        for transform in chain:
            sample = transform(sample)
        return sample["image"]

    return image_of


def decodes_our_way(args):
    """The same by sds's own transforms."""
    names, image_of = lines(args["list"]), our_way()
    return collated(len(names), args["batch"], lambda k, place: image_of(names[k], place))


def decodes_in_processes(args):
    """Files of this disk, decoded in a process for each core, into batches that all of them share."""
    import mmap

    import numpy as np
    import torch

    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    names, batch, taken = lines(args["list"]), args["batch"], context.Value("q", 0)
    shape = (4, batch, 3, SIZE, SIZE)
    batches = np.frombuffer(mmap.mmap(-1, math.prod(shape)), np.uint8).reshape(shape)

    def run(end):
        times = []
        while True:
            with taken.get_lock():
                k, taken.value = taken.value, taken.value + 1
            if k >= len(names):
                return end.send(times)
            batches[k // batch % len(batches), k % batch] = decode(read_file(names[k])).numpy()
            times.append(time.perf_counter())

    begun = time.perf_counter()
    ours = []
    for _ in range(num_cores()):
        mine, theirs = context.Pipe(duplex=False)
        context.Process(target=run, args=(theirs,)).start()
        theirs.close()  # so that the end of a process is seen here
        ours.append(mine)
    return rates(sorted(moment for end in ours for moment in end.recv()), begun, batch)


def both(args, image_of=lambda path, _: decode(read_file(path))):
    """One process gets and writes files, another one reads and decodes them: the work of sds without sds."""
    import json

    os.makedirs(args["dst"], exist_ok=True)
    command = [sys.executable, __file__, json.dumps({**args, "kind": "write"})]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        names, lock = keys(args), threading.Lock()
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"

        def feed():
            with lock:
                return writer.stdout.readline().rstrip("\n")

        return collated(len(names), args["batch"], lambda _, place: image_of(feed(), place))


def both_our_way(args):
    """The same by sds's own transforms."""
    return both(args, our_way())


def write(args):
    """Gets what it is told to, puts it into files, and says so."""
    names, get = keys(args), getter(args)
    sys.stdout.write("ready\n")
    sys.stdout.flush()

    def work(name):
        data, path = get(name), os.path.join(args["dst"], name.replace("/", "-"))
        descriptor = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.write(descriptor, data)
        os.close(descriptor)
        os.rename(path + ".part", path)
        os.write(1, f"{path}\n".encode())

    spread(names, NUM_GETS, work)
    os._exit(0)


def reads(args):
    """Files of this disk, read and nothing else."""
    names = lines(args["list"])
    begun = time.perf_counter()
    num_bytes = sum(len(read_file(name)) for name in names)
    took = time.perf_counter() - begun
    return {
        "images": len(names),
        "steady": len(names) / took,
        "with_start": len(names) / took,
        "bytes_per_s": num_bytes / took,
    }


KINDS = {
    "gets": gets,
    "decodes": decodes,
    "decodes, sds's way": decodes_our_way,
    "decodes, processes": decodes_in_processes,
    "both": both,
    "both, sds's way": both_our_way,
    "write": write,
    "reads": reads,
}

if __name__ == "__main__":
    args = given()
    if "decodes" in args["kind"] or "both" in args["kind"]:
        import simplejpeg  # noqa: F401
        import torch  # noqa: F401
    tell(**KINDS[args["kind"]](args))
