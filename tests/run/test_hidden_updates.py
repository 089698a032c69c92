"""Models that are trained one after another without an optimizer of torch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.profile_rows import read

STEPS = 40
SCRIPT = f"""
import torch, weakref
torch.manual_seed(0)
kept = []

def train():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    if KEEPS:
        kept.append(net)
    for _ in range({STEPS}):
        net(torch.randn(8, 4)).sum().backward()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad.zero_()
    return weakref.ref(net[0].weight)

for _ in range(2):
    print(train()() is None)
"""


def forwards(run_python: RunPython, folder: Path, keeps: bool) -> list[int]:
    """Of each step."""
    (folder / "train.py").write_text(SCRIPT.replace("KEEPS", str(keeps)))
    bare = run_python("train.py")
    done = run_python("-m", "my_utils.run", "--quiet", "-o", "out", "train.py")
    assert (done.stdout, done.stderr) == (bare.stdout, "")
    rows = read(folder / "out" / "profile_rank_0.csv")
    ends = Counter(row.step for row in rows if (row.name, row.kind) == ("forward", "END"))
    return [ends[step] for step in range(max(ends) + 1)]


@pytest.mark.thorough
def test_a_model_that_is_gone_is_not_watched(run_python: RunPython, tmp_path: Path) -> None:
    found = forwards(run_python, tmp_path, keeps=False)
    assert found == [0] * 8 + [1] * (2 * STEPS - 8)


@pytest.mark.thorough
def test_a_model_that_rests_is_not_watched_for_long(run_python: RunPython, tmp_path: Path) -> None:
    found = forwards(run_python, tmp_path, keeps=True)
    assert found[:STEPS] == [0] * 8 + [1] * (STEPS - 8)
    assert found[STEPS] <= 12
    assert set(found[STEPS + 1 :]) == {1}
