"""Runs on CUDA: what the device waits for, by hand-worked arrays and on the fake driver."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from my_utils.analysis.verdict.run_data import GpuTimes
from my_utils.analysis.why import Finding, RunData, SyncPoint, Verdict, judge, load_run

from ...conftest import RunPython
from ...fakes import compile_fake
from ...record.stages.test_cuda_timing import PRELUDE
from ...support.variants import gate_runs

pytestmark = pytest.mark.no_torch

MS = 1e6
HOST = {"input": 1.0, "h2d": 0.2, "forward": 2.0, "backward": 3.0, "optimizer": 1.0}
DEVICE = {"h2d": 1.0, "forward": 20.0, "backward": 40.0, "optimizer": 5.0}
SMALL = {"h2d": 0.01, "forward": 0.01, "backward": 0.01, "optimizer": 0.01}
NOTHING = 0.0  # what the device does between two events in a stage of the host


@dataclass
class DeviceRun:
    """Each rank enqueues its stages, and its device does them in order. What host and device take
    is in ms. waits_at: the host waits for the device at the end of this stage, as `.item()` does;
    "the end of the step" is in no stage. error_ms: of the GPU clock."""

    ranks: int = 1
    steps: int = 60
    host: dict[str, float] = field(default_factory=lambda: dict(HOST))
    device: dict[str, float] = field(default_factory=lambda: dict(DEVICE))
    waits_at: str | None = "optimizer"
    meets: bool = False
    error_ms: float = 0.01

    def __post_init__(self) -> None:
        self.stages = list(self.host)
        random = np.random.default_rng(0)
        shape = (self.ranks, self.steps, len(self.stages))
        noise = 1 + 0.01 * random.standard_normal((2, *shape))
        self.host_ns = np.array(list(self.host.values())) * MS * noise[0]
        device = [self.device.get(stage, np.nan) for stage in self.stages]
        self.device_ns = np.array(device) * MS * noise[1]

    def data(self, **changes: Any) -> RunData:
        shape = self.host_ns.shape
        times = {name: np.full(shape, np.nan) for name in ("begin", "end", "gpu_begin", "gpu_end")}
        step_begins = np.zeros(shape[:2])
        now, free = np.zeros(self.ranks), np.zeros(self.ranks)
        for step in range(self.steps):
            step_begins[:, step] = now
            for at, stage in enumerate(self.stages):
                now, free = self._stage(times, step, at, now, free)
                if stage == self.waits_at:
                    now = np.maximum(now, free)
                times["end"][:, step, at] = now
            if self.waits_at == "the end of the step":
                now = np.maximum(now, free)
        step_ns = np.diff(step_begins, axis=1, append=now[:, None])
        gpu = GpuTimes(
            times["gpu_begin"], times["gpu_end"], times["gpu_end"] - times["gpu_begin"],
            np.full(shape[:2], self.error_ms * MS),
        )  # fmt: skip
        values: dict[str, Any] = {
            "ranks": np.arange(self.ranks), "hosts": ["a"] * self.ranks, "world_size": self.ranks,
            "steps": np.arange(self.steps), "stages": self.stages, "begins": times["begin"],
            "ends": times["end"], "totals": times["end"] - times["begin"],
            "step_begins": step_begins, "step_ns": step_ns, "device": "cuda", "gpu": gpu,
            "sync_points": [SyncPoint("backward", (), "ddp")] if self.meets else [],
        }  # fmt: skip
        return RunData(**{**values, **changes})

    def _stage(
        self, times: dict[str, npt.NDArray[np.float64]], step: int, at: int, now: Any, free: Any
    ) -> tuple[Any, Any]:
        times["begin"][:, step, at] = now
        now = now + self.host_ns[:, step, at]
        took = self.device_ns[:, step, at]
        if np.isnan(took).all():
            return now, free
        begin = np.maximum(free, times["begin"][:, step, at] + 0.01 * MS)
        free = np.maximum(begin + took, now + 0.005 * MS)
        if self.meets and self.stages[at] == "backward":
            free = np.full(self.ranks, free.max())
        times["gpu_begin"][:, step, at], times["gpu_end"][:, step, at] = begin, free
        return now, free


def worst(verdict: Verdict) -> Finding:
    assert verdict.status == "found", verdict.lines()
    return verdict.findings[0]


@pytest.mark.parametrize("waits_at", ["optimizer", None, "backward"])
def test_a_device_that_computes_is_ok(waits_at: str | None) -> None:
    verdict = judge(DeviceRun(waits_at=waits_at).data())
    assert verdict.status == "ok"
    (one,) = verdict.findings
    assert one.kind == "compute" and one.share > 0.9
    assert "the device computes" in verdict.lines()[1]


def test_input_that_is_hidden_behind_the_device_costs_nothing() -> None:
    """The loader takes half of a step, and the device never waits for it."""
    run = DeviceRun(host={**HOST, "input": 35.0}, waits_at=None)
    assert judge(run.data()).status == "ok"


@pytest.mark.parametrize("events", [{}, {"input": NOTHING}], ids=["without events", "with events"])
def test_input_that_the_device_waits_for(events: dict[str, float]) -> None:
    run = DeviceRun(host={**HOST, "input": 35.0}, device={**DEVICE, **events})
    one = worst(judge(run.data()))
    assert (one.kind, one.stage) == ("input", "input")
    assert one.saves_ns_a_step == pytest.approx(35 * MS, rel=0.02)


@pytest.mark.parametrize(
    ("stage", "kind"), [("input", "input"), ("h2d", "h2d"), ("save", "checkpoint")]
)
@pytest.mark.parametrize("waits_at", ["the end of the step", None])
def test_a_small_model_that_waits_for_what_is_no_launching(
    stage: str, kind: str, waits_at: str | None
) -> None:
    """As seen on an H200: the events around the stage lie as far apart as the host waits, and no
    stage of the device trails its host."""
    host = {"input": 0.2, **HOST, "save": 0.1, stage: 33.5}
    device = {"input": NOTHING, "save": NOTHING, **SMALL}
    if stage == "h2d":
        device["h2d"] = 33.5
    verdict = judge(DeviceRun(host=host, device=device, waits_at=waits_at).data())
    one = worst(verdict)
    assert (one.kind, one.stage) == (kind, stage), verdict.lines()
    assert one.saves_ns_a_step == pytest.approx(33.5 * MS, rel=0.05)
    launching = [one for one in verdict.findings if one.kind == "launch"]
    assert [one.share for one in launching] == pytest.approx([6 / 40.8], rel=0.1)


def test_what_the_host_waits_for_the_device_is_timed() -> None:
    """`loss.item()` stands in no stage, and the device computes meanwhile."""
    verdict = judge(DeviceRun(waits_at="the end of the step").data())
    assert verdict.untimed_share < 0.03 and verdict.status == "ok", verdict.lines()


def test_events_around_the_input_alone_say_nothing() -> None:
    verdict = judge(DeviceRun(device={"input": NOTHING}).data())
    assert (verdict.reason or "").startswith("fewer than 80 % of the steps have GPU times")


def test_only_what_is_not_hidden_counts() -> None:
    """The host runs ahead by what the device computes; of 90 ms of input 66 + 7 are hidden."""
    run = DeviceRun(host={**HOST, "input": 90.0}, waits_at=None)
    verdict = judge(run.data())
    one = worst(verdict)
    assert one.kind == "input"
    busy = sum(DEVICE.values()) * MS
    assert one.saves_ns_a_step == pytest.approx(verdict.step_ns - busy, rel=0.15)


def test_copies_to_the_device() -> None:
    one = worst(judge(DeviceRun(device={**DEVICE, "h2d": 30.0}).data()))
    assert (one.kind, one.stage) == ("h2d", "h2d")
    assert one.share == pytest.approx(0.31, abs=0.02)


@pytest.mark.parametrize("trails_ms, is_bound", [(0.05, True), (0.5, True), (1.5, False)])
def test_a_device_that_waits_for_launches(trails_ms: float, is_bound: bool) -> None:
    host = {"input": 0.5, "forward": 20.0, "backward": 40.0, "optimizer": 10.0}
    data = DeviceRun(host=host, device=dict.fromkeys(list(host)[1:], 0.01), waits_at=None).data()
    assert data.gpu is not None
    data.gpu.ends[..., 3] = data.ends[..., 3] + trails_ms * MS
    verdict = judge(data)
    assert ("launch" in [one.kind for one in verdict.findings]) == is_bound
    if is_bound:
        one = worst(verdict)
        assert (one.kind, one.saves_ns_a_step) == ("launch", 0.0)
        assert verdict.lines()[0].startswith("BOUND BY LAUNCHING KERNELS")


def test_the_clocks_error_widens_what_counts_as_next_to_nothing() -> None:
    host = {"input": 0.5, "forward": 20.0, "backward": 40.0, "optimizer": 10.0}
    run = DeviceRun(host=host, device=dict.fromkeys(list(host)[1:], 0.01), waits_at=None)
    for error_ms, is_bound in ((0.6, False), (0.8, True)):
        run.error_ms = error_ms
        data = run.data()
        assert data.gpu is not None
        data.gpu.ends[..., 3] = data.ends[..., 3] + 1.5 * MS
        assert ("launch" in [one.kind for one in judge(data).findings]) == is_bound


def test_without_gpu_times_it_is_not_judged() -> None:
    data = DeviceRun().data()
    assert data.gpu is not None
    data.gpu.totals[:, 10:40] = np.nan
    verdict = judge(data)
    assert (verdict.reason or "").startswith("fewer than 80 % of the steps have GPU times")
    assert judge(DeviceRun().data(gpu=None)).status == "not judged"
    data = DeviceRun().data()
    assert data.gpu is not None
    data.gpu.totals[:, 30:35] = np.nan
    assert judge(data).status == "ok"


def test_a_slow_loader_of_one_rank() -> None:
    run = DeviceRun(ranks=4, meets=True)
    run.host_ns[2, :, 0] += 30 * MS
    verdict = judge(run.data())
    one = worst(verdict)
    assert (one.kind, one.ranks, one.stage) == ("input", (2,), "input")
    assert verdict.step_ns - one.saves_ns_a_step == pytest.approx(
        float(DeviceRun(ranks=4, meets=True).data().step_ns.mean()), rel=0.1
    )


def test_a_loader_that_is_slow_on_all_ranks_is_blamed_on_none() -> None:
    """Both hosts load for as long; rank 0 is a little behind, and rank 1 hides its input behind
    the wait for it. The device would wait for either."""
    host = {**HOST, "input": 80.0}
    run = DeviceRun(ranks=2, host=host, waits_at=None, meets=True)
    run.host_ns[0, :5, 0] += 6 * MS
    one = worst(judge(run.data()))
    assert (one.kind, one.ranks, one.stage) == ("input", (0, 1), "input")


def test_launches_that_are_slow_on_all_ranks_are_blamed_on_none() -> None:
    host = {"input": 0.5, "forward": 40.0, "backward": 60.0, "optimizer": 10.0}
    run = DeviceRun(ranks=2, host=host, waits_at=None, meets=True)
    run.host_ns[0, :5, 1] += 6 * MS
    verdict = judge(run.data())
    assert [one.kind for one in verdict.costly] == ["launch"], verdict.lines()


# --- on the fake driver ---

LOOP = """
timer = _core.Timer(use_cuda=True, cuda_stages={events}, tag="train")
for step in range(45):
    timer.set_step(step)
    timer.start("iter")
    timer.start("input")
    time.sleep({input_s})
    timer.stop("input")
    for name, work_ns in (("forward", {work_ns}), ("backward", {work_ns})):
        timer.start(name)
        time.sleep({launch_s})
        device.fakeCudaWork(None, work_ns)
        timer.stop(name)
    if {waits}:
        time.sleep({work_ns} * 2e-9)
    timer.stop("iter")
    timer.step()
_core.close_output()
"""


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("fake_cuda.c", tmp_path_factory.mktemp("cuda") / "libcuda.so.1")


@pytest.mark.slow
@pytest.mark.parametrize("events", gate_runs(("None",), ["forward|backward", None]))
@pytest.mark.parametrize(
    "values, kind",
    [
        ({"input_s": 0.05, "work_ns": 5_000_000, "launch_s": 0.0002, "waits": True}, "input"),
        ({"input_s": 0.0, "work_ns": 30_000_000, "launch_s": 0.0002, "waits": True}, "compute"),
        ({"input_s": 0.0, "work_ns": 1_000, "launch_s": 0.02, "waits": False}, "launch"),
    ],
    ids=["input", "compute", "launch"],
)
def test_on_the_fake_driver(
    values: dict[str, Any],
    kind: str,
    events: str | None,
    fake_driver: Path,
    run_python: RunPython,
    tmp_path: Path,
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    libraries = [str(fake_driver.parent), os.environ.get("LD_LIBRARY_PATH", "")]
    env = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)), "LOGS": str(logs)}
    done = run_python("-c", PRELUDE + LOOP.format(events=repr(events), **values), env=env)
    assert done.returncode == 0, done.stderr
    verdict = judge(load_run(logs))
    assert verdict.is_cuda and verdict.status != "not judged", verdict.lines()
    # A busy machine has its own hiccups, and sleeps longer than it was asked to.
    found = [one.kind for one in verdict.findings if one.kind in ("input", "compute", "launch")]
    assert found[0] == kind, verdict.lines()
