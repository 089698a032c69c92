"""File systems without flock: processes of one rank find another way to keep out of each other's
files, and what a dead one held is free again."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..fakes import compile_fake
from .programs import finished, run, steps_of

SECOND = """
from my_utils import GlobalLogger, MyTimer
logger, timer = GlobalLogger(), MyTimer()
logger.setup("logs", console=False)
for step in range(200):
    timer.set_step(step); timer.start("stage"); timer.stop("stage"); timer.step()
"""


@pytest.fixture(scope="session")
def no_locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("no_locks.c", tmp_path_factory.mktemp("fake") / "libnolocks.so")


@pytest.mark.parametrize("how", ["flock", "all"])
def test_two_processes_of_a_rank_write_two_files(
    run_python: RunPython, tmp_path: Path, no_locks: Path, how: str
) -> None:
    env = {"LD_PRELOAD": str(no_locks), "NO_LOCKS": how}
    done = finished(
        run_python,
        f"""
        import subprocess
        logger.setup("logs", console=False)
        stages(100); timer.step()
        text = "from my_utils import GlobalLogger, MyTimer\\\\nlogger = GlobalLogger()\\\\n"
        subprocess.run([sys.executable, "-c", {SECOND!r}], check=True)
        stages(100, first=100)
        """,
        env=env,
    )
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(200))
    assert steps_of(tmp_path / "logs/profile_rank_0.w1.csv") == list(range(200))
    assert "another living process" in done.stderr + (tmp_path / "logs/rank_0.w1.log").read_text()
    assert not list((tmp_path / "logs").glob("*.claim*"))


def test_the_claim_of_a_killed_process_is_taken_over(
    run_python: RunPython, tmp_path: Path, no_locks: Path
) -> None:
    env = {"LD_PRELOAD": str(no_locks), "NO_LOCKS": "all"}
    killed = run(
        run_python,
        """
        logger.setup("logs", console=False)
        stages(100); timer.step(); stages(100, first=100)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        env=env,
    )
    assert killed.returncode == -9
    assert list((tmp_path / "logs").glob("*.claim"))
    finished(run_python, "logger.setup('logs', console=False); stages(1, first=200)", env=env)
    assert steps_of(tmp_path / "logs/profile_rank_0.csv") == list(range(201))
    assert not list((tmp_path / "logs").glob("*.claim*"))


def test_a_csv_that_may_not_be_written_is_left_for_the_next_name(
    run_python: RunPython, tmp_path: Path
) -> None:
    if os.geteuid() != 0 or shutil.which("chattr") is None:
        pytest.skip("only root can make a file that root may not write")
    csv = tmp_path / "logs/profile_rank_0.csv"
    finished(run_python, "logger.setup('logs', console=False); stages(10)")
    before = csv.read_bytes()
    subprocess.run(["chattr", "+i", str(csv)], check=True)
    try:
        finished(run_python, "logger.setup('logs', console=False); stages(10, first=10)")
    finally:
        subprocess.run(["chattr", "-i", str(csv)], check=True)
    assert csv.read_bytes() == before
    assert steps_of(tmp_path / "logs/profile_rank_0.w1.csv") == list(range(10, 20))
