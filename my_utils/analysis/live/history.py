"""What the polls of a run have shown of each rank: its steps a second, and how often it waits."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ...core.run_files.state import Rank
from .waits.places import Usual, find_meeting, news_ns
from .waits.standing import Suspect

POLLS_KEPT = 60
NEWS_APART_S = 0.001  # a heartbeat that is read twice has the same time but for rounding
POLLS_OF_RATE = 10
POLLS_DRAWN = 16
LEAST_POLLS = 10  # before a share of them says anything
LEAST_LESS = 0.1  # of the polls, that a slow rank waits less than the others
_BARS = "▁▂▃▄▅▆▇█"


@dataclass
class _Track:
    """The newest polls of one rank in which there was news of it; times in s."""

    at_s: deque[float] = field(default_factory=lambda: deque(maxlen=POLLS_KEPT))
    steps: deque[int] = field(default_factory=lambda: deque(maxlen=POLLS_KEPT))
    met: deque[bool] = field(default_factory=lambda: deque(maxlen=POLLS_KEPT))

    def add(self, at_s: float, step: int, met: bool) -> None:
        if self.at_s and at_s < self.at_s[-1] + NEWS_APART_S:
            return
        if self.steps and step < self.steps[-1]:  # a resume
            self.at_s.clear()
            self.steps.clear()
            self.met.clear()
        self.at_s.append(at_s)
        self.steps.append(step)
        self.met.append(met)

    def rate(self) -> float | None:
        """Steps a second over the newest polls."""
        first = max(0, len(self.at_s) - POLLS_OF_RATE)
        if len(self.at_s) - first < 2:
            return None
        return (self.steps[-1] - self.steps[first]) / (self.at_s[-1] - self.at_s[first])

    def met_share(self) -> float | None:
        return sum(self.met) / len(self.met) if len(self.met) >= LEAST_POLLS else None


class History:
    """The newest 60 polls. Not thread-safe."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}
        self._least_met = 0.0

    def add(self, ranks: Sequence[Rank], meetings: Collection[str]) -> None:
        """A poll. A heartbeat that was seen before adds nothing."""
        usual = Usual(meetings)
        alive = {rank.label for rank in ranks if rank.alive and rank.worker == 0}
        self._tracks = {label: track for label, track in self._tracks.items() if label in alive}
        for rank in ranks:
            if rank.label in alive and rank.step is not None:
                track = self._tracks.setdefault(rank.label, _Track())
                meets = find_meeting(rank, usual) is not None
                track.add(news_ns(rank) / 1e9, rank.step, meets)
        shares = (track.met_share() for track in self._tracks.values())
        self._least_met = min((share for share in shares if share is not None), default=0.0)

    def rate(self, label: str) -> float | None:
        """The steps a second of a rank; None before its second poll."""
        track = self._tracks.get(label)
        return track.rate() if track else None

    def fastest(self) -> float:
        """The steps a second of the fastest rank; 0.0 where none is known."""
        return max((track.rate() or 0.0 for track in self._tracks.values()), default=0.0)

    def wait(self, label: str) -> float | None:
        """The share of polls in which a rank was in a stage in which ranks wait for one another,
        without what the rank has of it that is there least. None before ten polls."""
        track = self._tracks.get(label)
        share = track.met_share() if track else None
        return None if share is None else share - self._least_met

    def spark(self, label: str) -> str:
        """The steps a second between the newest polls as bars, as high as the fastest of them."""
        track = self._tracks.get(label)
        if track is None or len(track.at_s) < 2:
            return ""
        at_s, steps = list(track.at_s)[-POLLS_DRAWN - 1 :], list(track.steps)[-POLLS_DRAWN - 1 :]
        rates = [(steps[i] - steps[i - 1]) / (at_s[i] - at_s[i - 1]) for i in range(1, len(at_s))]
        most = max(rates) or 1.0
        return "".join(_BARS[round(rate / most * (len(_BARS) - 1))] for rate in rates)

    def slow(self, ranks: Sequence[Rank]) -> list[Suspect]:
        """Ranks for which the others wait while all of them move: they are in meetings in fewer
        polls than the others, by more than chance makes of so many polls and ranks."""
        known = [
            (rank, track, share)
            for rank in ranks
            if (track := self._tracks.get(rank.label)) is not None
            and (share := track.met_share()) is not None
        ]
        if len(known) < 2:
            return []
        usual = statistics.median_high(share for _, _, share in known)
        found = []
        for rank, track, share in known:
            # Several polls in one step say one thing.
            polls = min(len(track.met), track.steps[-1] - track.steps[0])
            if polls >= LEAST_POLLS and usual - share > max(LEAST_LESS, _noise(polls, len(known))):
                text = (
                    f"the others wait for it: it waits in {share:.0%} of {len(track.met)} polls, "
                    f"they in {usual:.0%}"
                )
                found.append(Suspect(rank, ("slow",), (text,)))
        return found if 2 * len(found) <= len(known) else []


def _noise(polls: int, ranks: int) -> float:
    """By how much the share of one of so many ranks may differ from the others' by chance: four
    standard deviations of a share of so many polls, and more for the extreme of many ranks."""
    return (4.0 + math.sqrt(2 * math.log(ranks))) * 0.5 / math.sqrt(polls)
