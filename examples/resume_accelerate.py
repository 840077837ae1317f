"""Checkpoint and resume with Accelerate. Run it twice: `resume_accelerate.py DIR --stop-after 9`, then `... DIR`."""

from __future__ import annotations

import os

import torch
from accelerate import Accelerator
from toy import BATCH_SIZE, EPOCHS, Seen, Toy, arguments, check, make_dataset

import sds


def main() -> None:
    args = arguments()
    accelerator = Accelerator(cpu=True)
    # the loader knows its rank by itself: it is not prepared, so that nobody divides the batches once more
    loader = sds.StreamingDataLoader(make_dataset(args.folder), BATCH_SIZE, num_workers=args.num_workers)
    model = Toy()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.01))
    seen, step = Seen(), 0
    # save_state and load_state take these along
    accelerator.register_for_checkpointing(loader, seen)

    checkpoints = args.folder / "checkpoints"
    if checkpoints.exists():
        newest = max(checkpoints.iterdir(), key=lambda path: int(path.name))
        accelerator.load_state(str(newest))
        step = int(newest.name)
        print(f"goes on after step {step}")

    while loader.dataset.epoch < EPOCHS:
        for batch in loader:
            x, y = batch["x"].to(accelerator.device), batch["y"].to(accelerator.device)
            accelerator.backward(model(x, y)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            seen.add(batch["id"])
            step += 1
            if step % 4 == 0:
                accelerator.save_state(str(checkpoints / str(step)))
            if step == args.stop_after:
                os._exit(9)
    loader.close()
    accelerator.end_training()
    check(args.folder, seen)


if __name__ == "__main__":
    main()
