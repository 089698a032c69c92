"""After a power loss each page of a file may be of another moment: no row of the CSV is taken back
or doubled, and what is not certain is marked and said."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from my_utils import _core

from ..conftest import RunPython
from ..support.loop_disks import run_on_disk
from .power_loss import BOOT_ID_AT, OTHER_BOOT, PAGE, SLOT
from .programs import run

pytestmark = pytest.mark.long_file

CSV = Path("logs/profile_rank_0.csv")
STAGES = 100

TWO_HALVES = """
import glob, sys
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
GlobalLogger().setup("logs", rank=0, world_size=1, console=False)
timer = MyTimer()
for half in range(2):
    for i in range(100 * half, 100 * half + 100):
        timer.set_step(i); timer.start("step%d" % i); timer.stop("step%d" % i); timer.step()
    print(half, flush=True); sys.stdin.readline()
"""

RESTART = 'logger.setup("logs", console=False)'


def ends_of(data: bytes) -> list[str]:
    return [line.split(",")[4] for line in data.decode().splitlines() if ",END," in line]


def lose_power(folder: Path, old_bytes: int, other_boot: bool) -> Path:
    """200 stages in the CSV, and a journal whose first bytes are those after 100. Its path."""
    victim = subprocess.Popen(
        [sys.executable, "-c", TWO_HALVES],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert victim.stdin is not None and victim.stdout is not None
    assert victim.stdout.readline() == "0\n"
    [journal] = (folder / "logs").glob("*.journal")
    with open(journal, "rb") as file:
        old = file.read(old_bytes)
    print(file=victim.stdin, flush=True)
    assert victim.stdout.readline() == "1\n"
    victim.kill()
    victim.wait()
    with open(journal, "r+b") as file:
        file.write(old)
    if other_boot:
        set_other_boot(journal)
    return journal


def set_other_boot(journal: Path) -> None:
    with open(journal, "r+b") as file:
        file.seek(BOOT_ID_AT)
        file.write(OTHER_BOOT)


def warnings_in(folder: Path) -> list[str]:
    text = (folder / "logs/rank_0.log").read_text()
    return re.findall(r"WARNING.*(?:power loss|cannot be read).*", text)


@pytest.mark.parametrize("other_boot", [False, True])
@pytest.mark.parametrize("old_bytes", [PAGE, 2 * PAGE, 16 * PAGE, 300 * PAGE])
def test_older_pages_of_the_journal_cost_no_row_of_the_csv(
    run_python: RunPython, tmp_path: Path, old_bytes: int, other_boot: bool
) -> None:
    lose_power(tmp_path, old_bytes, other_boot)
    before = (tmp_path / CSV).read_bytes()
    assert len(ends_of(before)) == 2 * STAGES
    done = run(run_python, RESTART)
    assert done.returncode == 0, done.stderr
    after = (tmp_path / CSV).read_bytes()
    assert after.startswith(before)
    assert ends_of(after) == ends_of(before)
    if other_boot or old_bytes == 2 * PAGE:  # others may be what a kill leaves
        assert len(warnings_in(tmp_path)) == 1
        assert f"reason={'other_boot' if other_boot else 'mixed_pages'}" in after.decode()


def kill_and_lose_csv(run_python: RunPython, folder: Path) -> tuple[Path, bytes]:
    """150 stages, of which the CSV on the disk has but some, and a journal of before the boot."""
    killed = run(
        run_python,
        """
        logger.setup("logs", console=False)
        stages(100); timer.step(); stages(50, first=100)
        timer.start("open at the end")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert killed.returncode == -signal.SIGKILL
    [journal] = (folder / "logs").glob("*.journal")
    set_other_boot(journal)
    data = (folder / CSV).read_bytes()
    return journal, data[: len(data) // 2]


@pytest.mark.parametrize("tail", [b"", bytes(3 * PAGE)], ids=["cut", "zeros"])
def test_what_only_the_journal_has_is_added_with_a_mark(
    run_python: RunPython, tmp_path: Path, tail: bytes
) -> None:
    _, left = kill_and_lose_csv(run_python, tmp_path)
    (tmp_path / CSV).write_bytes(left + tail)
    whole = left[: left.rindex(b"\n") + 1]

    done = run_python("-m", "my_utils.csv2trace", "--recover", "logs", "-o", "trace.json")
    assert done.returncode == 3, done.stderr  # what else there was is not known
    assert done.stderr.count("power loss") == 1, done.stderr
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert Counter(e["name"] for e in events if e["ph"] == "X")["stage"] == 150

    restarted = run(run_python, RESTART)
    assert restarted.returncode == 0, restarted.stderr
    after = (tmp_path / CSV).read_bytes()
    assert after.startswith(whole)
    added = after[len(whole) :].decode().splitlines()
    assert ends_of(after) == ["stage"] * 150
    assert Counter(line.split(",")[3] for line in added if ",END," in line).keys() >= {"149"}
    assert all("doubtful=1" in line for line in added if ",stage," in line)
    assert sum(",open at the end,START," in line for line in added) == 1
    assert not list((tmp_path / "logs").glob("*.journal*"))
    [warning] = warnings_in(tmp_path)
    assert "doubtful=1" in warning and "unreadable" not in warning


def test_live_says_that_a_journal_is_of_an_earlier_boot(
    run_python: RunPython, tmp_path: Path
) -> None:
    journal, _ = kill_and_lose_csv(run_python, tmp_path)
    with open(journal, "r+b") as file:
        file.seek(10 * PAGE)  # the names
        file.write(bytes(PAGE))
    done = run_python("-m", "my_utils", "live", "logs", "--once")
    assert done.stdout.count("from before this machine was started") == 1, done.stdout
    assert "open at the end" not in done.stdout


def test_names_that_did_not_reach_the_disk_are_not_guessed(
    run_python: RunPython, tmp_path: Path
) -> None:
    journal, left = kill_and_lose_csv(run_python, tmp_path)
    (tmp_path / CSV).write_bytes(left)
    strings = 2 * PAGE, (2 + 8) * PAGE + 1  # the index, and a bit of the names
    with open(journal, "r+b") as file:
        file.seek(strings[0])
        file.write(bytes(strings[1] - strings[0]))
    restarted = run(run_python, RESTART)
    assert restarted.returncode == 0, restarted.stderr
    after = (tmp_path / CSV).read_bytes()
    assert ends_of(after) == ends_of(left[: left.rindex(b"\n") + 1])
    assert [path.name for path in (tmp_path / "logs").glob("*.journal*")] == [
        f"{journal.name}.unreadable"
    ]
    [warning] = warnings_in(tmp_path)
    assert "unreadable" in warning


@pytest.mark.parametrize(
    ("count", "page", "left_least"),
    [(600, 3, 400), (600, 2 + 8 + 1, 400), (50, 2, 0)],
    ids=["entries", "bytes", "all entries"],
)
def test_a_name_is_not_cut_where_a_page_of_the_names_is_older(
    run_python: RunPython, tmp_path: Path, count: int, page: int, left_least: int
) -> None:
    """The boot is the same, and all else is what a kill leaves."""
    killed = run(
        run_python,
        """
        logger.setup("logs", console=False)
        for i in range(int(sys.argv[1])):
            timer.start("name %d" % i); timer.stop("name %d" % i)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(count),
    )
    assert killed.returncode == -signal.SIGKILL
    [journal] = (tmp_path / "logs").glob("*.journal")
    names = {f"name {number}" for number in range(count)}
    assert {line.split(",")[4] for line in stages_in(journal)} == names
    with open(journal, "r+b") as file:
        file.seek(page * PAGE)
        file.write(bytes(PAGE))
    left = stages_in(journal)
    assert left_least <= len(left) < count
    assert {line.split(",")[4] for line in left} <= names
    assert all("doubtful=1" in line for line in left)


def test_an_event_of_an_older_page_is_not_written_again(
    run_python: RunPython, tmp_path: Path
) -> None:
    """Where the ring has gone round, records that are in the CSV are behind the commit."""
    killed = run(
        run_python,
        """
        from my_utils import _core
        logger.setup("logs", console=False)
        for half in range(2):
            for i in range(20):
                _core.log_event("half %d" % half, "INSTANT", i, "i=%d" % i)
            half or timer.step()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert killed.returncode == -signal.SIGKILL
    [journal] = (tmp_path / "logs").glob("*.journal")
    data = bytearray(journal.read_bytes())
    first, second = (data.index(b"half %d" % half) // SLOT * SLOT - SLOT for half in range(2))
    length = 3 * 2 * SLOT  # of three events: a record and its text each
    data[second : second + length] = data[first : first + length]
    journal.write_bytes(data)
    rows = _core.recover_rows(journal)[2].decode()
    assert "half 0" not in rows
    assert rows.count(",half 1,INSTANT,") == 17


def stages_in(journal: Path) -> list[str]:
    rows = _core.recover_rows(journal)[2].decode()
    return [line for line in rows.splitlines() if ",END," in line and ",my_utils." not in line]


def test_a_journal_without_its_first_page_is_kept_and_said(
    run_python: RunPython, tmp_path: Path
) -> None:
    journal, _ = kill_and_lose_csv(run_python, tmp_path)
    with open(journal, "r+b") as file:
        file.write(bytes(PAGE))
    content = journal.read_bytes()
    restarted = run(run_python, RESTART)
    assert restarted.returncode == 0, restarted.stderr
    assert journal.with_name(f"{journal.name}.unreadable").read_bytes() == content
    [warning] = warnings_in(tmp_path)
    assert "unreadable" in warning


@pytest.mark.parametrize("left", [0, 1], ids=["all zeros", "some rows"])
def test_rows_of_a_csv_that_lost_its_beginning_were_not_removed_by_rotation(
    run_python: RunPython, tmp_path: Path, left: int
) -> None:
    """Its older parts were: a restart writes the header over the zeros before it looks."""
    killed = run(
        run_python,
        """
        from my_utils import _core
        _core.open_output(log_dir="logs", io="inline", max_csv_bytes=20_000)
        for i in range(20):
            stages(20, first=20 * i); timer.step()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert killed.returncode == -signal.SIGKILL
    [journal] = (tmp_path / "logs").glob("*.journal")
    set_other_boot(journal)
    parts = list((tmp_path / "logs").glob("*.part*.csv"))
    assert len(parts) > 1
    newest = max(parts, key=os.path.getmtime).read_bytes()
    for part in parts:
        part.unlink()
    path = tmp_path / CSV
    kept = [row for row in newest.splitlines(True) if b",stage,END," in row][-1:]
    path.write_bytes(bytes(path.stat().st_size) + b"".join(kept * left))
    assert len(stages_in(journal)) == 400 - left
    done = run(run_python, RESTART)
    assert done.returncode == 0, done.stderr
    assert ends_of(path.read_bytes().replace(b"\0", b"")) == ["stage"] * 400


@pytest.mark.parametrize("zeros", [PAGE, 1 << 20])
def test_a_csv_that_begins_with_zeros_goes_on(
    run_python: RunPython, tmp_path: Path, zeros: int
) -> None:
    killed = run(run_python, 'logger.setup("logs", console=False); stages(100); timer.step()')
    assert killed.returncode == 0, killed.stderr
    path = tmp_path / CSV
    rest = path.read_bytes()[zeros:]
    path.write_bytes(bytes(zeros) + rest)
    done = run(run_python, 'logger.setup("logs", console=False); stages(7, name="after")')
    assert done.returncode == 0, done.stderr
    data = path.read_bytes()
    assert data.startswith(b"timestamp_unix,")
    assert rest in data
    ends = ends_of(data.replace(b"\0", b""))
    assert ends.count("after") == 7
    done = run_python("-m", "my_utils.csv2trace", str(path), "-o", "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    drawn = Counter(e["name"] for e in events if e["ph"] == "X")
    assert (drawn["after"], drawn["stage"]) == (7, ends.count("stage")), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "images"),
    [
        ("1", 30),
        *(pytest.param(str(seed), 2500, marks=pytest.mark.thorough) for seed in range(2, 6)),
    ],
)
def test_no_image_loses_doubles_or_renames_a_row(
    run_python: RunPython, tmp_path: Path, seed: str, images: int
) -> None:
    done = run_python(
        "-m", "tests.faults.power_loss", str(images), seed, str(tmp_path / "images"), timeout=3500
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["images"] == images
    assert result["said"] > images / 3
    assert result["rows added"] > images


CUTS = """
faulthandler.cancel_dump_traceback_later()
from tests.faults import power_cuts
power_cuts.main(int(sys.argv[1]), sys.argv[2], os.environ["IMAGE"])
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("cuts", [5, pytest.param(100, marks=pytest.mark.thorough)])
def test_no_power_cut_on_a_real_disk_does(tmp_path: Path, kind: str, cuts: int) -> None:
    done = run_on_disk(tmp_path, kind, CUTS, str(cuts), "1", timeout=3500)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["cuts"] == cuts
    assert result["rows added"] > 0
