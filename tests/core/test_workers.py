"""Pools of processes do not outlast the process that they work for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import RunPython

pytestmark = pytest.mark.no_torch

KILLED = """
import multiprocessing, os, signal, sys, time
from concurrent.futures import ProcessPoolExecutor
from my_utils.core.process_end import end_with_parent

def wait_for_the_other(number):
    open(f"begun{number}", "w").close()
    while not os.path.exists(f"begun{1 - number}"):
        time.sleep(0.01)
    return number

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with ProcessPoolExecutor(2, context, end_with_parent) as pool:
        print(list(pool.map(wait_for_the_other, range(2))), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_they_end_when_it_is_killed(start: str, run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    done = run_python("killed.py", start)  # to the end of its output, which the workers hold too
    assert (done.returncode, done.stdout) == (-9, "[0, 1]\n"), done.stderr
