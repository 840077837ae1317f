"""(8) Latents of 128 KB, in random order."""

from dataclasses import replace

NUMBER, NAME = 8, "latents"
TITLE = "Latents of 128 KB in random batches"
ABOUT = "Batches of 64 float32 [16, 32, 64], filled again and again; pages warm. The limit copies as much memory."
FIGURE, UNIT = "warm", "samples/s"
COLUMNS = ("warm", "cold", "rss_mb")


def cases(bench):
    num = 300 if bench.is_quick else 4000
    told = {"samples": num, "folder": str(bench.home / f"latents-{num}")}
    kept = {"wipe": False, "prepare": True, **told}
    found = [bench.ours(row, "latents.py", row=row, **kept) for row in ("sds stack", "sds read")]
    others = [bench.ours(row, "latents.py", row=row, **kept) for row in ("torch.load mmap", "npz")]
    for row, package in (("litdata", "litdata"), ("lance", "lance")):
        others += bench.peer(row, package, "latents.py", remote=False, row=row, **kept)
    found += [replace(case, kind="shards") for case in others]
    found.append(replace(bench.limit("memcpy", "memcpy", row="memcpy", **told), script="latents.py", wipe=()))
    return found
