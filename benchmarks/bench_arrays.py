"""From the rows of all ranks to the verdict: processor time and memory, whatever the run's shape.

Four shapes, from few ranks with many steps to many ranks with few. The ranks record what `my_utils
run` records of DDP on a CPU: five stages a step, memory, batches and what the host took. Each shape
is judged in a separate process, which measures itself after its imports.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.harness import Claim, Row, output_and_peak
from tests.support.run_csv import HEADER, START_NS

SHAPES = ((8, 12_800), (64, 2_000), (1_024, 200), (8_192, 100))  # ranks, steps
SMOKE_SHAPES = ((4, 60), (8, 40), (16, 40), (32, 40))
ROUNDS = 3
LARGEST_S, LARGEST_MB = 12.0, 800.0  # of processor time; of memory, all of the process

STAGES = ("input", "forward", "loss", "backward", "optimizer")
MEANS_NS = np.array([1e6, 20e6, 0.3e6, 40e6, 3e6])
UNTIMED_NS = 400_000
MEETS = STAGES.index("backward")
FORWARD = STAGES.index("forward")
SLOWER = 1.6  # the forward of the last rank, so that there is something to find
HICCUPS, HICCUP_NS = 0.001, 4e6  # in one of so many steps of a rank, forward takes longer
RANKS_A_HOST = 8
HOST = (
    "cpu_us=9500,kernel_us=120,delay_us=%d,quota_us=0,major_faults=0,gc0_us=170,gc1_us=0,gc2_us=0,"
    "storage_us=0,page_us=0,other_us=52000,gil_us=0,stopped_us=0,limits_met=0,refaults=0"
)

JUDGE = """
import sys, time
from my_utils.analysis.replay.inputs import verdict_of

def resident_kib(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))

base = resident_kib("VmRSS")
began = time.process_time()
verdict = verdict_of(sys.argv[1])
took = time.process_time() - began
assert verdict.status != "not judged", verdict.reason
print(took, resident_kib("VmHWM") - base)
"""


class Cost(NamedTuple):
    """Of a shape: its rows in the files, the processor time in s, the memory beyond that of the
    imports in bytes, and the peak of all memory in MB."""

    rows: int
    seconds: float
    bytes: float
    peak_mb: float


# --- the rows of a run ---


def write_run(folder: Path, ranks: int, steps: int) -> int:
    """Returns how many rows there are."""
    begins_ns, ends_ns = _times(ranks, steps)
    step = _step_rows()
    rows = 0
    for rank in range(ranks):
        head = _head_rows(rank, ranks)
        text = head + "".join(
            [step % values for values in _values(rank, begins_ns[rank], ends_ns[rank])]
        )
        (folder / f"profile_rank_{rank}.csv").write_text(HEADER + text, encoding="ascii")
        rows += text.count("\n")
    return rows


def _times(ranks: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Begin and end of each stage, rank × step × stage; ranks leave backward together."""
    random = np.random.default_rng([ranks, steps])
    took = MEANS_NS * np.exp(0.03 * random.standard_normal((ranks, steps, len(STAGES))))
    took[-1, :, FORWARD] *= SLOWER
    took[..., FORWARD] += HICCUP_NS * (random.random((ranks, steps)) < HICCUPS)
    before, after = took[..., :MEETS].sum(2), took[..., MEETS + 1 :].sum(2)
    arrives = before + took[..., MEETS]
    arrives[:, 1:] += after[:, :-1] + UNTIMED_NS
    leaves = np.cumsum(arrives.max(0))
    step_begins = np.concatenate([np.zeros((ranks, 1)), leaves[:-1] + after[:, :-1]], axis=1)
    step_begins[:, 1:] += UNTIMED_NS
    ends = step_begins[..., None] + np.cumsum(took, axis=2)
    ends[..., MEETS:] += (leaves - ends[..., MEETS])[..., None]
    begins = np.concatenate([step_begins[..., None], ends[..., :-1]], axis=2)
    return begins.astype(np.int64) + START_NS, ends.astype(np.int64) + START_NS


def _head_rows(rank: int, ranks: int) -> str:
    start, host = START_NS // 10**9, f"node{rank // RANKS_A_HOST}"
    notes = (
        ("process", f"pid=1,rank={rank},world_size={ranks},attempt=1,host={host}"),
        ("run", "device=cpu,attempt=1,run_id=1"),
        ("workload", "num_workers=0,pin_memory=false,batch_size=32"),
        ("sync", f"stage={STAGES[MEETS]},kind=ddp,members=0-{ranks - 1}"),
        ("clock_sync", "error_ns=20000"),
    )
    return "".join(
        f'{start}.0,-,node,0,my_utils.{name},START,,"opens=INSTANT"\n'
        f'{start}.0,-,node,0,my_utils.{name},INSTANT,,"tid=1,{pairs}"\n'
        for name, pairs in notes
    )


def _step_rows() -> str:
    """The rows of a step, with a place for each figure that `_values` has."""
    when = "%d.%09d,2026-11-27 03:00:21.498538,vm-rank0,%d"
    rows = []
    for stage in STAGES:
        ids = '"node_id=%d,parent_id=0,tid=11337,tag=run"'
        rows += [f"{when},{stage},START,,{ids}", f"{when},{stage},END,%d.%06d,{ids}"]
    for name, pairs in (("batch", "samples=32"), ("memory", "rss_bytes=%d"), ("host", HOST)):
        rows += [f'{when},{name},START,,"opens=COUNTER"', f'{when},{name},COUNTER,,"tid=1,{pairs}"']
    return "\n".join(rows) + "\n"


def _values(rank: int, begins_ns: np.ndarray, ends_ns: np.ndarray) -> list[tuple[int, ...]]:
    """A tuple of the figures of each step."""
    steps = np.arange(len(begins_ns))
    columns: list[np.ndarray] = []

    def moment(at_ns: np.ndarray) -> None:
        columns.extend([at_ns // 10**9, at_ns % 10**9, steps])

    for stage in range(len(STAGES)):
        begin, end = begins_ns[:, stage], ends_ns[:, stage]
        node = (1 << 32) + 1 + steps * len(STAGES) + stage
        moment(begin)
        columns.append(node)
        moment(end)
        columns.extend([(end - begin) // 10**6, (end - begin) % 10**6, node])
    for figure in (None, 6_000_000_000 + 4096 * ((steps * 7 + rank) % 50), 130 + steps % 40):
        moment(ends_ns[:, -1])
        moment(ends_ns[:, -1])
        columns.extend([] if figure is None else [figure])
    return list(zip(*(column.tolist() for column in columns), strict=True))


# --- what they cost ---


def run(smoke: bool) -> list[Row]:
    shapes, rounds = (SMOKE_SHAPES, 1) if smoke else (SHAPES, ROUNDS)
    costs = {shape: _cost(*shape, rounds) for shape in shapes}
    found: list[Row] = []
    for (ranks, steps), cost in costs.items():
        name = f"{ranks:,} x {steps:,}"
        found += [
            Claim(f"a row to the verdict, {name}", 1e6 * cost.seconds / cost.rows,
                  "1 µs of processor", 1.0, "µs", 1),
            Claim(f"memory for a row, {name}", cost.bytes / cost.rows, "60 bytes", 60, "B", 1),
        ]  # fmt: skip
    largest = costs[shapes[-1]]
    return [
        *found,
        Claim("processor time, most ranks", largest.seconds, "12 s", LARGEST_S, "s", 1),
        Claim("peak memory, most ranks", largest.peak_mb, "800 MB", LARGEST_MB, "MB", 1),
        Claim("growth of processor time with rows", _exponent(list(costs.values())),
              "exponent 1.05", 1.05, "", 1),
    ]  # fmt: skip


def _cost(ranks: int, steps: int, rounds: int) -> Cost:
    with tempfile.TemporaryDirectory() as name:
        rows = write_run(Path(name), ranks, steps)
        taken = [output_and_peak([sys.executable, "-c", JUDGE, name]) for _ in range(rounds)]
    figures = [[float(word) for word in printed.split()] for printed, _ in taken]
    seconds = statistics.median(one[0] for one in figures)
    kib = max(one[1] for one in figures)
    return Cost(rows, seconds, 1024 * kib, max(mib for _, mib in taken) * 1.048576)


def _exponent(costs: list[Cost]) -> float:
    """The slope of the processor time over the rows, both as logarithms."""
    rows = np.log([cost.rows for cost in costs])
    return float(np.polyfit(rows, np.log([cost.seconds for cost in costs]), 1)[0])
