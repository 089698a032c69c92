"""Polls of one run, one after another: what more than one of them shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .history import History
from .poll import Snapshot, SnapshotRequest, make_usual, take_snapshot
from .recorded import Recorded
from .root_causes import drop_cleared
from .waits.standing import Suspect

TIMES_ITS_COST = 25.0  # between two polls: so they take 4 % of a core

_Kinds = dict[str, frozenset[str]]  # of each label


@dataclass
class Confirmed:
    """Keeps what the poll before has found. An accusation is shown from its second poll in a row
    on, and until two polls in a row do not make it. Not thread-safe."""

    _before: _Kinds = field(default_factory=dict)
    _shown: _Kinds = field(default_factory=dict)
    _last: dict[str, Suspect] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether the newest poll has accused a rank that is not shown yet."""
        shown = self._shown
        return any(kinds - shown.get(label, frozenset()) for label, kinds in self._before.items())

    def of(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """The suspects that the poll before has named, too, with the reasons that both give;
        at the end those that this poll alone does not name any more."""
        now = {one.rank.label: frozenset(one.kinds) for one in suspects}
        standing = []
        for one in suspects:
            label = one.rank.label
            kinds = self._before.get(label, frozenset()) | self._shown.get(label, frozenset())
            kept = [
                (kind, reason)
                for kind, reason in zip(one.kinds, one.reasons, strict=True)
                if kind in kinds
            ]
            if kept:
                standing.append(Suspect(one.rank, *zip(*kept, strict=True)))
        for label, kinds in self._shown.items():
            if label not in now and kinds & self._before.get(label, frozenset()):
                standing.append(self._last[label])
        self._before = now
        self._shown = {one.rank.label: frozenset(one.kinds) for one in standing}
        self._last = {one.rank.label: one for one in standing}
        return standing


class Poller:
    """Takes snapshots. An accusation is in them from the second poll on that makes it; with
    `hung_after_s` in the first one, as the seconds are its margin. Not thread-safe."""

    def __init__(
        self, request: SnapshotRequest, on_poll: Callable[[Poller, Snapshot], object] | None = None
    ) -> None:
        """on_poll: called with this and each snapshot."""
        self.request = request
        self._on_poll = on_poll
        self.history = History()
        self._recorded = Recorded(request.log_dirs)
        self._confirmed = Confirmed()

    def poll(self) -> Snapshot:
        """OSError when a directory cannot be listed."""
        seen = self._poll()
        if self._on_poll is not None:
            self._on_poll(self, seen)
        return seen

    def look_for_hang(self, after_s: float) -> Snapshot:
        """A snapshot that says who holds up the others where a rank has made no progress for so
        long, by all that is known. It may take some seconds. OSError as `poll`."""
        request = dataclasses.replace(self.request, hung_after_s=after_s)
        return take_snapshot(request, make_usual(self._recorded, self.history.fastest()))

    def _poll(self) -> Snapshot:
        usual = make_usual(self._recorded, self.history.fastest())
        seen = take_snapshot(self.request, usual)
        self.history.add(seen.found.ranks, usual.meetings)
        if seen.hang is not None:
            return seen
        suspects = self._confirmed.of(seen.suspects or self.history.slow(seen.found.ranks))
        waiting = seen.standing.find_waiting(suspects)
        causes = drop_cleared(seen.causes, suspects)
        return dataclasses.replace(seen, suspects=suspects, causes=causes, waiting=waiting)

    def pause_s(self, interval_s: float, cost_s: float) -> float:
        """Until the next poll, after one that took so much processor time. A rank that one poll
        alone accuses is looked at again after the interval, whatever that costs."""
        return interval_s if self._confirmed.open else max(interval_s, TIMES_ITS_COST * cost_s)
