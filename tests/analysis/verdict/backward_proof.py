"""The proof of who comes last inside backward: real ranks over gloo, one of them slow in one layer.

    python -m tests.analysis.verdict.backward_proof [--runs 100] [--healthy 100] [--ranks 4]
        [--out FILE]

One training under `my_utils run` goes through all runs, one after another, `--steps` steps each: in
a planted run one rank waits or computes for so many ms in the backward of one layer, in a healthy
run nobody does. Each run is judged by itself, and so is each single step in which the ranks looked
at their buckets. Prints the table; with --out it writes it in Markdown. The
same arguments give the same plants. 200 runs take some ten minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from my_utils.analysis.verdict.last_in_backward import LEAST_GAP_NS, last_in_steps, moments_of
from my_utils.analysis.verdict.load import load_run
from my_utils.analysis.verdict.ready_times import Bucket, ReadyTimes
from my_utils.analysis.verdict.result import Verdict
from my_utils.analysis.verdict.rules import judge
from my_utils.analysis.verdict.run_data import RunData

ROOT = Path(__file__).resolve().parents[3]
TRAINING = Path(__file__).with_name("backward_training.py")
LAYERS = 12
LAYERS_A_BUCKET = 3
MS = (10, 15, 25)
HOW = ("waits", "computes")
EVERY = 4  # steps, of which one is looked at
FIRST = 8  # steps before the first run, in which DDP builds its buckets anew
SECONDS_A_RUN = 60  # at most
PAGE = """## Which rank comes last inside backward

Made on {day} by
`python -m tests.analysis.verdict.backward_proof --runs {runs} --healthy {healthy}`, on
{processor}, {cores} cores for {ranks} ranks; the load of the machine, ranks included, was {load}.
The rule is in [Who comes last inside backward](runs/inside-backward.md).

{ranks} ranks of DDP communicate over gloo. The model has {layers} layers in buckets of three. In a
planted run of {steps} steps, one rank takes the stated ms longer in the backward of one layer:
it either sleeps or computes.

- Right: the verdict names that rank, and the layer's bucket or the next one. (The hook of a module
  runs when the gradients of the module are already there.)
- Single steps: the steps in which the ranks looked at their buckets, every {every}th.
- Calm: no rank was kept from a core for half of the planted delay or longer. In other steps the
  planted rank is often not the last one.
- Other names: in a planted run, any other rank; in a healthy run, any rank that is named inside
  backward.

{table}
"""


@dataclass(frozen=True)
class Plant:
    """how: one of HOW; "" in a healthy run."""

    how: str = ""
    rank: int = -1
    layer: int = -1
    ms: int = 0

    def shows_at(self, buckets: Sequence[Bucket], layers: int) -> list[int]:
        """The numbers of the buckets that are right; of FSDP the collectives of the layer and of
        the one that comes next in backward."""
        if buckets[0].kind == "bucket":
            bucket = (layers - 1 - self.layer) // LAYERS_A_BUCKET
            return [bucket, bucket + 1]
        names = {f"{self.layer}", f"{self.layer - 1}"}
        return [
            number for number, one in enumerate(buckets)
            if one.modules.removeprefix("before ") in names
        ]  # fmt: skip


@dataclass
class Cell:
    """The runs of one row of the table. calm: single steps in which no rank was kept from a core
    for half as long as the planted one is slow."""

    runs: int = 0
    named: int = 0
    right: int = 0
    steps: int = 0
    steps_right: int = 0
    calm: int = 0
    calm_right: int = 0
    wrong: list[str] = field(default_factory=list)


def plants(options: argparse.Namespace) -> list[Plant]:
    """Planted and healthy runs in turn, as they are trained."""
    random = np.random.default_rng(options.seed)
    planted = [
        Plant(
            HOW[number % len(HOW)],
            int(random.integers(options.ranks)),
            int(random.integers(options.layers)),
            options.ms[number // len(HOW) % len(options.ms)],
        )
        for number in range(options.runs)
    ]
    found = planted + [Plant()] * options.healthy
    return [found[place] for place in random.permutation(len(found))]


def record(todo: Sequence[Plant], options: argparse.Namespace, folder: Path) -> RunData:
    """Trains, and reads what was recorded."""
    lines = [f"{one.how or 'healthy'} {one.rank} {one.layer} {one.ms}" for one in todo]
    (folder / "plan").write_text(
        "\n".join([f"{options.wrapper} {FIRST} {options.steps} {options.layers}", *lines])
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [sys.executable, "-m", "my_utils", "run", "--quiet", "-o", "logs", "--", *launch]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MY_UTILS_RUN_BUCKETS": str(EVERY),
    }
    subprocess.run(
        [*command, "--nproc-per-node", str(options.ranks), str(TRAINING), str(folder / "plan")],
        cwd=folder, env=environment, check=True, timeout=120 + SECONDS_A_RUN * len(todo),
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (folder / "load").write_text(_load())
    return load_run([str(folder / "logs")])


def part_of(run: RunData, first: int, last: int) -> RunData:
    """Only some of the steps, a half-open range."""
    columns = np.flatnonzero((run.steps >= first) & (run.steps < last))
    assert run.ready is not None
    here = np.isin(run.ready.columns, columns)
    ready = ReadyTimes(
        np.searchsorted(columns, run.ready.columns[here]), run.ready.begins[:, here],
        run.ready.ready[:, here], run.ready.buckets,
    )  # fmt: skip
    return replace(
        run, steps=run.steps[columns], begins=run.begins[:, columns], ends=run.ends[:, columns],
        totals=run.totals[:, columns], step_begins=run.step_begins[:, columns],
        step_ns=run.step_ns[:, columns], ready=ready,
        counters={name: values[:, columns] for name, values in run.counters.items()},
    )  # fmt: skip


def named_by(verdict: Verdict) -> tuple[int, int] | None:
    """The rank and the bucket that the verdict names inside backward; bucket -1 for none."""
    for one in verdict.findings:
        if "last_rank" in one.detail:
            return one.detail["last_rank"], one.detail.get("bucket", -1)
    return None


def by_all(ready: ReadyTimes) -> npt.NDArray[np.int64]:
    """The columns of the steps that all ranks looked at, as `moments_of` takes them."""
    here = np.isfinite(ready.begins).all(0) & np.isfinite(ready.ready).any(2).all(0)
    columns: npt.NDArray[np.int64] = ready.columns[here]
    return columns


def count(cell: Cell, plant: Plant, run: RunData, layers: int) -> None:
    """Judges a run, and each of its steps."""
    verdict = judge(run, warmup=0)
    named = named_by(verdict)
    assert run.ready is not None
    wanted = plant.shows_at(run.ready.buckets, layers)
    cell.runs += 1
    cell.named += named is not None
    is_right = named is not None and named[0] == plant.rank and named[1] in wanted
    cell.right += is_right
    if is_right != bool(plant.how) or (named is not None and not plant.how):
        cell.wrong.append(f"{plant}: {named}, {verdict.lines(160)[:2]}")
    every_rank, every_step = np.arange(len(run.ranks)), np.ones(len(run.ready.columns), bool)
    moments = moments_of(run.ready, every_rank, every_step)
    rows, buckets = last_in_steps(moments, LEAST_GAP_NS)
    right = (rows == plant.rank) & np.isin(buckets, wanted)
    calm = run.counters["delay_us"][:, by_all(run.ready)].max(0) < 1e3 * plant.ms / 2
    cell.steps += len(rows)
    cell.steps_right += int(right.sum())
    cell.calm += int(calm.sum())
    cell.calm_right += int((right & calm).sum())


def prove(options: argparse.Namespace) -> dict[str, Cell]:
    """The cells by how and ms, "healthy" among them."""
    todo = plants(options)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.logs or Path(temporary)
        run = load_run([folder / "logs"]) if (folder / "logs").exists() else None
        run = run or record(todo, options, folder)
    cells: dict[str, Cell] = defaultdict(Cell)
    for number, plant in enumerate(todo):
        first = FIRST + number * options.steps
        name = f"{plant.how}, {plant.ms} ms" if plant.how else "healthy"
        count(cells[name], plant, part_of(run, first, first + options.steps), options.layers)
    return dict(sorted(cells.items()))


def table(cells: dict[str, Cell]) -> str:
    heads = ("Plant", "Runs", "Right", "Other names", "Single steps right", "Of calm ones")
    lines = [_row(heads), _row(["---"] * len(heads)).replace(" ", "")]
    planted = [cell for name, cell in cells.items() if name != "healthy"]
    for name, cell in [*cells.items(), ("all planted", all_of(planted))]:
        cells_of = [str(cell.right), _of(cell.steps_right, cell.steps)]
        cells_of.append(_of(cell.calm_right, cell.calm))
        right, single, calm = ["", "", ""] if name == "healthy" else cells_of
        lines.append(
            _row([name, str(cell.runs), right, str(cell.named - cell.right), single, calm])
        )
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _of(count: int, whole: int) -> str:
    return f"{count} of {whole} ({count / whole:.1%})" if whole else ""


def all_of(cells: Sequence[Cell]) -> Cell:
    """The cells together."""
    found = Cell()
    for cell in cells:
        found.runs += cell.runs
        found.named += cell.named
        found.right += cell.right
        found.steps += cell.steps
        found.steps_right += cell.steps_right
        found.calm += cell.calm
        found.calm_right += cell.calm_right
        found.wrong += cell.wrong
    return found


def _load() -> str:
    return f"{os.getloadavg()[2]:.1f} (mean of 15 minutes)"


def _processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return names[0] if names else platform.machine()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="planted ones")
    parser.add_argument("--healthy", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60, help="of a run")
    parser.add_argument("--ms", type=int, nargs="+", default=MS, help="that a planted rank takes")
    parser.add_argument("--wrapper", choices=("ddp", "fsdp1", "fsdp2"), default="ddp")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, help="keep what is recorded there, or take it from it")
    parser.add_argument("--out", type=Path, help="the section, in Markdown")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    cells = prove(options)
    text = table(cells)
    print(text)
    for name, cell in cells.items():
        for line in cell.wrong:
            print(f"{name}: {line}", file=sys.stderr)
    if options.out:
        options.out.write_text(
            PAGE.format(
                day=datetime.date.today().isoformat(), processor=_processor(),
                runs=options.runs, healthy=options.healthy,
                cores=len(os.sched_getaffinity(0)), ranks=options.ranks, layers=options.layers,
                steps=options.steps, every=EVERY, table=text,
                load=(options.logs / "load").read_text().strip() if options.logs else _load(),
            )
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
