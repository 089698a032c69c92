"""Dumps the batches of a small training, finds them again, and loads one.

Writes `dump_dataset/`; look at a `tree.json` in it.
"""

from __future__ import annotations

import torch

from my_utils.dump_utils import DumpConfig, DumpTensorIO, UniversalDumper, UniversalLoader

STEPS = 5


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    # The loop goes on while a thread writes; leaving the block waits for it.
    with UniversalDumper(DumpConfig(root_dir="./dump_dataset", asynchronous=True)) as dumper:
        for step in range(STEPS):
            batch = {"x": torch.randn(4, 8), "ids": [f"sample-{step}-{i}" for i in range(4)]}
            output = model(batch["x"])
            dumper.dump(stage="before_loss", obj=(batch, output), data_id=step, branch="train")

    loader = UniversalLoader(root_dir="./dump_dataset")
    dump_dir = loader.dumps(data_id=3, stage="before_loss")[-1]
    batch, output = loader.load(dump_dir)
    print(f"step 3 had {batch['ids'][0]} and {type(output).__name__} of {tuple(output.shape)}")

    # Is the output still what it was?
    tensors = DumpTensorIO("./dump_dataset/tensors", compare_file="./dump_dataset/report.jsonl")
    tensors.dump(output, dump_id=3, tag="output")
    report = tensors.compare(model(batch["x"]), dump_id=3, tag="output")
    assert report is not None
    print(f"computed again it is the {report['status']}")


if __name__ == "__main__":
    main()
