"""The curves of the page: what a step takes, what it gets done, memory and processor over the run.

A curve is the median of the ranks, in a band from the least to the most of them. Places are of a
picture 1000 wide and 100 high.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...core.units import bytes_text, figure_text, ms_text, percent_text
from ..verdict.memory import MEMORY_NAMES
from ..verdict.run_data import NS_IN_US, Integers, Matrix, RunData
from .bars import row_means

POINTS_MAX = 500  # of a curve: of more steps, the mean of several
WIDTH, HEIGHT = 1000, 100
TOP = 4.0  # times the mean: what is above is drawn at the upper edge


@dataclass(frozen=True)
class Curve:
    """line, band: points of the picture, as SVG has them. top: what its upper edge stands for."""

    title: str
    line: str
    band: str
    top: str


def make_curves(run: RunData) -> list[Curve]:
    """Those of what was recorded; none of a run of fewer than two steps."""
    if not run.step_ns.size or len(run.steps) < 2:
        return []
    found = (_curve(run.steps, *one) for one in _series(run))
    return [one for one in found if one is not None]


def _series(run: RunData) -> Iterator[tuple[str, Matrix, Callable[[float], str]]]:
    yield "a step", run.step_ns, ms_text
    with np.errstate(divide="ignore", invalid="ignore"):
        for name in ("samples", "tokens"):
            if name in run.counters:
                whole = run.counters[name].sum(0, keepdims=True)
                yield f"{name} a second", whole / run.step_ns.max(0) * 1e9, _rate_text
        for counter, title in MEMORY_NAMES.items():
            if counter in run.counters:
                yield f"{title} of a rank", run.counters[counter], bytes_text
        if "cpu_us" in run.counters:
            title = "of a core that a rank's training thread has"
            yield title, run.counters["cpu_us"] * NS_IN_US / run.step_ns, percent_text


def _rate_text(value: float) -> str:
    return figure_text(value, 4)


def _curve(
    steps: Integers, title: str, values: Matrix, text: Callable[[float], str]
) -> Curve | None:
    """values: rank × step, NaN where nothing was recorded. None where nothing was."""
    parts = np.array_split(np.arange(len(steps)), min(POINTS_MAX, len(steps)))
    means = np.stack([row_means(values[:, part]) for part in parts], axis=1)
    known = np.isfinite(means).any(0)
    if known.sum() < 2:
        return None
    at = np.array([steps[part].mean() for part in parts])[known]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of ranks of which nothing is known
        low, line, high = np.nanquantile(means[:, known], [0, 0.5, 1], axis=0)
    top = min(float(high.max()), TOP * float(line.mean())) or 1.0
    x = (at - steps[0]) / (steps[-1] - steps[0]) * WIDTH
    edges = np.concatenate([high, low[::-1]])
    band = _points(np.concatenate([x, x[::-1]]), edges / top)
    return Curve(title, _points(x, line / top), band, text(top))


def _points(x: Matrix, height: Matrix) -> str:
    return " ".join(
        f"{one:.1f},{HEIGHT * (1 - other):.1f}"
        for one, other in zip(x, np.minimum(height, 1.0), strict=True)
    )
