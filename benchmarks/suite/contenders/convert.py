"""Writes the images in the formats that peers want: run in their environment, once."""

import io
import os
import sys
import tarfile
from pathlib import Path

from timing import given, lines


def pieces(names, num):
    return [names[k::num] for k in range(num)]


def tars(names, out):
    out.mkdir(parents=True)
    for number, part in enumerate(pieces(names, 12)):
        with tarfile.open(out / f"train-{number:04}.tar", "w") as tar:
            for name in part:
                data = Path(name).read_bytes()
                info = tarfile.TarInfo(f"{Path(name).stem}.jpg")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def parquet(names, out):
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True)
    for number, part in enumerate(pieces(names, 12)):
        table = pa.table({"jpg": pa.array([Path(name).read_bytes() for name in part], pa.binary())})
        pq.write_table(table, out / f"train-{number:04}.parquet", row_group_size=100, compression="none")


def read_item(name):
    return {"jpg": Path(name).read_bytes()}


def litdata(names, out):
    import litdata

    litdata.optimize(read_item, names, str(out), chunk_bytes="16MB", num_workers=2)


def mds(names, out):
    import mosaic_images  # noqa: F401 (what it needs to be imported)
    from streaming import MDSWriter

    with MDSWriter(out=str(out), columns={"jpg": "bytes"}, size_limit=16 * 2**20) as writer:
        for name in names:
            writer.write(read_item(name))


if __name__ == "__main__":
    args = given()
    names = lines(args["list"])
    out = Path(args["out"])
    part = out.with_name(f".{out.name}.part")
    if part.exists():
        sys.exit(f"a conversion was cut short; remove {part}")
    {"tars": tars, "parquet": parquet, "litdata": litdata, "mds": mds}[args["kind"]](names, part)
    os.rename(part, out)
    os._exit(0)
