"""A run whose n-th call of the system fails, for every n: run with failing_calls.c preloaded.

Arguments: the folder, the errors by number (-1: a short write), which of them (`all`, the letter of
a kind of calls, or a seed by which each fourth call gets one). The parent uses nothing of the
recorder, so that each child begins anew. A child takes over what a killed process left, records,
rotates and ends as any process does; after it one without faults takes over what is left, and the
rows are counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

from my_utils import _core
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
from tests.support import profile_rows

STEPS, DEAD_STEPS, PART_BYTES = 100, 50, 6000
NO_MEMORY = 12

calls = ctypes.CDLL(None)
calls.fail_end.argtypes = [ctypes.POINTER(ctypes.c_char_p)]


def stages(timer: MyTimer, name: str, count: int) -> int:
    """The steps that are known to be in a file: nothing had failed when they were drained."""
    kept = 0
    for step in range(count):
        timer.set_step(step)
        timer.start(name)
        timer.stop(name)
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
    calls.fail_begin(n, with_error)
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


def verdict(status: int, recovery: int) -> tuple[list[str], dict[str, object]]:
    """What is wrong, and the child's figures."""
    if status != 0 or not os.path.exists("figures.json"):
        return [f"ended with {status}: {Path('stderr').read_text()[-1500:]}"], {}
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


def run(act: object, *arguments: int) -> int | None:
    """In a child, which returns None: it ends as every process does."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        act(*arguments)  # type: ignore[operator]
        return None
    return ended(child)


def cases(folder: Path, errors: list[int], which: str, kinds: str):  # type: ignore[no-untyped-def]
    for n, kind in enumerate(kinds, 1):
        fitting = [NO_MEMORY] if kind == "m" else [e for e in errors if e != -1 or kind == "w"]
        if which.isalpha():
            fitting = fitting if which in ("all", kind) else []
        else:
            fitting = [fitting[(n // 4 + int(which)) % len(fitting)]] * ((n + int(which)) % 4 == 0)
        for error in fitting:
            yield n, error


def main() -> int:
    folder, errors, which = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
    (folder / "dead").mkdir()
    os.chdir(folder / "dead")
    if run(killed) is None:
        return 0
    kinds, total, found = "", 0, []
    lost = 0
    plan = iter([(0, 0)])
    while (case := next(plan, None)) is not None:
        n, error = case
        os.chdir(folder)
        shutil.rmtree("case", ignore_errors=True)
        subprocess.run(["cp", "-r", "dead", "case"], check=True)  # leaves a journal's holes empty
        os.chdir("case")
        status = run(victim, n, error)
        if status is None:
            return 0
        recovery = run(recovers)
        if recovery is None:
            return 0
        wrong, figures = verdict(status, recovery)
        found += [f"call {n} with {error} ({kinds[n - 1 : n]}): {text}" for text in wrong]
        total += 1
        lost += figures.get("lost", 0)  # type: ignore[operator]
        if n == 0:
            kinds = str(figures["kinds"])
            plan = cases(folder, errors, which, kinds)
    print(json.dumps({"calls": len(kinds), "runs": total, "lost": lost, "wrong": found}))
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.exit(status)
