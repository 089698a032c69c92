"""Polls of one run, one after another: what more than one of them shows."""

from __future__ import annotations

import dataclasses

from .confirmed import Confirmed
from .history import History
from .poll import Snapshot, SnapshotRequest, take_snapshot, usual_of
from .recorded import Recorded
from .root_causes import causes_of

TIMES_ITS_COST = 25.0  # between two polls: so they take 4 % of a core


class Poller:
    """Takes snapshots. An accusation is in them from the second poll on that makes it; with
    `hung_after_s` in the first one, as the seconds are its margin. Not thread-safe."""

    def __init__(self, request: SnapshotRequest) -> None:
        self.request = request
        self.history = History()
        self._recorded = Recorded(request.log_dirs)
        self._confirmed = Confirmed()

    def poll(self) -> Snapshot:
        """OSError when a directory cannot be listed."""
        usual = usual_of(self._recorded, self.history.fastest())
        seen = take_snapshot(self.request, usual)
        self.history.add(seen.found.ranks, usual.meetings)
        if seen.hang is not None:
            return seen
        suspects = self._confirmed.of(seen.suspects or self.history.slow(seen.found.ranks))
        waiting = seen.standing.find_waiting(suspects)
        causes = causes_of(seen.causes, suspects)
        return dataclasses.replace(seen, suspects=suspects, causes=causes, waiting=waiting)

    def pause_s(self, interval_s: float, cost_s: float) -> float:
        """Until the next poll, after one that took so much processor time. Who is accused by one
        poll alone is looked at again after the interval, whatever that costs."""
        return interval_s if self._confirmed.open else max(interval_s, TIMES_ITS_COST * cost_s)
