"""What the host took from each iteration, beside what the script itself measures."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..support.profile_rows import Row, read
from ..support.ranks import ROOT

pytestmark = pytest.mark.timeout(300)

# Iterations of all kinds: a collection, work, sleep, and nothing of these.
SCRIPT = """
import gc, json, sys, time
import torch

torch.set_num_threads(1)
gc.disable()
net = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
kept = [[number] for number in range(300_000)]
collected = 0.0

def measure(phase, info):
    global collected
    collected += time.perf_counter() if phase == "stop" else -time.perf_counter()

gc.callbacks.append(measure)
measured = []
for number in range(int(sys.argv[1])):
    measured.append((time.thread_time(), collected))
    net(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    if number % 4 == 1:
        gc.collect()
    if number % 4 == 2:
        until = time.thread_time() + 0.03
        while time.thread_time() < until:
            pass
    if number % 4 == 3:
        time.sleep(0.03)
    time.sleep(float(sys.argv[2]))
print(json.dumps(measured))
"""


def run(script: str, folder: Path, iterations: int, pause_s: float) -> tuple[Any, list[Row]]:
    """What the script measured before each iteration, and the rows of the host."""
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "train.py",
         str(iterations), str(pause_s)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [row for row in read(folder / "logs/profile_rank_0.csv") if row.name == "host"]
    assert {row.kind for row in rows} == {"COUNTER"}
    return json.loads(done.stdout), rows


@pytest.mark.thorough
def test_what_each_iteration_took(tmp_path: Path) -> None:
    measured, rows = run(SCRIPT, tmp_path, 24, 0.002)
    # The first reading is that before iteration 1, and the last iteration has no next one.
    assert [row.step for row in rows] == list(range(1, 23))
    collected_us = 0
    for row in rows[2:]:  # the root modules are known from step 1 on
        took = {key: int(value) for key, value in row.metadata.items()}
        (cpu, _), (cpu_then, _) = measured[row.step : row.step + 2]
        collected_us += took["gc2_us"]
        assert took["cpu_us"] == pytest.approx(1e6 * (cpu_then - cpu), rel=0.1, abs=1000)
        assert took["gc0_us"] == took["gc1_us"] == 0
        assert (took["gc2_us"] > 0) == (row.step % 4 == 1)
        assert row.step % 4 == 1 or (took["cpu_us"] > 30_000) == (row.step % 4 == 2)
    # The two do not look at the clock at the same time, and the thread may be put off in between.
    assert collected_us == pytest.approx(1e6 * (measured[23][1] - measured[3][1]), rel=0.2)


@pytest.mark.thorough
def test_short_iterations_share_a_row(tmp_path: Path) -> None:
    _, rows = run(SCRIPT.replace("number % 4 ==", "number ==-"), tmp_path, 400, 0)
    assert 0 < len(rows) < 399
    assert [row.step for row in rows] == sorted({row.step for row in rows})


HICCUPS = ROOT / "tests/analysis/verdict/hiccup_training.py"
MADE = 4


def run_with_hiccups(folder: Path, cause: str, **environment: str) -> tuple[list[int], list[Row]]:
    """What each hiccup took by the training's own clock, µs, and the rows of the host."""
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", str(HICCUPS), cause,
         str(folder), str(MADE)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [row for row in read(folder / "logs/profile_rank_0.csv") if row.name == "host"]
    return [ns // 1000 for ns in json.loads(done.stdout)], rows


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cause", "counter"),
    [("GIL, by C", "gil_us"), ("SIGSTOP", "stopped_us"), ("sleep", "other_us")],
)
def test_what_the_thread_waited_for_is_sampled(tmp_path: Path, cause: str, counter: str) -> None:
    took, rows = run_with_hiccups(tmp_path, cause)
    sums = {
        name: sum(int(row.metadata[name]) for row in rows if name in row.metadata)
        for name in ("gil_us", "stopped_us", "other_us", "storage_us", "page_us")
    }
    # Samples lie 20 ms apart, and hiccups take 100 ms: some are cut at both ends. On a busy machine
    # the thread waits for a core meanwhile, and the sampler does, too.
    assert 0 < sums[counter] < 1.3 * sum(took) + MADE * 20_000, (sums, took)
    assert max(sums, key=lambda name: sums[name]) == counter, sums


@pytest.mark.thorough
def test_sampling_can_be_switched_off(tmp_path: Path) -> None:
    """What is not sampled has no number, not a zero."""
    _, rows = run_with_hiccups(tmp_path, "sleep", MY_UTILS_RUN_HOST_SAMPLES="0")
    assert rows
    for row in rows:
        assert "cpu_us" in row.metadata
        assert not {"gil_us", "stopped_us", "other_us", "refaults"} & row.metadata.keys()


# Worker 1 is slow: it "runs", "sleeps", waits for "storage", or waits for a core ("delay").
LOADER = """
import contextlib, os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

how, path = sys.argv[1:]
READ = 4 << 20

def work(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

class Samples(Dataset):
    def __len__(self):
        return 120
    def __getitem__(self, number):
        if get_worker_info().id != 1:
            return torch.zeros(8)
        if how == "runs":
            work(0.04)
        elif how == "delay":
            work(0.01)
        elif how == "sleeps":
            time.sleep(0.04)
            work(0.002)
        elif how == "reads":  # what it had read is dropped, so it comes from the disk again
            os.posix_fadvise(self.file, 0, 0, os.POSIX_FADV_DONTNEED)
            for at in range(0, READ, 4096):
                os.pread(self.file, 4096, at)
        else:
            os.pread(self.file, 4096, 4096 * number)
        return torch.zeros(8)

def begin(number):
    if number != 1:
        return
    if how == "runs":  # before other processes of the machine, where that can be had
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if how in ("storage", "reads"):
        file = get_worker_info().dataset.file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    if how == "delay":
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        for _ in range(4):
            if os.fork() == 0:
                parent = os.getppid()
                while os.getppid() == parent:
                    work(0.01)
                os._exit(0)

net = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for batch in DataLoader(Samples(), batch_size=2, num_workers=3, worker_init_fn=begin):
    net(batch).sum().backward()
    optimizer.step()
"""


@contextlib.contextmanager
def slow_file(folder: Path) -> Iterator[Path]:
    """Each read of it takes 40 ms."""
    mount = folder / "slow"
    mount.mkdir()
    server = ROOT / "tests/support/slow_disk.py"
    command = [sys.executable, str(server), str(mount), "0.04"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as disk:
        assert disk.stdout is not None
        try:
            assert disk.stdout.readline() == "ready\n"
            yield mount / "file"
        finally:
            disk.kill()
    subprocess.run(["umount", "-l", str(mount)], check=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("how", "counter", "text"),
    [
        pytest.param("runs", "ran_us", "input waits for worker 1, which runs",
                     marks=pytest.mark.thorough),
        ("storage", "storage_us", "input waits for worker 1, which waits for storage"),
        ("sleeps", "ran_us", "input waits for worker 1, which sleeps, or waits for"),
        pytest.param("delay", "delay_us", "input waits for worker 1, which waits for a core",
                     marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_the_worker_that_the_training_waits_for(
    tmp_path: Path, how: str, counter: str, text: str
) -> None:
    if how == "storage" and not (os.geteuid() == 0 and os.path.exists("/dev/fuse")):
        pytest.skip("needs root and FUSE")
    (tmp_path / "train.py").write_text(LOADER)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "my_utils"]
    with contextlib.ExitStack() as stack:
        path = str(stack.enter_context(slow_file(tmp_path))) if how == "storage" else "-"
        run = [*command, "run", "--quiet", "-o", "logs", "train.py", how, path]
        subprocess.run(run, cwd=tmp_path, env=env, check=True)
    rows = [row for row in read(tmp_path / "logs/profile_rank_0.csv") if row.name == "loader"]
    times = [0, 0, 0]
    for row in rows:
        times[int(row.metadata["worker"])] += int(row.metadata[counter])
    assert times[1] > 0.7 * sum(times) > 0, times
    why = [*command, "why", "logs", "--json"]
    done = subprocess.run(why, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    verdict = json.loads(done.stdout)
    (found,) = [one for one in verdict["findings"] if one["kind"] == "input"]
    does = "waits" if how == "sleeps" else counter.removesuffix("_us").replace("ran", "runs")
    assert (found["detail"]["worker"], found["detail"]["workers_do"]) == (1, does)
    assert any(text in line for line in verdict["text"]), verdict["text"]


@pytest.mark.thorough
def test_what_a_worker_reads_from_a_disk(tmp_path: Path) -> None:
    """As the kernel counts it, once a second; a sample of 4 MiB is read again and again."""
    (tmp_path / "train.py").write_text(LOADER)
    with (tmp_path / "file").open("wb") as file:
        file.write(os.urandom(4 << 20))
        os.fsync(file.fileno())
    subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "train.py", "reads",
         "file"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
    )  # fmt: skip
    rows = [row for row in read(tmp_path / "logs/profile_rank_0.csv") if row.name == "loader"]
    read_bytes: dict[str, list[int]] = {}
    for row in rows:
        if "read_bytes" in row.metadata:
            read_bytes.setdefault(row.metadata["worker"], []).append(
                int(row.metadata["read_bytes"])
            )
    samples = 40  # of worker 1; what it read after its last row that says so is missing
    assert 4 << 20 <= sum(read_bytes["1"]) <= samples * (4 << 20), read_bytes
    assert len(read_bytes["1"]) < len(rows), "asked more often than once a second"
    assert sum(sum(read_bytes.get(one, ())) for one in "02") < 1 << 20, read_bytes
