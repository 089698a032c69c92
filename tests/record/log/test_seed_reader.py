"""What the project writes is read by the converter that users of the first version copied: it takes
whatever is not a START for an end, and no end may come without its start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from my_utils.analysis.why import load_run

from ...conftest import RunPython
from ...support.seed_reader import Tracks, read_as_the_seed

NO_TORCH = pytest.mark.no_torch

EVENTS = """
import sys, threading
from my_utils import GlobalLogger, MyTimer

logger = GlobalLogger()
timer = MyTimer(tag="train, first")
timer.start("before setup")
timer.step()
logger.setup("logs", rank=int(sys.argv[1]), world_size=2, console=False)
timer.stop("before setup")

def work(steps):
    for step in range(steps):
        timer.set_step(step)
        with timer.time_stage("iter"):
            with timer.time_stage("a \\"quoted\\", name"):
                pass
            logger.instant("mark", {"path": "a,b"})
            logger.counter("loss", {"train": 0.25}, step=step)
            logger.async_start("request", step, step=step)
            logger.flow_start("send", step)
            logger.flow_end("send", step)
            logger.async_end("request", step, step=step)
            logger.log_profile_event(None, step, "own", "INSTANT", metadata="node_id=7,x=1")
        timer.step()

threads = [threading.Thread(target=work, args=(30,), name=f"worker {i}") for i in range(3)]
for thread in threads:
    thread.start()
work(30)
for thread in threads:
    thread.join()
timer.start("left open")
timer.step()
if len(sys.argv) > 2:
    import os, signal
    timer.start("not drained")
    os.kill(os.getpid(), signal.SIGKILL)
"""

ROTATED = """
import sys
from my_utils import GlobalLogger, MyTimer

logger = GlobalLogger()
logger.setup("logs", rank=0, console=False, max_csv_bytes=4000, keep_csv_bytes=int(sys.argv[1]))
timer = MyTimer(tag="train")
timer.start("run")
timer.step()
timer.start("epoch")
for step in range(60):
    timer.set_step(step)
    if step == 30:
        logger.set_time_offset(-5)
    with timer.time_stage("iter"), timer.time_stage("forward"):
        pass
    logger.instant("mark")
    timer.step()
logger.setup("elsewhere", rank=0, console=False)
timer.stop("epoch")
timer.stop("run")
"""

TWO_RANKS = """
import sys, time
from my_utils import GlobalLogger, MyTimer

rank, label = int(sys.argv[1]), sys.argv[2]
GlobalLogger().setup("logs", rank, 2, label, console=False)
timer = MyTimer(tag="train")
print("ready", flush=True)
sys.stdin.read()  # until both are
for step in range(20):
    timer.set_step(step)
    with timer.time_stage("iter"):
        with timer.time_stage("forward"):
            time.sleep(0.001)
        with timer.time_stage("backward"):
            time.sleep(0.001)
    GlobalLogger().counter("loss", 0.5)
    timer.step()
"""

TRAINING = """
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.ones(40, 4), batch_size=1)
for batch in data:
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
"""


def csvs(folder: Path) -> list[Path]:
    return sorted(folder.glob("profile_rank_*.csv"))


def complaints(tracks: Tracks) -> list[tuple[str, str, str]]:
    return [(row["event_name"], row["event_type"], row["step"]) for row in tracks.no_start]


@NO_TORCH
def test_threads_events_of_all_types_and_restarts(run_python: RunPython, tmp_path: Path) -> None:
    for attempt in range(3):
        done = run_python("-c", EVENTS, "0", *["killed"] * (attempt == 1))
        assert done.returncode == (-signal.SIGKILL if attempt == 1 else 0), done.stderr
    tracks = read_as_the_seed(csvs(tmp_path / "logs"))
    assert complaints(tracks) == []
    counts = {name: sum(one[0] == name for one in tracks.pairs) for name in ("iter", "mark", "own")}
    assert counts == {"iter": 360, "mark": 360, "own": 360}
    assert sum(one[0] == "my_utils.process" for one in tracks.pairs) == 3


@NO_TORCH
@pytest.mark.parametrize("keep", [0, 17_000])
def test_each_part_of_a_rotated_file_alone_and_all_together(
    run_python: RunPython, tmp_path: Path, keep: int
) -> None:
    done = run_python("-c", ROTATED, str(keep))
    assert done.returncode == 0, done.stderr
    parts = csvs(tmp_path / "logs")
    assert len(parts) > 2
    for files in ([part] for part in parts):
        tracks = read_as_the_seed(files)
        assert complaints(tracks) == [], files
        assert tracks.crossed == 0
    (moved,) = csvs(tmp_path / "elsewhere")
    tracks = read_as_the_seed([moved])
    assert complaints(tracks) == []
    assert {"epoch", "run"} <= {name for name, _, _ in tracks.pairs}
    assert complaints(read_as_the_seed([*parts, moved])) == []


@NO_TORCH
@pytest.mark.parametrize("label", ["", "Trainer"])
def test_two_ranks_of_one_host_together(tmp_path: Path, label: str) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS, str(rank), label],
            cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    for rank in ranks:
        assert rank.stdin is not None and rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    for rank in ranks:
        assert rank.stdin is not None and rank.stdout is not None
        rank.stdin.close()
        rank.stdout.close()
    assert [rank.wait() for rank in ranks] == [0, 0]
    tracks = read_as_the_seed(csvs(tmp_path / "logs"))
    assert complaints(tracks) == [] and tracks.crossed == 0
    host = socket.gethostname()
    wanted = {f"{label or host}-rank{rank}" for rank in range(2)}
    assert {machine for machine, _ in tracks.open} == wanted
    assert load_run(tmp_path / "logs").hosts == [host, host]


@pytest.mark.slow
def test_a_recorded_training(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "-o", "logs", "train.py"],
        cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tracks = read_as_the_seed(csvs(tmp_path / "logs"))
    assert complaints(tracks) == [] and tracks.crossed == 0
    names = [name for name, _, _ in tracks.pairs]
    assert names.count("backward") == 40 and {"memory", "my_utils.run"} <= set(names)
