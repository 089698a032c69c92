"""An installation of the first release, made from the history, is killed while it records: today's
code reads what it left and takes it over."""

from __future__ import annotations

import json
import mmap
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython
from ..support import profile_rows

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800)]

FIRST_RELEASE = "7dcab9d"
KILLS, THREADS = 30, 3

# Counts in the file, by thread, the steps whose stop has returned.
VICTIM = """
import mmap, sys, threading
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
with open(sys.argv[1], "r+b") as file:
    counts = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("Q")
GlobalLogger().setup("logs", rank=0, world_size=1, console=False)
def record(thread):
    timer = MyTimer(tag=f"t{thread}")
    for step in range(10**9):
        timer.set_step(step)
        timer.start("outer")
        timer.start("inner")
        timer.stop("inner")
        timer.stop("outer")
        counts[thread] = step + 1
        if step % 500 == 499:
            timer.step()
for thread in range(1, int(sys.argv[2])):
    threading.Thread(target=record, args=(thread,), daemon=True).start()
record(0)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an installation of the first release."""
    folder = tmp_path_factory.mktemp("release1")
    archive = folder / "source.tar"
    history = ["git", "-C", str(ROOT), "archive", "-o", str(archive), FIRST_RELEASE]
    done = subprocess.run(history, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the history of the first release is not here: {done.stderr.strip()}")
    (folder / "source").mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder / "source")], check=True)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-build-isolation"]
    install += ["--no-deps", "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run(install, check=True, timeout=1000)
    return folder / "site"


def kill_one(installed: Path, folder: Path, after: int) -> list[int]:
    """Steps that the threads of a victim had finished."""
    counts = folder / "counts"
    counts.write_bytes(bytes(mmap.PAGESIZE))
    with (
        counts.open("r+b") as file,
        mmap.mmap(file.fileno(), 0) as memory,
        memoryview(memory) as whole,
        whole.cast("Q") as numbers,
        subprocess.Popen(
            [sys.executable, "-c", VICTIM, str(counts), str(THREADS)],
            cwd=folder,
            env={"PYTHONPATH": str(installed)},
        ) as victim,
    ):
        while numbers[0] < after and victim.poll() is None:
            pass
        victim.kill()
        assert victim.wait() == -signal.SIGKILL
        return list(numbers[:THREADS])


def check(found: Counter[tuple[str, str, int]], finished: list[int]) -> None:
    """Each finished stage once, and at most the step that was under way beside them."""
    assert set(found.values()) <= {1}
    for thread, steps in enumerate(finished):
        for name in ("outer", "inner"):
            there = {step for tag, stage, step in found if (tag, stage) == (f"t{thread}", name)}
            assert there - {steps} == set(range(steps))


def check_trace(found: Counter[tuple[str, int]], finished: list[int]) -> None:
    """The same where it is not said which thread's a slice is."""
    for step in range(max(finished) + 1):
        least, most = (
            sum(step < steps for steps in finished),
            sum(step <= steps for steps in finished),
        )
        assert all(least <= found[name, step] <= most for name in ("outer", "inner"))


def test_a_killed_run_of_the_first_release_is_read_and_adopted(
    run_python: RunPython, tmp_path: Path, installed: Path
) -> None:
    chance = random.Random(1)
    total = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        finished = kill_one(installed, folder, chance.choice([1, 100, 5_000, 20_000]))
        total += sum(finished)
        done = run_python(
            "-m", "my_utils.csv2trace", "--recover", "logs", "-o", "trace.json", cwd=folder
        )
        assert done.returncode == 0, done.stderr
        events = json.loads((folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
        slices = [event for event in events if event["ph"] == "X" and "args" in event]
        check_trace(Counter((e["name"], e["args"]["step"]) for e in slices), finished)
        takes_over = "from my_utils.logger import GlobalLogger as L; L().setup('logs', rank=0)"
        done = run_python("-c", takes_over, cwd=folder)
        assert done.returncode == 0, done.stderr
        text = (folder / "logs" / "profile_rank_0.csv").read_text(encoding="utf-8")
        rows = [row for row in profile_rows.parse(text) if row.kind == "END"]
        check(Counter((row.metadata["tag"], row.name, row.step) for row in rows), finished)
        assert not list((folder / "logs").glob("*.journal*"))
    sys.stdout.write(f"{KILLS} kills, {4 * total} acknowledged calls\n")
