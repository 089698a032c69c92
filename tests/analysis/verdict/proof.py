"""The proof of the verdict: each plant a hundred times at each size and loss, and healthy runs.

    python -m tests.analysis.verdict.proof [--runs 100] [--healthy 500] [--out FILE]

Prints the tables; with --out it writes them in Markdown. `--plants`, `--sizes`
and `--losses` take a part of it. The same arguments give the same runs.

It takes more than a processor's hour. With --store FILE it goes on where it was interrupted, as
long as the rules are the same; with --minutes N it ends after that time. All cells are filled
evenly, and the section says how many runs each has.
"""

from __future__ import annotations

import argparse
import datetime
import math
import multiprocessing
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.analysis.verdict.outcome_store import OutcomeStore, digest_of_rules
from tests.analysis.verdict.trials import PROMISE_WITHIN, Outcome, Trial, attempt, host_plants
from tests.analysis.verdict.truth import SIZES, TRUTHS

LOSSES = (0.1, 0.2, 0.5)
DEVICE_SIZES = (1, 2, 4, 8)
INFERRED_SIZES = (2, 8, 64)
INFERRED = ("slow loader on one rank", "slow forward on one rank", "checkpoint stalls on rank 0")
WANTED = 0.98  # at losses of a fifth or more
PAGE = """## What the verdict says

{made}.

Each run is simulated: its ranks draw their own work, with the noise of healthy real runs, and their
waits follow from where they wait for each other (DDP with and without buffers, FSDP, a pipeline of
four stages, two groups that never meet; the topologies take turns). A plant takes the stated part
of the run's time. `tests/analysis/verdict/truth.py` defines which kind, ranks and stage the verdict
must name. It was written before the rules were known, and changed once after their first results,
where it required what cannot be measured (inside meetings; a single rank that sleeps). Runs of up
to 8 ranks have 160 steps, of 64 ranks 120, of 1,000 ranks 80. Bold figures are below 98 %.

The work of a rank inside a meeting (backward under DDP, most of forward under FSDP) cannot be
measured: it takes as long on the ranks that wait. If less than 10 % of the run was lost outside
meetings, "not judged inside" without an accusation is right too; "Inside meetings" counts these
runs. A promised time "at most" is wrong only if the run would take longer; for launches nothing is
promised.

The noise was recorded on training loops of this project on 1, 2 and 4 processes
(`tests/support/record_residuals.py`), on which no rule was tuned. It is scaled down if it alone
would cost a run more than 3 %: the slowest of 1,000 ranks draws the worst recorded step each time.

{scope}

{tables}"""


def trials(options: argparse.Namespace) -> list[Trial]:
    found: list[Trial] = []
    for plant in TRUTHS:
        if not re.search(options.plants, plant):
            continue
        device = plant not in host_plants()
        for ranks in options.sizes:
            if ranks not in TRUTHS[plant].sizes or (device and ranks not in DEVICE_SIZES):
                continue
            for loss in options.losses:
                found += [Trial(plant, ranks, loss, number, device=device)
                          for number in range(options.runs)]  # fmt: skip
                if plant in INFERRED and ranks in INFERRED_SIZES:
                    found += [Trial(plant, ranks, loss, number, recorded=False)
                              for number in range(options.runs)]  # fmt: skip
    return found + healthy_trials(options)


def healthy_trials(options: argparse.Namespace) -> list[Trial]:
    """Spread over the sizes, with and without a device, recorded or not."""
    numbers = range(1_000_000, 1_000_000 + options.healthy)  # no seeds of plants
    found = []
    for number in numbers:
        ranks = options.sizes[number % len(options.sizes)]
        device = number % 5 == 0 and ranks in DEVICE_SIZES
        found.append(Trial(None, ranks, 0.0, number, number % 7 != 0, device))
    return found


def evenly(todo: Sequence[Trial]) -> list[Trial]:
    """In an order in which every part from the first on holds about as many runs of each cell."""
    cells: dict[object, list[Trial]] = defaultdict(list)
    for trial in todo:
        cells[None if trial.plant is None else replace(trial, number=0)].append(trial)
    places = [
        (place / len(cell), trial) for cell in cells.values() for place, trial in enumerate(cell)
    ]
    return [trial for _, trial in sorted(places, key=lambda one: one[0])]


def run(
    todo: Sequence[Trial],
    jobs: int,
    store: OutcomeStore | None = None,
    seconds: float = math.inf,
) -> list[Outcome]:
    """In parallel processes; says on standard error how far it is. What `store` has already is
    taken from there, the rest goes into it. Ends after so many seconds with what it has then."""
    known = {} if store is None else store.known
    outcomes = [known[trial] for trial in todo if trial in known]
    rest = evenly([trial for trial in todo if trial not in known])
    ends = time.monotonic() + seconds
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        for one in pool.imap_unordered(attempt, rest, chunksize=4):
            outcomes.append(one)
            if store is not None:
                store.add(one)
            if len(outcomes) % 500 == 0:
                print(f"{len(outcomes)} of {len(todo)} runs", file=sys.stderr, flush=True)
            if time.monotonic() > ends:
                break
    return sorted(outcomes, key=lambda one: (str(one.trial), one.topology))


def tables(outcomes: Sequence[Outcome]) -> str:
    planted = [one for one in outcomes if one.trial.plant is not None]
    parts: list[str] = []
    for loss in sorted({one.trial.loss for one in planted}):
        some = [one for one in planted if one.trial.loss == loss and one.trial.recorded]
        parts += [
            f"### Right kind, rank and stage: {loss:.0%} of the run lost",
            _by_size(some, _share),
        ]
    inferred = [one for one in planted if not one.trial.recorded]
    if inferred:
        parts += ["### Where the run did not record its meetings (DDP, all losses)",
                  _by_size(inferred, _share)]  # fmt: skip
    if planted:
        parts += ["### Planted runs", _summary(planted)]
        parts += ["### What was said instead", _wrong(planted)]
    healthy = [one for one in outcomes if one.trial.plant is None]
    if healthy:
        parts += ["### Healthy runs", _innocence(healthy)]
    return "\n\n".join(parts) + "\n"


def _share(cell: Sequence[Outcome]) -> str:
    right = np.mean([one.right for one in cell])
    return f"{right:.0%}" if right >= WANTED else f"**{right:.0%}**"


def _by_size(outcomes: Sequence[Outcome], figure: Callable[[Sequence[Outcome]], str]) -> str:
    cells: dict[tuple[str, int], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        cells[str(one.trial.plant), one.trial.ranks].append(one)
    sizes = sorted({ranks for _, ranks in cells})
    rows = []
    for plant in TRUTHS:
        if any(name == plant for name, _ in cells):
            row = [figure(cells[plant, size]) if (plant, size) in cells else "–" for size in sizes]
            rows.append([plant, *row])
    return _markdown(["Plant", *(f"{size:,} rank{'s' * (size > 1)}" for size in sizes)], rows)


def _summary(outcomes: Sequence[Outcome]) -> str:
    rows = []
    for plant in TRUTHS:
        some = [one for one in outcomes if one.trial.plant == plant and one.trial.recorded]
        if not some:
            continue
        promised = [one for one in some if one.right and not math.isnan(one.promise)]
        promises = [one.promise for one in promised if one.trial.loss >= 0.2]
        kept = f"{np.mean(np.array(promises) <= PROMISE_WITHIN):.0%}" if promises else "–"
        timed = TRUTHS[plant].accuses and plant != "growing memory"
        not_judged = sum(one.status == "not judged" for one in some)
        others = sum(one.others > 0 for one in some)
        inside = sum(one.inside for one in some)
        rows.append([plant, f"{len(some):,}", str(not_judged), str(inside), str(others),
                     kept if timed else "–"])  # fmt: skip
    head = ["Plant", "Runs", "Not judged", "Inside meetings", "Another costly accusation",
            "Promised step within 10 % of the run without the plant"]  # fmt: skip
    return _markdown(head, rows)


def _wrong(outcomes: Sequence[Outcome], most: int = 2) -> str:
    """For each cell below what is wanted, the commonest wrong verdicts."""
    cells: dict[tuple[str, int, float, bool], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        trial = one.trial
        cells[str(trial.plant), trial.ranks, trial.loss, trial.recorded].append(one)
    rows = []
    for (plant, ranks, loss, recorded), cell in sorted(cells.items()):
        wrong = [one for one in cell if not one.right]
        if len(wrong) <= (1 - WANTED) * len(cell):
            continue
        said = Counter((one.topology, _without_figures(one.said)) for one in wrong)
        text = "; ".join(
            f"{count}× {topology}: {words}" for (topology, words), count in said.most_common(most)
        )
        inferred = "" if recorded else " (inferred)"
        rows.append(
            [plant + inferred, f"{ranks:,}", f"{loss:.0%}", f"{len(wrong)}/{len(cell)}", text]
        )
    return (
        _markdown(["Plant", "Ranks", "Lost", "Wrong", "Said most often"], rows)
        if rows
        else "Nothing."
    )


def _without_figures(said: str) -> str:
    return re.sub(r" ranks [\d,…]+| since \d+| \d+%", "", said)


def _innocence(outcomes: Sequence[Outcome]) -> str:
    judged = [one for one in outcomes if one.status != "not judged"]
    accused = [one for one in judged if not one.right]
    said = Counter(
        (one.trial.ranks, one.topology, one.trial.device, _without_figures(one.said))
        for one in accused
    )
    lines = [
        f"{len(outcomes)} runs, {len(outcomes) - len(judged)} not judged, "
        f"{len(accused)} falsely accused.",
        "",
    ]
    lines += [
        f"- {count}× {ranks:,} ranks, {topology}{', GPU' if device else ''}: {words}"
        for (ranks, topology, device, words), count in said.most_common(12)
    ]
    return "\n".join(lines)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *(line(row) for row in rows)])


def _made() -> str:
    folder = Path(__file__).parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short=10", "HEAD"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return (
        f"Made on {datetime.date.today()} at commit {commit or 'unknown'}, by rules and a "
        f"simulator of digest\n`{digest_of_rules()[:10]}` "
        "(`tests/analysis/verdict/outcome_store.py`)"
    )


def _scope(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> str:
    """How much was run, and by which command."""
    sizes, losses = (",".join(map(str, part)) for part in (options.sizes, options.losses))
    planted = [one.trial for one in outcomes if one.trial.plant is not None]
    return (
        f"{len(planted):,} planted runs at losses of {losses} of the run, and "
        f"{len(outcomes) - len(planted)} healthy ones; the whole\ntrial is 100 runs a cell and 500 "
        f"healthy ones.\n\n{_runs_a_cell(planted)}\n\n"
        f"Made by\n\n```sh\npython -m tests.analysis.verdict.proof --runs {options.runs} "
        f"--healthy {options.healthy} \\\n    --sizes {sizes} --losses {losses} --out FILE\n```"
    )


def _runs_a_cell(planted: Iterable[Trial]) -> str:
    cells = Counter(replace(trial, number=0) for trial in planted)
    rows = []
    for ranks in sorted({cell.ranks for cell in cells}):
        counts = [count for cell, count in cells.items() if cell.ranks == ranks]
        few, many = min(counts), max(counts)
        runs = f"{few}" if few == many else f"{few} to {many}"
        rows.append([f"{ranks:,}", str(len(counts)), runs])
    return _markdown(["Ranks", "Cells", "Runs a cell"], rows)


def _numbers(kind: type) -> Callable[[str], tuple[float, ...]]:
    return lambda text: tuple(kind(part) for part in text.split(","))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.analysis.verdict.proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=100, help="of each cell")
    parser.add_argument("--healthy", type=int, default=500, help="healthy runs in all")
    parser.add_argument("--plants", default="", metavar="REGEX", help="only these")
    parser.add_argument("--sizes", type=_numbers(int), default=SIZES, help="such as 1,2,64")
    parser.add_argument("--losses", type=_numbers(float), default=LOSSES, help="such as 0.2,0.5")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--store", type=Path, help="keeps the outcomes, to go on from there")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time")
    parser.add_argument("--out", type=Path, help="the section, in Markdown")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    store = None if options.store is None else OutcomeStore(options.store)
    outcomes = run(trials(options), options.jobs, store, 60 * options.minutes)
    text = tables(outcomes)
    print(text)
    if options.out is not None:
        page = PAGE.format(made=_made(), scope=_scope(options, outcomes), tables=text)
        options.out.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
