"""Runs on CUDA are compared by what stages take the device, and not by where the host waits."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from my_utils.analysis.diff.comparison import compare
from my_utils.analysis.diff.load import RunSteps, read_steps
from my_utils.analysis.diff.result import Difference
from tests.support.run_simulator.device import DevicePlant, DeviceScenario, simulate_device

pytestmark = pytest.mark.no_torch

STAGES: dict[DevicePlant, set[str]] = {
    "slow copies to the device": {"h2d"},
    "launches slower than the device": {"forward", "backward", "optimizer"},
    "slow all-reduce of the script": {"collective"},
    "slow loader on all ranks, GPU": {"input"},
    "slow loader on one rank, GPU": {"input", "backward"},  # the others wait in backward
    "slow device in forward on one rank": {"forward", "backward"},
}


def steps(
    plant: DevicePlant | None, seed: int, ranks: int, waits: bool, gpu_times: float = 1.0
) -> RunSteps:
    scenario = DeviceScenario(
        ranks, 160, plant, 0.3 if plant else 0.0, seed, synchronises=waits, gpu_times=gpu_times
    )
    return read_steps(simulate_device(scenario).run, {})


def shares(found: Difference) -> dict[str, float]:
    return {one.stage: one.interval.share for one in found.stages}


@pytest.mark.parametrize("waits", [False, True], ids=["runs ahead", "reads the loss"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("plant", STAGES)
def test_the_stage_that_takes_the_device_longer_is_named(
    plant: DevicePlant, ranks: int, waits: bool
) -> None:
    for seed in range(4):
        found = compare([steps(None, seed, ranks, waits)], [steps(plant, seed, ranks, waits)])
        assert found.step is not None and found.status == "slower" and not found.notes
        more = {stage: share for stage, share in shares(found).items() if share > 0}
        planted = sum(share for stage, share in more.items() if stage in STAGES[plant])
        assert planted == pytest.approx(found.step.share, rel=0.15), (seed, more)
        least = min(shares(found).values())
        assert least > -0.05, (seed, shares(found))


def test_all_plants_are_tried() -> None:
    assert set(STAGES) == set(get_args(DevicePlant))


def test_steps_without_gpu_times_and_the_next_ones_do_not_count() -> None:
    some = steps(None, 1, 2, True, gpu_times=0.9)
    every = steps(None, 1, 2, True)
    assert len(every.step_ns) == 159 and 120 < len(some.step_ns) < 150
    assert some.step_ns.min() > 0.5 * every.step_ns.min()
    assert some.step_ns.max() < 1.5 * every.step_ns.max()


def test_a_side_without_gpu_times_is_compared_by_the_hosts() -> None:
    one, other = steps(None, 1, 1, True), steps(None, 1, 1, True, gpu_times=0.0)
    assert one.by_host is not None and other.by_host is None
    host = one.by_host.step_ns.copy()
    one.path, other.path = "one", "other"
    found = compare([one], [other], warmup=0)
    assert "other has no GPU times: stages are compared by the times of the hosts" in found.notes
    assert "launch" not in shares(found)
    assert found.a_ns == pytest.approx(np.sort(host)[16:-16].mean(), rel=0.01)


def test_two_sides_without_gpu_times_say_what_their_stages_are() -> None:
    sides = [steps(None, seed, 1, False, gpu_times=0.0) for seed in (1, 2)]
    found = compare([sides[0]], [sides[1]])
    assert sum("the host's times of enqueueing" in one for one in found.notes) == 2
