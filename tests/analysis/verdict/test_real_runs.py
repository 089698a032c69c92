"""The verdict of real runs: processes that meet over gloo, each with one thing wrong with it.

One rank and two compute, four sleep: they have more ranks than most test machines have processors.
`tests/support/real_run.py` has the stages and what is wrong. The runs record stages by MyTimer and
nothing about where ranks meet, as a user of the first release does.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.verdict.load import load_run
from my_utils.analysis.verdict.result import Verdict
from my_utils.analysis.verdict.rules import judge

from ...support.ranks import Ranks
from .truth import TRUTHS, accusations

pytestmark = [pytest.mark.long_file, pytest.mark.timeout(480)]

SIZES = (1, 2, 4)
NEEDS_PROCESSOR = ("CPU hog",)  # takes one from a rank that computes
IN_GATE = (("slow loader on one rank", 2),)
PLANTS = (
    "slow loader on one rank", "slow loader on all ranks", "slow host",
    "all ranks slower from a step on", "slow forward on one rank", "slow optimizer on all ranks",
    "one rank sleeps every 5th step", "growing memory", "GC pauses", "CPU hog", "uneven batches",
    "checkpoint stalls on all ranks", "evaluation on all ranks", "untimed work on all ranks",
    "falling throughput", "slow backward on all ranks",
)  # fmt: skip


def cases() -> list[object]:
    found: list[object] = []
    for plant in PLANTS:
        for world in SIZES:
            if world not in TRUTHS[plant].sizes or (plant in NEEDS_PROCESSOR and world == 4):
                continue
            marks = () if (plant, world) in IN_GATE else (pytest.mark.thorough,)
            found.append(pytest.param(plant, world, marks=marks))
    return found


def verdict_of(plant: str, world: int, folder: Path) -> Verdict:
    logs = folder / "logs"
    code = (
        "from tests.support.real_run import train\n"
        f"train(rank, world, {plant!r}, {str(logs)!r})\n"
        "dist.barrier()\n"
        "dist.destroy_process_group()"
    )
    results = Ranks(code, world, folder).finish(timeout_s=400)
    assert [status for status, _, _ in results] == [0] * world, results
    run = load_run([str(logs)])
    # Other tests take cores from these ranks, which is a finding, too, and not what is planted.
    run.counters = {name: one for name, one in run.counters.items() if name != "delay_us"}
    return judge(run)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "world"), cases())
def test_a_real_run_gets_the_verdict_of_its_plant(plant: str, world: int, tmp_path: Path) -> None:
    from tests.support.real_run import SINCE, plants  # it imports torch

    verdict, truth = verdict_of(plant, world, tmp_path), TRUTHS[plant]
    text = "\n".join(verdict.lines())
    if plant == "growing memory" or not truth.accuses:
        found = [one for one in verdict.findings if one.kind in truth.kinds]
        if not truth.accuses and not found:  # ranks so much alike that nobody waits
            assert verdict.status == "ok", text
            return
        (finding,) = found
    else:
        assert verdict.status == "found", text
        finding = accusations(verdict.findings, "cpu")[0]
    assert finding.kind in (truth.alone if truth.alone and world == 1 else truth.kinds), text
    if not truth.accuses:
        assert verdict.status == "ok", text
    blamed = plants(world)[plant].ranks
    if truth.ranks == "planted":
        assert finding.ranks == blamed, text
    elif truth.ranks == "all":
        assert finding.ranks in (tuple(range(world)), ()), text
    if truth.stages is not None:
        assert finding.stage in truth.stages, text
    if plant == "all ranks slower from a step on":
        assert finding.since_step is not None, text
        assert abs(finding.since_step - SINCE) <= 3, text
