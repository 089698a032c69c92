"""Trainings that really hang: `live --once` names the rank that holds the others up, and never one
that waits for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from my_utils.cli.live import EXIT_SUSPECTS
from my_utils.core.run_files.ranks import find_ranks

from ...conftest import RunPython
from ...support.hung_training import PLACES, hung_run
from ...support.live_ranks import wait_until

pytest.importorskip("torch")

pytestmark = [pytest.mark.long_file, pytest.mark.timeout(400)]

STUCK_S = 1.0
START_S = 200.0

CASES = [(place, *who) for place in PLACES for who in ((2, 0), (2, 1), (3, 1))]
CASES += [("input", 3, 0), ("after", 3, 2)]


def all_stand_still(logs: Path, world: int) -> bool:
    ranks = find_ranks(str(logs)).ranks
    return len(ranks) == world and all(
        (rank.still_s or 0.0) > STUCK_S and rank.state == "running" for rank in ranks
    )


def check(folder: Path, run_python: RunPython, place: str, world: int, rank: int) -> None:
    with hung_run(folder, place, rank, world) as logs:
        wait_until(lambda: all_stand_still(logs, world), START_S)
        options = ("--once", "--json", "--stuck-after", str(STUCK_S))
        done = run_python("-m", "my_utils", "live", str(logs), *options)
    seen: dict[str, Any] = json.loads(done.stdout)
    assert [one["rank"] for one in seen["suspects"]] == [rank], seen["suspects"]
    assert done.returncode == EXIT_SUSPECTS
    waiting = {one["rank"]: (one["waits_for"], one["stage"]) for one in seen["waiting"]}
    others = set(range(world)) - {rank}
    assert waiting == dict.fromkeys(others, (rank, "backward"))


@pytest.mark.slow
def test_a_rank_that_hangs_in_its_input(tmp_path: Path, run_python: RunPython) -> None:
    check(tmp_path, run_python, "input", 2, 1)


@pytest.mark.thorough
@pytest.mark.parametrize(("place", "world", "rank"), CASES)
def test_twenty_hangs(
    place: str, world: int, rank: int, tmp_path: Path, run_python: RunPython
) -> None:
    check(tmp_path, run_python, place, world, rank)
