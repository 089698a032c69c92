"""Finds the ranks on which a stage differs."""

from __future__ import annotations

import numpy as np

from ..verdict.run_data import Matrix

REST = 0.25  # of what the named ranks have, that the mean of the others may have
SCATTER = 0.2  # of the ranks' scatter, that may be left within the two groups


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
