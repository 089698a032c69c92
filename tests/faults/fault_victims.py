"""A run whose n-th call of the system fails, or in which it is killed there, for every n.

    LD_PRELOAD=failing_calls.so python -m tests.faults.fault_victims FOLDER ERRORS WHICH [FIRST]

ERRORS: by number; -1 is a short write, -2 a kill before the call, -3 one after it. WHICH: `all`,
the letter of a kind of calls, or a seed by which each fourth call gets one. FIRST: the call to
begin with, to go on with a run that was cut off. The parent uses nothing of the recorder, so that
each child begins anew. A child takes over what a killed process left, records, rotates and ends as
any process does. What a kill left is read as it is; then a process without faults takes it over,
and the rows are counted.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from my_utils import _core
from my_utils.csv2trace import main as convert
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
from tests.support import profile_rows

STEPS, DEAD_STEPS, PART_BYTES = 100, 50, 6000
NO_MEMORY = 12
SHORT_WRITE, *KILLS = -1, -2, -3

finished = mmap.mmap(-1, 8)  # outlives a killed child: the steps of `alive` whose stop returned
calls = ctypes.CDLL(None)
calls.fail_end.argtypes = [ctypes.POINTER(ctypes.c_char_p)]


def stages(timer: MyTimer, name: str, count: int) -> int:
    """The steps that are known to be in a file: nothing had failed when they were drained."""
    kept = 0
    for step in range(count):
        timer.set_step(step)
        timer.start(name)
        timer.stop(name)
        if name == "alive":
            finished[:8] = (step + 1).to_bytes(8, "little")
        timer.step()
        state = _core.output_state()
        if step % 10 == 9 and state["kind"] == "file" and not any(losses().values()):
            kept = step + 1
    return kept


def losses() -> dict[str, int]:
    troubles = _core.troubles()
    return {name: count for name, count in troubles.items() if name != "last_errno" and count}


def killed() -> None:
    GlobalLogger().setup("logs", rank=0, world_size=1, console=False)
    timer = MyTimer()
    stages(timer, "dead", DEAD_STEPS)
    for step in range(DEAD_STEPS, 2 * DEAD_STEPS):  # in the journal alone
        timer.set_step(step)
        timer.start("dead")
        timer.stop("dead")
    os.kill(os.getpid(), signal.SIGKILL)


def victim(n: int, with_error: int) -> None:
    logger = GlobalLogger()
    calls.fail_begin(n, with_error, None)
    logger.setup("logs", rank=0, world_size=1, console=False, max_csv_bytes=PART_BYTES)
    kept = stages(MyTimer(), "alive", STEPS)
    logger.close()
    kinds = ctypes.c_char_p()
    made = calls.fail_end(ctypes.byref(kinds))
    said = Path("stderr").read_text(encoding="utf-8")
    said += "".join(path.read_text(encoding="utf-8") for path in Path("logs").glob("*.log"))
    figures = {
        "made": made,
        "kinds": (kinds.value or b"").decode(),
        "kept": kept,
        "losses": losses(),
        "waits": "rows wait in memory" in said,  # and go with the process, which was said
        "warned": "WARNING" in said,
    }
    Path("figures.json").write_text(json.dumps(figures), encoding="utf-8")


def reads() -> None:
    """Without changing a file."""
    sys.exit(convert(["--recover", "logs", "-o", "trace.json"]))


def recovers() -> None:
    logger = GlobalLogger()
    logger.setup("logs", rank=0, world_size=1, console=False)
    logger.close()


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def rows_left() -> tuple[list[int], list[int]]:
    """The steps of the dead and of the living process that ended."""
    rows = [
        row
        for path in Path("logs").glob("profile_*.csv")
        for row in profile_rows.parse(path.read_text(encoding="utf-8"))
        if row.kind == "END"
    ]
    dead, alive = ([row.step for row in rows if row.name == name] for name in ("dead", "alive"))
    return sorted(dead), sorted(alive)


def rows_read() -> tuple[list[int], list[int]]:
    """The same out of the trace."""
    events = json.loads(Path("trace.json").read_text(encoding="utf-8"))["traceEvents"]
    stages = [event for event in events if event["ph"] == "X" and "args" in event]
    ends = [(event["name"], event["args"]["step"]) for event in stages]
    dead, alive = ([step for of, step in ends if of == name] for name in ("dead", "alive"))
    return sorted(dead), sorted(alive)


def after_a_kill(dead: list[int], alive: list[int], way: str) -> list[str]:
    done = int.from_bytes(finished[:8], "little")
    wrong = []
    if dead != list(range(2 * DEAD_STEPS)):
        wrong.append(f"{way}: of the process before, {len(set(dead))} once, {len(dead)} in all")
    if alive not in (list(range(done)), list(range(done + 1))):
        wrong.append(f"{way}: {done} finished, {len(set(alive))} once, {len(alive)} in all")
    return wrong


def verdict(status: int, recovery: int) -> tuple[list[str], dict[str, Any]]:
    """What is wrong, and the child's figures."""
    if status != 0 or not os.path.exists("figures.json"):
        return [f"ended with {status}: {shown()}"], {}
    figures = json.loads(Path("figures.json").read_text())
    wrong = []
    if recovery != 0:
        wrong.append(f"the recovery ended with {recovery}")
    dead, alive = rows_left()
    if dead != list(range(2 * DEAD_STEPS)):
        missing, twice = set(range(2 * DEAD_STEPS)) - set(dead), Counter(dead) - Counter(set(dead))
        wrong.append(f"of the dead process {len(missing)} lost, {twice.total()} doubled")
    if (Counter(alive) - Counter(set(alive))).total():
        wrong.append("rows are doubled")
    if set(range(figures["kept"])) - set(alive):
        wrong.append(f"{figures['kept']} steps were in a file, {len(alive)} are found")
    figures["lost"] = STEPS - len(set(alive))
    if figures["lost"] and not figures["losses"] and not figures["waits"]:
        wrong.append(f"{figures['lost']} steps are lost and not counted")
    if (figures["lost"] or figures["losses"]) and not figures["warned"]:
        wrong.append(f"nothing is said of {figures['losses']}")
    return wrong, figures


def shown() -> str:
    """The end of what the children said."""
    return Path("stderr").read_text(encoding="utf-8")[-1500:]


def run(act: object, *arguments: object) -> int | None:
    """In a child, which returns None: it ends as every process does."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        act(*arguments)  # type: ignore[operator]
        return None
    return ended(child)


def fitting_errors(kind: str, errors: list[int]) -> list[int]:
    """Those that a call of that kind can end with. A kill at a request for memory shows nothing."""
    if kind == "m":
        return [NO_MEMORY] if set(errors) - set(KILLS) else []
    return [error for error in errors if error != SHORT_WRITE or kind == "w"]


def cases(errors: list[int], which: str, kinds: str) -> Iterator[tuple[int, int]]:
    for n, kind in enumerate(kinds, 1):
        fitting = fitting_errors(kind, errors)
        if which.isalpha():
            fitting = fitting if which in ("all", kind) else []
        elif fitting:
            fitting = [fitting[(n // 4 + int(which)) % len(fitting)]] * ((n + int(which)) % 4 == 0)
        for error in fitting:
            yield n, error


def try_case(n: int, error: int) -> tuple[list[str], dict[str, Any]] | None:
    """What is wrong, and the figures; None in a child, which ends as every process does."""
    shutil.rmtree("case", ignore_errors=True)
    subprocess.run(["cp", "-r", "dead", "case"], check=True)  # leaves a journal's holes empty
    os.chdir("case")
    finished[:8] = bytes(8)
    status = run(victim, n, error)
    if status is None:
        return None
    wrong = []
    is_killed = status == -signal.SIGKILL and error in KILLS
    if is_killed:
        if (reading := run(reads)) is None:
            return None
        wrong = after_a_kill(*rows_read(), "read") if reading in (0, 3) else [f"reads {reading}"]
    recovery = run(recovers)
    if recovery is None:
        return None
    if is_killed:
        wrong += after_a_kill(*rows_left(), "taken over")
        return wrong + [f"the recovery ended with {recovery}"] * (recovery != 0), {}
    return verdict(status, recovery)


def main() -> int:
    folder, errors, which = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    shutil.rmtree(folder / "dead", ignore_errors=True)
    (folder / "dead").mkdir()
    os.chdir(folder / "dead")
    if run(killed) is None:
        return 0
    kinds, found = "", []
    counts: Counter[str] = Counter()
    plan: Iterator[tuple[int, int]] = iter([(0, 0)])
    while (case := next(plan, None)) is not None:
        n, error = case
        os.chdir(folder)
        tried = try_case(n, error)
        if tried is None:
            return 0
        wrong, figures = tried
        found += [f"call {n} with {error} ({kinds[n - 1 : n]}): {text}" for text in wrong]
        killed_it = not figures and not wrong
        counts += Counter(runs=1, kills=int(killed_it), lost=figures.get("lost", 0))
        if wrong or counts["runs"] % 100 == 0:
            print(f"{counts['runs']} runs, at call {n} of {len(kinds)}", *wrong, file=sys.stderr)
        if n == 0:
            kinds = str(figures["kinds"])
            plan = (case for case in cases(errors, which, kinds) if case[0] >= first)
    print(json.dumps({"calls": len(kinds), **counts, "wrong": found}))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
