"""Causes of hiccups made for real; `python -m tests.verdict.hiccup_proof` makes more of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .hiccup_proof import RIGHT, attempt, is_quiet

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

HICCUPS = 6
OF_ROOT = {
    "quota": Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
    "lack of memory": Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    "slow disk": Path("/dev/fuse"),
}


@pytest.mark.parametrize("cause", [*RIGHT, "own work", "sleep"])
def test_the_cause_of_hiccups(cause: str) -> None:
    if cause in OF_ROOT and (os.geteuid() != 0 or not OF_ROOT[cause].exists()):
        pytest.skip(f"needs root and {OF_ROOT[cause]}")
    outcomes, verdict = attempt(cause, HICCUPS)
    right = {**RIGHT, "own work": "own", "sleep": "other"}[cause]
    quiet = [one for one in outcomes if is_quiet(one)]
    assert all(one.listed for one in outcomes)
    assert sum(one.named == right for one in quiet) >= len(quiet) - 1, outcomes
    assert verdict == right or len(quiet) < HICCUPS
