"""Each moment belongs to the innermost stage that is open: against a search moment by moment."""

from __future__ import annotations

import numpy as np
import pytest

from my_utils.analysis.ledger.sweep import cut_segments

pytestmark = pytest.mark.no_torch


def nested(random: np.random.Generator, begin: int, end: int, depth: int) -> list[list[int]]:
    """Stages between two moments: begin, end and depth of each."""
    found = []
    at = begin
    while at < end - 1 and random.random() < 0.8:
        first = int(random.integers(at, end - 1))
        last = int(random.integers(first + 1, end + 1))
        found.append([first, last, depth])
        if depth < 3 and random.random() < 0.5:
            found += nested(random, first, last, depth + 1)
        at = last
    return found


@pytest.mark.parametrize("seed", range(200))
def test_each_moment_is_in_the_innermost_stage(seed: int) -> None:
    random = np.random.default_rng(seed)
    stages = np.array(nested(random, 0, 60, 0) or [[3, 5, 0]])
    random.shuffle(stages)
    begins, ends, depths = stages.T
    found = cut_segments(begins, ends, depths)
    assert found.begin_ns[0] == begins.min() and found.begin_ns[-1] == ends.max()
    for at in range(int(begins.min()), int(ends.max())):
        open_ = [row for row in range(len(stages)) if begins[row] <= at < ends[row]]
        segment = int(np.searchsorted(found.begin_ns, at, "right")) - 1
        owner = int(found.owner[segment])
        if open_:
            assert owner == max(open_, key=lambda row: depths[row])
        else:
            assert owner == -1
            before = max(row for row in begins if row <= at)
            assert begins[found.since[segment]] == before


@pytest.mark.parametrize("seed", range(100))
def test_stages_that_do_not_nest_take_no_moment_twice(seed: int) -> None:
    random = np.random.default_rng(seed)
    begins = random.integers(0, 100, 30)
    ends = begins + random.integers(1, 40, 30)
    found = cut_segments(begins, ends, random.integers(0, 3, 30))
    assert (np.diff(found.begin_ns) >= 0).all()
    assert np.diff(found.begin_ns).sum() == ends.max() - begins.min()
    assert len(found.owner) == len(found.since) == len(found.begin_ns) - 1
