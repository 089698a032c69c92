"""Ranks that meet: which stages they meet in is recorded, and with whom."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run.test_stages_of_scripts import SCRIPTS, check, result, rows_of
from tests.support.ranks import ROOT, free_port

RANKS = 2
pytestmark = pytest.mark.timeout(300)


def run_ranks(how: str, folder: Path, script: str, ranks: int = RANKS) -> Path:
    settings = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.support.run_truth", how, str(folder),
             str(SCRIPTS / script)],
            cwd=ROOT, env={**settings, "RANK": str(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        assert [process.wait() for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return folder / Path(script).stem


COLLECTIVE = ("collective", "collective")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "wrapper", "meetings"),
    [
        ("ddp", "DDP", {("backward", "ddp"), ("forward", "ddp"), ("collective", "collective")}),
        pytest.param(
            "fsdp2",
            "FSDP2",
            {("backward", "fsdp"), ("forward", "fsdp"), ("collective", "clip")},
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_ranks_record_where_they_meet(
    script: str, wrapper: str, meetings: set[tuple[str, str]], tmp_path: Path
) -> None:
    folder = run_ranks("truth", tmp_path / "truth", f"{script}.py")
    bare = run_ranks("bare", tmp_path / "bare", f"{script}.py")
    for rank in range(RANKS):
        check(folder, rank)
        assert result(folder, rank)["hash"] == result(bare, rank)["hash"]
        rows = rows_of(folder, rank)
        [run] = [row for row in rows if row.name == "my_utils.run"]
        assert run.metadata["wrappers"] == wrapper
        found = [row.metadata for row in rows if row.name == "my_utils.sync"]
        # FSDP2 may call collectives of its own outside forward and backward.
        assert {(row["stage"], row["kind"]) for row in found} - meetings <= {COLLECTIVE}
        assert meetings <= {(row["stage"], row["kind"]) for row in found}
        assert {row["members"] for row in found} == {"0-1"}


@pytest.mark.slow
def test_a_meeting_is_recorded_with_the_group_that_was_passed_and_of_its_members_only(
    tmp_path: Path,
) -> None:
    """The groups are passed by position, and torch's distributed checkpoints wait, too."""
    folder = run_ranks("truth", tmp_path, "groups.py")
    for rank, groups in ((0, {"0-1"}), (1, {"0-1", "1"})):
        check(folder, rank)
        found = [row.metadata for row in rows_of(folder, rank) if row.name == "my_utils.sync"]
        assert {row["members"] for row in found if row["stage"] == "collective"} == groups
        [checkpoint] = [row for row in found if row["stage"] == "checkpoint"]
        assert (checkpoint["kind"], checkpoint["members"]) == ("collective", "0-1")


@pytest.mark.thorough
def test_a_batch_of_sends_is_recorded_with_the_group_of_its_operations(tmp_path: Path) -> None:
    folder = run_ranks("truth", tmp_path, "pairs.py", 3)
    for rank in range(2):
        check(folder, rank)
        found = [row.metadata for row in rows_of(folder, rank) if row.name == "my_utils.sync"]
        pipelines = {(row["stage"], row["members"]) for row in found if row["kind"] == "pipeline"}
        assert pipelines == {("collective", "0-1")}
