"""A training that times its own parts, for the truth of a ledger: `training.py FOLDER PLANT…`.

A plant is a name, or of some ranks alone `NAME@RANKS`, such as `checkpoint@0` or `late@12`. The
script writes `FOLDER/truth-RANK-ATTEMPT.json`: by row, ns by its own clock.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.analysis.ledger.own_clock import (
    ATTEMPT,
    RANK,
    WORLD,
    began_ns,
    meeting,
    timed,
    truth,
    write,
)

FOLDER, *PLANTS = sys.argv[1:]
PARTS = [plant.partition("@") for plant in PLANTS]
HERE = {name for name, _, ranks in PARTS if not ranks or str(RANK) in ranks}
if "imports" in HERE:
    time.sleep(10)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

STEPS, EVERY = 150, 10
CHECKPOINT = Path(FOLDER) / f"state-{RANK}.pt"
NEW = CHECKPOINT.with_suffix(".new")
kept: list[object] = []
saved_ns = 0  # when the last checkpoint was
steps_ns: list[tuple[int, int]] = []  # of each step by the clock, and of a core


class Items(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, number: int) -> torch.Tensor:
        if "input" in HERE:
            time.sleep(0.004)
        if "slow input" in HERE:
            time.sleep(0.02)
        return torch.ones(64)


def validate() -> None:
    """Batches of a loader, with work of the host between them. Truth is from the first forward to
    the last one: what comes before and after looks like anything else."""
    model.eval()
    begin = end = 0
    few = torch.utils.data.Subset(Items(), range(16))
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(few, batch_size=2):
            begin = begin or time.monotonic_ns()
            model(batch)
            end = time.monotonic_ns()
            while time.monotonic_ns() < end + 5_000_000:
                pass
    truth["evaluation"] += end - begin
    model.train()


def save() -> None:
    """As a script does that another process may kill meanwhile."""
    global saved_ns
    with timed("checkpoint"):
        torch.save({"step": step + 1, "big": big}, NEW)
    saved_ns = time.monotonic_ns()
    os.replace(NEW, CHECKPOINT)


def write_files() -> None:
    """Past torch.save."""
    with timed("pause"), open(Path(FOLDER) / f"notes-{RANK}", "wb") as file:
        pickle.dump(list(range(600_000)), file)
        file.write(bytes(30_000_000))
        os.fsync(file.fileno())


def collect() -> None:
    global kept
    kept = [[] for _ in range(300_000)]
    with timed("gc"):
        gc.collect()


def measure_collections() -> None:
    """Those that Python starts, by its own callbacks."""
    begin_ns = 0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal begin_ns
        if phase == "stop":
            truth["gc"] += time.monotonic_ns() - begin_ns
        begin_ns = time.monotonic_ns()

    gc.collect()
    gc.callbacks.append(note)
    gc.enable()


def work() -> None:
    """30 ms of a core, which in the steps that are due another process wants, too."""
    if is_due:
        spinner.send_signal(signal.SIGCONT)
    cpu_ns = time.thread_time_ns()
    while time.thread_time_ns() < cpu_ns + 30_000_000:
        pass
    if is_due:
        spinner.send_signal(signal.SIGSTOP)


def without_a_core_ns() -> int:
    """Where a step took longer than usual by it."""
    usual_ns = statistics.median(took for took, _ in steps_ns)
    found = sum(min(took - used, max(took - usual_ns, 0)) for took, used in steps_ns)
    return int(found)


def between_steps() -> None:
    if "evaluation" in HERE:
        with torch.no_grad(), timed("evaluation"):
            output = inner(held_out)
        del output  # only here is its memory given back
    if "validation" in HERE:
        validate()
    if "checkpoint" in HERE or ("rare checkpoint" in HERE and step == 99):
        save()
    if "files" in HERE:
        write_files()
    if "pause" in HERE:
        time.sleep(0.03)
    if "gc" in HERE:
        collect()
    if "graphs" in HERE:
        kept[:] = [[[] for _ in range(200_000)]]


def may_end() -> None:
    """As planted, in the first attempt."""
    if ATTEMPT > 0:
        return
    if ("death" in HERE and step == 104) or ("later death" in HERE and step == 114):
        truth["died"] = time.time_ns()
        truth["in vain"] = time.monotonic_ns() - saved_ns
        write(FOLDER)
        os._exit(3)
    if "hang" in HERE and step == 100:
        with timed("hang"):
            time.sleep(8)
        write(FOLDER)
        os.kill(os.getpid(), signal.SIGKILL)


gc.disable()  # but for what is planted
torch.set_num_threads(1)
truth["imports"] = time.monotonic_ns() - began_ns()
if "group" in HERE:
    time.sleep(10)
if WORLD > 1:
    store = f"file://{FOLDER}/store-{ATTEMPT}"  # torchrun's keeps addresses of the attempt before
    with timed("process group"):
        dist.init_process_group("gloo", init_method=store, rank=RANK, world_size=WORLD)
inner = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
model: nn.Module = nn.parallel.DistributedDataParallel(inner) if WORLD > 1 else inner
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
big, held_out = torch.ones(2_000_000), torch.ones(40_000, 64)
first = 0
for file in Path(FOLDER).glob("state-*.pt"):
    with timed("restore"):
        first = torch.load(file)["step"]
    break
if "launch" in HERE:
    time.sleep(1)
if "long launch" in HERE:
    time.sleep(10)
workers = next((int(name[-1]) for name in HERE if name.startswith("workers ")), 0)
batches = iter(torch.utils.data.DataLoader(Items(), batch_size=1, num_workers=workers))
if "busy" in HERE:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    spinner = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    spinner.send_signal(signal.SIGSTOP)
if "graphs" in HERE:
    measure_collections()
truth["launch"] = time.monotonic_ns() - began_ns() - truth["restore"]
for step in range(first, STEPS):
    step_begins_ns, cpu_ns = time.monotonic_ns(), time.thread_time_ns()
    is_due = step % EVERY == EVERY - 1 and 30 < step < STEPS - 1
    with timed("input"):
        batch = next(batches)
    if "late" in HERE:
        time.sleep(0.01)
    if "later" in HERE:
        time.sleep(0.02)
    if "busy" in HERE:
        work()
    loss = model(batch).sum()
    with meeting():
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if is_due:
        with timed("pause"):  # what is in no stage, as to rename a file and to give memory back
            between_steps()
    steps_ns.append((time.monotonic_ns() - step_begins_ns, time.thread_time_ns() - cpu_ns))
    may_end()
end_ns = time.monotonic_ns()
if "closing" in HERE:
    time.sleep(0.5)
if "result" in HERE:
    while time.monotonic_ns() < end_ns + 2 * 10**9:
        write_files()
if "busy" in HERE:
    spinner.kill()
    truth["no core"] = without_a_core_ns()
truth["closing"] = time.monotonic_ns() - end_ns
write(FOLDER)
