"""Limits for CI: how much B may exceed A, and whether the interval decides it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypedDict

from .intervals import Interval
from .result import Difference, finite

GateStatus = Literal["passed", "failed", "undecided"]

_GATE = re.compile(r"\s*(\S.*?)\s*:\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")
_ITEMS = ("samples/s", "tokens/s")
LESS_IS_WORSE = "throughput"


class GateData(TypedDict):
    """A limit, and whether B keeps it.

    gate: the limit as it was given.
    limit: what B may have more than A, a share; of the throughput, what it must have more.
    share: what B has more; null if the figure was not measured.
    low: the least that it is with all but certainty.
    high: the most that it is with all but certainty.
    reason: what is missing where nothing was measured, else empty.
    """

    gate: str
    status: GateStatus
    limit: float
    share: float | None
    low: float | None
    high: float | None
    reason: str


@dataclass(frozen=True)
class Gate:
    """name: "iter", "memory", "throughput" or the path of a stage. limit: how much more B may have
    than A, as a share; for the throughput, how much more it must have. text: the limit as it was
    given."""

    name: str
    limit: float
    text: str


@dataclass(frozen=True)
class GateResult:
    """interval: None if the figure was not measured; then `reason` says what is missing."""

    gate: Gate
    status: GateStatus
    interval: Interval | None = None
    reason: str = ""

    def as_data(self) -> GateData:
        """Plain data for JSON."""
        interval = self.interval
        return {
            "gate": self.gate.text,
            "status": self.status,
            "limit": self.gate.limit,
            "share": None if interval is None else finite(interval.share),
            "low": None if interval is None else finite(interval.low),
            "high": None if interval is None else finite(interval.high),
            "reason": self.reason,
        }


def parse_gate(text: str) -> Gate:
    """The limit that a text stands for; ValueError if the text is not a limit.

    >>> parse_gate("iter:+2%").limit, parse_gate("forward/attn: 1.5 %").name
    (0.02, 'forward/attn')
    """
    found = _GATE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"{text!r} is not a limit such as iter:+2%, memory:+5%, throughput:-2% or "
            "PATH/OF/STAGE:+3%"
        )
    return Gate(found[1], float(found[2]) / 100, text)


def judge_gate(gate: Gate, found: Difference) -> GateResult:
    """Failed if the whole interval exceeds the limit, passed if it is within the limit, else
    undecided.

    A figure without an interval (one run on a side) is compared as it is.
    """
    if found.step is None:
        return GateResult(gate, "undecided", reason=f"not compared: {found.reason}")
    interval = _find_interval(gate.name, found, found.step)
    if interval is None:
        return GateResult(gate, "undecided", reason="not measured in all runs")
    if interval.share != interval.share:
        return GateResult(gate, "undecided", reason="the stage takes no time on one side")
    low, high, limit = interval.low, interval.high, gate.limit
    if gate.name == LESS_IS_WORSE:
        low, high, limit = -high, -low, -limit
    if low > limit:
        return GateResult(gate, "failed", interval)
    return GateResult(gate, "passed" if high <= limit else "undecided", interval)


def _find_interval(name: str, found: Difference, step: Interval) -> Interval | None:
    if name == "iter":
        return step
    names = _ITEMS if name == LESS_IS_WORSE else (name,)
    for one in found.figures:
        if one.name in names:
            return one.interval or Interval(one.share, one.share, one.share, 0.0)
    return next((one.own for one in found.stages if one.stage == name), None)


def worst_of(results: list[GateResult]) -> GateStatus:
    """
    >>> worst_of([])
    'passed'
    """
    statuses = {one.status for one in results}
    return next((one for one in ("failed", "undecided") if one in statuses), "passed")
