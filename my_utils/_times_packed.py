"""The times of one rank as bytes, and the bytes of many ranks as tables.

A message holds, for each name, count, sum, min, max and spread, exact; and either the durations
one by one in their order, or how many are in which bucket of a histogram whose buckets are 1/64 of
their value wide. The size of the second does not depend on the number of durations.

Durations one by one are exact where there are few. More than EXACT_MAX travel with 16 significant
bits: below 65.5 µs each is exact to the nanosecond, above each is off by at most 1 part in 65,536.
They go as planes of bytes (all lowest ones, all second ones, ...), each compressed by itself: two
bytes a duration, as a rule.

Bytes from elsewhere are read with bounds, and nothing of them is executed.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _core

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    _Ints = NDArray[np.int64]
    _Rows = NDArray[np.void]

__all__ = [
    "BUCKETS",
    "SAMPLE_BITS",
    "BadMessage",
    "Merger",
    "Table",
    "bucket_middles",
    "pack",
    "rows_of",
]

EXACT_MAX = 4096  # durations of a rank that travel to the nanosecond
SAMPLE_BITS = 15  # of a duration's code below its leading one
_EXACT_BITS = 62
BUCKET_BITS = 6  # as MU_HISTOGRAM_SUB_BITS
BUCKETS = 45 << BUCKET_BITS  # as MU_HISTOGRAM_BUCKETS

_MAGIC = b"MUT1"
_PLANES = 8
_SECTIONS = ("names", "rows", *["durations"] * _PLANES, "buckets", "counts")
# Rank, bits of a duration's code, bytes of a count; then for each section its size, and its size as
# sent: the same where it is not compressed.
_HEADER = struct.Struct("<4sIBB" + "II" * len(_SECTIONS))
# What deflate can do at best; a message that promises more is none of ours.
_RATIO_MAX = 1100

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
    """The bytes are no message, or a damaged one."""


# --- durations as codes -------------------------------------------------------------------------


def _encode(ns: _Ints, bits: int) -> _Ints:
    """Codes that grow with the duration and keep its leading one and `bits` bits below it."""
    import numpy as np

    if bits == _EXACT_BITS:
        return np.minimum(ns, (1 << _EXACT_BITS) - 1)
    _, exponents = np.frexp(ns.astype(np.float64))
    octaves = exponents.astype(np.int64) - 1 - bits
    # Rounded up to a power of two by the conversion to float, above 2**53.
    octaves -= (octaves >= 0) & ((ns >> np.maximum(octaves, 0)) < (1 << bits))
    shift = np.maximum(octaves, 0)
    mantissas = (ns >> shift) & ((1 << bits) - 1)
    return np.where(octaves >= 0, ((shift + 1) << bits) + mantissas, ns)


def _decode(codes: _Ints, bits: int) -> NDArray[np.float64]:
    """The middles, in ns, of the ranges that the codes stand for."""
    import numpy as np

    octaves = np.maximum((codes >> bits) - 1, 0)
    floors = np.where(codes >> bits > 0, (1 << bits) + (codes & ((1 << bits) - 1)), codes)
    widths = np.ldexp(1.0, octaves)
    # A range that is one nanosecond wide holds just that one.
    return np.where(octaves > 0, (floors + 0.5) * widths, floors.astype(np.float64))


def bucket_middles() -> NDArray[np.float64]:
    """The middle of each bucket of the histograms, in ns."""
    import numpy as np

    return _decode(np.arange(BUCKETS, dtype=np.int64), BUCKET_BITS)


# --- packing ------------------------------------------------------------------------------------


def pack(recorder: _core.TimeRecorder, rank: int, summary: bool) -> bytes:
    """The times of this rank. A name that has more than it keeps one by one goes as a histogram."""
    import numpy as np

    names = recorder.names()
    rows = np.zeros(len(names), dtype=_ROW_FIELDS)
    samples, buckets, counts = [], [], []
    for place, name in enumerate(names):
        *figures, used, held = recorder.summary(name)
        kept, later = recorder.samples(name)
        bucketed = summary or later > 0
        if bucketed:
            buckets.append(np.frombuffer(used, dtype=np.uint16))
            counts.append(np.frombuffer(held, dtype=np.uint32))
        else:
            samples.append(np.frombuffer(kept, dtype=np.int64))
        values = (buckets if bucketed else samples)[-1].size
        rows[place] = (*figures, values, bucketed)
    kept_ns = _joined(samples, np.int64)
    bits = _EXACT_BITS if kept_ns.size <= EXACT_MAX else SAMPLE_BITS
    codes = _encode(kept_ns, bits).astype("<i8").view(np.uint8).reshape(-1, _PLANES)
    planes = np.ascontiguousarray(codes.T)
    numbers = _joined(counts, np.uint32)
    width = 1 if numbers.max(initial=0) < 256 else 2 if numbers.max() < 65536 else 4
    sections = [
        json.dumps(names).encode(),
        rows.tobytes(),
        *(
            plane.tobytes() if place == 0 or plane.any() else b""
            for place, plane in enumerate(planes)
        ),
        _joined(buckets, np.uint16).astype("<u2").tobytes(),
        numbers.astype(f"<u{width}").tobytes(),
    ]
    # A summary would be half as long compressed, and take its reader twice the time.
    packed = sections if summary else [_deflated(section) for section in sections]
    sizes = [
        size for raw, short in zip(sections, packed, strict=True) for size in (len(raw), len(short))
    ]
    return b"".join([_HEADER.pack(_MAGIC, rank, bits, width, *sizes), *packed])


def _joined(parts: Sequence[Any], dtype: Any) -> Any:
    import numpy as np

    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _deflated(section: bytes) -> bytes:
    """As it is where that is shorter."""
    compressor = zlib.compressobj(1, strategy=zlib.Z_RLE)  # there are no longer repetitions
    packed = compressor.compress(section) + compressor.flush()
    return packed if len(packed) < len(section) else section


# --- unpacking ----------------------------------------------------------------------------------


class _Message(NamedTuple):
    names: bytes  # as sent
    names_size: int
    rows: _Rows
    bits: int
    codes: _Ints
    buckets: NDArray[np.uint16]
    counts: NDArray[Any]


class _Section(NamedTuple):
    name: str
    sent: bytes
    size: int

    def read(self) -> bytes:
        if self.size == len(self.sent):
            return self.sent
        if self.size > _RATIO_MAX * len(self.sent):
            raise BadMessage(f"{len(self.sent)} bytes cannot hold {self.size} of {self.name}")
        try:
            unpacker = zlib.decompressobj()
            section = unpacker.decompress(self.sent, self.size + 1)
        except zlib.error as error:
            raise BadMessage(f"the {self.name} are damaged: {error}") from None
        if len(section) != self.size or not unpacker.eof or unpacker.unused_data:
            raise BadMessage(f"the {self.name} are damaged: there are not {self.size} bytes")
        return section


def _sections(message: bytes, rank: int) -> tuple[int, int, list[_Section]]:
    """Bits of a code, bytes of a count, and the sections."""
    if len(message) < _HEADER.size:
        raise BadMessage(f"{len(message)} bytes are too short for a message")
    magic, sender, bits, width, *sizes = _HEADER.unpack_from(message)
    if magic != _MAGIC:
        raise BadMessage(f"not a message of times: it begins with {magic!r}")
    if sender != rank:
        raise BadMessage(f"the message says that it is from rank {sender}")
    if width not in (1, 2, 4) or bits not in (SAMPLE_BITS, _EXACT_BITS):
        raise BadMessage(f"counts of {width} bytes, durations of {bits} bits")
    if _HEADER.size + sum(sizes[1::2]) != len(message):
        raise BadMessage(f"{len(message)} bytes are not as many as the message says")
    found = []
    at = _HEADER.size
    for name, size, sent in zip(_SECTIONS, sizes[::2], sizes[1::2], strict=True):
        found.append(_Section(name, message[at : at + sent], size))
        at += sent
    return bits, width, found


def _array(section: _Section, dtype: Any) -> Any:
    import numpy as np

    content = section.read()
    width = np.dtype(dtype).itemsize
    if len(content) % width:
        raise BadMessage(f"the {section.name} are cut: {len(content)} bytes")
    return np.frombuffer(content, dtype=dtype)


def _unpack(message: bytes, rank: int) -> _Message:
    bits, width, (names, rows, *planes, buckets, counts) = _sections(message, rank)
    return _Message(
        names.sent,
        names.size,
        _array(rows, _ROW_FIELDS),
        bits,
        _codes_of(planes),
        _array(buckets, "<u2"),
        _array(counts, f"<u{width}"),
    )


def _codes_of(planes: list[_Section]) -> _Ints:
    """A plane without bytes is one of zeros, but for the first."""
    import numpy as np

    count = planes[0].size
    if any(plane.size not in (0, count) for plane in planes):
        raise BadMessage("the planes of the durations have different lengths")
    codes = np.zeros((count, _PLANES), dtype=np.uint8)
    for place, plane in enumerate(planes):
        if plane.size:
            codes[:, place] = np.frombuffer(plane.read(), dtype=np.uint8)
    return codes.view("<i8").reshape(-1).astype(np.int64)


def _check(message: _Message) -> None:
    """BadMessage unless the parts agree."""
    rows = message.rows
    values, bucketed = rows["values"], rows["bucketed"]
    is_bucketed = bucketed == 1
    used = int(values[is_bucketed].sum())
    kept = values[~is_bucketed]
    if (
        (rows.size and (int(values.min()) < 1 or bucketed.min() < 0 or bucketed.max() > 1))
        or (kept != rows["count"][~is_bucketed]).any()
        or int(kept.sum()) != message.codes.size
        or used != message.buckets.size
        or used != message.counts.size
    ):
        raise BadMessage("the numbers of durations do not agree")
    if message.codes.size and (
        int(message.codes.min()) < 0
        or int(message.codes.max()) >= (64 - message.bits) << message.bits
    ):
        raise BadMessage("the durations are longer than can be")
    _check_figures(rows)


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


def rows_of(columns: Mapping[str, Any], kept: Any) -> _Rows:
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
        self._rows: list[_Rows] = []
        self._samples: list[tuple[_Ints, NDArray[np.float64]]] = []  # place of its name, ns
        self._buckets = np.zeros((0, BUCKETS), dtype=np.int64)

    def add(self, rank: int, message: bytes) -> None:
        """Takes all of a rank's message, or nothing of it and raises BadMessage."""
        import numpy as np

        found = _unpack(message, rank)
        _check(found)
        places = self._places_of(_Section("names", found.names, found.names_size))
        if places.size != found.rows.size:
            raise BadMessage(f"{places.size} names have {found.rows.size} rows")
        if found.buckets.size:
            self._add_histograms(places, found)
        if found.codes.size:
            kept = found.rows["bucketed"] == 0
            owners = np.repeat(places[kept], found.rows["values"][kept])
            self._samples.append((owners, _decode(found.codes, found.bits)))
        self._places.append(places)
        self._ranks.append(np.full(places.size, rank, dtype=np.int64))
        self._rows.append(found.rows)

    def _places_of(self, section: _Section) -> _Ints:
        import numpy as np

        known = self._known.get(section.sent)
        if known is not None:
            return known
        try:
            names = json.loads(section.read())
        except (ValueError, RecursionError):
            raise BadMessage("the names are no JSON") from None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadMessage("the names are no list of text")
        if len(set(names)) != len(names):
            raise BadMessage("a name is there twice")
        places = [self._names.setdefault(name, len(self._names)) for name in names]
        self._known[section.sent] = np.array(places, dtype=np.int64)
        return self._known[section.sent]

    def _add_histograms(self, places: _Ints, found: _Message) -> None:
        import numpy as np

        if len(self._names) > len(self._buckets):
            more = max(len(self._names), 2 * len(self._buckets)) - len(self._buckets)
            new = np.zeros((more, BUCKETS), dtype=np.int64)
            self._buckets = np.concatenate([self._buckets, new])
        chosen = found.rows["bucketed"] == 1
        used, totals = (found.rows[name][chosen].astype(np.int64) for name in ("values", "count"))
        if not _core.add_histograms(
            self._buckets, places[chosen], used, totals, found.buckets, found.counts
        ):
            raise BadMessage("the histograms do not agree with the counts")

    def tables(self) -> dict[str, Table]:
        """What all messages held, by name, the first one first."""
        import numpy as np

        places = _joined(self._places, np.int64)
        ranks = _joined(self._ranks, np.int64)
        rows = _joined(self._rows, _ROW_FIELDS)
        order = np.lexsort((ranks, places))
        ends = np.searchsorted(places[order], np.arange(len(self._names) + 1))
        samples = self._samples_by_name()
        none = np.zeros(BUCKETS, dtype=np.int64)
        found = {}
        for name, place in self._names.items():
            chosen = order[ends[place] : ends[place + 1]]
            if chosen.size:
                buckets = self._buckets[place] if place < len(self._buckets) else none
                found[name] = Table(ranks[chosen], rows[chosen], samples[place], buckets)
        return found

    def _samples_by_name(self) -> list[NDArray[np.float64]]:
        """Messages must have been added by ascending rank, as the rows of a table are sorted."""
        import numpy as np

        owners = _joined([owners for owners, _ in self._samples], np.int64)
        order = np.argsort(owners, kind="stable")
        ends = np.searchsorted(owners[order], np.arange(len(self._names) + 1))
        values = _joined([values for _, values in self._samples], np.float64)[order]
        return [values[ends[place] : ends[place + 1]] for place in range(len(self._names))]
