"""Rows that a process writes once are found whatever the rotation of its CSV has removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.live.memory import read_memory
from my_utils.analysis.live.recorded import Recorded
from my_utils.analysis.verdict.load import load_run
from my_utils.core.run_files.run_metadata import read_run_metadata

from ...conftest import ROOT
from ...support import profile_rows

PROGRAM = """
import os, sys
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
logger = GlobalLogger()
logger.setup(sys.argv[1], rank=0, world_size=2, console=False,
             max_csv_bytes=32 << 10, keep_csv_bytes=int(sys.argv[2]))
timer = MyTimer()
def steps(first, end):
    for step in range(first, end):
        timer.set_step(step)
        timer.start("backward")
        timer.stop("backward")
        timer.step()
def say(name, **pairs):
    logger.instant("my_utils." + name, pairs, step=0)
steps(0, 3)
say("run", script="train.py", device="cpu", attempt="1")
say("workload", num_workers="4")
say("sync", stage="backward", kind="ddp", members="0-1")
say("group", label="tp", members="0-1")
say("bucket", bucket="0", modules="a,b=c")
say("clock_sync", offset_ns="5", error_ns="1")
steps(3, 300)
say("clock_sync", offset_ns="6", error_ns="42")
say("group", label="late", members="0,1")
steps(300, 1200)
logger.counter("memory", {"rss_bytes": 5 << 30, "allocated_bytes": 7})
timer.step()
"""
END = """
logger.instant("my_utils.run_end", {"error": "ValueError"}, step=-1)
logger.close()
"""
KILL = "\nos.kill(os.getpid(), 9)\n"
AGAIN = """
logger.setup("next", rank=0, world_size=2, console=False, max_csv_bytes=32 << 10)
say("workload", num_workers="2")
steps(0, 600)
"""
RANK: Any = types.SimpleNamespace(
    rank=0, label="rank_0", pid=1, source="heartbeat", alive=False, began_s=None
)
NAMES = ["bucket", "group", "process", "run", "sync", "workload"]


def record(folder: Path, text: str, keep: int = 160 << 10) -> list[Path]:
    """The parts, the oldest first."""
    done = subprocess.run(
        [sys.executable, "-c", text, "logs", str(keep)],
        cwd=folder, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (0, -signal.SIGKILL)
    logs = folder / "logs"
    return [*sorted(logs.glob("profile_rank_0.part*.csv")), logs / "profile_rank_0.csv"]


@pytest.mark.parametrize("end", [END, KILL])
def test_rows_that_are_written_once_are_in_every_part(tmp_path: Path, end: str) -> None:
    parts = record(tmp_path, PROGRAM + end)
    assert not (tmp_path / "logs/profile_rank_0.part0001.csv").exists()
    assert len(parts) > 2
    for part in parts:
        found = read_run_metadata(str(part))
        names = Counter(note.name.removeprefix("my_utils.") for note in found.notes)
        assert sorted(set(names) - {"run_end"}) == NAMES
        assert set(found.named("my_utils.group")[0].items()) == {
            ("label", "tp"),
            ("members", "0-1"),
        }
        assert found.named("my_utils.bucket") == [{"bucket": "0", "modules": "a,b=c"}]
        assert names["sync"] == names["run"] == names["workload"] == 1
        assert found.attempt == 1


def test_the_next_run_of_a_process_has_none_of_them(tmp_path: Path) -> None:
    record(tmp_path, PROGRAM + END + AGAIN + KILL)
    parts = [str(part) for part in (tmp_path / "next").glob("profile_rank_0*.csv")]
    assert len(parts) > 2
    for part in parts:
        found = read_run_metadata(part)
        names = {note.name.removeprefix("my_utils.") for note in found.notes}
        assert names == {"process", "workload"}
        assert found.named("my_utils.workload")[-1] == {"num_workers": "2"}
    assert not Recorded([str(tmp_path / "next")]).error(RANK)


def test_readers_of_a_rotated_run_know_what_was_recorded_once(tmp_path: Path) -> None:
    logs = str(tmp_path / "logs")
    record(tmp_path, PROGRAM + END)
    recorded = Recorded([logs])
    assert recorded.names() == {"backward"}
    for label in ("backward", "tp", "late"):
        assert recorded.members(RANK, label) == frozenset({0, 1})
    assert recorded.members(RANK, "other") is None
    assert recorded.error(RANK) == "ValueError"
    memory = read_memory(RANK, [logs])
    assert (memory.resident, memory.device) == (5 << 30, 7)
    run = load_run(logs)
    assert [(point.stage, point.kind) for point in run.sync_points or ()] == [("backward", "ddp")]
    assert run.workload["num_workers"] == "4"
    assert run.clock_error_ns == pytest.approx(42)


def test_the_trace_draws_each_of_them_once_at_most(tmp_path: Path) -> None:
    record(tmp_path, PROGRAM + END, keep=1 << 30)
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "trace", "logs", "-o", "trace.json"],
        cwd=tmp_path, check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    drawn = Counter(event["name"] for event in events if event.get("ph") in ("i", "I"))
    assert drawn["my_utils.sync"] == drawn["my_utils.workload"] == drawn["my_utils.run_end"] == 1
    assert drawn["my_utils.group"] == drawn["my_utils.clock_sync"] == 2
    notes = load_run(tmp_path / "logs").sync_points
    assert notes is not None
    assert len(notes) == 1


def test_a_second_setup_takes_them_along(tmp_path: Path) -> None:
    text = PROGRAM + 'logger.setup("moved", rank=0, world_size=2, console=False)\n' + END
    record(tmp_path, text)
    found = read_run_metadata(str(tmp_path / "moved/profile_rank_0.csv"))
    assert sorted({note.name.removeprefix("my_utils.") for note in found.notes}) == sorted(
        [*NAMES, "run_end"]
    )


def test_a_forked_child_does_not_say_what_its_parent_is(tmp_path: Path) -> None:
    text = PROGRAM + (
        "if os.fork() == 0:\n    steps(0, 600)\n    logger.close()\n    os._exit(0)\nos.wait()\n"
    )
    record(tmp_path, text + END)
    found = read_run_metadata(str(tmp_path / "logs/profile_rank_0.w1.csv"))
    assert found.is_there
    assert [note.name for note in found.notes] == ["my_utils.process"]


def test_the_first_part_of_an_older_recording_is_read(tmp_path: Path) -> None:
    """Parts of older versions do not repeat these rows."""
    parts = record(tmp_path, PROGRAM + END, keep=1 << 30)
    for part in parts[1:]:
        lines = part.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if ",repeated=1," not in line]
        part.write_text("".join(kept), encoding="utf-8")
    assert Recorded([str(tmp_path / "logs")]).members(RANK, "tp") == frozenset({0, 1})


def test_the_cost_does_not_depend_on_the_length_of_the_file(tmp_path: Path) -> None:
    (csv,) = record(tmp_path, PROGRAM.replace("32 << 10", "1 << 30") + END, keep=1 << 31)
    rows = csv.read_bytes()
    header, _, rest = rows.partition(b"\n")
    middle = b"".join(line for line in rest.splitlines(keepends=True) if b"my_utils." not in line)
    end = b"".join(rest.splitlines(keepends=True)[-20:])
    csv.write_bytes(header + b"\n" + rest + middle * 100 + end)
    assert csv.stat().st_size > 10 << 20

    def bytes_read() -> int:
        fields = Path("/proc/self/io").read_text(encoding="ascii").split()
        return int(fields[fields.index("rchar:") + 1])

    before = bytes_read()
    found = read_run_metadata(str(csv))
    assert bytes_read() - before < 1 << 20
    assert [note.name for note in found.notes].count("my_utils.sync") == 1
    assert found.named("my_utils.run_end")[-1] == {"error": "ValueError"}


def test_each_part_is_read_alone_by_the_original_converter(tmp_path: Path) -> None:
    """Its columns are as they were, and what a part repeats does not grow from part to part."""
    parts = record(tmp_path, PROGRAM + END, keep=1 << 30)
    sizes = []
    for part in parts[4:]:
        rows = profile_rows.read(part)
        copies = [row for row in rows if "repeated" in row.metadata and row.kind == "INSTANT"]
        sizes.append(len(copies))
    assert max(sizes) <= 8


def test_copies_are_left_out_where_all_parts_are_read(tmp_path: Path) -> None:
    record(tmp_path, PROGRAM + END, keep=1 << 30)
    seen: list[str] = []
    load_run(tmp_path / "logs", on_rank=lambda rank: seen.extend(one.name for one in rank.notes))
    names = Counter(name.removeprefix("my_utils.") for name in seen)
    once = ("process", "run", "workload", "sync", "bucket", "run_end")
    assert names == dict.fromkeys(once, 1) | {"group": 2}
