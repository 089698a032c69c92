"""The rules of `docs/runs/watch-a-running-job.md` on generated runs: who holds a run up, who only
waits, and when an accusation stands."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis.live.hang import find_hang
from my_utils.analysis.live.history import POLLS_KEPT, History
from my_utils.analysis.live.poll import SnapshotRequest
from my_utils.analysis.live.poller import Confirmed, Poller
from my_utils.analysis.live.root_causes import find_root_causes
from my_utils.analysis.live.waits.places import KEPT, PATIENCE, Usual, is_behind
from my_utils.analysis.live.waits.standing import Standing, Suspect
from my_utils.core.run_files.state import (
    COLLECTIVES_TAG,
    FinishedStage,
    OpenStage,
    Rank,
    Thread,
)

from ...support.live_ranks import beat, write_beats

pytestmark = pytest.mark.no_torch

STUCK_S = 10.0
STAGES = ("input", "h2d", "forward", "loss", "backward", "optimizer", "checkpoint")


def each_of(count: int) -> Callable[[Callable[[Any, int], None]], Callable[[Any], None]]:
    """So many generated cases in one test; what fails says its seed."""

    def decorate(test: Callable[[Any, int], None]) -> Callable[[Any], None]:
        @functools.wraps(test)
        def run(self: Any) -> None:
            for seed in range(count):
                try:
                    test(self, seed)
                except AssertionError as error:
                    raise AssertionError(f"seed {seed}: {error}") from error

        del run.__wrapped__  # pytest would see its arguments
        return run

    return decorate


def rank_at(
    number: int,
    step: int,
    stack: Sequence[str],
    ended: Sequence[str] = (),
    *,
    still_s: float = 60.0,
    source: str = "journal",
    age_s: float = 0.0,
    now_ns: int = 10**18,
    call: str = "",
    state: str = "running",
) -> Rank:
    """A rank in its open stages and in a recorded call, which has ended other stages in its step,
    the newest last."""
    since_ns = now_ns - round(still_s * 1e9)
    finished = [FinishedStage(name, step, since_ns - 10**6, 1.0) for name in reversed(ended)]
    finished.append(FinishedStage("input", step - 1, since_ns - 10**8, 1.0))
    thread = Thread(
        tid=100 + number,
        name="MainThread",
        tag="run",
        step=step,
        open=[OpenStage(name, step, since_ns, still_s) for name in stack],
        last=[] if source == "heartbeat" else finished[:KEPT],
        ended_ns=since_ns if not stack else None,
    )
    threads = [thread]
    if call:
        opened = [OpenStage(call, step, since_ns, still_s)]
        threads.append(Thread(100 + number, "MainThread", COLLECTIVES_TAG, step, opened))
    return Rank(
        label=f"rank_{number}", rank=number, worker=0, world_size=0, host=f"node{number // 8}",
        pid=100 + number, attempt=1, state=state, source=source, beat_age_s=age_s, began_s=0.0,
        time_offset_s=0.0, clock_ahead_s=0.0, seen_ns=now_ns, dropped=0, threads=threads,
    )  # fmt: skip


def blamed(ranks: Sequence[Rank], usual: Usual) -> set[int]:
    return {one.rank.rank for one in Standing(ranks, STUCK_S, usual).suspects}


def hang(seed: int, *, beats: bool = False, victims_step: int = 0) -> tuple[list[Rank], int, str]:
    """The ranks of a run that hangs, the rank at fault, and the stage in which the others wait. A
    checkpoint, and a first forward, take longer than they may.
    beats: of heartbeats, which know no finished stages. victims_step: added to that of a victim."""
    draw = random.Random(seed)
    world = draw.choice([2, 2, 3, 4, 8, 64])
    program = draw.sample(STAGES, draw.randint(2, len(STAGES)))
    meeting = draw.randrange(1, len(program))
    at = draw.randrange(meeting)
    culprit = draw.randrange(world)
    step = draw.randrange(1000)
    outer = draw.choice([(), ("iter",)])
    is_between = draw.random() < 0.2
    takes_long = {"checkpoint", "forward"} & {program[at], program[meeting]}
    least_s = STUCK_S * PATIENCE if takes_long else 11
    ranks = [
        rank_at(
            number,
            step + (victims_step if number == (culprit + 1) % world else 0),
            outer
            if number == culprit and is_between
            else (*outer, program[at if number == culprit else meeting]),
            program[: at if number == culprit else meeting],
            still_s=draw.uniform(least_s, 90 + least_s),
            source="heartbeat" if beats else "journal",
        )
        for number in range(world)
    ]
    return ranks, culprit, program[meeting]


class TestARunThatHangs:
    @each_of(300)
    def test_the_culprit_is_named_and_no_other(self, seed: int) -> None:
        """Whether the meeting is recorded, or known by the order of the stages alone."""
        ranks, culprit, meeting = hang(seed)
        for usual in (Usual({meeting}), Usual()):
            standing = Standing(ranks, STUCK_S, usual)
            assert [one.rank.rank for one in standing.suspects] == [culprit]
            waiting = standing.find_waiting(standing.suspects)
            assert {one.rank.rank for one in waiting} == set(range(len(ranks))) - {culprit}
            assert all(one.text.startswith(f"waits for rank {culprit} in ") for one in waiting)
            assert all(one.text.endswith(meeting) for one in waiting)

    @each_of(100)
    def test_heartbeats_know_no_finished_stages(self, seed: int) -> None:
        """Recorded meetings are enough. Without them most ranks must wait in one place: of two
        ranks none is named."""
        ranks, culprit, meeting = hang(seed, beats=True)
        assert blamed(ranks, Usual({meeting})) == {culprit}
        assert blamed(ranks, Usual()) == ({culprit} if len(ranks) > 2 else set())

    @each_of(100)
    def test_a_wait_in_another_step_makes_nobody_late(self, seed: int) -> None:
        """Steps are numbered anew at other places: a rank that waits in a meeting is not behind
        while another one works."""
        ranks, culprit, meeting = hang(seed, victims_step=-1)
        assert blamed(ranks, Usual({meeting})) == {culprit}

    def test_all_in_meetings_and_one_in_an_earlier_one(self) -> None:
        meetings = Usual({"forward", "backward"})
        ranks = [rank_at(n, 7, ["backward"], ["input", "forward"]) for n in range(3)]
        ranks.append(rank_at(3, 7, ["forward"], ["input"]))
        (suspect,) = Standing(ranks, STUCK_S, meetings).suspects
        assert (suspect.rank.rank, suspect.kinds) == (3, ("behind",))
        assert suspect.reasons == ("in forward of step 7, which 3 ranks have passed",)

    def test_all_in_one_meeting(self) -> None:
        ranks = [rank_at(n, 7, ["backward"], ["input", "forward"]) for n in range(4)]
        assert blamed(ranks, Usual({"backward"})) == set()

    def test_three_that_read_do_not_make_the_one_that_waits_the_culprit(self) -> None:
        ranks = [rank_at(n, 7, ["input"], []) for n in range(3)]
        ranks.append(rank_at(3, 7, ["all_reduce"], ["input"]))
        assert blamed(ranks, Usual()) == {0, 1, 2}

    def test_two_that_nothing_is_known_of(self) -> None:
        ranks = [rank_at(0, 7, ["this"], still_s=60.0), rank_at(1, 7, ["that"], still_s=61.0)]
        assert blamed(ranks, Usual()) == set()


class Layout:
    """Ranks with groups of neighbours ("tp"), groups across these ("dp"), and one of all."""

    def __init__(self, tp: int, dp: int) -> None:
        self.tp, self.world = tp, tp * dp

    def members(self, rank: Rank, label: str) -> frozenset[int] | None:
        first = rank.rank - rank.rank % self.tp
        groups = {
            "tp": range(first, first + self.tp),
            "dp": range(rank.rank % self.tp, self.world, self.tp),
            "world": range(self.world),
        }
        return frozenset(groups[label]) if label in groups else None

    def waiting_for(self, culprit: int, number: int, draw: random.Random) -> str:
        """The call in which a rank waits where the culprit does not come to its next one."""
        if number // self.tp == culprit // self.tp:
            return "wait all_reduce tp"
        return draw.choice(["all_gather dp", "wait all_gather dp"])


class TestRecordedCollectives:
    """Who is in which call of which group gives the graph, also from heartbeats alone."""

    @each_of(200)
    def test_the_one_for_whom_chains_of_groups_wait(self, seed: int) -> None:
        draw = random.Random(seed)
        layout = Layout(draw.choice([2, 4, 8]), draw.choice([2, 3, 8]))
        usual = Usual(members=layout.members)
        culprit = draw.randrange(layout.world)
        state = draw.choice(["running", "running", "dead", "closed", "silent"])
        ranks = [
            rank_at(
                number,
                12,
                ["input" if number == culprit else "forward"],
                still_s=draw.uniform(11, 90),
                source="heartbeat",
                call="" if number == culprit else layout.waiting_for(culprit, number, draw),
                state=state if number == culprit else "running",
            )
            for number in range(layout.world)
        ]
        standing = Standing(ranks, STUCK_S, usual)
        (one,) = standing.suspects
        kind = {"running": "elsewhere", "closed": "ended"}.get(state, state)
        assert (one.rank.rank, one.kinds[0]) == (culprit, kind)
        waiting = standing.find_waiting(standing.suspects)
        assert {rank.rank.rank for rank in waiting} == set(range(layout.world)) - {culprit}
        (cause,) = find_root_causes(standing, None, STUCK_S, {}).causes
        assert (cause.ranks, cause.kind, cause.decided) == ([culprit], kind, True)
        assert len(cause.direct) == layout.tp - 1 + layout.world // layout.tp - 1
        assert len(cause.waiting) == layout.world - 1

    def test_a_rank_of_another_group_that_works_holds_up_nobody(self) -> None:
        layout = Layout(2, 2)
        ranks = [
            rank_at(0, 12, ["input"], source="heartbeat"),
            rank_at(1, 12, ["forward"], call="wait all_reduce tp", source="heartbeat"),
            rank_at(2, 12, ["forward"], source="heartbeat", still_s=0.1),
            rank_at(3, 12, ["forward"], source="heartbeat", still_s=0.1),
        ]
        assert blamed(ranks, Usual(members=layout.members)) == {0}
        assert blamed(ranks, Usual()) == {0, 2, 3}

    def test_a_receive_waits_for_its_peer(self) -> None:
        ranks = [rank_at(n, 12, ["forward"], call=f"recv {n - 1}") for n in range(1, 4)]
        ranks.append(rank_at(0, 12, ["input"]))
        assert blamed(ranks, Usual()) == {0}

    def test_two_sends_to_each_other_are_no_pair(self) -> None:
        ranks = [rank_at(n, 12, ["forward"], call=f"send {1 - n}") for n in range(2)]
        standing = Standing(ranks, STUCK_S, Usual())
        (cause,) = find_root_causes(standing, None, STUCK_S, {}).causes
        assert (cause.kind, cause.ranks, cause.decided) == ("ring", [0, 1], False)
        ranks[1] = rank_at(1, 12, ["forward"], call="recv 0")
        pair = Standing(ranks, STUCK_S, Usual())
        assert find_root_causes(pair, None, STUCK_S, {}).causes == []

    def test_a_hang_is_as_old_as_the_first_that_stands(self) -> None:
        ranks = [rank_at(n, 12, ["forward"], call=f"recv {n - 1}", still_s=60 - n)
                 for n in range(1, 4)]  # fmt: skip
        ranks.append(rank_at(0, 12, ["input"], still_s=61))
        suspects = Standing(ranks, STUCK_S, Usual()).suspects
        hang = find_hang(ranks, [], STUCK_S, suspects)
        assert (hang.since_ns, len(hang.waiting)) == (10**18 - 61 * 10**9, 3)

    def test_a_ring_is_not_decided(self) -> None:
        ranks = [
            rank_at(0, 12, ["forward"], call="all_reduce a", source="heartbeat"),
            rank_at(1, 12, ["forward"], call="all_reduce b", source="heartbeat"),
        ]
        standing = Standing(ranks, STUCK_S, Usual(members=lambda *_: frozenset([0, 1])))
        (cause,) = find_root_causes(standing, None, STUCK_S, {}).causes
        assert (cause.kind, cause.ranks, cause.decided) == ("ring", [0, 1], False)
        assert standing.suspects == []


class TestHealthyRuns:
    """A checkpoint, an evaluation on rank 0 and a compilation take a minute, and name nobody."""

    @each_of(200)
    def test_nobody_is_named(self, seed: int) -> None:
        draw = random.Random(seed)
        layout = Layout(draw.choice([1, 2, 4]), draw.choice([2, 3, 8]))
        after_s = 30.0
        what = draw.choice(["checkpoint", "eval", "forward"])
        step = 0 if what == "forward" else draw.randrange(1, 1000)
        busy = {0} if draw.random() < 0.7 else set(draw.sample(range(layout.world), 2))
        stage = draw.choice(["backward", "all_reduce", "forward", "iter"])
        has_calls = draw.random() < 0.5
        outer = draw.choice([(), ("iter",)])
        is_further = draw.random() < 0.2  # where steps are counted at another place
        ranks = [
            rank_at(
                number,
                step + (is_further and number not in busy),
                (*outer, what if number in busy else stage),
                ["input"],
                still_s=draw.uniform(31, 19 * after_s),
                source=draw.choice(["journal", "heartbeat"]),
                call=""
                if number in busy or not has_calls
                else layout.waiting_for(min(busy), number, draw),
            )
            for number in range(layout.world)
        ]
        meetings = draw.choice([(), ("backward",)])
        standing = Standing(ranks, after_s, Usual(meetings, members=layout.members))
        found = find_root_causes(standing, None, after_s, {})
        assert not [cause for cause in found.causes if cause.decided], found.causes
        assert not find_hang(ranks, [], after_s, found.suspects).hung


class TestTheOrderOfTwoRanks:
    @each_of(200)
    def test_it_follows_the_program(self, seed: int) -> None:
        """Two ranks at random places of one step, in which stages may come again."""
        draw = random.Random(seed)
        program = draw.choices(STAGES, k=draw.randint(1, 14))
        places = [draw.randrange(len(program)) for _ in range(2)]
        first, second = (rank_at(n, 3, [program[at]], program[:at]) for n, at in enumerate(places))
        if program[places[0]] == program[places[1]]:
            assert not is_behind(first, second) and not is_behind(second, first)
            return
        assert is_behind(first, second) == (places[0] < places[1])
        assert is_behind(second, first) == (places[1] < places[0])

    def test_a_step_with_more_stages_than_are_kept_says_nothing(self) -> None:
        early = rank_at(0, 3, ["forward"], ["input"])
        late = rank_at(1, 3, ["backward"], ["forward", "backward"] * 8)
        assert not is_behind(early, late) and not is_behind(late, early)


class TestTheNoiseOfSteps:
    @each_of(100)
    def test_old_news_makes_nobody_late(self, seed: int) -> None:
        """Ranks in step; heartbeats are up to two seconds old."""
        draw = random.Random(seed)
        rate = draw.uniform(1, 500)
        ranks = []
        for number in range(8):
            age_s = draw.uniform(0, 2)
            ranks.append(beat_at(number, 10_000 - int(age_s * rate), age_s))
        assert blamed(ranks, Usual(steps_a_second=rate)) == set()
        ranks[3] = beat_at(3, 9_900 - int(3 * rate), 0.5)
        assert blamed(ranks, Usual(steps_a_second=rate)) == {3}


def beat_at(number: int, step: int, age_s: float) -> Rank:
    return rank_at(number, step, ["forward"], still_s=0.01, source="heartbeat", age_s=age_s)


def suspect(number: int, *kinds: str) -> Suspect:
    return Suspect(rank_at(number, 1, []), kinds, tuple(f"because {kind}" for kind in kinds))


class TestWhenAnAccusationStands:
    @each_of(100)
    def test_it_appears_with_two_polls_in_a_row_and_goes_with_two(self, seed: int) -> None:
        draw = random.Random(seed)
        made = [draw.random() < 0.5 for _ in range(60)]
        confirmed = Confirmed()
        is_shown = False
        for poll, is_made in enumerate(made):
            shown = {one.rank.rank for one in confirmed.of([suspect(4, "dead")] * is_made)}
            before = made[poll - 1] if poll else False
            if is_made and before:
                is_shown = True
            elif not is_made and not before:
                is_shown = False
            assert shown == ({4} if is_shown else set()), (poll, made)

    def test_another_reason_is_another_accusation(self) -> None:
        confirmed = Confirmed()
        confirmed.of([suspect(1, "behind")])
        assert confirmed.of([suspect(1, "elsewhere")]) == []
        (one,) = confirmed.of([suspect(1, "behind", "elsewhere")])
        assert (one.kinds, one.reasons) == (("elsewhere",), ("because elsewhere",))


def test_who_is_accused_by_one_poll_alone_is_looked_at_soon(tmp_path: Path) -> None:
    write_beats(tmp_path, *(beat(rank, 9, "iter", "all_reduce", ago_s=60.0) for rank in (0, 2)))
    write_beats(tmp_path, beat(1, 9, "iter", "input", ago_s=60.0))
    poller = Poller(SnapshotRequest((str(tmp_path),), None, STUCK_S))
    first = poller.poll()
    assert not first.suspects and not first.causes
    assert poller.pause_s(1.0, 10.0) == 1.0
    second = poller.poll()
    assert [one.rank.rank for one in second.suspects] == [1]
    assert [cause.ranks for cause in second.causes] == [[1]]
    assert poller.pause_s(1.0, 10.0) > 100.0, "polls take a small part of a core"
    assert poller.pause_s(1.0, 0.001) == 1.0


def polled(
    seed: int, world: int, waits: Sequence[float], polls: int = POLLS_KEPT
) -> tuple[History, list[Rank], set[int]]:
    """Polls of a run that moves, in which each rank is in a meeting in so many of them by chance;
    who was accused in two polls in a row."""
    draw = random.Random(seed)
    history, confirmed = History(), Confirmed()
    ever: set[int] = set()
    ranks: list[Rank] = []
    for poll in range(polls):
        ranks = [
            rank_at(
                number,
                3 * poll,
                ["backward" if draw.random() < waits[number] else "forward"],
                still_s=0.01,
                now_ns=10**18 + poll * 10**9,
            )
            for number in range(world)
        ]
        history.add(ranks, {"backward"})
        ever |= {one.rank.rank for one in confirmed.of(history.slow(ranks))}
    return history, ranks, ever


class TestARunThatMoves:
    @each_of(40)
    def test_chance_makes_nobody_slow(self, seed: int) -> None:
        world = (2, 4, 64)[seed % 3]
        _, _, ever = polled(seed, world, [0.5] * world)
        assert ever == set()

    @each_of(20)
    def test_the_rank_for_which_the_others_wait(self, seed: int) -> None:
        world = (2, 4, 64)[seed % 3]
        waits = [0.75] * world
        waits[1] = 0.02
        history, ranks, ever = polled(seed, world, waits)
        assert ever == {1}
        (one,) = history.slow(ranks)
        assert one.kinds == ("slow",) and one.reasons[0].startswith("the others wait for it: ")
        assert history.wait("rank_1") == 0.0
        assert 0.5 < (history.wait("rank_0") or 0.0) < 0.95
        assert history.rate("rank_1") == pytest.approx(3.0)
        assert history.spark("rank_1") == "█" * 16

    def test_a_heartbeat_that_is_read_again_is_no_news(self) -> None:
        history = History()
        now_ns = time.time_ns()
        for later_s in (0.0, 0.5, 1.0):
            age_s = 0.25 + later_s
            at_ns = now_ns + round(later_s * 1e9)
            beat = rank_at(0, 5, ["input"], source="heartbeat", age_s=age_s, now_ns=at_ns)
            history.add([beat], ())
        assert history.rate("rank_0") is None

    def test_a_resume_begins_anew(self) -> None:
        history = History()
        for second, step in enumerate((100, 110, 50, 60)):
            history.add([rank_at(0, step, ["input"], now_ns=10**18 + second * 10**9)], ())
        assert history.rate("rank_0") == pytest.approx(10.0)
