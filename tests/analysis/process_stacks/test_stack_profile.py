"""A sampled profile of a job that runs: by stage, in files that other tools open."""

from __future__ import annotations

import html
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from my_utils.analysis.process_stacks.profile import NO_STAGE, Sample, _joined, share_lines
from my_utils.analysis.process_stacks.record import Frame
from my_utils.cli.report import main as report_main
from my_utils.profilers.capture.on_demand.command import main as capture_main

from ...conftest import ROOT
from ...support.no_gil import needs_stacks
from ...support.schemas import loads_checked

# Rank 1 spends 3 parts of 4 of "input" in `resize`, the other ranks none.
RANK = """
import ctypes, signal, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # die with the parent
from my_utils import GlobalLogger, MyTimer
log_dir, rank = sys.argv[1:]
GlobalLogger().setup(log_dir, rank=int(rank), world_size=3, console=False)
timer = MyTimer(tag="train")
def resize():
    time.sleep(0.03)
def read():
    time.sleep(0.01 if rank == "1" else 0.04)
def forward():
    time.sleep(0.02)
step = 0
while True:
    timer.set_step(step)
    with timer.time_stage("input"):
        if rank == "1":
            resize()
        read()
    with timer.time_stage("forward"):
        forward()
    step += 1
    if step == 3:
        print("ready", flush=True)
"""


@needs_stacks
def test_a_rank_that_spends_its_input_elsewhere_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(tmp_path), str(rank)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        status = capture_main([str(tmp_path), "--stacks", "2", "--json"])
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    found = loads_checked("capture-stacks", capsys.readouterr().out)
    assert status == 0 and found["missing"] == {}
    share = share_in_resize("\n".join(found["lines"]))
    assert 35 <= share <= 95
    speedscope, trace = (json.loads(Path(path).read_text()) for path in found["files"])
    check_speedscope(speedscope)
    check_trace(trace)
    assert report_main([str(tmp_path), "-o", str(tmp_path / "report.html"), "--quiet"]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "What the stages spend their time in: ranks 0-2" in page
    # The page knows of stages that had not ended when the command joined them with the samples.
    assert 35 <= share_in_resize(html.unescape(page)) <= 95


def share_in_resize(text: str) -> int:
    """In percent, of the line that names the rank that resizes."""
    named = r"rank 1 spends (\d+)% ± \d+% of `input` in `resize <string>`, the others 0%"
    [share] = re.findall(named, text)
    return int(share)


def check_speedscope(content: dict[str, object]) -> None:
    """Every number is one of a frame, and stages hold what runs in them."""
    names = [frame["name"] for frame in content["shared"]["frames"]]  # type: ignore[index]
    leaves: dict[str, Counter[str]] = {}
    for profile in content["profiles"]:  # type: ignore[attr-defined]
        assert len(profile["samples"]) == len(profile["weights"])
        # A thread that called or returned while it was read may have no frame.
        stacks = [[names[number] for number in stack] for stack in profile["samples"] if stack]
        assert len(stacks) > len(profile["samples"]) / 2
        assert all(stack[0] == "<module>" for stack in stacks)
        leaves[profile["name"]] = Counter(stack[-1] for stack in stacks)
    assert set(leaves["rank 1: input"]) >= {"resize", "read"}
    assert leaves["rank 0: input"]["resize"] == 0
    assert leaves["rank 0: forward"].most_common(1)[0][0] == "forward"


def check_trace(content: dict[str, list[dict[str, object]]]) -> None:
    """Slices of a thread nest: each begins and ends within the one that it begins in."""
    slices = [event for event in content["traceEvents"] if event["ph"] == "X"]
    assert {"input", "forward"} <= {event["name"] for event in slices}
    for rank in range(3):
        own = [_span_ns(e) for e in slices if e["pid"] == rank]
        inside: list[int] = []
        for begin, end in sorted(own, key=lambda slice: (slice[0], -slice[1])):
            while inside and inside[-1] <= begin:
                inside.pop()
            assert not inside or end <= inside[-1]
            inside.append(end)


def _span_ns(event: dict[str, object]) -> tuple[int, int]:
    begin_us, length_us = event["ts"], event["dur"]
    assert isinstance(begin_us, float) and isinstance(length_us, float)
    begin = round(begin_us * 1000)
    return begin, begin + round(length_us * 1000)


def test_a_sample_counts_for_the_innermost_stage() -> None:
    stages = [(10, 100, "iter"), (20, 40, "iter/input"), (40, 60, "iter/forward")]
    times = [5, 10, 25, 39, 40, 70, 100]
    assert list(_joined(times, stages)) == [
        NO_STAGE, "iter", "iter/input", "iter/input", "iter/forward", "iter", NO_STAGE,
    ]  # fmt: skip


def test_nothing_stands_out_of_what_is_in_no_stage() -> None:
    """Such as the stage that had not ended with the profile: a sample or two of each rank."""
    frames = [(Frame(name, "/src/data.py", 1),) for name in ("read", "resize", "read")]
    samples = [Sample(rank, 9, True, 1, NO_STAGE, one) for rank, one in enumerate(frames)]
    assert [line for line in share_lines(samples) if line.startswith("rank")] == []
    named = [
        Sample(rank, 9, True, at, "input", one)
        for at in range(30)
        for rank, one in enumerate(frames)
    ]
    assert any(line.startswith("rank 1 spends 100% ± 8% of") for line in share_lines(named))


def profile_of(resizes: Sequence[bool]) -> list[Sample]:
    """Of rank 0 whether each sample is in `resize`; the other ranks never are."""
    return [
        Sample(rank, 9, True, at, "input", (Frame(function, "/src/data.py", 1),))
        for rank in range(4)
        for at, is_in in enumerate(resizes)
        for function in ["resize" if is_in and rank == 0 else "read"]
    ]


def error_of(resizes: Sequence[bool]) -> int:
    """In percent, of the line about rank 0."""
    [line] = [line for line in share_lines(profile_of(resizes)) if "`resize" in line]
    found = re.match(r"rank 0 spends \d+% ± (\d+)% of", line)
    assert found is not None
    return int(found[1])


def test_a_share_has_an_interval_and_few_samples_say_nothing() -> None:
    """1.96 times the root of p (1 - p) / n of samples that do not depend on each other."""
    often = [at % 5 < 2 for at in range(400)]
    assert error_of(often) == round(196 * math.sqrt(0.4 * 0.6 / 400))
    assert error_of(often[:100]) == pytest.approx(196 * math.sqrt(0.4 * 0.6 / 100), abs=1)
    assert not any("`resize" in line for line in share_lines(profile_of(often[:10])))


def test_one_long_call_says_less_than_many_short_ones() -> None:
    assert error_of([at < 160 for at in range(400)]) > 3 * error_of(
        [at % 5 < 2 for at in range(400)]
    )
    once = [40 <= at < 80 for at in range(400)]  # a tenth of the time, in one piece
    assert not any("`resize" in line for line in share_lines(profile_of(once)))
