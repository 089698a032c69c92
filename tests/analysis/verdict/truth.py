"""What the verdict must say of each plant: the kind, the ranks and the stage.

This table was written before the rules were seen. It was amended after their first results in three
entries that asked for too much: slow backward on one rank, plants that lie inside meetings, and the
kind of a rank alone that sleeps. `ranks` names those that the simulator slowed ("planted"), all
ranks ("all"), or any ("any", where no rank is to blame). `stage` is the one with the lost time.
Where that stage is one in which the ranks meet, the excess in it cannot be told from waiting, so
"stage not known" (None) is right too. `sizes` leaves out what cannot be seen: one rank alone has
nobody to wait for it, and a slow host needs two of its ranks and one elsewhere.

What one rank does inside a meeting cannot be seen at all: it is as long on those that wait. A plant
of which less than COSTLY of the run can be seen need not be named; then nobody may be accused, and
the meeting must be "not judged inside".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from my_utils.analysis.verdict.result import Finding
from tests.support.run_simulator.meetings import Topology, meeting_stages, seen_of
from tests.support.run_simulator.simulate import Simulated
from tests.support.run_simulator.work import STAGES

SIZES = (1, 2, 4, 8, 64, 1000)
SHARED = SIZES[1:]
HOSTS = SIZES[2:]
HARMLESS = ("not judged inside", "warm-up", "slower rank")
"""Kinds that accuse nobody; on a device `compute` too."""
COSTLY = 0.1  # of the run: less leaves a run ok
SINCE_WITHIN = 3  # steps
SLOPE_WITHIN = 0.1


@dataclass(frozen=True)
class Truth:
    kinds: tuple[str, ...]
    ranks: Literal["planted", "all", "any"]
    stages: tuple[str | None, ...] | None  # None: any
    sizes: Sequence[int] = SIZES
    alone: tuple[str, ...] = ()  # the kinds for one rank alone, where they are others
    accuses: bool = True  # False: nobody may be accused, and the run may be ok


TRUTHS: dict[str, Truth] = {
    "slow loader on one rank": Truth(("input",), "planted", ("input",), SHARED),
    "slow loader on all ranks": Truth(("input",), "all", ("input",)),
    "slow host": Truth(("straggler",), "planted", (None,), HOSTS),
    "all ranks slower from a step on": Truth(("slower since",), "all", ("forward",)),
    "slow forward on one rank": Truth(("straggler",), "planted", ("forward",), SHARED),
    "slow optimizer on all ranks": Truth(("optimizer",), "all", ("optimizer",)),
    "slow optimizer on one rank": Truth(
        ("optimizer", "straggler"), "planted", ("optimizer",), SHARED
    ),
    "one rank sleeps every 5th step": Truth(
        ("straggler",), "planted", ("forward",), alone=("host hiccups", "straggler")
    ),
    "growing memory": Truth(("memory grows",), "planted", None),
    "GC pauses": Truth(("host hiccups",), "planted", None),
    "CPU hog": Truth(("host hiccups",), "planted", None),
    "uneven batches": Truth(("moving imbalance",), "any", None, SHARED),
    "checkpoint stalls on all ranks": Truth(("checkpoint",), "all", ("checkpoint",)),
    "checkpoint stalls on rank 0": Truth(("checkpoint",), "planted", ("checkpoint",), SHARED),
    "evaluation on all ranks": Truth(("eval",), "all", ("eval",)),
    "evaluation on rank 0": Truth(("eval",), "planted", ("eval",), SHARED),
    "untimed work on all ranks": Truth(("untimed",), "all", (None, "untimed")),
    "falling throughput": Truth(("throughput falls",), "all", None),
    "slow backward on all ranks": Truth(
        ("not judged inside",), "any", ("backward",), SHARED, accuses=False
    ),
    "slow backward on one rank": Truth(
        ("not judged inside",), "any", ("backward",), SHARED, accuses=False
    ),
    "slow copies to the device": Truth(("h2d",), "all", ("h2d",)),
    "launches slower than the device": Truth(("launch",), "all", None),
    "slow all-reduce of the script": Truth(("communication",), "all", ("collective",), SHARED),
    "slow loader on all ranks, GPU": Truth(("input",), "all", ("input",)),
    "slow loader on one rank, GPU": Truth(("input",), "planted", ("input",), SHARED),
    "slow device in forward on one rank": Truth(("straggler",), "planted", ("forward",), SHARED),
}


def seen_loss(name: str, loss: float, topology: Topology, simulated: Simulated) -> float:
    """The part of the run that is lost where it can be seen that a rank is late."""
    planted = simulated.planted
    assert planted is not None
    if TRUTHS[name].ranks == "all" or not planted.pattern.any():
        return loss
    lost = np.abs(planted.pattern[list(planted.ranks)]).sum(axis=(0, 1))
    seen = sum(part * seen_of(stage, topology) for part, stage in zip(lost, STAGES, strict=True))
    return loss * float(seen / lost.sum())


def accusations(findings: Sequence[Finding], device: str) -> list[Finding]:
    """Those that say something is wrong with the run."""
    harmless = (*HARMLESS, "compute") if device == "cuda" else HARMLESS
    return [finding for finding in findings if finding.kind not in harmless]


def right_kind(name: str, ranks: int, finding: Finding) -> bool:
    truth = TRUTHS[name]
    kinds = truth.alone if truth.alone and ranks == 1 else truth.kinds
    return finding.kind in kinds


def right_ranks(name: str, simulated: Simulated, finding: Finding) -> bool:
    everyone = tuple(simulated.run.ranks.tolist())
    assert simulated.planted is not None
    match TRUTHS[name].ranks:
        case "planted":
            return tuple(finding.ranks) == simulated.planted.ranks
        case "all":
            return tuple(finding.ranks) in (everyone, ())
        case _:
            return True


def right_stage(name: str, topology: Topology, simulated: Simulated, finding: Finding) -> bool:
    """The stage, and from which step on where that belongs to it."""
    stages, planted = TRUTHS[name].stages, simulated.planted
    assert planted is not None
    if planted.since_step is not None and (
        finding.since_step is None or abs(finding.since_step - planted.since_step) > SINCE_WITHIN
    ):
        return False
    if stages is None or finding.stage in stages:
        return True
    meets = planted.stage in meeting_stages(topology)
    return meets and TRUTHS[name].ranks == "planted" and finding.stage is None
