"""Measures the cost of a module profiler's hooks, on modules that do nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as torch_module

from ... import _core
from ...core.warnings import warn_once

_ROUNDS = 7
_CALLS = 100
_NODES = 40


class Overhead(NamedTuple):
    """pair_ns: of the two hooks of a forward, with torch's calling of them. node_ns: of one node of
    autograd, put on and called. empty_ns: what is shown as the time of a module without work, at
    least."""

    pair_ns: float = 0.0
    node_ns: float = 0.0
    empty_ns: float = 0.0

    def of(self, pairs: int, nodes: int) -> float:
        """In milliseconds."""
        return (pairs * self.pair_ns + nodes * self.node_ns) / 1e6


class _Nothing(torch.nn.Module):
    def forward(self, value: Any) -> Any:
        return value


def measure_overhead(backward: bool, use_cuda: bool) -> Overhead:
    """Takes a few milliseconds. Nothing is measured while torch has global hooks of modules: they
    are the program's, and would be called."""
    if torch_module._has_any_global_hook():
        return Overhead()
    try:
        return _measured(backward, use_cuda)
    except Exception as error:  # as of a mode of torch that takes no operators
        text = f"{type(error).__name__}: {error}"
        warn_once("module_profiler_overhead", f"the cost of hooks is not measured ({text})")
        return Overhead()


def _measured(backward: bool, use_cuda: bool) -> Overhead:
    times = _core.ModuleTimes(2, use_cuda)
    times.on = True
    pair_ns = _added(_forwards(None), _forwards(times), _CALLS)
    times.collect()
    on_cpu, on_gpu = times.figures(0)
    *_, shortest, _ = on_gpu if on_gpu[0] else on_cpu
    node_ns = _added(_backwards(None), _backwards(times), _NODES) if backward else 0.0
    return Overhead(max(pair_ns, 0.0), max(node_ns, 0.0), shortest)


def _added(plain: Callable[[], object], hooked: Callable[[], object], times: int) -> float:
    """ns that the second takes longer than the first, each of which does `times` things. The
    shortest of each: what else the machine does only adds to them."""
    rounds = [(_ns(plain), _ns(hooked)) for _ in range(_ROUNDS)]
    plain_ns = min(took for took, _ in rounds)
    hooked_ns = min(took for _, took in rounds)
    return (hooked_ns - plain_ns) / times


def _ns(function: Callable[[], object]) -> int:
    began = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - began


def _forwards(times: _core.ModuleTimes | None) -> Callable[[], None]:
    module = _Nothing()
    if times is not None:
        before, after = times.hooks(0)
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after, prepend=True, always_call=True)

    def run() -> None:
        for _ in range(_CALLS):
            module(None)

    return run


def _backwards(times: _core.ModuleTimes | None) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode(False), torch.enable_grad():
            value = torch.zeros((), device="cpu", requires_grad=True) * 1.0
            for _ in range(_NODES):
                value = value * 1.0
                node: Any = value.grad_fn
                if times is not None:
                    before, after = times.hooks(1, once=True)
                    node.register_prehook(before)
                    node.register_hook(after)
            value.backward()

    return run
