"""A verdict by replay in words: at most twelve lines, the answer first."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...core.ranges import ranks_text
from ...core.units import count_text, time_text
from ..verdict.text import causes_line, ending_lines, wrapped
from ..verdict.utilisation import utilisation_text
from .suspects import FREE

if TYPE_CHECKING:
    from .result import ReplayFinding, ReplayVerdict

ALSO_MAX = 3
NOTES_SHOWN = 2
RANGES_SHOWN = 8
BETWEEN_LEAST = 0.05  # of a step
GAP = "  ·  "

_ranks = functools.partial(ranks_text, most=RANGES_SHOWN)


def terminal_lines(verdict: ReplayVerdict, width: int) -> list[str]:
    lines = list(_not_judged(verdict) if verdict.status == "not judged" else _judged(verdict))
    return ending_lines(verdict, width) + [
        part
        for line in lines
        for part in wrapped(line, max(width, 20))
    ]  # fmt: skip


def _not_judged(verdict: ReplayVerdict) -> Iterator[str]:
    yield f"NOT JUDGED: {verdict.reason}"
    if verdict.remedy:
        yield f"  to judge it: {verdict.remedy}"
    yield from (f"  {note}" for note in verdict.notes[:NOTES_SHOWN])
    if verdict.judged_steps:
        yield _judged_line(verdict)


def _judged(verdict: ReplayVerdict) -> Iterator[str]:
    found = verdict.by_replay
    head = headline(found[0]) if found else "NOTHING STANDS OUT"
    ranks = count_text(verdict.judged_ranks, "rank")
    step = time_text(verdict.step_ns * 1e-6)
    yield f"{head:<45} {step} a step, {count_text(verdict.judged_steps, 'step')}, {ranks}"
    if found:
        yield from (f"  {line}" for line in _body(found[0], verdict))
        yield f"  next: {verdict.next_step()}"
    for one in found[1 : 1 + ALSO_MAX]:
        saves = f"{100 * one.share:.0f} % [{100 * one.low:.0f}, {100 * one.high:.0f}] of the step"
        yield f"also: {headline(one).lower()}: {saves}"
    if _between(verdict) >= BETWEEN_LEAST:
        between = time_text(verdict.step_ns * _between(verdict) * 1e-6)
        yield (
            f"{100 * _between(verdict):.0f} % of a step, {between}, passes between operations, "
            "outside the ideal"
        )
    yield _foot(verdict)
    yield _judged_line(verdict)
    yield from (f"note: {note}" for note in verdict.notes[:NOTES_SHOWN])


def headline(one: ReplayFinding) -> str:
    """What comes first, such as "WAITING FOR rank 3"."""
    who = _who(one)
    if one.claim in ("slow rank", "slow host", "slow stage"):
        text = f"WAITING FOR {who}"
    elif one.claim == "slow link":
        others = ", or a rank that is not in the files" if "or_absent_rank" in one.detail else ""
        text = f"A SLOW LINK between {_ranks(one.ranks)}{others}"
    elif one.claim == "steps that stick out":
        text = f"STEPS THAT STICK OUT{f' on {who}' if who else ''}"
    elif one.claim == "imbalance that moves":
        text = "IMBALANCE THAT MOVES FROM RANK TO RANK"
    elif one.claim == "slower since":
        return f"SLOWER SINCE step {one.since_step}"
    elif one.claim == "slower over time":
        return "SLOWER OVER TIME"
    else:
        return f"BOUND BY {one.claim.upper()}"
    return text if one.since_step is None else f"{text} since step {one.since_step}"


def _who(one: ReplayFinding) -> str:
    if one.hosts:
        return f"host {one.hosts[0]}, {count_text(len(one.ranks), 'rank')}"
    if not one.ranks:
        return ""
    if one.claim == "slow stage":
        return f"stage {one.pipeline_stage}, {_ranks(one.ranks)}"
    return _ranks(one.ranks)


def _body(one: ReplayFinding, verdict: ReplayVerdict) -> Iterator[str]:
    for row in one.evidence:
        took, usual = time_text(row.took_ns * 1e-6), time_text(row.usual_ns * 1e-6)
        instead = "" if one.claim in FREE else f"; {_else(one)} {usual}"
        yield f"{100 * row.share:.0f} % of it in {row.name}: {took} each time{instead}"
    if one.steps and len(one.steps) < verdict.judged_steps:
        yield f"in {count_text(len(one.steps), 'step')}{_every(one.steps)}: {_numbers(one.steps)}"
    if "causes" in one.detail:
        yield causes_line(one.detail)
    better = verdict.step_ns - one.saves_ns_a_step
    low, high = (time_text(verdict.step_ns * (1 - s) * 1e-6) for s in (one.high, one.low))
    times = verdict.step_ns / max(better, 1.0)
    yield (
        f"would be {time_text(better * 1e-6)} a step ({times:.2f} x; {low} to {high}) {_if(one)}"
    )


def _else(one: ReplayFinding) -> str:
    if one.claim in ("slow rank", "slow host"):
        return "its peers"
    return {"slow stage": "other stages", "slow link": "other groups"}.get(one.claim, "usually")


def _if(one: ReplayFinding) -> str:
    if one.claim in ("slow rank", "slow host", "slow stage"):
        were = "it were" if len(one.ranks) == 1 or one.hosts else "they were"
        return f"if {were} like {'the other stages' if one.claim == 'slow stage' else 'its peers'}"
    if one.claim == "slow link":
        return "if it were like the other links"
    if one.claim == "imbalance that moves":
        return "if the work of each step were spread evenly"
    return "without it"


def _every(steps: Sequence[int]) -> str:
    """ ", every 10 steps" where they are that far apart."""
    apart = {second - first for first, second in itertools.pairwise(steps)}
    return f", every {apart.pop()} steps" if len(apart) == 1 and len(steps) > 2 else ""


def _numbers(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:6]))
    return shown if len(steps) <= 6 else f"{shown}, …"


def _between(verdict: ReplayVerdict) -> float:
    """The share of a step in which no operation of the longest chain runs."""
    if verdict.slowdown is None or not verdict.step_ns:
        return 0.0
    return 1 - verdict.slowdown.busy_ns / verdict.step_ns


def _foot(verdict: ReplayVerdict) -> str:
    parts = [f"unknown {100 * verdict.unknown_share:.0f} %"]
    parts.append(f"replayed unchanged: off by {100 * verdict.replay_off:.3f} %")
    if verdict.slowdown is not None:
        ideal = time_text(verdict.slowdown.ideal_ns * 1e-6)
        parts.append(f"{verdict.slowdown.factor:.2f} x the ideal of {ideal}")
    computed = utilisation_text(verdict.model_flops, verdict.step_ns)
    parts += [computed] if computed else []
    if verdict.inferred:
        parts.append(f"meetings inferred: {', '.join(verdict.inferred)}")
    return GAP.join(parts)


def _judged_line(verdict: ReplayVerdict) -> str:
    left_out = f"; first {verdict.warmup} left out as warm-up" if verdict.warmup else ""
    return (
        f"judged by replay: {count_text(verdict.judged_ranks, 'rank')}, "
        f"{count_text(verdict.judged_steps, 'step')} "
        f"{verdict.first_step}:{(verdict.last_step or 0) + 1}{left_out}, "
        f"{count_text(verdict.operations, 'operation')}"
    )
