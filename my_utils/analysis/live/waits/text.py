"""The causes of a hang for people: at most six lines, however many ranks there are."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ....core.ranges import ranks_text
from ..flight_files import Call
from .calls import Node
from .causes import Cause
from .groups import PAIR, UNNAMED

CAUSES_SHOWN = 3
RANGES_SHOWN = 6
CALLS_SHOWN = 3
CALLS_COMPARED = 2

_ranks = functools.partial(ranks_text, most=RANGES_SHOWN)

_MODEL = re.compile(r"(?<=.)_model(?=_parallel)")


def call_text(call: Call) -> str:
    """A call for people.

    >>> call_text(Call(7, "all_reduce", "[4096] Float", 0, False, "train.py:88 in step"))
    'all_reduce #7 [4096] Float at train.py:88 in step'
    """
    number = f"#{call.seq}" if call.seq else ""  # 0: known by the rows of the run alone
    text = " ".join(filter(None, [call.name, number, call.sizes]))
    return f"{text} at {call.place}" if call.place else text


def group_text(node: Node) -> str:
    """The group of a call, by its role."""
    group, members = node.group, _ranks(node.group.members)
    if group.description == "default_pg":
        return f"the default group of {members}"
    if group.description == PAIR:
        return f"the pair of {members}"
    if group.description in UNNAMED:
        return f"group {group.name} of {members}"
    return f"the {role_text(group.description)} group of {members}"


def role_text(description: str) -> str:
    """What a group is for.

    >>> role_text("EXPERT_MODEL_PARALLEL_GROUP"), role_text("mesh_fsdp"), role_text("tp")
    ('expert-parallel', 'mesh-fsdp', 'tp')
    """
    role = _MODEL.sub("", description.lower().removesuffix("_group"))
    return role.replace("_", "-")


def cause_lines(
    causes: Sequence[Cause], places: Mapping[int, str], since: Sequence[str]
) -> Iterator[str]:
    """A line for each of the first causes. places: where ranks are, as other sources say it, such
    as "in iter > data". since: of each cause, when it began."""
    for at, cause in enumerate(causes[:CAUSES_SHOWN]):
        more = len(causes) - CAUSES_SHOWN if at == CAUSES_SHOWN - 1 else 0
        rest = f"; and {more} more, see --json" if more > 0 else ""
        known = [f"rank {rank} is {places[rank]}" for rank in cause.ranks[:2] if rank in places]
        evidence = f" ({'; '.join(known)})" if known else ""
        mark = "" if cause.decided else "undecided: "
        yield f"! {mark}{sentence(cause)}, {since[at]}{evidence}{rest}"


def sentence(cause: Cause) -> str:
    """What a cause is, for people."""
    who = _ranks(cause.ranks)
    call = f"{call_text(cause.node.call)} of {group_text(cause.node)}"
    has, is_are = ("has", "is") if len(cause.ranks) == 1 else ("have", "are")
    if cause.kind == "never entered":
        return f"{who} never entered {call}"
    if cause.kind == "stuck inside":
        return f"{who} {is_are} stuck inside {call}, which {_ranks(cause.node.ended)} ended"
    if cause.kind == "came late":
        return f"{who} came late to {call}"
    if cause.kind == "other path":
        took = "took another path" if cause.decided else "called different things"
        return f"{who} {took}: {_calls_text(cause.node)} under #{call.partition('#')[2]}"
    if cause.kind == "stopped":
        return f"{who} {has} called nothing after {call}, from which others have gone on"
    return _less_sure(cause, who, has, call)


def _less_sure(cause: Cause, who: str, has: str, call: str) -> str:
    if cause.kind == "dead":
        is_are, it = ("is", "it") if len(cause.ranks) == 1 else ("are", "them")
        return f"{who} {is_are} gone, and others wait for {it} in {call}"
    if cause.kind == "no dump":
        if cause.decided:
            return f"{who} left no dump, and others wait for it in {call}"
        if len(cause.ranks) > 1:
            return f"others wait in {call} for one of {who}, whose dumps are lost or do not say it"
        return f"others wait in {call} for {who}, whose dump is lost or does not say it"
    if cause.kind == "other order":
        return f"{who} {has} an order of calls that nobody else has; others wait in {call}"
    if cause.kind == "inside":
        return f"{who} are all in {call}, and it does not end: look at devices and network"
    return f"{who} wait for one another in a ring, among others in {call}"


def _calls_text(node: Node) -> str:
    """What ranks called under one number, the fewest first."""
    kinds = sorted(node.kinds.items(), key=lambda item: len(item[1]))
    shown = [f"{kind} by {_ranks(ranks)}" for kind, ranks in kinds[:CALLS_COMPARED]]
    return ", ".join(shown)


def waiting_line(nodes: Sequence[Node], named: Iterable[int]) -> Iterator[str]:
    """How many ranks wait, by what they wait in; none where nobody does."""
    blamed = set(named)
    counts: dict[str, set[int]] = {}
    for node in nodes:
        for name, ranks in (node.kinds or {node.call.name: node.inside}).items():
            where = f"{name.partition(' ')[0]} of {_role(node)}"
            counts.setdefault(where, set()).update(set(node.inside).intersection(ranks) - blamed)
    waiting = set().union(*counts.values()) if counts else set()
    if not waiting:
        return
    largest = sorted(counts.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = [f"{len(ranks)} in {where}" for where, ranks in largest[:CALLS_SHOWN] if ranks]
    rest = sum(len(ranks) for _, ranks in largest[CALLS_SHOWN:])
    if rest:
        shown.append(f"{rest} in other calls")
    verb = "rank waits" if len(waiting) == 1 else "ranks wait"
    yield f"  {len(waiting)} {verb}: {', '.join(shown)}"


def _role(node: Node) -> str:
    description = node.group.description
    if description == "default_pg":
        return "the default group"
    if description == PAIR:
        return "pairs"
    return (
        f"group {node.group.name}" if description in UNNAMED else f"{role_text(description)} groups"
    )


def unknown_line(
    without_dump: Sequence[int], stale: Iterable[int], named: Iterable[int]
) -> Iterator[str]:
    """Of which ranks it is not known where they are."""
    old = sorted(stale)
    blamed = set(named)
    parts = []
    missing = [rank for rank in without_dump if rank not in blamed]
    if missing:
        parts.append(f"no dump of {_ranks(missing)}")
    if old:
        parts.append(f"the dump of {_ranks(old)} is older than the hang")
    if parts:
        yield f"  unknown: {'; '.join(parts)}"
