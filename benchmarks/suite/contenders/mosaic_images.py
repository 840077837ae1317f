"""mosaicml-streaming over its own shards (MDS)."""

import importlib.util
import sys
import types

from timing import decode, given, incomplete_batches, measure, tell
from torch.utils.data import DataLoader


class Unused:
    """Stands for packages that it imports for decoders and tokenizers that nobody uses here: their torch is another."""

    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("torchvision", "transformers"):
            return importlib.util.spec_from_loader(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: type(name, (), {})
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Unused())

import streaming  # noqa: E402

SMALL_BLOCK = 1000  # samples that are shuffled together where the cache is small


class Images(streaming.StreamingDataset):
    def __getitem__(self, index):
        return decode(super().__getitem__(index)["jpg"])


def make(args):
    if not args["endpoint"]:
        dataset = Images(local=args["source"], shuffle=True, batch_size=args["batch"])
    else:
        more = {}
        if args.get("cache_limit"):
            # by default a shuffle block spans all of this data, and a small cache is filled again for each batch
            more = {"cache_limit": args["cache_limit"], "shuffle_block_size": SMALL_BLOCK}
        dataset = Images(remote=args["source"], local=args["dst"], shuffle=True, batch_size=args["batch"], **more)
        for stream in dataset.streams:
            stream._downloader.clean_up()  # forked workers would share its connection; each makes its own now
    return DataLoader(dataset, batch_size=args["batch"], num_workers=args["workers"])


if __name__ == "__main__":
    args = given()
    streaming.base.util.clean_stale_shared_memory()  # what a run that was ended left
    may_miss = incomplete_batches(args)
    tell(**measure(lambda: make(args), num=args["num"], may_miss=may_miss, epochs=args["epochs"]))
