"""Checkpoint and resume in a plain loop. Run it twice: `resume_plain_loop.py DIR --stop-after 9`, then `... DIR`."""

from __future__ import annotations

import os

import torch
from toy import BATCH_SIZE, EPOCHS, Seen, Toy, arguments, check, make_dataset

import sds


def main() -> None:
    args = arguments()
    model, seen, step = Toy(), Seen(), 0
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = sds.StreamingDataLoader(make_dataset(args.folder), BATCH_SIZE, num_workers=args.num_workers)

    checkpoint = args.folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])  # on every rank: one rank's state is everyone's
        seen.load_state_dict(saved["seen"])
        step = saved["step"]
        print(f"goes on after step {step}")

    while loader.dataset.epoch < EPOCHS:  # not `for epoch in range(...)`: the first one may be half done
        for batch in loader:
            model(batch["x"], batch["y"])["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.add(batch["id"])
            step += 1
            if step % 4 == 0:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": loader.state_dict(),  # what was handed out: this batch, not what is prefetched
                    "seen": seen.state_dict(),
                    "step": step,
                }
                torch.save(saved, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").rename(checkpoint)
            if step == args.stop_after:
                os._exit(9)
    loader.close()
    check(args.folder, seen)


if __name__ == "__main__":
    main()
