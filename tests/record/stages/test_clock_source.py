"""Where a sandbox hides /sys, stages are timed with the same counter as outside."""

from __future__ import annotations

import functools
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import ROOT

# The journal's header says which clock its ticks are of (journal_format.h: counter_clock).
PROGRAM = """
import pathlib, struct
from my_utils import GlobalLogger, MyTimer

GlobalLogger().setup("logs", console=False, rank=0, world_size=1)
timer = MyTimer()
with timer.time_stage("stage"):
    [journal] = [path for path in pathlib.Path("logs").iterdir() if path.suffix == ".journal"]
    print(*struct.unpack_from("I", journal.read_bytes(), 28))
"""


def clock_of_journal(folder: Path, before: str = "true") -> str:
    """Whether a process takes the counter, in a mount namespace where `before` has run."""
    folder.mkdir()
    python = f"PYTHONPATH={shlex.quote(str(ROOT))} {shlex.quote(sys.executable)}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", f"{before} && {python} -c {shlex.quote(PROGRAM)}"],
        cwd=folder, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@functools.cache
def why_not() -> str | None:
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    try:
        name = source.read_text(encoding="ascii").strip()
        if name not in ("tsc", "arch_sys_counter"):
            return f"the kernel keeps time with {name}"
        mount = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/sys"]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else f"/sys cannot be hidden here: {done.stderr.strip()}"


def test_a_process_without_sys_takes_the_counter(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    assert clock_of_journal(tmp_path / "outside") == "1"
    # An interruption at the wrong moment means the slower clock, which is right, too.
    tries = (clock_of_journal(tmp_path / str(n), "mount -t tmpfs tmpfs /sys") for n in range(5))
    assert "1" in tries
