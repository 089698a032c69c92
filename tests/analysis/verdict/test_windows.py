"""Windows of steps: against the rows of the CSV, and steps that the CSV has no more."""

from __future__ import annotations

import csv
import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.verdict.load import load_run
from my_utils.analysis.verdict.window_files import WIDTHS

from ...conftest import RunPython
from ...support.windows import windows_in

pytestmark = pytest.mark.no_torch

STAGES = {"input", "forward", "forward/attention", "save"}
LOOP = """
    import sys, time
    from my_utils import _core
    from my_utils.logger import GlobalLogger
    from my_utils.utils import MyTimer

    def spin(ns):
        until = time.perf_counter_ns() + ns
        while time.perf_counter_ns() < until:
            pass

    def steps(count, slow=range(0), first=0):
        for step in range(first, first + count):
            timer.set_step(step)
            timer.start("input")
            spin(2000)
            timer.stop("input")
            timer.start("forward")
            timer.start("attention")
            spin(300_000 if step in slow else 5000)
            timer.stop("attention")
            timer.stop("forward")
            if step % 50 == 7:
                timer.start("save")
                spin(20000)
                timer.stop("save")
            timer.step()

    timer = MyTimer()
"""


def _loop(run_python: RunPython, lines: str) -> None:
    done = run_python("-c", textwrap.dedent(LOOP) + textwrap.dedent(lines))
    assert done.returncode == 0, done.stderr


def _rows(logs: Path) -> Iterator[dict[str, str]]:
    """Of stages."""
    for path in sorted(logs.glob("profile_rank_0*.csv")):
        with open(path, newline="") as file:
            yield from (row for row in csv.DictReader(file) if "node_id=" in row["metadata"])


def _times_of_csv(logs: Path) -> tuple[dict[tuple[int, str], int], dict[int, int]]:
    """Of each step and stage its own time in ns, without stages inside it; and when steps begin."""
    own: dict[tuple[int, str], int] = defaultdict(int)
    begins: dict[int, int] = {}
    names: dict[str, str] = {}
    parents: dict[str, str] = {}
    for row in _rows(logs):
        pairs = dict(pair.split("=", 1) for pair in row["metadata"].split(","))
        step, kind = int(row["step"]), row["event_type"]
        if kind == "START":
            node, parent = pairs["node_id"], pairs.get("parent_id", "")
            around = f"{names[parent]}/" if parent in names else ""
            names[node], parents[node] = around + row["event_name"], parent
            begins.setdefault(step, int(Decimal(row["timestamp_unix"]) * 10**9))
        elif kind == "END":
            node = pairs["node_id"]
            took = int(Decimal(row["duration_ms"]) * 10**6)
            own[step, names[node]] += took
            if parents[node] in names:
                own[step, names[parents[node]]] -= took
    return own, begins


def test_windows_have_the_sums_of_the_rows(run_python: RunPython, tmp_path: Path) -> None:
    _loop(run_python, "GlobalLogger().setup('logs', console=False)\nsteps(1250)")
    logs = tmp_path / "logs"
    own, begins = _times_of_csv(logs)
    for width, counts in zip(WIDTHS, ([100] * 12 + [50], [1000, 250], None), strict=True):
        if counts is None:
            assert not (logs / f"rank_0.{width}.windows").exists()
            continue
        found = windows_in(logs, width)
        assert found.windows["steps"].tolist() == counts
        assert {found.paths[path] for path in np.unique(found.cells["path"])} == STAGES
        assert int(found.windows["steps"].sum()) == 1250
        for number, window in enumerate(found.windows):
            steps = range(int(window["first_step"]), int(window["last_step"]) + 1)
            whole = begins.get(steps.stop, 0) - begins[steps.start]
            if steps.stop in begins:
                assert int(window["sum_ns"]) == whole
            assert int(window["begin_ns"]) == begins[steps.start]
            for cell in found.cells[found.cells["window"] == number]:
                times = [own[step, found.paths[cell["path"]]] for step in steps
                         if (step, found.paths[cell["path"]]) in own]  # fmt: skip
                assert int(cell["count"]) == len(times)
                assert cell["sum_ns"] == pytest.approx(sum(times), rel=1e-6)
                assert cell["max_ns"] == pytest.approx(max(times), rel=1e-3)


@pytest.mark.slow
def test_a_slowdown_before_the_first_kept_row_is_named_with_its_step(
    run_python: RunPython, tmp_path: Path
) -> None:
    _loop(
        run_python,
        """
        GlobalLogger().setup(
            "logs", console=False, max_csv_bytes=1 << 20, keep_csv_bytes=2 << 20
        )
        steps(20_000, slow=range(6_000, 12_000))
        """,
    )
    done = run_python("-m", "my_utils", "why", "logs", "--timeline", "--json")
    assert done.returncode == 3, done.stderr
    verdict = json.loads(done.stdout)
    first_row = min(int(row["step"]) for row in _rows(tmp_path / "logs"))
    assert first_row > 12_000
    assert (verdict["window_steps"], verdict["single_from"]) == (100, first_row)
    slow = next(one for one in verdict["timeline"]["parts"] if one["longer"] > 1)
    # A step takes 0.1 ms: what a neighbour does moves an edge by some windows.
    assert abs(slow["first_step"] - 6_000) <= 500
    assert abs(slow["last_step"] - 11_999) <= 500
    assert slow["stage"].startswith("forward")
    assert any(f"single steps from step {first_row:,} on" in line for line in verdict["text"])
    assert verdict["next"] == "my_utils why logs --timeline"


def test_steps_that_the_csv_has_are_judged_one_by_one(
    run_python: RunPython, tmp_path: Path
) -> None:
    _loop(
        run_python,
        """
        GlobalLogger().setup(
            "logs", console=False, max_csv_bytes=1 << 20, keep_csv_bytes=2 << 20
        )
        steps(8_000)
        """,
    )
    logs = str(tmp_path / "logs")
    whole = load_run(logs, whole=True)
    assert (whole.width, int(whole.steps[0]), len(whole.steps)) == (100, 0, 80)
    assert whole.longest_ns is not None
    assert whole.single_from is not None
    assert (whole.longest_ns >= whole.step_ns * 0.999).all()
    kept = load_run(logs, steps=(whole.single_from, 8_000), whole=True)
    assert (kept.width, len(kept.steps)) == (1, 8_000 - whole.single_from)
    some = load_run(logs, steps=(1_000, 3_000), whole=True)
    assert some.steps.tolist() == list(range(1_000, 3_000, 100))


def test_a_run_whose_csv_is_whole_is_read_from_it(run_python: RunPython, tmp_path: Path) -> None:
    _loop(run_python, "GlobalLogger().setup('logs', console=False)\nsteps(300)")
    assert (tmp_path / "logs" / "rank_0.100.windows").exists()
    assert load_run(str(tmp_path / "logs"), whole=True).width == 1


def test_the_thread_that_trains_is_judged(run_python: RunPython, tmp_path: Path) -> None:
    """And not one with fewer steps, though the process has begun with it."""
    _loop(
        run_python,
        """
        import threading
        GlobalLogger().setup('logs', console=False, max_csv_bytes=65536, keep_csv_bytes=131072)
        steps(200, slow=range(200))
        trains = threading.Thread(target=steps, args=(4000,))
        trains.start()
        trains.join()
        """,
    )
    found = load_run(str(tmp_path / "logs"), whole=True)
    assert found.width > 1
    assert float(np.median(found.step_ns)) < 100_000


def test_attempts_follow_each_other(run_python: RunPython, tmp_path: Path) -> None:
    """The later one counts where steps were done again."""
    setup = "GlobalLogger().setup('logs', console=False)\n"
    _loop(run_python, setup + "steps(450)")
    _loop(run_python, setup + "steps(300, first=400)")
    found = windows_in(tmp_path / "logs")
    spans = [(int(one["attempt"]), int(one["first_step"]), int(one["last_step"]))
             for one in found.windows]  # fmt: skip
    assert spans[3:7] == [(1, 300, 399), (1, 400, 449), (2, 400, 499), (2, 500, 599)]


def test_another_program_before_the_last_one_is_left_out(
    run_python: RunPython, tmp_path: Path
) -> None:
    setup = (
        "GlobalLogger().setup('logs', console=False, max_csv_bytes=65536, keep_csv_bytes=1 << 19)\n"
    )
    says = "_core.log_event('my_utils.run', 'INSTANT', metadata='script=/{}.py')\n"
    _loop(run_python, setup + says.format("pretrain") + "steps(900)")
    _loop(run_python, setup + says.format("tune") + "steps(300, first=200)")
    found = load_run(str(tmp_path / "logs"), whole=True)
    assert found.width == 100 and found.older_attempts == 1
    assert found.steps.tolist() == [200, 300, 400]
    assert found.problems == ["the steps of pretrain.py are left out: another program ran after it"]


def test_wanted_none(run_python: RunPython, tmp_path: Path) -> None:
    _loop(run_python, "GlobalLogger().setup('logs', console=False, windows_bytes=0)\nsteps(300)")
    assert not list((tmp_path / "logs").glob("*.windows"))
