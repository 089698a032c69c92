"""Jobs of two to four ranks on gloo that really hang, each by one planted fault, with its truth.

All ranks record themselves as under `my_utils run`. They are forks of one process that has torch
imported, so that a job begins within a second.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from my_utils.analysis import live

from ..conftest import ROOT
from .live_ranks import wait_until
from .ranks import free_port

HUNG_S = 6.0  # without progress
START_S = 240.0
STEPS_BEFORE = 6
Op = list[Any]  # kind, and what it needs
OTHER_DTYPES = {"float32": "float64", "int64": "float32"}  # of another size, or gloo goes on
FAULTS = (
    "asleep", "asleep in a stage", "stopped", "dead", "skipped", "skipped send", "skipped receive",
    "one more", "size", "dtype", "swapped", "other group", "store",
)  # fmt: skip

# Reads a job a line, and forks its ranks, which die with it.
PARENT = """
import ctypes, json, os, signal, sys, time
import torch, torch.distributed as dist
import torch.distributed.distributed_c10d
import my_utils
die_with_parent = lambda: ctypes.CDLL(None).prctl(1, signal.SIGKILL)
die_with_parent()
torch.set_num_threads(1)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead ranks do not stay as zombies

def rank_of(job, rank):
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(job["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
    my_utils.auto()
    dist.init_process_group("gloo")
    groups = {"world": None}
    for name, every in job["groups"].items():
        for members in every:
            made = dist.new_group(members)
            if rank in members:
                groups[name] = made
    store = dist.distributed_c10d._get_default_store()
    model = torch.nn.Linear(8, 8)
    net = torch.nn.parallel.DistributedDataParallel(model) if job["ddp"] else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train():
        optimizer.zero_grad()
        net(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()

    def perform(step, kind, *given):
        if kind == "train":
            train()
        elif kind == "all_reduce":
            role, size, dtype = given
            dist.all_reduce(torch.ones(size, dtype=getattr(torch, dtype)), group=groups[role])
        elif kind == "all_gather":
            role, size, dtype = given
            count = dist.get_world_size(groups[role])
            dtype = getattr(torch, dtype)
            parts = [torch.ones(size, dtype=dtype) for _ in range(count)]
            dist.all_gather(parts, torch.ones(size, dtype=dtype), group=groups[role])
        elif kind == "barrier":
            dist.barrier(groups[given[0]])
        elif kind == "send":
            dist.send(torch.ones(given[1]), given[0])
        elif kind == "recv":
            dist.recv(torch.ones(given[1]), given[0])
        elif kind == "store":
            store.set(f"{step} {rank}", "there")
            store.wait([f"{step} {one}" for one in range(job["world"])])
        elif kind == "asleep":
            time.sleep(3600)
        elif kind == "asleep in a stage":
            model.register_forward_hook(lambda *_: time.sleep(3600))
            train()
        elif kind == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind == "dead":
            os._exit(1)

    step = 0
    try:
        while True:
            faulty = step == job["at"] and rank == job["culprit"]
            for op in job["faulty"] if faulty else job["programs"][rank]:
                perform(step, *op)
            step += 1
            time.sleep(0.01)
    except RuntimeError:  # of a connection that another rank has closed
        open(f"{os.environ['MY_UTILS_RUN_DIR']}/raised_{rank}", "w").close()
        time.sleep(3600)

print("ready", flush=True)
for line in sys.stdin:
    job, pids = json.loads(line), []
    for rank in range(job["world"]):
        pid = os.fork()
        if pid == 0:
            rank_of(job, rank)
        pids.append(pid)
    print(json.dumps(pids), flush=True)
"""


@dataclass
class Job:
    """culprit: the rank whose program is wrong. is_open: nobody but the program knows which of two
    that is, so that nobody may be named for certain. left: ranks that gloo has ended, as it does
    where more comes than is expected, and those of which a call raised then; they call nothing
    more, so that others wait for them, too."""

    world: int
    groups: dict[str, list[list[int]]]
    programs: list[list[Op]]
    faulty: list[Op]
    culprit: int
    at: int
    ddp: bool
    fault: str
    layout: str
    is_open: bool = False
    left: list[int] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


# --- programs ---


def _ddp(draw: random.Random) -> tuple[int, dict[str, list[list[int]]], list[list[Op]]]:
    world = draw.choice([2, 3, 4])
    step: list[Op] = [["train"], ["all_reduce", "world", draw.choice([3, 500]), "float32"]]
    if draw.random() < 0.5:
        step.insert(0, ["all_gather", "world", 2, "int64"])
    return world, {}, [step] * world


def _grid(draw: random.Random) -> tuple[int, dict[str, list[list[int]]], list[list[Op]]]:
    groups = {"pair": [[0, 1], [2, 3]], "stripe": [[0, 2], [1, 3]]}
    step: list[Op] = [["all_reduce", "pair", 16, "float32"], ["train"]]
    step += [["all_gather", "pair", 5, "float32"], ["all_reduce", "stripe", 9, "float32"]]
    step += [["all_reduce", "world", draw.choice([1, 30]), "float32"]]
    return 4, groups, [step] * 4


def _pipeline(draw: random.Random) -> tuple[int, dict[str, list[list[int]]], list[list[Op]]]:
    """Forward from stage to stage, and back; the loss goes to all ranks now and then."""
    world = draw.choice([2, 3, 4])
    with_loss = draw.random() < 0.5
    programs = []
    for rank in range(world):
        step: list[Op] = [["recv", rank - 1, 8]] if rank else []
        step.append(["train"])
        if rank < world - 1:
            step += [["send", rank + 1, 8], ["recv", rank + 1, 6]]
        step += [["send", rank - 1, 6]] if rank else []
        step += [["all_reduce", "world", 1, "float32"]] if with_loss else []
        programs.append(step)
    return world, {}, programs


def _two_pipelines(draw: random.Random) -> tuple[int, dict[str, list[list[int]]], list[list[Op]]]:
    """Ranks 0 and 1 are the first stages, and reduce gradients, as the last ones do."""
    groups = {"data": [[0, 1], [2, 3]]}
    programs = []
    for rank in range(4):
        peer = (rank + 2) % 4
        there: list[Op] = [["send", peer, 8], ["recv", peer, 6]]
        back: list[Op] = [["recv", peer, 8], ["train"], ["send", peer, 6]]
        step = [["train"], *there] if rank < 2 else back
        step = [*step, ["all_reduce", "data", 40, "float32"]]
        programs.append(step)
    return 4, groups, programs


def _store(draw: random.Random) -> tuple[int, dict[str, list[list[int]]], list[list[Op]]]:
    world = draw.choice([2, 3, 4])
    step: list[Op] = [["train"], ["all_reduce", "world", 4, "float32"], ["store"]]
    return world, {}, [step] * world


LAYOUTS = {
    "ddp": _ddp, "grid": _grid, "pipeline": _pipeline, "two pipelines": _two_pipelines,
    "store": _store,
}  # fmt: skip


def make_job(seed: int) -> Job:
    """The job of a seed; the faults and layouts go round, so that some seeds in a row have all."""
    draw = random.Random(seed)
    fault = FAULTS[seed % len(FAULTS)]
    names = [name for name in LAYOUTS if _fits(name, fault)]
    layout = names[seed // len(FAULTS) % len(names)]
    world, groups, programs = LAYOUTS[layout](draw)
    culprit = draw.randrange(world)
    job = Job(
        world, groups, programs, [], culprit, STEPS_BEFORE + draw.randrange(4), False, fault, layout
    )
    job.ddp = layout == "ddp"
    while not job.faulty:
        job.faulty = _with_fault(job, draw)
        if not job.faulty:
            job.culprit = draw.randrange(world)
    return job


def _fits(layout: str, fault: str) -> bool:
    if fault in ("skipped send", "skipped receive"):
        return layout in ("pipeline", "two pipelines")
    if fault == "store":
        return layout == "store"
    if fault in ("swapped", "other group"):
        return layout == "grid"
    return fault not in ("one more", "size", "dtype", "skipped") or layout in ("ddp", "grid")


def _with_fault(job: Job, draw: random.Random) -> list[Op]:
    """What the culprit does in the step of the fault; [] where it can have none."""
    program = [list(op) for op in job.programs[job.culprit]]
    collectives = [n for n, op in enumerate(program) if op[0] in ("all_reduce", "all_gather")]
    at = draw.randrange(len(program))
    fault = job.fault
    if fault in ("asleep", "asleep in a stage", "stopped", "dead"):
        return [*program[:at], [fault], *program[at:]]
    if fault == "store":
        return [*program[:-1], ["asleep"], program[-1]]
    if fault in ("skipped send", "skipped receive"):
        kind = {"skipped send": "send", "skipped receive": "recv"}[fault]
        ways = [n for n, op in enumerate(program) if op[0] == kind]
        return [op for n, op in enumerate(program) if n != draw.choice(ways)] if ways else []
    chosen = draw.choice(collectives)
    op = program[chosen]
    members = job.world if op[1] == "world" else 2
    job.is_open = members == 2 and fault in ("size", "dtype")
    if fault == "skipped":
        return [one for n, one in enumerate(program) if n != chosen]
    if fault == "one more":  # as where an exception is swallowed and then counted
        return [*program[:chosen], ["all_reduce", op[1], 7, "int64"], *program[chosen:]]
    if fault == "size":
        return [*program[:chosen], [op[0], op[1], op[2] + 11, op[3]], *program[chosen + 1 :]]
    if fault == "dtype":
        other = OTHER_DTYPES[op[3]]
        return [*program[:chosen], [op[0], op[1], op[2], other], *program[chosen + 1 :]]
    if fault == "swapped":
        *others, pair, stripe, world = program
        return [*others, world, stripe, pair]
    role = "stripe" if op[1] == "pair" else "pair"  # another group
    return [*program[:chosen], [op[0], role, op[2], op[3]], *program[chosen + 1 :]]


# --- runs ---


class Jobs:
    """Runs jobs one after another."""

    def __init__(self, parent: subprocess.Popen[str]) -> None:
        self._parent = parent

    def hang(self, job: Job, folder: Path) -> Any:
        """What `live` says of a job once it hangs; its ranks are killed then."""
        logs = folder / "logs"
        logs.mkdir(parents=True)
        job.environment = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(job.world), "MY_UTILS_RUN_DIR": str(logs),
            "MY_UTILS_RUN_HUNG": "3", "TORCH_FR_BUFFER_SIZE": "2000",
        }  # fmt: skip
        assert self._parent.stdin and self._parent.stdout
        print(json.dumps(job.__dict__), file=self._parent.stdin, flush=True)
        pids = json.loads(self._parent.stdout.readline())
        try:
            wait_until(lambda: self._has_dumps(logs, pids), START_S)
            wait_until(lambda: self._hangs(logs), START_S)
            raised = [int(path.name.removeprefix("raised_")) for path in logs.glob("raised_*")]
            died = [rank for rank, pid in enumerate(pids) if _state_of(pid) == "-"]
            job.left = [*died, *raised]
            return live.snapshot(logs, hung_after_s=HUNG_S)
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _has_dumps(self, logs: Path, pids: list[int]) -> bool:
        """Of each rank that lives, is not stopped, and is in its loop."""
        awake = [pid for pid in pids if _state_of(pid) in "RSD"]
        in_loop = len(awake) - len(list(logs.glob("raised_*")))
        return len(list(logs.glob("flight*/*"))) >= max(in_loop, 1)

    def _hangs(self, logs: Path) -> bool:
        """For so long that each rank may have been seen to wait."""
        hang = live.snapshot(logs, hung_after_s=HUNG_S)["hang"]
        since_s = (hang["since_ns"] or 0) / 1e9
        return hang["hung"] and time.time() > since_s + 2 * HUNG_S


def _state_of(pid: int) -> str:
    """A letter of /proc: "T" is stopped; "-": there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "-"


@contextmanager
def started() -> Iterator[Jobs]:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as parent:  # fmt: skip
        try:
            assert parent.stdout and parent.stdout.readline() == "ready\n"
            yield Jobs(parent)
        finally:
            parent.kill()


def outcome(job: Job, seen: Any) -> str:
    """ "exact": only who holds up the others is named for certain, or is among those that may where
    nobody can know. "left out": nothing is decided. "more": others, too. "wrong": only others."""
    named = {rank for cause in seen["causes"] if cause["decided"] for rank in cause["ranks"]}
    undecided = {rank for one in seen["causes"] if not one["decided"] for rank in one["ranks"]}
    if named and named <= {job.culprit, *job.left}:
        return "exact"
    if job.is_open and not named and job.culprit in undecided:
        return "exact"
    if not named:
        return "left out"
    return "more" if job.culprit in named else "wrong"
