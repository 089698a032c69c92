"""Finds data that changes between a DataLoader's workers and the training loop, with checksums.

The workers sign every sample. A bug on the way, planted in `collate`, mixes up the labels of some
batches; `ChecksumUtils.verify` names the key and the samples, and training goes on.
"""

import os
from typing import Any

os.environ.setdefault("DEBUG_DATA_CONSISTENCY", "1")  # usually set where the job is started

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from my_utils import ChecksumUtils, GlobalLogger, MyTimer


class Squares(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = {"x": torch.full((16,), index / 64), "labels": torch.tensor(index**2 / 4096)}
        return ChecksumUtils.sign(sample, batched=False)


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = default_collate(samples)
    if samples[0]["x"][0] == 0.25:  # the planted bug: in one batch the labels are turned round
        batch["labels"] = batch["labels"].flip(0)
    return batch


def main() -> None:
    GlobalLogger().setup("logs", console=False)
    logger = GlobalLogger().get_logger()
    timer = MyTimer()
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Squares(), batch_size=8, num_workers=1, collate_fn=collate)
    for step, batch in enumerate(loader):
        timer.set_step(step)
        with timer.time_stage("verify"):
            result = ChecksumUtils.verify(batch, logger)
        for found in result.mismatches:
            print(f"step {step}: {found.key}, sample {found.sample} {found.detail}")
        with timer.time_stage("train"):
            loss = (model(batch["x"])[:, 0] - batch["labels"]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        timer.step()


if __name__ == "__main__":
    main()
