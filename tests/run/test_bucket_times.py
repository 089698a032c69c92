"""When DDP's buckets are ready: the hooks come and go without a trace, and the times are right."""

from __future__ import annotations

import copy
import io
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from my_utils import _core
from my_utils.analysis.verdict.load import load_run
from my_utils.run.environment import bucket_steps
from my_utils.run.stages.bucket_layout import module_text, read_layout
from my_utils.run.stages.buckets import BucketSampler
from my_utils.run.stages.meetings import is_sampled

from ..support.ranks import ROOT, run_ranks

SLOW_MS = 30


@pytest.fixture
def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))


@pytest.fixture
def times(net: nn.Sequential) -> Iterator[_core.BucketTimes]:
    first, second = net
    yield _core.BucketTimes((second.weight, second.bias, first.weight, first.bias), (0, 0, 1, 1))


def backward(net: nn.Module) -> None:
    """On the device where the model is."""
    x = torch.ones(2, 4, device=next(net.parameters()).device)
    net(x).square().sum().backward()


def gradients(net: nn.Module) -> list[torch.Tensor]:
    found = [one.grad for one in net.parameters()]
    return [one.clone() for one in found if one is not None]


def hooks_of(net: nn.Module) -> list[object]:
    return [one._backward_hooks for one in net.parameters()]


def test_a_bucket_is_ready_with_its_last_gradient(
    net: nn.Sequential, times: _core.BucketTimes
) -> None:
    net[1].register_full_backward_hook(lambda *_: time.sleep(SLOW_MS / 1e3))
    times.install()
    begin_ns = time.monotonic_ns()
    backward(net)
    took_us = (time.monotonic_ns() - begin_ns) / 1e3
    times.remove()
    began_ns, ended_ns, (first, second) = times.read()
    assert first is not None and second is not None
    assert began_ns <= begin_ns < ended_ns
    assert second - first >= 1e3 * SLOW_MS
    assert second <= took_us + 1e-3 * (begin_ns - began_ns)


def test_nothing_of_the_hooks_stays(net: nn.Sequential, times: _core.BucketTimes) -> None:
    before = io.BytesIO()
    torch.save(net, before)
    for _ in range(3):
        times.install()
        backward(net)
        times.remove()
        net.zero_grad()
    times.remove()
    assert hooks_of(net) == [None] * 4
    after = io.BytesIO()
    torch.save(net, after)
    assert after.getvalue() == before.getvalue()


def test_copies_and_pickles_have_none_while_they_are_set(
    net: nn.Sequential, times: _core.BucketTimes
) -> None:
    times.install()
    assert None not in hooks_of(net)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert not any(hooks_of(copy.deepcopy(net))) and not any(hooks_of(loaded))
    times.remove()


def test_hooks_of_others_stay_where_they_are(net: nn.Sequential, times: _core.BucketTimes) -> None:
    doubled: list[str] = []

    def hook(grad: torch.Tensor) -> torch.Tensor:
        doubled.append("before")
        return 2 * grad

    weight, bias = list(net.parameters())[:2]
    backward(net)
    plain = gradients(net)[1]
    net.zero_grad()
    bias.register_hook(hook)
    times.install()
    weight.register_hook(lambda grad: doubled.append("meanwhile"))
    backward(net)
    times.remove()
    assert sorted(doubled) == ["before", "meanwhile"]
    assert torch.equal(gradients(net)[1], 2 * plain)
    backward(net)
    assert len(doubled) == 4
    assert hooks_of(net)[2:] == [None, None]
    assert [len(one) for one in hooks_of(net)[:2]] == [1, 1]  # type: ignore[arg-type]


def test_gradients_are_the_same_to_the_last_bit(
    net: nn.Sequential, times: _core.BucketTimes
) -> None:
    backward(net)
    plain = gradients(net)
    net.zero_grad()
    times.install()
    backward(net)
    times.remove()
    assert all(map(torch.equal, gradients(net), plain)) and len(plain) == 4


def test_a_bucket_without_a_gradient_has_no_time(net: nn.Sequential) -> None:
    unused = nn.Parameter(torch.zeros(1))
    times = _core.BucketTimes((net[0].weight, unused), (0, 1))
    times.install()
    backward(net)
    times.remove()
    *_, (used, never) = times.read()
    assert used is not None and never is None


def test_what_cannot_be_hooked_is_not_measured(net: nn.Sequential) -> None:
    times = _core.BucketTimes((net[0].weight, object(), net[1].weight), (0, 0, 1))
    times.install()
    backward(net)
    times.remove()
    *_, (partial, whole) = times.read()
    assert partial is None and whole is not None
    assert hooks_of(net) == [None] * 4


def test_hooks_go_with_the_object_that_set_them(
    net: nn.Sequential, times: _core.BucketTimes
) -> None:
    other = _core.BucketTimes(tuple(net.parameters()), (0, 0, 0, 0))
    other.install()
    del other
    assert hooks_of(net) == [None] * 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (((torch.zeros(1),), ()), "one number for each of 1 parameters, not 0"),
        (((torch.zeros(1),), (1,)), "buckets"),
        (((torch.zeros(1),), ("a",)), "buckets"),
        (([], ()), "tuple"),
    ],
)
def test_wrong_arguments(arguments: tuple[object, object], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        _core.BucketTimes(*arguments)  # type: ignore[arg-type]


def test_stages_hook_only_the_backward(net: nn.Sequential, times: _core.BucketTimes) -> None:
    stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
    seen: list[bool] = []
    net[1].register_full_backward_hook(lambda *_: seen.append(None not in hooks_of(net)))
    run = _core.StageCall(backward, stages, 4)
    run(net)
    stages.buckets = times
    assert hooks_of(net) == [None] * 4
    run(net)
    assert seen == [False, True] and hooks_of(net) == [None] * 4
    with pytest.raises(RuntimeError, match="for the test"):
        _core.StageCall(_fails, stages, 4)()
    assert hooks_of(net) == [None] * 4
    with pytest.raises(TypeError, match="buckets must be a BucketTimes or None"):
        stages.buckets = 3  # type: ignore[assignment]
    stages.begin(4)
    assert None not in hooks_of(net)
    stages.on = False
    assert hooks_of(net) == [None] * 4


@pytest.mark.gpu
def test_gpu_marks_agree_with_torchs_events(net: nn.Sequential) -> None:
    """The device sleeps where the host only enqueues."""
    net = net.cuda()
    first, second = net
    assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
    times = _core.BucketTimes((second.weight, second.bias, first.weight, first.bias), (0, 0, 1, 1))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    second.register_full_backward_hook(lambda *_: torch.cuda._sleep(50_000_000))
    second.weight.register_hook(lambda _: events[0].record())
    first.weight.register_hook(lambda _: events[1].record())
    stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
    assert stages.use_cuda()
    backward(net)
    torch.cuda.synchronize()
    stages.buckets = times
    stages.begin(4)
    backward(net)
    stages.end()
    stages.buckets = None
    began_ns, _, host = times.read()
    deadline = time.monotonic() + 60
    while (found := times.read_gpu()) is None:
        assert time.monotonic() < deadline
        stages.drain_soon()
        time.sleep(0.005)
    (begin, zero, one), error_us = found
    assert begin is not None and zero is not None and one is not None
    slept_us = 1e3 * events[0].elapsed_time(events[1])
    assert one - zero == pytest.approx(slept_us, abs=100)
    assert host[1] is not None and one > host[1] + 0.5 * slept_us
    assert one <= (time.monotonic_ns() - began_ns) / 1e3 + error_us


def _fails() -> None:
    raise RuntimeError("for the test")


# --- what is in the buckets ---


@pytest.mark.parametrize(
    ("modules", "text"),
    [
        (["layers.3.a", "layers.4.b", "layers.5"], "layers 3-5"),
        (["layers.3.a", "layers.3.b"], "layers 3"),
        (["layers.3", "layers.9"], "layers.3, layers.9"),
        (["0", "1"], "modules 0-1"),
        (["a", "b", "c"], "a … c"),
        ([""], "the model itself"),
        ([], ""),
    ],
)
def test_names_of_modules(modules: list[str], text: str) -> None:
    assert module_text(modules) == text


LAYOUT = """
from torch import nn
from my_utils.run.environment import bucket_steps
from my_utils.run.stages.bucket_layout import read_layout

unused = {unused}
net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)])
net[3].bias.requires_grad_(False)
model = nn.parallel.DistributedDataParallel(
    net, bucket_cap_mb=0.04, find_unused_parameters=unused)
for step in range(4):
    if step < 1 and not unused:
        assert read_layout([model]) is None
    model(torch.ones(2, 64)).sum().backward()
for row in read_layout([model]).rows():
    print(row["bucket"], row["bytes"], row["parameters"], row["modules"], sep=";")
print("said", model._get_ddp_logging_data()["{sizes}"])
dist.barrier()  # torch's thread may still free the backward, and an end meanwhile aborts
"""


@pytest.mark.parametrize(
    ("unused", "sizes"), [(False, "rebuilt_bucket_sizes"), (True, "bucket_sizes")]
)
def test_the_layout_is_that_of_ddp(unused: bool, sizes: str, tmp_path: Path) -> None:
    code = LAYOUT.format(unused=unused, sizes=sizes)
    for out in run_ranks(code, 2, tmp_path):
        *rows, said = out.splitlines()
        cells = [row.split(";") for row in rows]
        assert [cell[1] for cell in cells] == said.removeprefix("said ").split(", ")
        assert sum(int(cell[2]) for cell in cells) == 15
        assert cells[0][3].endswith("7") and cells[-1][3].startswith(("modules 0", "0"))


def test_models_that_ddp_says_nothing_of() -> None:
    assert read_layout([object()]) is None
    assert read_layout([]) is None


# --- which steps ---


def test_which_steps_are_looked_at() -> None:
    sampler = BucketSampler(_core.RunStages(lambda: _core.Timer("run"), lambda: True), _no_row)
    for first, last, every in (
        (0, 128, 4),
        (128, 1024, 16),
        (1024, 16384, 64),
        (16384, 99999, 256),
    ):
        due = [step for step in range(first, last) if sampler._is_due(step)]
        assert len(due) == pytest.approx((last - first) / every, rel=0.35)
        for period in (2, 3, 4, 5):  # of what alternates, each state is seen
            assert {step % period for step in due} == set(range(period)), (first, period)


def _no_row(name: str, metadata: object, step: int) -> None:
    raise AssertionError(name)


class OnGpu:
    """What was looked at in a step, whose GPU comes there later."""

    def __init__(self, *said: tuple[list[int | None], int] | None) -> None:
        self.said = list(said)

    def read(self) -> tuple[int, int, list[int | None]]:
        return time.monotonic_ns(), 0, [5, 9]

    def read_gpu(self) -> tuple[list[int | None], int] | None:
        return self.said.pop(0) if self.said else None


def test_the_gpus_times_are_written_once_they_are_known() -> None:
    rows: list[tuple[str, dict[str, object], int]] = []
    stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
    sampler = BucketSampler(
        stages, lambda name, pairs, step: rows.append((name, dict(pairs), step))
    )
    for step, looked in enumerate(
        [OnGpu(None, ([1, None, 70], 12)), OnGpu(([None, None, None], 0)), OnGpu(([], 0)), OnGpu()]
    ):
        sampler._write_times(step, looked)  # type: ignore[arg-type]
    ready = [row for row in rows if row[0] == "my_utils.ready"]
    assert [row[2] for row in ready] == [0, 1, 2, 3] and ready[0][1]["us"] == "5;9"
    sampler._write_gpu(4)
    assert rows[4:] == []  # step 0 is not there yet, and those behind it wait
    sampler._write_gpu(5)
    gpu = ("my_utils.ready_gpu", {"step": 0, "us": "1;;70", "error_us": 12}, 0)
    assert rows[4:] == [gpu]
    assert [step for step, _ in sampler._on_gpu] == [3]
    sampler._write_gpu(3 + 64)
    assert len(sampler._on_gpu) == 1
    sampler._write_gpu(3 + 65)
    assert not sampler._on_gpu and rows[4:] == [gpu]


TRAIN = """
import os, time
import torch, torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
dist.init_process_group("gloo")
net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
slow = int(os.environ["RANK"]) == 1
net[2].register_full_backward_hook(lambda *_: time.sleep(0.03 if slow else 0))
model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.04)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    for part in range(2):
        if part == 0:
            with model.no_sync():
                model(torch.ones(2, 64)).sum().backward()
        else:
            model(torch.ones(2, 64)).sum().backward()
    assert all(one._backward_hooks is None for one in net.parameters())
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


def launched(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "--"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *launch, "train.py"], cwd=folder, env=env, check=True, timeout=200)


@pytest.mark.thorough
def test_a_run_records_the_last_backward_of_some_steps(tmp_path: Path) -> None:
    """One in four; of a machine that is slow to write them one in eight or sixteen."""
    launched(tmp_path)
    run = load_run([str(tmp_path / "logs")])
    ready = run.ready
    assert ready is not None and len(ready.buckets) == 2
    steps = run.steps[ready.columns].tolist()
    assert steps[0] <= 8 and {step for step in range(9, 40) if is_sampled(step, 16)} <= set(steps)
    backward = list(run.stages).index("backward")
    last_ends = run.ends[:, ready.columns, backward]
    moments = ready.begins[..., None] + ready.ready
    assert (ready.begins > run.begins[:, ready.columns, backward]).all()  # the second one
    assert (moments[..., -1] <= last_ends).all()
    took = ready.ready[1, :, 1] - ready.ready[1, :, 0]
    assert (took >= 30e6).all()


@pytest.mark.parametrize(
    ("value", "steps"),
    [(None, None), ("1", None), ("on", None), ("2", 2), ("100", 100), ("0", 0), ("off", 0)],
)
def test_a_variable_says_how_often(
    value: str | None, steps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MY_UTILS_RUN_BUCKETS", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_UTILS_RUN_BUCKETS", value)
    assert bucket_steps() == steps
    stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
    sampler = BucketSampler(stages, _no_row, bucket_steps())
    sampler.watch([nn.Linear(1, 1)])
    assert sampler.is_on is (steps != 0)
