"""A reader that may be killed at any moment: started again, it goes on from where its last state says.

Every object's name is the hash of its bytes, and the reader checks each file that it is given. After every batch it
writes down its state and what was delivered until then; after a worker's death it goes on by itself. It reads
`num_epochs`, and more of them until the file `enough` is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import sds


def check(sample: dict[str, Any]) -> dict[str, Any]:
    """Replaces the path by nothing, once its bytes were the right ones."""
    digest = hashlib.sha256(Path(sample["url"]).read_bytes()).hexdigest()
    if digest != sample["__sample_key__"]:
        raise ValueError(f"wrong bytes: {sample['__sample_key__']}")
    return {"__sample_key__": digest, "epoch": sample["__epoch__"], "pid": os.getpid()}


def main(settings: dict[str, Any]) -> None:
    notes = Path(settings["notes"])
    known = json.loads(notes.read_text()) if notes.exists() else {"state": None, "delivered": [], "deaths": 0}
    dataset = sds.StreamingDataset(
        settings["src"],
        settings["dst"],
        columns_to_download=["url"],
        transforms=[check],
        shuffle_seed=1,
        on_error="raise",
        cache_limit=settings["cache_limit"],
        storage_options=settings["storage_options"],
    )
    loader = sds.StreamingDataLoader(dataset, 4, num_workers=2, multiprocessing_context=settings["start_method"])
    if known["state"] is not None:
        loader.load_state_dict(known["state"])
    enough = Path(settings["enough"])
    while dataset.epoch < settings["num_epochs"] or not enough.exists():
        workers: set[int] = set()
        try:
            for batch in loader:
                time.sleep(settings["pause_s"])
                delivered = [list(each) for each in zip(batch["epoch"].tolist(), batch["__sample_key__"], strict=True)]
                workers |= set(batch["pid"].tolist())
                known = {
                    "state": loader.state_dict(),
                    "delivered": known["delivered"] + delivered,
                    "deaths": known["deaths"],
                    "workers": sorted(workers),
                }
                part = notes.with_suffix(f".{os.getpid()}")
                part.write_text(json.dumps(known))
                part.rename(notes)
        except (RuntimeError, sds.SdsError) as error:
            if "worker" not in str(error):
                raise
            known["deaths"] += 1
            loader.load_state_dict(loader.state_dict() if known["state"] is None else known["state"])
    loader.close()
    dataset.close()
