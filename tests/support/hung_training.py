"""A training under DDP over gloo, timed by `my_utils run`, of which one rank stops for good.

As a program: `PLACE RANK`. The rank hangs in step 6 in the named place, and leaves the file
`hung`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = ("input", "between", "forward", "loss", "optimizer", "after")
STEP = 6

PROGRAM = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(1, 9)  # die with the launcher, which starts a session for each rank
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
place, rank = sys.argv[1], int(sys.argv[2])
step = 0

def hang(here, step):
    if (here, dist.get_rank(), step) == (place, rank, STEP):
        open("hung", "w").close()
        time.sleep(1000)

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        hang("input", number // 4)
        return torch.ones(4)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, batch):
        hang("forward", step)
        return self.layer(batch)

class Descent(torch.optim.SGD):
    def step(self, *args, **kwargs):
        hang("optimizer", step)
        return super().step(*args, **kwargs)

model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = Descent(model.parameters(), lr=0.1)
for step, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4)):
    hang("between", step)
    optimizer.zero_grad()
    loss = model(batch).sum()
    hang("loss", step)
    loss.backward()
    optimizer.step()
    hang("after", step)
""".replace("STEP", str(STEP))


@contextmanager
def hung_run(folder: Path, place: str, rank: int, world: int) -> Iterator[Path]:
    """Starts the training, waits until the rank hangs, and gives the run's log directory."""
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*launch, str(world), "-m", "my_utils.run", "train.py", place, str(rank)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path()},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while not (folder / "hung").exists():
            assert process.poll() is None, (folder / "output.txt").read_text()
            time.sleep(0.05)
        yield folder / "logs" / "latest"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _path() -> str:
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
