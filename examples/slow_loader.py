"""A training of one or more ranks, in which rank 1 waits for its batches.

    my_utils run -- torchrun --nproc-per-node 2 examples/slow_loader.py

No line of it is about my_utils; the command says that the run is bound by input, and on which rank.
"""

import os
import time

import torch
from torch import nn

STEPS = 60
BATCH = 4
RANK = int(os.environ.get("RANK", 0))


class Pictures(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCH * STEPS

    def __getitem__(self, number: int) -> torch.Tensor:
        if RANK == 1:
            time.sleep(0.01)  # a slow disk
        return torch.ones(16)


def main() -> None:
    model: nn.Module = nn.Linear(16, 1)
    if "WORLD_SIZE" in os.environ:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.utils.data.DataLoader(Pictures(), batch_size=BATCH):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    if "WORLD_SIZE" in os.environ:
        torch.distributed.barrier()


if __name__ == "__main__":
    main()
