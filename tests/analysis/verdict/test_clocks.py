"""A system clock that is set while a run is recorded, and hosts whose clocks are far apart."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.diff.load import load_steps
from my_utils.analysis.why import judge, load_run
from my_utils.trace.csv2trace import main as csv2trace
from my_utils.trace.timeline import read_spans

from ...conftest import ROOT, RunPython
from ...support.clock_shim import clock_shim
from ...support.run_csv import HEADER, RankCsv

pytestmark = pytest.mark.no_torch

STEPS, STEP_MS = 60, 20.0
HOUR_MS = 3600e3
Jump = tuple[float, float]
"""When the clock is set, in ms since the begin of the run, and by how much, in ms."""


def recorded(
    rank: int, jumps: Sequence[Jump] = (), host: str = "node0", totals: bool = True
) -> RankCsv:
    """One rank of two; rank 1 computes longer, rank 0 waits for it. The clock is set as it was in a
    real run: the rows from there on have the new time."""
    one = RankCsv(rank, 2, host)
    one.process()
    one.note("run", {"device": "cpu", "attempt": 1, "wrappers": "DDP"})
    one.note("sync", {"stage": "backward", "kind": "ddp", "members": "0-1"})
    computes = 6.0 + 6.0 * rank
    for step in range(STEPS):
        stages = [
            ("input", 0.0, 1.0),
            ("forward", 1.2, computes),
            ("backward", computes + 0.2, 19.0),
        ]
        one.step(step, step * STEP_MS, stages)
    rows, total_ns = one.rows, 0
    for at_ms, by_ms in jumps:
        delta_ns = round(by_ms * 1e6)
        total_ns += delta_ns
        one.rows = []
        total = {"total_ns": total_ns} if totals else {}
        one.note("clock_step", {"delta_ns": delta_ns, **total}, at_ms)
        place = next(i for i, row in enumerate(rows) if row.partition(",")[0] > one.rows[0][:20])
        rows = [*rows[:place], *one.rows, *rows[place:]]
    one.rows = rows
    return one


def later(one: RankCsv) -> RankCsv:
    """With the times that the clock had, as it was set where the rows say so."""
    moved, rows = 0, []
    for row in one.rows:
        time, _, rest = row.partition(",")
        if "my_utils.clock_step" in rest:
            moved += int(rest.partition("delta_ns=")[2].split(",")[0].strip('"\n'))
        ns = int(time.replace(".", "")) + moved
        rows.append(f"{ns // 10**9}.{ns % 10**9:09d},{rest}")
    one.rows = rows
    return one


def verdict_on(folder: Path) -> dict[str, object]:
    data = json.loads(json.dumps(judge(load_run(folder)).as_data()))
    data.pop("log_dirs", None)
    data.pop("next", None)
    return {key: value for key, value in data.items() if str(folder) not in json.dumps(value)}


JUMPS = {
    "forwards": [(605.0, 2000.0)],
    "backwards": [(605.0, -2000.0)],
    "small": [(605.0, 50.0), (705.0, -50.0), (812.0, 3.0)],
    "hours": [(605.0, 24 * HOUR_MS)],
    "hours back": [(605.0, -24 * HOUR_MS)],
    "between steps": [(619.5, 2000.0)],
    "several": [(95.0, 700.0), (333.0, -1900.0), (335.0, 41.0), (1001.0, 7 * HOUR_MS)],
    "from 1970": [(605.0, 55 * 365 * 24 * HOUR_MS)],
}


@pytest.mark.parametrize("totals", [True, False], ids=["sums", "steps alone"])
@pytest.mark.parametrize("ranks", [(0, 1), (1,)], ids=["host", "one rank"])
@pytest.mark.parametrize("jumps", JUMPS.values(), ids=list(JUMPS))
def test_the_verdict_is_that_without_the_jump(
    jumps: list[Jump], ranks: tuple[int, ...], totals: bool, tmp_path: Path
) -> None:
    for rank in range(2):
        recorded(rank).write(tmp_path / "plain")
        set_ = jumps if rank in ranks else ()
        later(recorded(rank, set_, totals=totals)).write(tmp_path / "set")
    assert verdict_on(tmp_path / "set") == verdict_on(tmp_path / "plain")
    (one, *_) = judge(load_run(tmp_path / "set")).findings
    assert (one.kind, one.ranks) == ("straggler", (1,))
    for name in ("plain", "set"):
        assert load_run(tmp_path / name).problems == []
    plain, set_run = (load_steps(tmp_path / name) for name in ("plain", "set"))
    assert np.array_equal(plain.parts, set_run.parts)


def test_any_jumps(tmp_path: Path) -> None:
    chance = random.Random(7)
    for case in range(10):
        for rank in range(2):
            moments = sorted(chance.uniform(1.0, STEPS * STEP_MS - 2) for _ in range(5))
            jumps = [(at, chance.choice((1, -1)) * 10 ** chance.uniform(0.1, 9)) for at in moments]
            recorded(rank).write(tmp_path / "plain")
            later(recorded(rank, jumps)).write(tmp_path / f"set{case}")
        assert verdict_on(tmp_path / f"set{case}") == verdict_on(tmp_path / "plain")


def test_traces_and_pictures_have_no_jump_either(tmp_path: Path) -> None:
    drawn = []
    for name, jumps in (("plain", []), ("set", JUMPS["several"])):
        later(recorded(1, jumps)).write(tmp_path / name)
        file = tmp_path / name / "trace.json"
        assert csv2trace([str(tmp_path / name), "-o", str(file), "--quiet"]) == 0
        events = json.loads(file.read_text())["traceEvents"]
        slices = [one for one in events if one.get("ph") == "X"]
        spans = [one.start_ns for one in read_spans(tmp_path / name / "profile_rank_1.csv")]
        drawn.append(([(one["name"], one["ts"], one["dur"]) for one in slices], spans))
    assert drawn[0][0] and drawn[0] == drawn[1]


def test_parts_that_were_removed(tmp_path: Path) -> None:
    """A part begins with the process's row, and with what the clock was set by before it."""
    recorded(0).write(tmp_path / "plain")
    one = later(recorded(0, [(305.0, 2000.0)]))
    place = next(i for i, row in enumerate(one.rows) if ",20,input,START" in row)
    rows = one.rows[place:]
    begin, one.rows = RankCsv(0, 2), rows
    begin.process(ms=2400.0)
    begin.note("clock_step", {"delta_ns": 0, "total_ns": 2 * 10**9}, 2400.0)
    one.rows = [*begin.rows, *rows]
    one.write(tmp_path / "kept")
    recorded(1).write(tmp_path / "kept")
    run = load_run(tmp_path / "kept")
    begins = run.step_begins[:, 25]
    assert begins[0] == begins[1]


@pytest.mark.parametrize("apart_ms", [3e3, -3e3, 5 * HOUR_MS, -400 * 24 * HOUR_MS])
@pytest.mark.parametrize("says", ["run_id", "nothing"])
def test_hosts_whose_clocks_are_farther_apart_than_the_run_is_long(
    apart_ms: float, says: str, tmp_path: Path
) -> None:
    for rank in range(2):
        one = recorded(rank, host=f"node{rank}")
        if says == "run_id":
            one.note("run", {"device": "cpu", "attempt": 1, "run_id": "abc"})
        if rank:
            step = RankCsv()
            step.note("clock_step", {"delta_ns": round(apart_ms * 1e6)})
            one.rows = [*step.rows, *one.rows]
            one.rows = [row for row in later(one).rows if "clock_step" not in row]
        one.write(tmp_path / "logs")
    run = load_run(tmp_path / "logs")
    assert run.ranks.tolist() == [0, 1] and run.problems == []
    (one_finding, *_) = judge(run).findings
    assert (one_finding.kind, one_finding.ranks) == ("straggler", (1,))


def test_ranks_of_an_older_run_by_its_id(tmp_path: Path) -> None:
    """On another host, with a clock that runs ahead: by the times it would be the newest."""
    for rank, host, run_id in ((0, "a", "new"), (1, "a", "new"), (2, "b", "old")):
        one = recorded(rank, host=host)
        one.note("run", {"device": "cpu", "run_id": run_id})
        one.write(tmp_path / "logs")
    run = load_run(tmp_path / "logs")
    assert run.ranks.tolist() == [0, 1]
    assert run.problems == ["rank 2 is left out: its files hold nothing of the last run"]


def test_ranks_of_an_older_run_by_their_world_size(tmp_path: Path) -> None:
    for rank, host, size in ((0, "a", 3), (1, "b", 2), (2, "b", 3)):
        one = RankCsv(rank, size, host)
        one.process()
        for step in range(30):
            one.step(step, step * STEP_MS, [("forward", 0.0, 9.0)])
        one.write(tmp_path / "logs")
    run = load_run(tmp_path / "logs")
    assert run.ranks.tolist() == [0, 2]


@pytest.mark.parametrize("apart_s", [0.0, 40.0, 7 * 3600.0])
def test_attempts_of_hosts_are_joined_by_their_numbers(apart_s: float, tmp_path: Path) -> None:
    """Host b's second attempt is at the time of host a's third, by its clock."""
    for rank, host in enumerate("ab"):
        one = RankCsv(rank, 2, host)
        for attempt in range(3):
            begin_ms = attempt * 2000.0 + rank * apart_s * 1e3
            one.process(attempt + 1, begin_ms)
            one.note("run", {"attempt": attempt + 1, "run_id": "r"}, begin_ms)
            for step in range(20):
                one.step(step, begin_ms + 100 + step * STEP_MS, [("forward", 0.0, 9.0)])
        one.write(tmp_path / "logs")
    run = load_run(tmp_path / "logs")
    assert run.steps.tolist() == list(range(60)) and run.attempts == 3
    assert np.isfinite(run.step_ns).all()


PROGRAM = """
import ctypes, sys, time
from my_utils import GlobalLogger, MyTimer
set_clock = ctypes.CDLL(None).set_clock
set_clock.argtypes = [ctypes.c_longlong]
kept = int(sys.argv[2])
GlobalLogger().setup(
    sys.argv[1], rank=0, world_size=1, console=False, max_csv_bytes=9000, keep_csv_bytes=kept
)
timer = MyTimer()
for step in range(120):
    timer.set_step(step)
    with timer.time_stage("step"):
        if step in (40, 80):
            set_clock(10**9 * (86400 if step == 40 else -7))
        with timer.time_stage("work"):
            time.sleep(0.002)
    timer.step()
GlobalLogger().close()
"""


@pytest.mark.parametrize("kept_bytes", [0, 20_000], ids=["all parts", "the last parts"])
def test_a_clock_that_is_set_under_a_real_run(
    kept_bytes: int, run_python: RunPython, tmp_path: Path
) -> None:
    """By a day forwards and then back by more, in the middle of a stage."""
    shim = clock_shim(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "logs", str(kept_bytes)], text=True,
        env={**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(ROOT)}, timeout=120,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = "".join(path.read_text() for path in sorted((tmp_path / "logs").glob("*.csv")))
    moved_s = [round(int(ns) * 1e-9) for ns in re.findall(r"INSTANT.*delta_ns=(-?[1-9]\d*)", rows)]
    assert moved_s == ([] if kept_bytes else [86400, -86407])
    run = load_run(tmp_path / "logs")
    steps_s = run.step_ns[0] * 1e-9
    assert len(steps_s) > 10 and steps_s.max() < 60.0
    assert (run.ends[0] - run.begins[0])[:, 0].max() * 1e-9 < 60.0
    assert HEADER in rows
