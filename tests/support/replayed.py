"""Simulated programs as operations, and whether a verdict on them is right."""

from __future__ import annotations

from typing import Any

from my_utils.analysis.replay.operations import Operations
from my_utils.analysis.replay.result import ReplayVerdict

from .plants import Case, Truth
from .programs import Program

OF_RANKS = ("slow rank", "slow host", "slow stage")


def operations_of(program: Program) -> Operations:
    columns: dict[str, Any] = dict(program.columns())
    stages = dict(enumerate(program.stage)) if program.has_stages else {}
    hosts = {rank: f"node{host}" for rank, host in enumerate(program.host)}
    return Operations(**columns, names=program.names, stages=stages, hosts=hosts)


def outcome(case: Case, verdict: ReplayVerdict) -> str:
    """ "right", "wrong", "missed" or "not judged". A host or a stage may be named by its ranks."""
    if verdict.status != "found":
        return "missed" if verdict.status == "ok" else "not judged"
    assert case.truth is not None
    return "right" if _is_right(verdict, case.truth) else "wrong"


def _is_right(verdict: ReplayVerdict, truth: Truth) -> bool:
    first = verdict.findings[0]
    assert hasattr(first, "claim")
    same = first.claim == truth.claim or {first.claim, truth.claim} <= set(OF_RANKS)
    return same and (not truth.ranks or first.ranks == tuple(sorted(truth.ranks)))


def promise_error(case: Case, verdict: ReplayVerdict) -> float:
    """How far the promised step is from the one without the plant, as a share of the latter."""
    assert case.truth is not None
    return (1 - verdict.findings[0].share) / (1 - case.truth.saves) - 1
