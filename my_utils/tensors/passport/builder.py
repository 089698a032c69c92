"""Puts a passport together, tensor by tensor, through the rules of a layout."""

from __future__ import annotations

import os
from operator import add
from typing import TYPE_CHECKING, NamedTuple

from ...core.printable import escaped
from ..dtypes import ITEM_BYTES, dtype_name
from .boxes import Box
from .file import (
    FORMAT,
    HASH,
    VERSION,
    GroupData,
    PartData,
    PassportData,
    PassportError,
    TensorData,
    part_data,
)
from .layouts import Cut, Layout
from .views import cast_of, sums_of_view
from .weights import STATISTICS
from .words import left_out_text

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .views import Read

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class Found(NamedTuple):
    """A box of a tensor of `shape`, which begins at `at`.

    values: those of the box; a meta tensor if `read` brings them from a file. tied: the name of the
    tensor that is in the same memory, "" for the first one.
    """

    name: str
    shape: tuple[int, ...]
    at: tuple[int, ...]
    values: Tensor
    group: GroupData
    tied: str = ""
    read: Read | None = None


class Builder:
    """dtype: what floating-point tensors are cast to. layout: what names and shapes mean."""

    def __init__(self, dtype: torch.dtype | None, layout: Layout | None) -> None:
        self.notes: list[str] = []
        self._dtype = dtype
        self._layout = layout or Layout("", [])
        self._tensors: dict[tuple[str, int], TensorData] = {}
        self._groups: dict[tuple[str, str], int] = {}
        self._left_out: list[str] = []
        self._seen: set[tuple[str, Box]] = set()

    def add(self, found: Found) -> None:
        """ValueError where its shape does not fit the layout, or another one has its name;
        TypeError where it has no memory, or not that of a dense tensor."""
        kind = str(found.values.layout).removeprefix("torch.")
        if kind != "strided":
            raise TypeError(f"{found.name}: a tensor of layout {kind} cannot be hashed")
        rule, cuts = self._layout.cuts(found.name, found.shape)
        if not cuts:
            self._left_out.append(found.name)
        box = Box(found.at, tuple(found.values.shape))
        if (found.name, box) in self._seen:
            raise ValueError(f"{found.name}: two tensors have this name")
        self._seen.add((found.name, box))
        source = escaped(f"{found.name}, rule {rule}") if rule else ""
        for cut in cuts:
            both = box.overlap(Box(cut.begin, cut.size))
            tensor = self._tensor(found, cut)
            if both is not None:
                tensor.parts.append(self._part(found, cut, both, source))

    def _tensor(self, found: Found, cut: Cut) -> TensorData:
        group = self._groups.setdefault((found.group.ranks, found.group.why), len(self._groups))
        dtype = dtype_name(cast_of(found.values.dtype, self._dtype))
        if dtype not in ITEM_BYTES:
            raise ValueError(f"{found.name}: a tensor of {dtype} cannot be hashed")
        tensor = self._tensors.get((cut.name, group))
        if tensor is None:
            kind = STATISTICS if cut.name.rpartition(".")[2] in _STATISTICS else ""
            tied = self._layout.cuts(found.tied, found.shape)[1] if found.tied else []
            first = tied[0].name if len(tied) == 1 else ""
            tensor = TensorData(escaped(cut.name), dtype, cut.shape, [], kind, group, first)
            self._tensors[cut.name, group] = tensor
        elif (tensor.dtype, tensor.shape) != (dtype, cut.shape):
            raise ValueError(
                f"{found.name}: {dtype} {list(cut.shape)}, and {tensor.dtype} {list(tensor.shape)} "
                f"in another part of {cut.name}"
            )
        return tensor

    def _part(self, found: Found, cut: Cut, both: Box, source: str) -> PartData:
        view = found.values
        for dim, (first, begin) in enumerate(zip(both.at, found.at, strict=True)):
            view = view.narrow(dim, first - begin, both.size[dim])
        extra = len(cut.begin) - len(cut.at)
        for _ in range(extra):
            view = view[0]
        moved = [
            first - begin for first, begin in zip(both.at[extra:], cut.begin[extra:], strict=True)
        ]
        if cut.is_transposed:
            view = view.transpose(-1, -2)
            moved[-2:] = moved[:-3:-1]
        at = tuple(map(add, cut.at, moved))
        dtype = cast_of(view.dtype, self._dtype)
        try:
            sums = sums_of_view(view, cut.shape, at, dtype, found.read)
        except PassportError:
            raise
        except (TypeError, ValueError) as error:
            raise type(error)(f"{found.name}: {error}") from None
        return part_data(Box(at, tuple(view.shape)), sums, source)

    def finish(self, where: str, step: int | None, rank: int, world_size: int) -> PassportData:
        notes = list(self.notes)
        if self._left_out:
            notes.append(left_out_text(self._left_out))
        return PassportData(
            FORMAT, VERSION, HASH, escaped(where), rank, world_size,
            escaped(os.environ.get("MY_UTILS_RUN_ID", "")), step,
            dtype_name(self._dtype) if self._dtype is not None else "", self._layout.name,
            [GroupData(ranks, why) for ranks, why in self._groups],
            list(self._tensors.values()), list(map(escaped, notes)),
        )  # fmt: skip
