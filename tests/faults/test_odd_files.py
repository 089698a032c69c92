"""Among the files of a run one that is not a regular file, or holds what no writer writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from my_utils.run.folder import write_run_file

from ..conftest import RunPython
from ..support.variants import gate_runs
from .programs import finished, run, steps_of

CHILD = Path(__file__).with_name("odd_files.py")
RANK = """
logger.setup(sys.argv[1], rank={rank}, world_size={world_size}, console=False, io="inline")
stages(30, "of_rank_{rank}")
open(f"{{sys.argv[2]}}/begun{rank}", "x")
while len(os.listdir(sys.argv[2])) < {world_size}:
    time.sleep(0.01)
stages(30, "of_rank_{rank}", 30)
if {rank} == 2:
    os.kill(os.getpid(), signal.SIGKILL)
"""

# The statuses that may come, and what the other files say, where it is printed.
COMMANDS: dict[str, tuple[set[int], str]] = {
    "why {} --json": ({0, 3, 4}, ""),
    "report {} --json": ({0}, "of_rank_1"),
    "report {} -o {}/out.html": ({0}, ""),
    "diff {} {} --json": ({0}, "of_rank_1"),
    "live {} --once --json": ({3}, "rank_1"),
    "live {} --hung 5 --stacks --json": ({0, 3}, "rank_1"),
    "trace {} --recover -o {}/out.json": ({0, 3}, "of_rank_1"),
    "timeline {} --steps 0:9 --json": ({0}, "of_rank_1"),
}


def write_run(run_python: RunPython, folder: Path) -> None:
    """Of two ranks that ended well, and of one that was killed."""
    (begun := folder.with_name("begun")).mkdir()

    def rank_ends(rank: int) -> int:
        text = RANK.format(rank=rank, world_size=3)
        return run(run_python, text, str(folder), str(begun)).returncode

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(rank_ends, range(3))) == [0, 0, -9]
    write_run_file(folder, {"command": ["train.py"], "world_size": 3})


@pytest.mark.slow
@pytest.mark.parametrize("command", gate_runs(("report {} --json",), COMMANDS))
def test_a_command_passes_an_odd_file_over(
    command: str, run_python: RunPython, tmp_path: Path
) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    write_run(run_python, tmp_path / "run")
    allowed, others = COMMANDS[command]
    done = run_python(str(CHILD), str(tmp_path / "run"), str(tmp_path), *command.split())
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    assert {case["file"] for case in cases} >= {"profile_rank_0.csv", "run.json"}
    wrong = [
        case
        for case in cases
        if case["status"] not in allowed or "Traceback" in case["err"] or others not in case["out"]
    ]
    assert not wrong, "\n".join(f"{str(case)[:300]}\n{case['err'][-300:]}" for case in wrong)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize(
    "name",
    [
        "captures",
        "my_utils.control.json",
        "profile_rank_0.csv",
        "profile_rank_0.part0.csv",
        "rank_0.7.7.journal",
        "rank_0.7.7.journal-ref",
        "rank_0.heartbeat.json",
        "rank_0.heartbeat.json.tmp",
        "rank_0.log",
        "run.json",
    ],
)
def test_a_training_passes_an_odd_file_over(
    name: str, make: Callable[[Path], None], run_python: RunPython, tmp_path: Path
) -> None:
    make(tmp_path / name)
    (begun := tmp_path.parent / f"{tmp_path.name}_begun").mkdir()
    text = RANK.format(rank=0, world_size=1)
    finished(run_python, text, str(tmp_path), str(begun))
    (csv,) = (path for path in tmp_path.glob("profile_*.csv") if path.is_file())
    assert steps_of(csv, "of_rank_0") == list(range(60))
