"""When ranks came to the collectives of FSDP, as torch's flight recorder says."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from my_utils import _core
from my_utils.analysis.verdict.load import load_run
from my_utils.run.stages import fsdp_backward
from my_utils.run.stages.fsdp_backward import FlightSampler

from ..support.ranks import ROOT

pytestmark = pytest.mark.timeout(600)

Row = tuple[str, dict[str, object], int]


def sampler_of(rows: list[Row], every: int | None = None) -> FlightSampler:
    stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
    return FlightSampler(
        stages, lambda name, row, step: rows.append((name, dict(row), step)), every
    )


def entry(at_ns: int, kind: str = "gloo:all_gather", is_p2p: bool = False) -> dict[str, object]:
    return {
        "profiling_name": kind, "input_sizes": [[2, 8]], "input_dtypes": ["Float"],
        "time_created_ns": at_ns, "is_p2p": is_p2p,
    }  # fmt: skip


class Backward:
    """A step whose backward came to these collectives, so many us after its begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *at_us: int, **changes: object) -> None:
        import time

        now = time.monotonic_ns()
        real = time.time_ns() - now
        self.times: tuple[int, int, list[int | None]] = (now - 50_000_000, now, [])
        begin = self.times[0] + real
        entries = [entry(begin - 10_000_000)]  # of the forward
        entries += [entry(begin + 1000 * at, **changes) for at in at_us]  # type: ignore[arg-type]
        entries += [entry(now + real + 10_000_000)]  # of clipping
        dump = pickle.dumps({"entries": entries})
        monkeypatch.setattr(fsdp_backward, "read_recorder", lambda: dump)

    def read(self) -> tuple[int, int, list[int | None]]:
        return self.times


def test_a_burst_begins_at_step_16_and_then_once_a_minute() -> None:
    sampler = sampler_of([])
    sampler._usual_ns = 100e6
    due = [step for step in range(3000) if sampler._is_due(step)]
    assert due == [*range(16, 32), *range(1024, 1040), *range(2048, 2064)]
    assert sampler_of([], every=5)._is_due(5) and not sampler_of([], every=5)._is_due(16)


def test_collectives_of_the_backward_become_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = []
    sampler = sampler_of(rows)
    sampler._write_times(17, Backward(monkeypatch, 100, 2000))  # type: ignore[arg-type]
    assert [name for name, _, _ in rows] == ["my_utils.bucket"] * 2 + ["my_utils.ready"]
    assert rows[0][1] == {"bucket": 0, "bytes": 64, "modules": "", "kind": "all_gather"}
    _, times, step = rows[2]
    assert step == times["step"] == 17
    first, second = map(int, str(times["us"]).split(";"))
    assert abs(first - 100) <= 50 and abs(second - first - 1900) <= 1


def test_a_step_with_other_collectives_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = []
    sampler = sampler_of(rows)
    sampler._write_times(17, Backward(monkeypatch, 1, 2))  # type: ignore[arg-type]
    count = len(rows)
    sampler._write_times(18, Backward(monkeypatch, 1, 2, 3))  # type: ignore[arg-type]
    sampler._write_times(19, Backward(monkeypatch, 1, 2, kind="gloo:barrier"))  # type: ignore[arg-type]
    sampler._write_times(20, Backward(monkeypatch, 1, 2, is_p2p=True))  # type: ignore[arg-type]
    assert len(rows) == count
    sampler._write_times(21, Backward(monkeypatch, 1, 2))  # type: ignore[arg-type]
    assert len(rows) == count + 1


def test_dumps_that_take_long_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = sampler_of([])
    sampler._is_watching = True
    monkeypatch.setattr(fsdp_backward, "_DUMP_NS", -1)
    for step in range(fsdp_backward._BURST):
        assert sampler.is_on
        sampler._write_times(step, Backward(monkeypatch, 1))  # type: ignore[arg-type]
    assert not sampler.is_on


def test_some_dumps_that_take_long_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is busy now and then."""
    sampler = sampler_of([])
    sampler._is_watching = True
    for step in range(6 * fsdp_backward._BURST):
        monkeypatch.setattr(fsdp_backward, "_DUMP_NS", -1 if step % 3 == 0 else 1 << 60)
        sampler._write_times(step, Backward(monkeypatch, 1))  # type: ignore[arg-type]
    assert sampler.is_on


RING = """
import os, pickle, sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

layer = torch.nn.Linear(2, 2)
torch.optim.SGD(layer.parameters(), lr=0.1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
for _ in range(400):
    dist.all_reduce(torch.ones(1))
print(len(pickle.loads(_dump_fr_trace(True, False, False))["entries"]))
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("environment", "kept"),
    [
        ({}, 256),
        ({"TORCH_FR_BUFFER_SIZE": "300"}, 300),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "300"}, 300),
        ({"MY_UTILS_RUN_BUCKETS": "0"}, 400),  # torch keeps 2,000 where nobody reads them
        ({"MY_UTILS_RUN_BUCKETS": "10"}, 256),
    ],
)
def test_the_ring_is_short_where_it_is_read_unless_the_user_says_so(
    tmp_path: Path, environment: dict[str, str], kept: int
) -> None:
    (tmp_path / "train.py").write_text(RING)
    rings = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    own = {name: value for name, value in os.environ.items() if name not in rings}
    command = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "train.py"]
    done = subprocess.run(
        [*command, str(tmp_path / "store")], cwd=tmp_path, check=True, timeout=300,
        env={**own, "PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert int(done.stdout.split()[-1]) == kept
    assert "in the environment" not in done.stderr


TRAIN = """
import sys

import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

torch.set_num_threads(1)
dist.init_process_group("gloo")
net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])
if sys.argv[1] == "1":
    cpu = torch.device("cpu")
    inner = [FullyShardedDataParallel(layer, device_id=cpu) for layer in net]
    net = FullyShardedDataParallel(nn.Sequential(*inner), device_id=cpu)
else:
    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(24):
    net(torch.ones(2, 16)).sum().backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("version", ["1", "2"])
def test_a_run_records_the_collectives_inside_backward(version: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "--"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
           "MY_UTILS_RUN_BUCKETS": "4"}  # fmt: skip
    subprocess.run(
        [*command, *launch, "train.py", version], cwd=tmp_path, env=env, check=True, timeout=400
    )
    run = load_run([str(tmp_path / "logs")])
    ready = run.ready
    assert ready is not None and run.steps[ready.columns].tolist() == [4, 8, 12, 16, 20]
    reduced = [one for one in ready.buckets if "reduce" in one.kind]
    assert [one.modules for one in reduced] == ["2", "1", "0"]
    assert {one.kind for one in ready.buckets} >= {"all_gather"}
    backward = list(run.stages).index("backward")
    moments = ready.begins[..., None] + ready.ready
    assert (moments[..., -1] <= run.ends[:, ready.columns, backward]).all()
    assert (ready.ready >= 0).all()
