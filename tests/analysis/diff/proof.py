"""The proof of `my_utils diff`: equal sides, planted differences, several runs a side.

    python -m tests.analysis.diff.proof [--trials 1000] [--store FILE] [--minutes N] [--out FILE]

Prints the tables; with --out it writes them in Markdown. With --store FILE it
goes on where it was interrupted, as long as the rules and the series are the same. Where
PyPI's `arch` is installed the ends of the interval are compared with those that it gives.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

import my_utils.analysis.diff
from my_utils.analysis.diff.comparison import compare
from my_utils.analysis.diff.intervals import drawn_means, longest_block, sample

from . import series as planted
from .series import STAGES, run

STEPS = 500
LONGER = 0.02
SERIES = ((0.03, 0.5), (0.03, 0.0), (0.04, 0.3), (0.04, 0.0))  # variation and autocorrelation
DEVIATIONS = (0.002, 0.005)  # of runs from each other
RUNS = 5
AGREE_WITHIN = 0.05  # of the interval's width
DRAWS = 20_000
RULES = ("comparison", "intervals", "load", "usual")

PAGE = """## What `diff` finds

Made by `python -m tests.analysis.diff.proof --trials {trials}`; {done}. The method is in
[Is this run slower than that one](runs/diff.md).

A series has 500 steps of five stages. One step in fifty is 80 % longer.

- Variation: the standard deviation of a step. Autocorrelation: the correlation of a step with the
  one before.
- Alarm: a comparison of equal sides that reports a difference in the step or in any stage.
- Could have seen: the smallest difference that would be found nine times in ten.
- Found: the step is reported as slower. Right stage: the planted stage comes first and differs.

{tables}"""


class Trial(NamedTuple):
    """kind: "equal", "planted", "runs" or "arch". deviation: of runs from each other."""

    kind: str
    variation: float
    memory: float
    deviation: float
    number: int


def trials(count: int) -> Iterator[Trial]:
    """In an order in which every part from the first on has about as many of each cell."""
    for number in range(count):
        for variation, memory in SERIES:
            yield Trial("equal", variation, memory, 0.0, number)
            if number % 4 == 0:
                yield Trial("planted", variation, memory, 0.0, number)
        for deviation in DEVIATIONS:
            yield Trial("runs", 0.03, 0.5, deviation, number)
        if number % 100 == 0:
            for variation, memory in SERIES:
                yield Trial("arch", variation, memory, 0.0, number)


def attempt(trial: Trial) -> dict[str, Any]:
    """What came out, as plain data. The same trial gives the same."""
    random = np.random.default_rng([sum(map(ord, trial.kind)), round(1e4 * trial.variation),
                                    round(1e4 * trial.memory), round(1e4 * trial.deviation),
                                    trial.number])  # fmt: skip
    if trial.kind == "arch":
        return {"off": _off_from_arch(random, trial)}
    if trial.kind == "runs":
        sides = [[_another(random, trial) for _ in range(RUNS)] for _ in "AB"]
    else:
        longer = LONGER if trial.kind == "planted" else 0.0
        stage = STAGES[trial.number // 4 % len(STAGES)]
        sides = [[run(random, trial.variation, trial.memory, steps=STEPS + 1)],
                 [run(random, trial.variation, trial.memory, steps=STEPS + 1, longer=longer,
                      stage=stage)]]  # fmt: skip
    found = compare(sides[0], sides[1], warmup=1)
    assert found.step is not None
    parts = sum(one.interval.share for one in found.stages)
    assert math.isclose(parts, found.step.share, rel_tol=1e-9, abs_tol=1e-12)
    first = found.stages[0]
    return {
        "alarm": found.status != "no difference" or bool(found.different),
        "found": found.status == "slower",
        "right": trial.kind == "planted" and first.stage == stage and first.interval.differs,
        "sees": found.step.sees,
    }


def _another(random: np.random.Generator, trial: Trial) -> Any:
    factor = 1 + trial.deviation * random.standard_normal()
    return run(random, trial.variation, trial.memory, steps=STEPS + 1, factor=factor)


def _off_from_arch(random: np.random.Generator, trial: Trial) -> float:
    """How far the ends of the 95 % interval lie from those of `arch`, as a share of its width: the
    worst of both ends, of the percentiles of our draws and of our standard error."""
    from arch.bootstrap import CircularBlockBootstrap

    steps = [run(random, trial.variation, trial.memory, steps=STEPS).parts[0] for _ in "AB"]
    sides = [np.column_stack([one.sum(1), one]) for one in steps]
    blocks = [longest_block(one) for one in sides]
    ours = [drawn_means(one, block, DRAWS)[:, 0] for one, block in zip(sides, blocks, strict=True)]
    theirs = [
        CircularBlockBootstrap(block, one[:, 0], seed=seed).apply(np.mean, DRAWS)[:, 0]
        for seed, (block, one) in enumerate(zip(blocks, sides, strict=True), 1)
    ]
    ends = [np.quantile(np.log(b / a), (0.025, 0.975)) for a, b in (ours, theirs)]
    samples = [sample([one], by_steps=True, seed=seed) for seed, one in enumerate(sides)]
    errors = [float(one.errors[0] / one.means[0]) for one in samples]
    middle = math.log(samples[1].means[0] / samples[0].means[0])
    half = NormalDist().inv_cdf(0.975) * math.hypot(*errors)
    ends.append(np.array([middle - half, middle + half]))
    width = float(ends[1][1] - ends[1][0])
    return max(float(np.abs(one - ends[1]).max()) for one in (ends[0], ends[2])) / width


# --- the tables ---


def tables(outcomes: dict[Trial, dict[str, Any]]) -> str:
    """Markdown."""
    lines = _head("Series", "Equal sides", "Alarms", "Could have seen", "Planted 2 %", "Found",
                  "Right stage")  # fmt: skip
    for variation, memory in SERIES:
        cells = {kind: [one for trial, one in outcomes.items()
                        if trial[:3] == (kind, variation, memory)]
                 for kind in ("equal", "planted")}  # fmt: skip
        sees = np.mean([one["sees"] for one in cells["equal"]]) if cells["equal"] else math.nan
        lines.append(
            f"| variation {variation:.0%}, autocorrelation {memory} | {len(cells['equal'])} | "
            f"{_share(cells['equal'], 'alarm')} | {sees:.2%} | {len(cells['planted'])} | "
            f"{_share(cells['planted'], 'found')} | {_share(cells['planted'], 'right')} |"
        )
    runs = "Five runs a side, deviation of runs"
    lines += ["", *_head(runs, "Comparisons", "Alarms", "Could have seen")]
    for deviation in DEVIATIONS:
        some = [one for trial, one in outcomes.items()
                if trial.kind == "runs" and trial.deviation == deviation]  # fmt: skip
        sees = np.mean([one["sees"] for one in some]) if some else math.nan
        lines.append(f"| {deviation:.1%} | {len(some)} | {_share(some, 'alarm')} | {sees:.2%} |")
    off = [one["off"] for trial, one in outcomes.items() if trial.kind == "arch"]
    if off:
        lines += [
            "",
            "The ends of the 95 % interval differ from those of `arch` by at most "
            f"{max(off):.1%} of the interval's width ({len(off)}",
            f"pairs of series, mean {np.mean(off):.1%}; the same blocks, {DRAWS:,} draws; "
            "percentiles of the draws, and the standard error).",
        ]
    return "\n".join(lines) + "\n"


def _head(*names: str) -> list[str]:
    return [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]


def _share(outcomes: Sequence[dict[str, Any]], key: str) -> str:
    count = sum(one[key] for one in outcomes)
    return f"{count} ({count / len(outcomes):.1%})" if outcomes else "–"


# --- going on where it was interrupted ---


def digest() -> str:
    """Of what decides the outcomes."""
    package = Path(my_utils.analysis.diff.__file__).parent
    files = [*(package / f"{name}.py" for name in RULES), Path(planted.__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def known_in(store: Path) -> dict[Trial, dict[str, Any]]:
    """What the store has of this very code. A line that is half written counts for nothing."""
    found: dict[Trial, dict[str, Any]] = {}
    if store.exists():
        for line in store.read_text(encoding="utf-8").splitlines():
            try:
                code, trial, outcome = json.loads(line)
            except ValueError:
                continue
            if code == digest():
                found[Trial(*trial)] = outcome
    return found


def run_all(
    todo: Sequence[Trial], store: Path | None, seconds: float
) -> dict[Trial, dict[str, Any]]:
    """Ends after so many seconds with what it has then."""
    known = {} if store is None else known_in(store)
    outcomes = {trial: known[trial] for trial in todo if trial in known}
    ends, code = time.monotonic() + seconds, digest()
    for trial in todo:
        if trial in outcomes:
            continue
        if time.monotonic() > ends:
            break
        outcomes[trial] = attempt(trial)
        if store is not None:
            with store.open("a", encoding="utf-8") as file:
                file.write(json.dumps([code, trial, outcomes[trial]]) + "\n")
        if len(outcomes) % 500 == 0:
            print(f"{len(outcomes)} of {len(todo)}", file=sys.stderr, flush=True)
    return outcomes


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.analysis.diff.proof", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--trials", type=int, default=1000, help="of equal sides, of each series")
    parser.add_argument("--store", type=Path, help="keeps the outcomes, to go on from there")
    parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time")
    parser.add_argument("--out", type=Path, help="the section, in Markdown")
    options = parser.parse_args(argv)
    has_arch = importlib.util.find_spec("arch") is not None
    todo = [one for one in trials(options.trials) if has_arch or one.kind != "arch"]
    outcomes = run_all(todo, options.store, 60 * options.minutes)
    text = tables(outcomes)
    print(text)
    if options.out is not None:
        done = f"{len(outcomes):,} of {len(todo):,} comparisons"
        page = PAGE.format(trials=options.trials, done=done, tables=text)
        options.out.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
