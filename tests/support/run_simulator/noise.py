"""Noise of healthy real runs, drawn in blocks so that what belongs together stays together.

The table has the duration of each stage in each step, divided by the medians around it; see
`tests.support.record_residuals` for how it was made.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float64]

TABLE = Path(__file__).resolve().parents[2] / "data" / "healthy_residuals.csv"
BLOCK = 8  # steps that are drawn together


@functools.cache
def table() -> tuple[tuple[str, ...], Matrix]:
    """The names of the columns, and the rows of all recorded ranks, one after the other."""
    names = TABLE.read_text(encoding="utf-8").partition("\n")[0].split(",")[2:]
    rows = np.loadtxt(TABLE, delimiter=",", skiprows=1, usecols=range(2, 2 + len(names)))
    return tuple(names), rows


def draw(random: np.random.Generator, ranks: int, steps: int, like: tuple[str, ...]) -> Matrix:
    """Residuals around 1, ranks × steps × len(like); `like` names the recorded stage for each."""
    names, rows = table()
    blocks = -(-steps // BLOCK)
    starts = random.integers(len(rows) - BLOCK, size=(ranks, blocks, 1))
    picked = (starts + np.arange(BLOCK)).reshape(ranks, -1)[:, :steps]
    drawn: Matrix = rows[picked][:, :, [names.index(name) for name in like]]
    return drawn
