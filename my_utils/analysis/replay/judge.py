"""The verdict on operations: replayed unchanged first, then who is to blame."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np

from ...core.ranges import ranks_text
from ...core.units import count_text
from ..verdict.kinds import Kind
from ..verdict.result import NO_TIME, NO_TIME_REMEDY
from ..verdict.warmup import find_warmup
from .common_steps import with_common_steps
from .engine import lengths, replay
from .explain import LEAST, Explained, explain
from .graph import Graph, build_graph
from .levels import CannotReplay
from .operations import RECEIVE, TOGETHER, Flags, Floats, Ints, Operations, number_rows
from .peers import Groups
from .result import Evidence, ReplayFinding, ReplayVerdict
from .roles import Roles
from .slowdown import measure_slowdown
from .suspects import Claim
from .unrecorded import with_unrecorded

OFF_MAX = 2e-4  # of a step: so far may a replay with nothing changed be from what was measured
MARKED_OFF_MAX = 0.1  # the same for the mean of the steps that the source marks
TOO_EARLY_SHARE = 0.01  # of the meetings, that a member leaves before the last one has come
HIDDEN_STEPS, HIDDEN_SHARE = 0.9, 0.5  # see `_moving_as_one`
PAIRED_MAX = 16  # ranks
RANKS_SHOWN = 8  # ranges
ABSENT_SHARE = 0.5  # of what a finding saves
CUT_SHARE = 0.05
STEPS_MIN = 3
IS_COLLECTIVE = re.compile(
    r"all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|all[_-]?to[_-]?all|broadcast|barrier|"
    r"nccl|rccl|gloo:",
    re.IGNORECASE,
)
UNKNOWNS_MAX = 3000  # ranks and groups, whose clocks are solved for as a whole

KINDS: dict[Claim, Kind] = {
    "slow rank": "straggler",
    "slow host": "straggler",
    "slow stage": "straggler",
    "slow link": "communication",
    "steps that stick out": "host hiccups",
    "imbalance that moves": "moving imbalance",
    "slower since": "slower since",
    "slower over time": "throughput falls",
    "checkpoint": "checkpoint",
    "eval": "eval",
    "input": "input",
}


def judge_operations(
    operations: Operations,
    paths: Sequence[str] = (),
    warmup: int | None = None,
    least_share: float = LEAST,
) -> ReplayVerdict:
    """What bounds the run that did these operations.

    operations: in any order. paths: the files, for the text. warmup: how many steps at the
    beginning are left out; None leaves out those that take longer, where the steps are consecutive.
    least_share: what the first finding must cost at least, as a share of a step. The status is "not
    judged", with the reason, if the replay does not reproduce the measured steps, or if fewer than
    three steps are left. Thread-safe.

    >>> import numpy as np
    >>> none = np.zeros(0, np.int64)
    >>> judge_operations(Operations(*[none] * 8, ())).reason
    'no operations'
    """
    verdict = ReplayVerdict("not judged", paths=tuple(paths), notes=list(operations.notes))
    if not len(operations):
        verdict.reason = "no operations"
        return verdict
    try:
        _judge(verdict, operations.in_order(), warmup, least_share)
    except CannotReplay as error:
        verdict.reason = str(error)
    return verdict


def _judge(
    verdict: ReplayVerdict, operations: Operations, warmup: int | None, least_share: float
) -> None:
    operations = _without_warmup(verdict, operations, warmup)
    verdict.operations, marked_ns = len(operations), operations.marked_ns
    graph, operations = whole_graph(operations, common_steps=True)
    verdict.notes, verdict.inferred = list(operations.notes), operations.inferred
    _describe(verdict, graph, marked_ns, common=not operations.marked_ns)
    if verdict.judged_steps < STEPS_MIN:
        steps = count_text(verdict.judged_steps, "step")
        verdict.reason = f"{steps}, {STEPS_MIN} are needed"
        verdict.remedy = f"record more steps; torch.profiler: schedule(..., active={STEPS_MIN})"
        return
    if not verdict.step_ns > 0:
        verdict.remedy = NO_TIME_REMEDY
        verdict.reason = NO_TIME
        return
    if _leave_too_early(graph) or verdict.replay_off > (MARKED_OFF_MAX if marked_ns else OFF_MAX):
        verdict.reason = _not_reproduced(graph, verdict.replay_off, is_marked=bool(marked_ns))
        return
    alone, what = _alone_share(operations, graph)
    if alone >= LEAST:
        verdict.reason = (
            f"{100 * alone:.0f} % of the time is in {what} are not known, so that "
            "nobody knows who waits for whom"
        )
        return
    roles = Roles(graph, operations.stages, operations.hosts)
    verdict.slowdown = measure_slowdown(graph)
    found, verdict.unknown_share = explain(graph, roles, least_share)
    for first in found[:1]:
        verdict.reason = _hidden(first, graph) or _of_absent(first, operations)
    if verdict.reason:
        return
    verdict.findings = [_make_finding(one, graph, roles) for one in found]
    verdict.world_size = max(operations.world_size, verdict.judged_ranks)
    ranks_there = max(operations.world_size, int(graph.rank.max()) + 1)
    for one in verdict.by_replay:
        if one.claim == "slow link" and verdict.judged_ranks < ranks_there:
            one.detail["or_absent_rank"] = True
        if one.kind == "input" and operations.num_workers is not None:
            one.detail["num_workers"] = operations.num_workers
    verdict.status = "found" if found else "ok"


def _not_reproduced(graph: Graph, off: float, *, is_marked: bool) -> str:
    early = (
        f"in {graph.too_early} of {len(graph.meeting_name)} meetings a rank leaves before the last "
        "one has come, so clocks differ, or others meet; "
        if graph.too_early
        else ""
    )
    by = f"{100 * off:.2g} %"
    if is_marked:
        return f"{early}replayed unchanged, a step is off by {by} from those that the source marks"
    return f"{early}replayed unchanged the steps are off by up to {by}"


def whole_graph(operations: Operations, *, common_steps: bool = False) -> tuple[Graph, Operations]:
    """The graph with the meetings that were not recorded, on one clock where the clocks differ; and
    its operations. operations: in order. common_steps: steps that each rank marks for itself are
    taken from one collective of all ranks to the next where they can be. Raises CannotReplay."""
    graph = build_graph(operations)
    if _leave_too_early(graph):
        moved = with_one_clock(operations)
        if moved is not None:
            operations = moved.in_order()
            graph = build_graph(operations)
    if common_steps and operations.marked_ns:
        common = with_common_steps(operations)
        if common is not None:
            operations = common
            graph = build_graph(operations)
    more = with_unrecorded(operations, graph)
    if more is None:
        return graph, operations
    del graph
    operations = more.in_order()
    return build_graph(operations), operations


def _alone(operations: Operations) -> list[tuple[Flags, str]]:
    """The receives, and the collectives, that meet nobody in the file, and what these are."""
    number, count = number_rows(operations.meeting)
    alone = (np.bincount(number, minlength=count) == 1)[number] | (operations.meeting < 0)
    names = np.array([IS_COLLECTIVE.search(name) is not None for name in operations.names])
    receives = operations.side == RECEIVE
    calls = (operations.side == TOGETHER) & (names[operations.name] | (operations.meeting >= 0))
    return [
        (alone & receives, "receives whose senders"),
        (alone & calls, "collectives whose members"),
    ]


def _alone_share(operations: Operations, graph: Graph) -> tuple[float, str]:
    """How much of the steps the rank that has most of it spends in what meets nobody in the file;
    and what that is, in words."""
    ranks = number_rows(operations.rank)[0]
    if not ranks.any():  # one rank, which is compared with nobody
        return 0.0, ""
    took = (operations.end_ns - operations.begin_ns).astype(np.float64)
    total = max(float(graph.step_ns.sum()), 1.0)
    return max(
        (float(np.bincount(ranks[rows], took[rows], minlength=1).max()) / total, what)
        for rows, what in _alone(operations)
    )


def _of_absent(one: Explained, operations: Operations) -> str | None:
    """Why nobody knows whom this finding is about: most of it is spent in what meets nobody."""
    theirs = np.isin(operations.rank, one.suspect.ranks)
    for rows, what in _alone(operations) if len(np.unique(operations.rank)) > 1 else ():
        names = {operations.names[at] for at in np.unique(operations.name[rows & theirs])}
        share = sum(share for name, share in one.where if name in names)
        if share >= ABSENT_SHARE:
            return (
                f"{100 * share:.0f} % of what {ranks_text(one.suspect.ranks, RANKS_SHOWN)} would "
                f"save is in {what} are not known, so that nobody knows who waits for whom"
            )
    return None


def _hidden(one: Explained, graph: Graph) -> str | None:
    """Why nobody knows whom this finding is about: ranks that it names together meet where nothing
    says so."""
    suspect = one.suspect
    for number, before in _cut_most(one, graph) if len(suspect.ranks) > 1 else ():
        nodes = np.flatnonzero(graph.name == number)
        pair = _moving_as_one(graph, nodes, before, suspect.ranks[:PAIRED_MAX])
        if pair is not None:
            name = f"{'before ' if before else ''}{graph.names[number]}"
            return (
                f"ranks {pair[0]} and {pair[1]} wait for each other in {name}, which was not "
                "recorded, so that nobody knows who waits for whom"
            )
    return None


def _cut_most(one: Explained, graph: Graph) -> list[tuple[int, bool]]:
    """Names of the operations that are cut, and whether in the time before them, that have at least
    CUT_SHARE of what is cut."""
    cut, size = one.suspect.cut, len(graph.names)
    parts = [
        np.bincount(graph.name[cut.nodes], np.maximum(values, 0.0), size)
        for values in (cut.own, cut.gap)
    ]
    least = CUT_SHARE * float(sum(part.sum() for part in parts))
    return [
        (int(name), before)
        for before, part in zip((False, True), parts, strict=True)
        for name in np.flatnonzero((part > 0) & (part >= least))
    ]


def _moving_as_one(
    graph: Graph, nodes: Ints, before: bool, ranks: Sequence[int]
) -> tuple[int, int] | None:
    """Two ranks that leave these nodes, or begin them, in nearly all steps much closer together
    than the nodes differ from step to step."""
    left = graph.begin_ns[nodes] if before else graph.end_ns[nodes]
    took = left - graph.begin_ns[nodes] + (graph.weights.gap[nodes] if before else 0.0)
    key, keys = number_rows(graph.key[nodes])
    differs = np.abs(took - Groups(key, keys).medians(took)[key])
    turn, turns = number_rows(graph.step[nodes], graph.kind[nodes])
    place, who = np.full((len(ranks), turns), -1), graph.rank[nodes]
    for row, rank in enumerate(ranks):
        place[row, turn[who == rank]] = np.flatnonzero(who == rank)
    for first, second in itertools.combinations(range(len(ranks)), 2):
        both = (place[first] >= 0) & (place[second] >= 0)
        one, other = place[first, both], place[second, both]
        least = HIDDEN_SHARE * np.median(differs[one]) if len(one) else 0.0
        if least and np.quantile(np.abs(left[one] - left[other]), HIDDEN_STEPS) <= least:
            return ranks[first], ranks[second]
    return None


def _leave_too_early(graph: Graph) -> bool:
    return graph.too_early > 1 + TOO_EARLY_SHARE * len(graph.meeting_name)


def _without_warmup(
    verdict: ReplayVerdict, operations: Operations, warmup: int | None
) -> Operations:
    steps, first = np.unique(operations.step, return_index=True)
    if warmup is None:
        consecutive = len(steps) >= 5 and (np.diff(steps) == 1).mean() > 0.9
        warmup = 0
        if consecutive:
            begins = np.minimum.reduceat(operations.begin_ns, first)
            length = (np.maximum.reduceat(operations.end_ns, first) - begins).astype(np.float64)
            warmup = find_warmup(length[None, :])
    verdict.warmup = warmup
    if not warmup:
        return operations
    if warmup >= len(steps):
        raise CannotReplay("all steps are warm-up: their times never settle")
    return operations.kept(slice(int(first[warmup]), None))  # in order, so without a copy


def _describe(
    verdict: ReplayVerdict,
    graph: Graph,
    marked_ns: dict[int, dict[int, tuple[int, int]]],
    *,
    common: bool,
) -> None:
    """common: the steps begin where all ranks meet, in the step before that of their mark."""
    replayed = lengths(graph, replay(graph, graph.weights))
    if marked_ns:
        graph.step_ns = replayed
        verdict.replay_off = _marked_off(float(replayed.mean()), marked_ns, graph.steps, common)
    else:
        off = np.abs(replayed - graph.step_ns) / graph.step_ns.clip(1.0)
        verdict.replay_off = float(np.max(off))
    verdict.step_ns = float(graph.step_ns.mean())
    verdict.judged_ranks = verdict.world_size = len(np.unique(graph.rank))
    verdict.judged_steps = len(graph.steps)
    verdict.first_step, verdict.last_step = int(graph.steps[0]), int(graph.steps[-1])


def _marked_off(
    mean_ns: float, marked_ns: dict[int, dict[int, tuple[int, int]]], steps: Ints, common: bool
) -> float:
    """How far the mean of the replayed steps is from that of the marked ones, as a share. common:
    a step has the last part of the mark before it for that of its own mark, so that the mean may be
    anywhere between those of both marks."""
    marked = _marked_mean(marked_ns, steps)
    before = (common and _marked_mean(marked_ns, steps - 1)) or marked
    low, high = sorted((marked, before))
    return abs(mean_ns - min(max(mean_ns, low), high)) / max(marked, 1.0)


def _marked_mean(marked_ns: dict[int, dict[int, tuple[int, int]]], steps: Ints) -> float:
    """The mean of the steps as the source marks them, over all ranks."""
    lengths_ns = [
        end - begin
        for marks in marked_ns.values()
        for begin, end in (marks[step] for step in steps.tolist() if step in marks)
    ]
    return float(np.mean(lengths_ns)) if lengths_ns else 0.0


# --- findings, with names instead of numbers ---


def _make_finding(one: Explained, graph: Graph, roles: Roles) -> ReplayFinding:
    suspect = one.suspect
    saving = float(one.saving.mean())
    evidence = _evidence(one, graph)
    known = roles.are_stages and len(suspect.ranks) > 0
    stages = {int(roles.names[roles.role_of_rank[roles.ranks == r][0]]) for r in suspect.ranks}
    return ReplayFinding(
        kind=KINDS[suspect.claim],
        ranks=suspect.ranks,
        hosts=(suspect.host,) if suspect.host else (),
        stage=evidence[0].name if evidence else None,
        cost_ns_a_step=saving,
        share=one.share,
        saves_ns_a_step=saving,
        since_step=None if suspect.since is None else int(graph.steps[suspect.since]),
        claim=suspect.claim,
        pipeline_stage=stages.pop() if known and len(stages) == 1 else None,
        low=one.low,
        high=one.high,
        steps=tuple(graph.steps[suspect.steps].tolist()),
        evidence=evidence,
    )


def _is_before(name: str, graph: Graph) -> bool:
    return name.startswith("before ") and name not in graph.names


def _name_of(name: str, graph: Graph) -> int:
    return graph.names.index(name.removeprefix("before ") if _is_before(name, graph) else name)


def _evidence(one: Explained, graph: Graph) -> list[Evidence]:
    """Where it is: of each name what it takes on average, and what it would take."""
    cut = one.suspect.cut
    found = []
    for name, share in one.where:
        before, number = _is_before(name, graph), _name_of(name, graph)
        those = graph.name[cut.nodes] == number
        if those.any():
            part, off = (one.weights.gap, cut.gap) if before else (one.weights.own, cut.own)
            took, less = part[cut.nodes][those], off[those]
        else:
            those = graph.meeting_name[cut.meetings] == number
            took, less = one.weights.transfer[cut.meetings][those], cut.transfer[those]
        if len(took):
            usual = max(float(np.mean(took - less)), 0.0)  # times are rounded
            found.append(Evidence(name, share, float(np.mean(took)), usual))
    return found


def with_one_clock(operations: Operations) -> Operations | None:
    """The operations by one clock: the members of a collective leave it at about the same time, so
    each rank's times are moved by how much too late or too early it leaves them, in the median of
    each of its groups. None where no collectives join the ranks."""
    met = np.flatnonzero((operations.meeting >= 0) & (operations.side == TOGETHER))
    if not len(met):
        return None
    ranks, rank = np.unique(operations.rank, return_inverse=True)
    late = _lateness(rank[met], operations.meeting[met], operations.end_ns[met], len(ranks))
    if late is None:
        return None
    moved = operations.kept(np.arange(len(operations)))
    shift = np.rint(late).astype(np.int64)[rank]
    moved.begin_ns, moved.end_ns = moved.begin_ns - shift, moved.end_ns - shift
    by_rank = dict(zip(ranks.tolist(), np.rint(late).astype(np.int64).tolist(), strict=True))
    moved.marked_ns = {
        one: {step: (begin - by_rank[one], end - by_rank[one]) for step, (begin, end) in at.items()}
        for one, at in operations.marked_ns.items()
        if one in by_rank
    }
    moved.notes = [
        *operations.notes,
        f"clocks differ by up to {np.ptp(late) * 1e-6:.3g} ms: set by the ends of collectives",
    ]
    return moved


def _lateness(rank: Ints, meeting: Ints, end_ns: Ints, ranks: int) -> Floats | None:
    """Of each rank, the least squares of what it is late in each group; the first one is 0."""
    number, count = number_rows(meeting)
    sizes = np.bincount(number, minlength=count)
    end = (end_ns - int(end_ns.min())).astype(np.float64)
    apart = end - (np.bincount(number, end, count) / sizes)[number]
    marks = np.random.default_rng(1).random(ranks)
    group, groups = number_rows(
        np.unique(np.bincount(number, marks[rank], count).round(9), return_inverse=True)[1][number]
    )
    pair, pairs = number_rows(group, rank)
    if ranks + groups > UNKNOWNS_MAX:
        return None
    late = Groups(pair, pairs).medians(apart)
    first = np.zeros(pairs, np.int64)
    first[pair] = np.arange(len(pair))
    table = np.zeros((pairs + 1, ranks + groups))
    table[np.arange(pairs), rank[first]] = 1.0
    table[np.arange(pairs), ranks + group[first]] = -1.0
    table[pairs, 0] = 1.0
    solved = np.linalg.lstsq(table, np.r_[late, 0.0], rcond=None)[0]
    found: Floats = solved[:ranks]
    return found
