"""litdata: its own chunks, or raw files with and without its cache."""

import litdata
from litdata.raw.indexer import BaseIndexer, FileMetadata
from litdata.streaming import downloader
from timing import decode, given, incomplete_batches, lines, measure, tell

downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"  # the store here speaks no TLS


class Listed(BaseIndexer):
    """Files by a list that is there: its own way needs s3fs, which does not install beside a current boto3."""

    def __init__(self, names):
        self.names = names

    def build_or_load_index(self, *_, **__):
        return self.discover_files()

    def discover_files(self, *_):
        return [FileMetadata(path=name, size=60_000) for name in self.names]


def as_image(item):
    return decode(item["jpg"] if isinstance(item, dict) else item)


class Chunks(litdata.StreamingDataset):
    def __getitem__(self, index):
        return as_image(super().__getitem__(index))


def make(args):
    options = {"endpoint_url": args["endpoint"]} if args["endpoint"] else None
    if args["kind"] == "chunks":
        dataset = Chunks(
            args["source"],
            cache_dir=args["dst"] if args["endpoint"] else None,
            shuffle=True,
            drop_last=False,
            max_cache_size=args.get("cache_limit") or "100GB",
            storage_options=options or {},
        )
        return litdata.StreamingDataLoader(dataset, batch_size=args["batch"], num_workers=args["workers"])
    from litdata import StreamingRawDataset
    from torch.utils.data import DataLoader

    dataset = StreamingRawDataset(
        args["source"],
        cache_dir=args["dst"],
        indexer=Listed(lines(args["list"])),
        cache_files=args["kind"] == "raw cached",
        storage_options=options,
        transform=as_image,
    )
    return DataLoader(dataset, batch_size=args["batch"], num_workers=args["workers"], shuffle=True)


if __name__ == "__main__":
    args = given()
    may_miss = incomplete_batches(args)
    tell(**measure(lambda: make(args), num=args["num"], may_miss=may_miss, epochs=args["epochs"]))
