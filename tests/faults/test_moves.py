"""A process that moves to another log directory loses nothing, wherever its journal lies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import ROOT, RunPython
from ..support.loop_disks import need_root

pytestmark = pytest.mark.no_torch

NOT_MOUNTED = 99

# The mount goes with the namespace, and its server with the script.
MOUNTED = f"""
mkdir real mount
bindfs -f real mount &
until mountpoint -q mount; do kill -0 $! || exit {NOT_MOUNTED}; sleep 0.02; done
"$@"; status=$?
kill $!
exit $status
"""


def check(figures: dict[str, Any]) -> None:
    assert figures["wrong"] == []
    assert figures["kills"] > figures["calls"] > 20


def ways(*others: tuple[str, str]) -> pytest.MarkDecorator:
    """Where the journal lies before and after."""
    return pytest.mark.parametrize(("before", "after"), others)


@pytest.mark.thorough
@pytest.mark.timeout(400)
@ways(("setting", "setting"), ("beside", "beside"), ("beside", "setting"), ("setting", "beside"))
def test_a_kill_before_or_after_a_call_of_a_move_loses_and_doubles_nothing(
    run_python: RunPython, tmp_path: Path, failing_calls: Path, before: str, after: str
) -> None:
    done = run_python(
        "-m", "tests.faults.move_victims", str(tmp_path), before, after,
        env={"LD_PRELOAD": str(failing_calls), "PYTHONPATH": str(ROOT)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    check(figures)
    folders = [Path(journal).parent.name for journal in figures["journals"]]
    names = {"beside": ["logs0", "logs1"], "setting": ["journals", "journals"]}
    assert folders == [names[before][0], names[after][1]]


@pytest.mark.thorough
@pytest.mark.timeout(400)
@ways(("mount", "mount"), ("beside", "mount"), ("mount", "beside"))
def test_so_does_a_move_on_a_file_system_that_is_not_local(
    tmp_path: Path, failing_calls: Path, before: str, after: str
) -> None:
    if shutil.which("bindfs") is None:
        pytest.skip("there is no bindfs (Debian's package of that name)")
    need_root("unshare")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNTED, "sh", "env", f"LD_PRELOAD={failing_calls}",
         sys.executable, "-m", "tests.faults.move_victims", ".", before, after],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode == NOT_MOUNTED or done.stderr.startswith("unshare:"):
        pytest.skip(f"this machine mounts no bindfs: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    check(figures)
    for kind, journal in zip((before, after), figures["journals"], strict=True):
        assert journal.startswith("/dev/shm/") == (kind == "mount")
