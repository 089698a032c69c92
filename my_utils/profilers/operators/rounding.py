"""How far the result of an operator may be off by rounding alone.

It is asked only where a result differs by more than the tolerances of its dtype. Two rules say it:
of sums by the sizes of their terms, and of all operators by what a rounding of their inputs does to
the reference. That is large near poles and edges, and where inputs cancel or are multiplied by
large numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import torch
from torch import Tensor

from .check import Slack
from .inputs import WIDER, converted, device_of, map_tensors, resolved, tensors_in
from .reference import OpCopy, Reference

# Each element of their results is a sum of products of inputs; that of exp(A) one of powers of A.
_SUMS = frozenset(
    (
        *("mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "dot", "vdot", "addr"),
        *("convolution", "convolution_backward", "_convolution", "convolution_overrideable"),
        *("cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "linear"),
        *("sum", "mean", "cumsum", "trace", "index_add", "scatter_add", "embedding_dense_backward"),
        *("avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"),
        *("linalg_matrix_exp", "matrix_exp"),
    )
)

_FACTORS = ("alpha", "beta")

# They round to the dtype of their inputs within: positions, quotients, edges of bins, exponents,
# and what they add or multiply up. Others compute in float32, and round 16-bit results at the end.
_ROUND_WITHIN = frozenset(
    (
        *("grid_sampler_2d", "grid_sampler_3d", "_grid_sampler_2d_cpu_fallback"),
        *("grid_sampler_2d_backward", "grid_sampler_3d_backward", "_upsample_bilinear2d_aa"),
        *("_grid_sampler_2d_cpu_fallback_backward", "_upsample_bicubic2d_aa"),
        *("div", "floor_divide", "fmod", "remainder", "histc", "logspace", "linspace", "polygamma"),
        *("prod", "nll_loss_forward", "nll_loss2d_forward", "_segment_reduce_backward"),
    )
)

_NORMS = frozenset(("native_layer_norm",))

NUDGES = 8  # how often inputs are moved: all up, all down, and each up or down
TIMES_NUDGED = 4.0  # as far off as the farthest of them may be what is rounded in many places
TIMES_BY_SIZE = 16.0


def find_slacks(call: OpCopy, reference: Reference, result: Any, expected: Any) -> list[Slack]:
    """Those that hold for a call, in the order in which they are asked. result: what the operator
    gave; expected: the reference."""
    plan = call.plan
    if plan.writes:  # its inputs are no longer what they were
        return []
    kind = plan.short.removeprefix("aten.")
    if kind in _SUMS:
        return [SumSlack(plan.func, call.args, call.kwargs)]
    found: list[Slack] = [NormSlack(call, expected)] if kind in _NORMS else []
    if reference.function is None:
        nudged = NudgedSlack(call, reference, result, expected)
        found.append(nudged)
        if torch.Tag.pointwise not in plan.func.tags:
            found.append(nudged.by_size())
    return found


class SumSlack(Slack):
    """For sums: (4 + sqrt(n) / 2) times eps times the sum of the absolute terms, where n is the
    number of terms and eps that of the inputs' dtype, of float32 where they are narrower.

    Half of sqrt(n) is more than a sum from left to right is off by where its roundings are random.
    For what is more than one sum, n is at most the number of inputs.

    Where terms cancel, a tolerance relative to the result says nothing. The sum of the absolute
    terms does, and the same operator computes it from absolute inputs; from ones it counts them.

    >>> a, b = torch.tensor([[1e4, -1e4]]), torch.ones(2, 1)
    >>> slack = SumSlack(torch.ops.aten.mm.default, (a, b), {})
    >>> f"{slack.at('').item():.2g}"
    '0.011'
    """

    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._func = func
        self._call = (args, kwargs)

    def _compute(self) -> dict[str, Tensor]:
        given = tensors_in(self._call)
        most = max(tensor.numel() for tensor in given)
        call = converted(self._call, device_of(given, self._call[1]), WIDER)
        kinds = {tensor.dtype for tensor in tensors_in(call) if _is_inexact(tensor)}
        eps = max((torch.finfo(kind).eps for kind in kinds), default=0.0)
        counts = _by_place(self._run(call, _one))
        return {
            place: eps * (4 + counts[place].abs().clamp(1, max(most, 1)).sqrt() / 2) * size.abs()
            for place, size in _by_place(self._run(call, _size)).items()
        }

    def _run(self, call: Any, change: Callable[[Tensor], Tensor]) -> Any:
        args, kwargs = map_tensors(call, change)
        factors = {key: abs(kwargs[key]) for key in _FACTORS if key in kwargs}
        return self._func(*args, **{**kwargs, **factors})


class NormSlack(Slack):
    """For (x - mean) * rstd * weight: 16 times eps times the absolute terms. They cancel where
    all of x is the mean, as that of one element is."""

    def __init__(self, call: OpCopy, expected: Any) -> None:
        self._values, self._weight = call.args[0], call.args[2]
        self._rstd = expected[2]

    def _compute(self) -> dict[str, Tensor]:
        narrowest = min(torch.finfo(self._values.dtype).eps, torch.finfo(torch.float32).eps)
        size = _wide(self._values).abs() * _wide(self._rstd).to(self._values.device)
        if self._weight is not None:
            size = size * _wide(self._weight).abs()
        return {"0": TIMES_BY_SIZE * narrowest * size}


class NudgedSlack(Slack):
    """Four times as far as the reference moves when each input moves by a rounding, up or down: a
    good algorithm gives the exact result for inputs that are so near.

    Next to an edge, as of `floor`, and to a pole, that is far; elsewhere it is about as much as the
    tolerance of the dtype. Numbers of Python move, too.
    """

    def __init__(self, call: OpCopy, reference: Reference, result: Any, expected: Any) -> None:
        self._call, self._reference, self._expected = call, reference, expected
        kinds = {one.dtype for one in [*call.tensors, *tensors_in(result)] if _is_inexact(one)}
        self._eps = max((torch.finfo(kind).eps for kind in kinds), default=0.0)
        if call.plan.short.removeprefix("aten.") not in _ROUND_WITHIN:
            self._eps = min(self._eps, torch.finfo(torch.float32).eps)
        self._by_size = False

    def by_size(self) -> NudgedSlack:
        """The same, where each element moves as far as a usual one of its tensor: operators that
        are not pointwise add elements to one another, or to 1."""
        made = copy(self)
        made._by_size = True
        return made

    def _compute(self) -> dict[str, Tensor]:
        before, farthest = _by_place(self._expected), dict[str, Tensor]()
        for number in range(NUDGES):
            nudge = _Nudge(number, self._eps, self._by_size)
            after = self._reference.run(self._call.changed(nudge), None).result
            for place, there in _by_place(after).items():
                off = (_wide(there) - _wide(before[place])).abs()
                farthest[place] = torch.fmax(farthest.get(place, off), off)
        times = TIMES_BY_SIZE if self._by_size else TIMES_NUDGED
        return {place: times * off for place, off in farthest.items()}


class _Nudge:
    """Moves floats and the elements of tensors by one rounding each: in the first two all away from
    zero, and all towards it. Narrow tensors come out in float32, which holds what they move by."""

    def __init__(self, number: int, eps: float, by_size: bool) -> None:
        self._ways = (1.0, -1.0)[number : number + 1]
        self._random = torch.Generator().manual_seed(number)
        self._eps, self._by_size = eps, by_size

    def __call__(self, value: Any) -> Any:
        if isinstance(value, float):
            return value * (1 + self._eps * self._signs((1,)).item())
        if not _is_inexact(value):
            return value
        values = resolved(value.detach())
        values = values.to(WIDER.get(values.dtype, values.dtype))
        step = self._eps * self._signs(values.shape).to(values.device, values.dtype)
        return values + step * (_usual_size(values) if self._by_size else values)

    def _signs(self, shape: Any) -> Tensor:
        if self._ways:
            return torch.full(shape, self._ways[0])
        return torch.randint(0, 2, shape, generator=self._random) * 2.0 - 1


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _size(tensor: Tensor) -> Tensor:
    return resolved(tensor).abs().to(tensor.dtype) if _is_inexact(tensor) else tensor


def _one(tensor: Tensor) -> Tensor:
    return torch.ones_like(tensor) if _is_inexact(tensor) else tensor


def _usual_size(values: Tensor) -> Tensor | float:
    """The median, which leaves out what no kernel has filled."""
    sizes = values.abs()
    return sizes[torch.isfinite(sizes)].median() if sizes.numel() else 0.0


def _wide(tensor: Tensor) -> Tensor:
    return resolved(tensor).to(torch.complex128 if tensor.is_complex() else torch.float64)


def _by_place(result: Any, where: str = "") -> dict[str, Tensor]:
    """The tensors of a result by the names that `OpCheck` has for their places."""
    if isinstance(result, Tensor):
        return {where: result}
    found: dict[str, Tensor] = {}
    if isinstance(result, list | tuple):
        for place, one in enumerate(result):
            found |= _by_place(one, f"{where}.{place}" if where else str(place))
    return found
