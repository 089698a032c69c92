"""How often a comparison of two runs is wrong, beside TraceML's; and how long the bootstrap takes,
beside arch's and beside one sort.

Half of the pairs of runs are equal, half have 2 % more in one stage
(`tests/analysis/diff/series.py`). TraceML compares the means of all steps with a threshold; what is
wrong is an alarm of equal runs, or none of those that differ. As a program it prints how often each
tool says "slower", by how much it is and how the steps vary, as the table of docs/runs/diff.md:

    python -m benchmarks.bench_diff
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable

import numpy as np

from benchmarks.harness import Claim, NotMeasured, Row
from my_utils.analysis.diff.comparison import compare
from my_utils.analysis.diff.intervals import drawn_means
from my_utils.analysis.diff.load import RunSteps
from tests.analysis.diff.series import run as one_run

PAIRS, SMOKE_PAIRS = 100, 4  # of each kind
LONGER = 0.02
STEPS, DRAWS, BLOCK = 500, 2000, 12
SERIES = ((0.03, 0.5), (0.03, 0.0), (0.04, 0.3), (0.04, 0.0))  # variation and autocorrelation
PLANTED = (0.0, 0.01, 0.02, 0.03, 0.05)
MANY_STEPS, FIGURES = 2_000_000, 5  # 10⁷ figures
SMOKE_STEPS = 20_000

Tool = Callable[[RunSteps, RunSteps], bool]  # whether it says that the second one is slower


def ours(a: RunSteps, b: RunSteps) -> bool:
    return compare([a], [b], warmup=0).status == "slower"


def traceml(a: RunSteps, b: RunSteps) -> bool:
    from traceml_ai.reporting.compare.policy import (
        DEFAULT_COMPARE_POLICY,
        evaluate_step_time_ci_result,
    )

    more = 100 * (b.step_ns.mean() / a.step_ns.mean() - 1)
    limit = DEFAULT_COMPARE_POLICY.step_avg_pct_moderate
    said = evaluate_step_time_ci_result(delta_pct=float(more), threshold_pct=limit)
    return bool(said == "SLOWER_IN_THIS_PAIR")


def wrong(tool: Tool, pairs: int) -> tuple[int, int]:
    """Alarms of equal pairs, and pairs that differ without one."""
    random = np.random.default_rng(0)
    alarms = sum(tool(one_run(random), one_run(random)) for _ in range(pairs))
    found = sum(tool(one_run(random), one_run(random, longer=LONGER)) for _ in range(pairs))
    return alarms, pairs - found


def best_of(work: Callable[[], object], times: int = 3) -> float:
    """The fewest seconds that it takes."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def against_traceml(pairs: int) -> Row:
    what = f"wrong answers of {2 * pairs} pairs of runs, half of them 2 % apart"
    if importlib.util.find_spec("traceml_ai") is None:
        return NotMeasured(what, "TraceML: pip install traceml-ai")
    return Claim(
        what, sum(wrong(ours, pairs)), "TraceML's compare", sum(wrong(traceml, pairs)), "", 0.5
    )


def against_arch(draws: int) -> Row:
    what = f"{draws:,} draws of the mean of {STEPS} steps"
    if importlib.util.find_spec("arch") is None:
        return NotMeasured(what, "arch: pip install arch")
    from arch.bootstrap import CircularBlockBootstrap

    steps = one_run(np.random.default_rng(0), steps=STEPS).step_ns

    def theirs() -> object:
        return CircularBlockBootstrap(BLOCK, steps, seed=0).apply(np.mean, draws)

    took = best_of(lambda: drawn_means(steps[:, None], BLOCK, draws)), best_of(theirs)
    return Claim(what, took[0] * 1e3, "arch", took[1] * 1e3, "ms", 3, faster=True)


def against_a_sort(steps: int) -> Row:
    figures = np.random.default_rng(0).lognormal(size=(steps, FIGURES))
    took = (
        best_of(lambda: drawn_means(figures, steps // 1000, DRAWS)),
        best_of(lambda: np.sort(figures, axis=0)),
    )
    what = f"{DRAWS:,} draws of {steps * FIGURES:,} figures"
    return Claim(what, took[0], "np.sort of them", took[1], "s", 10)


def run(smoke: bool) -> list[Row]:
    return [
        against_traceml(SMOKE_PAIRS if smoke else PAIRS),
        against_arch(50 if smoke else DRAWS),
        against_a_sort(SMOKE_STEPS if smoke else MANY_STEPS),
    ]


def said_slower(tool: Tool, variation: float, memory: float, longer: float) -> int:
    """Of PAIRS pairs; every tool gets the same."""
    random = np.random.default_rng([round(1e4 * one) for one in (variation, memory, longer)])
    return sum(
        tool(
            one_run(random, variation, memory, steps=STEPS),
            one_run(random, variation, memory, steps=STEPS, longer=longer),
        )
        for _ in range(PAIRS)
    )


def main() -> None:
    tools = {"`my_utils diff`": ours}
    if importlib.util.find_spec("traceml_ai") is not None:
        tools["TraceML `compare`"] = traceml
    heads = ["equal", *(f"{longer:.0%} slower" for longer in PLANTED[1:])]
    print(f"| Series | Tool | {' | '.join(heads)} |\n|{'---|' * (2 + len(heads))}")
    for variation, memory in SERIES:
        for name, tool in tools.items():
            counts = [said_slower(tool, variation, memory, longer) for longer in PLANTED]
            series = f"variation {variation:.0%}, autocorrelation {memory}"
            print(f"| {series} | {name} | {' | '.join(map(str, counts))} |", flush=True)


if __name__ == "__main__":
    main()
