"""What the two hooks of ModuleProfiler add to the forward of a module, and what nodes of autograd
add to a backward.

The peer is a pair of empty hooks in Python, without which no profiler of modules can do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.harness import Claim, take_turns
from my_utils import _core
from my_utils.moduleProfiler import ModuleProfiler

CALLS = 200  # short, so that what else runs on the machine seldom comes between
NODES = 30


class Nothing(torch.nn.Module):
    def forward(self) -> None:
        pass


def calls_of(module: torch.nn.Module) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(CALLS):
            module()

    return repeat


def before_nothing(module: torch.nn.Module, given: Any) -> None:
    pass


def after_nothing(module: torch.nn.Module, given: Any, result: Any) -> None:
    pass


def empty_hooks(always_call: bool) -> torch.nn.Module:
    module = Nothing()
    module.register_forward_pre_hook(before_nothing)
    module.register_forward_hook(after_nothing, always_call=always_call)
    return module


def profiled(profilers: list[ModuleProfiler]) -> torch.nn.Module:
    module = Nothing()
    profilers.append(ModuleProfiler(module))
    profilers[-1].start()
    return module


def hooks_alone(hooks: tuple[Any, Any]) -> Callable[[], None]:
    before, after = hooks

    def repeat() -> None:
        for _ in range(CALLS):
            before(None, ())
            after(None, (), None)

    return repeat


def running() -> _core.ModuleTimes:
    times = _core.ModuleTimes(1)
    times.on = True
    return times


def chain(hook: Callable[[Any], object]) -> Callable[[], None]:
    """Some forwards of one node each, and their backward."""

    def repeat() -> None:
        value = torch.zeros((), requires_grad=True) * 1.0
        for _ in range(NODES):
            value = value * 1.0
            hook(value.grad_fn)
        value.backward()

    return repeat


def empty_node_hooks(node: Any) -> None:
    node.register_prehook(lambda made: None)
    node.register_hook(lambda made, given: None)


def our_node_hooks(times: _core.ModuleTimes) -> Callable[[Any], None]:
    def hook(node: Any) -> None:
        before, after = times.hooks(0, once=True)
        node.register_prehook(before)
        node.register_hook(after)

    return hook


def run(smoke: bool) -> list[Claim]:
    profilers: list[ModuleProfiler] = []
    times = running()
    sides = {
        "bare": calls_of(Nothing()),
        "ours": calls_of(profiled(profilers)),
        "python": calls_of(empty_hooks(always_call=False)),
        "python, always": calls_of(empty_hooks(always_call=True)),
        "our hooks": hooks_alone(times.hooks(0)),
        "their hooks": hooks_alone((before_nothing, after_nothing)),
    }
    each = take_turns(sides, calls=CALLS, rounds=3 if smoke else 301)
    nodes = {
        "bare": chain(lambda node: None),
        "ours": chain(our_node_hooks(times)),
        "python": chain(empty_node_hooks),
    }
    node = take_turns(nodes, calls=NODES, rounds=3 if smoke else 301)
    said = profilers[0].summary().attrs["overhead_ns_per_pair"]
    for profiler in profilers:
        profiler.stop()
    added = {name: each[name] - each["bare"] for name in ("ours", "python", "python, always")}
    on_node = {name: node[name] - node["bare"] for name in ("ours", "python")}
    return [
        Claim("a pair of hooks, added to a forward", added["ours"], "3 us", 3000, "ns", 1),
        Claim("a pair of hooks, added to a forward", added["ours"], "an empty pair in Python",
              added["python"], "ns", 1.5),
        Claim("a pair of hooks, added to a forward", added["ours"], "the same, always called",
              added["python, always"], "ns", 1.2),
        Claim("the two calls alone, with two clocks", each["our hooks"], "an empty pair in Python",
              each["their hooks"], "ns", 2),
        Claim("what it says that a pair costs", said, "what is measured here", added["ours"], "ns",
              1.5),
        Claim("a node, put on, called and timed", on_node["ours"], "an empty pair in Python",
              on_node["python"], "ns", 1.5),
    ]  # fmt: skip
