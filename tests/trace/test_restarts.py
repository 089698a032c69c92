"""Of a job that is started again in its directory, each attempt is a process of the trace. The rows
come from real processes, which record before they have files, and are killed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from my_utils.csv2trace import csv_to_trace
from my_utils.timeline import main as timeline

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch

PROGRAM = """
import os, signal, sys, threading
from my_utils import GlobalLogger, MyTimer

attempt, killed = sys.argv[1:]
timer = MyTimer(tag="train")
for step in range(5):
    timer.set_step(step)
    with timer.time_stage(f"iter of {attempt}"), timer.time_stage(f"forward of {attempt}"):
        pass
    GlobalLogger().instant(f"mark of {attempt}")
    if step == 1:
        timer.start(f"open at setup of {attempt}")
        GlobalLogger().setup("logs", rank=0, console=False)
        timer.stop(f"open at setup of {attempt}")
    timer.step()
if killed == "yes":
    timer.start(f"left open by {attempt}")
    def work():
        timer.start(f"thread of {attempt}")
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=work).start()
"""


@pytest.fixture
def logs(run_python: RunPython, tmp_path: Path) -> Path:
    """Three attempts, of which the first two are killed."""
    for attempt, killed in (("1", "yes"), ("2", "yes"), ("3", "no")):
        done = run_python("-c", PROGRAM, attempt, killed)
        assert done.returncode == (-signal.SIGKILL if killed == "yes" else 0), done.stderr
    return tmp_path / "logs"


def test_each_stage_is_drawn_in_the_process_of_its_attempt(logs: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="has no END"):
        csv_to_trace(logs, tmp_path / "out.json")
    events = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["traceEvents"]
    names = {
        event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"
    }
    found = Counter(
        (event["name"].rpartition(" ")[0], event["name"][-1], names[event["pid"]][-9:])
        for event in events
        if event["name"][:-1].endswith((" of ", " by ")) and event["ph"] in "XBi"
    )
    wanted: Counter[tuple[str, str, str]] = Counter()
    for attempt in "123":
        for name, count in (("iter", 5), ("forward", 5), ("mark", 5), ("open at setup", 1)):
            wanted[f"{name} of", attempt, f"attempt {attempt}"] = count
        if attempt != "3":
            wanted["left open by", attempt, f"attempt {attempt}"] = 1
            wanted["thread of", attempt, f"attempt {attempt}"] = 1
    assert found == wanted


def test_a_step_that_was_done_again_is_drawn_once(
    logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert timeline([str(logs), "--json", "--steps", "0:5"]) == 0
    spans = json.loads(capsys.readouterr().out)
    found = Counter((span["name"], span["step"]) for span in spans)
    wanted = {(f"{name} of 3", step): 1 for name in ("iter", "forward") for step in range(5)}
    assert found == {**wanted, ("open at setup of 3", 1): 1}
