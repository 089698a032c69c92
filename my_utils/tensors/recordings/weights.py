"""Digests of parameters, with the values that a call computes with.

MD5 is fast over many tensors at once, so the parameters below an outermost call are noted when it
begins (tensor, pointer, version, a probe of a few elements), checked again when their module is
called, and hashed together when the outermost call has ended. One that is not what it was by then
was changed during the call, and is reported as that. What is seen: another tensor in its place,
another pointer, in-place operations (they bump the version), and any writing to the first or last
64 elements, as by fused optimizers, `.data` and numpy, which bump nothing. What is not seen: such a
writing that leaves those 128 elements alone.

Where a parameter has its values for the time of its owner's call only (FSDP, ZeRO-3), and for the
tensor hash, which costs little, they are hashed in the owner's pre-hook.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ... import tensors as _tensors
from ..tensor_kinds import is_cut
from .metadata import HashKind, MetadataCollector, describe_tensor, md5_each, set_md5
from .parts import split_tensor
from .plan import Plan, Slot
from .recording import RootCall, TraceTensorMeta

_Items = list[tuple[TraceTensorMeta, torch.Tensor]]

_PROBE = 64  # elements at either end
_PROBES_MAX = 1 << 16


class _Note:
    """A parameter as it was at the last check."""

    __slots__ = ("meta", "pointer", "probe", "tensor", "version")

    def __init__(self, meta: TraceTensorMeta, tensor: torch.Tensor) -> None:
        self.meta = meta
        self.tensor = tensor
        self.pointer = tensor.data_ptr()
        self.version = _version(tensor)
        self.probe: list[str] = []

    def is_moved(self, tensor: torch.Tensor | None) -> bool:
        return (
            tensor is not self.tensor
            or tensor.data_ptr() != self.pointer
            or _version(tensor) != self.version
        )


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


class _Probes:
    """Views of the first and last elements of parameters, made once a pointer."""

    def __init__(self) -> None:
        self._views: dict[int, tuple[torch.Tensor, int, list[torch.Tensor]]] = {}

    def take(self, tensors: Sequence[torch.Tensor]) -> list[list[str]]:
        """Digests of the probes of each tensor; none for tensors elsewhere than on the CPU."""
        views = [self._of(tensor) for tensor in tensors]
        digests = iter(_tensors.tensor_hash([view for pair in views for view in pair]))
        return [[next(digests).content for _ in pair] for pair in views]

    def _of(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        pointer = tensor.data_ptr()
        known = self._views.get(id(tensor))
        if known is None or known[0] is not tensor or known[1] != pointer:
            known = self._views[id(tensor)] = (tensor, pointer, _probe_views(tensor))
        return known[2]

    def forget(self) -> None:
        self._views.clear()

    def make_room(self) -> None:
        """Where parameters are exchanged for new ones over and over, the old ones can go."""
        if len(self._views) > _PROBES_MAX:
            self._views.clear()


def _probe_views(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.device.type != "cpu" or tensor.numel() == 0:
        return []
    plain = tensor.detach()
    if plain.is_contiguous():
        flat = plain.view(-1)
        return [flat[:_PROBE], flat[-_PROBE:]]
    while plain.dim() > 1:
        plain = plain[0]
    return [plain[:_PROBE], plain[-_PROBE:]]


@dataclass(slots=True, eq=False)
class RootState:
    """One outermost call that runs."""

    plan: Plan
    record: RootCall
    notes: dict[str, _Note] = field(default_factory=dict)


class Weights:
    """What happens to parameters at the ends of a call. `kind` is not "none"."""

    def __init__(
        self, kind: HashKind, collector: MetadataCollector, max_pending_bytes: int
    ) -> None:
        self.kind = kind
        self._collector = collector
        self._max_pending_bytes = max_pending_bytes
        self._probes = _Probes()

    def begin(self, root: RootState) -> None:
        """Notes what is hashed when the root has ended."""
        self._probes.make_room()
        deferred, _ = root.plan.below()
        self._note(root, deferred)

    def before_call(self, plan: Plan, root: RootState) -> dict[str, TraceTensorMeta]:
        """The module's own parameters by their names in it."""
        if plan.unit:
            self._take_now(root, plan.unit)
        if plan.deferred:
            self._retry_deferred(root, plan.deferred)
        weights = root.record.weights
        return {local: weights[full] for local, full in plan.params if full in weights}

    def finish(self, root: RootState) -> None:
        """Hashes what was noted, and what a call that never came should have hashed."""
        _, units = root.plan.below()
        missed = [slot for slot in units if slot.full not in root.record.weights]
        if missed:
            self._take_now(root, missed)
        notes = list(root.notes.values())
        root.notes = {}  # the record outlives the tensors
        changed = self._changed([(note, note.tensor) for note in notes])
        self._hash_together([(note.meta, note.tensor) for note in notes if note not in changed])

    def forget(self) -> None:
        self._probes.forget()

    def _take_now(self, root: RootState, slots: Sequence[Slot]) -> None:
        found = [(slot.full, tensor) for slot in slots if (tensor := slot.current()) is not None]
        if self.kind == "tensor":
            metas = self._collector.take(found, "tensor")
        else:
            parts = [part for name, tensor in found for part in split_tensor(name, tensor)]
            metas = [meta for meta, _ in parts]
            self._hash_together([(meta, part) for meta, part in parts if part is not None])
        for meta in metas:
            root.record.weights[meta.path] = meta

    def _note(self, root: RootState, slots: Sequence[Slot]) -> None:
        notes, odd = [], []
        for slot in slots:
            tensor = slot.current()
            if tensor is None:
                continue
            if not _is_plain(tensor):
                odd.append(slot)
                continue
            note = root.notes[slot.full] = _Note(describe_tensor(slot.full, tensor), tensor)
            root.record.weights[slot.full] = note.meta
            notes.append(note)
        if odd:
            self._take_now(root, odd)
        for note, probe in zip(
            notes, self._probes.take([note.tensor for note in notes]), strict=True
        ):
            note.probe = probe

    def _retry_deferred(self, root: RootState, slots: Sequence[Slot]) -> None:
        known = [(root.notes.get(slot.full), slot.current()) for slot in slots]
        seen = [(note, tensor) for note, tensor in known if note is not None and tensor is not None]
        changed = self._changed(seen)
        stale = [
            slot
            for slot, (note, _) in zip(slots, known, strict=True)
            if note is None or note in changed
        ]
        if stale:
            self._note(root, stale)

    def _changed(self, seen: Sequence[tuple[_Note, torch.Tensor]]) -> set[_Note]:
        """The notes whose values are gone; their entries say it."""
        changed = {note for note, tensor in seen if note.is_moved(tensor)}
        rest = [note for note, _ in seen if note not in changed]
        probes = self._probes.take([note.tensor for note in rest])
        changed.update(
            note for note, probe in zip(rest, probes, strict=True) if probe != note.probe
        )
        for note in changed:
            note.meta.changed = True
            note.meta.note = "changed during the call, before it could be hashed"
        return changed

    def _hash_together(self, items: _Items) -> None:
        on_cuda = any(tensor.device.type == "cuda" for _, tensor in items)
        if on_cuda and torch.cuda.is_current_stream_capturing():  # a copy would break the capture
            for meta, _ in items:
                meta.note = "inside the capture of a CUDA graph"
            return
        for group in _groups(items, self._max_pending_bytes):
            views = [tensor.detach().cpu() for _, tensor in group]
            for (meta, _), digest in zip(group, md5_each(views), strict=True):
                set_md5(meta, digest)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.is_nested
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        and not is_cut(tensor)
    )


def _groups(items: _Items, max_bytes: int) -> Iterator[_Items]:
    """All that is on the CPU together, the rest in groups whose copies fit."""
    here = [item for item in items if item[1].device.type == "cpu"]
    if here:
        yield here
    group: _Items = []
    size = 0
    for meta, tensor in items:
        if tensor.device.type == "cpu":
            continue
        wanted = tensor.numel() * tensor.element_size()
        if group and size + wanted > max_bytes:
            yield group
            group, size = [], 0
        group.append((meta, tensor))
        size += wanted
    if group:
        yield group
