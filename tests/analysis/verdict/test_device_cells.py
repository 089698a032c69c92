"""What stages take the device: against the rule, applied moment by moment, and whole runs by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from my_utils.analysis.ledger.sweep import segments_on_device
from my_utils.analysis.report.bars import mean_step
from my_utils.analysis.report.judged import judged_steps
from my_utils.analysis.verdict.device import by_the_device
from my_utils.analysis.verdict.device_cells import device_times, on_device
from my_utils.analysis.why import judge, load_run
from tests.support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

PATHS = ["iter", "iter/input", "iter/forward", "iter/forward/attn", "iter/forward/mlp", "iter/log"]
PARENTS = np.array([-1, 0, 0, 2, 2, 0])
HOST = {1}  # input
INNER = {0: [1, 2, 5], 2: [3, 4]}


@dataclass
class Span:
    path: int
    begin: int
    end: int
    gpu: tuple[int, int] | None = None


def spans_of(draw: Callable[..., Any]) -> list[Span]:
    """Iterations, whose device works in order, a queue behind the host."""
    timed = draw(st.sets(st.sampled_from(range(len(PATHS)))))
    now, free = draw(st.integers(0, 3)), 0
    found: list[Span] = []

    def pass_time(most: int) -> None:
        nonlocal now
        now += draw(st.integers(0, most))

    def run(path: int) -> None:
        nonlocal now, free
        span = Span(path, now, now)
        found.append(span)
        begin = free = max(free, now + draw(st.integers(0, 2)))
        for _ in range(draw(st.integers(0, 3)) if path in INNER else 0):
            pass_time(2)
            run(draw(st.sampled_from(INNER[path])))
        pass_time(6)
        if path not in HOST:
            free += draw(st.integers(0, 8))
        span.end, free = now, max(free, now)
        if path in timed:
            span.gpu = begin, free

    for _ in range(draw(st.integers(1, 4))):
        run(0)
        pass_time(10)
    return found


def by_moment(spans: list[Span]) -> tuple[list[int], list[int]]:
    """The rule as it stands in the docstring."""
    timed = {one.path for one in spans if one.gpu and one.path not in HOST}
    around = {at for path in timed for at in ancestors(path)}
    leaves = timed - around
    own, launch = [0] * len(spans), [0] * len(spans)
    last = max([one.end for one in spans] + [one.gpu[1] for one in spans if one.gpu])
    for t in range(last):
        on_device = [
            at for at, one in enumerate(spans)
            if one.gpu and one.path not in HOST and one.gpu[0] <= t < one.gpu[1]
        ]  # fmt: skip
        on_host = [at for at, one in enumerate(spans) if one.begin <= t < one.end]
        device = max(on_device, key=lambda at: depth(spans[at].path), default=None)
        host = max(on_host, key=lambda at: depth(spans[at].path), default=None)
        if device is not None and (
            spans[device].path in leaves or host is None or spans[host].end > spans[device].end
        ):
            own[device] += 1
        elif host is not None:
            path = spans[host].path
            launches = leaves & {path, *ancestors(path)}
            (launch if launches else own)[host] += 1
    return (own, launch) if timed else ([0] * len(spans), [0] * len(spans))


def ancestors(path: int) -> list[int]:
    found = []
    while (path := int(PARENTS[path])) >= 0:
        found.append(path)
    return found


def depth(path: int) -> int:
    return len(ancestors(path))


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_each_moment_counts_once(data: st.DataObject) -> None:
    spans = spans_of(data.draw)
    gpu = [one.gpu or (0, 0) for one in spans]
    rows = {
        "path": np.array([one.path for one in spans], "u4"),
        "begin_ns": np.array([one.begin for one in spans]) * 1_000_000,
        "end_ns": np.array([one.end for one in spans]) * 1_000_000,
        "cuda_begin_ns": np.array([begin for begin, _ in gpu]) * 1_000_000,
        "cuda_ms": np.array([float(end - begin) for begin, end in gpu]),
    }
    is_timed = np.array([one.gpu is not None for one in spans])
    own, launch = device_times(rows, is_timed, PATHS, PARENTS, 0)
    wanted_own, wanted_launch = by_moment(spans)
    assert (own / 1e6).tolist() == pytest.approx(wanted_own)
    assert (launch / 1e6).tolist() == pytest.approx(wanted_launch)
    found = on_device(rows, is_timed, PATHS, PARENTS, 0)
    if found is not None:
        segments = segments_on_device(found, rows["begin_ns"], 0)
        sums = [0] * (len(spans) + 1)
        for owner, ns in zip(segments.owner, np.diff(segments.begin_ns), strict=True):
            sums[owner] += int(ns)
        wanted = [a + b for a, b in zip(wanted_own, wanted_launch, strict=True)]
        assert [ns / 1e6 for ns in sums[:-1]] == wanted
        assert sum(sums) == segments.begin_ns[-1] - segments.begin_ns[0]


# --- whole runs, in files ---


def write_run(
    folder: Path, *, events: str, input_ms: float, gpu_ms: float, batches: int, waits: bool
) -> Path:
    """Steps in an `iter`, of some batches each. events: the stages that have some."""
    csv = RankCsv()
    csv.process()
    now = free = 0.0
    for step in range(60):
        begin, gpu_begin, rows = now, max(free, now), []
        around = csv.node + 1
        for name, host_ms, device_ms in batches * [
            ("input", input_ms, 0.0), ("forward", 0.5, gpu_ms / 3), ("backward", 0.5, gpu_ms / 1.5),
        ]:  # fmt: skip
            start, gpu_start = now, max(free, now)
            now += host_ms
            if name != "input":
                free = max(gpu_start + device_ms, now)
            end = max(free, now)
            rows.append((name, start, now, (gpu_start, end) if name in events else None))
        if waits:
            now = max(now, free)
        gpu = (gpu_begin, max(free, now)) if "iter" in events else None
        csv.stage("iter", step, begin, now, gpu=gpu)
        for name, start, end, gpu in rows:
            csv.stage(name, step, start, end, gpu=gpu, parent=around)
    return csv.in_order().write(folder)


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "runs ahead"])
@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("events", ["forward|backward", "iter|input|forward|backward"])
@pytest.mark.parametrize(
    ("input_ms", "gpu_ms", "kind"), [(9.0, 6.0, "input"), (0.5, 12.0, "compute")]
)
def test_a_run_whose_stages_lie_in_another(
    input_ms: float,
    gpu_ms: float,
    kind: str,
    events: str,
    batches: int,
    waits: bool,
    tmp_path: Path,
) -> None:
    """An `iter` with events of its own took the device longer than a step, and batches after the
    first had no input."""
    folder = write_run(
        tmp_path / "logs", events=events, input_ms=input_ms, gpu_ms=gpu_ms, batches=batches,
        waits=waits,
    )  # fmt: skip
    run = load_run(folder)
    verdict = judge(run)
    assert verdict.findings[0].kind == kind, verdict.lines()
    seen = by_the_device(run)
    assert seen is not None
    judged = judged_steps(seen, verdict)
    parts = {part.name.rpartition("/")[2]: part.ms for part in mean_step(judged)}
    assert parts["forward"] + parts["backward"] == pytest.approx(batches * gpu_ms, rel=0.1)
    step_ms = sum(parts.values())
    assert parts["untimed"] + parts.get("iter", 0.0) < 0.03 * step_ms, parts
    if kind == "input":
        hidden = 0.0 if waits and batches == 1 else gpu_ms
        assert parts["input"] >= batches * (input_ms - hidden) - 0.6


@pytest.mark.parametrize("is_around", [True, False], ids=["around", "beside"])
def test_a_stage_whose_name_is_empty(is_around: bool, tmp_path: Path) -> None:
    """It was its own outer stage, and a search for the outermost one did not end."""
    csv = RankCsv()
    csv.process()
    for step in range(60):
        begin = 10.0 * step
        end = begin + 10.0 if is_around else begin + 2.0
        outer = csv.stage("", step, begin, end, gpu=(begin + 0.5, end + 0.5))
        inside, gpu = begin + 2.0, (begin + 2.5, begin + 10.5)
        parent = outer if is_around else 0
        csv.stage("forward", step, inside, begin + 10.0, gpu=gpu, parent=parent)
    run = load_run(csv.in_order().write(tmp_path / "logs"))
    verdict = judge(run)
    assert verdict.judged_steps == 59
    seen = by_the_device(run)
    assert seen is not None
    parts = {part.name: part.ms for part in mean_step(judged_steps(seen, verdict))}
    assert parts["/forward" if is_around else "forward"] == pytest.approx(8.0)
    assert sum(parts.values()) == pytest.approx(10.0)
