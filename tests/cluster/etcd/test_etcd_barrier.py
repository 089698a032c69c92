"""Eight processes wait for one another through a real etcd, and are killed, stopped, restarted."""

from __future__ import annotations

import importlib
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from my_utils.etcd_utils import EtcdBarrierBroken, EtcdBarrierError, etcd_barrier

from ...support.etcd_crew import WAIT_S, Crew
from ...support.etcd_server import EtcdServer, needs_etcd
from ...support.live_ranks import wait_until

pytestmark = [pytest.mark.long_file, *needs_etcd]

EIGHT = range(8)
LEASE_S = 60.0  # where no test is about its end: a busy machine may hold processes up for long
servers: dict[int, EtcdServer] = {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        servers[server.port] = server
        yield server


@pytest.fixture(scope="module")
def all_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    crew = Crew(tmp_path_factory.mktemp("crew"))
    yield crew
    crew.end()


@pytest.fixture
def crew(all_workers: Crew) -> Iterator[Crew]:
    yield all_workers
    all_workers.dismiss_the_busy()


@pytest.fixture
def at(server: EtcdServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    """The arguments of a barrier of this test's own."""
    return {
        "prefix": request.node.name, "world_size": 8, "etcd_port": server.port, "lease_s": LEASE_S
    }  # fmt: skip


def keys_of(at: dict[str, Any]) -> list[str]:
    return servers[at["etcd_port"]].keys(at["prefix"] + "/")


def seats_of(at: dict[str, Any]) -> set[int]:
    return {int(key.rpartition("/")[2]) for key in keys_of(at) if "/members/" in key}


def wait_for_seats(at: dict[str, Any], *ranks: int) -> None:
    wait_until(lambda: seats_of(at) == set(ranks))


# --- all are there ---


def test_nobody_leaves_before_all_have_come(crew: Crew, at: dict[str, Any]) -> None:
    chance = random.Random(7)
    for rank in EIGHT:
        pauses = [chance.choice([0, 0, 0.05]) for _ in range(8)]
        crew.come([rank], pauses=pauses, **at)
    answers = crew.answers(EIGHT)
    assert {answer["result"] for answer in answers} == {"passed"}
    for round in zip(*(answer["times"] for answer in answers), strict=True):
        assert max(came for came, _ in round) <= min(left for _, left in round)


def test_one_small_key_is_left(crew: Crew, at: dict[str, Any]) -> None:
    crew.come(EIGHT, **at)
    assert crew.results(EIGHT) == {"passed"}
    assert keys_of(at) == [f"{at['prefix']}/8/barrier/state"]


def test_processes_without_a_rank(crew: Crew, at: dict[str, Any]) -> None:
    for rank in EIGHT:
        crew[rank].order(**at)
    assert crew.results(EIGHT) == {"passed"}


# --- some are not ---


def test_the_missing_are_named_to_all(crew: Crew, at: dict[str, Any]) -> None:
    there = [0, 1, 2, 4, 6, 7]
    crew.come(there[:-1], **at)
    wait_for_seats(at, *there[:-1])
    crew.come(there[-1:], timeout_s=1, **at)
    answers = crew.answers(there)
    assert {answer["result"] for answer in answers} == {"EtcdBarrierTimeout"}
    assert {answer["text"] for answer in answers} == {answers[0]["text"]}
    assert "2 of 8 missing: ranks 3, 5 (rank" in answers[0]["text"]
    assert answers[0]["missing"] == [3, 5]
    crew.come(EIGHT, **at)  # and the name can be used again
    assert crew.results(EIGHT) == {"passed"}


def test_how_many_are_missing_without_ranks(crew: Crew, at: dict[str, Any]) -> None:
    crew[0].order(timeout_s=0, **at)
    answer = crew[0].answer()
    assert (answer["result"], answer["missing"], answer["count"]) == ("EtcdBarrierTimeout", [], 7)
    assert "7 of 8 missing (" in answer["text"]


def test_who_waits_for_another_number_is_named(crew: Crew, at: dict[str, Any]) -> None:
    crew.come([1], **{**at, "world_size": 4})
    wait_until(lambda: bool(keys_of(at)))
    wait_for_seats(at, 1)
    crew.come([0], timeout_s=0.2, **at)
    assert "others under this prefix wait for a world_size of 4" in crew[0].answer()["text"]
    crew.kill(1)


# The first to come and the last are lost as surely as any other: two jobs at once, four processes
# each, which wait for a fifth. Who was held up until its lease ended has the time to come again.
@pytest.mark.slow
def test_a_killed_one_is_named_when_its_lease_ends(crew: Crew, at: dict[str, Any]) -> None:
    at.update(world_size=5, timeout_s=None, restart_s=8)
    jobs = [({**at, "prefix": f"{at['prefix']}-{victim}"}, victim) for victim in (0, 3)]
    for (job, victim), first in zip(jobs, (0, 4), strict=True):
        for rank in range(4):
            lease_s = 3 if rank == victim else LEASE_S
            crew[first + rank].order(rank=rank, **{**job, "lease_s": lease_s})
            wait_for_seats(job, *range(rank + 1))
        wait_until(lambda job=job: answered_by(job) == set(range(4)))  # type: ignore[misc]
        crew.kill(first + victim)
    for (_, victim), first in zip(jobs, (0, 4), strict=True):
        answers = crew.answers(first + rank for rank in range(4) if rank != victim)
        assert {answer["result"] for answer in answers} == {"EtcdBarrierBroken"}
        assert {answer["text"] for answer in answers} == {answers[0]["text"]}
        assert {victim, 4} <= set(answers[0]["missing"])
        assert f"; rank {victim} (" in answers[0]["text"]
        assert "joined, and died or left" in answers[0]["text"]


def answered_by(at: dict[str, Any]) -> set[int]:
    """Who answered the last roll call."""
    calls: dict[int, set[int]] = {}
    for key in keys_of(at):
        if "/answers/" in key:
            *_, call, rank = key.split("/")
            calls.setdefault(int(call), set()).add(int(rank))
    return calls[max(calls)] if calls else set()


def test_at_the_end_the_silent_are_missing_too(crew: Crew, at: dict[str, Any]) -> None:
    crew.come([1], **at)
    wait_for_seats(at, 1)
    crew.stop(1)
    crew.come([0], timeout_s=0.2, response_s=1, **at)
    answer = crew[0].answer()
    crew.kill(1)
    assert answer["missing"] == list(range(1, 8))
    assert "rank 1 (" in answer["text"]
    assert "joined, but gives no sign of life" in answer["text"]


# --- some come again ---


def test_a_restarted_one_takes_its_seat_again(crew: Crew, at: dict[str, Any]) -> None:
    crew.come(range(7), **at)
    wait_for_seats(at, *range(7))
    crew.kill(2)
    crew.come([2], **at)
    crew.come([7], **at)
    assert crew.results(EIGHT) == {"passed"}


def test_a_restarted_one_may_take_its_time(crew: Crew, at: dict[str, Any]) -> None:
    at.update(restart_s=600)
    crew.come([0, 1, 3, 4, 5, 6], **at)
    crew.come([2], **{**at, "lease_s": 2})
    wait_for_seats(at, *range(7))
    crew.kill(2)
    wait_for_seats(at, 0, 1, 3, 4, 5, 6)  # its lease has ended
    crew.come([2, 7], **at)
    assert crew.results(EIGHT) == {"passed"}


def test_a_stopped_one_goes_on(crew: Crew, at: dict[str, Any]) -> None:
    crew.come(range(7), **at)
    wait_for_seats(at, *range(7))
    crew.stop(4)
    crew.come([7], **at)
    wait_until(lambda: answered_by(at) >= {0, 1, 2, 3, 5, 6, 7})
    assert not any(crew[rank].has_answered() for rank in EIGHT)
    crew.go_on(4)
    assert crew.results(EIGHT) == {"passed"}


@pytest.mark.thorough
def test_one_that_was_stopped_for_too_long_is_told(crew: Crew, at: dict[str, Any]) -> None:
    others = [0, 1, 2, 3, 5, 6]
    crew.come(others, restart_s=8, **at)
    crew.come([4], **{**at, "lease_s": 3})
    wait_until(lambda: answered_by(at) == set(range(7)))
    crew.stop(4)
    answers = crew.answers(others)
    crew.go_on(4)
    answers.append(crew[4].answer())
    assert {answer["result"] for answer in answers} == {"EtcdBarrierBroken"}
    assert {answer["text"] for answer in answers} == {answers[0]["text"]}


def test_two_processes_with_one_rank(crew: Crew, at: dict[str, Any]) -> None:
    crew.come([0], **at)
    wait_for_seats(at, 0)
    crew[1].order(rank=0, **at)
    answer, other = crew[0].answer(), crew[1].process.pid
    assert answer["result"] == "EtcdBarrierError"
    assert (
        f"another process joined as rank 0 ({socket.gethostname()}, pid {other})" in answer["text"]
    )
    crew.kill(1)


# --- a run that died in the middle ---


def test_a_new_run_does_not_pass_by_the_ghosts_of_the_last(crew: Crew, at: dict[str, Any]) -> None:
    crew.come(range(7), **at)
    wait_until(lambda: answered_by(at) == set(range(7)))
    crew.kill(*range(7))
    crew.come([7], **at)
    wait_until(lambda: answered_by(at) == {7})  # all seats are taken
    assert seats_of(at) == set(EIGHT)
    time.sleep(0.3)
    assert not crew[7].has_answered()
    crew.come(range(7), **at)
    assert crew.results(EIGHT) == {"passed"}


@pytest.mark.slow
def test_ghosts_that_vanish_break_nothing(crew: Crew, at: dict[str, Any]) -> None:
    crew.come(range(7), **{**at, "lease_s": 5, "restart_s": 600})
    wait_for_seats(at, *range(7))
    crew.kill(*range(7))
    crew.come([7, 0], **at)
    wait_for_seats(at, 0, 7)  # the leases of the others have ended
    crew.come(range(1, 7), **at)
    assert crew.results(EIGHT) == {"passed"}


@pytest.mark.slow
def test_all_are_told_the_same_whoever_dies_when(crew: Crew, at: dict[str, Any]) -> None:
    chance = random.Random(5)
    at.update(world_size=4, lease_s=10, timeout_s=15)
    for attempt in range(2):
        for worker in EIGHT:
            assert crew[worker].ready.wait(WAIT_S)
        victims = [chance.randrange(4), 4 + chance.randrange(4)]
        for worker in EIGHT:
            prefix = f"{at['prefix']}-{attempt}-{worker // 4}"
            crew[worker].order(rank=worker % 4, **{**at, "prefix": prefix})
        for victim in victims:
            time.sleep(chance.random() * 0.2)
            crew.kill(victim)
        for job in (EIGHT[:4], EIGHT[4:]):
            answers = crew.answers(worker for worker in job if worker not in victims)
            assert len({(answer["result"], answer.get("text")) for answer in answers}) == 1, answers


# --- etcd itself ---


def test_etcd_restarts_in_the_middle(crew: Crew, at: dict[str, Any], server: EtcdServer) -> None:
    crew.come(range(7), **at)
    wait_for_seats(at, *range(7))
    server.kill()
    crew.come([7], **at)
    time.sleep(0.5)
    server.start()
    assert crew.results(EIGHT) == {"passed"}


def test_etcd_restarts_and_keeps_no_history(
    crew: Crew, at: dict[str, Any], server: EtcdServer
) -> None:
    """A watch that begins again asks for events that etcd has compacted."""
    crew.come(range(7), **at)
    wait_until(lambda: answered_by(at) == set(range(7)))
    pyetcd = importlib.import_module("pyetcd")
    with pyetcd.client(port=server.port) as client:
        client.compact(client.put("other", "x").header.revision)
    server.kill()
    server.start()
    crew.come([7], **at)
    assert crew.results(EIGHT) == {"passed"}


def test_the_state_is_kept_as_long_as_it_is_used(server: EtcdServer, at: dict[str, Any]) -> None:
    mine = {**at, "world_size": 1}
    pyetcd = importlib.import_module("pyetcd")
    with pyetcd.client(port=server.port) as client:
        etcd_barrier(rank=0, **mine)
        _, meta = client.get(f"{at['prefix']}/1/barrier/state")
        time.sleep(2.5)
        before = client.get_lease_info(meta.lease_id).TTL

        def is_longer_after_another() -> bool:
            etcd_barrier(rank=0, **mine)
            return bool(before < client.get_lease_info(meta.lease_id).TTL)

        wait_until(is_longer_after_another)  # at once, unless the answer takes so long


def test_the_state_is_small_and_readable(crew: Crew, at: dict[str, Any]) -> None:
    for _ in range(12):
        crew.come([0], timeout_s=0, **at)
    for _ in range(12):
        crew[0].answer()
    pyetcd = importlib.import_module("pyetcd")
    with pyetcd.client(port=at["etcd_port"]) as client:
        value, meta = client.get(f"{at['prefix']}/8/barrier/state")
        state = json.loads(value)
        assert client.get_lease_info(meta.lease_id).TTL > 24 * 3600
    assert state["round"] == 13
    assert len(state["past"]) == 8
    assert len(value) < 2000


@pytest.mark.parametrize("value", ["{", "[]", '{"era": "a", "round": "1", "past": {}}'])
def test_what_another_program_wrote_there(at: dict[str, Any], value: str) -> None:
    pyetcd = importlib.import_module("pyetcd")
    with pyetcd.client(port=at["etcd_port"]) as client:
        client.put(f"{at['prefix']}/1/barrier/state", value)
    with pytest.raises(EtcdBarrierError, match="another program keeps something under this prefix"):
        etcd_barrier(**{**at, "world_size": 1}, rank=0)


# --- many ---


@pytest.mark.thorough
def test_more_ranks_than_call_the_roll_each(server: EtcdServer, crew: Crew) -> None:
    """Rank 0 comes before all others, so that these know of its life by what it writes later."""
    at: dict[str, Any] = {
        "prefix": "many", "world_size": 67, "etcd_port": server.port, "lease_s": LEASE_S
    }  # fmt: skip
    pyetcd = importlib.import_module("pyetcd")
    with ThreadPoolExecutor(67) as pool, pyetcd.client(port=server.port) as client:
        waiting = [pool.submit(etcd_barrier, rank=rank, **at) for rank in range(67)]
        assert all(each.result() for each in waiting)

        crew.come([0], **{**at, "lease_s": 3})
        wait_for_seats(at, 0)
        (seat,) = [key for key in keys_of(at) if key.endswith("/0") and "/members/" in key]

        def written() -> int:
            """The last revision at which rank 0 gave a sign of life; 0 where its lease ended."""
            meta = client.get(seat)[1]
            return meta.mod_revision if meta is not None else 0

        others = range(1, 66)
        waiting = [pool.submit(etcd_barrier, rank=rank, restart_s=8, **at) for rank in others]
        wait_for_seats(at, *range(66))
        last = written()
        wait_until(lambda: written() > last)
        crew.kill(0)
        errors = [each.exception() for each in waiting]
    assert {type(error) for error in errors} == {EtcdBarrierBroken}
    assert {0, 66} <= set(errors[0].missing)  # type: ignore[union-attr]
