"""Times gathered from real processes: ranks that differ, are late, broken, killed or stopped."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist

from my_utils.record.timing import gather as times_gather
from my_utils.timing import GatheredTime, TimeManager, timer_wrap

from ...support.ranks import free_port

pytestmark = pytest.mark.long_file

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("torch.distributed has no gloo here", allow_module_level=True)

WORLD = 3
STORES: Any = dist  # which does not export them by name
Scenario = Callable[[int], GatheredTime | None]


def join(rank: int, world_size: int, port: int, backend: str = "gloo") -> Any:
    """Makes this process a rank; the store that it shares with the others."""
    signal.alarm(100)  # nothing of a test outlives it
    times_gather._GRACE_S = 60.0  # the store answers, though a busy machine may take its time
    if backend == "fake":
        import torch.testing._internal.distributed.fake_pg  # noqa: F401
    store = STORES.TCPStore("127.0.0.1", port, world_size, rank == 0)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
    return store


def start(world_size: int, target: Callable[..., None], *args: object) -> list[BaseProcess]:
    context = multiprocessing.get_context("spawn")
    port = free_port()
    ranks: list[BaseProcess] = [
        context.Process(target=target, args=(rank, port, *args), daemon=True)
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    return ranks


def end(ranks: list[BaseProcess]) -> None:
    for process in ranks:
        if process.is_alive():
            process.kill()
        process.join(10)


# --- ranks that live ----------------------------------------------------------------------------


def samples_of(rank: int, count: int) -> list[int]:
    generator = np.random.default_rng(rank)
    found: list[int] = (generator.lognormal(0.0, 0.7, count) * 3e5).astype(np.int64).tolist()
    return found


def filled(rank: int) -> TimeManager:
    """Rank 0 has most, rank 2 nothing."""
    tm = TimeManager()
    for name, count in [("step", 500), ("load", 20), ("only 0", 3)][: (3, 2, 0)[rank]]:
        for ns in samples_of(rank, count - rank):
            tm.add(name, ns)
    return tm


def differing(rank: int) -> GatheredTime | None:
    return filled(rank).gather(dst=0)


def summaries(rank: int) -> GatheredTime | None:
    return filled(rank).gather(summary=True)


def to_rank_1(rank: int) -> GatheredTime | None:
    return filled(rank).gather(dst=1)


def to_all(rank: int) -> GatheredTime | None:
    found = filled(rank).gather(dst=None)
    assert found is not None and not found.missing
    check_filled(found)
    return found if rank == 0 else None


def several_managers(rank: int) -> GatheredTime | None:
    """The rank's order does not matter where tags tell the gathers apart."""
    managers = {tag: TimeManager({tag: [float(rank)]}) for tag in ("a", "b")}
    order = ["a", "b"] if rank != 1 else ["b", "a"]
    found = {tag: managers[tag].gather(tag=tag) for tag in order}
    if rank == 0:
        assert found["a"] is not None and list(found["a"]) == ["a"]
        assert found["a"]["a"].sum() == 3.0
    return found["b"]


def many_parts(rank: int) -> GatheredTime | None:
    times_gather._CHUNK_BYTES = 100
    try:
        return filled(rank).gather()
    finally:
        times_gather._CHUNK_BYTES = 4 * 1024 * 1024


def job_store() -> Any:
    return STORES.distributed_c10d._get_default_store()


def reached(what: str) -> None:
    job_store().set(f"reached {what}", "")


def wait_for(*what: str) -> None:
    keys = [f"reached {each}" for each in what]
    deadline = time.monotonic() + 60
    while not job_store().check(keys):
        assert time.monotonic() < deadline, f"no rank reached {what}"
        time.sleep(0.005)


def one_is_late(rank: int) -> GatheredTime | None:
    if rank == 0:
        wait_for("end of rank 2")
    elif rank == 1:
        wait_for("end of rank 0")
    found = filled(rank).gather(timeout_s=0.5 if rank == 0 else 60)
    reached(f"end of rank {rank}")
    return found


def after_the_late_one(rank: int) -> GatheredTime | None:
    return filled(rank).gather()


def one_sends_rubbish(rank: int) -> GatheredTime | None:
    if rank != 1:
        return filled(rank).gather()
    store = job_store()
    exchange = times_gather.Exchange(store, rank=1, world_size=WORLD, tag="", timeout_s=9)
    exchange.send(pickle.dumps({"evil": 1}), wait=False)
    return None


def others_go_on(rank: int) -> GatheredTime | None:
    """Ranks that send do not wait for the one that receives, which is late here."""
    if rank == 0:
        wait_for("rank 1 goes on", "rank 2 goes on")
    found = filled(rank).gather()
    reached(f"rank {rank} goes on")
    return found


def own_store(rank: int) -> GatheredTime | None:
    store = STORES.PrefixStore("mine", job_store())
    return filled(rank).gather(store=store)


def own_store_made_anew(rank: int) -> GatheredTime | None:
    """As after another init_process_group on torchrun's store, which keeps what it knows."""
    return own_store(rank)


SCENARIOS: list[Scenario] = [
    differing, summaries, to_rank_1, to_all, several_managers, many_parts, one_is_late,
    after_the_late_one, one_sends_rubbish, others_go_on, own_store,
    own_store_made_anew,
]  # fmt: skip


def run_scenarios(rank: int, port: int, folder: str) -> None:
    store = join(rank, WORLD, port)
    for scenario in SCENARIOS:
        dist.barrier()
        found = scenario(rank)
        expected = 1 if scenario is to_rank_1 else 0
        assert (found is not None) == (rank == expected), scenario.__name__
        if found is not None:
            found.save(f"{folder}/{scenario.__name__}")
    dist.barrier()
    if rank == 0:
        tags = ["", "a", "b", "/to/0", "/to/1", "/to/2"]
        left = [store.check([f"my_utils/timing/{tag}/{turn}/{rank}"])
                for tag in tags for turn in range(1, 12) for rank in range(WORLD)]  # fmt: skip
        Path(folder, "left").write_text(str(sum(left)))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gathered")
    ranks = start(WORLD, run_scenarios, str(folder))
    for process in ranks:
        process.join(80)
    codes = [process.exitcode for process in ranks]
    end(ranks)
    assert codes == [0] * WORLD
    return folder


def gathered(folder: Path, scenario: Scenario) -> GatheredTime:
    return GatheredTime.load(folder / scenario.__name__)


def check_filled(found: GatheredTime, ranks: tuple[int, ...] = (0, 1)) -> None:
    """Against what numpy says of all durations of these ranks."""
    for name, count in [("step", 500), ("load", 20), ("only 0", 3)]:
        having = [rank for rank in ranks if rank == 0 or name != "only 0"]
        parts = [np.array(samples_of(rank, count - rank)) / 1e9 for rank in having]
        every = np.concatenate(parts)
        data = found[name]
        assert data.ranks == having
        assert data.rank_count() == len(having)
        assert data.count() == every.size
        assert data.sum() == pytest.approx(every.sum(), rel=1e-12)
        assert data.mean() == pytest.approx(every.mean(), rel=1e-12)
        assert data.std() == pytest.approx(every.std(ddof=1), rel=1e-9)
        assert (data.min(), data.max()) == (every.min(), every.max())
        shares = [0, 1, 25, 50, 99, 100]
        expected = np.percentile(every, shares, method="inverted_cdf")
        if data.is_summary:
            assert data.percentile(shares) == pytest.approx(expected, rel=0.01)
        else:
            assert data.percentile(shares) == expected.tolist()
            assert data.samples.tolist() == every.tolist()
    assert list(found) == ["step", "load", "only 0"]
    assert found.world_size == WORLD


class TestRanksThatLive:
    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "scenario",
        [
            differing,
            many_parts,
            after_the_late_one,
            others_go_on,
            own_store,
            own_store_made_anew,
            to_rank_1,
            to_all,
        ],
    )
    def test_different_names_counts_and_nothing(self, folder: Path, scenario: Scenario) -> None:
        found = gathered(folder, scenario)
        assert found.missing == {}
        check_filled(found)

    def test_summaries(self, folder: Path) -> None:
        found = gathered(folder, summaries)
        assert found.missing == {}
        assert all(data.is_summary for data in found.values())
        check_filled(found)

    def test_tags_tell_managers_apart(self, folder: Path) -> None:
        assert gathered(folder, several_managers)["b"].samples.tolist() == [0.0, 1.0, 2.0]

    def test_a_late_rank_is_named(self, folder: Path) -> None:
        found = gathered(folder, one_is_late)
        assert found.missing == {1: "no answer within 0.5 s"}
        check_filled(found, (0,))
        assert "missing: rank 1 (no answer within 0.5 s)" in repr(found)

    def test_rubbish_is_named_and_not_unpickled(self, folder: Path) -> None:
        found = gathered(folder, one_sends_rubbish)
        assert list(found.missing) == [1]
        assert "message" in found.missing[1]
        check_filled(found, (0,))

    def test_nothing_stays_in_the_store(self, folder: Path) -> None:
        assert (folder / "left").read_text() == "0"


# --- ranks that die -----------------------------------------------------------------------------


PART = "my_utils/timing//1/3/1"


def die(rank: int, port: int, folder: str) -> None:
    """Rank 1 before the gather, rank 3 during it, rank 2 as soon as it left its times."""
    join(rank, 4, port)
    dist.barrier()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tm = TimeManager({"step": [0.5 + rank]})
    if rank == 3:
        job_store().set(PART, b"the second part, and no first one")
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        assert tm.gather() is None
        Path(folder, "left its times").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    while not (Path(folder, "left its times").exists() and job_store().check([PART])):
        time.sleep(0.01)
    found = tm.gather(timeout_s=0.5)
    assert found is not None
    found.save(f"{folder}/found")
    left = job_store().check([PART])
    Path(folder, "left").write_text(str(left))
    os._exit(0)  # the others are gone: no orderly end


@pytest.mark.thorough
def test_ranks_killed_before_during_and_after(tmp_path: Path) -> None:
    ranks = start(4, die, str(tmp_path))
    for process in ranks:
        process.join(80)
    codes = [process.exitcode for process in ranks]
    end(ranks)
    assert codes == [0, *[-signal.SIGKILL] * 3]
    found = GatheredTime.load(tmp_path / "found")
    assert found.missing == dict.fromkeys((1, 3), "no answer within 0.5 s")
    assert found["step"].ranks == [0, 2]
    assert found["step"].samples.tolist() == [0.5, 2.5]
    assert (tmp_path / "left").read_text() == "False"


def is_stopped(pid: Path) -> bool:
    """Whether the process whose number is in the file is, as far as Linux knows."""
    if not pid.exists():
        return False
    stat = Path("/proc", pid.read_text(), "stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def lose_the_store(rank: int, port: int, folder: str) -> None:
    """Rank 0, which serves the store, stops, and dies later. Collectives do nothing here, as where
    NCCL is the only backend and cannot take objects."""
    join(rank, 2, port, "fake")
    tm = TimeManager({"step": [1.5]})
    found = tm.gather(dst=1, tag="both are well")
    if found is not None:
        found.save(f"{folder}/well")
    if rank == 0:
        Path(folder, "pid.part").write_text(str(os.getpid()))
        Path(folder, "pid.part").rename(Path(folder, "pid"))
        os.kill(os.getpid(), signal.SIGSTOP)
    times_gather._GRACE_S = 0.5
    while not is_stopped(Path(folder, "pid")):
        time.sleep(0.01)
    for tag in ("stopped", "dead"):
        began = time.monotonic()
        found = tm.gather(dst=1, tag=tag, timeout_s=1.0)
        assert found is not None
        found.save(f"{folder}/{tag}")
        Path(folder, f"{tag}.s").write_text(str(time.monotonic() - began))
        while not Path(folder, "killed").exists():
            time.sleep(0.01)
    os._exit(0)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("lost")
    ranks = start(2, lose_the_store, str(tmp_path))
    deadline = time.monotonic() + 60
    while not (tmp_path / "stopped.s").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    ranks[0].kill()
    ranks[0].join(10)
    (tmp_path / "killed").touch()
    ranks[1].join(60)
    codes = [process.exitcode for process in ranks]
    end(ranks)
    assert codes == [-signal.SIGKILL, 0]
    return tmp_path


@pytest.mark.thorough
def test_a_backend_that_gathers_nothing(lost: Path) -> None:
    """The fake backend's collectives give nothing back, and take no object."""
    found = GatheredTime.load(lost / "well")
    assert (found["step"].ranks, found.missing) == ([0, 1], {})


def test_a_store_that_stops_or_dies(lost: Path) -> None:
    for tag in ("stopped", "dead"):
        found = GatheredTime.load(lost / tag)
        assert found["step"].ranks == [1]
        assert list(found.missing) == [0]
        assert "store failed" in found.missing[0]
        assert float((lost / f"{tag}.s").read_text()) < 20


# --- one process --------------------------------------------------------------------------------


@timer_wrap()
def work() -> None:
    pass


def test_without_torch_distributed() -> None:
    assert not dist.is_initialized()
    tm = TimeManager()
    with tm.enable_timer():
        work()
    for dst in (0, 3):
        found = tm.gather(dst=dst)
        assert found is not None
        assert (found.world_size, found.missing, found["work"].ranks) == (1, {}, [0])
    empty = TimeManager().gather()
    assert empty is not None
    assert (dict(empty), len(empty)) == ({}, 0)


def test_one_rank(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = STORES.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        tm = TimeManager({"a": [1.0]})
        with caplog.at_level(logging.WARNING):
            found = tm.gather(timeout_s=0)
        assert found is not None and found["a"].count() == 1
        assert not caplog.records
        with pytest.raises(ValueError, match="dst must be below the number of ranks, 1, not 1"):
            tm.gather(dst=1)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"dst": "0"}, TypeError, "dst must be an int"),
        ({"dst": -1}, ValueError, "dst must be at least 0"),
        ({"timeout_s": "1"}, TypeError, "timeout_s must be a number of seconds"),
        ({"timeout_s": -1}, ValueError, "timeout_s must be finite and at least 0, not -1"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s must be finite and at least 0"),
        ({"tag": 3}, TypeError, "tag must be a str"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        TimeManager().gather(**arguments)
