"""Checkpoint and resume with the Hugging Face Trainer: `resume_hf_trainer.py DIR --stop-after 9`, then `... DIR`.

The Trainer resumes by reading and throwing away what was seen. Here it need not: the loader goes on by itself. For that
the dataset is endless, `max_steps` says when it is enough, and `ignore_data_skip` keeps the Trainer from skipping.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from toy import BATCH_SIZE, EPOCHS, ROWS, Seen, Toy, arguments, check, make_dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import sds


class DataState(TrainerCallback):
    """Keeps the loader's state, and what was seen, in each checkpoint folder."""

    def __init__(self, loader: sds.StreamingDataLoader, seen: Seen, stop_after: int | None) -> None:
        self.loader, self.seen, self.stop_after = loader, seen, stop_after

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        path = Path(args.output_dir, f"checkpoint-{state.global_step}", "data.json")
        path.write_text(json.dumps({"loader": self.loader.state_dict(), "seen": self.seen.state_dict()}))

    def load(self, checkpoint: str) -> None:
        saved = json.loads(Path(checkpoint, "data.json").read_text())
        self.loader.load_state_dict(saved["loader"])
        self.seen.load_state_dict(saved["seen"])

    def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
        if state.global_step == self.stop_after:
            os._exit(9)


class StreamingTrainer(Trainer):
    """A Trainer whose training batches come from a StreamingDataLoader."""

    def __init__(self, *args: Any, loader: sds.StreamingDataLoader, seen: Seen, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.loader, self.seen = loader, seen

    def get_train_dataloader(self) -> Any:
        return self.loader

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **keywords: Any) -> Any:
        self.seen.add(inputs.pop("id"))
        return super().compute_loss(model, inputs, *args, **keywords)


def main() -> None:
    args = arguments()
    loader = sds.StreamingDataLoader(
        make_dataset(args.folder, infinite_iteration=True), BATCH_SIZE, num_workers=args.num_workers
    )
    seen, max_steps = Seen(), ROWS * EPOCHS // BATCH_SIZE
    data_state = DataState(loader, seen, args.stop_after)
    output = args.folder / "output"
    trainer = StreamingTrainer(
        Toy(),
        TrainingArguments(
            str(output),
            max_steps=max_steps,
            save_steps=4,
            ignore_data_skip=True,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        ),
        loader=loader,
        seen=seen,
        callbacks=[data_state],
    )
    checkpoint = get_last_checkpoint(str(output)) if output.exists() else None
    if checkpoint is not None:
        data_state.load(checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    loader.close()
    check(args.folder, seen, max_steps * BATCH_SIZE)


if __name__ == "__main__":
    main()
