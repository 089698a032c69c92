"""The times of one rank as bytes, and the bytes of many ranks as tables.

For each name a message holds the exact count, sum, min, max and spread. It also holds either all
durations in their order, or a histogram whose buckets are 1/64 of their value wide.

If a rank has at most EXACT_MAX durations, they are exact. Otherwise each is sent in two bytes,
rounded as csrc/engine/timing/duration_codes.h says. A summary is padded to SUMMARY_BYTES a name, so
its size does not depend on what was recorded.

Received bytes are read with bounds checks, and nothing in them is executed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import _core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Ints = NDArray[np.int64]
    _Rows = NDArray[np.void]


EXACT_MAX = 4096  # durations of a rank that are sent to the nanosecond

# Figures and histogram of a name: a mean over the names of a message. It is enough for about 500
# buckets each, all between a duration and 200 times that; where it is not, a multiple is taken.
SUMMARY_BYTES = 1024

BUCKETS = _core.HISTOGRAM_BUCKETS

_MAGIC = b"MUT1"
# Rank, bytes of a duration, and how many bytes each part has: names, rows, durations, histograms.
# The bytes after them are padding.
_HEADER = struct.Struct("<4sII4Q")

# A name's row: `values` durations one by one, or, where `bucketed`, so many buckets.
_ROW_FIELDS = [
    ("count", "<i8"),
    ("sum_ns", "<i8"),
    ("min_ns", "<i8"),
    ("max_ns", "<i8"),
    ("squares", "<f8"),  # of the distances from the mean, ns²
    ("values", "<i4"),
    ("bucketed", "<i4"),
]


class BadMessage(ValueError):
    """The bytes are not a message, or a damaged one."""


def bucket_middles() -> NDArray[np.float64]:
    """The middle of each bucket of the histograms, in ns."""
    import numpy as np

    return np.frombuffer(_core.histogram_middles())


# --- packing ------------------------------------------------------------------------------------


def pack(recorder: _core.TimeRecorder, rank: int, summary: bool) -> bytes:
    """The times of this rank. A name that has more than it keeps one by one goes as a histogram."""
    import numpy as np

    names, rows = [], []
    samples: list[bytes] = []
    histograms: list[bytes] = []
    for name in recorder.names():
        *figures, kept, used, packed = recorder.summary(name)
        count = figures[0]
        if count == 0:
            continue  # forgotten meanwhile
        bucketed = summary or 8 * count > len(kept)
        (histograms if bucketed else samples).append(packed if bucketed else kept)
        names.append(name)
        rows.append((*figures, used if bucketed else count, bucketed))
    table = np.array(rows, dtype=_ROW_FIELDS)
    durations = b"".join(samples)
    width = 8 if len(durations) <= 8 * EXACT_MAX else 2
    if width == 2:
        durations = _core.encode_durations(memoryview(durations).cast("q"), *_scales(table))
    parts = [json.dumps(names).encode(), table.tobytes(), durations, b"".join(histograms)]
    head = _HEADER.pack(_MAGIC, rank, width, *map(len, parts))
    padding = b""
    if summary and names:  # to a multiple of SUMMARY_BYTES a name; names are not counted
        padding = bytes(-sum(map(len, parts[1:])) % (SUMMARY_BYTES * len(names)))
    return b"".join([head, *parts, padding])


def _scales(rows: _Rows) -> tuple[_Ints, _Ints, _Ints]:
    """Of the rows that are not bucketed: how many durations, the shortest and the longest."""
    import numpy as np

    kept = rows[rows["bucketed"] == 0]
    values, shortest, longest = (
        kept[name].astype(np.int64) for name in ("values", "min_ns", "max_ns")
    )
    return values, shortest, longest


def _joined(parts: Sequence[Any], dtype: Any) -> Any:
    import numpy as np

    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


# --- unpacking ----------------------------------------------------------------------------------


class _Message(NamedTuple):
    names: bytes
    rows: _Rows
    samples: NDArray[np.float64]  # ns
    histograms: memoryview


def _parts(message: bytes, rank: int) -> tuple[int, list[memoryview]]:
    """The bytes of a duration, and the parts."""
    if len(message) < _HEADER.size:
        raise BadMessage(f"{len(message)} bytes are too short for a message")
    magic, sender, width, *sizes = _HEADER.unpack_from(message)
    if magic != _MAGIC:
        raise BadMessage(f"not a message of times: it begins with {magic!r}")
    if sender != rank:
        raise BadMessage(f"the message says that it is from rank {sender}")
    if width not in (2, 8):
        raise BadMessage(f"durations of {width} bytes")
    if _HEADER.size + sum(sizes) > len(message):
        raise BadMessage(f"{len(message)} bytes: the message has another size")
    found = []
    at = _HEADER.size
    for size in sizes:
        found.append(memoryview(message)[at : at + size])
        at += size
    return width, found


def _array(part: memoryview, what: str, dtype: Any) -> Any:
    import numpy as np

    if len(part) % np.dtype(dtype).itemsize:
        raise BadMessage(f"the {what} are cut: {len(part)} bytes")
    return np.frombuffer(part, dtype=dtype)


def _unpack(message: bytes, rank: int) -> _Message:
    width, (names, packed_rows, durations, histograms) = _parts(message, rank)
    rows = _array(packed_rows, "figures", _ROW_FIELDS)
    _check_rows(rows)
    samples = _array(durations, "durations", f"<i{width}" if width == 8 else "<u2")
    return _Message(bytes(names), rows, _unpack_samples(samples, rows), histograms)


def _check_rows(rows: _Rows) -> None:
    values, bucketed = rows["values"], rows["bucketed"]
    right = (values >= 1) & ((bucketed == 1) | ((bucketed == 0) & (values == rows["count"])))
    if not right.all():
        raise BadMessage("the numbers of durations do not agree")
    _check_figures(rows)


def _unpack_samples(found: Any, rows: _Rows) -> NDArray[np.float64]:
    import numpy as np

    if found.size == 0 and rows["bucketed"].all():
        return np.zeros(0)
    values, shortest, longest = _scales(rows)
    if found.dtype.itemsize == 2:
        decoded = _core.decode_durations(found, values, shortest, longest)
        if decoded is None:
            raise BadMessage("the durations do not agree with their figures")
        return np.frombuffer(decoded)
    low, high = np.repeat(shortest, values), np.repeat(longest, values)
    if low.size != found.size or (found < low).any() or (found > high).any():
        raise BadMessage("the durations do not agree with their figures")
    return np.asarray(found, dtype=np.float64)


def _check_figures(rows: _Rows) -> None:
    lowest, highest, total, squares = (
        rows[name] for name in ("min_ns", "max_ns", "sum_ns", "squares")
    )
    right = (rows["count"] >= 1) & (lowest >= 0) & (lowest <= highest) & (highest <= total)
    right &= (squares >= 0) & (squares < float("inf"))
    if not right.all():
        raise BadMessage("the figures are not those of durations")


# --- merging ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """The times of one name.

    ranks: of the rows, ascending. rows: as _ROW_FIELDS. samples: durations in ns of the rows that
    are not bucketed, one after the other. buckets: how many of all others are in which bucket.
    """

    ranks: _Ints
    rows: _Rows
    samples: NDArray[np.float64]
    buckets: _Ints

    def only(self, ranks: Sequence[int]) -> Table:
        """The rows of these ranks, of which none is bucketed."""
        import numpy as np

        chosen = np.isin(self.ranks, ranks)
        samples = self.samples[np.repeat(chosen, self.rows["values"])]
        return Table(self.ranks[chosen], self.rows[chosen], samples, np.zeros_like(self.buckets))

    def check(self) -> None:
        """BadMessage unless the parts agree; for a table from elsewhere."""
        rows = self.rows
        bucketed = rows["bucketed"] == 1
        _check_figures(rows)
        if (
            not len(rows) == len(self.ranks) >= 1
            or (self.ranks[1:] <= self.ranks[:-1]).any()
            or (rows["values"][~bucketed] != rows["count"][~bucketed]).any()
            or int(rows["values"][~bucketed].sum()) != self.samples.size
            or int(rows["count"][bucketed].sum()) != int(self.buckets.sum())
            or (self.buckets < 0).any()
            or not (self.samples >= 0).all()
        ):
            raise BadMessage("the numbers of durations do not agree")


def unpack_rows(columns: Mapping[str, Any], kept: Any) -> _Rows:
    """Rows of columns by name; `kept` is how many durations are there one by one, 0: bucketed."""
    import numpy as np

    rows = np.zeros(len(kept), dtype=_ROW_FIELDS)
    for name, column in columns.items():
        rows[name] = column
    rows["values"] = kept
    rows["bucketed"] = kept == 0
    return rows


class Merger:
    """Puts messages together. Not thread-safe."""

    def __init__(self) -> None:
        import numpy as np

        self._names: dict[str, int] = {}
        self._known: dict[bytes, _Ints] = {}  # lists of names that came before
        self._places: list[_Ints] = []  # of each message's rows
        self._ranks: list[_Ints] = []
        self._rows: list[bytes] = []  # of which a part would keep the whole message alive
        # Of each rank: the places of its names, how many durations each has, all of them in ns.
        self._samples: dict[int, tuple[_Ints, Any, NDArray[np.float64]]] = {}
        self._buckets = np.zeros((0, BUCKETS), dtype=np.int64)

    def add(self, rank: int, message: bytes) -> None:
        """Takes all of a rank's message, or nothing of it and raises BadMessage. In any order."""
        import numpy as np

        found = _unpack(message, rank)
        places = self._places_of(found.names)
        if places.size != found.rows.size:
            raise BadMessage(f"{places.size} names have {found.rows.size} rows")
        self._add_histograms(places, found)
        if found.samples.size:
            kept = found.rows["bucketed"] == 0
            self._samples[rank] = places[kept], found.rows["values"][kept], found.samples
        self._places.append(places)
        self._ranks.append(np.full(places.size, rank, dtype=np.int64))
        self._rows.append(found.rows.tobytes())

    def _places_of(self, packed: bytes) -> _Ints:
        import numpy as np

        known = self._known.get(packed)
        if known is not None:
            return known
        try:
            names = json.loads(packed)
        except (ValueError, RecursionError):
            raise BadMessage("the names are not JSON") from None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadMessage("the names are not a list of text")
        if len(set(names)) != len(names):
            raise BadMessage("a name is there twice")
        places = [self._names.setdefault(name, len(self._names)) for name in names]
        self._known[packed] = np.array(places, dtype=np.int64)
        return self._known[packed]

    def _add_histograms(self, places: _Ints, found: _Message) -> None:
        import numpy as np

        chosen = found.rows["bucketed"] == 1
        if chosen.any() and len(self._names) > len(self._buckets):
            more = max(len(self._names), 2 * len(self._buckets)) - len(self._buckets)
            new = np.zeros((more, BUCKETS), dtype=np.int64)
            self._buckets = np.concatenate([self._buckets, new])
        used, totals = (found.rows[name][chosen].astype(np.int64) for name in ("values", "count"))
        if not _core.add_histograms(self._buckets, places[chosen], used, totals, found.histograms):
            raise BadMessage("the histograms do not agree with the counts")

    def tables(self) -> dict[str, Table]:
        """What all messages held, by name, the first one first."""
        import numpy as np

        places = _joined(self._places, np.int64)
        ranks = _joined(self._ranks, np.int64)
        order = np.lexsort((ranks, places))
        ends = np.searchsorted(places[order], np.arange(len(self._names) + 1))
        ranks = ranks[order]
        rows = np.frombuffer(b"".join(self._rows), dtype=_ROW_FIELDS)[order]
        samples = self._samples_by_name()
        none = np.zeros(BUCKETS, dtype=np.int64)
        found = {}
        for name, place in self._names.items():
            own = slice(ends[place], ends[place + 1])
            if own.stop > own.start:
                buckets = self._buckets[place] if place < len(self._buckets) else none
                found[name] = Table(ranks[own], rows[own], samples[place], buckets)
        return found

    def _samples_by_name(self) -> list[NDArray[np.float64]]:
        """Each name's by rank, as the rows of its table are."""
        import numpy as np

        parts: list[list[NDArray[np.float64]]] = [[] for _ in self._names]
        for rank in sorted(self._samples):
            places, sizes, samples = self._samples[rank]
            ends = np.cumsum(sizes)
            for place, begin, end in zip(places, ends - sizes, ends, strict=True):
                parts[place].append(samples[begin:end])
        return [_joined(each, np.float64) for each in parts]
