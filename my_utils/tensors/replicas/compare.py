"""Compares what the ranks of a run have left of their replicas, and says since when which tensor
differs, where, and on which ranks."""

from __future__ import annotations

import contextlib
import os
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..._core import TensorSums, differing_block
from ...core.printable import escaped
from ...core.ranges import parse_ranks, ranks_text
from ...core.units import count_text
from ..dtypes import ITEM_BYTES
from ..passport.boxes import Box, box_of_bytes, place_text
from ..passport.weights import BLOCK_BYTES, by_votes, who_differs
from ..passport.words import buffers_text
from .file import (
    KIND_OF_BUFFERS,
    SUMS,
    Check,
    ClassData,
    Named,
    SumsReader,
    TrackedData,
    files_in,
    reason,
    sums_bytes,
)
from .result import ReplicaDifferenceData, ReplicasData, ReplicaTensorData

if TYPE_CHECKING:
    from numpy.typing import NDArray

NOTES_MAX = 8
# After so many checks at which nobody has changed it a buffer does not depend on the data.
STILL_CHECKS = 3
_DIFFERENCES_SHOWN = 3


class _Member(NamedTuple):
    """A rank's file of a class. place: of the class in it. steps: of its log."""

    rank: int
    reader: SumsReader
    place: int
    steps: NDArray[Any]

    def check(self, step: int) -> Check | None:
        """At a step, the newest one; None if there is none."""
        places = np.flatnonzero(self.steps == step)
        with contextlib.suppress(OSError, struct.error):
            return self.reader.check(int(places[-1])) if len(places) else None
        return None

    def sums(self, check: Check) -> list[bytes] | None:
        """One of each tensor of the class; None if they are not there any more."""
        try:
            found = self.reader.sums(check)
        except OSError:
            return None
        if found is None:
            return None
        counts = self.reader.layout.counts
        begin = sum(counts[: self.place])
        ends = range(begin, begin + counts[self.place])
        return [found[at * SUMS.size : (at + 1) * SUMS.size] for at in ends]


@dataclass
class _Class:
    """Ranks that must have the tensors of `data` equal. number: of their launch. attempt: the last
    one that a rank counts. steps: those that two of them have at least; differing: those at which
    not all are equal."""

    number: int
    data: ClassData
    attempt: int = 1
    members: list[_Member] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)
    differing: set[int] = field(default_factory=set)
    _longest: Any = None  # the log of the first one

    def add(self, rank: int, reader: SumsReader, place: int, log: NDArray[Any]) -> None:
        """What all members have in common is there once: there may be thousands of them."""
        self.attempt = max(self.attempt, reader.data.attempt)
        reader.data.classes[place] = self.data
        steps, digests = log["step"], log["digests"][:, place]
        if self._longest is None:
            self._longest = steps, *_newest(steps, digests)
        else:
            written, first, of_first = self._longest
            if np.array_equal(written, steps):
                steps = written
            common, mine = _newest(steps, digests)
            theirs = of_first
            if np.array_equal(common, first):
                common = first
            else:
                common, ours, others = np.intersect1d(
                    common, first, assume_unique=True, return_indices=True
                )
                mine, theirs = mine[ours], theirs[others]
            if common is not first or not self.steps:
                self.steps.update(common.tolist())
            self.differing.update(common[(mine != theirs).any(axis=1)].tolist())
        self.members.append(_Member(rank, reader, place, steps))

    def with_sums(self) -> set[int]:
        """Steps of which a member has the sums of all tensors."""
        found: set[int] = set()
        for member in self.members:
            with contextlib.suppress(OSError):
                found |= member.reader.steps_with_sums()
        return found

    def is_still(self) -> bool:
        """Whether no rank has other values than at the newest checks before, and they differ."""
        newest = sorted(self.steps)[-STILL_CHECKS:]
        if len(newest) < STILL_CHECKS or newest[-1] not in self.differing:
            return False
        held = [
            {member.rank: digest for digest, of in self.votes(step).items() for member, _ in of}
            for step in newest
        ]
        return all(one == held[0] for one in held)

    def votes(self, step: int) -> dict[bytes, list[tuple[_Member, Check]]]:
        """The members by the digest that they have at a step."""
        found: dict[bytes, list[tuple[_Member, Check]]] = defaultdict(list)
        for member in self.members:
            check = member.check(step)
            if check is not None:
                found[check.digests[member.place]].append((member, check))
        return found


def _newest(steps: NDArray[Any], digests: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Each step once, in order: after a rollback what was checked last, as in `_Member.check`."""
    if (steps[1:] > steps[:-1]).all():
        return steps, digests
    once, places = np.unique(steps[::-1], return_index=True)
    return once, digests[::-1][places]


def compare_replicas(log_dirs: Sequence[str]) -> ReplicasData | None:
    """None if nothing was watched there. Reads all that the ranks have left."""
    notes: list[str] = []
    classes = _find_classes(log_dirs, notes)
    if classes is None:
        return None
    steps: set[int] = set()
    differences: list[ReplicaDifferenceData] = []
    unsteady: list[str] = []
    for one in classes:
        steps |= one.steps
        if one.data.kind != KIND_OF_BUFFERS:
            differences += _differences(one)
        elif one.is_still():
            differences += _differences(one)[-1:]
        elif one.differing:
            unsteady += (tensor.name for tensor in one.data.tensors)
    if unsteady:
        notes.append(buffers_text(unsteady))
    differences.sort(key=lambda one: (one["attempt"], one["first"]))
    return {
        "version": 1,
        "status": "differ" if differences else "equal" if steps else "not compared",
        "checks": len(steps),
        "step": max(steps, default=None),
        "differences": differences,
        "notes": list(dict.fromkeys(notes))[:NOTES_MAX],
    }


def _longest_first(file: Named) -> int:
    return -sums_bytes(file.path)


def _find_classes(log_dirs: Sequence[str], notes: list[str]) -> list[_Class] | None:
    classes: dict[tuple[int, int, bytes], _Class] = {}
    ranks: _Ranks = defaultdict(set)
    is_watched = False
    for path, rank, _, generation in sorted(files_in(log_dirs), key=_longest_first):
        is_watched = True
        try:
            reader = SumsReader(path)
            log = reader.log()
        except (OSError, ValueError) as error:
            notes.append(f"{escaped(os.path.basename(path))}: {reason(error)}")
            continue
        notes += reader.data.notes
        number = reader.data.number
        for place, data in enumerate(reader.data.classes):
            key = number, generation, msgspec.json.encode(data)
            known = classes.setdefault(key, _Class(number, data))
            known.add(rank, reader, place, log)
            ranks[number, data.kind, data.ranks].add(rank)
    notes[:0] = [*_absent(ranks), *_alone(classes.values(), ranks)]
    return list(classes.values()) if is_watched else None


_NO_FILE = "no file of theirs"
_OTHERS = "other ranks have other ones"
_Ranks = dict[tuple[int, str, str], set[int]]
"""By the number of a launch, the kind of tensors and their ranks: those that have files of them."""


def _absent(ranks: _Ranks) -> Iterator[str]:
    for (_, kind, members), there in ranks.items():
        absent = parse_ranks(members) - there
        if absent:
            yield f"{kind} not compared with {ranks_text(absent, 4)}: {_NO_FILE}"


def _alone(classes: Iterable[_Class], ranks: _Ranks) -> Iterator[str]:
    for one in classes:
        alone = {member.rank for member in one.members}
        if alone != ranks[one.number, one.data.kind, one.data.ranks]:
            yield f"{one.data.kind} of {ranks_text(alone, 4)}: {_OTHERS}"


def _differences(one: _Class) -> list[ReplicaDifferenceData]:
    """What differs from when to when."""
    steps = sorted(one.steps)
    found: list[ReplicaDifferenceData] = []
    equal: int | None = None
    begun: list[int] = []
    for step in steps:
        if step in one.differing:
            begun.append(step)
            continue
        if begun:
            found.append(_difference(one, equal, begun))
        equal, begun = step, []
    if begun:
        found.append(_difference(one, equal, begun))
    return found


def _difference(one: _Class, equal: int | None, steps: list[int]) -> ReplicaDifferenceData:
    first, last = steps[0], steps[-1]
    votes = {digest: _ranks(of) for digest, of in one.votes(first).items()}
    odd, against = who_differs([ranks for _, ranks in by_votes(votes)])
    seen: int | None = None
    tensors: list[ReplicaTensorData] = []
    for step in sorted(one.with_sums().intersection(steps)):
        tensors = list(_tensors_at(one, step))
        if tensors:
            seen = step
            break
    data: ReplicaDifferenceData = {
        "kind": one.data.kind,
        "attempt": one.attempt,
        "members": sorted({member.rank for member in one.members}),
        "equal": equal,
        "first": first,
        "last": last,
        "ranks": sorted(odd),
        "seen": seen,
        "tensors": tensors,
        "text": "",
    }
    data["text"] = _text(data, against)
    return data


def _ranks(members: Sequence[tuple[_Member, Check]]) -> list[int]:
    return [member.rank for member, _ in members]


def _tensors_at(one: _Class, step: int) -> Iterator[ReplicaTensorData]:
    """Nothing unless the sums of two different values are still there. Ranks with one digest have
    one value of each tensor, so that one of them is enough."""
    known: list[tuple[list[int], list[bytes]]] = []
    for members in one.votes(step).values():
        sums = next(filter(None, (member.sums(check) for member, check in members)), None)
        if sums is not None:
            known.append((_ranks(members), sums))
    if len(known) < 2:
        return
    for number, tensor in enumerate(one.data.tensors):
        votes: dict[bytes, list[int]] = defaultdict(list)
        for ranks, sums in known:
            votes[sums[number]] += ranks
        if len(votes) == 1:
            continue
        groups = by_votes(votes)
        odd, against = who_differs([sorted(ranks) for _, ranks in groups])
        place = _place(tensor, groups[0][0], groups[1][0]) if len(groups) == 2 else ""
        yield {"name": tensor.name, "place": place, "ranks": sorted(odd), "text": against}


def _place(tensor: TrackedData, a: bytes, b: bytes) -> str:
    """The rows in which two values of a box differ, counted in the whole tensor."""
    item = ITEM_BYTES[tensor.dtype]
    nbytes = item * Box(tensor.at, tensor.size).numel
    absent = bytes(SUMS.size)
    block = None
    if absent not in (a, b):
        both = (TensorSums(SUMS.unpack(sums), nbytes, nbytes) for sums in (a, b))
        block = differing_block(*both)
    box = Box(tensor.at, tensor.size)
    if block is not None and tensor.size:
        begin = block * BLOCK_BYTES
        inner = box_of_bytes(begin, min(begin + BLOCK_BYTES, nbytes), tensor.size, item)
        at = tuple(first + more for first, more in zip(tensor.at, inner.at, strict=True))
        box = Box(at, inner.size)
    return place_text(box, tensor.shape)


# --- text ---


def _text(data: ReplicaDifferenceData, against: str) -> str:
    first, equal = data["first"], data["equal"]
    since = f"step {first}"
    if equal is None:
        since += ", the first check of these tensors"
    elif equal + 1 < first:
        since = f"step {equal + 1} to {first}"
    attempt = f" of attempt {data['attempt']}" if data["attempt"] > 1 else ""
    head = f"replicas differ since {since}{attempt}"
    if not data["tensors"]:
        words = ", ".join(filter(None, (data["kind"], against)))
        return f"{head}: {words} (which tensors is not kept any more)"
    tensor = data["tensors"][0]
    words = ", ".join(filter(None, (tensor["name"], tensor["place"], tensor["text"])))
    more = len(data["tensors"]) - 1
    others = f"; and {count_text(more, 'tensor')} more" if more else ""
    at = f" (as of step {data['seen']})" if data["seen"] != first else ""
    return f"{head}: {words}{others}{at}"


def replica_lines(data: ReplicasData) -> list[str]:
    """A line for each difference; where there is none, one that says so."""
    if data["status"] == "equal":
        checks = count_text(data["checks"], "check")
        gap = next((note for note in data["notes"] if note.endswith((_NO_FILE, _OTHERS))), "")
        line = f"replicas are equal: {checks} up to step {data['step']}"
        return [f"{line}; {gap}" if gap else line]
    if data["status"] == "not compared":
        why = f": {data['notes'][0]}" if data["notes"] else ""
        return [f"replicas were not compared{why}"]
    lines = [one["text"] for one in data["differences"]]
    more = len(lines) - _DIFFERENCES_SHOWN
    return [*lines[:_DIFFERENCES_SHOWN], f"and {more} more: --json"] if more > 0 else lines
