"""A cause that is recorded is said of every kind of finding; real runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...conftest import RunPython
from ...support.no_gil import needs_gil_waits
from ...support.schemas import loads_checked

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TRAINING = """
import gc, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

how = sys.argv[1]
rank = 0
if how == "reduces in forward":
    dist.init_process_group("gloo")
    rank = dist.get_rank()

class Rows(Dataset):
    def __len__(self):
        return 50
    def __getitem__(self, index):
        time.sleep(0.04 * (how == "sleeps"))
        if how == "collects in the loader":
            gc.collect()
        return torch.ones(16)

class Model(torch.nn.Linear):
    def forward(self, x):
        time.sleep(0.005)
        y = super().forward(x)
        if how == "reduces in forward":
            dist.all_reduce(y.detach())
        return y

heap = [[number, [number]] for number in range(1_000_000 if how == "one pause" else 300_000)]
gc.disable()
model = Model(16, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for step, batch in enumerate(DataLoader(Rows(), batch_size=1)):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if (how == "one pause" and step == 30) or how == "each step":
        gc.collect()
    if how == "reduces in forward" and rank == 1:
        gc.collect()
if dist.is_initialized():
    dist.destroy_process_group()
"""

# how, ranks, the kind of the finding, the cause
CASES = (
    ("one pause", 1, "untimed", "gc2"),
    pytest.param("each step", 1, "untimed", "gc2", marks=pytest.mark.thorough),
    pytest.param("collects in the loader", 1, "input", "gc2", marks=pytest.mark.thorough),
    pytest.param("sleeps", 1, "input", "other", marks=[needs_gil_waits, pytest.mark.thorough]),
    pytest.param("reduces in forward", 2, "straggler", "gc2", marks=pytest.mark.thorough),
)
SAID = {"gc2": "is garbage collection, generation 2", "other": "is sleeping, or waiting for"}


@pytest.mark.parametrize(("how", "world", "kind", "cause"), CASES)
def test_the_cause_of_a_finding_is_said(
    how: str, world: int, kind: str, cause: str, run_python: RunPython, tmp_path: Path
) -> None:
    """A machine that is short of cores may be the first finding; it takes its part of the time."""
    (tmp_path / "train.py").write_text(TRAINING)
    launched = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world))
    ran = run_python(
        "-m", "my_utils", "run", "-o", "logs", *(launched if world > 1 else ()), "train.py", how,
        env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    verdict = loads_checked("why", run_python("-m", "my_utils", "why", "logs", "--json").stdout)
    text = "\n".join(verdict["text"])
    found = next(one for one in verdict["findings"] if one["kind"] == kind)
    assert cause in dict(found["detail"]["causes"]), text
    first = found is verdict["findings"][0]
    if first:
        assert SAID[cause] in " ".join(text.split())
    if kind == "untimed" and found["detail"].get("cause") == cause:
        assert "garbage collection on rank 0" in text.lower()
        assert not first or (verdict["next"] or "").startswith("gc.freeze()"), text
