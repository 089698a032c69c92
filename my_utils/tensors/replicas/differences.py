"""What a rank compares itself: its digests with those of the next rank of each class, so that the
sums of a check at which a difference begins are kept.

Where the ranks of a class do not agree, for each value there is one whose next rank has another
one: the values of a difference are kept, and no rank reads more than one other's file.
"""

from __future__ import annotations

from collections import deque

from ...core.ranges import parse_ranks
from .file import KIND_OF_BUFFERS, SLOTS, Check, SumsReader, WatchData, stem_of

_AHEAD = 2 * SLOTS  # checks of the neighbour that are remembered


class Neighbours:
    """Of one rank and generation. Not thread-safe."""

    def __init__(self, folder: str, data: WatchData, generation: int) -> None:
        self._own: deque[Check] = deque(maxlen=SLOTS)
        # A buffer that differs is said later than others, and has no sums that are kept.
        self._pairs = [
            _Pair(folder, data, generation, place)
            for place, one in enumerate(data.classes)
            if one.kind != KIND_OF_BUFFERS
        ]

    def new_differences(self, check: Check) -> list[int]:
        """The numbers of own checks at which a difference began, as far as it is known now. check:
        the newest one."""
        self._own.append(check)
        return sorted({number for pair in self._pairs for number in pair.look(self._own)})


class _Pair:
    """This rank and the next one of a class."""

    def __init__(self, folder: str, data: WatchData, generation: int, place: int) -> None:
        self._class, self._place = data.classes[place], place
        ranks = sorted(parse_ranks(self._class.ranks))
        rank = ranks[(ranks.index(data.rank) + 1) % len(ranks)]
        self._path = f"{stem_of(folder, rank, data.number, generation)}.json"
        self._reader: SumsReader | None = None
        self._read = self._their_place = 0
        self._theirs: dict[int, bytes] = {}
        self._done = -1  # the number of the last own check that was compared
        self._differs = False

    def look(self, own: deque[Check]) -> list[int]:
        try:
            self._read_on()
        except (OSError, ValueError):  # it is not there yet, or on another host
            self._reader = None
            return []
        found = []
        for check in own:
            theirs = self._theirs.get(check.step)
            if check.number <= self._done or theirs is None:
                continue
            differs = theirs != check.digests[self._place]
            if differs and not self._differs:
                found.append(check.number)
            self._differs, self._done = differs, check.number
        return found

    def _read_on(self) -> None:
        if self._reader is None:
            self._reader = SumsReader(self._path)
            self._their_place = self._reader.data.classes.index(self._class)
        checks = self._reader.checks(self._read)
        for check in checks:
            self._read = check.number + 1
            self._theirs[check.step] = check.digests[self._their_place]
        for step in list(self._theirs)[:-_AHEAD]:
            del self._theirs[step]
