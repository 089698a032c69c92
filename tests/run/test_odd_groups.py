"""Process groups that a script makes by hand, derives from, drops, or makes anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.profile_rows import read

pytestmark = pytest.mark.thorough  # each starts torch twice

TRAINS = """
import datetime, gc, weakref
import torch, torch.distributed as dist

def gloo():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

gloo()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

def raised(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as error:
        print(type(error).__name__, str(error).partition("\\n")[0])

train(3)
"""

BY_HAND = """
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.destroy_process_group()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
group = dist.group.WORLD
print(type(group.send([torch.ones(2)], dstRank=2, tag=0)).__name__)
print(type(group.recv(tensors=[torch.ones(2)], srcRank=1, tag=0)).__name__)
raised(group.send)
raised(dist.ProcessGroup.barrier, 3)
raised(dist.all_reduce, torch.ones(2), group=[0])
nameless = dist.ProcessGroup(0, 1)
raised(nameless.allreduce, [torch.ones(2)])
"""

DERIVED = """
class Group(dist.ProcessGroup):
    def __init__(self):
        super().__init__(0, 1)
        gloo = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)

    def allreduce(self, *args, **kwargs):
        print("mine")
        return super().allreduce(*args, **kwargs)

class Never(dist.Work):
    pass

tensor = torch.ones(2)
group = Group()
group.allreduce([tensor]).wait()
group.broadcast(tensor, 0).wait()
raised(Never().wait, datetime.timedelta(milliseconds=1))
print(tensor)
"""

DROPPED = """
def drop():
    group = dist.new_group([0])
    dist.all_reduce(torch.ones(2), group=group)
    train(1)
    dist.destroy_process_group(group)
    return weakref.ref(group)

found = [drop() for _ in range(20)]
gc.collect()
print([one() for one in found])
"""

ANEW = """
from torch.testing._internal.distributed.fake_pg import FakeStore

dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=3)
dist.all_reduce(torch.ones(2))
dist.barrier()
train(1)
dist.destroy_process_group()
gloo()
dist.broadcast(torch.ones(2), 0)
"""


@pytest.mark.parametrize("script", [BY_HAND, DERIVED], ids=["by hand", "derived"])
def test_a_script_gets_the_results_and_errors_of_torch(
    run_python: RunPython, tmp_path: Path, script: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINS + script)
    recorded = run_python("-m", "my_utils", "run", "--quiet", "train.py")
    bare = run_python("train.py")
    assert bare.returncode == 0, bare.stderr[-3000:]
    assert (recorded.returncode, recorded.stdout) == (0, bare.stdout), recorded.stderr[-3000:]


def test_groups_that_are_dropped_end_and_leave_one_row(
    run_python: RunPython, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINS + DROPPED)
    done = run_python("-m", "my_utils", "run", "--quiet", "-o", "logs", "train.py")
    assert done.stdout == f"{[None] * 20}\n", done.stderr[-3000:]
    rows = read(tmp_path / "logs/profile_rank_0.csv")
    assert [row.metadata["members"] for row in rows if row.name == "my_utils.group"] == ["0"]
    of_groups = [row for row in rows if row.name == "my_utils.sync" and row.metadata["members"]]
    assert len(of_groups) == 1
    called = [row.name for row in rows if row.kind == "START" and "all_reduce" in row.name]
    assert len({*called}) == 2 and len(called) == 2 * 20  # and the waits


def test_the_groups_of_a_second_training_have_their_own_members(
    run_python: RunPython, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINS + ANEW)
    done = run_python("-m", "my_utils", "run", "--quiet", "-o", "logs", "train.py")
    assert done.returncode == 0, done.stderr[-3000:]
    rows = read(tmp_path / "logs/profile_rank_0.csv")
    groups = {
        row.metadata["label"]: row.metadata["members"]
        for row in rows if row.name == "my_utils.group"
    }  # fmt: skip
    assert groups == {"world": "0", "group 1": "0-2"}
    started = [row.name for row in rows if row.kind == "START"]
    called = [name for name in started if name in ("barrier group 1", "broadcast world")]
    assert called == ["barrier group 1", "broadcast world"]
