"""Computes how far a sum may be off by rounding: from its length and the size of its terms.

Where terms cancel, a tolerance relative to the result says nothing. The sum of the absolute terms
does, and the same operator computes it from absolute inputs; from ones it counts them.

>>> import torch
>>> a, b = torch.tensor([[1e4, -1e4]]), torch.ones(2, 1)
>>> slack = Slack(torch.ops.aten.mm.default, (a, b), {})
>>> f"{slack.at('').item():.2g}"
'0.011'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .inputs import WIDER, converted, device_of, map_tensors, resolved, tensors_in

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


def is_sum(func: Any) -> bool:
    """Whether the rule holds for an overload that writes to none of its inputs."""
    is_aten = isinstance(func, torch._ops.OpOverload) and func.namespace == "aten"
    return is_aten and func._opname in _SUMS and not func._schema.is_mutable


class Slack:
    """For one call: (4 + sqrt(n) / 2) times eps times the sum of the absolute terms, where n is the
    number of terms and eps that of the inputs' dtype, of float32 where they are narrower.

    Half of sqrt(n) is more than a sum from left to right is off by where its roundings are random.
    For what is more than one sum, n is at most the number of inputs.
    """

    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        self._func = func
        self._call = (args, kwargs)
        self._found: dict[str, Tensor] | None = None

    def at(self, where: str) -> Tensor | None:
        """For the result at that place, as `OpCheck` names it; None if there is none to be had,
        such as for want of memory."""
        if self._found is None:
            try:
                self._found = self._compute()
            except Exception:  # what a backend raises has no kind
                self._found = {}
        return self._found.get(where)

    def _compute(self) -> dict[str, Tensor]:
        given = tensors_in(self._call)
        most = max(tensor.numel() for tensor in given)
        call = converted(self._call, device_of(given, self._call[1]), WIDER)
        kinds = {tensor.dtype for tensor in tensors_in(call) if _is_inexact(tensor)}
        eps = max((torch.finfo(kind).eps for kind in kinds), default=0.0)
        counts = _by_place(self._run(call, _one))
        return {
            place: eps * (4 + counts[place].clamp(1, max(most, 1)).sqrt() / 2) * size
            for place, size in _by_place(self._run(call, _size)).items()
        }

    def _run(self, call: Any, change: Callable[[Tensor], Tensor]) -> Any:
        args, kwargs = map_tensors(call, change)
        factors = {key: abs(kwargs[key]) for key in _FACTORS if key in kwargs}
        return self._func(*args, **{**kwargs, **factors})


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _size(tensor: Tensor) -> Tensor:
    return resolved(tensor).abs().to(tensor.dtype) if _is_inexact(tensor) else tensor


def _one(tensor: Tensor) -> Tensor:
    return torch.ones_like(tensor) if _is_inexact(tensor) else tensor


def _by_place(result: Any) -> dict[str, Tensor]:
    if isinstance(result, Tensor):
        return {"": result.abs()}
    return {str(place): one.abs() for place, one in enumerate(result) if isinstance(one, Tensor)}
