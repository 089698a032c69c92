"""What hiccups were: planted in the times and in what the host is said to have taken."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from my_utils.analysis.verdict.causes import describe_worker, find_causes
from my_utils.analysis.verdict.run_data import HOST_COUNTERS
from my_utils.analysis.why import Finding, Verdict, judge

from ...support.array_runs import ArrayRun

pytestmark = pytest.mark.no_torch

HICCUP_MS = 200.0
STEPS = range(5, 120, 9)
TEXTS = {
    "gc0": "garbage collection, generation 0",
    "gc1": "garbage collection, generation 1",
    "gc2": "garbage collection, generation 2",
    "delay": "waiting for a core",
    "quota": "waiting for the quota of its cgroup",
    "own": "own work",
    "stopped": "being stopped, by a signal or with its machine",
    "gil": "waiting for the GIL",
    "storage": "waiting for storage",
    "page": "waiting for pages of its memory to be read from a disk",
    "memory": "lack of memory in its cgroup",
    "other": "sleeping, or waiting for another thread, a process or the network",
}
SAMPLED = ("gil_us", "storage_us", "page_us", "other_us", "stopped_us")
WHERE = {"delay": "delay_us", "quota": "delay_us", "memory": "page_us"} | {
    name.removesuffix("_us"): name for name in SAMPLED
}
COUNTED = ("major_faults", "limits_met", "refaults", *SAMPLED)  # mostly 0
SAMPLE_US = 20_000


def sampled(host: Mapping[str, npt.NDArray[np.float64]], seed: int) -> None:
    """As a sampler sees it: in samples, each of which stands for 20 ms, and rounded at random."""
    random = np.random.default_rng(seed)
    for name in SAMPLED[:-1]:
        lower = np.floor(host[name] / SAMPLE_US + random.uniform(0, 1, host[name].shape))
        host[name][:] = lower * SAMPLE_US


def judged(shares: Mapping[str, float], ranks: int, seed: int, *left_out: str) -> Verdict:
    """Of a run whose last rank has hiccups that are made of these shares."""
    run = ArrayRun(ranks=ranks, seed=seed)
    for step in STEPS:
        stage = run.stages[run.random.integers(len(run.stages))]
        run.more(stage, HICCUP_MS, rank=ranks - 1, steps=step)
    shape = (ranks, run.steps)
    host = {name: np.abs(run.random.normal(300, 30, shape)) for name in HOST_COUNTERS}
    host["cpu_us"] += 60_000
    for name in COUNTED:
        host[name][:] = 0
    here = -1, list(STEPS)
    for name, share in shares.items():
        more_us = 1000 * HICCUP_MS * share
        host[WHERE.get(name, "cpu_us")][here] += more_us
        if name.startswith("gc") or name == "quota":
            host[f"{name}_us"][here] += more_us
        host["refaults"][here] += 60 * (name == "memory")
    sampled(host, seed)
    missing = ("stalled_us", *left_out)  # as where cgroups are of version 1
    return judge(run.data(counters={k: v for k, v in host.items() if k not in missing}))


def hiccups_of(verdict: Verdict) -> Finding:
    assert verdict.findings[0].kind == "host hiccups", verdict.lines()
    return verdict.findings[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("cause", TEXTS)
def test_a_cause_with_most_of_the_time_is_named(cause: str, ranks: int, seed: int) -> None:
    other = "delay" if cause != "delay" else "own"
    share = float(np.random.default_rng(seed).uniform(0.6, 0.9))
    verdict = judged({cause: share, other: 1 - share}, ranks, seed)
    one = hiccups_of(verdict)
    assert one.detail["cause"] == cause
    assert one.detail["causes"][0] == (cause, pytest.approx(share, abs=0.1))
    line = next(line for line in verdict.lines(200) if "of that" in line)
    assert TEXTS[cause] in line and "unknown" not in line
    assert any("docs/runs/hiccups.md" in line for line in verdict.lines(200))


def test_a_collection_that_had_no_core_most_of_the_time() -> None:
    """Its time is taken by the clock, so what it waited for a core is in it."""
    took_us = 1000 * HICCUP_MS
    run = ArrayRun(ranks=2, seed=0)
    for step in STEPS:
        run.more("untimed", HICCUP_MS, rank=1, steps=step)
    host = {name: np.zeros((2, run.steps)) for name in ("cpu_us", "delay_us", "gc2_us")}
    here = 1, list(STEPS)
    host["gc2_us"][here], host["cpu_us"][here] = 0.99 * took_us, 0.14 * took_us
    host["delay_us"][here] = 0.86 * took_us
    detail = judge(run.data(counters=host)).findings[0].detail
    assert detail["causes"] == [("gc2", pytest.approx(0.99, abs=0.03))]


def test_causes_of_equal_parts_are_unknown() -> None:
    verdict = judged({"gc2": 0.35, "delay": 0.33, "own": 0.32}, 4, 0)
    one = hiccups_of(verdict)
    assert one.detail["cause"] == "unknown"
    assert [name for name, _ in one.detail["causes"]] == ["gc2", "delay", "own"]
    assert any("cause unknown: of that" in line for line in verdict.lines(200))


@pytest.mark.parametrize("missing", ["cpu_us", "delay_us"])
def test_what_was_not_measured_is_no_cause(missing: str) -> None:
    verdict = judged({"own": 0.9}, 4, 0, missing)
    assert "causes" not in hiccups_of(verdict).detail
    assert not any("of that" in line for line in verdict.lines(200))


@pytest.mark.parametrize("cause", ["gil", "storage", "page", "other"])
def test_waiting_that_was_not_sampled_has_no_name_of_its_own(cause: str) -> None:
    """As where the kernel does not say what a thread waits for, or the user has switched it off."""
    verdict = judged({cause: 0.9}, 4, 0, *SAMPLED)
    assert hiccups_of(verdict).detail["cause"] == "wait"
    assert any("waiting for a disk, a lock, or stopped" in line for line in verdict.lines(200))


def test_other_waiting_may_be_for_a_gil_that_was_not_watched() -> None:
    assert hiccups_of(judged({"other": 0.9}, 4, 0, "gil_us")).detail["cause"] == "wait"
    assert hiccups_of(judged({"storage": 0.9}, 4, 0, "gil_us")).detail["cause"] == "storage"


def test_what_the_samples_did_not_see_is_unknown() -> None:
    """The thread neither ran nor was ready to, and was not seen to wait: nobody knows."""
    verdict = judged({"other": 0.1, "stopped": 0.15}, 1, 0)
    assert hiccups_of(verdict).detail["cause"] == "unknown"
    assert hiccups_of(verdict).detail["causes"] == []


@pytest.mark.parametrize(
    ("waits", "counters", "cause"),
    [
        ({"page_us": 150e3}, {}, "page"),
        ({"page_us": 150e3}, {"refaults": 60.0}, "memory"),
        ({"page_us": 150e3}, {"limits_met": 60.0}, "page"),  # reading fills it, and nothing lacks
        ({"page_us": 150e3}, {"stalled_us": 140e3}, "memory"),
        ({"page_us": 150e3}, {"stalled_us": 10e3, "refaults": 60.0}, "memory"),
        ({"page_us": 150e3}, {"stalled_us": 10e3}, "page"),
        ({"page_us": 150e3}, {"host_memory_stalled_us": 140e3}, "page"),  # others lack it
        ({"page_us": 150e3}, {"refaults": 60.0, "major_faults": 2000.0}, "page"),  # of others
        (
            {"page_us": 150e3},
            {"refaults": 60.0, "major_faults": 2000.0, "limits_met": 60.0},
            "memory",
        ),
        ({}, {"major_faults": 2000.0}, "page"),  # each too short to be seen in a sample
        ({}, {"major_faults": 200.0}, "unknown"),
        ({"storage_us": 150e3}, {"refaults": 60.0}, "storage"),
        ({"storage_us": 150e3}, {"stalled_us": 140e3}, "memory"),
        ({"storage_us": 150e3}, {"stalled_us": 10e3}, "storage"),
        ({"storage_us": 150e3}, {"host_memory_stalled_us": 140e3}, "storage"),
        (
            {"cpu_us": 150e3, "kernel_us": 140e3},
            {"stalled_us": 10e3, "limits_met": 60.0},
            "memory",
        ),
        ({"cpu_us": 150e3, "kernel_us": 140e3}, {"limits_met": 60.0}, "memory"),
        ({"cpu_us": 150e3, "kernel_us": 140e3}, {}, "own"),
        ({"cpu_us": 150e3, "kernel_us": 10e3}, {"limits_met": 60.0}, "own"),
    ],
)
def test_what_lack_of_memory_was(
    waits: Mapping[str, float], counters: Mapping[str, float], cause: str
) -> None:
    names = {"cpu_us", "kernel_us", "delay_us", "page_us", "storage_us", "other_us", "gil_us",
             "stopped_us", "limits_met", "refaults", *counters}  # fmt: skip
    host = {name: np.zeros((1, 40)) for name in names}
    sizes = np.zeros((1, 40))
    sizes[0, 20] = 150e6
    for name, value in {**waits, **counters}.items():
        host[name][0, 20] = value
    assert find_causes(host, sizes)["cause"] == cause


@pytest.mark.parametrize(
    ("counter", "cause"), [("stopped_us", "stopped"), ("stalled_us", "memory")]
)
def test_what_the_sampler_counts_a_step_later(counter: str, cause: str) -> None:
    names = ("cpu_us", "delay_us", "other_us", "storage_us", counter)
    host = {name: np.zeros((1, 40)) for name in names}
    sizes = np.zeros((1, 40))
    sizes[0, 20] = 150e6
    host["storage_us"][0, 20] = 150e3
    host[counter][0, 21] = 140e3
    assert find_causes(host, sizes)["cause"] == cause


def input_run(**loader: npt.NDArray[np.float64]) -> Finding:
    run = ArrayRun(ranks=1, seed=1)
    run.more("input", 200, rank=0, steps=slice(0, run.steps))
    return judge(run.data(counters=loader)).findings[0]


def test_the_worker_that_input_waits_for() -> None:
    worker = np.full((1, 120), 2.0)
    worker[0, ::5] = np.nan
    some, little = np.full((1, 120), 180e3), np.full((1, 120), 5e3)
    one = input_run(loader_worker=worker, loader_storage_us=some, loader_ran_us=little)
    assert one.kind == "input"
    assert (one.detail["worker"], one.detail["workers_do"]) == (2, "storage")
    one = input_run(loader_worker=worker, loader_storage_us=little, loader_ran_us=some)
    assert (one.detail["worker"], one.detail["workers_do"]) == (2, "runs")
    worker[0, ::2] = 1
    one = input_run(loader_worker=worker, loader_storage_us=some, loader_ran_us=little)
    assert "worker" not in one.detail and one.detail["workers_do"] == "storage"
    assert "workers_do" not in input_run().detail


@pytest.mark.parametrize("number", [-1.0, 1e15, np.inf])
def test_a_number_that_no_worker_has_does_not_count(number: float) -> None:
    worker, some = np.full((1, 120), 2.0), np.full((1, 120), 180e3)
    worker[0, ::3] = number
    counters = {"loader_storage_us": some, "loader_ran_us": some / 36}
    one = input_run(loader_worker=worker, **counters)
    assert (one.kind, one.detail["worker"], one.detail["workers_do"]) == ("input", 2, "storage")
    one = input_run(loader_worker=np.full((1, 120), number), **counters)
    assert one.kind == "input" and "workers_do" not in one.detail


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_rows_that_are_missing(share: float) -> None:
    run = ArrayRun(ranks=2, seed=3)
    for step in STEPS:
        run.more(run.stages[step % 4], HICCUP_MS, rank=1, steps=step)
    host: dict[str, npt.NDArray[np.float64]] = {
        name: np.zeros((2, run.steps)) for name in HOST_COUNTERS
    }
    host["delay_us"][1, list(STEPS)] = 1000 * HICCUP_MS
    lost = list(STEPS)[: round(share * len(STEPS))]
    for values in host.values():
        values[1, lost] = np.nan
    detail = hiccups_of(judge(run.data(counters=host))).detail
    assert detail.get("cause") == ("delay" if share < 0.2 else None)


def test_pages_from_a_disk_are_counted() -> None:
    run = ArrayRun(ranks=2, seed=3)
    for step in STEPS:
        run.more(run.stages[step % 4], HICCUP_MS, rank=1, steps=step)
    host = {name: np.zeros((2, run.steps)) for name in HOST_COUNTERS}
    host["major_faults"][1, list(STEPS)] = 240
    verdict = judge(run.data(counters=host))
    assert hiccups_of(verdict).detail["disk_pages"] == 240
    assert any("it reads 240 pages from a disk" in line for line in verdict.lines(200))


@pytest.mark.parametrize(
    ("shares", "does"),
    [((90e3, 5e3, 5e3), "runs"), ((20e3, 70e3, 10e3), "delay"), ((10e3, 20e3, 70e3), "storage"),
     ((40e3, 35e3, 25e3), "runs"), ((9e3, 5e3, 6e3), "waits"), ((0.0, 0.0, 20e3), "waits")],
)  # fmt: skip
def test_what_workers_do_most(shares: tuple[float, float, float], does: str) -> None:
    names = ("loader_ran_us", "loader_delay_us", "loader_storage_us")
    host = {name: np.full((1, 6), us) for name, us in zip(names, shares, strict=True)}
    host["loader_worker"] = np.ones((1, 6))
    waited_ns = np.full((1, 6), 110e6)
    assert describe_worker(host, waited_ns) == {"workers_do": does, "worker": 1}
    del host["loader_delay_us"]  # as where the kernel does not say
    assert describe_worker(host, waited_ns)["worker"] == 1


def test_what_a_worker_that_waits_for_storage_reads() -> None:
    """Of the worker that is named, over all judged steps; nothing where it was not measured."""
    steps = np.full((1, 8), 100e6)
    host = {name: np.full((1, 8), 1e3) for name in ("loader_ran_us", "loader_delay_us")}
    host["loader_storage_us"] = np.full((1, 8), 90e3)
    host["loader_worker"] = np.array([[1, 1, 0, 1, 1, 1, np.nan, 1]])
    assert "read_bytes" not in describe_worker(host, steps)
    host["loader_read_bytes"] = np.array([[np.nan, 8e6, 5e9, np.nan, 16e6, 0.0, np.nan, np.nan]])
    assert describe_worker(host, steps) == {"workers_do": "storage", "worker": 1, "read_bytes": 3e6}
    host["loader_read_bytes"][:] = 0  # a file system of which the kernel counts nothing
    assert "read_bytes" not in describe_worker(host, steps)


def test_how_many_others_wanted_to_run_and_what_was_collected() -> None:
    sizes = np.zeros((1, 20))
    sizes[0, [4, 9]] = 100e6
    host = {name: np.zeros((1, 20)) for name in HOST_COUNTERS}
    host["delay_us"][sizes > 0] = 90e3
    assert "others" not in find_causes(host, sizes)
    host["runnable"] = np.full((1, 20), np.nan)
    host["runnable"][0, [2, 4, 9]] = 90, 5, 5
    assert find_causes(host, sizes)["others"] == 4
    host["delay_us"][:] = 0.0
    host["cpu_us"][sizes > 0] = host["gc2_us"][sizes > 0] = 90e3
    host["gc_objects"] = np.full((1, 20), np.nan)
    host["gc_objects"][0, [4, 9]] = 4_500_000, 4_712_345
    detail = find_causes(host, sizes)
    assert (detail["cause"], detail["objects"]) == ("gc2", 4_712_345)
    assert "others" not in detail
