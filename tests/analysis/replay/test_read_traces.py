"""Traces of torch.profiler, one a rank: written as torch writes them, with a slow rank."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from my_utils.analysis.replay.inputs import verdict_of
from my_utils.analysis.replay.read_traces import read_traces
from my_utils.analysis.replay.result import ReplayFinding, ReplayVerdict
from my_utils.analysis.report.run_page import WAITS, run_of_operations

from ...conftest import ROOT
from ...support.ranks import run_ranks
from ...support.torch_traces import slice_of

pytestmark = pytest.mark.no_torch

KINETO = ROOT.parent / "shared" / "corpus" / "kineto"
STEPS = 6


def device_trace(rank: int, ranks: int, slow: int) -> list[Any]:
    """The host runs ahead; the slow rank's matrix product takes 30 ms and not 20."""
    group = {"Process Group Ranks": str(list(range(ranks))), "Process Group Name": "0"}
    events, correlation = [], 0
    for step in range(STEPS):
        begin = step * 40_000.0
        events.append(slice_of("user_annotation", f"ProfilerStep#{step}", begin, begin + 40_000))
        product = begin + 5_000, begin + (35_000 if rank == slow else 25_000)
        reduced = product[1] + 100, begin + 38_000
        for name, (first, last), stream, more in (
            ("void gemm<float>(int)", product, 7, {}),
            ("ncclDevKernel_AllReduce_Sum", reduced, 20, {**group, "Collective name": "allreduce"}),
        ):
            correlation += 1
            launched = begin + 100 + correlation % 2
            events.append(slice_of("cuda_runtime", "cudaLaunchKernel", launched, launched + 5,
                                   correlation=correlation))  # fmt: skip
            events.append(slice_of("kernel", name, first, last, stream=stream,
                                   correlation=correlation, **more))  # fmt: skip
    return events


def write_trace(folder: Path, rank: int, events: list[Any], ranks: int) -> None:
    info = {"backend": "nccl", "rank": rank, "world_size": ranks}
    whole = {"distributedInfo": info, "host_name": "node0", "traceEvents": events}
    with gzip.open(folder / f"rank-{rank}.pt.trace.json.gz", "wt") as file:
        json.dump(whole, file)


def test_a_rank_whose_kernels_take_longer_is_named_with_what_it_costs(tmp_path: Path) -> None:
    for rank in range(4):
        write_trace(tmp_path, rank, device_trace(rank, 4, slow=2), 4)
    verdict = verdict_of([str(tmp_path)])
    first = verdict.findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.claim, first.ranks) == ("slow rank", (2,))
    assert first.evidence[0].name == "gemm"
    assert first.saves_ns_a_step == pytest.approx(10e6, rel=0.02)
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "why", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 3 and done.stdout.startswith("WAITING FOR rank 2 ")


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("void at::native::(anonymous namespace)::cat<float>(int)",
         "at::native::(anonymous namespace)::cat"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, 1>(T13)",
         "internal::gemvx::kernel"),
    ],
)  # fmt: skip
def test_kernels_have_the_names_of_their_functions(tmp_path: Path, kernel: str, name: str) -> None:
    for rank in range(4):
        events = device_trace(rank, 4, slow=2)
        for event in events:
            event["name"] = kernel if "gemm" in event["name"] else event["name"]
        write_trace(tmp_path, rank, events, 4)
    first = verdict_of([str(tmp_path)]).findings[0]
    assert isinstance(first, ReplayFinding)
    assert first.evidence[0].name == name


def loader_trace(rank: int, ranks: int, input_ms: float, others_ms: float) -> list[Any]:
    """Each step awaits a batch, then a product of 8 ms and the all-reduce, which begins when the
    slowest rank comes; the host waits for its end."""
    group = {"Process Group Ranks": str(list(range(ranks))), "Process Group Name": "0"}
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events: list[Any] = []
    length = 1000 * (max(input_ms, others_ms) + 10)
    for step in range(STEPS):
        begin = step * length
        fetched, met = begin + 1000 * input_ms, begin + length - 1_500
        events.append(slice_of("user_annotation", f"ProfilerStep#{step}", begin, begin + length))
        events.append(slice_of("user_annotation", "body", begin + 1, begin + length - 1))
        events.append(slice_of("user_annotation", loader, begin + 2, fetched))
        events.append(slice_of("cpu_op", "aten::linear", fetched + 50, fetched + 300))
        kernels: tuple[tuple[str, float, float, int, dict[str, Any]], ...] = (
            ("void gemm<float>(int)", fetched + 200, fetched + 8_200, 7, {}),
            ("ncclDevKernel_AllReduce_Sum", fetched + 8_300, met + 1_000, 20,
             {**group, "Collective name": "allreduce"}),
        )  # fmt: skip
        for number, (name, first, last, stream, more) in enumerate(kernels):
            launch = fetched + 60 + number
            events.append(slice_of("cuda_runtime", "cudaLaunchKernel", launch, launch + 5,
                                   correlation=2 * step + number))  # fmt: skip
            events.append(slice_of("kernel", name, first, last, stream=stream,
                                   correlation=2 * step + number, **more))  # fmt: skip
    return events


def test_a_gpu_that_waits_for_batches_is_bound_by_input(tmp_path: Path) -> None:
    write_trace(tmp_path, 0, loader_trace(0, 1, 30.0, 30.0), 1)
    verdict = verdict_of([str(tmp_path)])
    first = verdict.findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.claim, first.evidence[0].name) == ("input", "input")
    assert first.saves_ns_a_step == pytest.approx(30e6, rel=0.05)
    assert verdict.next_step() == "num_workers=4 in the DataLoader, now 0"
    text = " ".join(" ".join(verdict.lines()).split())
    assert re.search(
        r"the device is idle 7\d % of the time, while the host is in input 7\d %", text
    )


def test_the_rank_whose_batches_come_late_is_named(tmp_path: Path) -> None:
    for rank in range(4):
        own = 30.0 if rank == 2 else 1.0
        write_trace(tmp_path, rank, loader_trace(rank, 4, own, 30.0), 4)
    first = verdict_of([str(tmp_path)]).findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.ranks, first.evidence[0].name) == ((2,), "input")
    assert first.saves_ns_a_step == pytest.approx(29e6, rel=0.05)


def test_batches_that_come_while_the_gpu_works_cost_nothing(tmp_path: Path) -> None:
    """The host runs ahead: each batch is fetched while the kernels of the step before run."""
    events = device_trace(0, 1, slow=0)
    for step in range(STEPS):
        begin = step * 40_000.0
        events.append(slice_of("user_annotation", "enumerate(DataLoader)#x.__next__",
                               begin - 20_000, begin))  # fmt: skip
    write_trace(tmp_path, 0, events, 1)
    assert verdict_of([str(tmp_path)]).findings == []


@pytest.mark.parametrize("says_rank", [True, False])
def test_windows_of_a_rank_are_one_run(says_rank: bool, tmp_path: Path) -> None:
    """torch.profiler's schedule with repeat=2 writes a file for each window."""
    for window in range(2):
        for rank in range(2):
            events = device_trace(rank, 2, slow=1)
            for event in events:
                event["ts"] += window * 1e6
                if event["name"].startswith("ProfilerStep#"):
                    event["name"] = f"ProfilerStep#{STEPS * window + int(event['name'][13:])}"
            info = {"distributedInfo": {"rank": rank}} if says_rank else {}
            path = tmp_path / f"host_{rank}.{window}.pt.trace.json"
            path.write_text(json.dumps({**info, "traceEvents": events}))
    operations = read_traces([str(path) for path in sorted(tmp_path.iterdir())])
    assert not any("left out" in note for note in operations.notes)
    assert sorted(set(operations.rank.tolist())) == [0, 1]
    assert sorted(set(operations.step.tolist())) == list(range(2 * STEPS))
    again = tmp_path / "host_0.2.pt.trace.json"
    again.write_bytes((tmp_path / "host_0.1.pt.trace.json").read_bytes())
    operations = read_traces([str(path) for path in sorted(tmp_path.iterdir())])
    if says_rank:
        assert f"{again}: another trace of rank 0, left out" in operations.notes


def pipeline_trace(rank: int, slow: int) -> list[Any]:
    """Two stages: rank 0 computes and sends, rank 1 receives and computes; the next step begins
    when both have ended."""
    works = 12_000 if rank == slow else 4_000
    first = 12_000 if slow == 0 else 4_000
    events: list[Any] = []
    for step in range(STEPS):
        begin = step * 20_000.0
        sent = begin + first + 200
        call, side = ("send", "Dst Rank") if rank == 0 else ("recv", "Src Rank")
        meets = {"Collective name": call, side: 1 - rank, "Process Group Ranks": "[0, 1]"}
        product = (begin + 100, begin + 100 + works) if rank == 0 else (sent + 50, sent + works)
        kernels: tuple[tuple[str, float, float, int, dict[str, Any]], ...] = (
            ("gemm", *product, 7, {}),
            ("ncclDevKernel_SendRecv", begin + 150 + first if rank == 0 else begin + 60, sent, 20,
             meets),
        )  # fmt: skip
        events.append(slice_of("user_annotation", f"ProfilerStep#{step}", begin, begin + 20_000))
        for number, (name, begins, ends, stream, more) in enumerate(kernels):
            events.append(slice_of("cuda_runtime", "cudaLaunchKernel", begin + 20, begin + 25,
                                   correlation=2 * step + number))  # fmt: skip
            events.append(slice_of("kernel", name, begins, ends, stream=stream,
                                   correlation=2 * step + number, **more))  # fmt: skip
    return events


@pytest.mark.parametrize("slow", [0, 1])
def test_a_send_meets_its_receive(slow: int, tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path, rank, pipeline_trace(rank, slow), 2)
    operations = read_traces([str(path) for path in sorted(tmp_path.iterdir())])
    assert not any("name no other rank" in note for note in operations.notes)
    meets = operations.meeting >= 0
    assert sorted(np.unique(operations.meeting[meets], return_counts=True)[1]) == [2] * STEPS
    run = run_of_operations(operations)
    waits = run.totals[..., run.stages.index(WAITS)].mean(1)
    assert waits == pytest.approx([0.0, 12.1e6 if slow == 0 else 4.1e6], abs=0.1e6)


class Started:
    """Counts the processes that are started."""

    def __init__(self) -> None:
        self.children, self._start = 0, subprocess.Popen

    def __call__(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        self.children += 1
        return self._start(*arguments, **options)


def test_large_traces_are_read_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        write_trace(tmp_path, rank, device_trace(rank, 3, slow=1)[rank:], 3)
    (tmp_path / "rank-3.json").write_text("no trace")
    paths = sorted(map(str, tmp_path.iterdir()))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    alone = read_traces(paths)
    monkeypatch.setattr("my_utils.analysis.replay.read_traces.POOL_ABOVE", 0)
    monkeypatch.setattr("my_utils.core.reader_process.subprocess.Popen", started := Started())
    together = read_traces(paths)
    assert 1 <= started.children <= 2
    assert together.notes == alone.notes and "rank-3.json" in "".join(alone.notes)
    assert (together.names, together.hosts) == (alone.names, alone.hosts)
    for column in ("rank", "lane", "step", "name", "begin_ns", "end_ns", "meeting", "side"):
        np.testing.assert_array_equal(getattr(together, column), getattr(alone, column))


def test_what_traces_cannot_tell_is_said(tmp_path: Path) -> None:
    for rank in range(2):
        events = device_trace(rank, 2, slow=1)
        for event in events:
            event["args"].pop("Process Group Ranks", None)
        write_trace(tmp_path, rank, events[: -2 * rank or None], 2)
    (tmp_path / "rank-7.json").write_text(json.dumps({"traceEvents": []}))
    (tmp_path / "rank-8.json").write_text("no json")
    packed = (tmp_path / "rank-0.pt.trace.json.gz").read_bytes()
    damaged = packed[:200] + bytes(byte ^ 255 for byte in packed[200:260]) + packed[260:]
    (tmp_path / "rank-9.json.gz").write_bytes(damaged)
    (tmp_path / "rank-10.json.gz").write_bytes(packed[:-20])
    notes = read_traces([str(path) for path in sorted(tmp_path.iterdir())]).notes
    assert any("rank-7.json: no ProfilerStep# in it" in note for note in notes)
    for name in ("rank-8.json", "rank-9.json.gz", "rank-10.json.gz"):
        assert any(name in note for note in notes), (name, notes)
    assert any("collectives name no group: taken as of all ranks" in note for note in notes)


@pytest.mark.skipif(not KINETO.is_dir(), reason=f"corpus of other people's traces not in {KINETO}")
def test_traces_of_other_projects_are_read_and_accuse_nobody() -> None:
    for path in sorted(KINETO.rglob("*.json.gz")):
        verdict = verdict_of([str(path)])
        assert verdict.status in ("ok", "not judged"), (path, verdict.lines())
        assert verdict.status == "ok" or verdict.reason


def profiled(setup: str, batches: str, body: str, wait: int, active: int) -> str:
    """A rank's script: torch's profiler writes a trace of steps of the loop; wait, active: of its
    schedule. Threads of gloo end some processes with an abort, so the exit runs nothing more."""
    return f"""
from torch.profiler import ProfilerActivity, profile, schedule
torch.set_num_threads(1)
def write(done):
    done.export_chrome_trace(f"rank-{{rank}}.json")
{setup}
with profile(activities=[ProfilerActivity.CPU],
             schedule=schedule(wait={wait}, warmup=1, active={active}, repeat=1),
             on_trace_ready=write) as profiler:
    {batches}
{textwrap.indent(body.strip(), " " * 8)}
        profiler.step()
dist.barrier()
sys.stdout.flush()
os._exit(0)
"""


TRAINING = profiled(
    """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Linear(16, 16))
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(0.06 if rank == 1 else 0.01)
        return torch.randn(4, 16)
""",
    "for batch in torch.utils.data.DataLoader(Rows(), batch_size=None):",
    """
model(batch).sum().backward()
""",
    wait=0,
    active=6,
)


TENSOR_PARALLEL = profiled(
    """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
model = parallel.parallelize_module(model, init_device_mesh("cpu", (world,)), plan)
""",
    "for _ in range(10):",
    """
with torch.profiler.record_function("input"):
    time.sleep(0.06 if rank == 1 else 0.002)
model(torch.randn(16, 64)).sum().backward()
""",
    wait=1,
    active=7,
)


PIPELINE = profiled(
    """
""",
    "for _ in range(7):",
    """
batch = torch.zeros(16)
if rank > 0:
    dist.recv(batch, rank - 1)
with torch.profiler.record_function("forward"):
    time.sleep(0.06 if rank == 1 else 0.01)
if rank < world - 1:
    dist.send(batch, rank + 1)
""",
    wait=0,
    active=5,
)


@pytest.mark.slow
def test_receives_of_unknown_senders_accuse_nobody(tmp_path: Path) -> None:
    """The last rank waits for the second one, which gloo's traces do not say."""
    pytest.importorskip("torch", reason="torch is not installed")
    run_ranks(PIPELINE, 3, tmp_path)
    verdict = verdict_of([str(tmp_path)])
    assert verdict.status == "not judged"
    assert "receives whose senders are not known" in verdict.lines()[0]


def test_a_collective_as_long_as_a_step_is_no_frame(tmp_path: Path) -> None:
    """Another one begins and ends while it waits."""
    for rank in range(2):
        events = []
        for step in range(STEPS):
            begin = step * 40_000.0
            events += [
                slice_of("user_annotation", f"ProfilerStep#{step}", begin, begin + 40_000),
                slice_of("cpu_op", "aten::linear", begin + 10, begin + 20_000),
                slice_of("user_annotation", "gloo:all_reduce", begin + 50, begin + 39_900, tid=2),
                slice_of("user_annotation", "gloo:broadcast", begin + 500, begin + 900, tid=3),
            ]
        write_trace(tmp_path, rank, events, 2)
    operations = read_traces([str(path) for path in sorted(tmp_path.iterdir())])
    assert (operations.meeting >= 0).sum() == 2 * 2 * STEPS


def batch_traces(folder: Path, ranks: int) -> list[str]:
    """Kernels of calls in a batch name no rank; the third one ends before the first one comes."""
    for rank in range(ranks):
        events = pipeline_trace(min(rank, 1), 0)
        for event in events:
            if event["name"] == "ncclDevKernel_SendRecv":
                event["args"] = {"correlation": event["args"]["correlation"], "stream": 20}
                event["dur"] = 3_000 if rank == 2 else event["dur"]
        write_trace(folder, rank, events, ranks)
    return [str(path) for path in sorted(folder.iterdir())]


def test_batches_of_calls_meet_where_the_times_say_so(tmp_path: Path) -> None:
    operations = read_traces(batch_traces(tmp_path, 2))
    assert (operations.meeting < 0).all()
    assert any("name no other rank" in note for note in operations.notes)
    verdict = verdict_of([str(tmp_path)])
    assert isinstance(verdict, ReplayVerdict)
    assert verdict.status == "ok" and verdict.inferred == ("ncclDevKernel_SendRecv",)


def test_else_who_waits_for_whom_is_not_known(tmp_path: Path) -> None:
    batch_traces(tmp_path, 3)
    verdict = verdict_of([str(tmp_path)])
    assert verdict.status == "not judged"
    assert "receives whose senders are not known" in verdict.lines()[0]


SHARDED = profiled(
    """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
    def forward(self, x):
        time.sleep(0.03 if rank == 1 else 0.005)
        return self.linear(x)
model = torch.nn.Sequential(Block(), Block())
for block in model:
    fully_shard(block, mesh=init_device_mesh("cpu", (world,)))
""",
    "for _ in range(10):",
    """
model(torch.randn(4, 64)).sum().backward()
""",
    wait=1,
    active=7,
)


@pytest.mark.thorough
def test_waits_of_fsdp2_are_no_work_of_the_rank_that_waits(tmp_path: Path) -> None:
    """It waits inside its own slices, in the next block and again in backward."""
    pytest.importorskip("torch", reason="torch is not installed")
    run_ranks(SHARDED, 2, tmp_path)
    first = verdict_of([str(tmp_path)]).findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.claim, first.ranks) == ("slow rank", (1,))
    assert first.evidence[0].name == "before aten::linear"
    assert first.saves_ns_a_step == pytest.approx(50e6, rel=0.35)


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        pytest.param(TRAINING, id="ddp"),
        pytest.param(TENSOR_PARALLEL, id="tensor parallel", marks=pytest.mark.thorough),
    ],
)
def test_a_real_job_on_gloo_names_the_rank_whose_input_is_slow(code: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    run_ranks(code, 2, tmp_path)
    first = verdict_of([str(tmp_path)]).findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.claim, first.ranks, first.evidence[0].name) == ("slow rank", (1,), "input")


def gloo_trace(rank: int, steps: int, end_ms: float, forward_ms: float, late: int = 0) -> list[Any]:
    """Rank 1 takes `forward_ms` in its forward and pauses `end_ms` at the end of each step, rank 0
    neither; both wait for the all-reduce. Its end is stamped 3 ms late in each `late`th step, and
    in one step the call itself returns late on rank 1."""
    slow = rank == 1
    forward, pause = (forward_ms, end_ms) if slow else (1.0, 0.0)
    period = max(forward_ms, 1.0) + end_ms + 12.0
    events = []
    for step in range(steps):
        begin = 1000 * (step * period + (end_ms if slow else 0.0))  # rank 1 is late at each begin
        came = begin + 1000 * (forward + 2.0)
        reduced = 1000 * (step * period + max(forward_ms, 1.0) + end_ms + 2.5) + 400
        stamped = reduced + 3000 * (late > 0 and step % late == rank)
        called = came + (5000 if late and slow and step == 7 else 50)
        resumed = max(reduced, called) + 20
        ends = begin + 1000 * period
        events += [
            slice_of("user_annotation", f"ProfilerStep#{step}", begin, ends),
            slice_of("cpu_op", "aten::linear", begin + 100, begin + 100 + 1000 * forward),
            slice_of("cpu_op", "aten::mm", came - 1500, called),
            slice_of("cpu_op", "gloo:all_reduce", came, stamped, tid=2,
                     **{"Process Group Ranks": "[0, 1]"}),
            slice_of("cpu_op", "aten::as_strided", resumed, resumed + 300),
            slice_of("cpu_op", "Optimizer.step#SGD.step", resumed + 310,
                     ends - 1000 * pause - 100),
        ]  # fmt: skip
    return events


def verdict_of_gloo(folder: Path, **plants: Any) -> ReplayVerdict:
    for rank in range(2):
        write_trace(folder, rank, gloo_trace(rank, **plants), 2)
    verdict = verdict_of([str(folder)])
    assert isinstance(verdict, ReplayVerdict)
    return verdict


def test_a_page_has_the_time_before_the_first_operation_of_a_step(tmp_path: Path) -> None:
    """Rank 1 pauses at the begin of each step, outside all operations."""
    for rank in range(2):
        events = gloo_trace(rank, 8, 0.0, 30.0)
        for event in events:
            if rank == 1 and event["name"] == "aten::linear":
                event["ts"], event["dur"] = event["ts"] + 29_000, 1000
        write_trace(tmp_path, rank, events, 2)
    verdict = verdict_of([str(tmp_path)])
    assert verdict.findings[0].ranks == (1,)
    run = run_of_operations(read_traces([str(path) for path in sorted(tmp_path.iterdir())]))
    assert run.step_ns == pytest.approx(np.full((2, 8), verdict.step_ns), rel=0.001)


@pytest.mark.parametrize("steps", [3, 4, 20])
def test_a_pause_at_the_end_of_a_step_counts_once(tmp_path: Path, steps: int) -> None:
    """The rank begins the next step late, too."""
    verdict = verdict_of_gloo(tmp_path, steps=steps, end_ms=20.0, forward_ms=1.0)
    assert verdict.step_ns == pytest.approx(33e6, rel=0.02)
    assert verdict.replay_off <= 0.02
    first = verdict.findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.claim, first.ranks) == ("slow rank", (1,))
    assert first.evidence[0].name == "before end of step"
    assert first.saves_ns_a_step == pytest.approx(20e6, rel=0.03)


@pytest.mark.parametrize("late", [2, 5, 9])
def test_ends_that_are_stamped_late_hide_no_wait(tmp_path: Path, late: int) -> None:
    """What waits for a collective may begin before the thread of gloo stamps its end."""
    verdict = verdict_of_gloo(tmp_path, steps=20, end_ms=0.0, forward_ms=61.0, late=late)
    first = verdict.findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.claim, first.ranks, first.evidence[0].name) == ("slow rank", (1,), "aten::linear")
    assert first.saves_ns_a_step == pytest.approx(60e6, rel=0.02)


@pytest.mark.parametrize("large", [False, True])
def test_a_forward_that_is_nearly_the_whole_step_on_one_rank_is_compared(
    large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And an annotation around the body of the loop is none of what is compared. large: traces that
    are read by other processes."""
    if large:
        monkeypatch.setattr("my_utils.analysis.replay.read_traces.POOL_ABOVE", 0)
    for rank in range(2):
        events = gloo_trace(rank, 20, 0.0, 900.0)
        steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
        events += [
            slice_of("user_annotation", "body", one["ts"] + 5, one["ts"] + one["dur"] - 50)
            for one in steps
        ]
        forwards = [event for event in events if event["name"] == "aten::linear"]
        events += [
            slice_of("cpu_op", "aten::addmm", one["ts"] + 1, one["ts"] + 50) for one in forwards
        ]
        write_trace(tmp_path, rank, events, 2)
    verdict = verdict_of([str(tmp_path)])
    first = verdict.findings[0]
    assert isinstance(first, ReplayFinding)
    assert (first.claim, first.ranks, first.evidence[0].name) == ("slow rank", (1,), "aten::linear")
    assert first.saves_ns_a_step == pytest.approx(899e6, rel=0.02)


def test_a_step_whose_own_marks_say_otherwise_is_not_judged(tmp_path: Path) -> None:
    for rank in range(2):
        events = gloo_trace(rank, 6, 0.0, 30.0)
        for event in events:
            if event["name"].startswith("ProfilerStep#"):
                event["dur"] *= 0.8
        write_trace(tmp_path, rank, events, 2)
    verdict = verdict_of([str(tmp_path)])
    assert verdict.status == "not judged"
    assert verdict.reason is not None
    assert re.fullmatch(
        r"replayed unchanged, a step is off by 2\d % from those that the source marks",
        verdict.reason,
    )


@pytest.mark.parametrize("numbers_apart", [0, 5])
def test_the_time_between_two_windows_is_no_step(numbers_apart: int, tmp_path: Path) -> None:
    """torch.profiler's schedule with repeat=2 writes a file for each window; writing it takes 2 s,
    and with wait=2 and warmup=3 five steps are not in the files."""
    for rank in range(2):
        for window in range(2):
            events = gloo_trace(rank, 6, 0.0, 30.0)
            first = window * (6 + numbers_apart)
            for event in events:
                event["ts"] += window * 2e6
                if event["name"].startswith("ProfilerStep#"):
                    event["name"] = f"ProfilerStep#{first + int(event['name'][13:])}"
            whole = {"distributedInfo": {"rank": rank}, "traceEvents": events}
            (tmp_path / f"host_{rank}.{window}.pt.trace.json").write_text(json.dumps(whole))
    verdict = verdict_of([str(tmp_path)])
    assert isinstance(verdict, ReplayVerdict)
    assert verdict.step_ns == pytest.approx(42e6, rel=0.001), verdict.lines()
    assert (verdict.warmup, verdict.judged_steps) == (1, 9)
    first_finding = verdict.findings[0]
    assert first_finding.ranks == (1,)
    assert first_finding.saves_ns_a_step == pytest.approx(29e6, rel=0.02)


def test_a_long_end_of_the_last_step_does_not_keep_the_others_from_being_judged(
    tmp_path: Path,
) -> None:
    """Both ranks write a checkpoint after the last collective of the last step."""
    for rank in range(2):
        events = gloo_trace(rank, 6, 0.0, 30.0)
        for event in events:
            if event["name"] == "ProfilerStep#5":
                event["dur"] += 60_000
        write_trace(tmp_path, rank, events, 2)
    verdict = verdict_of([str(tmp_path)])
    assert verdict.status == "found", verdict.lines()
    assert verdict.findings[0].ranks == (1,)
    assert verdict.step_ns == pytest.approx(42e6, rel=0.001)


def test_a_kernel_belongs_to_the_step_that_launched_it(tmp_path: Path) -> None:
    """The host needs 10 ms a step, the device 20; three kernels were queued before the trace."""
    events, ends = [], 0.0
    for correlation in range(1000, 1003):
        events.append(slice_of("kernel", "gemm", ends, ends + 20_000, stream=7,
                               correlation=correlation))  # fmt: skip
        ends += 20_000
    for step in range(1, 6):
        begin = (step - 1) * 10_000.0
        events += [
            slice_of("user_annotation", f"ProfilerStep#{step}", begin, begin + 10_000),
            slice_of("cuda_runtime", "cudaLaunchKernel", begin + 200, begin + 210,
                     correlation=step),
            slice_of("kernel", "gemm", ends, ends + 20_000, stream=7, correlation=step),
        ]  # fmt: skip
        ends += 20_000
    write_trace(tmp_path, 0, events, 1)
    verdict = verdict_of([str(tmp_path)])
    assert isinstance(verdict, ReplayVerdict)
    assert verdict.step_ns == pytest.approx(20e6, rel=0.001), verdict.lines()
    assert "passes between operations" not in " ".join(verdict.lines())


@pytest.mark.parametrize("idle_ms", [1, 6, 9])
def test_the_last_step_of_a_device_is_as_long_as_the_others(idle_ms: int, tmp_path: Path) -> None:
    """Three steps of 10 ms, in which the device has nothing to do at the end of each."""
    events = []
    for step in range(3):
        begin = step * 10_000.0
        events += [
            slice_of("user_annotation", f"ProfilerStep#{step}", begin, begin + 9_990),
            slice_of("cuda_runtime", "cudaLaunchKernel", begin + 50, begin + 55, correlation=step),
            slice_of("kernel", "gemm", begin + 60, begin + 10_060 - 1000 * idle_ms, stream=7,
                     correlation=step),
        ]  # fmt: skip
    events.append(slice_of("kernel", "never begun", -1e15, -1e15 + 1, stream=7, correlation=2))
    write_trace(tmp_path, 0, events, 1)
    verdict = verdict_of([str(tmp_path)])
    assert isinstance(verdict, ReplayVerdict)
    assert verdict.status == "ok", verdict.lines()
    assert verdict.step_ns == pytest.approx(10e6, rel=0.002)
    assert verdict.replay_off <= 0.002
    assert any("1 event is left out: it is damaged" in note for note in verdict.notes)


def test_times_may_be_text(tmp_path: Path) -> None:
    """As torch_npu writes them, without an object around the events."""
    for rank in range(2):
        events = gloo_trace(rank, 20, 0.0, 61.0)
        for event in events:
            event["ts"], event["dur"] = f"{1.7e15 + event['ts']:.3f}", f"{event['dur']:.3f}"
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(events))
    verdict = verdict_of([str(tmp_path)])
    assert verdict.findings[0].ranks == (1,), verdict.lines()
    assert verdict.findings[0].saves_ns_a_step == pytest.approx(60e6, rel=0.02)
    assert not any("left out" in note for note in verdict.notes)
