"""Who holds up the others in a run, by all that is known of it.

The dumps of torch's flight recorder say in which call each rank is, so they come first. The
open stages and the recorded collectives draw the same graph where there are no dumps, and of ranks
that dumps say nothing of. Processes that have ended decide what is open in both.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.run_files.ranks import last_sign_s
from ...core.run_files.state import Rank
from .collectives import Collectives
from .waits.calls import HUNG_S, Node
from .waits.causes import Cause
from .waits.places import is_odd, takes_long, where
from .waits.standing import Standing, Suspect
from .waits.text import sentence


@dataclass(frozen=True)
class RootCause:
    """What holds up a run. kind: that of the cause by dumps, or of the suspects by their stages.
    direct, waiting: as of `Cause`. reasons: sentences. node: the call in which others wait, where
    dumps say it."""

    kind: str
    ranks: Sequence[int]
    decided: bool
    waited_s: float
    direct: Sequence[int]
    waiting: Sequence[int]
    reasons: Sequence[str]
    node: Node | None = None


@dataclass(frozen=True)
class RootCauses:
    """causes: what is sure first. suspects: the ranks of these that have files in the directories.
    collectives: what the dumps say, without what another source refutes."""

    causes: Sequence[RootCause]
    suspects: Sequence[Suspect]
    collectives: Collectives | None


def find_root_causes(
    standing: Standing, collectives: Collectives | None, after_s: float, notes: Mapping[int, str]
) -> RootCauses:
    """standing: of the ranks by their stages. after_s: how long a rank may be without
    progress. notes: what else is known of ranks."""
    suspects = {one.rank.rank: one for one in standing.suspects}
    if collectives is not None:
        held = [cause for cause in collectives.causes if _counts(cause, standing, after_s)]
        held = [_as_far_as_known(one, standing) for one in held]
        held = [one for one in held if one.decided or suspects.keys().isdisjoint(one.ranks)]
        collectives = dataclasses.replace(collectives, causes=held)
        for rank in collectives.waiting:
            suspects.pop(rank, None)
    by_dumps = list(collectives.causes) if collectives is not None else []
    found = [_of_dumps(cause, suspects, notes) for cause in by_dumps]
    by_number = {rank.rank: rank for rank in standing.ranks}
    for cause in by_dumps:
        if cause.decided:
            ranks = [by_number[number] for number in cause.ranks if number in by_number]
            _add_cause(suspects, ranks, cause)
    named = {rank for one in found for rank in one.ranks if one.decided}
    found += _of_stages([one for n, one in suspects.items() if n not in named], standing, notes)
    rings = [] if found or suspects else [_ring(ranks) for ranks in standing.rings]
    for ring in rings:
        if ring.decided:
            (odd,) = ring.ranks
            suspects[odd] = Suspect(by_number[odd], (ring.kind,), tuple(ring.reasons))
    found += rings
    found.sort(key=lambda cause: not cause.decided)
    noted = [_noted(one, notes.get(number, "")) for number, one in suspects.items()]
    return RootCauses(found, noted, collectives)


def _counts(cause: Cause, standing: Standing, after_s: float) -> bool:
    """Not if all its ranks only take long, as for a checkpoint."""
    named = set(cause.ranks)
    of_cause = [rank for rank in standing.ranks if rank.rank in named]
    return not (of_cause and all(takes_long(rank, after_s) for rank in of_cause))


def _as_far_as_known(cause: Cause, standing: Standing) -> Cause:
    """Where several ranks did not come, and have ended in good order since, nobody knows which of
    them waited for another: gloo's dumps have no sends and receives."""
    states = [rank.state for rank in standing.ranks if rank.rank in cause.ranks]
    if cause.kind == "never entered" and len(states) > 1 and "closed" in states:
        return dataclasses.replace(cause, decided=False)
    return cause


def _add_cause(suspects: dict[int, Suspect], ranks: Sequence[Rank], cause: Cause) -> None:
    """Puts what dumps say of the ranks before what their stages say."""
    text = sentence(cause)  # once: it goes through all ranks
    for rank in ranks:
        known = suspects.get(rank.rank, Suspect(rank, (), ()))
        kinds, reasons = (cause.kind, *known.kinds), (text, *known.reasons)
        if cause.kind in known.kinds:  # that it is dead, by both
            kinds, reasons = known.kinds, (f"{known.reasons[0]}; {text}", *known.reasons[1:])
        suspects[rank.rank] = Suspect(rank, kinds, reasons)


def _noted(suspect: Suspect, note: str) -> Suspect:
    if not note:
        return suspect
    *others, last = suspect.reasons
    return dataclasses.replace(suspect, reasons=(*others, f"{last}; {note}"))


def _of_dumps(cause: Cause, suspects: Mapping[int, Suspect], notes: Mapping[int, str]) -> RootCause:
    by_stages = [
        f"rank {number}: {reason}"
        for number in cause.ranks
        if number in suspects
        for reason in suspects[number].reasons
    ]
    noted = [f"rank {number}: {notes[number]}" for number in cause.ranks if number in notes]
    return RootCause(
        kind=cause.kind,
        ranks=cause.ranks,
        decided=cause.decided,
        waited_s=cause.waited_s,
        direct=cause.direct,
        waiting=cause.waiting,
        reasons=[sentence(cause), *by_stages, *noted],
        node=cause.node,
    )


def _of_stages(
    suspects: Sequence[Suspect], standing: Standing, notes: Mapping[int, str]
) -> list[RootCause]:
    """One cause of all ranks that stand out for the same reasons."""
    alike: dict[object, list[Suspect]] = {}
    for one in suspects:
        note = notes.get(one.rank.rank, "")
        alike.setdefault((one.kinds, one.reasons, note), []).append(one)
    found = []
    for own in alike.values():
        labels = [one.rank.label for one in own]
        places = {id(one): one for label in labels for one in standing.directly(label)}.values()
        direct = {rank.rank: rank.still_s or 0.0 for place in places for rank in place.ranks}
        numbers = sorted(one.rank.rank for one in own)
        note = notes.get(numbers[0], "")
        cause = RootCause(
            kind=own[0].kinds[0],
            ranks=numbers,
            decided=True,
            waited_s=max(direct.values(), default=0.0),
            direct=sorted(direct.keys() - set(numbers)),
            waiting=[rank.rank for rank in standing.waiting_for(labels)],
            reasons=[*own[0].reasons, *([note] if note else [])],
        )
        found.append(cause)
    return found


def drop_cleared(causes: Sequence[RootCause], suspects: Sequence[Suspect]) -> list[RootCause]:
    """Without those by stages alone of which no rank is left among the suspects."""
    left = {one.rank.rank for one in suspects}
    return [
        one
        for one in causes
        if not one.decided or one.node is not None or not left.isdisjoint(one.ranks)
    ]


def _ring(ranks: Sequence[Rank]) -> RootCause:
    numbers = [rank.rank for rank in ranks]
    waited_s = max((rank.still_s or 0.0 for rank in ranks), default=0.0)
    odd = [rank for rank in ranks if is_odd(rank)]
    if len(odd) == 1:
        direct = [number for number in numbers if number != odd[0].rank]
        text = f"in {where(odd[0])}; its newest calls are in an order that it has never had before"
        return RootCause("other order", [odd[0].rank], True, waited_s, direct, direct, [text])
    text = "they wait for one another in a ring, or the order of their calls is not known"
    return RootCause("ring", numbers, False, waited_s, numbers, [], [text])


def gone_ranks(ranks: Sequence[Rank]) -> set[int]:
    """The ranks whose processes have ended while others live; where none does, those that ended
    before the others."""
    main = [rank for rank in ranks if rank.worker == 0]
    until_s = max((_there_until_s(rank) for rank in main), default=0.0) - HUNG_S
    if any(rank.alive for rank in main):
        until_s = math.inf
    return {rank.rank for rank in main if not rank.alive and _there_until_s(rank) < until_s}


def _there_until_s(rank: Rank) -> float:
    """Until when the process was there for certain; Unix time."""
    return rank.seen_ns / 1e9 - rank.time_offset_s if rank.alive else last_sign_s(rank)


def at_their_end(ranks: Sequence[Rank]) -> list[Rank]:
    """The ranks of a run that was ended as a whole, as they were then: where all of them are dead,
    that accuses none."""
    gone = gone_ranks(ranks)
    return [
        dataclasses.replace(
            rank,
            state="running",
            seen_ns=round((_there_until_s(rank) + rank.time_offset_s) * 1e9),
            beat_age_s=0.0,
        )
        if rank.state == "dead" and rank.rank not in gone
        else rank
        for rank in ranks
    ]
