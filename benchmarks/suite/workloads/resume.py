"""(6) Going on at 90% of an epoch."""

from dataclasses import replace

from data import BUCKET
from runner import Failed, run

NUMBER, NAME = 6, "resume"
TITLE = "Resume at 90%"
ABOUT = "Construction to the first batch of decoded images, everything cached: at the start, and from a state at 90%."
FIGURE, UNIT, LOWER = "first_batch_s", "s", True
COLUMNS = ("first_batch_s", "rss_mb")


def cases(bench):
    lists, s3 = bench.images.lists, f"s3://{BUCKET}"
    told = {"num": bench.images.num, "wipe": False, "prepare": True, "what": "first"}
    ours = {"index": str(lists / "urls.parquet"), "storage_options": bench.storage_options, "contender": "sds"}
    all_cases = [bench.ours("sds, resumed", "resume_images.py", **ours, **told)]
    chunks = {"needs": "litdata", "kind": "chunks", "source": f"{s3}/litdata/", "contender": "litdata"}
    all_cases += bench.peer("litdata, chunks, resumed", "litdata", "resume_images.py", **chunks, **told)
    mds = {"needs": "mds", "source": f"{s3}/mds", "contender": "mosaic"}
    all_cases += bench.peer("mosaic, MDS, resumed", "streaming", "resume_images.py", **mds, **told)
    found = []
    for case in all_cases:
        try:
            # this run begins with an empty cache and fills it, so the unmeasured runs after it keep what is there
            first = replace(case, args={**case.args, "what": "state"}, wipe=case.fresh)
            state = run(first, patience_s=bench.patience_s)["state"]
        except Failed as error:
            bench.notes.append(f"resume: {case.name} failed: {error}")
            continue
        for name, each in (("at 90%", state), ("from the start", None)):
            label = case.name.replace("resumed", name)
            found.append(replace(case, name=label, fresh=(), args={**case.args, "state": each}))
    return found
