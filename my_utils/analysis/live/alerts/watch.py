"""Looks at each poll of a run for what somebody should know, and says when it begins and ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ....core.ranges import ranks_text
from ....core.run_files.state import Rank
from ....core.units import age_text, bytes_text, percent_text, time_text
from ...verdict.endings import HUNG_S, hangs_after_s
from ...verdict.replicas import ReplicaReader
from ...verdict.result import Finding
from ..hang import Hang, find_hang
from ..judged import Judged
from ..poll import Snapshot
from ..poller import Poller
from ..view import hang_text
from ..waits.standing import Suspect
from .alert import Alert, Kind, Place, as_data
from .host_memory import DAY_S, HostMemory
from .hysteresis import Change, Hysteresis
from .steps import Steps

UNNAMED = 0.5  # of that time, for which a hang waits until a rank is named
GOODPUT_LEAST = 0.5
BEGINS_S, ENDS_S = 20.0, 60.0
JUDGED_S = 600.0
RANGES_SHOWN = 6
AGAIN = 1.1  # goodput is fine again from so many times its limit on

_IS_GONE = frozenset(["dead", "silent", "ended"])


class Limits(NamedTuple):
    """hung_s: without progress, and five mean steps, from which on a run hangs; 0.0 for never.
    goodput: the least share of an hour. begins_s, ends_s: as of `Hysteresis`."""

    hung_s: float = HUNG_S
    goodput: float = GOODPUT_LEAST
    begins_s: float = BEGINS_S
    ends_s: float = ENDS_S


class Watch:
    """Called with each poll. Not thread-safe.

    name, run_id: of the run. send: takes what begins and what ends, `AlertData` as JSON. leads:
    whether what is wrong with the run is told from here, asked with its ranks; what is wrong with
    this host always is.
    steps: made at the job's begin. memory, judged_s: how these are measured.

    judging_s: the processor time that the newest call took to judge the run.
    """

    def __init__(
        self,
        name: str,
        run_id: str,
        send: Callable[[bytes], object],
        limits: Limits | None = None,
        *,
        leads: Callable[[Sequence[Rank]], bool] = lambda ranks: True,
        steps: Steps | None = None,
        memory: HostMemory | None = None,
        judged_s: float = JUDGED_S,
    ) -> None:
        self._place = Place(name, run_id)
        self._send = send
        self._limits = limits or Limits()
        self._leads = leads
        self._steps = steps or Steps(time.monotonic())
        self._memory = memory or HostMemory()
        self._judged_s = judged_s
        self._judged: Judged | None = None
        self._replicas: ReplicaReader | None = None
        self.judging_s = 0.0
        self._timed_stage = ""
        self._changes = Hysteresis(self._limits.begins_s, self._limits.ends_s)
        self._unnamed_s: float | None = None  # since when a hang names nobody

    def __call__(self, poller: Poller, seen: Snapshot) -> None:
        now_s = time.monotonic()
        self.judging_s = 0.0
        ranks = [rank for rank in seen.found.ranks if rank.worker == 0]
        self._measure(now_s, ranks)
        alerts = list(self._of_host())
        if self._leads(ranks):
            alerts += self._of_run(poller, seen, ranks)
        self._tell(self._changes.look(now_s, alerts))

    def end(self, failure: Alert | None = None) -> None:
        """The run is over. failure: how, if not in good order; else what is under way is over."""
        now_s = time.monotonic()
        if failure is not None:
            self._tell([Change(failure, now_s, False)])
        else:
            self._tell(self._changes.end())

    def _tell(self, changes: Sequence[Change]) -> None:
        for alert, began_s, is_over in changes:
            unix_s = time.time() - (time.monotonic() - began_s)
            data = as_data(alert, self._place, unix_s, is_over=is_over)
            self._send(json.dumps(data).encode())

    def _measure(self, now_s: float, ranks: Sequence[Rank]) -> None:
        self._memory.look(now_s)
        alive = [rank for rank in ranks if rank.alive and rank.step is not None]
        furthest = max(alive, key=lambda rank: (rank.attempt, rank.step or 0), default=None)
        if furthest is None:
            self._steps.add(now_s, 0, -1)
            return
        step = furthest.step or 0
        self._place = self._place._replace(step=step)
        self._steps.add(now_s, furthest.attempt, step)
        # When a stage of always the same name began, in which step, is exact; a poll is not.
        last = [stage for thread in furthest.main_threads for stage in thread.last]
        self._timed_stage = self._timed_stage or (last[0].name if last else "")
        timed = [stage for stage in last if stage.name == self._timed_stage]
        newest = max(timed, key=lambda stage: stage.start_ns, default=None)
        if newest is None:
            self._steps.time(now_s, step)
        else:
            self._steps.time(newest.start_ns / 1e9, newest.step)

    # --- what is wrong ---

    def _of_host(self) -> Iterator[Alert]:
        left = self._memory.left()
        soon_s = 2 * DAY_S if "memory" in self._changes.told else DAY_S
        if left is not None and left.seconds < soon_s:
            what = f"memory is full in about {age_text(left.seconds)}"
            more = (
                f"{bytes_text(left.free)} are left, and {bytes_text(3600 * left.rate)} an hour go"
            )
            yield Alert("memory", what, more, left_s=left.seconds, sure=True)

    def _of_run(self, poller: Poller, seen: Snapshot, ranks: Sequence[Rank]) -> Iterator[Alert]:
        yield from _gone(ranks, seen.suspects)
        hang = self._hang(poller, seen, ranks)
        if hang is not None:
            yield hang
        else:
            yield from self._held_up(seen, ranks)
        yield from self._slower()
        yield from self._below_limit()
        yield from self._differing(seen.log_dirs, ranks)

    def _hang(self, poller: Poller, seen: Snapshot, ranks: Sequence[Rank]) -> Alert | None:
        """The poll says cheaply whether it may hang; who holds up the others is found once. Where
        nobody is named at first, the others may not have stood still for so long yet."""
        mean_s = self._steps.usual_s or self._steps.level_s
        after_s = hangs_after_s(mean_s, self._limits.hung_s)
        found = find_hang(ranks, seen.missing, after_s, seen.suspects)
        if not self._limits.hung_s or not _stands(found):
            self._unnamed_s = None
            return None
        if (told := self._changes.told.get("hang")) is not None:
            return told
        exact = poller.look_for_hang(after_s)
        if exact.hang is None or not _stands(exact.hang):
            return None
        numbers = [rank for cause in exact.causes if cause.decided for rank in cause.ranks]
        numbers = numbers or [one.rank.rank for one in exact.hang.suspects]
        now_s = time.monotonic()
        self._unnamed_s = self._unnamed_s or now_s
        if not numbers and now_s - self._unnamed_s < UNNAMED * after_s:
            return None
        reasons = [reason for cause in exact.causes for reason in cause.reasons[:1]]
        more = f"{who_text(numbers, ranks)}: {reasons[0]}" if numbers and reasons else ""
        return _alert("hang", hang_text(exact.hang), more, numbers, ranks, sure=True)

    def _held_up(self, seen: Snapshot, ranks: Sequence[Rank]) -> Iterator[Alert]:
        holding = [one for one in seen.suspects if _IS_GONE.isdisjoint(one.kinds)]
        if holding:
            numbers = sorted(one.rank.rank for one in holding)
            what = _holds_up(numbers, ranks)
            yield _alert("held up", what, "; ".join(holding[0].reasons), numbers, ranks)
            return
        finding = self._judge(seen.log_dirs)
        if finding is not None:
            numbers = list(finding.ranks)
            where = f" in {finding.stage}" if finding.stage else ""
            share = percent_text(finding.share, 0)
            more = f"that costs {share} of a step{where}: my_utils why says more"
            what = _holds_up(numbers, ranks)
            yield _alert("held up", what, more, numbers, ranks, value=finding.share)

    def _judge(self, log_dirs: Sequence[str]) -> Finding | None:
        """The costliest finding that blames some ranks and not all."""
        if self._judged is None:
            self._judged = Judged(log_dirs, None, self._judged_s)
        began_s = time.thread_time()
        verdict = self._judged.verdict(self._place.step)
        self.judging_s = time.thread_time() - began_s
        costly = [] if verdict is None else verdict.costly
        return next(
            (f for f in costly if verdict and 0 < len(f.ranks) < verdict.judged_ranks), None
        )

    def _slower(self) -> Iterator[Alert]:
        if self._steps.is_slower:
            level_s, usual_s = self._steps.level_s, self._steps.usual_s
            value = level_s / usual_s - 1
            now, before = time_text(1000 * level_s), time_text(1000 * usual_s)
            what = f"a step takes {now}, it took {before}: {percent_text(value, 0, sign=True)}"
            yield Alert("slower", what, value=value, sure=True)

    def _below_limit(self) -> Iterator[Alert]:
        share, limit = self._steps.goodput, self._limits.goodput
        if "goodput" in self._changes.told:
            limit = min(AGAIN * limit, (1 + limit) / 2)
        if share is not None and share < limit:
            what = f"goodput {percent_text(share, 0)} in the last hour"
            more = f"the limit is {percent_text(self._limits.goodput, 0)}; my_utils why --ledger"
            yield Alert("goodput", what, more, value=share)

    def _differing(self, log_dirs: Sequence[str], ranks: Sequence[Rank]) -> Iterator[Alert]:
        """What differs at the newest check; of several kinds, what began first."""
        self._replicas = self._replicas or ReplicaReader(log_dirs)
        found = self._replicas.read()
        if found is None:
            return
        newest = (one for one in found["differences"] if one["last"] == found["step"])
        for one in newest:
            yield _alert("replicas", one["text"], "", one["ranks"], ranks, sure=True)
            return


def _stands(hang: Hang) -> bool:
    """Whether a rank that lives makes no progress: that others are gone is another alert."""
    return bool(hang.waiting) or any(one.rank.alive for one in hang.suspects)


def _gone(ranks: Sequence[Rank], suspects: Sequence[Suspect]) -> Iterator[Alert]:
    states = {rank.rank: rank.state for rank in ranks if not rank.left_before}
    numbers = [number for number, state in states.items() if state in ("dead", "silent")]
    numbers += [one.rank.rank for one in suspects if "ended" in one.kinds]
    if not numbers:
        return
    is_dead = any(states.get(number) == "dead" for number in numbers)
    verb = "is" if len(numbers) == 1 else "are"
    how = "gone" if is_dead else "without a sign of life"
    last = max((rank.step or 0 for rank in ranks if rank.rank in numbers), default=0)
    what = f"{who_text(numbers, ranks)} {verb} {how}"
    yield _alert("gone", what, f"last seen in step {last}", numbers, ranks, sure=is_dead)


def _holds_up(numbers: Sequence[int], ranks: Sequence[Rank]) -> str:
    who = who_text(numbers, ranks)
    verb = "holds" if len(numbers) == 1 or who.startswith("host") else "hold"
    return f"{who} {verb} the others up"


def who_text(numbers: Sequence[int], ranks: Sequence[Rank]) -> str:
    """Ranks with their hosts; the host where it is all of its ranks and there are others."""
    chosen = set(numbers)
    hosts = {rank.host for rank in ranks if rank.rank in chosen} - {""}
    there = {rank.rank for rank in ranks if rank.host in hosts}
    text = ranks_text(sorted(chosen), most=RANGES_SHOWN)
    if len(hosts) != 1:
        return text
    (host,) = hosts
    is_whole = len(chosen) > 1 and there == chosen and len(there) < len(ranks)
    return f"host {host} ({text})" if is_whole else f"{text} on {host}"


def _alert(
    kind: Kind, what: str, more: str, numbers: Sequence[int], ranks: Sequence[Rank], *,
    value: float | None = None, sure: bool = False,
) -> Alert:  # fmt: skip
    hosts = sorted({rank.host for rank in ranks if rank.rank in set(numbers) and rank.host})
    return Alert(kind, what, more, tuple(sorted(set(numbers))), tuple(hosts), value, sure=sure)
