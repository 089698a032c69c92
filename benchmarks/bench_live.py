"""What a look at a run costs a rank, and that it grows with their number only; what the screen
takes of a core; and what the dumps of torch's flight recorder cost, against torch's own analyser.

Files are made as processes on other hosts leave them: a heartbeat and a pointer to a journal that
is not on this machine. Dumps hold 500 collectives each, of which one rank never entered the last.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import logging
import os
import pickle
import pty
import resource
import select
import statistics
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Claim
from my_utils.analysis import live

CALLS = 500
HELD = 1
FRAMES = [  # one object a line, which torch's calls share
    {"name": f"call_{depth}", "filename": f"/home/user/part_{depth}.py", "line": depth}
    for depth in range(12)
]


def write_rank(folder: Path, rank: int, world: int) -> None:
    now = time.time()
    stages = ("iter", "backward", "all_reduce") if rank != HELD else ("iter", "data")
    lane = {
        "tid": 100,
        "thread": "MainThread",
        "tag": "",
        "step": 812,
        "ended": now - 60,
        "open": [{"name": name, "step": 812, "since": now - 60} for name in stages],
    }
    beat = {
        "version": 1,
        "rank": rank,
        "world_size": world,
        "pid": 100,
        "attempt": 1,
        "host": f"node-{rank // 8}",
        "label": f"rank_{rank}",
        "time": now,
        "began": now - 4000,
        "time_offset": 0.0,
        "closed": False,
        "dropped": 0,
        "lanes": [lane, {**lane, "tid": 101, "thread": "loader", "open": []}],
    }
    (folder / f"rank_{rank}.heartbeat.json").write_text(json.dumps(beat), encoding="utf-8")
    journal = f"rank_{rank}.100.5.journal"
    (folder / f"{journal}-ref").write_text(f"/dev/shm/no/{journal}\n", encoding="utf-8")


def entry(record: int, state: str) -> dict[str, Any]:
    return {
        "frames": list(FRAMES),
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "thread_name": "pt_main",
        "thread_id": "1",
        "collective_seq_id": record + 1,
        "p2p_seq_id": 0,
        "op_id": record + 1,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 10**18 + record,
        "input_sizes": [[16, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[16, 4]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": 1,
        "time_discovered_completed_ns": 1 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def write_dumps(folder: Path, world: int) -> None:
    entries = [entry(record, "completed") for record in range(CALLS - 1)]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
    held = pickle.dumps(dump, protocol=2)
    entries.append(entry(CALLS - 1, "started"))
    waiting = pickle.dumps(dump, protocol=2)
    for rank in range(world):
        (folder / f"trace_{rank}").write_bytes(held if rank == HELD else waiting)


def microseconds(function: Callable[[], object], ranks: int, rounds: int) -> float:
    """Processor time a rank, that of child processes included, which read the pickles; the median
    of some rounds."""
    times = []
    for _ in range(rounds):
        began = processor_s()
        function()
        times.append((processor_s() - began) / ranks * 1e6)
    return statistics.median(times)


def processor_s() -> float:
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def read_plainly(folder: Path) -> None:
    """The peer: what the files hold, and no more."""
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            json.loads(text)


def look(folder: Path, held: int = HELD) -> None:
    suspects = live.snapshot(folder, hung_after_s=30)["suspects"]
    if held not in [suspect["rank"] for suspect in suspects]:
        raise AssertionError("the rank that holds the run up is not named")


def of_looks(folder: Path, many: int, few: int, rounds: int) -> list[Claim]:
    times = {}
    for world in (few, many):
        own = folder / f"logs_{world}"
        own.mkdir()
        for rank in range(world):
            write_rank(own, rank, world)
        times[world] = microseconds(lambda own=own: look(own), world, rounds)  # type: ignore[misc]
    plain = microseconds(lambda: read_plainly(folder / f"logs_{many}"), many, rounds)
    of_few = f"a rank of {few:,}"
    return [
        Claim(f"live: a rank of {many:,}", times[many], of_few, times[few], "us", 1.5),
        Claim("live: a rank", times[many], "reading and parsing its files", plain, "us", 8),
    ]


def of_screen(folder: Path, ranks: int, seconds: float) -> list[Claim]:
    """Processor time of `my_utils live` on a terminal, from its second frame on, while heartbeats
    are renewed every two seconds as ranks do it."""
    logs = folder / f"screen_{ranks}"
    logs.mkdir()
    write_all(logs, ranks)
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 140))
    shown = subprocess.Popen(
        [sys.executable, "-m", "my_utils", "live", str(logs)],
        stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        frames(ours, 2, logs, ranks)
        began_s, began_cpu_s = time.monotonic(), cpu_s(shown.pid)
        while time.monotonic() < began_s + seconds:
            frames(ours, 1, logs, ranks)
        share = (cpu_s(shown.pid) - began_cpu_s) / (time.monotonic() - began_s)
    finally:
        shown.kill()
        shown.wait()
        os.close(ours)
        os.close(theirs)
    return [Claim(f"live: the screen of {ranks:,} ranks", share * 1e6, "a core", 1e6, "us", 0.05)]


def write_all(logs: Path, ranks: int) -> None:
    for rank in range(ranks):
        write_rank(logs, rank, ranks)


def frames(terminal: int, count: int, logs: Path, ranks: int) -> None:
    """Reads so many frames more."""
    seen = 0
    while seen < count:
        ready, _, _ = select.select([terminal], [], [], 2.0)
        if ready:
            seen += os.read(terminal, 1 << 20).count(b"\x1b[J")
        else:
            write_all(logs, ranks)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def with_torch(folder: Path) -> None:
    from torch.distributed.flight_recorder.components.builder import build_db
    from torch.distributed.flight_recorder.components.config_manager import JobConfig
    from torch.distributed.flight_recorder.components.loader import read_dir

    logging.disable(logging.INFO)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        arguments = JobConfig().parse_args([str(folder), "-p", "trace_"])
        details, version = read_dir(arguments)
        build_db(details, arguments, version)
    logging.disable(logging.NOTSET)
    gc.enable()  # which torch leaves off


def of_dumps(folder: Path, many: int, few: int, rounds: int) -> list[Claim]:
    logs = folder / "none"
    logs.mkdir()
    times = {}

    def analyse(place: Path) -> None:
        (stalled,) = live.snapshot(logs, flight_recorder=place)["flight_recorder"]["stalled"]
        if stalled["missing"] != [HELD]:
            raise AssertionError("the rank that never entered is not named")

    for world in (few, many):
        own = folder / f"dumps_{world}"
        own.mkdir()
        write_dumps(own, world)
        times[world] = microseconds(lambda own=own: analyse(own), world, rounds)  # type: ignore[misc]
    with_torch(folder / f"dumps_{few}")  # its imports, which take as long as three analyses
    peer = microseconds(lambda: with_torch(folder / f"dumps_{few}"), few, rounds)
    return [
        Claim(f"a dump of {many:,}", times[many], f"a dump of {few:,}", times[few], "us", 2),
        Claim(f"a dump of {few:,}", times[few], "torch's fr_trace", peer, "us", 5, faster=True),
    ]


def run(smoke: bool) -> list[Claim]:
    with tempfile.TemporaryDirectory() as folder:
        looks, dumps = Path(folder, "looks"), Path(folder, "dumps")
        looks.mkdir()
        dumps.mkdir()
        many, few, rounds = (100, 20, 1) if smoke else (10_000, 1_000, 3)
        claims = of_looks(looks, many, few, rounds)
        claims += of_screen(looks, *((40, 0.1) if smoke else (1_000, 60.0)))
        many, few, rounds = (20, 4, 1) if smoke else (1_000, 64, 3)
        return claims + of_dumps(dumps, many, few, rounds)
