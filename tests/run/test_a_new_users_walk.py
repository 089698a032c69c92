"""The walk of a new user: a fresh environment, a script without my_utils in it, one command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ..support.fresh_environment import TORCH, Environment, installed, with_torch_of_the_tests

pytestmark = [
    pytest.mark.long_file,
    pytest.mark.timeout(300),
    pytest.mark.skipif(TORCH is None, reason="torch is not installed"),
]

SLOW_S = 0.03

TRAINING = f"""
import os, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 4 * 60
    def __getitem__(self, index):
        if os.environ["RANK"] == "1":
            time.sleep({SLOW_S} / 4)  # a slow disk
        return torch.ones(16), torch.ones(1)

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for images, labels in DataLoader(Images(), batch_size=4):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(images), labels).backward()
    optimizer.step()
print("trained on rank %d\\n" % dist.get_rank(), end="")  # in one piece: both have one pipe
dist.barrier()
dist.destroy_process_group()
"""

FOUND, NOT_JUDGED = 3, 4


def walk(environment: Environment, home: Path) -> None:
    home.mkdir()
    (home / "train.py").write_text(TRAINING)
    train = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]

    ran = environment.run(["my_utils", "run", "--", *train], home)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.split("\n")) == ["", "trained on rank 0", "trained on rank 1"]
    said = ran.stderr.splitlines()
    assert any(line.startswith("BOUND BY INPUT on rank 1") for line in said), ran.stderr
    assert any(line.startswith("files: logs/train-") for line in said), ran.stderr

    asked = environment.run(["my_utils", "why"], home)
    assert asked.returncode == FOUND, asked.stderr
    first, *rest = asked.stdout.splitlines()
    assert first.startswith("BOUND BY INPUT on rank 1"), asked.stdout
    assert any("the other waits for it in backward" in line for line in rest), asked.stdout

    (run,) = [path for path in (home / "logs").iterdir() if not path.is_symlink()]
    elsewhere = home.parent / "elsewhere" / "copy"
    shutil.copytree(run, elsewhere)
    copied = environment.run(["my_utils", "why", str(elsewhere)], home.parent)
    assert copied.returncode == FOUND, copied.stderr
    assert copied.stdout.splitlines()[0] == first

    for path in elsewhere.glob("*rank_1*"):
        path.unlink()
    missing = environment.run(["my_utils", "why", str(elsewhere)], home.parent)
    assert missing.returncode == NOT_JUDGED, missing.stdout
    assert missing.stdout.startswith("NOT JUDGED: no files of rank 1 of 2"), missing.stdout


@pytest.mark.thorough
@pytest.mark.slow
def test_the_walk(tmp_path: Path) -> None:
    walk(with_torch_of_the_tests(tmp_path / "venv"), tmp_path / "home")


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # downloads torch and compiles the C module, beside other tests
def test_the_walk_with_what_pip_installs(tmp_path: Path) -> None:
    walk(installed(tmp_path / "venv"), tmp_path / "home")
