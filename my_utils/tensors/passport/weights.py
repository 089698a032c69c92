"""The passports of a job's ranks as one: its tensors, their tilings, and what replicas say."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import prod
from operator import add
from typing import TypeVar

from ..._core import TensorSums, differing_block
from ...core.printable import escaped
from ...core.ranges import parse_ranks, ranks_text
from ..dtypes import ITEM_BYTES
from .boxes import Box, box_of_bytes, gaps, place_text, tilings
from .file import BUFFERS, PassportData, PassportError, TensorData, boxes_of

_Value = TypeVar("_Value")

BLOCK_BYTES = 4096
STATISTICS = "statistics"
_ONE_STEP = ": choose those of one step by a glob, such as 'pp/step100_*.json'"


@dataclass
class Tensor:
    """A tensor as the ranks of one group have it.

    held: by box, the sums that each rank has of it. sources: what --explain shows. why: the reason
    if other ranks may have other parts of it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    tied: str
    why: str
    held: dict[Box, dict[int, TensorSums]] = field(default_factory=dict)
    sources: dict[Box, dict[int, str]] = field(default_factory=dict)

    @property
    def ranks(self) -> set[int]:
        return {rank for by_rank in self.held.values() for rank in by_rank}

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * prod(self.shape)

    @cached_property
    def values(self) -> dict[Box, TensorSums]:
        """Of each box what most ranks have; among equals what the first has. Of a buffer what the
        first has, which DDP gives to all."""
        if self.why == BUFFERS:
            return {box: held[min(held)] for box, held in self.held.items()}
        return {box: Counter(held.values()).most_common(1)[0][0] for box, held in self.held.items()}

    @cached_property
    def tilings(self) -> list[list[Box]]:
        with self._named():
            return tilings(list(self.held), self.shape)

    @cached_property
    def totals(self) -> list[TensorSums]:
        """The sums of the whole tensor, of each tiling; none where parts are missing."""
        empty = TensorSums((0,) * 8, 0, self.nbytes)
        if self.nbytes == 0:
            return [empty]
        return [reduce(add, (self.values[box] for box in tiles), empty) for tiles in self.tilings]

    @cached_property
    def missing(self) -> list[Box]:
        if self.totals:
            return []
        with self._named():
            return gaps(list(self.held), self.shape)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise PassportError(f"{self.name}: {error}") from None

    def missing_text(self) -> str:
        """Empty if nothing is missing."""
        if self.totals:
            return ""
        if not self.missing:
            return "its parts overlap and are no tiling"
        count = sum(box.numel for box in self.missing)
        places = "; ".join(filter(None, (place_text(box, self.shape) for box in self.missing[:3])))
        more = "; …" if len(self.missing) > 3 else ""
        where = f" ({places}{more})" if places else ""
        return f"{count:,} of {prod(self.shape):,} elements are in no part{where}"

    def replica_problems(self) -> list[tuple[set[int], str, str]]:
        """Of boxes whose ranks disagree, and of tilings that do: the ranks that are not as most
        are, where, and in words who is against whom."""
        found = []
        for box, held in self.held.items():
            votes: dict[TensorSums, list[int]] = defaultdict(list)
            for rank, sums in held.items():
                votes[sums].append(rank)
            if len(votes) > 1:
                found.append(self._disagreement(box, votes))
        if not found and len(set(self.totals)) > 1:
            ranks = [sorted({r for box in tiles for r in self.held[box]}) for tiles in self.tilings]
            against = " against ".join(ranks_text(some, 4) for some in ranks[:2])
            found.append((set(ranks[1]), self.where(self.totals[0], self.totals[1]), against))
        return found

    def _disagreement(
        self, box: Box, votes: dict[TensorSums, list[int]]
    ) -> tuple[set[int], str, str]:
        groups = by_votes(votes)
        where = self.where(groups[0][0], groups[1][0], box) if len(groups) == 2 else ""
        odd, against = who_differs([ranks for _, ranks in groups])
        return odd, where or place_text(box, self.shape), against

    def where(self, a: TensorSums, b: TensorSums, box: Box | None = None) -> str:
        """The rows in which two values of the tensor, or of a box of it, differ; "" if they are
        not known more closely than the tensor."""
        block = only_block(a, b)
        if block is None or not self.shape:
            return place_text(box, self.shape) if box else ""
        begin = block * BLOCK_BYTES
        end = min(begin + BLOCK_BYTES, self.nbytes)
        place = box_of_bytes(begin, end, self.shape, ITEM_BYTES[self.dtype])
        return place_text(place.overlap(box) or box if box else place, self.shape)


def by_votes(votes: dict[_Value, list[int]]) -> list[tuple[_Value, list[int]]]:
    """What most ranks have comes first."""
    return sorted(votes.items(), key=lambda vote: -len(vote[1]))


def who_differs(groups: Sequence[Sequence[int]]) -> tuple[set[int], str]:
    """The ranks that are not as most are, and in words who is against whom. groups: the ranks that
    agree with each other, the largest first. Of fewer than two nothing is known.

    >>> who_differs([[0, 1, 3], [2]]), who_differs([[0], [1]])
    (({2}, 'rank 2 against the 3 others'), ({0, 1}, 'rank 0 against rank 1'))
    """
    if len(groups) < 2:
        return set(), ""
    usual, *others = groups
    if len(usual) > max(map(len, others)):
        odd = {rank for ranks in others for rank in ranks}
        return odd, f"{ranks_text(odd, 4)} against the {len(usual)} other{'s' * (len(usual) > 1)}"
    against = " against ".join(ranks_text(ranks, 4) for ranks in groups[:3])
    return {rank for ranks in groups for rank in ranks}, against


def only_block(a: TensorSums, b: TensorSums) -> int | None:
    """The block of 4 KiB in which two parts of one place differ; None if it is not the only one."""
    cut_a, cut_b = dict(a.cut), dict(b.cut)
    differing = {
        first // BLOCK_BYTES
        for first in cut_a.keys() | cut_b.keys()
        if cut_a.get(first) != cut_b.get(first)
    }
    if a.sums != b.sums:
        # The sums of a part are those of a whole whose other bytes add nothing.
        whole_a, whole_b = (TensorSums(one.sums, one.total, one.total) for one in (a, b))
        block = differing_block(whole_a, whole_b)
        if block is None:
            return None
        differing.add(block)
    return differing.pop() if len(differing) == 1 else None


@dataclass
class Weights:
    """What a job or a checkpoint has. tensors: by name, one for each group of ranks. is_checkpoint:
    whether it is read from the values, so that it can be cast."""

    where: str
    tensors: dict[str, list[Tensor]]
    ranks: list[int]
    world_size: int
    step: int | None
    dtype: str
    notes: list[str]
    is_checkpoint: bool = False

    @property
    def nbytes(self) -> int:
        return sum(same[0].nbytes for same in self.tensors.values() if not same[0].tied)

    def title(self) -> str:
        words = [f"{len(self.tensors):,} tensors"]
        dtypes = Counter(same[0].dtype for same in self.tensors.values())
        if dtypes:
            words.append(dtypes.most_common(1)[0][0])
        if self.world_size > 1:
            words.append(f"{ranks_text(self.ranks, 3)} of {self.world_size}")
        return f"{self.where}: {', '.join(words)}"


def merged(passports: Sequence[PassportData], where: str) -> Weights:
    """One for all ranks. PassportError where they do not belong together."""
    _check_set(passports, where)
    by_name: dict[str, dict[tuple[str, str], Tensor]] = defaultdict(dict)
    for data in passports:
        for tensor in data.tensors:
            _add(by_name[tensor.name], tensor, data, where)
    first, where = passports[0], escaped(where)
    ranks = sorted(data.rank for data in passports)
    tensors = {name: list(same.values()) for name, same in by_name.items()}
    notes = list(dict.fromkeys(note for data in passports for note in data.notes))
    if len(ranks) < first.world_size:
        absent = set(range(first.world_size)) - set(ranks)
        notes.append(f"no passport of {ranks_text(absent, 4)}")
    return Weights(where, tensors, ranks, first.world_size, first.step, first.dtype, notes)


def _check_set(passports: Sequence[PassportData], where: str) -> None:
    if not passports:
        raise PassportError(f"{where}: no passport is there")
    for name in ("step", "dtype", "world_size", "run_id"):
        values = {getattr(data, name) for data in passports}
        if len(values) > 1:
            shown = ", ".join(sorted(map(str, values))[:3])
            hint = _ONE_STEP if name == "step" else ""
            raise PassportError(f"{where}: passports of several values of {name}: {shown}{hint}")
    for data in passports:
        for group in data.groups:
            if group.ranks and data.rank not in parse_ranks(group.ranks):
                raise PassportError(f"{where}: rank {data.rank} is not in group {group.ranks}")
    ranks = Counter(data.rank for data in passports)
    twice = [rank for rank, count in ranks.items() if count > 1]
    if twice:
        raise PassportError(f"{where}: several passports of {ranks_text(twice, 4)}{_ONE_STEP}")


def _add(
    same: dict[tuple[str, str], Tensor], data: TensorData, passport: PassportData, where: str
) -> None:
    group = passport.groups[data.group]
    key = (group.ranks, group.why)
    tensor = same.get(key)
    if tensor is None:
        tensor = same[key] = Tensor(
            data.name, data.dtype, data.shape, data.kind, data.tied, group.why
        )
    if (tensor.dtype, tensor.shape) != (data.dtype, data.shape):
        raise PassportError(
            f"{where}: {data.name}: {data.dtype} {list(data.shape)} on rank {passport.rank}, "
            f"{tensor.dtype} {list(tensor.shape)} on {ranks_text(tensor.ranks, 4)}"
        )
    for box, sums, source in boxes_of(data):
        by_rank = tensor.held.setdefault(box, {})
        if passport.rank in by_rank and by_rank[passport.rank] != sums:
            raise PassportError(
                f"{where}: {data.name}: rank {passport.rank} has two values of one part "
                f"({place_text(box, data.shape) or 'the whole tensor'})"
            )
        by_rank[passport.rank] = sums
        if source:
            tensor.sources.setdefault(box, {})[passport.rank] = source


def unchecked(weights: Iterable[Tensor]) -> dict[str, list[str]]:
    """By the reason: the names of tensors that were not compared between ranks."""
    found: dict[str, list[str]] = defaultdict(list)
    for tensor in weights:
        if tensor.why not in ("", BUFFERS) and tensor.name not in found[tensor.why]:
            found[tensor.why].append(tensor.name)
    return dict(found)
