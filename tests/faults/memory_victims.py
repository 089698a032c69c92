"""A public call in which memory runs out, at each point at which the C part asks for some.

    LD_PRELOAD=failing_calls.so python -m tests.faults.memory_victims FOLDER

Each case runs in a child, so that the recorder begins anew there: one request for memory fails, or
all do from one on until the call returns. Then there is memory again, and records are made, which
must be in the CSV. What is missing was warned of once, and counted.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from my_utils import _core
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
from tests.support import profile_rows

STAGES, NEVER = 10, 1 << 20
calls = ctypes.CDLL(None)
calls.fail_end.argtypes = [ctypes.POINTER(ctypes.c_char_p)]
logger = GlobalLogger()


def setup() -> None:
    logger.setup("logs", rank=0, world_size=1, console=False)


def timed(timer: MyTimer, name: str) -> None:
    for step in range(STAGES):
        timer.set_step(step)
        with timer.time_stage(name):
            timer.start("inner")
            timer.stop("inner")
        timer.step()


def wait() -> None:
    logger.async_start("wait", 1)
    logger.async_end("wait", 1)


PUBLIC: dict[str, Callable[[MyTimer], object]] = {
    "setup": lambda _: setup(),
    "MyTimer": lambda _: MyTimer(tag="tag", cuda_stages="a"),
    "MyTimer(log_dir)": lambda _: MyTimer(log_dir="logs"),
    "stages": lambda timer: timed(timer, "without memory"),
    "set_step": lambda timer: timer.set_step(3),
    "step": lambda timer: timer.step(),
    "register_stage": lambda timer: timer.register_stage("new"),
    "generate_report": lambda timer: timer.generate_report(""),
    "generate_report of steps": lambda timer: timer.generate_report("", None, range(3)),
    "figures": lambda timer: (timer.aggregates(), timer.cuda_aggregates(), timer.totals()),
    "depth": lambda timer: timer.depth,
    "flush": lambda _: logger.flush(),
    "instant": lambda _: logger.instant("now", {"key": "value"}),
    "counter": lambda _: logger.counter("loss", 0.5),
    "async": lambda _: wait(),
    "log_profile_event": lambda _: logger.log_profile_event(None, 3, "eval", "END", 1.0),
    "set_time_offset": lambda _: logger.set_time_offset(1),
    "csv_path": lambda _: logger.csv_path,
    "close": lambda _: logger.close(),
}
ROWS = {
    "stages": {"without memory": 2 * STAGES},
    "instant": {"now": 1},
    "counter": {"loss": 1},
    "async": {"wait": 2},
    "log_profile_event": {"eval": 1},
}


def victim(name: str, before: str, point: int) -> None:
    timer = None if before == "nothing" else MyTimer()
    if before == "records":
        setup()
        timed(MyTimer(), "before")
    calls.fail_begin(point, errno.ENOMEM, None)
    timer = timer or MyTimer()
    PUBLIC[name](timer)
    kinds = ctypes.c_char_p()
    made = calls.fail_end(ctypes.byref(kinds))
    is_open = logger.csv_path is not None
    setup()
    timed(timer, "after")
    logger.instant("after")
    logger.close()
    said = Path("stderr").read_text(encoding="utf-8").splitlines()
    for path in Path("logs").glob("*.log"):
        said += [line for line in path.read_text("utf-8").splitlines() if "WARNING" in line]
    rows = Counter(row.name for row in profile_rows.read(Path("logs/profile_rank_0.csv")))
    figures = {
        "kinds": (kinds.value or b"").decode()[:made],
        "warnings": said,
        "counted": {of: n for of, n in _core.troubles().items() if n and of != "last_errno"},
        "is_open": is_open,
        "rows": rows,
    }
    Path("figures.json").write_text(json.dumps(figures), encoding="utf-8")


def run(folder: Path, name: str, before: str, point: int) -> dict[str, Any] | str:
    """The figures of a case, or how it ended."""
    folder.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        try:
            os.chdir(folder)
            os.dup2(os.open("stderr", os.O_CREAT | os.O_WRONLY), 2)
            victim(name, before, point)
            os._exit(0)
        except BaseException:
            calls.fail_end(ctypes.byref(ctypes.c_char_p()))
            Path("raised").write_text(traceback.format_exc(), encoding="utf-8")
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        figures: dict[str, Any] = json.loads((folder / "figures.json").read_text("utf-8"))
        return figures
    raised = folder / "raised"
    return f"ended with {status}: {raised.read_text('utf-8') if raised.exists() else ''}"


def what_is_wrong(name: str, before: str, figures: dict[str, Any]) -> Iterator[str]:
    rows, warnings = figures["rows"], figures["warnings"]
    if rows.get("after", 0) != 2 * STAGES + 1:
        yield "records made with memory are missing"
    if before == "records" and rows.get("before", 0) != 2 * STAGES:
        yield "records made before are missing"
    if len(warnings) > 1:
        yield "more than one warning"
    wanted = ROWS.get(name, {})
    is_missing = any(rows.get(row, 0) != count for row, count in wanted.items())
    if is_missing and (len(warnings) != 1 or not figures["counted"]):
        yield "records are missing, and there is no warning or no count"
    if name in ("setup", "MyTimer(log_dir)") and not figures["is_open"] and not warnings:
        yield "no output is open, and there is no warning"


def main(folder: Path) -> None:
    wrong, runs = [], 0
    for name in PUBLIC:
        for before in ("nothing", "a timer", "records"):
            good = run(folder / f"{name} {before}", name, before, NEVER)
            assert isinstance(good, dict), good
            assert good["warnings"] == [] and good["counted"] == {}, good
            memory = [n for n, kind in enumerate(good["kinds"], 1) if kind == "m"]
            for point in (sign * n for n in memory for sign in (1, -1)):
                figures = run(folder / f"{name} {before} {point}", name, before, point)
                runs += 1
                found = (
                    [figures]
                    if isinstance(figures, str)
                    else [f"{what}: {figures}" for what in what_is_wrong(name, before, figures)]
                )
                wrong += [f"{name}, before it {before}, {point}: {what}" for what in found]
    print(json.dumps({"runs": runs, "wrong": wrong}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
