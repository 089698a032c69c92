"""Arrows between ranks: from the one that comes last inside backward to those that wait for it.

`my_utils run` records in some steps when each rank had each bucket of DDP, or came to each
collective of FSDP (rows `my_utils.bucket` and `my_utils.ready`). Where a rank comes last, and is
later against the others than it was at the bucket before, those that wait longest get an arrow from
it. Arrows are rows FLOW_START and FLOW_END, which are converted after the rows of their ranks.
"""

from __future__ import annotations

import contextlib
from urllib.parse import quote, unquote

from .. import _core
from ..core.printable import printable
from ..core.ranges import parse_members
from ..core.run_files.row_metadata import metadata_pairs, whole_number
from ..core.trusted_open import open_filled
from .inputs import FileSet, Part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


STAGE = "backward"
TAG = "run"  # of the track on which `my_utils run` times its stages
ARROWS_MAX = 8  # from one rank at one bucket
LEAST_SHARE = 0.01  # of the backward, that a rank waits
LEAST_GAP_NS = 50_000.0  # on one host
AFTER_NS = 1000  # from an arrow's start to its end, so that it never points back
RANKS_MAX = 1 << 20
NS_IN_US = 1000
CHUNK = 1 << 20

_READY = b",my_utils.ready,"

Arrow = tuple[int, str]  # a rank, and its row
Place = tuple[int, int, int]  # of a row: attempt, Unix time in ns, thread


class _Times:
    """Of one step of one rank. at_ns: when each bucket was ready, Unix time. begin_ns: when the
    last backward began. tid: of the training thread."""

    def __init__(self, begin_ns: int, after_us: Sequence[int | None], tid: int) -> None:
        self.begin_ns = begin_ns
        self.tid = tid
        self.at_ns: list[int] = []
        for us in after_us:  # a bucket that got no gradient is ready with the one before it
            before = self.at_ns[-1] if self.at_ns else begin_ns
            self.at_ns.append(before if us is None else max(before, begin_ns + NS_IN_US * us))


class _Rank:
    """What the rows of a rank say. attempt: its last. clock_error_ns: None where its clock was not
    lined up."""

    def __init__(self, attempt: int, host: str, clock_error_ns: int | None) -> None:
        self.attempt = attempt
        self.host = host
        self.clock_error_ns = clock_error_ns
        self.members: frozenset[int] = frozenset()  # it meets these in backward; empty: all
        self.buckets: dict[int, str] = {}  # their names
        self.ready: dict[tuple[int, int], _Times] = {}  # by attempt and step

    def take(self, name: str, pairs: Mapping[str, str], row: Place) -> None:
        if name == "my_utils.sync" and pairs.get("stage") == STAGE:
            self.members = frozenset(parse_members(pairs.get("members", "")))
        elif name == "my_utils.bucket":
            self._take_bucket(pairs)
        elif name == "my_utils.ready":
            self._take_ready(pairs, row)

    def _take_bucket(self, pairs: Mapping[str, str]) -> None:
        number = whole_number(pairs.get("bucket"))
        if number is not None:
            modules = f" ({pairs['modules']})" if pairs.get("modules") else ""
            self.buckets[number] = f"{pairs.get('kind', 'bucket')} {number}{modules}"

    def _take_ready(self, pairs: Mapping[str, str], row: Place) -> None:
        attempt, at_ns, tid = row
        step, ago_us = whole_number(pairs.get("step")), whole_number(pairs.get("ago_us"))
        if step is not None and ago_us is not None:
            times = [whole_number(word) for word in pairs.get("us", "").split(";")]
            self.ready[attempt, step] = _Times(at_ns - NS_IN_US * ago_us, times, max(tid, 0))


def arrow_parts(file_sets: Sequence[FileSet]) -> dict[int, Part]:
    """The rows of arrows, by rank: they belong to its first process. Empty if nothing was
    recorded of them. Thread-safe.

    file_sets: of all ranks, those that are not drawn, too: else one of the others would seem to be
    the last.
    """
    first = [one for one in file_sets if one.slot == 0]
    if len(first) < 2 or not all(map(_is_recorded, first)):
        return {}
    ranks = {one.rank: _read(one) for one in first}
    rows: dict[int, list[str]] = {}
    for members in sorted({tuple(_meets(rank, ranks)) for rank in ranks}):
        group = {rank: ranks[rank] for rank in members}
        for rank, row in _arrows(group):
            rows.setdefault(rank, []).append(row)
    return {
        rank: Part(f"arrows of rank {rank}", rows="".join(lines).encode())
        for rank, lines in rows.items()
    }


def _meets(rank: int, ranks: Mapping[int, _Rank]) -> list[int]:
    members = ranks[rank].members
    return sorted(other for other in ranks if not members or other in members)


# --- what was recorded ---


def _is_recorded(file_set: FileSet) -> bool:
    """Looks for the bytes, since most files have none of these rows."""
    return any(_READY in piece for part in file_set.parts for piece in _pieces(part))


def _pieces(part: Part) -> Iterator[bytes]:
    """Each begins with the end of the one before; none of what cannot be read twice."""
    if part.rows is not None:
        yield part.rows
        return
    with contextlib.suppress(OSError):  # whoever converts the file says so
        if part.path is not None and part.path.is_file():
            with open(part.path, "rb", buffering=0, opener=open_filled) as file:
                piece = b""
                while chunk := file.read(CHUNK):
                    piece = piece[-len(_READY) :] + chunk
                    yield piece


def _read(file_set: FileSet) -> _Rank:
    with contextlib.ExitStack() as stack:
        parts = []
        for part in file_set.parts:
            with contextlib.suppress(OSError):
                if part.rows is not None or (part.path is not None and part.path.is_file()):
                    parts.append(part.opened(stack))
        found = _core.read_notes(parts)
    error_ns = found["clock_error_ns"]
    rank = _Rank(found["attempt"], unquote(found["host"]), None if error_ns < 0 else error_ns)
    for attempt, at_ns, tid, text in found["notes"]:
        name, _, rest = text.partition(" ")
        rank.take(name, metadata_pairs(rest), (attempt, at_ns, tid))
    return rank


# --- who waits for whom ---


def _arrows(group: Mapping[int, _Rank]) -> Iterator[Arrow]:
    """group: ranks that meet in backward."""
    bound_ns = _bound_ns(list(group.values()))
    names = next((one.buckets for one in group.values() if one.buckets), {})
    if bound_ns is None or len(group) < 2:
        return
    for key in sorted(set.intersection(*(set(one.ready) for one in group.values()))):
        if len({len(one.ready[key].at_ns) for one in group.values()}) == 1:
            yield from _arrows_of_step(group, names, key, bound_ns)


def _bound_ns(ranks: Sequence[_Rank]) -> float | None:
    """Gaps below it are nobody's; None if the clocks of hosts are not lined up."""
    if len({one.host for one in ranks}) == 1:
        return LEAST_GAP_NS
    errors = [one.clock_error_ns for one in ranks]
    known = [error for error in errors if error is not None]
    return max(LEAST_GAP_NS, 2.0 * max(known)) if len(known) == len(errors) else None


def _arrows_of_step(
    group: Mapping[int, _Rank], names: Mapping[int, str], key: tuple[int, int], bound_ns: float
) -> Iterator[Arrow]:
    times = {rank: one.ready[key] for rank, one in group.items()}
    begin_ns = min(one.begin_ns for one in times.values())
    end_ns = max(one.at_ns[-1] for one in times.values())
    least_ns = max(bound_ns, LEAST_SHARE * (end_ns - begin_ns))
    for bucket, last in _lates({rank: one.at_ns for rank, one in times.items()}, least_ns):
        name = f"rank {last} comes last to {names.get(bucket, f'bucket {bucket}')}"
        at_ns = times[last].at_ns[bucket]
        waiting = sorted((one.at_ns[bucket], rank) for rank, one in times.items())
        for place, (arrived_ns, other) in enumerate(waiting[:ARROWS_MAX]):
            if at_ns - arrived_ns > least_ns:  # at one moment, they would be in each other
                yield from _pair(group, key, (last, other), (bucket, name, at_ns + place))


def _lates(moments: Mapping[int, Sequence[int]], least_ns: float) -> Iterator[tuple[int, int]]:
    """A bucket, and which rank comes last to it. moments: of each rank, when its buckets were
    ready.

    >>> list(_lates({0: [5, 9, 12], 1: [5, 29, 32]}, 1.0))
    [(1, 1)]
    """
    before = dict.fromkeys(moments, 0)
    for bucket, arrived in enumerate(zip(*moments.values(), strict=True)):
        *_, second, latest = sorted(arrived)
        gaps = {
            rank: at - (second if at == latest else latest)
            for rank, at in zip(moments, arrived, strict=True)
        }
        last = max(gaps, key=lambda rank: gaps[rank])
        if gaps[last] - max(before[last], 0) > least_ns:
            yield bucket, last
        before = gaps


# --- rows ---


def _pair(
    group: Mapping[int, _Rank],
    key: tuple[int, int],
    ends: tuple[int, int],
    what: tuple[int, str, int],
) -> Iterator[Arrow]:
    """An arrow's two rows. ends: from which rank, and to which. what: bucket, name, moment."""
    bucket, name, at_ns = what
    quoted = printable(name).replace('"', '""')
    number = (key[0] << 10 | bucket) * RANKS_MAX + ends[1] % RANKS_MAX
    for rank, kind, moment in (
        (ends[0], "FLOW_START", at_ns),
        (ends[1], "FLOW_END", at_ns + AFTER_NS),
    ):
        one = group[rank]
        seconds, decimals = divmod(moment, 10**9)
        begin = f"{seconds}.{decimals:09d},,{quote(one.host)},{key[1]}"
        ids = f"tid={one.ready[key].tid},tag={TAG},id={number}"
        row = f'{begin},"{quoted}",{kind},,"{ids}"\n'
        if one.attempt > 1:
            row = f"{begin},my_utils.process,INSTANT,,attempt={key[0]}\n{row}"
        yield rank, row
