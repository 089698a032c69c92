"""Kills recording processes at random moments and looks for what they finished.

    python -m tests.faults.kill_victims RUNS SEED FOLDER [FIRST]

Each victim is a fork of this process. It has threads, may fork a worker that records too, rotates
its files and moves them to another directory; its journal may lie in a separate directory. It
writes into shared memory which call of its timer it begins and which it has finished; after the
kill the rows are read back in two ways: without changing a file, from the CSVs and the journals,
and from the CSVs after a new process of the rank took the directories over. FIRST goes on with a
series that was cut off: run N of a seed is the same whatever was before. A line on stderr says
every 100 runs how far it is, and how long a `step()` took at most. Prints a line of JSON with what
went wrong. All of it should be empty, else the status is 1.
"""

from __future__ import annotations

import contextlib
import csv
import ctypes
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
WORKER = THREADS_MAX  # the number of the forked worker's thread
TRACKS = THREADS_MAX + 1
FORK_AT, MOVE_EVERY = 20, 30  # laps of the victim's first thread
PR_SET_PDEATHSIG = 1
CALLS = (("outer", "START"), ("inner", "START"), ("inner", "END"), ("outer", "END"))
ROW_FORM = re.compile(
    r"-?\d+\.\d{9},\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6},[^,]*,-?\d+,"
    r'[^,]+,[A-Z_]+,(\d+\.\d{6})?,".*"'
)


class Proof:
    """Counters that outlive the victim: by thread, calls begun, calls finished and the longest
    `step()` in ns."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8 * (3 * TRACKS + 1))
        self.numbers = memoryview(self.memory).cast("Q")

    def clear(self) -> None:
        for i in range(len(self.numbers)):
            self.numbers[i] = 0

    def begun(self, thread: int) -> int:
        return self.numbers[2 * thread]

    def finished(self, thread: int) -> int:
        return self.numbers[2 * thread + 1]

    @property
    def longest_step_s(self) -> float:
        return max(self.numbers[2 * TRACKS : 3 * TRACKS]) / 1e9

    @property
    def ready(self) -> bool:
        return self.numbers[3 * TRACKS] != 0

    def set_ready(self, ready: bool = True) -> None:
        self.numbers[3 * TRACKS] = ready


@dataclass
class Scenario:
    threads: int
    drain_every: int
    io: Literal["inline", "background"]
    max_csv_bytes: int
    offsets: bool
    moves: bool
    forks: bool
    early: bool
    adopters: int
    kill_s: float
    adopter_s: float
    elsewhere: bool

    @classmethod
    def pick(cls, source: random.Random) -> Scenario:
        return cls(
            threads=source.randint(1, THREADS_MAX),
            drain_every=source.choice([1, 3, 20, 100]),
            io="background" if source.random() < 0.25 else "inline",
            max_csv_bytes=source.choice([0, 0, source.randint(2_000, 60_000)]),
            offsets=source.random() < 0.25,
            moves=source.random() < 0.2,
            forks=source.random() < 0.2,
            early=source.random() < 0.1,
            adopters=source.choice([0, 0, 1, 2]),
            kill_s=10 ** source.uniform(-5, -1.7),
            adopter_s=10 ** source.uniform(-5, -2),
            elsewhere=source.random() < 0.25,
        )


def open_files(folder: Path, scenario: Scenario) -> dict[str, object]:
    return _core.open_output(
        log_dir=str(folder),
        io=scenario.io,
        max_csv_bytes=scenario.max_csv_bytes,
        journal_dir=str(top_of(folder) / "journals") if scenario.elsewhere else "",
    )


def top_of(folder: Path) -> Path:
    return folder.parent if folder.name == "moved" else folder


def places(folder: Path) -> tuple[Path, Path]:
    """Between which a victim moves."""
    return folder, folder / "moved"


def fork_worker(proof: Proof, scenario: Scenario, folder: Path) -> None:
    parent = os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        while os.getppid() == parent:
            record(proof, scenario, WORKER, folder)
        os._exit(0)


def change_files(proof: Proof, scenario: Scenario, lap: int, folder: Path) -> None:
    if scenario.offsets and lap % 50 == 49:
        _core.set_time_offset_ns(lap * 1000)
    if scenario.moves and lap % MOVE_EVERY == MOVE_EVERY - 1:
        open_files(places(folder)[lap // MOVE_EVERY % 2 ^ 1], scenario)
    if scenario.forks and lap == FORK_AT:
        fork_worker(proof, scenario, folder)


def record(proof: Proof, scenario: Scenario, thread: int, folder: Path) -> None:
    numbers = proof.numbers
    begun, finished, longest = 2 * thread, 2 * thread + 1, 2 * TRACKS + thread
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
            began_ns = time.perf_counter_ns()
            timer.step()
            numbers[longest] = max(numbers[longest], time.perf_counter_ns() - began_ns)
        if scenario.io == "background" and lap % 50 == 0:
            time.sleep(0.001)  # step() does not wait there, and a full ring drops by design
        if thread == 0:
            proof.set_ready()
            change_files(proof, scenario, lap, folder)


def be_victim(folder: Path, scenario: Scenario, proof: Proof) -> None:
    report = open_files(folder, scenario)
    assert report["journal_path"], report
    others = [
        threading.Thread(target=record, args=(proof, scenario, thread, folder), daemon=True)
        for thread in range(1, scenario.threads)
    ]
    for other in others:
        other.start()
    record(proof, scenario, 0, folder)


def be_adopter(folder: Path, scenario: Scenario, proof: Proof) -> None:
    proof.set_ready()
    open_files(folder, scenario)
    while True:  # the kill goes by the processor time
        pass


def wait_for_work(child: int, seconds: float) -> None:
    """Until the process has had so much of a processor: on a busy machine it would be killed before
    it does anything, were it by the clock on the wall. A process that sleeps is not waited for."""
    clock = ~child << 3 | 2  # of that process; see clock_getcpuclockid
    until, at_last = time.clock_gettime(clock) + seconds, time.monotonic() + 1
    while time.clock_gettime(clock) < until and time.monotonic() < at_last:
        time.sleep(0)


Role = Callable[[Path, Scenario, Proof], None]


def kill_in_the_middle(
    role: Role, folder: Path, scenario: Scenario, proof: Proof, after_s: float, at_once: bool
) -> None:
    proof.set_ready(False)
    alive, held = os.pipe()  # by the victim and its worker, for as long as they live
    child = os.fork()
    if child == 0:
        os.close(alive)
        try:
            role(folder, scenario, proof)
        finally:
            os._exit(4)
    while not at_once and not proof.ready:
        time.sleep(0)
    wait_for_work(child, after_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(held)
    assert os.read(alive, 1) == b""
    os.close(alive)
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
    longest_step_s: float = 0.0

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
        for thread in range(TRACKS):
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
        if row[4].startswith("my_utils.") or row[7].startswith("opens="):
            return
        metadata = dict(pair.split("=", 1) for pair in row[7].split(","))
        if "repeated" in metadata:
            return
        thread, lap, name = int(metadata["tag"][1:]), int(row[3]), row[4]
        seen[thread, lap * 4 + CALLS.index((name, row[5]))] += 1
        time_ns = int(Decimal(row[0]) * 10**9)
        if row[5] == "START":
            nodes[thread, lap, name] = metadata["node_id"], time_ns
            return
        node, began_ns = nodes.get((thread, lap, name), ("", 0))
        if node != metadata["node_id"]:
            self.problems[f"{way}: END without its START"] += 1
        # By the rate known at the stage's end, to some tenths of a percent on a busy machine.
        apart_ns = abs(Decimal(row[6]) * 10**6 - (time_ns - began_ns))
        if "set_time_offset" not in way and apart_ns > 2 + (time_ns - began_ns) // 100:
            self.problems[f"{way}: duration"] += 1


def journals(folder: Path) -> list[Path]:
    all_places = [*places(folder), folder / "journals"]
    return [path for place in all_places for path in place.glob("*.journal")]


def files_of(folder: Path) -> dict[tuple[Path, str], list[Path]]:
    """By directory and label, the oldest first."""
    found: dict[tuple[Path, str], list[Path]] = {}
    for place in places(folder):
        for path in sorted(place.glob("profile_rank_0*.csv"), key=in_order):
            label = re.sub(r"\.part\d+", "", path.name)
            found.setdefault((place, label), []).append(path)
    return found


def in_order(path: Path) -> tuple[int, str]:
    part = re.search(r"\.part(\d+)\.csv$", path.name)
    return (int(part[1]), "") if part else (10**9, path.name)


def count_dropped(folder: Path) -> int:
    dropped = 0
    for path in journals(folder):
        with contextlib.suppress(_core.FormatError):
            dropped += _core.read_journal(path)["dropped"]
    return dropped


def read_unchanged(folder: Path) -> str:
    """By the journals: the CSV that one speaks of counts up to what was committed."""
    files, rows = files_of(folder), ""
    ends: dict[Path, int] = {}
    for journal in journals(folder):
        try:
            csv_path, csv_bytes, more = _core.recover_rows(journal)
        except _core.FormatError:
            continue  # killed while it made the journal
        rows += more.decode()
        if csv_path is None:
            continue
        current = Path(csv_path)
        ends[current] = csv_bytes
        for of_label in files.values():
            if current in of_label:
                del of_label[of_label.index(current) + 1 :]
    texts = (path.read_bytes()[: ends.get(path)] for of in files.values() for path in of)
    return b"".join(texts).decode() + rows


def run_once(seed: str, folder: Path, proof: Proof, findings: Findings) -> None:
    source = random.Random(seed)
    scenario = Scenario.pick(source)
    proof.clear()
    for place in (*places(folder), folder / "journals"):
        place.mkdir(parents=True)
    kill_in_the_middle(be_victim, folder, scenario, proof, scenario.kill_s, scenario.early)
    shifted = " (set_time_offset)" if scenario.offsets else ""
    findings.dropped = dropped = count_dropped(folder)
    findings.check(read_unchanged(folder), proof, dropped, f"read{shifted}")
    for _ in range(scenario.adopters):
        kill_in_the_middle(be_adopter, folder, scenario, proof, scenario.adopter_s, False)
    for place in places(folder):
        take_over(place, scenario)
    left = journals(folder)
    assert not left or scenario.forks, f"the restart left {left}"
    findings.check(read_unchanged(folder), proof, dropped, f"adopted{shifted}")
    findings.longest_step_s = proof.longest_step_s
    findings.calls += sum(proof.finished(thread) for thread in range(TRACKS))
    shutil.rmtree(folder)


def take_over(folder: Path, scenario: Scenario) -> None:
    child = os.fork()
    if child == 0:
        open_files(folder, scenario)
        _core.close_output()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the restart ended with {status}"


def main() -> None:
    runs, seed, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    proof = Proof()
    GlobalLogger()
    failed: dict[str, dict[str, int]] = {}
    calls = open_stages = with_drops = 0
    longest_s = 0.0
    for run in range(first, runs):
        findings = Findings()
        name = f"{seed}.{run}"
        try:
            run_once(name, folder / name, proof, findings)
        except AssertionError as error:
            findings.problems[str(error)] += 1
        calls += findings.calls
        open_stages += findings.open_stages
        with_drops += findings.dropped > 0
        longest_s = max(longest_s, findings.longest_step_s)
        problems = {problem: count for problem, count in findings.problems.items() if count}
        if problems:
            failed[name] = problems
        if problems or run % 100 == 99:
            so_far = f"{run + 1} of {runs}, {calls} calls, the longest step {longest_s:.2f} s"
            print(so_far, problems or "", file=sys.stderr)
    figures: dict[str, float] = {
        "calls": calls,
        "open_stages": open_stages,
        "with_drops": with_drops,
    }
    figures["longest_step_s"] = round(longest_s, 3)
    print(json.dumps({"failed": failed, **figures}))
    if failed:
        sys.exit(f"the names begin with the seed: {failed}")


if __name__ == "__main__":
    main()
