"""torch's own DataLoader: over files, over boto3, over fsspec, or over s3torchconnector."""

import os

import torch
from timing import decode, decode_file, given, lines, measure, tell


class Files(torch.utils.data.Dataset):
    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        return decode_file(self.names[i])


class Boto3(Files):
    client = None

    def __getitem__(self, i):
        if self.client is None:  # one for each worker
            import boto3

            self.client = boto3.client("s3")
        bucket, _, key = self.names[i].removeprefix("s3://").partition("/")
        return decode(self.client.get_object(Bucket=bucket, Key=key)["Body"].read())


class Fsspec(Files):
    """Over HTTP, which needs no S3 client; many files of a batch at once."""

    def __getitems__(self, rows):
        import fsspec

        return [decode(data) for data in fsspec.filesystem("http").cat([self.names[i] for i in rows]).values()]


def torch_connector(args):
    from s3torchconnector import S3ClientConfig, S3MapDataset

    return S3MapDataset.from_objects(
        args["names"],
        region="us-east-1",
        endpoint=args["endpoint"],
        transform=read_object,
        s3client_config=S3ClientConfig(force_path_style=True),
    )


def read_object(item):
    return decode(item.read())


def make(args):
    kinds = {"files": Files, "boto3": Boto3, "fsspec": Fsspec}
    dataset = torch_connector(args) if args["kind"] == "connector" else kinds[args["kind"]](args["names"])
    context = "spawn" if args["kind"] == "connector" else None
    return torch.utils.data.DataLoader(
        dataset,
        args["batch"],
        shuffle=True,
        num_workers=args["workers"],
        multiprocessing_context=context if args["workers"] else None,
    )


if __name__ == "__main__":
    args = given()
    if args["kind"] == "boto3":
        import boto3  # noqa: F401 (imports are not what is measured)
    elif args["kind"] == "connector":
        import s3torchconnector  # noqa: F401
    elif args["kind"] == "fsspec":
        import fsspec  # noqa: F401
    args["names"] = lines(args["list"])
    os.environ.setdefault("AWS_REGION", "us-east-1")
    tell(**measure(lambda: make(args), num=args["num"], epochs=args["epochs"]))
