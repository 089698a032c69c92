"""Real file systems that are full or lose a file: the training ends as it would have.

On a copy-on-write file system a store into the mapped journal ends in SIGBUS when the disk is full,
whatever was reserved; on every other one when somebody cuts the file.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.loop_disks import run_on_disk
from .programs import finished, rows_of, run, steps_of, told

CSV = "logs/profile_rank_0.csv"

FULL = """
import json
logger.setup("disk/logs", console=False)
stages(1000); timer.step()
if len(sys.argv) > 1:  # shares the journal's blocks: from here on every store needs new ones
    subprocess.run(["btrfs", "-q", "subvolume", "snapshot", "disk", "disk/snapshot"], check=True)
fill_the_disk()
for number in range(1, 6):
    stages(1000, first=1000 * number); timer.step()
    sync_the_disk()
full = _core.troubles()
empty_the_disk()
stages(1000, first=6000); timer.step()
logger.close()
print(json.dumps({"full": full, "end": _core.troubles()}))
"""


def figures_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, int]]:
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    figures: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return figures


def check_rows(folder: Path, end: dict[str, int]) -> None:
    steps = steps_of(folder / CSV)
    assert steps[:1000] == list(range(1000))
    assert steps[-1000:] == list(range(6000, 7000))
    assert len(rows_of(folder / CSV)) + end["lost_rows"] == 2 * 7000


@pytest.mark.parametrize("kind", ["btrfs", "ext4", "xfs"])
def test_a_full_disk_ends_no_training(tmp_path: Path, kind: str) -> None:
    done = run_on_disk(tmp_path, kind, FULL, after="cp -r disk/logs logs")
    figures = figures_of(done)
    assert figures["full"]["failed_writes"] > 0
    check_rows(tmp_path, figures["end"])
    assert len(told(done, tmp_path / "logs", "could not be written")) == 1


def test_a_full_disk_whose_blocks_a_snapshot_shares_ends_no_training(tmp_path: Path) -> None:
    """What was reserved is of no use then: the stores of the journal find no room."""
    done = run_on_disk(tmp_path, "btrfs", FULL, "snapshot", after="cp -r disk/logs logs")
    figures = figures_of(done)
    assert figures["full"]["lost_journal"] == 1
    assert figures["end"]["lost_records"] == 0  # the page is copied before the store is repeated
    check_rows(tmp_path, figures["end"])
    assert len(told(done, tmp_path / "logs", "the journal could not grow")) == 1


CUT = """
import glob, json
how, size = sys.argv[1], int(sys.argv[2])
def user_handler(*_):
    print("the user's handler", flush=True)
if how == "faulthandler before": faulthandler.enable()
if how == "handler before": signal.signal(signal.SIGBUS, user_handler)
logger.setup("logs", console=False)
stages(1000); timer.step()
stages(50, name="lost")
if how == "faulthandler after": faulthandler.enable()
if how == "handler after": signal.signal(signal.SIGBUS, user_handler)
os.truncate(glob.glob("logs/*.journal")[0], size)
stages(1000, first=1000); timer.step()
def work():
    stages(10, name="of a thread"); timer.step()
thread = threading.Thread(target=work)
thread.start(); thread.join()
stages(10, name="named later")
logger.close()
print(json.dumps(_core.troubles()))
"""

MOMENTS = [
    "no handler",
    "faulthandler before",
    "faulthandler after",
    "handler before",
    "handler after",
]
BEFORE_RECORDS = 100_000  # bytes: the header stays, and names and records go


@pytest.mark.parametrize("size", [0, BEFORE_RECORDS])
@pytest.mark.parametrize("how", MOMENTS)
def test_a_journal_that_is_cut_ends_no_training(
    run_python: RunPython, tmp_path: Path, how: str, size: int
) -> None:
    done = finished(run_python, CUT, how, str(size))
    troubles = json.loads(done.stdout.splitlines()[-1])
    steps = steps_of(tmp_path / CSV)
    assert steps == list(range(2000))
    for name in ("of a thread", "named later"):
        assert steps_of(tmp_path / CSV, name) == list(range(10))
    lost = 50 - len(steps_of(tmp_path / CSV, "lost"))
    assert troubles["lost_journal"] == 1
    assert troubles["lost_records"] == lost == 50
    assert "count=50,reason=journal_lost" in (tmp_path / CSV).read_text()
    assert len(told(done, tmp_path / "logs", "the journal could not grow")) == 1
    assert not list((tmp_path / "logs").glob("*.journal"))


ENDS = {
    "a fault": "ctypes.string_at(foreign())",
    "a signal": "os.kill(os.getpid(), signal.SIGBUS)",
}
FOREIGN = """
import ctypes, mmap
def foreign():
    with open("short", "w+b") as file:
        file.truncate(4096)
        mapping = mmap.mmap(file.fileno(), 4096)
        file.truncate(0)
    foreign.kept = mapping
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))
how = sys.argv[1]
if how == "faulthandler before": faulthandler.enable()
if how == "handler before": signal.signal(signal.SIGBUS, signal.SIG_DFL)
logger.setup("logs", console=False)
stages(10); timer.step()
if how == "faulthandler after": faulthandler.enable()
if how == "faulthandler off":
    faulthandler.enable(); timer.step(); faulthandler.disable()
timer.step()  # the guard is in front again
"""


HOW = ["no handler", "faulthandler before", "faulthandler after", "faulthandler off"]


# faulthandler, once off, takes one signal that was sent for nothing; a fault comes again.
@pytest.mark.parametrize(
    ("how", "end"),
    [pair for pair in itertools.product(HOW, ENDS) if pair != ("faulthandler off", "a signal")],
)
def test_a_bus_error_that_is_not_the_journal_s_ends_the_process_as_ever(
    run_python: RunPython, tmp_path: Path, how: str, end: str
) -> None:
    done = run(run_python, FOREIGN + ENDS[end], how, timeout=60)
    assert done.returncode == -signal.SIGBUS, f"{done.returncode} {done.stderr}"
    traced = done.stderr.count("Fatal Python error: Bus error")
    assert traced == (how in ("faulthandler before", "faulthandler after"))


def test_a_handler_of_the_user_s_gets_the_signals_that_are_not_the_journal_s(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        """
        logger.setup("logs", console=False)
        signal.signal(signal.SIGBUS, lambda *_: print("mine", flush=True))
        for _ in range(3):
            timer.step()
            os.kill(os.getpid(), signal.SIGBUS)
        """,
    )
    assert done.stdout.split() == ["mine"] * 3
