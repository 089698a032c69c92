"""A child of fork keeps neither the files of its parent nor their locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from my_utils import _core

PARENT = """
import os, sys, time
from my_utils import _core

_core.open_output(log_dir=sys.argv[1])
timer = _core.Timer()
timer.start("forever")
child = os.fork()
if child == 0:
    print("forked", os.getpid(), flush=True)
    time.sleep(60)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_restart_takes_the_rank_over_while_a_forked_child_lives(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline().split()[1])
        parent.kill()
    try:
        report = _core.open_output(log_dir=tmp_path)
        _core.open_output(kind="memory")
        assert report["worker"] == 0
        assert report["adopted_journals"] == 1
    finally:
        os.kill(child, signal.SIGKILL)
