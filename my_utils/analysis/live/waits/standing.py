"""Who waits for whom by the open stages and the recorded collectives of ranks, without dumps.

A rank waits in a place in which ranks wait for one another, a meeting. It waits there for the
members of the group that have not come: those that work, that are in an earlier meeting, that have
ended, or whose process is gone. A rank that is awaited and waits for no other holds up the others.
Where no call is recorded, ranks that have ended a stage wait for those that are in it still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ....core.run_files.state import COLLECTIVES_TAG, Rank
from ....core.units import age_text
from .calls import HUNG_S, RecordedWait
from .graph import last_parts
from .places import (
    Meeting,
    Usual,
    find_meeting,
    is_behind,
    is_odd,
    news_ns,
    stack_text,
    takes_long,
    where,
)

PLACES_COMPARED = 256  # of stuck ranks, those of most ranks
MUCH_LONGER = 2.0  # times as long as the next rank is without progress

_Reasons = dict[str, list[tuple[str, str]]]  # of each label: kind and text


@dataclass(frozen=True)
class Suspect:
    """A rank that stands out, with the reasons, the weightiest first, and a word for each of them:
    "dead", "silent", "ended", "behind", "elsewhere", "longest" or "slow"; or that of a cause by
    dumps."""

    rank: Rank
    kinds: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Waiting:
    """A rank that waits for a suspect, and the stage in which it does so."""

    rank: Rank
    suspect: Rank
    stage: str

    @property
    def text(self) -> str:
        """For people."""
        return f"waits for rank {self.suspect.name} in {self.stage}"


@dataclass(eq=False)
class Place:
    """Ranks that are in the same stages of the same step. stuck: how many of them have made no
    progress for too long. holders: whom they wait for there, and whether that rank is behind."""

    ranks: list[Rank]
    meeting: Meeting | None
    stuck: int = 0
    holders: dict[str, bool] = field(default_factory=dict)

    @property
    def first(self) -> Rank:
        return self.ranks[0]


class Standing:
    """The ranks of a run, in which places they are, and who is awaited there.

    suspects: who holds the run up, the most suspicious first. rings: ranks that wait for one
    another, so that it is not known who is to blame. Workers are left out: they come and go as
    their ranks do.
    """

    def __init__(
        self, ranks: Sequence[Rank], stuck_after_s: float, usual: Usual | None = None
    ) -> None:
        self._usual = usual or Usual()
        self._after_s = stuck_after_s
        self.ranks = [rank for rank in ranks if rank.worker == 0]
        self._by_number = {rank.rank: rank for rank in self.ranks}
        self._alive = [rank for rank in self.ranks if rank.alive]
        self._meetings = {one.label: find_meeting(one, self._usual) for one in self._alive}
        self._places = self._find_places()
        waiting = [one for one in self._places if one.meeting and one.stuck]
        working = [one for one in self._alive if self._meetings[one.label] is None]
        self._is_divided = bool(waiting) and bool(working)  # some wait in meetings, others work
        self._find_holders(has_meetings=bool(waiting))
        self._waiting_at: dict[str, list[Place]] = {}  # by the label of who holds them up
        for place in self._places:
            for label in place.holders:
                self._waiting_at.setdefault(label, []).append(place)
        self._place_of = {rank.label: one for one in self._places for rank in one.ranks}
        roots, self.rings = self._find_roots()
        self._reasons: _Reasons = {rank.label: [] for rank in self.ranks}
        self._find_gone()
        self._find_ended()
        self._find_behind(all_meet=not working)
        self._explain(roots)
        if not waiting and not roots and not any(one.holders for one in self._places):
            self._find_elsewhere()
        self.suspects = sorted(self._as_suspects(), key=_weight)

    # --- places ---

    @property
    def stuck_here(self) -> bool:
        """Whether a rank on this machine is stuck."""
        return any(rank.source == "journal" for rank in self._stuck(self._alive))

    def _stuck(self, ranks: Iterable[Rank]) -> list[Rank]:
        return [rank for rank in ranks if (rank.still_s or 0.0) >= self._after_s]

    def _find_places(self) -> list[Place]:
        """Of ranks in a meeting, and of those that are stuck. Of a rank without a sign of life
        nobody knows where it is."""
        places: dict[object, Place] = {}
        for rank in self._alive:
            meeting = self._meetings[rank.label]
            if rank.state == "running" and (meeting or self._stuck([rank])):
                key = meeting, rank.step, rank.stack
                places.setdefault(key, Place([], meeting)).ranks.append(rank)
        for place in places.values():
            place.ranks.sort(key=lambda rank: -(rank.still_s or 0.0))
            place.stuck = len(self._stuck(place.ranks))
        return sorted(places.values(), key=lambda one: -len(one.ranks))

    def _find_holders(self, has_meetings: bool) -> None:
        compared = self._places[:PLACES_COMPARED]
        in_places = {rank.label for one in self._places for rank in one.ranks}
        groups = [[rank] for rank in self.ranks if rank.label not in in_places]
        groups += [one.ranks for one in compared]
        for number, place in enumerate(self._places):
            is_compared = number < PLACES_COMPARED
            if place.meeting is not None:
                self._find_absent(place, groups if is_compared else ())
            elif is_compared and not has_meetings and not _records_calls(place.first):
                for other in compared:
                    if other is not place and is_behind(other.first, place.first):
                        place.holders.update((rank.label, True) for rank in other.ranks)

    def _find_absent(self, place: Place, groups: Iterable[Sequence[Rank]]) -> None:
        """Of a place in a meeting, the members of its group that have not come to it. groups: of
        ranks that are in one place each, for a group whose members are not known."""
        meeting = place.meeting
        assert meeting is not None
        if meeting.members is not None:
            known = self._by_number
            groups = ([known[number]] for number in meeting.members if number in known)
        own = {rank.label for rank in place.ranks}
        for ranks in groups:
            if ranks[0].label in own:
                continue
            behind = self._holds_up(place, meeting, ranks[0])
            if behind is not None:
                place.holders.update((rank.label, behind) for rank in ranks)

    def _holds_up(self, place: Place, meeting: Meeting, other: Rank) -> bool | None:
        """Whether `other` is certainly behind where it has not come to the meeting; None where it
        has, or may have."""
        rank = place.first
        if not other.alive:
            return False if other.state == "dead" or meeting.members is not None else None
        if other.state == "silent":
            return False
        step, its_step = rank.step or 0, other.step or 0
        there = self._meetings[other.label]
        if meeting.is_pair:  # neither side can have gone on without the other
            is_there = there is not None and there.answers(meeting)
            return None if is_there or its_step > step + 1 else its_step < step
        if there is None:
            return None if its_step > step + 1 or is_behind(rank, other) else its_step < step
        if there.name == meeting.name and there.members in (None, meeting.members):
            return True if its_step < step else None
        if its_step > step or is_behind(rank, other):
            return None
        return its_step < step or is_behind(other, rank)

    # --- the graph ---

    def _find_roots(self) -> tuple[set[str], list[list[Rank]]]:
        """The ranks that stuck ranks wait for and that wait for none; and rings."""
        waiting: list[str | int] = [
            rank.label for one in self._places if one.holders for rank in self._stuck(one.ranks)
        ]
        labels = {rank.label: rank for rank in self.ranks}
        by_id = {id(one): one for one in self._places}

        def after(vertex: str | int) -> Sequence[str | int]:
            if isinstance(vertex, int):
                return list(by_id[vertex].holders)
            place = self._place_of.get(vertex)
            return [id(place)] if place is not None and place.holders else []

        roots: set[str] = set()
        rings = []
        for part in last_parts(waiting, after):
            ranks = [labels[vertex] for vertex in part if isinstance(vertex, str)]
            if len(part) == 1 and ranks:
                roots.add(ranks[0].label)
            elif len(ranks) > 1:
                rings.append(sorted(ranks, key=lambda rank: rank.rank))
        return roots, rings

    def recorded_waits(self) -> dict[int, RecordedWait]:
        """Where ranks wait for members of a group that is known."""
        found = {}
        numbers = {rank.label: rank.rank for rank in self.ranks}
        for place in self._places:
            meeting = place.meeting
            if meeting is None or meeting.members is None or not place.holders:
                continue
            holders = sorted(numbers[label] for label in place.holders)
            for rank in place.ranks:
                if (rank.still_s or 0.0) < HUNG_S:
                    continue
                since_ns = (rank.moved_ns or 0) - round(rank.time_offset_s * 1e9)
                members = tuple(sorted(meeting.members))
                found[rank.rank] = RecordedWait(
                    meeting.name, members, tuple(holders), since_ns, is_odd(rank)
                )
        return found

    def directly(self, label: str) -> list[Place]:
        """Where ranks wait for that one."""
        return self._waiting_at.get(label, [])

    def waiting_for(self, labels: Collection[str]) -> list[Rank]:
        """The ranks that wait for one of these, directly or through others."""
        found = self._reach(labels, set(labels), set())
        return sorted(found, key=lambda rank: rank.rank)

    def _reach(self, labels: Iterable[str], seen: set[str], passed: set[int]) -> list[Rank]:
        """The ranks that wait for one of these and are not in `seen`, to which they are added.
        passed: numbers of places that were seen, too."""
        found: list[Rank] = []
        queue = [*labels]
        while queue:
            for place in self.directly(queue.pop()):
                if id(place) in passed:
                    continue
                passed.add(id(place))
                new = [rank for rank in place.ranks if rank.label not in seen]
                seen.update(rank.label for rank in new)
                found += new
                queue.extend(rank.label for rank in new)
        return found

    def find_waiting(self, suspects: Sequence[Suspect]) -> list[Waiting]:
        """The ranks that wait for the suspects, each for the first one that it waits for. Where
        groups are not known, a stuck rank waits for the first of all."""
        held = {one.rank.label for one in suspects}
        found: dict[str, Waiting] = {}
        seen, passed = set(held), set[int]()
        for suspect in suspects:
            for rank in self._reach([suspect.rank.label], seen, passed):
                found[rank.label] = Waiting(rank, suspect.rank, where(rank))
        for rank in self._alive if suspects else ():
            meeting = self._meetings[rank.label]
            may_wait = bool(self._stuck([rank])) if meeting is None else meeting.members is None
            if may_wait and rank.label not in held:
                found.setdefault(rank.label, Waiting(rank, suspects[0].rank, where(rank)))
        return [found[rank.label] for rank in self.ranks if rank.label in found]

    # --- why ---

    def _find_gone(self) -> None:
        for rank in self.ranks:
            if rank.state == "dead":
                text = "its process is gone and did not exit cleanly"
                if error := self._usual.error(rank):
                    text = f"its process is gone: {error}"
                if rank.left_before:
                    text += "; it was not seen after the other ranks began"
                self._reasons[rank.label].append(("dead", text))
            elif rank.state == "silent":
                age = "" if rank.beat_age_s is None else f" for {age_text(rank.beat_age_s)}"
                text = (
                    f"no sign of life{age}: stopped, cut off, or its log directory does not answer"
                )
                self._reasons[rank.label].append(("silent", text))

    def _find_ended(self) -> None:
        """A few ranks that have ended while most still wait: they had fewer steps than the others,
        or an exception."""
        ended = [rank for rank in self.ranks if rank.state == "closed"]
        stuck = self._stuck(self._alive)
        for rank in ended:
            awaited = sum(one.stuck for one in self.directly(rank.label))
            count = awaited or (len(stuck) if len(ended) < len(stuck) else 0)
            if count:
                error = self._usual.error(rank)
                how = f"with {error}" if error else "cleanly"
                text = f"it ended {how} while {count} of {len(self.ranks)} ranks wait"
                self._reasons[rank.label].append(("ended", text))

    def _find_behind(self, all_meet: bool) -> None:
        """A rank may be one step behind in a healthy run too, but not for long; and a rank of which
        the news is older may have gone on since. One that waits for others is not late itself."""
        known = [rank for rank in self._alive if rank.step is not None]
        furthest = max(known, key=lambda rank: (rank.step, news_ns(rank)), default=None)
        if furthest is None or furthest.step is None:
            return
        for rank in known:
            assert rank.step is not None
            since_s = max(0, news_ns(furthest) - news_ns(rank)) / 1e9
            behind = furthest.step - rank.step - self._usual.steps_a_second * since_s
            meeting, stuck = self._meetings[rank.label], bool(self._stuck([rank]))
            place = self._place_of.get(rank.label)
            if meeting is not None and stuck and place is not None and place.holders:
                continue
            waits = meeting is not None and meeting.members is None and not all_meet
            if behind > 1 or (behind == 1 and stuck and not waits):
                count = furthest.step - rank.step
                text = "1 step" if count == 1 else f"{count} steps"
                text += f" behind the furthest rank, which is at {furthest.step}"
                self._reasons[rank.label].append(("behind", text))

    def _explain(self, roots: Collection[str]) -> None:
        for rank in self._alive:
            if rank.label not in roots or rank.state == "silent":
                continue
            places = self.directly(rank.label)
            counts = Counter[tuple[str, ...]]()
            for place in places:
                counts[place.first.stack] += place.stuck
            stack, most = counts.most_common(1)[0]
            count = counts.total()
            if self._meetings[rank.label] is None and self._is_divided:
                there = " in" if most == count else f", {most} of them in"
                text = (
                    f"in {where(rank)} while {count} of {len(self._alive)} ranks wait"
                    f"{there} {stack_text(stack)}"
                )
                self._reasons[rank.label].append(("elsewhere", text))
            elif all(place.holders[rank.label] for place in places) and not any(
                kind == "behind" for kind, _ in self._reasons[rank.label]
            ):
                have = "1 rank has" if count == 1 else f"{count} ranks have"
                text = f"in {where(rank)} of step {rank.step}, which {have} passed"
                self._reasons[rank.label].append(("behind", text))

    def _find_elsewhere(self) -> None:
        """Where nothing says who waits: most ranks wait in one place, and others hold them up.
        Without a majority a rank is named only if it alone is stuck, for much longer than any
        other one."""
        alive, stuck = self._alive, self._stuck(self._alive)
        if not stuck or len(alive) < 2 or any(takes_long(one, self._after_s) for one in alive):
            return
        (crowd, count), *_ = Counter(rank.stack for rank in stuck).most_common(1)
        if 2 * count > len(alive):
            for rank in alive:
                if rank.stack != crowd:
                    text = f"in {where(rank)} while {count} of {len(alive)} ranks wait in "
                    self._reasons[rank.label].append(("elsewhere", text + stack_text(crowd)))
            return
        longest, *rest = sorted(alive, key=lambda rank: -(rank.still_s or 0.0))
        is_alone = len(stuck) == 1 and longest is stuck[0]
        if is_alone and (longest.still_s or 0.0) > MUCH_LONGER * (rest[0].still_s or 0.0):
            place = (longest.stack[-1] or "(name unknown)") if longest.stack else "no stage"
            still = age_text(longest.still_s or 0.0)
            text = f"in {place} for {still}, longer than any other rank"
            self._reasons[longest.label].append(("longest", text))

    def _as_suspects(self) -> Iterator[Suspect]:
        for rank in self.ranks:
            reasons = self._reasons[rank.label]
            if reasons and not takes_long(rank, self._after_s):
                kinds, texts = zip(*reasons, strict=True)
                yield Suspect(rank, kinds, texts)


def _records_calls(rank: Rank) -> bool:
    """Whether its calls of collectives are recorded: in none of them it waits for nobody."""
    return any(thread.tag == COLLECTIVES_TAG for thread in rank.main_threads)


def _weight(suspect: Suspect) -> tuple[int, int, float]:
    rank = suspect.rank
    order = {"dead": 0, "silent": 1}
    step = rank.step
    return order.get(rank.state, 2), -1 if step is None else step, -(rank.still_s or 0.0)
