"""What a hook records of a tensor: its metadata at once, its digest and statistics now or later.

A digest is of the values at the time of the call. On the CPU the hook computes the tensor hash and
the statistics at once. MD5 is faster over many tensors at once. So the tensor is copied into an
arena, and the digest is computed when the arena is full or when the recording is read. On CUDA the
work is put on the current stream, and its results stay on the device until then.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch

from ... import tensors as _tensors
from ..._core import TensorDigest
from .. import torch_ops as _torch_ops
from ..dtypes import dtype_name
from ..tensor_kinds import as_bytes, has_kernels, why_unreadable
from .parts import split_tensor
from .recording import TraceEvent, TraceTensorMeta
from .sample import Sampler
from .walk import Found

HashKind = Literal["none", "md5", "tensor"]

# The order of the 16 numbers of torch.ops.my_utils.stats; the last one is reserved.
STATS_NAMES = (
    "count",
    "finite",
    "min",
    "max",
    "mean",
    "std",
    "l1",
    "l2",
    "abs_max",
    "zeros",
    "nans",
    "pos_infs",
    "neg_infs",
    "first_nan",
    "first_inf",
)
_WHOLE = frozenset(
    ("count", "finite", "zeros", "nans", "pos_infs", "neg_infs", "first_nan", "first_inf")
)

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The innermost of vmap, grad and other transforms that runs, or None."""
_ALIGN = 64  # bytes, in the arena
_ROWS = 4096  # of an arena for digests on a device, 64 KiB
_device_name = functools.cache(str)


def describe_tensor(path: str, tensor: torch.Tensor) -> TraceTensorMeta:
    """The form of a strided tensor."""
    return TraceTensorMeta(
        path,
        tuple(tensor.shape),
        dtype_name(tensor.dtype),
        _device_name(tensor.device),
        stride=tensor.stride(),
        requires_grad=tensor.requires_grad,
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is memory where kernels of ours run.

    What is odd about one that passes shows when it is read.
    """
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.layout is _STRIDED
        and not tensor.is_nested
        and has_kernels(tensor)
    )


def _check_readable(tensor: torch.Tensor) -> None:
    """TypeError where torch, which copies without a check, could end the process."""
    reason = why_unreadable(tensor)
    if reason is not None:
        raise TypeError(reason)


def md5_each(views: Sequence[torch.Tensor]) -> list[str | None]:
    """The digests of tensors on the CPU; None for one that has no readable memory."""
    try:
        return list(_tensors.md5(list(views)))
    except Exception:
        return [_or_none(_tensors.md5, view) for view in views]


def _or_none(function: Callable[[Any], Any], tensor: torch.Tensor) -> Any:
    try:
        return function(tensor)
    except Exception:
        return None


class _Md5Arena:
    """Copies that wait for their digests. Thread-safe."""

    def __init__(self, max_bytes: int, pinned: bool) -> None:
        self.max_bytes = max_bytes
        self._pinned = pinned
        self._bytes: torch.Tensor | None = None
        self._used = 0
        self._waiting: list[tuple[TraceTensorMeta, torch.Tensor]] = []
        self._devices: set[torch.device] = set()  # those whose copies may still run
        self._lock = threading.RLock()

    def add(self, meta: TraceTensorMeta, tensor: torch.Tensor) -> None:
        _check_readable(tensor)
        source = as_bytes(tensor.detach())
        wanted = source.numel() * source.element_size()
        if wanted > self.max_bytes:
            set_md5(meta, _tensors.md5(source.cpu()))
            return
        with self._lock:
            if self._used + wanted > self.max_bytes:
                self.flush()
            self._waiting.append((meta, self._copied(source, wanted)))
            if self._pinned:
                self._devices.add(source.device)

    def _copied(self, source: torch.Tensor, wanted: int) -> torch.Tensor:
        if self._bytes is None:
            # An inference tensor could not be written to later, outside of that mode.
            with torch.inference_mode(False):
                self._bytes = torch.empty(
                    self.max_bytes, dtype=torch.uint8, device="cpu", pin_memory=self._pinned
                )
        view = self._bytes[self._used : self._used + wanted]
        view.view(source.dtype).view(source.shape).copy_(source, non_blocking=self._pinned)
        self._used += -(-wanted // _ALIGN) * _ALIGN
        return view

    def flush(self) -> None:
        with self._lock:
            waiting, self._waiting, self._used = self._waiting, [], 0
            if not waiting:
                return
            for device in self._devices:
                torch.cuda.synchronize(device)
            self._devices.clear()
            for (meta, _), digest in zip(waiting, md5_each([v for _, v in waiting]), strict=True):
                set_md5(meta, digest)


def set_md5(meta: TraceTensorMeta, digest: str | None) -> None:
    if digest is None:
        meta.note = "has no memory that can be read"
    else:
        meta.hash, meta.hash_kind = digest, "md5"


class _DeviceStats:
    """Rows of statistics on a device, put together now and then: each alone takes 512 bytes."""

    def __init__(self) -> None:
        self._metas: list[TraceTensorMeta] = []
        self._tables: list[torch.Tensor] = []
        self._rows: list[torch.Tensor] = []

    def add(self, meta: TraceTensorMeta, row: torch.Tensor) -> None:
        self._metas.append(meta)
        self._rows.append(row)
        if len(self._rows) == _ROWS:
            self._put_together()

    def _put_together(self) -> None:
        if self._rows:
            self._tables.append(torch.stack(self._rows))
            self._rows = []

    def flush(self) -> None:
        self._put_together()
        rows = [row for table in self._tables for row in table.cpu().tolist()]
        for meta, row in zip(self._metas, rows, strict=True):
            meta.stats = _figures(row)


class _DeviceRows:
    """Digests, figures and samples that stay on CUDA devices until they are asked for."""

    def __init__(self) -> None:
        self._rows: dict[torch.device, list[torch.Tensor]] = {}
        self._hashes: dict[torch.device, list[TraceTensorMeta]] = {}
        self._stats: dict[torch.device, _DeviceStats] = {}
        self._samples: list[TraceTensorMeta] = []
        self._lock = threading.RLock()

    def add_hash(self, meta: TraceTensorMeta, tensor: torch.Tensor) -> None:
        with self._lock:
            waiting = self._hashes.setdefault(tensor.device, [])
            chunks = self._rows.setdefault(tensor.device, [])
            if len(waiting) == len(chunks) * _ROWS:
                with torch.inference_mode(False):
                    chunks.append(torch.empty((_ROWS, 2), dtype=torch.int64, device=tensor.device))
            row = len(waiting) % _ROWS
            torch.ops.my_utils.hash_into(tensor.detach(), chunks[-1], row)
            waiting.append(meta)

    def add_stats(self, meta: TraceTensorMeta, tensor: torch.Tensor) -> None:
        figures = torch.ops.my_utils.stats(tensor.detach())
        with self._lock:
            self._stats.setdefault(tensor.device, _DeviceStats()).add(meta, figures)

    def add_sample(self, meta: TraceTensorMeta) -> None:
        with self._lock:
            self._samples.append(meta)

    def flush(self) -> None:
        """Waits for the devices."""
        with self._lock:
            for device, waiting in self._hashes.items():
                torch.cuda.synchronize(device)
                rows = torch.cat(self._rows[device]).cpu().tolist() if waiting else []
                for meta, (low, high) in zip(waiting, rows, strict=False):
                    meta.hash = digest_text(low, high)
                    meta.hash_kind = "tensor"
            for device, figures in self._stats.items():
                torch.cuda.synchronize(device)
                figures.flush()
            for meta in self._samples:
                if meta.sample is not None:
                    meta.sample = meta.sample.cpu()
            self._hashes, self._rows, self._stats, self._samples = {}, {}, {}, []


def digest_text(low: int, high: int) -> str:
    """The two halves of a content digest, as int64 or uint64, in hexadecimal digits."""
    return f"{high & (1 << 64) - 1:016x}{low & (1 << 64) - 1:016x}"


def _figures(row: Iterable[float]) -> dict[str, float | int]:
    return {
        name: int(value) if name in _WHOLE else value
        for name, value in zip(STATS_NAMES, row, strict=False)
    }


class MetadataCollector:
    """Takes the metadata, digests and statistics that the recorder wants. Thread-safe."""

    def __init__(self, max_pending_bytes: int) -> None:
        self._arena = _Md5Arena(max_pending_bytes, pinned=False)
        self._pinned_arena = _Md5Arena(max_pending_bytes, pinned=True)
        self._on_device = _DeviceRows()
        self._forms: deque[tuple[Any, ...]] = deque()
        self._lock = threading.Lock()

    def take_forms(self, found: Found, event: TraceEvent, side: str, hashed: bool) -> bool:
        """The forms and tensor hashes of tensors in plain memory of the CPU, for a hook that must
        be fast: `flush` adds their entries to `event.inputs` or another `side`. False for other
        tensors, of which nothing is taken. Not for use inside transforms of torch.func."""
        rows = []
        try:
            for path, tensor in found:
                if type(tensor) not in _PLAIN_TYPES or not tensor.is_cpu:
                    return False
                known: TensorDigest | torch.Size
                if hashed:
                    known = _tensors.tensor_hash(tensor)  # which has the shape
                elif _is_plain(tensor):
                    known = tensor.shape
                else:
                    return False
                dtype, stride = tensor.dtype, tensor.stride()
                rows.append((event, side, path, known, dtype, stride, tensor.requires_grad))
        except Exception:  # as the hash of a sparse tensor
            return False
        self._forms.extend(rows)
        return True

    def take(
        self,
        found: Found,
        kind: HashKind,
        stats: bool = False,
        sampler: Sampler | None = None,
    ) -> list[TraceTensorMeta]:
        """One entry for each tensor, and for each part of those that consist of parts."""
        metas: list[TraceTensorMeta] = []
        wanted: list[TraceTensorMeta] = []
        sources: list[torch.Tensor] = []
        transformed = innermost_transform() is not None
        for path, tensor in found:
            parts: Iterable[tuple[TraceTensorMeta, torch.Tensor | None]]
            if transformed or not _is_plain(tensor):
                parts = split_tensor(path, tensor)
            else:
                parts = ((describe_tensor(path, tensor), tensor),)
            for meta, readable in parts:
                metas.append(meta)
                if readable is None:
                    continue
                if readable.is_cpu or not has_kernels(readable):
                    wanted.append(meta)
                    sources.append(readable if readable.is_cpu else readable.cpu())
                else:
                    self._take_on_cuda(meta, readable, kind, stats, sampler)
        if sources:
            self._take_on_cpu(wanted, sources, kind, stats, sampler)
        return metas

    def _take_on_cpu(
        self,
        metas: list[TraceTensorMeta],
        sources: list[torch.Tensor],
        kind: HashKind,
        stats: bool,
        sampler: Sampler | None,
    ) -> None:
        if kind == "tensor":
            try:
                for meta, digest in zip(metas, _tensors.tensor_hash(sources), strict=True):
                    meta.hash, meta.hash_kind = digest.content, "tensor"
            except Exception:
                _one_by_one(_set_tensor_hash, metas, sources)
        elif kind == "md5":
            _one_by_one(self._arena.add, metas, sources)
        if stats:
            _one_by_one(_set_stats, metas, sources)
        if sampler is not None:

            def sample(meta: TraceTensorMeta, source: torch.Tensor) -> None:
                _check_readable(source)
                meta.sample = sampler.take(source)

            _one_by_one(sample, metas, sources)

    def _take_on_cuda(
        self,
        meta: TraceTensorMeta,
        tensor: torch.Tensor,
        kind: HashKind,
        stats: bool,
        sampler: Sampler | None,
    ) -> None:
        if torch.cuda.is_current_stream_capturing():
            meta.note = "inside the capture of a CUDA graph"
            return
        try:
            _torch_ops.register()
            if kind == "tensor":
                self._on_device.add_hash(meta, tensor)
            elif kind == "md5":
                self._pinned_arena.add(meta, tensor)
            if stats:
                self._on_device.add_stats(meta, tensor)
            if sampler is not None:
                _check_readable(tensor)
                meta.sample = sampler.take(tensor)
                self._on_device.add_sample(meta)
        except Exception as error:
            meta.note = f"{type(error).__name__}: {error}"[:300]

    def flush(self) -> None:
        """Fetches what is still on its way. Waits for CUDA where it was used."""
        with self._lock:
            for _ in range(len(self._forms)):
                event, side, path, known, dtype, stride, requires_grad = self._forms.popleft()
                meta = TraceTensorMeta(path, dtype=dtype_name(dtype), device="cpu", stride=stride)
                meta.requires_grad = requires_grad
                if isinstance(known, TensorDigest):
                    meta.shape, meta.hash, meta.hash_kind = known.shape, known.content, "tensor"
                else:
                    meta.shape = tuple(known)
                getattr(event, side).append(meta)
        self._arena.flush()
        self._pinned_arena.flush()
        self._on_device.flush()


def _set_tensor_hash(meta: TraceTensorMeta, source: torch.Tensor) -> None:
    meta.hash, meta.hash_kind = _tensors.tensor_hash(source).content, "tensor"


def _set_stats(meta: TraceTensorMeta, source: torch.Tensor) -> None:
    stats = _tensors.stats(source)
    meta.stats = {name: getattr(stats, name) for name in STATS_NAMES}


def _one_by_one(
    take: Callable[[TraceTensorMeta, torch.Tensor], None],
    metas: Sequence[TraceTensorMeta],
    sources: Sequence[torch.Tensor],
) -> None:
    """Takes each tensor by itself, so that one without readable memory fails alone."""
    for meta, source in zip(metas, sources, strict=True):
        try:
            take(meta, source)
        except Exception as error:
            meta.note = f"{type(error).__name__}: {error}"[:300]
