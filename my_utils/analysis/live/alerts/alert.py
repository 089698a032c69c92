"""An alert as people and programs get it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

from ....core.units import age_text
from ..view import clock_text, visible

Kind = Literal["gone", "hang", "held up", "slower", "memory", "goodput", "replicas"]

LINE_MAX = 300  # characters


class AlertData(TypedDict):
    """What `--alert` sends: something begins, or is over.

    text: at most three lines, for people.
    event: "began" or "ended".
    kind: "gone", a rank's process has died or is silent; "hang", the run makes no progress; "held
        up", a rank or a host holds the others up; "slower", a step takes longer than it did;
        "memory", that of a host will not last; "goodput", it is below the limit; "replicas", ranks
        have other values of what they must have equal.
    run: the name of the run's folder.
    run_id: empty where it is not known.
    ranks: those that it is about.
    hosts: theirs.
    step: that of the run, null before its first one.
    began: Unix time at which it was first seen.
    time: Unix time of this message.
    value: of "slower" by how much, as a share; of "goodput" itself; of "held up" the share of a
        step, where it is known; else null.
    left_s: of "memory" the seconds that it has left, else null.
    """

    version: Literal[1]
    text: str
    event: Literal["began", "ended"]
    kind: Kind
    run: str
    run_id: str
    ranks: list[int]
    hosts: list[str]
    step: int | None
    began: float
    time: float
    value: float | None
    left_s: float | None


@dataclass(frozen=True)
class Alert:
    """What is wrong at the moment. what: one sentence, which follows the run's name. more: another
    one. sure: it is told from the second look on, however soon that is. The others are as in
    `AlertData`.
    """

    kind: Kind
    what: str
    more: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    value: float | None = None
    left_s: float | None = None
    sure: bool = False


class Place(NamedTuple):
    """Which run it is, and where it is. run: the name of its folder."""

    run: str
    run_id: str = ""
    step: int | None = None


def as_data(alert: Alert, place: Place, began_s: float, *, is_over: bool) -> AlertData:
    """began_s: Unix time at which it was first seen."""
    now_s = time.time()
    lasted = f"over after {age_text(max(now_s - began_s, 0.0))}: " if is_over else ""
    at_step = "" if place.step is None else f"step {place.step}, "
    lines = [f"{place.run}: {lasted}{alert.what}", "" if is_over else alert.more,
             f"{at_step}since {clock_text(round(began_s * 1e9))}"]  # fmt: skip
    return {
        "version": 1,
        "text": "\n".join(visible(line)[:LINE_MAX] for line in lines if line),
        "event": "ended" if is_over else "began",
        "kind": alert.kind,
        "run": place.run,
        "run_id": place.run_id,
        "ranks": list(alert.ranks),
        "hosts": list(alert.hosts),
        "step": place.step,
        "began": round(began_s, 3),
        "time": round(now_s, 3),
        "value": None if alert.value is None else round(alert.value, 4),
        "left_s": None if alert.left_s is None else round(alert.left_s, 1),
    }
