"""The simulator is what it says: waits follow from the meetings, plants cost what was asked for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.run_simulator import meetings, noise, work
from tests.support.run_simulator.device import (
    KERNEL_NS,
    STAGES,
    START_NS,
    DeviceScenario,
    simulate_device,
)
from tests.support.run_simulator.plants import PLANTS
from tests.support.run_simulator.simulate import HEALTHY_LOSS, Scenario, simulate

TOPOLOGIES: list[meetings.Topology] = ["ddp", "ddp_buffers", "fsdp", "pipeline", "two_groups"]


def planned(ranks: int, steps: int, slow: dict[tuple[int, str], float]) -> work.Matrix:
    """10 ms in forward and in backward, and 1 ms in input; `slow` adds ms to a rank's stage."""
    own = np.zeros((ranks, steps, len(work.STAGES)))
    for stage, ms in (("input", 1.0), ("forward", 10.0), ("backward", 10.0)):
        own[:, :, work.column(stage)] = ms * 1e6
    for (rank, stage), ms in slow.items():
        own[rank, :, work.column(stage)] += ms * 1e6
    return own


def totals_ms(own: work.Matrix, topology: meetings.Topology, stage: str) -> work.Matrix:
    line = meetings.timeline(own, topology, np.random.default_rng(0))
    mean: work.Matrix = line.totals[:, 1:, work.column(stage)].mean(axis=1) / 1e6
    return mean


def test_under_ddp_the_others_wait_in_backward_for_a_slow_loader() -> None:
    waited = totals_ms(planned(4, 20, {(2, "input"): 5}), "ddp", "backward")
    assert waited == pytest.approx([15.2, 15.2, 10.2, 15.2], abs=0.2)


def test_with_buffers_the_others_wait_in_forward_for_rank_0_and_in_backward_for_others() -> None:
    slow_first = planned(4, 20, {(0, "input"): 5})
    assert totals_ms(slow_first, "ddp_buffers", "forward") == pytest.approx(
        [10, 15, 15, 15], abs=0.2
    )
    slow_last = planned(4, 20, {(3, "input"): 5})
    assert totals_ms(slow_last, "ddp_buffers", "forward") == pytest.approx(
        [10, 10, 10, 10], abs=0.2
    )
    backward = totals_ms(slow_last, "ddp_buffers", "backward")
    assert backward == pytest.approx([15.2, 15.2, 15.2, 10.2], abs=0.2)


def test_under_fsdp_a_slow_forward_is_waited_for_in_the_next_parts() -> None:
    own = planned(2, 20, {(1, "forward"): 6})
    assert totals_ms(own, "fsdp", "forward") == pytest.approx([14, 16], abs=0.2)
    assert totals_ms(own, "fsdp", "backward") == pytest.approx([12.2, 10.2], abs=0.2)


def test_two_groups_do_not_wait_for_each_other() -> None:
    waited = totals_ms(planned(4, 20, {(1, "input"): 5}), "two_groups", "backward")
    assert waited == pytest.approx([15.2, 10.2, 10.2, 10.2], abs=0.2)


def test_a_slow_stage_of_a_pipeline_holds_up_all_stages_and_replicas() -> None:
    waited = totals_ms(planned(8, 20, {(5, "forward"): 10}), "pipeline", "collective")
    assert waited.argmin() == 5
    assert np.delete(waited, 5).min() > waited[5] + 8
    computed = totals_ms(planned(8, 20, {(5, "forward"): 10}), "pipeline", "forward")
    assert computed == pytest.approx([10, 10, 10, 10, 10, 20, 10, 10])


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_noise_costs_a_healthy_run_little(topology: meetings.Topology) -> None:
    for seed in range(3):
        found = simulate(Scenario(64, 40, topology, seed=seed))
        own_ns = found.run.totals.sum(axis=2)
        assert (found.run.step_ns >= own_ns - 1).all()  # stages do not overlap
        quiet = work.draw(
            np.random.default_rng(np.random.SeedSequence([seed, 64]).spawn(3)[0]), 64, 40
        )
        quiet_ns = meetings.timeline(quiet.total_ns(0.0), topology, np.random.default_rng(seed))
        _, step_ns = meetings.step_times(quiet_ns)
        assert found.step_ns.mean() < step_ns.mean() * (1 + 2 * HEALTHY_LOSS)


@pytest.mark.parametrize("plant", sorted(PLANTS.keys() - {"growing memory"}))
def test_a_plant_costs_the_part_of_the_run_that_was_asked_for(plant: str) -> None:
    for number, topology in enumerate(TOPOLOGIES):
        found = simulate(Scenario(64, 60, topology, plant, 0.2, seed=number))
        lost = 1 - found.healthy_ns.mean() / found.step_ns.mean()
        assert lost == pytest.approx(0.2, abs=0.02), topology


def test_growing_memory_grows_by_its_slope_on_the_rank_that_it_names() -> None:
    found = simulate(Scenario(4, 160, "ddp", "growing memory", 0.2, seed=3))
    assert found.planted is not None
    late = found.run.counters["rss_bytes"][:, 40:]
    slopes = np.polyfit(np.arange(late.shape[1]), late.T, 1)[0]
    (rank,) = found.planted.ranks
    assert slopes[rank] == pytest.approx(found.bytes_a_step, rel=0.1)
    assert (np.abs(np.delete(slopes, rank)) < 0.1 * found.bytes_a_step).all()


def test_the_same_scenario_gives_the_same_run_and_plants_share_the_healthy_one() -> None:
    one, again = (simulate(Scenario(8, 40, "fsdp", "GC pauses", 0.2, seed=5)) for _ in range(2))
    assert np.array_equal(one.run.begins, again.run.begins, equal_nan=True)
    other = simulate(Scenario(8, 40, "fsdp", "CPU hog", 0.5, seed=5))
    assert np.array_equal(one.healthy_ns, other.healthy_ns)
    assert np.array_equal(one.healthy_ns, simulate(Scenario(8, 40, "fsdp", seed=5)).step_ns)


def test_step_times_are_from_begin_to_begin() -> None:
    run = simulate(Scenario(4, 40, "ddp", seed=1)).run
    assert np.allclose(np.diff(run.step_begins, axis=1), run.step_ns[:, :-1])
    assert np.allclose(run.step_begins, np.nanmin(run.begins, axis=2))


def test_the_recorded_noise_is_around_one_and_drawn_in_blocks() -> None:
    names, rows = noise.table()
    assert np.allclose(np.median(rows, axis=0), 1, atol=0.1)
    drawn = noise.draw(np.random.default_rng(0), 3, 20, names)
    for start in (0, noise.BLOCK):
        block = drawn[1, start : start + noise.BLOCK]
        assert any(np.array_equal(block, rows[at : at + len(block)]) for at in range(len(rows)))


def test_the_host_runs_ahead_of_the_device_and_is_held_up_by_the_queue() -> None:
    run = simulate_device(DeviceScenario(2, 60, seed=1)).run
    assert run.gpu is not None
    trailing = run.gpu.ends[:, 10:, -1] - run.ends[:, 10:, -1]
    assert (trailing > 0.3 * run.step_ns[:, 10:]).mean() > 0.9
    device_ns = np.nansum(run.gpu.totals[:, 10:-1], axis=2)
    assert np.median(run.step_ns[:, 10:-1] / device_ns) == pytest.approx(1, abs=0.05)


def test_a_launch_bound_device_ends_as_soon_as_the_host_has_enqueued() -> None:
    plant = DeviceScenario(2, 60, "launches slower than the device", 0.5, seed=1)
    run = simulate_device(plant).run
    assert run.gpu is not None
    trailing = run.gpu.ends[:, 10:, -1] - run.ends[:, 10:, -1]
    assert np.median(trailing) < START_NS + KERNEL_NS + 1


def test_a_copy_from_pageable_memory_holds_the_host() -> None:
    found = simulate_device(DeviceScenario(1, 60, "slow copies to the device", 0.5, seed=2))
    run, at = found.run, STAGES.index("h2d")
    assert run.gpu is not None
    assert np.allclose(run.ends[:, :, at], run.gpu.ends[:, :, at])
    assert 1 - found.healthy_ns.mean() / found.step_ns.mean() == pytest.approx(0.5, abs=0.03)
