"""One trial of the proof: a run is simulated, judged, and held against the table of truth."""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass

import numpy as np

from my_utils.analysis.verdict.result import Finding, Verdict
from my_utils.analysis.verdict.rules import judge
from tests.analysis.verdict.truth import (
    COSTLY,
    SLOPE_WITHIN,
    TRUTHS,
    accusations,
    right_kind,
    right_ranks,
    right_stage,
    seen_loss,
)
from tests.support.run_simulator.device import DevicePlant, DeviceScenario, simulate_device
from tests.support.run_simulator.meetings import Topology
from tests.support.run_simulator.plants import PLANTS
from tests.support.run_simulator.simulate import Scenario, Simulated, simulate

STEPS = {64: 120, 1000: 80}  # 160 for fewer ranks
PROMISE_WITHIN = 0.1  # of the step without the plant


@dataclass(frozen=True)
class Trial:
    """plant: a name of the table of truth, None for a healthy run. number: of the trial in its
    cell; the topology goes round with it."""

    plant: str | None
    ranks: int
    loss: float
    number: int
    recorded: bool = True
    device: bool = False


@dataclass(frozen=True)
class Outcome:
    """inside: the plant lies inside meetings and was rightly not named. promise: how far the
    promised step is from that without the plant, as a part of it; NaN where nothing was promised.
    others: accusations beside the right one that cost a tenth of the run."""

    trial: Trial
    topology: str
    status: str
    kind: bool
    ranks: bool
    stage: bool
    promise: float
    others: int
    inside: bool
    said: str
    seconds: float

    @property
    def right(self) -> bool:
        return self.kind and self.ranks and self.stage


def topologies(plant: str | None, ranks: int) -> tuple[Topology, ...]:
    """Those that a run of this size can have, and in which the plant can be seen."""
    if ranks == 1:
        return ("alone",)
    some: tuple[Topology, ...] = ("ddp", "ddp_buffers", "fsdp")
    if ranks >= 4:
        some = (*some, "two_groups")
    if plant is not None and plant.startswith("slow backward"):
        return some  # a pipeline does not meet in backward
    # A host must leave each pipeline stage ranks that are on other hosts.
    if ranks > 8 or (ranks == 8 and plant != "slow host"):
        some = (*some, "pipeline")
    return some


def run_of(trial: Trial) -> tuple[Simulated, Topology]:
    steps = STEPS.get(trial.ranks, 160)
    if trial.device:
        return _device_run(trial, steps), "ddp"
    kinds = topologies(trial.plant, trial.ranks) if trial.recorded else _with_waits(trial.ranks)
    topology = kinds[trial.number % len(kinds)]
    scenario = Scenario(
        trial.ranks, steps, topology, trial.plant, trial.loss, trial.number, trial.recorded
    )
    return simulate(scenario), topology


def _with_waits(ranks: int) -> tuple[Topology, ...]:
    return ("ddp",) if ranks > 1 else ("alone",)


def _device_run(trial: Trial, steps: int) -> Simulated:
    plant: DevicePlant | None = trial.plant  # type: ignore[assignment]  # of TRUTHS, not of PLANTS
    synchronises = plant is None and trial.number % 2 == 1
    hides = plant is None and not synchronises and trial.number % 3 == 1
    return simulate_device(
        DeviceScenario(
            trial.ranks, steps, plant, trial.loss, trial.number,
            synchronises=synchronises,
            hidden_input=0.3 if hides else 0.0,
        )
    )  # fmt: skip


def attempt(trial: Trial) -> Outcome:
    simulated, topology = run_of(trial)
    began = time.perf_counter()
    verdict = judge(simulated.run)
    seconds = time.perf_counter() - began
    return outcome(trial, topology, simulated, verdict, seconds)


def outcome(
    trial: Trial, topology: Topology, simulated: Simulated, verdict: Verdict, seconds: float
) -> Outcome:
    accused = accusations(verdict.findings, simulated.run.device)
    finding = _answer(trial, accused, verdict)
    said = "; ".join(_said(one) for one in accused) or verdict.reason or verdict.status
    make = functools.partial(
        Outcome, trial, topology, verdict.status, inside=False, said=said, seconds=seconds
    )
    if trial.plant is None:
        slower = any(one.kind == "slower rank" for one in verdict.findings)
        innocent = not accused and not slower and verdict.status != "found"
        return make(innocent, innocent, innocent, np.nan, len(accused))
    truth = TRUTHS[trial.plant]
    if _is_inside(trial, topology, simulated, verdict) and not accused:
        make = functools.partial(make, inside=truth.accuses)
        return make(True, True, True, promise=np.nan, others=0)
    if finding is None or verdict.status == "not judged":
        return make(False, False, False, np.nan, len(accused))
    others = sum(one.share >= COSTLY for one in accused if one is not finding)
    right = right_kind(trial.plant, trial.ranks, finding)
    if truth.kinds == ("memory grows",):
        right = right and _slope_is_right(finding, simulated.bytes_a_step)
    return make(
        right and (truth.accuses or not accused),
        right_ranks(trial.plant, simulated, finding),
        right_stage(trial.plant, topology, simulated, finding),
        _promise(simulated, verdict, finding),
        others,
    )


def _is_inside(trial: Trial, topology: Topology, simulated: Simulated, verdict: Verdict) -> bool:
    """Too little of the plant can be seen, and the verdict says that there it did not judge."""
    assert trial.plant is not None
    return (
        trial.plant != "growing memory"
        and seen_loss(trial.plant, trial.loss, topology, simulated) < COSTLY
        and verdict.status != "not judged"
        and any(one.kind == "not judged inside" for one in verdict.findings)
    )


def _answer(trial: Trial, accused: list[Finding], verdict: Verdict) -> Finding | None:
    """The finding that is held against the truth: the most costly accusation. What costs no time,
    and what accuses nobody, may stand further down."""
    if trial.plant is None:
        return None
    truth = TRUTHS[trial.plant]
    if truth.kinds == ("memory grows",) or not truth.accuses:
        named = [one for one in verdict.findings if one.kind in truth.kinds]
        return named[0] if named else None
    timely = [one for one in accused if one.kind != "memory grows"]
    return timely[0] if timely else None


def _slope_is_right(finding: Finding, bytes_a_step: float) -> bool:
    slope = finding.detail.get("bytes_a_step")
    return slope is not None and abs(float(slope) / bytes_a_step - 1) <= SLOPE_WITHIN


def _promise(simulated: Simulated, verdict: Verdict, finding: Finding) -> float:
    """NaN for a verdict that promises none (launches). Means are over the judged steps: a saving
    counts for each of them. Where the verdict says "at most", the step may well be shorter."""
    if not finding.saves_ns_a_step:
        return float(np.nan)
    judged = slice(verdict.warmup or 0, None)
    promised = float(simulated.step_ns[judged].mean()) - finding.saves_ns_a_step
    healthy = float(simulated.healthy_ns[judged].mean())
    off = (healthy - promised) / healthy
    return max(off, 0.0) if finding.detail.get("at_least") else abs(off)


def _said(finding: Finding) -> str:
    few = ",".join(map(str, finding.ranks[:3])) + (",…" if len(finding.ranks) > 3 else "")
    since = "" if finding.since_step is None else f" since {finding.since_step}"
    return f"{finding.kind}({finding.stage}) ranks {few}{since} {finding.share:.0%}"


def host_plants() -> list[str]:
    return list(PLANTS)
