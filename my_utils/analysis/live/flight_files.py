"""Reading the dumps of torch's flight recorder: which collectives a rank entered and is in.

A dump is a file a rank, PREFIX plus the rank, in version 2 of torch's form
(`torch/csrc/distributed/c10d/FlightRecorder.hpp`; 2.10 in torch 2.13): a pickle, or JSON from
`torch._C._distributed_c10d._dump_fr_trace_json` and its like. A pickle can hold any program, so
nothing but dicts, lists, tuples, numbers, texts, True, False and None is taken from it.
"""

from __future__ import annotations

import copyreg
import functools
import io
import itertools
import math
import os
import pickle
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from ...core.bounded_read import describe, read_whole
from ...core.checked_json import Foreign, decoded
from ...core.run_files.state import Problem
from ...core.trusted_open import open_without_waiting

DUMP_BYTES_MAX = 256 << 20
LOOK_AHEAD_BYTES = 1 << 20
SHAPES_SHOWN = 3
PAUSES_KEPT = 3
DIMENSIONS_MAX = 64  # of a tensor
ELEMENTS_MAX = 1 << 63
# Numbers of a group's collectives between the first and the last. There are gaps, but few.
NUMBERS_AT_LEAST = 1024
NUMBERS_A_CALL = 16
GROUPS_KEPT = 64  # whose ranks are not read again in the next dump

_NAME = re.compile(r"(.*?)(\d+)(?:\.(?:json|pkl|pickle))?", re.DOTALL)
RECORDER = os.path.join(os.sep, "my_utils", "run", "stages", "")  # whose functions wrap torch's
_NOT_THE_CALLERS = (f"{os.sep}torch{os.sep}", RECORDER)

# Where every rank of the group gives as many elements; others may differ from rank to rank.
_SAME_SIZES = frozenset(
    [
        "all_reduce",
        "allreduce_coalesced",
        "broadcast",
        "reduce",
        "_allgather_base",
        "_all_gather_base",
        "all_gather_single",
        "_reduce_scatter_base",
        "reduce_scatter_single",
    ]
)
_GAP = ""  # the text of a number that is not known


@dataclass(frozen=True)
class Kinds:
    """What a rank called under each number, from `first` on, stored compactly: thousands of ranks
    have thousands of calls each.

    >>> kinds = Kinds.of({7: "all_reduce", 9: "barrier"})
    >>> kinds.get(7), kinds.get(8), kinds.get(9), kinds.get(10)
    ('all_reduce', '', 'barrier', '')
    """

    first: int
    texts: tuple[str, ...]  # sorted
    codes: array[int]  # places in `texts`

    @classmethod
    def of(cls, kinds: Mapping[int, str]) -> Kinds:
        first, last = min(kinds, default=0), max(kinds, default=-1)
        in_order = [kinds.get(number, _GAP) for number in range(first, last + 1)]
        texts = tuple(sorted(set(in_order)))
        places = {text: place for place, text in enumerate(texts)}
        return cls(first, texts, array("I", map(places.__getitem__, in_order)))

    @property
    def end(self) -> int:
        return self.first + len(self.codes)

    def get(self, number: int) -> str:
        """The text, empty where nothing is known."""
        if self.first <= number < self.end:
            return self.texts[self.codes[number - self.first]]
        return _GAP


NOTHING = Kinds.of({})


class Frame(msgspec.Struct):
    """A line of the caller's stack."""

    filename: str
    line: int
    name: str


_TIMES = msgspec.Meta(ge=0, le=(1 << 63) - 1)


class Entry(msgspec.Struct):
    """One record of a dump, as torch writes it; without what nobody asks for."""

    record_id: int
    process_group: tuple[str, str]  # name and description
    profiling_name: str
    state: str
    time_created_ns: Annotated[int, _TIMES] | Annotated[float, _TIMES]
    pg_id: int | str = ""
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    retired: bool = False
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    frames: Any = None  # list[Frame] | None, looked through where a call is shown


_Signature = tuple[str, tuple[tuple[int, ...], ...], tuple[str, ...]]


class Status(msgspec.Struct):
    """What a process group called last, by its number; torch's JSON has it as a text."""

    last_enqueued_collective: int | str


class Ranks(msgspec.Struct):
    """The ranks of a process group, as a list or as a text such as "[0, 1]"."""

    ranks: str | list[int]
    desc: str = ""


class Content(msgspec.Struct):
    """A dump as torch writes it."""

    entries: list[Entry] = []
    pg_status: dict[str, Status] = {}
    pg_config: dict[str, Ranks] = {}


class _Version(msgspec.Struct):
    version: str | float


@dataclass(frozen=True)
class Call:
    """One collective as a rank recorded it."""

    seq: int
    name: str  # such as all_reduce
    sizes: str  # of its inputs, such as [4096] Float
    created_ns: int  # Unix time at which the rank called it
    started: bool  # the device has begun it
    place: str  # the line of the caller, empty when the dump has none
    record: int = 0  # running number over all groups of the rank


@dataclass(frozen=True)
class PeerCall:
    """A send or receive between two ranks that is under way."""

    call: Call
    way: str  # "send" or "recv"
    peer: int  # the rank within the group
    ordinal: int  # how many there were to or from this peer before it, of those that are kept


@dataclass
class GroupCalls:
    """What a rank recorded of a process group."""

    name: str
    description: str
    number: str  # torch's own, of which the process's status has what it called last
    last: int = 0  # the newest collective that the rank entered
    kinds: Kinds = NOTHING  # what must be the same on all ranks, of each that is kept
    pending: dict[int, Call] = field(default_factory=dict)  # entered and not finished
    failed: int = 0  # the collective that has either ended or failed; 0 for none
    newest: Call | None = None
    newest_s: float = 0.0  # Unix time of the newest call, or send or receive
    has_peers: bool = False  # somebody sends or receives in it
    peer_pending: list[PeerCall] = field(default_factory=list)
    peer_counts: dict[tuple[str, int], int] = field(default_factory=dict)
    in_batches: bool = True  # sends and receives are called as one, not one by one


@dataclass(frozen=True)
class Order:
    """All calls that a dump has, in the order in which the rank made them."""

    words: tuple[tuple[str, str], ...]  # group and kind of call
    codes: array[int]  # places in `words`
    numbers: array[int]  # within the group
    records: array[int]  # running numbers of the rank


@dataclass
class Dump:
    """The dump of one rank."""

    rank: int
    file: str
    written_s: float
    is_whole: bool  # it has all that the process ever called
    members: dict[str, tuple[int, ...]]  # of the groups of which torch says it
    descriptions: dict[str, str]  # of these groups
    enqueued: dict[str, int]  # the newest collective, by the group's number
    groups: dict[str, GroupCalls]
    order: Order
    newest_s: float  # Unix time of its newest call; 0.0 for none
    pauses_s: tuple[float, ...]  # the longest times between two calls, PAUSES_KEPT at most


class _PlainUnpickler(pickle.Unpickler):
    """Knows no classes and no functions, so that a pickle can make nothing but plain data."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}: not a dump of the flight recorder")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("it refers to objects elsewhere")


def _content(data: bytes) -> Content:
    if data[:1] == b"{":
        _check_version(decoded(data, _Version))
        return decoded(data, Content)
    if data[:1] != b"\x80":
        raise ValueError("neither a pickle nor JSON")
    copyreg.clear_extension_cache()  # numbers that stand for classes without naming them
    # A buffered reader can read ahead, so unpickling is three times as fast.
    found = _PlainUnpickler(io.BufferedReader(io.BytesIO(data), LOOK_AHEAD_BYTES)).load()
    _check_version(msgspec.convert(found, _Version))
    return msgspec.convert(found, Content)


def _check_version(found: _Version) -> None:
    if not str(found.version).startswith("2."):
        raise ValueError(f"form {found.version!r}; this program reads form 2")


def list_dumps(place: str) -> dict[int, str]:
    """The newest file of each rank in a directory, or of those that begin as `place` does; one that
    nothing is known of, as a link to itself, only where there is no other. OSError when there is no
    such directory, or it cannot be listed."""
    folder, prefix = (place, "") if os.path.isdir(place) else os.path.split(place)
    newest: dict[int, tuple[float, str]] = {}
    with os.scandir(folder or ".") as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name) if entry.name.startswith(prefix) else None
            if match is None:
                continue
            try:
                if not entry.is_file():
                    continue
                written_s = entry.stat().st_mtime
            except OSError:  # whoever reads it says why not
                written_s = -math.inf
            found = (written_s, entry.path)
            newest[int(match[2])] = max(newest.get(int(match[2]), found), found)
    return {rank: newest[rank][1] for rank in sorted(newest)}


def is_pickle(path: str) -> bool:
    """What its first byte says; False for a file that cannot be read."""
    try:
        with open(path, "rb", buffering=0, opener=open_without_waiting) as file:
            return file.read(1) == b"\x80"
    except OSError:
        return False


def read_dump(rank: int, path: str) -> Dump | Problem | None:
    """The dump; what is wrong with it; or None when it vanished."""
    try:
        data, written_s = read_whole(path, DUMP_BYTES_MAX, "a dump of the flight recorder")
        return _as_dump(rank, path, written_s, _content(data))
    except FileNotFoundError:
        return None
    except OSError as error:
        return Problem(path, describe(error))
    except (Foreign, msgspec.ValidationError) as error:
        return Problem(path, f"not a dump of the flight recorder: {error}")
    except Exception as error:  # unpickling raises errors of many types
        return Problem(path, f"damaged, cut short or not a dump: {describe(error)}")


def _as_dump(rank: int, path: str, written_s: float, content: Content) -> Dump:
    entries = content.entries
    status = content.pg_status.items()
    enqueued = {key: int(value.last_enqueued_collective) for key, value in status}
    known: dict[_Signature, str] = {}
    kinds = [_known_kind(known, entry) for entry in entries]
    by_group: dict[str, list[tuple[Entry, str]]] = {}
    for entry, kind in zip(entries, kinds, strict=True):
        by_group.setdefault(entry.process_group[0], []).append((entry, kind))
    groups = {name: _as_group(name, own) for name, own in by_group.items()}
    # What the rank has gone on from has not failed.
    if entries and entries[-1].state != "completed" and _is_retired_by_gloo(entries[-1]):
        groups[entries[-1].process_group[0]].failed = entries[-1].collective_seq_id
    return Dump(
        rank=rank,
        file=path,
        written_s=written_s,
        is_whole=_is_whole(entries, enqueued),
        members=dict(_members(content.pg_config)),
        descriptions={name: group.desc for name, group in content.pg_config.items()},
        enqueued=enqueued,
        groups=groups,
        order=_order(entries, kinds),
        newest_s=max((group.newest_s for group in groups.values()), default=0.0),
        pauses_s=_pauses_s(entries, groups),
    )


def _as_group(name: str, called: list[tuple[Entry, str]]) -> GroupCalls:
    first, _ = called[0]
    group = GroupCalls(name, first.process_group[1], str(first.pg_id))
    kinds: dict[int, str] = {}
    between_peers: dict[int, list[Entry]] = {}
    newest: Entry | None = None
    for entry, kind in called:
        group.has_peers |= entry.p2p_seq_id > 0
        group.newest_s = max(group.newest_s, entry.time_created_ns / 1e9)
        if entry.is_p2p:
            between_peers.setdefault(entry.p2p_seq_id, []).append(entry)
            group.last = max(group.last, entry.collective_seq_id)
        else:
            _add_collective(group, entry)
            kinds.setdefault(entry.collective_seq_id, kind)
            newest = entry
    _check_numbers(kinds)
    group.kinds = Kinds.of(kinds)
    if newest is not None:
        group.newest = _call(newest.collective_seq_id, newest)
    for seq, own in between_peers.items():
        _add_peers(group, seq, own)
    return group


def _order(entries: list[Entry], kinds: list[str]) -> Order:
    words: dict[tuple[str, str], int] = {}
    codes = array("I")
    for entry, kind in zip(entries, kinds, strict=True):
        codes.append(words.setdefault((entry.process_group[0], kind), len(words)))
    numbers = (e.p2p_seq_id if e.is_p2p else e.collective_seq_id for e in entries)
    records = (entry.record_id for entry in entries)
    return Order(tuple(words), codes, array("q", numbers), array("q", records))


def _pauses_s(entries: list[Entry], groups: Mapping[str, GroupCalls]) -> tuple[float, ...]:
    """Until the first call that has not ended: from there on it may be the hang."""
    pending = [call for group in groups.values() for call in group.pending.values()]
    pending += [one.call for group in groups.values() for one in group.peer_pending]
    last = min((call.created_ns for call in pending), default=math.inf)
    created = [entry.time_created_ns for entry in entries if entry.time_created_ns <= last]
    pauses = (max(0.0, later - earlier) / 1e9 for earlier, later in itertools.pairwise(created))
    return tuple(sorted(pauses, reverse=True)[:PAUSES_KEPT])


def _check_numbers(kinds: Mapping[int, str]) -> None:
    """ValueError where they are so far apart that no process has counted so far in between."""
    first, last = min(kinds, default=0), max(kinds, default=0)
    if last - first > NUMBERS_AT_LEAST + NUMBERS_A_CALL * len(kinds):
        raise ValueError(f"{len(kinds)} collectives have numbers from {first} to {last}")


def _is_whole(entries: list[Entry], enqueued: dict[str, int]) -> bool:
    """Whether the dump has all that the process ever called: records have running numbers."""
    if not entries:
        return all(last <= 0 for last in enqueued.values())
    return entries[0].record_id == 0 and entries[-1].record_id == len(entries) - 1


def _members(config: Mapping[str, Ranks]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The ranks of each group of which the dump has some."""
    for name, group in config.items():
        if ranks := _ranks(str(group.ranks)):
            yield name, ranks


@functools.lru_cache(maxsize=GROUPS_KEPT)
def _ranks(text: str) -> tuple[int, ...]:
    """From a text such as "[0, 1]", which is the same in the dumps of all members."""
    return tuple(int(rank) for rank in re.findall(r"\d+", text))


def _add_collective(group: GroupCalls, entry: Entry) -> None:
    """Of operations that were called as one, the last record is that of the whole."""
    seq = entry.collective_seq_id
    group.last = max(group.last, seq)
    group.pending.pop(seq, None)
    if not _is_finished(entry):
        group.pending[seq] = _call(seq, entry)


def _is_finished(entry: Entry) -> bool:
    """gloo does not keep the state: what it has retired has ended. Of NCCL's, what is retired and
    not completed has timed out."""
    return entry.state == "completed" or _is_retired_by_gloo(entry)


def _is_retired_by_gloo(entry: Entry) -> bool:
    """It retires what has failed, too."""
    return entry.retired and entry.profiling_name.startswith("gloo:")


def _call(seq: int, entry: Entry) -> Call:
    return Call(
        seq=seq,
        name=_operation(entry),
        sizes=_sizes(entry),
        created_ns=int(entry.time_created_ns),
        started=entry.state == "started",
        place=_place(msgspec.convert(entry.frames, list[Frame] | None) or ()),
        record=entry.record_id,
    )


def _sizes(entry: Entry) -> str:
    shapes = entry.input_sizes[:SHAPES_SHOWN]
    text = " ".join(str(list(shape)) for shape in shapes)
    if len(entry.input_sizes) > SHAPES_SHOWN:
        text += f" and {len(entry.input_sizes) - SHAPES_SHOWN} more"
    return " ".join([text, *sorted(set(entry.input_dtypes))]).strip()


def _operation(entry: Entry) -> str:
    """Without the backend before it, as in `nccl:all_reduce`."""
    name = entry.profiling_name
    return name.partition(":")[2] or name


def _known_kind(known: dict[_Signature, str], entry: Entry) -> str:
    """`_kind`, which is worked out once for all calls that are alike."""
    signature = (entry.profiling_name, entry.input_sizes, entry.input_dtypes)
    kind = known.get(signature)
    if kind is None:
        kind = known[signature] = _kind(entry)
    return kind


def _kind(entry: Entry) -> str:
    name = _operation(entry)
    if name not in _SAME_SIZES:
        return name
    elements = sum(_elements(shape) for shape in entry.input_sizes)
    return f"{name} of {elements} {' '.join(sorted(set(entry.input_dtypes)))}".rstrip()


def _elements(shape: tuple[int, ...]) -> int:
    elements = math.prod(shape) if len(shape) <= DIMENSIONS_MAX else ELEMENTS_MAX
    if not 0 <= elements < ELEMENTS_MAX:
        raise ValueError("no tensor has so many elements or dimensions")
    return elements


def _place(frames: Sequence[Frame]) -> str:
    """The innermost line that is neither torch's own nor that of who records the calls."""
    for frame in frames:
        if not any(part in frame.filename for part in _NOT_THE_CALLERS):
            return f"{os.path.basename(frame.filename)}:{frame.line} in {frame.name}"
    return ""


def _add_peers(group: GroupCalls, seq: int, entries: list[Entry]) -> None:
    """Sends and receives that were called as one have a record each, and one of the whole, which
    comes last and alone has a state."""
    finished = _is_finished(entries[-1])
    group.in_batches &= len(entries) > 1
    for entry in entries:
        way, peer = _way(_operation(entry))
        if peer < 0:
            continue
        ordinal = group.peer_counts.get((way, peer), 0)
        group.peer_counts[way, peer] = ordinal + 1
        if not finished:
            group.peer_pending.append(PeerCall(_call(seq, entry), way, peer, ordinal))


def _way(name: str) -> tuple[str, int]:
    """The direction and the peer of `send 1->2` and `recv 3<-0`, -1 for no peer.

    >>> _way("send 1->2"), _way("recv 3<-0"), _way("coalesced")
    (('send', 2), ('recv', 0), ('', -1))
    """
    match = re.fullmatch(r"(send|recv) \d+(?:->|<-)(\d+)", name)
    return (match[1], int(match[2])) if match else ("", -1)
