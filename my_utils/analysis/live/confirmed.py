"""Accusations that two polls in a row have made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .waits.standing import Suspect

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
        """Whether the newest poll has accused somebody who is not shown yet."""
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
