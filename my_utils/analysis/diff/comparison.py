"""Two sides of runs compared: docs/runs/diff.md has the rule in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ...core.run_files.copied import as_named
from ..ledger.rows import ROWS
from ..verdict.run_data import Matrix
from .intervals import (
    FALSE_ALARMS,
    Interval,
    Samples,
    of_part,
    of_ratio,
    sample,
)
from .load import MEMORY, NothingToCompare, RunSteps, aligned, load_steps
from .result import Difference, FigureDifference, RowDifference, StageDifference, Status
from .usual import Split, split

STEPS_LEAST = 20
LOADED_AT_ONCE = 2

Side = Sequence[RunSteps]
USUAL, ABOVE, WHOLE, STAGES = range(4)  # the first figures of a step, and where stages begin
REST = 0.25  # of what the named ranks have, that the mean of the others may have
SCATTER = 0.2  # of the ranks' scatter, that may be left within the two groups


def compare(a: Side, b: Side, warmup: int | None = None) -> Difference:
    """Compares B with A.

    a, b: the runs of each side, one or more, as `load_steps` gives them. `compare` changes them, or
    what is compared in place of them (`by_host`): all get the same stages, and keep only the
    compared steps.
    warmup: how many steps at the beginning of each run are left out; by default the longest warm-up
    of all runs. ValueError for a side without a run.

    >>> noise = np.random.default_rng(0).normal(1e6, 1e4, (2, 200))
    >>> sides = [[RunSteps(["a", "untimed"], np.stack([took, took / 9], 1)[None])]
    ...          for took in (noise[0], noise[1] * 1.1)]
    >>> compare(*sides).status
    'slower'
    """
    if not a or not b:
        raise ValueError("a and b must have a run or more each")
    a, b, notes = _by_the_same_clock(a, b)
    return _compared_by_one_clock(a, b, notes, warmup)


def _compared_by_one_clock(
    a: Side, b: Side, notes: Sequence[str], warmup: int | None
) -> Difference:
    everything = [*a, *b]
    found = _begun(a, b)
    found.notes += notes
    first = max(run.warmup for run in everything) if warmup is None else warmup
    last = min(len(run.step_ns) for run in everything)
    found.warmup, found.steps = first, max(last - first, 0)
    if found.steps < STEPS_LEAST:
        found.reason = f"{found.steps} steps after the warm-up, {STEPS_LEAST} are needed"
        found.notes += _shortest(everything, last)
        return found
    stages = aligned((a, b))
    for run in everything:
        run.parts = run.parts[:, first:last]
    if any((run.step_ns <= 0).any() for run in everything):
        found.reason = "a step took no time: its rows are wrong"
        return found
    splits = split((a, b))
    one, two = (
        sample([_figures(run) for run in side], by_steps=found.within, seed=at)
        for at, side in enumerate(splits)
    )
    found.step = of_ratio(one, two, USUAL)
    found.status = _decide(found.step)
    found.a_ns, found.b_ns = float(one.means[USUAL]), float(two.means[USUAL])
    found.above = of_part(one, two, ABOVE, FALSE_ALARMS)
    found.whole = of_ratio(one, two, WHOLE)
    found.a_whole_ns, found.b_whole_ns = float(one.means[WHOLE]), float(two.means[WHOLE])
    found.stages = _stages(stages, one, two)
    _name_ranks(found.stages, stages, (a, b), splits)
    found.ledger = _rows(a, b)
    found.figures = [*_memory(a, b, first, last), *_throughput(a, b, first, last, found)]
    return found


def _by_the_same_clock(a: Side, b: Side) -> tuple[Side, Side, list[str]]:
    """All runs by the times of the device, or all by those of the host."""
    missing = [run.path or "a run" for run in (*a, *b) if run.by_host is None]
    if not missing or len(missing) == len(a) + len(b):
        return a, b, []
    note = f"{missing[0]} has no GPU times: stages are compared by the times of the hosts"
    return [run.by_host or run for run in a], [run.by_host or run for run in b], [note]


def _begun(a: Side, b: Side) -> Difference:
    return Difference(
        "not compared",
        runs=(len(a), len(b)),
        within=min(len(a), len(b)) < 2,
        ranks=(max(len(run.parts) for run in a), max(len(run.parts) for run in b)),
        a_paths=as_named([run.path for run in a]),
        b_paths=as_named([run.path for run in b]),
        notes=list(_notes(a, b)),
    )


def _notes(a: Side, b: Side) -> list[str]:
    notes = [f"{run.path}: {text}" for run in (*a, *b) for text in run.problems]
    counts = [sorted({len(run.parts) for run in side}) for side in (a, b)]
    if counts[0] != counts[1] or len(counts[0]) > 1:
        texts = [" and ".join(map(str, side)) for side in counts]
        notes.append(f"ranks: A has {texts[0]}, B {texts[1]}; their means are compared")
    return notes


def _shortest(runs: Side, count: int) -> list[str]:
    names = [run.path or "a run" for run in runs if len(run.step_ns) == count]
    never = [run.path or "a run" for run in runs if run.warmup >= len(run.step_ns)]
    return [f"{name} has {count} whole steps" for name in names[:2]] + [
        f"{name} never leaves its warm-up; set its length with --warmup N" for name in never[:2]
    ]


def _decide(step: Interval) -> Status:
    if not step.differs:
        return "no difference"
    return "slower" if step.share > 0 else "faster"


# --- from files ---


@dataclass(frozen=True)
class Sides:
    """a, b: the runs that were compared, as `compare` leaves them; none where one could not be
    read."""

    found: Difference
    a: Sequence[RunSteps] = ()
    b: Sequence[RunSteps] = ()


def compare_files(
    a: Iterable[str],
    b: Iterable[str],
    *,
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    warmup: int | None = None,
    renames: dict[str, str] | None = None,
) -> Sides:
    """B against A from their files; "not compared" with the reason where a run cannot be read.

    a, b: the runs of each side. renames: stages of A by their names in B.
    """
    named = [(path, renames) for path in a], [(path, None) for path in b]

    def load(one: tuple[str, dict[str, str] | None]) -> RunSteps:
        return load_steps(one[0], ranks, steps, one[1])

    try:
        with ThreadPoolExecutor(LOADED_AT_ONCE) as pool:
            first, second = (list(pool.map(load, side)) for side in named)
    except NothingToCompare as error:
        paths = [as_named([path for path, _ in side]) for side in named]
        return Sides(Difference("not compared", str(error), a_paths=paths[0], b_paths=paths[1]))
    one, two, notes = _by_the_same_clock(first, second)
    return Sides(_compared_by_one_clock(one, two, notes, warmup), one, two)


# --- stages ---


def _figures(run: Split) -> Matrix:
    """Steps × figures: the step's usual time, what is above it, both; then those of each stage."""
    usual, above = run.usual.sum(1), run.above.sum(1)
    figures: Matrix = np.column_stack([usual, above, usual + above, run.usual, run.above])
    return figures


def _stages(stages: Sequence[str], one: Samples, two: Samples) -> list[StageDifference]:
    """Those with the largest difference first."""
    count = len(stages)
    longer = one.means[STAGES + count :] + two.means[STAGES + count :]
    chance = FALSE_ALARMS / (count + int((longer > 0).sum()))
    found = []
    for at, stage in enumerate(stages, STAGES):
        above = at + count
        found.append(
            StageDifference(
                stage,
                of_part(one, two, at, chance),
                of_ratio(one, two, at, FALSE_ALARMS),
                float(one.means[at]),
                float(two.means[at]),
                of_part(one, two, above, chance),
                float(one.means[above]),
                float(two.means[above]),
            )
        )
    return sorted(found, key=lambda stage: -abs(stage.interval.share))


def _name_ranks(
    found: Sequence[StageDifference],
    stages: Sequence[str],
    sides: tuple[Side, Side],
    splits: Sequence[Sequence[Split]],
) -> None:
    """Which ranks have the differences of the usual times."""
    ranks = {tuple(run.ranks) for side in sides for run in side}
    if len(ranks) > 1:
        return
    names = ranks.pop()
    for stage in found:
        if stage.interval.differs:
            at = stages.index(stage.stage)
            by_rank = [_by_rank(side, split, at) for side, split in zip(sides, splits, strict=True)]
            stage.ranks = tuple(names[row] for row in carriers(by_rank[1] - by_rank[0]))


def _by_rank(side: Side, splits: Sequence[Split], stage: int) -> Matrix:
    """Of each rank what the stage takes in the steps in which it is not above its usual."""
    means = []
    for run, parts in zip(side, splits, strict=True):
        is_usual = parts.above[:, stage] == 0
        means.append(run.parts[:, is_usual, stage].mean(1))
    mean: Matrix = np.mean(means, axis=0)
    return mean


# --- other figures ---


def _rows(a: Side, b: Side) -> list[RowDifference]:
    """None where a run has no ledger."""
    shares = [[_shares(run) for run in side if run.ledger is not None] for side in (a, b)]
    if [len(side) for side in shares] != [len(a), len(b)]:
        return []
    means = [np.mean(side, axis=0) for side in shares]
    rows = zip(("goodput", *ROWS), *means, strict=True)
    return [RowDifference(row, float(one), float(two)) for row, one, two in rows if one or two]


def _shares(run: RunSteps) -> list[float]:
    assert run.ledger is not None
    return [run.ledger.goodput, *(run.ledger.share(row) for row in ROWS)]


def _memory(a: Side, b: Side, first: int, last: int) -> list[FigureDifference]:
    """The peak over steps and ranks: on the device where both sides have it, else of the host."""
    both = [name for name in MEMORY if all(name in run.memory for run in (*a, *b))]
    if not both:
        return []

    def peak(run: RunSteps) -> float:
        counted = run.memory[both[0]][first:last]
        return float(np.nanmax(counted)) if np.isfinite(counted).any() else np.nan

    peaks = [np.array([peak(run) for run in side]) for side in (a, b)]
    return _compared("memory", peaks[0], peaks[1])


def _throughput(
    a: Side, b: Side, first: int, last: int, found: Difference
) -> list[FigureDifference]:
    """Items over the time of all steps. Its interval is that of the time: how many items a step has
    is known."""
    assert found.whole is not None
    for name in ("samples", "tokens"):
        if not all(name in run.items for run in (*a, *b)):
            continue
        counts = [[run.items[name][first:last].mean() for run in side] for side in (a, b)]
        sides = [float(np.mean(of_side)) for of_side in counts]
        if not (sides[0] > 0 and sides[1] > 0):  # nor where some are missing, NaN
            continue
        more, whole = sides[1] / sides[0], found.whole
        ends = [
            more / (1 + at) - 1 if at > -1 else math.inf
            for at in (whole.share, whole.high, whole.low)
        ]
        times = found.a_whole_ns, found.b_whole_ns
        rates = [1e9 * count / took for count, took in zip(sides, times, strict=True)]
        interval = Interval(ends[0], ends[1], ends[2], whole.sees)
        return [FigureDifference(f"{name}/s", rates[0], rates[1], interval)]
    return []


def _compared(name: str, a: Matrix, b: Matrix) -> list[FigureDifference]:
    if not (np.isfinite(a).all() and np.isfinite(b).all()) or a.mean() <= 0:
        return []
    interval = None
    if min(len(a), len(b)) > 1:
        sides = [Samples(one.mean(keepdims=True), _error(one), len(one) - 1.0) for one in (a, b)]
        interval = of_ratio(sides[0], sides[1], 0)
    return [FigureDifference(name, float(a.mean()), float(b.mean()), interval)]


def _error(values: Matrix) -> Matrix:
    error: Matrix = values.std(ddof=1, keepdims=True) / np.sqrt(len(values))
    return error


def carriers(apart: Matrix) -> list[int]:
    """The places of the ranks that have a difference; [] where all have it alike.

    apart: of each rank, how much longer it takes. The ranks are split into two groups such that
    each group scatters least. The upper one is named if the mean of the others is at most a quarter
    of its own, and if little of the scatter is left within the groups.

    >>> carriers(np.array([5.0, 5.1, 0.1, 0.0])), carriers(np.array([5.0, 5.1, 4.9, 5.2]))
    ([0, 1], [])
    """
    count = len(apart)
    toward = apart if apart.mean() >= 0 else -apart
    order = np.argsort(-toward, kind="stable")
    values = toward[order]
    whole = count * float(values.var())
    if count < 2 or whole == 0:
        return []
    within = [_scatter(values[:at]) + _scatter(values[at:]) for at in range(1, count)]
    split = int(np.argmin(within)) + 1
    upper, rest = float(values[:split].mean()), float(values[split:].mean())
    if abs(rest) > REST * upper or within[split - 1] > SCATTER * whole:
        return []
    return sorted(order[:split].tolist())


def _scatter(values: Matrix) -> float:
    return float(len(values) * values.var())
