"""Compares the result of an operator with a reference, and describes the difference."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ..._core import TensorDiff
from ...tensors import compare
from ...tensors.tensor_kinds import stored_parts
from .inputs import map_tensors, resolved, tensors_in
from .policy import OpPlan

# What the log lists of a tensor that differs.
ELEMENTS_SHOWN = 20
_STEPS = 2  # of a 16-bit type, that its rounding within an operator may add up to
_SCALAR_ATOL, _SCALAR_RTOL = 1e-5, 1.3e-6  # a Python number mostly was a float32


# In the place of a table: any floating dtype may stand for any other, any complex one likewise.
ANY_FLOAT: Mapping[torch.dtype, torch.dtype] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Rules:
    """atol, rtol: None for those of the dtypes. strides: whether other strides are a failure.
    max_elements: of larger tensors every n-th element is compared; None compares all of them."""

    atol: float | None = None
    rtol: float | None = None
    strides: bool = False
    max_elements: int | None = None


@dataclass(slots=True)
class Metrics:
    """The worst of all tensors of one call, or of many. cosine and sqnr_db are the lowest; ulp is
    in steps of the coarser dtype, at the element that is farthest off."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    cosine: float = 1.0
    sqnr_db: float = math.inf
    ulp: float = 0.0

    def add(self, other: Metrics) -> None:
        self.max_abs = max(self.max_abs, other.max_abs)
        self.max_rel = max(self.max_rel, other.max_rel)
        self.cosine = min(self.cosine, other.cosine)
        self.sqnr_db = min(self.sqnr_db, other.sqnr_db)
        self.ulp = max(self.ulp, other.ulp)

    def add_diff(self, diff: TensorDiff, dtype: torch.dtype) -> None:
        if diff.equal_bits:
            return
        self.max_abs = max(self.max_abs, float(diff.max_abs))
        self.max_rel = max(self.max_rel, diff.max_rel)
        if diff.cosine == diff.cosine:
            self.cosine = min(self.cosine, diff.cosine)
        if diff.sqnr_db == diff.sqnr_db:
            self.sqnr_db = min(self.sqnr_db, diff.sqnr_db)
        if dtype.is_floating_point and diff.max_rel < math.inf:
            # One step is between eps / 2 and eps of the value.
            self.ulp = max(self.ulp, diff.max_rel / torch.finfo(dtype).eps)


class Slack(ABC):
    """How far the results of one call may be off by rounding, by their places."""

    _found: dict[str, Tensor] | None = None

    def at(self, where: str) -> Tensor | None:
        """For the result at that place, as `OpCheck` names it; None if there is none to be had,
        such as for want of memory."""
        if self._found is None:
            try:
                self._found = self._compute()
            except Exception:  # what a backend raises has no kind
                self._found = {}
        return self._found.get(where)

    @abstractmethod
    def _compute(self) -> dict[str, Tensor]: ...


@dataclass(slots=True)
class OpCheck:
    """What was found for one call. `lines` say how it differs; there are none where it agrees.

    coarse: the 16-bit type with which an operator computed whose reference had a wider one. It
    rounds within, too, so that an element agrees where it is off by a few of that type's steps at
    the largest element; tolerances that a user gives are used as they are. slacks: how far this
    operator may be off by rounding, in addition; asked only where something differs.
    """

    rules: Rules
    dtypes: Mapping[torch.dtype, torch.dtype] = field(default_factory=dict)
    coarse: torch.dtype | None = None
    slacks: Iterable[Slack] = ()
    lines: list[str] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def agrees(self) -> bool:
        return not self.lines

    def values(self, actual: Any, expected: Any, where: str = "") -> None:
        """Compares nested results; `where` names the place of these in them."""
        if isinstance(actual, Tensor) and isinstance(expected, Tensor):
            self._tensors(actual, expected, where)
        elif isinstance(actual, list | tuple) and isinstance(expected, list | tuple):
            if len(actual) != len(expected):
                self.differ(where, "Lengths", len(actual), len(expected))
            for place, pair in enumerate(zip(actual, expected, strict=False)):
                self.values(*pair, where=f"{where}.{place}" if where else str(place))
        elif type(actual) is not type(expected):
            self.differ(where, "Types", type(actual).__name__, type(expected).__name__)
        elif not self._same_value(actual, expected):
            kind = type(actual).__name__
            self.differ(where, f"{kind[:1].upper()}{kind[1:]} values", actual, expected)

    def differ(self, where: str, what: str, actual: Any, expected: Any) -> None:
        self.lines.append(f"{_place(where)}{what} differ: {actual} vs {expected}")

    def _same_value(self, actual: Any, expected: Any) -> bool:
        if isinstance(actual, float):
            if actual == expected or (actual != actual and expected != expected):
                return True
            atol = _SCALAR_ATOL if self.rules.atol is None else self.rules.atol
            rtol = _SCALAR_RTOL if self.rules.rtol is None else self.rules.rtol
            return bool(abs(actual - expected) <= atol + rtol * abs(expected) < math.inf)
        return bool(actual == expected)

    def _tensors(self, actual: Tensor, expected: Tensor, where: str) -> None:
        if actual.shape != expected.shape:
            self.differ(where, "Tensor shapes", actual.shape, expected.shape)
            return
        if actual.is_quantized and expected.is_quantized:
            self._quantized(actual, expected, where)
            return
        if expected.dtype != actual.dtype and not self._stands_for(expected.dtype, actual.dtype):
            self.differ(where, "Tensor dtypes", actual.dtype, expected.dtype)
            return
        if actual.layout is not torch.strided or expected.layout is not torch.strided:
            if actual.layout != expected.layout:
                self.differ(where, "Tensor layouts", actual.layout, expected.layout)
                return
            if self._stored_agree(actual, expected):
                return  # dense copies may be larger than all memory
            actual, expected = actual.to_dense(), expected.to_dense()
        elif self.rules.strides and _strides(actual) != _strides(expected):
            self.differ(where, "Tensor strides", actual.stride(), expected.stride())
        self._elements(resolved(actual), resolved(expected), where)

    def _stored_agree(self, actual: Tensor, expected: Tensor) -> bool:
        """Whether two sparse tensors store values that agree, in the same places."""
        pairs = list(zip(_parts(actual), _parts(expected), strict=True))
        if not pairs or not all(torch.equal(ours, theirs) for ours, theirs in pairs[:-1]):
            return False
        values, wanted = map(resolved, pairs[-1])
        diff = self._diff(values, wanted)
        if diff.equal and not diff.equal_bits:
            self.metrics.add_diff(diff, values.dtype)
        return bool(diff.equal)

    def _quantized(self, actual: Tensor, expected: Tensor, where: str) -> None:
        """By the integers and by what they stand for."""
        if (actual.dtype, actual.qscheme()) != (expected.dtype, expected.qscheme()):
            kinds = [f"{side.dtype} {side.qscheme()}" for side in (actual, expected)]
            self.differ(where, "Quantizations", *kinds)
            return
        for ours, theirs in zip(_scales(actual), _scales(expected), strict=True):
            self.values(ours, theirs, where=f"{where}.scale" if where else "scale")
        self._elements(actual.int_repr(), expected.int_repr(), where)

    def _stands_for(self, wide: torch.dtype, dtype: torch.dtype) -> bool:
        if self.dtypes is ANY_FLOAT:
            return wide.is_floating_point == dtype.is_floating_point and (
                wide.is_complex == dtype.is_complex
            )
        return self.dtypes.get(dtype) == wide

    def _elements(self, actual: Tensor, expected: Tensor, where: str) -> None:
        rules = self.rules
        step = 1
        if rules.max_elements is not None and actual.numel() > rules.max_elements:
            step = -(-actual.numel() // rules.max_elements)
            actual, expected = actual.reshape(-1)[::step], expected.reshape(-1)[::step]
        diff = self._diff(actual, expected)
        if not diff.equal_bits:
            self.metrics.add_diff(diff, actual.dtype)
        if not diff.equal and rules.atol is None and rules.rtol is None:
            actual = _overflowed(actual, expected)
            diff = self._diff(actual, expected)
        near = actual
        for slack in self.slacks:
            if diff.equal:
                return
            allowed = slack.at(where)
            if allowed is not None:
                allowed = allowed if step == 1 else allowed.reshape(-1)[::step]
                near = _rounded_to(expected, near, allowed)
                diff = self._diff(near, expected)
        if not diff.equal:
            self.lines.append(_place(where) + _not_close(diff, actual, expected))

    def _diff(self, actual: Tensor, expected: Tensor) -> TensorDiff:
        atol, rtol = self.rules.atol, self.rules.rtol
        if self.coarse is not None and expected.is_floating_point():
            rounding = _STEPS * torch.finfo(self.coarse).eps
            finite = expected[torch.isfinite(expected)]
            largest = float(finite.abs().max()) if finite.numel() else 0.0
            # The smallest numbers have steps of one size.
            least = _STEPS * torch.finfo(self.coarse).tiny * torch.finfo(self.coarse).eps
            atol = max(rounding * largest, least) if atol is None else atol
            rtol = rounding if rtol is None else rtol
        return compare(
            actual,
            expected,
            atol=atol,
            rtol=rtol,
            equal_nan=True,
            max_mismatches=ELEMENTS_SHOWN,
        )


def _rounded_to(expected: Tensor, actual: Tensor, slack: Tensor) -> Tensor:
    """`actual` with the elements of `expected` where the two are no further than that apart."""
    wide = torch.complex128 if actual.is_complex() else torch.float64
    there = expected.to(actual.device)
    off = (actual.to(wide) - there.to(wide)).abs()
    slack = slack.to(actual.device)
    near = (off <= slack) & torch.isfinite(slack)
    return torch.where(near, there.to(actual.dtype), actual)


def _overflowed(actual: Tensor, expected: Tensor) -> Tensor:
    """`actual` with the elements of `expected` where these are larger than its dtype holds, and it
    has the infinity of that sign."""
    if not actual.is_floating_point() or expected.dtype == actual.dtype:
        return actual
    there = expected.to(actual.device)
    held = torch.finfo(actual.dtype)
    beyond = there.abs() > held.max * (1 - _STEPS * held.eps)
    beyond &= actual.isinf() & (actual.sign() == there.sign())
    return torch.where(beyond, there, actual.to(there.dtype)) if bool(beyond.any()) else actual


def coarsest(tensors: list[Tensor]) -> torch.dtype | None:
    """The 16-bit type among the dtypes, the coarser one of two."""
    found = {tensor.dtype for tensor in tensors}
    return next((dtype for dtype in (torch.bfloat16, torch.float16) if dtype in found), None)


def _scales(tensor: Tensor) -> tuple[Any, Any]:
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return tensor.q_scale(), tensor.q_zero_point()
    return tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()


def _parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """The places of a sparse tensor, on the CPU, and its values; nothing of other layouts."""
    is_coo = tensor.layout is torch.sparse_coo
    parts = stored_parts(tensor.coalesce() if is_coo else tensor)
    return (*(one.cpu() for one in parts[:-1]), *parts[-1:])


def _place(where: str) -> str:
    return f"{where}: " if where else ""


def _strides(tensor: Tensor) -> list[int]:
    """Those that matter: of dimensions with more than one element, of tensors that have some."""
    if tensor.numel() == 0:
        return []
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]


def describe(tensor: Tensor) -> str:
    """One line, without the values."""
    return (
        f"Tensor <shape={tensor.shape}, dtype={tensor.dtype}, device={tensor.device}, "
        f"size={tensor.numel()}, >"
    )


def _not_close(diff: TensorDiff, actual: Tensor, expected: Tensor) -> str:
    ours, theirs = actual.device, expected.device
    elements = [
        f"Element at index {index} is not close: {a}({ours}) vs {b}({theirs})"
        for index, a, b in diff.first
    ]
    blocks = ["Tensor values are not close"]
    if diff.mismatches > len(elements):
        blocks.append(f"Too many indices (total {diff.mismatches}) to print ")
        blocks += ["...", "\n".join(elements), "..."]
    else:
        blocks.append("\n".join(elements))
    blocks.append(f"{describe(actual)}\n{actual}\n{describe(expected)}\n{expected}")
    return "\n\n".join(blocks)


# --- views: they compute no values, so the view itself is checked ---


def check_view(check: OpCheck, plan: OpPlan, args: Any, kwargs: Any, result: Any) -> None:
    """Adds to `check` how the views in `result` differ from those that the operator should give:
    in shape, dtype, strides or place. Nothing is read from memory."""
    source = next(iter(tensors_in(args)), None)
    views = tensors_in(result)
    if source is None or source.device.type == "cpu":
        again = plan.func(*args, **kwargs)
        begin = 0
    else:  # the device is what is in doubt
        again = plan.func(*map_tensors(args, _without_memory), **kwargs)
        begin = source.data_ptr() - int(source.storage_offset()) * source.element_size()
    expected = tensors_in(again)
    if len(views) != len(expected):
        check.differ("", "Lengths", len(views), len(expected))
    for place, (view, other) in enumerate(zip(views, expected, strict=False)):
        _check_one(check, view, other, begin, str(place) if len(expected) > 1 else "")


def _without_memory(tensor: Tensor) -> Tensor:
    span = tensor.untyped_storage().nbytes() // tensor.element_size()
    base = torch.empty(span, dtype=tensor.dtype, device="meta")
    return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _check_one(check: OpCheck, view: Tensor, other: Tensor, begin: int, where: str) -> None:
    if view.shape != other.shape:
        check.differ(where, "Tensor shapes", view.shape, other.shape)
    elif view.dtype != other.dtype:
        check.differ(where, "Tensor dtypes", view.dtype, other.dtype)
    elif view.layout is not torch.strided or view.numel() == 0:
        return
    elif view.stride() != other.stride():
        check.differ(where, "Tensor strides", view.stride(), other.stride())
    elif _address(view, 0) != _address(other, begin):
        check.lines.append(f"{_place(where)}Views begin at different places in memory")


def _address(tensor: Tensor, begin: int) -> int:
    if tensor.is_meta:
        return begin + int(tensor.storage_offset()) * tensor.element_size()
    return tensor.data_ptr()
