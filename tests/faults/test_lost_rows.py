"""Rows that could not be written: the run's files say how many and of which steps, and every reader
passes it on and judges only steps that are whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.verdict.load import load_run

from ..conftest import ROOT, RunPython
from ..support import profile_rows
from .programs import finished
from .test_disk import run_on_mount

STEPS = """
import json
def steps(first, end):
    for step in range(first, end):
        timer.set_step(step)
        with timer.time_stage("step"):
            with timer.time_stage("forward"):
                pass
        timer.step()
def heartbeat(logs):
    with open(f"{logs}/rank_{logger.rank}.heartbeat.json") as file:
        return json.load(file)
"""

# Each write into a CSV fails while the file exists.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    char link[64], path[4096];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof(path));
    if (length > 4 && memcmp(path + length - 4, ".csv", 4) == 0 && access("fails", F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "pwrite64");
    }
    return real(fd, bytes, size, offset);
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off64_t offset) {
    return pwrite64(fd, bytes, size, offset);
}
"""


@pytest.fixture
def shim(tmp_path: Path) -> dict[str, str]:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    (tmp_path / "shim.c").write_text(SHIM, encoding="ascii")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", "shim.so", "shim.c", "-ldl"], cwd=tmp_path, check=True
    )
    return {**os.environ, "LD_PRELOAD": str(tmp_path / "shim.so")}


def my_utils(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "my_utils", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def lost_in(csv: Path) -> list[tuple[int, int | None, int | None]]:
    """Count, first and last step of each row that says so."""
    found = []
    for row in profile_rows.read(csv):
        if row.name == "my_utils.dropped" and row.kind == "INSTANT":
            assert row.metadata["reason"] == "not_written"
            first, last = (
                int(row.metadata[key]) if key in row.metadata else None
                for key in ("first_step", "last_step")
            )
            found.append((int(row.metadata["count"]), first, last))
    return found


def cut_steps(csv: Path, count: int) -> set[int]:
    """Those of `count` steps that have not all of their four rows."""
    rows = Counter(row.step for row in profile_rows.of_stages(profile_rows.read(csv)))
    return {step for step in range(count) if rows[step] != 4}


def steps_in(lost: list[tuple[int, int | None, int | None]]) -> set[int]:
    return {
        step
        for _, first, last in lost
        if first is not None and last is not None
        for step in range(first, last + 1)
    }


def check_readers(folder: Path, logs: str, count: int, cut: set[int]) -> None:
    steps = load_run(folder / logs).steps.tolist()
    assert not cut & set(steps)
    sentence = f"rank 0 has {count} records that were lost during the run: steps "
    trace = my_utils("trace", logs, cwd=folder)
    assert trace.returncode == 3, trace.stderr
    assert f"({count} rows)" in trace.stderr
    why = my_utils("why", logs, cwd=folder).stdout
    assert " ".join(why.split()).count(sentence) == 1, why
    report = json.loads(my_utils("report", logs, "--json", cwd=folder).stdout)
    assert any(text.startswith(sentence) for text in report["problems"])
    assert report["ranks"][0]["dropped"] == count
    assert not cut & {row["step"] for row in report["steps"]}
    diff = my_utils("diff", logs, logs, cwd=folder).stdout
    assert sentence in " ".join(diff.split()), diff
    live = my_utils("live", logs, "--once", cwd=folder).stdout
    assert f"lost records: {count} of rank 0" in live


FULL = (
    STEPS
    + """
logger.setup("disk/logs", rank=0, console=False)
steps(0, 100)
fill_the_disk()
steps(100, 200)
"""
)


@pytest.mark.slow
def test_a_full_disk_that_has_space_again(tmp_path: Path) -> None:
    done = run_on_mount(
        tmp_path,
        "rw",
        FULL
        + """
full = heartbeat("disk/logs"), _core.troubles()["lost_rows"]
os.remove("disk/filler")
steps(200, 300)
logger.close()
print(json.dumps([*full, _core.troubles()["lost_rows"], heartbeat("disk/logs")]))
""",
        after="cp -r disk/logs logs",
    )
    full, lost, lost_at_end, ended = json.loads(done.stdout.splitlines()[-1])
    assert full["dropped"] == full["lost_rows"] == lost == lost_at_end > 300
    assert full["lost_steps"][-1][1] == 199
    assert full["sequence"] == full["end"]
    assert ended["lost_rows"] == lost
    assert ended["lost_steps"] == []
    csv = tmp_path / "logs/profile_rank_0.csv"
    said = lost_in(csv)
    assert sum(count for count, _, _ in said) == lost
    cut = cut_steps(csv, 300)
    assert cut == steps_in(said)
    assert cut <= set(range(100, 200))
    check_readers(tmp_path, "logs", lost, cut)


@pytest.mark.slow
def test_the_files_of_the_next_setup_have_lost_nothing(tmp_path: Path) -> None:
    run_on_mount(
        tmp_path,
        "rw",
        FULL
        + """
logger.setup("next", rank=0, console=False)
steps(200, 300)
logger.close()
assert _core.troubles()["lost_rows"] > 0
""",
    )
    ended = json.loads((tmp_path / "next/rank_0.heartbeat.json").read_text())
    assert (ended["dropped"], ended["lost_rows"], ended["lost_steps"]) == (0, 0, [])
    assert lost_in(tmp_path / "next/profile_rank_0.csv") == []
    trace = my_utils("trace", "next", "-o", "trace.json", cwd=tmp_path)
    assert trace.returncode == 0 and "lost" not in trace.stderr, trace.stderr


@pytest.mark.slow
def test_a_disk_that_stays_full(tmp_path: Path) -> None:
    """The heartbeat alone knows it."""
    done = run_on_mount(
        tmp_path,
        "rw",
        FULL
        + """
logger.close()
print(json.dumps([_core.troubles()["lost_rows"], heartbeat("disk/logs")]))
""",
        after="cp -r disk/logs logs",
    )
    lost, ended = json.loads(done.stdout.splitlines()[-1])
    assert ended["closed"]
    assert ended["lost_rows"] == lost
    csv = tmp_path / "logs/profile_rank_0.csv"
    assert sum(count for count, _, _ in lost_in(csv)) < lost
    check_readers(tmp_path, "logs", lost, cut_steps(csv, 200))


@pytest.mark.slow
def test_a_disk_that_fails_again_and_again(
    run_python: RunPython, tmp_path: Path, shim: dict[str, str]
) -> None:
    done = finished(
        run_python,
        STEPS
        + """
logger.setup("logs", rank=0, console=False, max_csv_bytes=60_000)
for first in range(0, 600, 100):
    steps(first, first + 50)
    open("fails", "w").close()
    steps(first + 50, first + 70)
    assert heartbeat("logs")["lost_steps"] == [[first + 50, first + 69]], heartbeat("logs")
    os.remove("fails")
    steps(first + 70, first + 100)
logger.close()
print(_core.troubles()["lost_rows"])
""",
        env=shim,
        cwd=tmp_path,
    )
    parts = sorted((tmp_path / "logs").glob("profile_rank_0*.csv"))
    assert len(parts) > 1
    said = [one for part in parts for one in lost_in(part)]
    assert sorted(said, key=lambda one: one[1] or 0) == [
        (80, first + 50, first + 69) for first in range(0, 600, 100)
    ]
    assert int(done.stdout) == 480
    check_readers(tmp_path, "logs", 480, steps_in(said))


@pytest.mark.parametrize("name", ["forward", "for\nward"])
def test_one_write_of_many_steps_loses_all_of_them(
    run_python: RunPython, tmp_path: Path, shim: dict[str, str], name: str
) -> None:
    """As the writes of `my_utils run` are. A line end may be in a name."""
    done = finished(
        run_python,
        STEPS
        + """
logger.setup("logs", rank=0, console=False)
def one_write(first, end):
    stages(end - first, sys.argv[1], first)
    timer.step()
one_write(0, 10)
open("fails", "w").close()
one_write(10, 30)
one_write(30, 40)
print(json.dumps(heartbeat("logs")))
os.remove("fails")
one_write(40, 50)
logger.close()
""",
        name,
        env=shim,
        cwd=tmp_path,
    )
    beat = json.loads(done.stdout)
    assert (beat["lost_rows"], beat["lost_steps"]) == (60, [[10, 39]])
    assert lost_in(tmp_path / "logs/profile_rank_0.csv") == [(60, 10, 39)]


def test_a_stage_that_is_open_meanwhile_has_its_start_again(
    run_python: RunPython, tmp_path: Path, shim: dict[str, str]
) -> None:
    finished(
        run_python,
        STEPS
        + """
logger.setup("logs", rank=0, console=False)
steps(0, 10)
open("fails", "w").close()
outer = MyTimer(tag="outer")
outer.start("around")
steps(10, 20)
os.remove("fails")
steps(20, 30)
outer.stop("around")
logger.close()
""",
        env=shim,
        cwd=tmp_path,
    )
    rows = profile_rows.of_stages(profile_rows.read(tmp_path / "logs/profile_rank_0.csv"))
    around = [row.kind for row in rows if row.name == "around"]
    assert around == ["START", "END"]
    trace = my_utils("trace", "logs", "-o", "trace.json", cwd=tmp_path)
    assert "began before" not in trace.stderr, trace.stderr


def test_another_timer_in_another_step_costs_no_steps_between(
    run_python: RunPython, tmp_path: Path, shim: dict[str, str]
) -> None:
    finished(
        run_python,
        STEPS
        + """
logger.setup("logs", rank=0, console=False)
other = MyTimer(tag="loader")
def loading():
    with other.time_stage("read"):
        pass
    other.step()
steps(0, 500)
open("fails", "w").close()
steps(500, 510)
thread = threading.Thread(target=loading)
thread.start(); thread.join()
os.remove("fails")
steps(510, 600)
logger.close()
""",
        env=shim,
        cwd=tmp_path,
    )
    said = lost_in(tmp_path / "logs/profile_rank_0.csv")
    assert steps_in(said) - set(range(500, 510)) <= {0, 1}
    assert len(load_run(tmp_path / "logs").steps) >= 588


def test_steps_that_one_rank_lost_are_judged_of_none(
    run_python: RunPython, tmp_path: Path, shim: dict[str, str]
) -> None:
    program = (
        STEPS
        + """
logger.setup("logs", rank=int(sys.argv[1]), world_size=2, console=False)
steps(0, 100)
if sys.argv[1] == "1":
    open("fails", "w").close()
steps(100, 120)
if sys.argv[1] == "1":
    os.remove("fails")
steps(120, 200)
logger.close()
"""
    )
    for rank in ("0", "1"):
        finished(run_python, program, rank, env=shim, cwd=tmp_path)
    run = load_run(tmp_path / "logs")
    assert run.steps.tolist() == [*range(100), *range(120, 200)]
    assert run.losses == [
        "rank 1 has 80 records that were lost during the run: steps 100:120 are left out"
    ]


def test_a_heartbeat_that_is_written_over_is_read_whole(tmp_path: Path) -> None:
    """Readers see one beat or another, never half of each."""
    program = (
        "import sys, threading\n"
        "from my_utils.logger import GlobalLogger\n"
        "from my_utils.utils import MyTimer\n"
        "GlobalLogger().setup('logs', rank=0, console=False)\n"
        "timer = MyTimer()\n"
        "for step in range(10):\n"
        "    timer.set_step(step); timer.start('a'); timer.stop('a'); timer.step()\n"
        "print('there', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "there\n"
        path = tmp_path / "logs/rank_0.heartbeat.json"
        inode, seen = path.stat().st_ino, set[int]()
        while len(seen) < 3:
            beat: dict[str, Any] = json.loads(path.read_bytes())
            assert beat["sequence"] == beat["end"]
            seen.add(beat["sequence"])
        assert path.stat().st_ino == inode
        assert path.stat().st_size == 4096
        process.stdin.close()


@pytest.mark.parametrize(
    "command", [["trace", "logs", "-o", "out.json"], ["why", "logs", "--json"]]
)
def test_a_heartbeat_that_cannot_be_read_is_named(
    run_python: RunPython, tmp_path: Path, command: list[str]
) -> None:
    """It may be all that knows of lost rows."""
    finished(run_python, "logger.setup('logs', console=False); stages(30); timer.step()")
    heartbeat = tmp_path / "logs/rank_0.heartbeat.json"
    heartbeat.write_bytes(heartbeat.read_bytes()[:100])
    done = run_python("-m", "my_utils", *command)
    assert "logs/rank_0.heartbeat.json: damaged or cut short" in done.stdout + done.stderr
