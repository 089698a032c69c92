"""What to do next for each kind of finding: the line to change, else a command to learn more; and
where this user finds a page of the documentation.

While a process lives, a capture of it tells most. Of a run that has ended it is the next run under
`my_utils run` with a capture of the ranks that were named, of rank 0 if none was; and where its
command is not known the report of all stages.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...core.ranges import as_ranges, ranges_text
from ...core.run_files.copied import as_named
from .kinds import KINDS, Kind

CAPTURE = "my_utils capture {logs} --ranks {ranks} --wait"
CAPTURE_ALL = "my_utils capture {logs} --wait"
REPORT = "my_utils report {logs} -o report.html"
TRACE = "my_utils trace {logs} --steps {steps} -o trace.pftrace"
RUN = "my_utils run --capture {ranks} -- {command}"

# Where few steps are slow, a capture must have one of them.
CAPTURED_FROM = 22  # as `my_utils run --capture` has it
SLOW_MOST = 50  # steps
STEPS_OF_A_SLOW_ONE = 3  # with the one before and the one after
CAPTURED_TWICE = 2  # while the profiler starts for the first, loaders get ahead

# kind: while it runs, when it has ended and its command is known, when that is not known
NEXT: dict[Kind, tuple[str, str, str]] = dict.fromkeys(KINDS, (CAPTURE_ALL, RUN, REPORT))
for _kind in ("input", "h2d", "straggler", "host hiccups", "optimizer", "checkpoint", "eval"):
    NEXT[_kind] = (CAPTURE, RUN, REPORT)
for _kind in ("slower since", "throughput falls"):
    NEXT[_kind] = (TRACE, TRACE, TRACE)  # type: ignore[index]

# What to change where nothing more must be learned first.
CHANGES: dict[Kind, str] = {
    "checkpoint": "torch.distributed.checkpoint.async_save, or fewer checkpoints",
    "eval": "evaluate less often, or on fewer batches",
    "optimizer": "foreach=True or fused=True in the optimizer",
    "short of cores": "fewer threads a rank (OMP_NUM_THREADS=1), or more cores",
}
MORE_CORES = "more cores, or fewer processes on them: each rank computes with 1 thread"
LESS_COLLECTING = "gc.freeze() before the loop: collections leave out what is there by then"
WORKERS = "num_workers={workers} in the DataLoader, now {now}"
FEW_WORKERS = 4
STEPS_AROUND = 3


class Captured(NamedTuple):
    """Which steps to capture. every: windows begin so many steps apart; None for one window, at
    that step of a new run, at any of one that goes on."""

    first: int
    steps: int
    every: int | None = None
    times: int = 1


_TREE = Path(__file__).parents[3]


def change_for(kind: Kind, detail: Mapping[str, Any]) -> str | None:
    """The line to change, None where a command tells more first. detail: that of the finding.

    >>> change_for("input", {"num_workers": 0})
    'num_workers=4 in the DataLoader, now 0'
    >>> change_for("input", {"num_workers": 3, "workers_do": "runs"})
    'num_workers=6 in the DataLoader, now 3'
    >>> change_for("input", {"num_workers": 1, "workers_do": "waits"})
    'num_workers=4 in the DataLoader, now 1'
    >>> change_for("untimed", {"cause": "gc2"})
    'gc.freeze() before the loop: collections leave out what is there by then'
    """
    if is_collection(detail):
        return LESS_COLLECTING
    if kind == "short of cores" and detail.get("threads") == 1:
        return MORE_CORES
    if kind != "input":
        return CHANGES.get(kind)
    now = detail.get("num_workers")
    if now == 0:
        return WORKERS.format(workers=FEW_WORKERS, now=0)
    do = detail.get("workers_do")
    if now is not None and do == "runs":
        return WORKERS.format(workers=2 * now, now=now)
    if now is not None and now < FEW_WORKERS and do in ("waits", "storage"):  # side by side, then
        return WORKERS.format(workers=FEW_WORKERS, now=now)
    return None


def is_collection(detail: Mapping[str, Any]) -> bool:
    """Whether most of the time of a finding is garbage collection."""
    return detail.get("cause") in ("gc0", "gc1", "gc2")


def steps_with_a_slow_one(detail: Mapping[str, Any], steps: int, width: int = 1) -> Captured | None:
    """Steps to capture so that one of those is among them that a finding is about; None where any
    will do. detail: that of the finding. steps: how many were judged. width: so many steps are
    known only together, from the one that is named on.

    >>> steps_with_a_slow_one({"times": 6, "every": 10, "slow_step": 4}, 63)
    Captured(first=23, steps=3, every=10, times=2)
    >>> steps_with_a_slow_one({"hiccups": 7, "slow_step": 30}, 70)
    Captured(first=22, steps=21, every=None, times=1)
    >>> steps_with_a_slow_one({"times": 6, "every": 20, "slow_step": 40}, 120, width=10)
    Captured(first=40, steps=20, every=None, times=1)
    >>> steps_with_a_slow_one({"took_ns": 1e6}, 63)
    """
    slow, times = detail.get("slow_step"), detail.get("times") or detail.get("hiccups")
    if slow is None or not times:
        return None
    every = detail.get("every")
    if every is None:
        return Captured(CAPTURED_FROM, min(2 * steps // times + 1, SLOW_MOST))
    # Work after a step's last meeting makes the next step long: the one before may be the slow one.
    # And what comes after a step's last stage counts to it, but is in the capture of the one after.
    slow += max(-(-(CAPTURED_FROM + 1 - slow) // every), 0) * every
    if width > 1:
        return Captured(slow, min(every, max(width, SLOW_MOST)))
    if every <= STEPS_OF_A_SLOW_ONE:
        return Captured(slow - 1, 2 * every)
    times = CAPTURED_TWICE if every <= SLOW_MOST else 1
    return Captured(slow - 1, STEPS_OF_A_SLOW_ONE, every, times)


def next_command(
    kind: Kind,
    *,
    paths: Sequence[str],
    ranks: Sequence[int],
    running: bool,
    command: Sequence[str] = (),
    step: int | None = None,
    slow: Captured | None = None,
) -> str:
    """A command line that can be pasted. ranks: those named; () captures all. slow: the steps to
    capture, None for any.

    >>> next_command("input", paths=["logs"], ranks=[1], running=True)
    'my_utils capture logs --ranks 1 --wait'
    >>> next_command("eval", paths=["logs"], ranks=[], running=True, slow=Captured(22, 9))
    'my_utils capture logs --steps 9 --wait'
    >>> slow = Captured(23, 3, every=10, times=2)
    >>> next_command("eval", paths=["logs"], ranks=[], running=True, slow=slow)
    'my_utils capture logs --first-step 23 --steps 3 --every 10 --times 2 --wait'
    >>> next_command("eval", paths=["logs"], ranks=[], running=False, command=["a.py"], slow=slow)
    'my_utils run --capture 0 --capture-steps 23:26 --capture-every 10 -- a.py'
    """
    while_running, again, unknown = NEXT[kind]
    form = while_running if running else again if command else unknown
    if form == CAPTURE and not ranks:
        form = CAPTURE_ALL
    if slow is not None and form in (CAPTURE, CAPTURE_ALL):
        form = form.replace("--wait", f"{_while_running(slow)} --wait")
    elif slow is not None and form == RUN:
        form = form.replace(" -- ", f" {_in_a_new_run(slow)} -- ")
    middle = 0 if step is None else step
    return form.format(
        logs=shlex.join(as_named(paths) or ["logs"]),
        ranks=ranges_text(as_ranges(ranks or (0,))),
        command=shlex.join(command),
        steps=f"{max(middle - STEPS_AROUND, 0)}:{middle + STEPS_AROUND}",
    )


def _while_running(slow: Captured) -> str:
    if slow.every is None:
        return f"--steps {slow.steps}"
    words = f"--first-step {slow.first} --steps {slow.steps} --every {slow.every}"
    return words if slow.times == 1 else f"{words} --times {slow.times}"


def _in_a_new_run(slow: Captured) -> str:
    steps = f"--capture-steps {slow.first}:{slow.first + slow.steps}"
    return steps if slow.times == 1 else f"{steps} --capture-every {slow.every}"


def timeline_command(paths: Sequence[str]) -> str:
    return f"my_utils why {shlex.join(as_named(paths) or ['logs'])} --timeline"


def page_path(page: str) -> str:
    """The path of a page, relative where it is in or below the current folder; "" where my_utils is
    installed without its documentation. page: such as "docs/runs/slow-rank.md"."""
    path = _TREE / page
    if not path.is_file():
        return ""
    try:
        relative = os.path.relpath(path)
    except OSError:  # the current folder is gone
        return str(path)
    return str(path) if relative.startswith(os.pardir) else relative
