"""A process that moves to another log directory is killed before and after each of its calls.

    LD_PRELOAD=failing_calls.so python -m tests.faults.move_victims FOLDER BEFORE AFTER

BEFORE and AFTER say where the journal lies: `beside` the CSV, in a directory of the `setting`, or
where it goes when the log directory is below `mount`, a file system that is not known to be local.
A second thread records meanwhile, and no kill comes before it has finished some more stages. What
the kill left is read as it is; then processes of the rank take both directories over, and the rows
are counted. Prints a line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from my_utils import _core
from my_utils.csv2trace import main as convert
from my_utils.utils import MyTimer
from tests.faults.fault_victims import KILLS, fitting_errors, run, shown
from tests.support import profile_rows

FIRST_STAGES, PAUSE_S = 50, 0.0001  # a full ring would drop, by design

shared = mmap.mmap(-1, mmap.PAGESIZE)  # outlives a killed child
finished = ctypes.c_uint64.from_buffer(shared)  # stages whose stop has returned
calls = ctypes.CDLL(None)
calls.fail_end.argtypes = [ctypes.POINTER(ctypes.c_char_p)]


def place(kind: str, number: int) -> dict[str, str]:
    """What `open_output` is to be called with."""
    folder = os.path.abspath(f"{kind if kind == 'mount' else '.'}/logs{number}")
    os.makedirs(folder, exist_ok=True)
    if kind != "setting":
        return {"log_dir": folder}
    os.makedirs("journals", exist_ok=True)
    return {"log_dir": folder, "journal_dir": os.path.abspath("journals")}


def opened(place: dict[str, str]) -> dict[str, object]:
    return _core.open_output(log_dir=place["log_dir"], journal_dir=place.get("journal_dir", ""))


def record(is_over: threading.Event) -> None:
    timer = MyTimer()
    step = 0
    while not is_over.is_set():
        timer.set_step(step)
        timer.start("alive")
        timer.stop("alive")
        step += 1
        finished.value = step
        time.sleep(PAUSE_S)


def victim(before: str, after: str, n: int, with_error: int) -> None:
    is_over = threading.Event()
    first = opened(place(before, 0))
    recording = threading.Thread(target=record, args=(is_over,))
    recording.start()
    while finished.value < FIRST_STAGES:
        time.sleep(0)
    calls.fail_begin(n, with_error, ctypes.byref(finished))
    second = opened(place(after, 1))
    kinds = ctypes.c_char_p()
    made = calls.fail_end(ctypes.byref(kinds))
    is_over.set()
    recording.join()
    _core.close_output()
    figures = {
        "made": made,
        "kinds": (kinds.value or b"").decode(),
        "journals": [first["journal_path"], second["journal_path"]],
    }
    Path("figures.json").write_text(json.dumps(figures), encoding="utf-8")


def reads(logs: list[str]) -> None:
    """Without changing a file."""
    sys.exit(convert(["--recover", *logs, "-o", "trace.json"]))


def takes_over(kind: str, number: int) -> None:
    opened(place(kind, number))
    _core.close_output()


def rows_left(logs: list[str]) -> list[int]:
    paths = [path for folder in logs for path in Path(folder).glob("profile_*.csv")]
    rows = [row for path in paths for row in profile_rows.parse(path.read_text(encoding="utf-8"))]
    return sorted(row.step for row in rows if row.kind == "END" and row.name == "alive")


def rows_read() -> list[int]:
    events = json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    stages = [event for event in events if event["ph"] == "X" and event["name"] == "alive"]
    return sorted(event["args"]["step"] for event in stages)


def wrong_steps(steps: list[int], way: str) -> list[str]:
    done = finished.value
    if steps in (list(range(done)), list(range(done + 1))):
        return []
    return [f"{way}: {done} finished, {len(set(steps))} once, {len(steps)} in all"]


def journals_left(places: list[dict[str, str]]) -> list[str]:
    folders = {folder for place in places for folder in place.values()}
    return [str(path) for folder in sorted(folders) for path in Path(folder).glob("*.journal*")]


def try_case(kinds: list[str], n: int, error: int) -> tuple[list[str], bool] | None:
    """What is wrong, and whether it was killed; None in a child, which ends as processes do."""
    for name in ("logs0", "logs1", "journals", "mount/logs0", "mount/logs1"):
        shutil.rmtree(name, ignore_errors=True)
    finished.value = 0
    places = [place(kind, number) for number, kind in enumerate(kinds)]
    logs = [place["log_dir"] for place in places]
    status = run(victim, *kinds, n, error)
    if status is None:
        return None
    wrong = [] if status in (0, -signal.SIGKILL) else [f"ended with {status}: {shown()}"]
    reading = run(reads, logs)
    if reading is None:
        return None
    # The directory that it goes to may still be empty, which is said.
    readable = reading in (0, 3)
    wrong += wrong_steps(rows_read(), "read") if readable else [f"reads {reading}: {shown()}"]
    for number, kind in enumerate(kinds):
        recovery = run(takes_over, kind, number)
        if recovery is None:
            return None
        wrong += [f"the recovery ended with {recovery}: {shown()}"] * (recovery != 0)
    wrong += wrong_steps(rows_left(logs), "taken over")
    wrong += [f"it leaves {left}" for left in journals_left(places)]
    return wrong, status != 0


def main() -> int:
    os.chdir(sys.argv[1])
    kinds = sys.argv[2:4]
    figures: dict[str, Any] = {"calls": 0, "kills": 0, "wrong": []}
    plan = [(0, 0)]
    for n, error in plan:
        tried = try_case(kinds, n, error)
        if tried is None:
            return 0
        wrong, was_killed = tried
        figures["wrong"] += [f"call {n} with {error}: {text}" for text in wrong]
        figures["kills"] += was_killed
        if n == 0:
            said = json.loads(Path("figures.json").read_text(encoding="utf-8"))
            figures |= {"calls": said["made"], "journals": said["journals"]}
            of_call = enumerate(said["kinds"], 1)
            plan += [(n, error) for n, kind in of_call for error in fitting_errors(kind, KILLS)]
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
