"""Disks that are full, read-only or gone: one warning, a count, and the training goes on."""

from __future__ import annotations

import functools
import json
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython
from .programs import PREAMBLE, finished, rows_of, steps_of, told

FILL = """
def fill_the_disk():
    with open("disk/filler", "wb", buffering=0) as filler:
        size = 65536
        while size > 0:
            try:
                filler.write(bytes(size))
            except OSError:
                size //= 2
"""


@functools.cache
def why_no_mount() -> str | None:
    try:
        done = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError as error:
        return f"no unshare command: {error}"
    return None if done.returncode == 0 else f"no tmpfs can be mounted here: {done.stderr.strip()}"


def run_on_mount(
    folder: Path, options: str, text: str, before: str = "", after: str = ""
) -> subprocess.CompletedProcess[str]:
    """The program with its own tmpfs at `folder`/disk; `after` runs there at the end."""
    reason = why_no_mount()
    if reason is not None:
        pytest.skip(reason)
    (folder / "disk").mkdir()
    program = folder / "program.py"
    program.write_text(PREAMBLE + FILL + textwrap.dedent(text), encoding="utf-8")
    command = f"""
        mount -t tmpfs -o size=16m tmpfs disk && {before or "true"} || exit 99
        mount -o remount,{options} disk || exit 99
        PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)} program.py
        status=$?
        {after or "true"}
        exit $status
    """
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", command],
        cwd=folder, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_a_disk_that_fills_up_and_is_cleared_again(tmp_path: Path) -> None:
    done = run_on_mount(
        tmp_path,
        "rw",
        """
        import json
        logger.setup("disk/logs", console=False)
        stages(1000); timer.step()
        fill_the_disk()
        for number in range(5):
            stages(1000, first=1000 + 1000 * number); timer.step()
        full = _core.troubles()
        os.remove("disk/filler")
        stages(1000, first=6000); timer.step()
        logger.close()
        print(json.dumps({"full": full, "end": _core.troubles()}))
        """,
        after="cp -r disk/logs logs",
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["full"]["failed_writes"] > 0
    assert result["full"]["lost_rows"] > 0
    assert result["end"]["failed_writes"] == result["full"]["failed_writes"]
    assert len(told(done, tmp_path / "logs", "could not be written")) == 1
    steps = steps_of(tmp_path / "logs/profile_rank_0.csv")
    assert steps[:1000] == list(range(1000))
    assert steps[-1000:] == list(range(6000, 7000))
    written = len(rows_of(tmp_path / "logs/profile_rank_0.csv"))
    assert written + result["end"]["lost_rows"] == 2 * 7000


def test_a_thread_that_begins_on_a_full_disk_takes_nothing_down(tmp_path: Path) -> None:
    """There is no room for the part of the journal that it would record into."""
    done = run_on_mount(
        tmp_path,
        "rw",
        """
        logger.setup("disk/logs", console=False)
        stages(10); timer.step()
        fill_the_disk()
        def work():
            for number in range(100):
                stages(10)
                timer.step()
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        os.remove("disk/filler")
        last = threading.Thread(target=stages, args=(10,), kwargs={"name": "last"})
        last.start(); last.join()
        logger.close()
        """,
        after="cp -r disk/logs logs",
    )
    assert done.stdout == ""
    assert steps_of(tmp_path / "logs/profile_rank_0.csv", "last") == list(range(10))


def test_a_full_disk_at_the_beginning(tmp_path: Path) -> None:
    done = run_on_mount(
        tmp_path,
        "rw",
        """
        fill_the_disk()
        logger.setup("disk/logs", console=False)
        for number in range(20):
            stages(100); timer.step()
        logger.close()
        print("trained")
        """,
    )
    assert "trained" in done.stdout
    assert "No space left on device" in done.stderr
    assert len(done.stderr.splitlines()) <= 4


def test_a_mount_that_is_read_only(tmp_path: Path) -> None:
    done = run_on_mount(
        tmp_path,
        "ro",
        """
        logger.setup("disk/logs", console=False)
        stages(100); timer.step()
        assert len(_core.memory_rows().splitlines()) >= 200
        logger.setup("logs", console=False)
        """,
        before="mkdir disk/logs",
    )
    assert len([line for line in done.stderr.splitlines() if "Read-only file system" in line]) == 1
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(100))


def test_a_log_directory_that_is_deleted_in_the_middle(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = finished(
        run_python,
        """
        import json, shutil
        logger.setup("logs", console=False, max_csv_bytes=50_000)
        stages(10); timer.step()
        control = max(timed(stages, 100), timed(timer.step))
        os.rename("logs", "going")  # a heartbeat might come into it while it is emptied
        shutil.rmtree("going")
        waits = []
        for number in range(50):
            stages(100, first=100 * number)
            waits.append(timed(timer.step))
        logger.close()
        logger.setup("elsewhere", console=False)
        stages(10); logger.close()
        print(json.dumps({"control": control, "longest": sorted(waits)[-5], **_core.troubles()}))
        """,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["missing_csv"] == 1
    assert result["longest"] < max(0.5, 20 * result["control"])
    assert len(told(done, tmp_path / "logs", "deleted")) == 1
    assert not (tmp_path / "logs").exists()
    assert steps_of(tmp_path / "elsewhere/profile_rank_0.csv") == list(range(10))
