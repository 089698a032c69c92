"""Windows of steps where a process is killed, and damaged files of them."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from my_utils import _core
from my_utils.analysis.verdict.window_files import WIDTHS

from ..conftest import RunPython
from ..support.windows import windows_in
from .programs import run

pytestmark = pytest.mark.no_torch

KILLS = 12


def _record_for_ever(logs: Path, told: int) -> None:
    """In a child: steps from 0 on; `told` gets a byte at the 150th."""

    class Timer(_core.Timer):
        __slots__ = ()

    _core.open_output(log_dir=str(logs), machine="a", windows_bytes=1 << 20)
    timer = Timer()
    for step in range(10**9):
        timer.set_step(step)
        timer.start("work")
        timer.stop("work")
        timer.step()
        if step == 150:
            os.write(told, b".")


@pytest.mark.parametrize("seed", [1])
def test_a_kill_leaves_whole_windows_one_after_the_other(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    logs = tmp_path / "logs"
    for _ in range(KILLS):
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _record_for_ever(logs, writes)
            finally:
                os._exit(1)
        os.close(writes)
        assert os.read(reads, 1) == b"."
        time.sleep(chance.uniform(0, 0.03))  # the moment of the kill, which may be any
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
    found = windows_in(logs)
    attempts = found.windows["attempt"].tolist()
    assert sorted(set(attempts)) == list(range(1, KILLS + 1))
    assert attempts == sorted(attempts)
    for attempt in set(attempts):
        of_attempt = found.windows[found.windows["attempt"] == attempt]
        assert of_attempt["first_step"].tolist() == list(range(0, 100 * len(of_attempt), 100))
        assert set(of_attempt["steps"].tolist()) == {100}
    assert {found.paths[path] for path in np.unique(found.cells["path"])} == {"work"}
    for width in WIDTHS:
        result = _core.read_windows([(str(logs / f"rank_0.{width}.windows"), 0)])
        assert (result["damaged_bytes"], result["errors"]) == (0, [])


def test_damaged_files_are_read_as_far_as_they_are_whole(
    run_python: RunPython, tmp_path: Path
) -> None:
    done = run(
        run_python,
        """
        logger.setup("logs", console=False)
        for step in range(1_000):
            stages(1, first=step)
            timer.step()
        """,
    )
    assert done.returncode == 0, done.stderr
    path = tmp_path / "logs" / "rank_0.100.windows"
    whole = path.read_bytes()
    chance = random.Random(3)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.randint(len(data) // 2, len(data))])
        result = _core.read_windows([(str(path), chance.choice((0, 1000)))])
        assert len(result["windows"]) <= 96 * 10
        assert result["errors"] == []
    path.write_bytes(b"")
    assert _core.read_windows([(str(path), 0)])["windows"] == b""
    path.unlink()
    os.mkfifo(path)  # another user may put one there
    assert _core.read_windows([(str(path), 0)])["errors"]


def test_a_full_disk_costs_windows_and_nothing_else(run_python: RunPython, tmp_path: Path) -> None:
    """The file of windows cannot grow: one warning, a count, and the CSV has all rows."""
    done = run(
        run_python,
        """
        logger.setup("logs")
        os.mkdir("logs/rank_0.100.windows")
        for step in range(500):
            stages(1, first=step)
            timer.step()
        logger.flush()
        print(_core.troubles()["failed_windows"], _core.troubles()["lost_rows"])
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", "0"]
    assert done.stderr.count("windows of steps could not be written") == 1
