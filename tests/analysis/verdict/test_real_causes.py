"""Causes of hiccups made for real; `tests.analysis.verdict.hiccup_proof` makes more of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .hiccup_proof import BESIDE, RIGHT, attempt, is_quiet

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

HICCUPS = 6
MEMORY = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")
OF_ROOT = {
    "quota": Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), "lack of memory": MEMORY,
    "little memory": MEMORY, "slow disk": Path("/dev/fuse"),
}  # fmt: skip
# Of version 2 the kernel counts a cgroup's pressure, also where version 1 has the controllers.
VERSION_2 = Path("/sys/fs/cgroup/unified/memory.pressure")


def skip_if_missing(path: Path | None) -> None:
    if path is not None and (os.geteuid() != 0 or not path.exists()):
        pytest.skip(f"needs root and {path}")


@pytest.mark.parametrize("cause", [*RIGHT, "own work", "sleep"])
def test_the_cause_of_hiccups(cause: str) -> None:
    name = cause.removesuffix(", v2")
    skip_if_missing(OF_ROOT.get(name))
    skip_if_missing(VERSION_2 if name != cause else None)
    right = {**RIGHT, **BESIDE}[cause]
    outcomes, verdict = attempt(cause, HICCUPS)
    quiet = [one for one in outcomes if is_quiet(one)]
    assert all(one.listed for one in outcomes)
    assert sum(one.named == right for one in quiet) >= len(quiet) - 1, outcomes
    assert verdict == right or len(quiet) < HICCUPS
