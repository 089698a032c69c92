"""The cells of windows, of many ranks at once: against sums in plain Python, rank by rank."""

from __future__ import annotations

import numpy as np
import pytest

from my_utils.analysis.verdict.window_cells import WindowCells, cells_of_windows
from my_utils.analysis.verdict.window_files import CELL, HEAD, RankWindows

pytestmark = pytest.mark.no_torch

PATHS = ["forward", "save"]
START_NS = 1_750_000_000_000_000_000


def windows_of(rank: int, first_steps: list[int], attempts: list[int] | None = None) -> RankWindows:
    """Windows of 100 steps, of which each third one saves as well."""
    random = np.random.default_rng(rank)
    windows, cells = np.zeros(len(first_steps), HEAD), []
    for at, first in enumerate(first_steps):
        row = windows[at]
        row["first_step"], row["last_step"], row["steps"] = first, first + 99, 100 - at
        row["attempt"] = attempts[at] if attempts else 1
        row["begin_ns"] = START_NS + 10**9 * at + int(random.integers(10**6))
        row["mean_begin_ns"], row["sum_ns"] = random.integers(10**8), random.integers(10**9)
        row["max_ns"] = random.integers(10**7)
        for path in range(2 if at % 3 == 0 else 1):
            times = random.uniform(0, 1e8, 2)
            cells.append((at, path, 100 - at - path, 0, *times, 0.1, 0.4 + path / 2))
    return RankWindows(rank, windows, np.array(cells, CELL), PATHS, [0, 1])


def check(one: RankWindows, found: WindowCells, width: int) -> None:
    groups: dict[int, list[int]] = {}
    for at, first in enumerate(one.windows["first_step"].tolist()):
        groups.setdefault(first // width * width, []).append(at)
    assert found.steps.steps.tolist() == list(groups)
    step_ns, _, longest_ns = found.steps.values
    for column, those in enumerate(groups.values()):
        rows = one.windows[those]
        steps = int(rows["steps"].sum())
        assert step_ns[column] == pytest.approx(int(rows["sum_ns"].sum()) / steps)
        assert longest_ns[column] == rows["max_ns"].max()
    wanted = {}
    for first, those in groups.items():
        steps = int(one.windows["steps"][those].sum())
        for path in range(len(PATHS)):
            own = [cell for cell in one.cells if cell["window"] in those and cell["path"] == path]
            if own:
                wanted[first, path] = sum(float(cell["sum_ns"]) for cell in own) / steps
    cells = found.cells
    places = zip(cells["step"].tolist(), cells["path"].tolist(), strict=True)
    assert dict(zip(places, cells["self_ns"].tolist(), strict=True)) == pytest.approx(
        wanted, abs=1.0
    )


@pytest.mark.parametrize("width", [100, 200, 1000])
def test_sums_of_ranks_that_are_alike_and_of_one_that_is_not(width: int) -> None:
    whole = list(range(0, 1000, 100))
    ranks = [windows_of(0, whole), windows_of(1, whole), windows_of(2, whole[:7])]
    found = cells_of_windows(ranks, width)
    assert len(found) == len(ranks)
    for one, cells in zip(ranks, found, strict=True):
        check(one, cells, width)


def test_when_a_stage_begins_and_ends() -> None:
    one = windows_of(3, [0])
    (found,) = cells_of_windows([one], 100)
    row = one.windows[0]
    mean_ns = int(row["sum_ns"]) / int(row["steps"])
    begin_ns = int(row["begin_ns"]) + int(row["mean_begin_ns"])
    first = (found.cells["begin_ns"][0] - begin_ns, found.cells["end_ns"][0] - begin_ns)
    assert first == pytest.approx((0.1 * mean_ns, 0.4 * mean_ns), abs=1.0)


def test_the_first_column_of_an_attempt() -> None:
    one = windows_of(0, [0, 100, 200, 300], [1, 1, 2, 2])
    (found,) = cells_of_windows([one], 100)
    assert found.begins_anew.tolist() == [200]
    (alone,) = cells_of_windows([windows_of(0, [0, 100])], 100)
    assert not len(alone.begins_anew)
