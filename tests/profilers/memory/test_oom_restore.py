"""All ranks take the same way out of a lack of memory, whoever lacks it and whoever is dead."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch
from torch._C._distributed_c10d import HashStore

from my_utils.core.warnings import forget
from my_utils.oom_restore import catch_oom, check_oom_flag, set_oom_flag
from my_utils.profilers.memory import oom_restore

from ...support.ranks import Ranks, run_ranks

# Every rank knows from the seed which ranks fail in which step, and so what all must decide.
AGREE = """
import json, random, logging
from my_utils.oom_restore import catch_oom, check_oom_flag, set_oom_flag
failing = random.Random(3)
decisions, expected = [], []
for step in range(300):
    fails = [failing.random() < 0.05 for _ in range(world)]
    time.sleep(random.Random(step * world + rank).random() * 0.002)
    if fails[rank]:
        set_oom_flag()
    decisions.append(check_oom_flag(agree=True))
    expected.append(any(fails))
store = dist.distributed_c10d._get_default_store()
dist.barrier()
print(json.dumps([decisions == expected, sum(decisions), store.num_keys()]))
"""


@pytest.mark.slow
def test_all_ranks_decide_the_same(tmp_path: Path) -> None:
    found = [json.loads(text) for text in run_ranks(AGREE, 4, tmp_path)]
    assert [right for right, _, _ in found] == [True] * 4
    assert {count for _, count, _ in found} == {found[0][1]}
    assert 30 < found[0][1] < 90
    assert max(keys for _, _, keys in found) < 100  # those of old steps are gone


CATCH = """
import json
from my_utils.oom_restore import catch_oom
seen = []
for step in range(6):
    with catch_oom() as attempt:
        if step == 2 and rank == 1 or step == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
    seen.append([attempt.happened, attempt.here])
print(json.dumps(seen))
"""


@pytest.mark.thorough
def test_one_rank_fails_and_all_are_told(tmp_path: Path) -> None:
    calm, failed, elsewhere = [False, False], [True, True], [True, False]
    found = [json.loads(text) for text in run_ranks(CATCH, 3, tmp_path)]
    for rank, seen in enumerate(found):
        assert seen == [calm, calm, failed if rank == 1 else elsewhere, calm, failed, calm]


# Rank 2 dies before it comes to the second decision.
DEAD = """
import json, logging
logging.basicConfig(stream=sys.stderr)
from my_utils.profilers.memory.oom_restore import PREFIX, check_oom_flag, set_oom_flag
decisions = [check_oom_flag(agree=True)]
if rank == 2:
    print("here", flush=True)
    os.kill(os.getpid(), 9)
if rank == 1:
    set_oom_flag()
while rank == 0 and not dist.distributed_c10d._get_default_store().add(PREFIX + "/1/here0", 0) & 2:
    time.sleep(0.01)  # its time is over only when the rank that lives is there
decisions.append(check_oom_flag(agree=True, timeout_s=60 if rank == 1 else 1.5))
decisions.append(check_oom_flag(agree=True, timeout_s=0.2))
print(json.dumps(decisions), flush=True)
if rank == 1:
    open("done", "w").close()
while rank == 0 and not os.path.exists("done"):
    time.sleep(0.01)  # the store's server lives in rank 0
os._exit(0)
"""


@pytest.mark.thorough
def test_a_dead_rank_holds_nobody_up_and_is_named(tmp_path: Path) -> None:
    results = Ranks(DEAD, 3, tmp_path).finish()
    for rank in (0, 1):
        status, out, err = results[rank]
        assert status == 0, err
        assert json.loads(out) == [False, True, False]
    assert results[2][:2] == (-9, "here\n")
    warned = "".join(err for _, _, err in results)
    assert "not all ranks answered within 1.5 s, missing: 2" in warned


def test_who_is_missing_among_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forget("oom_restore missing")
    store, missing = HashStore(), {0, 61, 62, 129}
    store.set("1/decision", "no")  # so that none waits
    monkeypatch.setattr(oom_restore, "world_size", lambda: 130)
    for rank in sorted(set(range(130)) - missing):
        monkeypatch.setattr(oom_restore, "current_rank", lambda rank=rank: rank)
        assert not oom_restore._decide(store, 1, 10)
    oom_restore._name_the_missing(store, 1, 130, 10)
    assert "within 10 s, missing: 0, 61, 62, 129;" in caplog.text
    assert store.num_keys() == 5  # of a decision of 130 ranks


# The store's server is in rank 0, which is gone.
NO_STORE = """
import logging
logging.basicConfig(stream=sys.stderr)
from my_utils.oom_restore import check_oom_flag, set_oom_flag
check_oom_flag(agree=True)
if rank == 0:
    os._exit(0)
while True:
    try:
        dist.distributed_c10d._get_default_store().check(["x"])
    except RuntimeError:
        break
print(check_oom_flag(agree=True), check_oom_flag())
set_oom_flag()
print(check_oom_flag(), check_oom_flag(agree=True), flush=True)
os._exit(0)
"""


def test_a_store_that_is_gone(tmp_path: Path) -> None:
    results = Ranks(NO_STORE, 2, tmp_path).finish()
    status, out, err = results[1]
    assert (status, out) == (0, "False False\nTrue True\n"), err
    assert err.count("the out-of-memory flag is this rank's alone") == 1


def test_alone() -> None:
    assert not check_oom_flag()
    set_oom_flag()
    assert check_oom_flag()
    assert check_oom_flag()
    assert check_oom_flag(agree=True)
    assert not check_oom_flag(agree=True)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
    ids=["Python", "CUDA", "CPU"],
)
def test_what_is_caught(error: Exception) -> None:
    with catch_oom() as step:
        raise error
    assert step.happened
    assert step.here
    assert step.error is error
    again = step
    with again:
        pass
    assert (again.happened, again.here, again.error) == (False, False, None)


def test_a_real_lack_of_memory() -> None:
    with catch_oom() as step:
        torch.empty(2**60, dtype=torch.uint8)
    assert step.here


def test_tensors_of_the_failed_step_are_freed() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []

    def fails() -> None:
        activations = torch.ones(10)
        alive.append(weakref.ref(activations))
        raise MemoryError("no more")

    with catch_oom() as step:
        fails()
    assert step.error is not None
    assert alive[0]() is None


def in_a_handler(held: list[Any]) -> None:
    activations = torch.ones(10)
    held.append(weakref.ref(activations))
    try:
        raise ValueError("the first")
    except ValueError:
        raise MemoryError("no more") from None


def from_another(held: list[Any]) -> None:
    def fails() -> None:
        activations = torch.ones(10)
        held.append(weakref.ref(activations))
        raise RuntimeError("CUDA out of memory")

    try:
        fails()
    except RuntimeError as error:
        wrapped = MemoryError("no more")
        error.__context__ = wrapped  # a circle
        raise wrapped from error


def from_a_group(held: list[Any]) -> None:
    errors = []
    try:
        from_another(held)
    except MemoryError as error:
        errors.append(error)
    raise MemoryError("no more") from ExceptionGroup("of two streams", errors)


@pytest.mark.parametrize("fails", [in_a_handler, from_another, from_a_group])
def test_tensors_of_chained_exceptions_are_freed(fails: Any) -> None:
    held: list[Any] = []
    with catch_oom() as step:
        fails(held)
    assert str(step.error) == "no more"
    assert [tensor() for tensor in held] == [None]


def test_an_exception_that_is_handled_around_keeps_its_frames() -> None:
    held: list[Any] = []
    try:
        in_a_handler(held)
    except MemoryError as first:
        with catch_oom() as step:
            raise MemoryError("again") from None
        assert first.__traceback__ is not None and held[0]() is not None
    assert str(step.error) == "again"
    assert held[0]() is None


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), RuntimeError("shapes")])
def test_other_exceptions_go_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, catch_oom() as step:
        raise error
    assert caught.value is error
    assert not step.happened
    assert not check_oom_flag(agree=True)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"agree": 1}, TypeError, "agree must be a bool, not 1"),
        ({"timeout_s": "1"}, TypeError, "timeout_s must be a number of seconds, not '1'"),
        ({"timeout_s": -1}, ValueError, "timeout_s must be at least 0, not -1"),
        ({"timeout_s": float("nan")}, ValueError, "timeout_s must be at least 0, not nan"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_oom_flag(**arguments)
    if "timeout_s" in arguments:
        with pytest.raises(error, match=message):
            catch_oom(**arguments)
