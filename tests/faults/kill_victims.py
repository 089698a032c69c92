"""Kills recording processes at random moments and looks for what they finished.

    python -m tests.faults.kill_victims RUNS SEED FOLDER

Each victim is a fork of this process. It writes into shared memory which call of its timer it
begins and which it has finished; after the kill the rows are read back in two ways: without
changing a file, from the CSV and the journal, and from the CSV after a new process of the rank took
the directory over. Prints a line of JSON with what went wrong. All of it should be empty, else the
status is 1.
"""

from __future__ import annotations

import csv
import io
import json
import mmap
import os
import random
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Literal

from my_utils import _core
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer

THREADS_MAX = 8
CALLS = (("outer", "START"), ("inner", "START"), ("inner", "END"), ("outer", "END"))
ROW_FORM = re.compile(
    r"-?\d+\.\d{9},\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6},[^,]*,-?\d+,"
    r'[^,]+,[A-Z_]+,(\d+\.\d{6})?,".*"'
)


class Proof:
    """Counters that outlive the victim: by thread, calls begun and calls finished."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * (2 * THREADS_MAX + 1))
        self.numbers = memoryview(self.memory).cast("Q")

    def clear(self) -> None:
        for i in range(len(self.numbers)):
            self.numbers[i] = 0

    def begun(self, thread: int) -> int:
        return self.numbers[2 * thread]

    def finished(self, thread: int) -> int:
        return self.numbers[2 * thread + 1]

    @property
    def ready(self) -> bool:
        return self.numbers[2 * THREADS_MAX] != 0

    def set_ready(self) -> None:
        self.numbers[2 * THREADS_MAX] = 1


@dataclass
class Scenario:
    threads: int
    drain_every: int
    io: Literal["inline", "background"]
    max_csv_bytes: int
    offsets: bool
    early: bool
    adopters: int
    kill_s: float
    adopter_s: float

    @classmethod
    def pick(cls, source: random.Random) -> Scenario:
        return cls(
            threads=source.randint(1, THREADS_MAX),
            drain_every=source.choice([1, 3, 20, 100]),
            io="background" if source.random() < 0.25 else "inline",
            max_csv_bytes=source.choice([0, 0, source.randint(2_000, 60_000)]),
            offsets=source.random() < 0.25,
            early=source.random() < 0.1,
            adopters=source.choice([0, 0, 1, 2]),
            kill_s=10 ** source.uniform(-5, -1.7),
            adopter_s=10 ** source.uniform(-5, -2),
        )


def open_files(folder: Path, scenario: Scenario) -> dict[str, object]:
    return _core.open_output(
        log_dir=str(folder), io=scenario.io, max_csv_bytes=scenario.max_csv_bytes
    )


def record(proof: Proof, scenario: Scenario, thread: int) -> None:
    numbers = proof.numbers
    begun, finished = 2 * thread, 2 * thread + 1
    timer = MyTimer(tag=f"t{thread}")
    start, stop = timer.start, timer.stop
    for lap in range(10**9):
        timer.set_step(lap)
        numbers[begun] += 1
        start("outer")
        numbers[finished] += 1
        numbers[begun] += 1
        start("inner")
        numbers[finished] += 1
        numbers[begun] += 1
        stop("inner")
        numbers[finished] += 1
        numbers[begun] += 1
        stop("outer")
        numbers[finished] += 1
        if lap % scenario.drain_every == 0:
            timer.step()
        if scenario.io == "background" and lap % 50 == 0:
            time.sleep(0.001)  # step() does not wait there, and a full ring drops by design
        if scenario.offsets and thread == 0 and lap % 50 == 49:
            _core.set_time_offset_ns(lap * 1000)


def be_victim(folder: Path, scenario: Scenario, proof: Proof) -> None:
    report = open_files(folder, scenario)
    assert report["journal_path"], report
    proof.set_ready()
    others = [
        threading.Thread(target=record, args=(proof, scenario, thread), daemon=True)
        for thread in range(1, scenario.threads)
    ]
    for other in others:
        other.start()
    record(proof, scenario, 0)


def be_adopter(folder: Path, scenario: Scenario, proof: Proof) -> None:
    proof.set_ready()
    open_files(folder, scenario)
    time.sleep(60)


Role = Callable[[Path, Scenario, Proof], None]


def kill_in_the_middle(
    role: Role, folder: Path, scenario: Scenario, proof: Proof, after_s: float, at_once: bool
) -> None:
    proof.numbers[2 * THREADS_MAX] = 0
    child = os.fork()
    if child == 0:
        try:
            role(folder, scenario, proof)
        finally:
            os._exit(4)
    while not at_once and not proof.ready:
        time.sleep(0)
    until = time.perf_counter() + after_s
    while time.perf_counter() < until:
        pass
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), (
        f"the victim ended by itself: {os.waitstatus_to_exitcode(status)}"
    )


@dataclass
class Findings:
    """What must not be; each a count, or names of rows."""

    problems: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    open_stages: int = 0
    dropped: int = 0

    def check(self, text: str, proof: Proof, dropped: int, way: str) -> None:
        seen: Counter[tuple[int, int]] = Counter()
        nodes: dict[tuple[int, int, str], tuple[str, int]] = {}
        for line in text.splitlines():
            if line.startswith("timestamp_unix,"):
                continue
            if not ROW_FORM.fullmatch(line):
                self.problems[f"{way}: torn row"] += 1
                continue
            self._note(next(csv.reader(io.StringIO(line))), seen, nodes, way)
        lost = 0
        for thread in range(THREADS_MAX):
            begun, finished = proof.begun(thread), proof.finished(thread)
            numbers = {number for which, number in seen if which == thread}
            lost += len(set(range(finished)) - numbers)
            self.problems[f"{way}: never happened"] += sum(number >= begun for number in numbers)
            started = sum(number % 4 < 2 for number in numbers)
            self.open_stages += started - (len(numbers) - started)
        # A ring that was full dropped records by design, counted them, and a record is two rows.
        self.problems[f"{way}: lost"] += max(0, lost - 2 * dropped)
        self.problems[f"{way}: twice"] += sum(count > 1 for count in seen.values())

    def _note(
        self,
        row: list[str],
        seen: Counter[tuple[int, int]],
        nodes: dict[tuple[int, int, str], tuple[str, int]],
        way: str,
    ) -> None:
        if row[4].startswith("my_utils."):
            return
        metadata = dict(pair.split("=", 1) for pair in row[7].split(","))
        thread, lap, name = int(metadata["tag"][1:]), int(row[3]), row[4]
        seen[thread, lap * 4 + CALLS.index((name, row[5]))] += 1
        time_ns = int(Decimal(row[0]) * 10**9)
        if row[5] == "START":
            nodes[thread, lap, name] = metadata["node_id"], time_ns
            return
        node, began_ns = nodes.get((thread, lap, name), ("", 0))
        if node != metadata["node_id"]:
            self.problems[f"{way}: END without its START"] += 1
        if "set_time_offset" not in way and Decimal(row[6]) * 10**6 != time_ns - began_ns:
            self.problems[f"{way}: duration"] += 1


def in_order(path: Path) -> tuple[int, str]:
    part = re.search(r"\.part(\d+)\.csv$", path.name)
    return (int(part[1]), "") if part else (10**9, path.name)


def read_files(folder: Path) -> str:
    files = sorted(folder.glob("profile_rank_0*.csv"), key=in_order)
    return "".join(file.read_text(encoding="utf-8") for file in files)


def count_dropped(folder: Path) -> int:
    try:
        return sum(_core.read_journal(path)["dropped"] for path in folder.glob("*.journal"))
    except _core.FormatError:
        return 0


def read_unchanged(folder: Path) -> str:
    """By the journal: the CSV that it speaks of counts up to what was committed."""
    journals = list(folder.glob("*.journal"))
    if not journals:
        return read_files(folder)
    try:
        csv_path, csv_bytes, rows = _core.recover_rows(journals[0])
    except _core.FormatError:
        return read_files(folder)  # killed while it made the journal
    assert csv_path is not None
    current = Path(csv_path)
    files = sorted(folder.glob("profile_rank_0*.csv"), key=in_order)
    before = files[: files.index(current)]
    text = "".join(file.read_text(encoding="utf-8") for file in before)
    return text + (current.read_bytes()[:csv_bytes] + rows).decode()


def run_once(seed: str, folder: Path, proof: Proof, findings: Findings) -> None:
    source = random.Random(seed)
    scenario = Scenario.pick(source)
    proof.clear()
    folder.mkdir(parents=True)
    kill_in_the_middle(be_victim, folder, scenario, proof, scenario.kill_s, scenario.early)
    shifted = " (set_time_offset)" if scenario.offsets else ""
    findings.dropped = dropped = count_dropped(folder)
    findings.check(read_unchanged(folder), proof, dropped, f"read{shifted}")
    for _ in range(scenario.adopters):
        kill_in_the_middle(be_adopter, folder, scenario, proof, scenario.adopter_s, False)
    child = os.fork()
    if child == 0:
        open_files(folder, scenario)
        _core.close_output()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the restart ended with {status}"
    assert not list(folder.glob("*.journal")), "the restart left a journal"
    findings.check(read_files(folder), proof, dropped, f"adopted{shifted}")
    findings.calls += sum(proof.finished(thread) for thread in range(THREADS_MAX))
    shutil.rmtree(folder)


def main() -> None:
    runs, seed, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    proof = Proof()
    GlobalLogger()
    failed: dict[str, dict[str, int]] = {}
    calls = open_stages = with_drops = 0
    for run in range(runs):
        findings = Findings()
        name = f"{seed}.{run}"
        try:
            run_once(name, folder / name, proof, findings)
        except AssertionError as error:
            findings.problems[str(error)] += 1
        calls += findings.calls
        open_stages += findings.open_stages
        with_drops += findings.dropped > 0
        problems = {problem: count for problem, count in findings.problems.items() if count}
        if problems:
            failed[name] = problems
    figures = {"calls": calls, "open_stages": open_stages, "with_drops": with_drops}
    print(json.dumps({"failed": failed, **figures}))
    if failed:
        sys.exit(f"the names begin with the seed: {failed}")


if __name__ == "__main__":
    main()
