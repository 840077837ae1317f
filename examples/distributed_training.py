"""Data-parallel training: every rank makes its share of each global batch, and all of them make equally many steps.

    torchrun --nproc-per-node 2 examples/distributed_training.py photos.parquet

There is no sampler, and nothing to prepare: dataset and loader find their rank by themselves.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from plain_training_loop import make_dataset, make_model, make_parser, train_step
from torch.nn.parallel import DistributedDataParallel

import sds


def main() -> None:
    args = make_parser(__doc__.splitlines()[0]).parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if torch.cuda.is_available() else "cpu"

    torch.manual_seed(0)
    model = DistributedDataParallel(make_model().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    dataset = make_dataset(args)
    with dataset, sds.StreamingDataLoader(dataset, args.batch_size) as loader:
        for epoch in range(args.epochs):
            seen: list[str] = []
            for batch in loader:
                loss = train_step(model, optimizer, batch["image"].to(device))
                seen += batch["__sample_key__"]
            everybody: list[list[str]] = [[] for _ in range(size)]
            dist.all_gather_object(everybody, seen)
            if rank == 0:
                ids = [key for keys in everybody for key in keys]
                told = f"loss {loss:.4f}, {len(set(ids))} different samples of {len(ids)}"
                print(f"epoch {epoch}: {len(loader)} steps on {size} ranks, {told}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
