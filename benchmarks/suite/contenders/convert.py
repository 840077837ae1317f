"""Writes the images in the formats that peers want: run in their environment, once."""

import io
import os
import sys
import tarfile
from pathlib import Path

from timing import given, lines

LEAST_SHARE = 0.95  # of the images' bytes, in what they were converted to


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
        # a dictionary would hold images that are there twice only once
        options = {"row_group_size": 100, "compression": "none", "use_dictionary": False}
        pq.write_table(table, out / f"train-{number:04}.parquet", **options)


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


def check_size(names, out):
    """Ends with an error if the output is smaller than what went in: then a peer would read less than the others."""
    wanted = sum(os.path.getsize(name) for name in names)
    found = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if found < LEAST_SHARE * wanted:
        sys.exit(f"the conversion has {found:,} bytes, and the images that it was made of {wanted:,}")


KINDS = {"tars": tars, "parquet-plain": parquet, "litdata": litdata, "mds": mds}

if __name__ == "__main__":
    args = given()
    names = lines(args["list"])
    out = Path(args["out"])
    part = out.with_name(f".{out.name}.part")
    if part.exists():
        sys.exit(f"a conversion was cut short; remove {part}")
    KINDS[args["kind"]](names, part)
    check_size(names, part)
    os.rename(part, out)
    os._exit(0)
