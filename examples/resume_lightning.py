"""Checkpoint and resume with Lightning. Run it twice: `resume_lightning.py DIR --stop-after 9`, then `... DIR`."""

from __future__ import annotations

import os
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from toy import BATCH_SIZE, EPOCHS, Seen, Toy, arguments, check, make_dataset

import sds


class Data(lightning.LightningDataModule):
    """Its state goes into every checkpoint, and is there before the first batch of a resumed run is asked for."""

    def __init__(self, folder: Path, num_workers: int) -> None:
        super().__init__()
        self.loader = sds.StreamingDataLoader(make_dataset(folder), BATCH_SIZE, num_workers=num_workers)

    def train_dataloader(self) -> sds.StreamingDataLoader:
        return self.loader

    def state_dict(self) -> dict:
        return self.loader.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.loader.load_state_dict(state)


class Module(lightning.LightningModule):
    def __init__(self, stop_after: int | None) -> None:
        super().__init__()
        self.toy, self.seen, self.stop_after = Toy(), Seen(), stop_after

    def training_step(self, batch: dict, _: int) -> torch.Tensor:
        self.seen.add(batch["id"])
        return self.toy(batch["x"], batch["y"])["loss"]

    def on_train_batch_end(self, *_: object) -> None:
        if self.global_step == self.stop_after:
            os._exit(9)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["seen"] = self.seen.state_dict()

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        self.seen.load_state_dict(checkpoint["seen"])


def main() -> None:
    args = arguments()
    module, data = Module(args.stop_after), Data(args.folder, args.num_workers)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(args.folder, "{step}", every_n_train_steps=4, save_top_k=-1)],
    )
    newest = max(args.folder.glob("step=*.ckpt"), key=lambda path: int(path.stem.split("=")[1]), default=None)
    trainer.fit(module, data, ckpt_path=newest)
    data.loader.close()
    check(args.folder, module.seen)


if __name__ == "__main__":
    main()
