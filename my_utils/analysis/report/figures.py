"""The plots of the report, and what they show of ranks and steps.

Plots take an empty matplotlib figure; state of pyplot is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.equality import same_fields
from ...core.tables import write_figure
from ..verdict.run_data import Integers, Matrix, RunData
from ..verdict.slow_ranks import over_peers, taken_ns
from ..verdict.sync import Meetings
from .stragglers import Straggler
from .waits import busy_ns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .analysis import Report


BLUE, RED, GREY = "#2f6fad", "#c23b22", "#8a8f98"
BARS_MAX = 20
RANKS_MAX, STEPS_MAX = 512, 1024  # of a matrix that is drawn


@dataclass
class Heat:
    """What ranks took over the median of their peers, in ms. stage: "" for the whole step.

    ranks and steps name the first of each row and column: where there are too many, the largest
    value of neighbours stands for them all.
    """

    stage: str
    ranks: Integers
    steps: Integers
    excess_ms: Matrix

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)


def make_heat(
    run: RunData, meetings: Meetings, stragglers: list[Straggler], shown: Integers
) -> Heat:
    """Of the stage of the most expensive straggler; without one, of all but what ranks wait in.
    shown: rows of the run."""
    stage = stragglers[0].stage if stragglers else ""
    if stage in run.stages:
        took = taken_ns(run, run.stages.index(stage))
    else:
        stage, took = "", busy_ns(run, meetings)
    excess = over_peers(took, meetings)[shown] * 1e-6
    rows = _firsts(len(shown), RANKS_MAX)
    columns = _firsts(len(run.steps), STEPS_MAX)
    filled = np.where(np.isfinite(excess), excess, -np.inf)
    small = np.maximum.reduceat(np.maximum.reduceat(filled, rows, axis=0), columns, axis=1)
    small[np.isinf(small)] = np.nan
    return Heat(stage, run.ranks[shown][rows], run.steps[columns], small)


def _firsts(count: int, most: int) -> Integers:
    parts = min(count, most)
    firsts: Integers = np.arange(parts) * count // parts
    return firsts


def draw_steps(report: Report, figure: Figure) -> None:
    """Step time over steps, with the band over ranks."""
    figure.set_size_inches(11, 3.6)
    axes = figure.add_subplot()
    steps = report.steps
    axes.plot(steps["step"], steps["median_ms"], color=BLUE, lw=1.4, label="step")
    busy = "step without waits" if report.run["synchronising"] else "whole step"
    axes.fill_between(
        steps["step"], steps["busy_low_ms"], steps["busy_high_ms"], color=BLUE, alpha=0.3, lw=0,
        label=f"{busy}: 10 % to 90 % of the ranks",
    )  # fmt: skip
    axes.plot(steps["step"], steps["busy_max_ms"], color=RED, lw=0.8, label=f"{busy}: busiest rank")
    for change in report.changes:
        axes.axvline(change.step, color=GREY, ls="--", lw=0.8)
    axes.set(xlabel="step", ylabel="ms a step", title="Time of a step")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower left", fontsize="small")


def draw_heat(report: Report, figure: Figure) -> None:
    """Rank by step: what a stage took over the median of the ranks."""
    figure.set_size_inches(11, 4.2)
    axes = figure.add_subplot()
    heat = report.heat
    known = heat.excess_ms[np.isfinite(heat.excess_ms)]
    limit = float(np.quantile(np.abs(known), 0.999)) if known.size else 1.0
    image = axes.imshow(
        heat.excess_ms, aspect="auto", cmap="RdBu_r", vmin=-limit or -1, vmax=limit or 1,
        interpolation="nearest",
    )  # fmt: skip
    _tick(axes.set_xticks, heat.steps)
    _tick(axes.set_yticks, heat.ranks)
    what = heat.stage or "step without waits"
    axes.set(xlabel="step", ylabel="rank", title=f"{what}: ms over the median of the ranks")
    figure.colorbar(image, ax=axes, label="ms")


def _tick(place: Callable[..., Any], names: Any) -> None:
    at = np.unique(np.linspace(0, len(names) - 1, min(len(names), 11)).astype(int))
    place(at, [str(names[i]) for i in at])


def draw_stages(report: Report, figure: Figure) -> None:
    """Bars of the stages that take most, and how much of each is on the critical path."""
    stages = report.stages.sort_values("self_s", ascending=False).head(BARS_MAX)[::-1]
    figure.set_size_inches(11, 1.4 + 0.28 * len(stages))
    axes = figure.add_subplot()
    ranks, steps = max(report.run["ranks"], 1), max(report.run["steps"], 1)
    mean = stages["self_s"] * 1e3 / ranks / steps
    counted = max(steps - report.run["warmup"], 1)
    critical = stages["critical_s"] * 1e3 / counted
    places = np.arange(len(stages))
    axes.barh(places + 0.2, mean, 0.38, color=BLUE, label="mean of the ranks")
    axes.barh(places - 0.2, critical, 0.38, color=RED, label="on the critical path")
    names = [
        f"{name} (waits)" if waits else name
        for name, waits in zip(stages["stage"], stages["synchronises"], strict=True)
    ]
    axes.set_yticks(places, names)
    axes.set(xlabel="ms a step, without the stages inside", title="Where the time of a step goes")
    axes.legend(loc="lower right", fontsize="small")


FIGURES: dict[str, Callable[[Report, Figure], None]] = {
    "step_time": draw_steps,
    "rank_by_step": draw_heat,
    "stages": draw_stages,
}


def write_figures(report: Report, folder: Path) -> list[Path]:
    """`folder`/<name>.png for each of FIGURES."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in FIGURES.items():
        paths.append(folder / f"{name}.png")
        write_figure(paths[-1], lambda figure, draw=draw: draw(report, figure))  # type: ignore[misc]
    return paths
