"""Which alerts begin and which end: each once, however it flickers.

There is one alert of a kind at a time. It begins once it was in all looks for a while (a sure one
in two), and ends once it was in none for a longer while, twice as long each time that the kind
comes back within an hour. It goes on while some of its ranks stay; else it is another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from .alert import Alert, Kind

LOOKS_LEAST = 2
HOUR_S = 3600.0


class Change(NamedTuple):
    """An alert that begins or ends. began_s: when it was first seen."""

    alert: Alert
    began_s: float
    is_over: bool


@dataclass
class _OfKind:
    """seen: what was there in the newest `looks`, since `since_s`. told: what is under way, since
    `began_s`, there last at `last_s`. calm_s: without it, before it ends."""

    calm_s: float
    seen: Alert | None = None
    since_s: float = 0.0
    looks: int = 0
    told: Alert | None = None
    began_s: float = 0.0
    last_s: float = 0.0
    ended_s: float = float("-inf")


class Hysteresis:
    """Times in seconds, of one clock. begins_s, ends_s: for how long an alert is there before it is
    told, and gone before that is told. Not thread-safe."""

    def __init__(self, begins_s: float, ends_s: float) -> None:
        self._begins_s, self._ends_s = begins_s, ends_s
        self._kinds: dict[Kind, _OfKind] = {}

    @property
    def told(self) -> dict[Kind, Alert]:
        """What is under way."""
        return {kind: one.told for kind, one in self._kinds.items() if one.told is not None}

    def look(self, now_s: float, alerts: Iterable[Alert]) -> list[Change]:
        """What has changed. alerts: one of a kind at most."""
        found = {alert.kind: alert for alert in alerts}
        for kind in found:
            self._kinds.setdefault(kind, _OfKind(self._ends_s))
        kinds = self._kinds.items()
        return [one for kind, own in kinds for one in self._look_at(own, now_s, found.get(kind))]

    def end(self) -> list[Change]:
        """All that is under way is over."""
        kinds = self._kinds.values()
        return [Change(one.told, one.began_s, True) for one in kinds if one.told is not None]

    def _look_at(self, one: _OfKind, now_s: float, alert: Alert | None) -> Iterator[Change]:
        if alert is None or one.seen is None or not _is_same(one.seen, alert):
            one.looks, one.since_s = 0, now_s
        one.seen = alert
        one.looks += 1
        if one.told is not None and alert is not None and _is_same(one.told, alert):
            one.last_s = now_s
            return
        is_long = alert is not None and (alert.sure or now_s - one.since_s >= self._begins_s)
        is_due = is_long and one.looks >= LOOKS_LEAST
        if one.told is not None and (is_due or now_s - one.last_s >= one.calm_s):
            yield Change(one.told, one.began_s, True)
            one.told, one.ended_s = None, now_s
        if alert is not None and is_due:
            is_back = now_s - one.ended_s < HOUR_S
            one.calm_s = min(2 * one.calm_s, HOUR_S) if is_back else self._ends_s
            one.told, one.began_s, one.last_s = alert, one.since_s, now_s
            yield Change(alert, one.since_s, False)


def _is_same(one: Alert, other: Alert) -> bool:
    return one.ranks == other.ranks or not set(one.ranks).isdisjoint(other.ranks)
