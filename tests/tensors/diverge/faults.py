"""Faults that are planted into a model, and what `diverge` must say of each.

Each takes the model, the calls that a sound one makes, and a random generator; it changes the model
(or the batch) and returns what is right, or None where the model has no place for it.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from my_utils.module_hook import Recording, TraceEvent

__all__ = ["FAULTS", "Right"]

_ACTIVATIONS = {"ReLU": nn.GELU, "GELU": nn.ReLU, "SiLU": nn.ReLU}


@dataclass(frozen=True)
class Right:
    """cause: as `Cause` has it; None where the runs must be the same. module: its name in the sound
    model."""

    cause: str | None
    module: str | None = None


@dataclass
class Case:
    model: nn.Module
    batch: dict[str, torch.Tensor]
    sound: Recording
    choose: random.Random

    @property
    def events(self) -> Sequence[TraceEvent]:
        return self.sound.events

    def module(self, name: str) -> nn.Module:
        return self.model.get_submodule(name)

    def leaves(self) -> list[TraceEvent]:
        """Calls of modules that call no others, and give one float tensor."""
        parents = {event.parent for event in self.events}
        return [
            event
            for event in self.events
            if event.index not in parents
            and [meta.dtype for meta in event.outputs] == ["float32"]
            and event.outputs[0].path == ""
        ]

    def pick(self, events: Sequence[TraceEvent]) -> TraceEvent | None:
        return self.choose.choice(list(events)) if events else None

    def once(self, events: Sequence[TraceEvent]) -> list[TraceEvent]:
        """Those of modules that are called once, so that the name says which call it is."""
        names = [event.module for event in self.events]
        return [event for event in events if names.count(event.module) == 1]


def after(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Changes what the module's own code returns; no hook, so that all hooks see it."""
    forward = module.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(forward(*args, **kwargs))

    module.forward = changed


def own_parameter(case: Case) -> Right | None:
    """Of a module that calls others, which none of those has."""
    found = [
        info.name
        for info in case.sound.modules
        if any(name != "bias" for name in info.params)
        and any(other.name.startswith(f"{info.name}.") for other in case.sound.modules)
        and info.name in {event.module for event in case.events}
    ]
    if not found:
        return None
    name = case.choose.choice(found)
    module = case.module(name)
    local = case.choose.choice(sorted(n for n, p in module._parameters.items() if p is not None))
    with torch.no_grad():
        module._parameters[local].mul_(1.5).add_(0.25)  # type: ignore[union-attr]
    return Right("weights", name)


def leaf_weight(case: Case) -> Right | None:
    names = {info.name: info for info in case.sound.modules}
    shared = [full for info in case.sound.modules for full in info.params.values()]
    found = [
        event
        for event in case.once(case.leaves())
        if any(
            shared.count(full) == 1 for local, full in names[event.module].params.items()
            if local == "weight"
        )
    ]  # fmt: skip
    event = case.pick(found)
    if event is None:
        return None
    with torch.no_grad():
        case.module(event.module).weight.mul_(1.5)  # type: ignore[operator]
    return Right("weights", event.module)


def result(case: Case) -> Right | None:
    event = case.pick(case.once(case.leaves()))
    if event is None:
        return None
    after(case.module(event.module), lambda y: y * 1.001 + 0.001)
    return Right("result", event.module)


def between(case: Case) -> Right | None:
    """The code around a module passes it something else."""
    found = [
        event
        for event in case.once(case.events)
        if event.parent >= 0
        and any((meta.path, meta.dtype) == ("0", "float32") for meta in event.inputs)
    ]
    event = case.pick(found)
    if event is None:
        return None

    def other(module: nn.Module, args: Any) -> Any:
        return (args[0] * 1.001 + 0.001, *args[1:])

    case.module(event.module).register_forward_pre_hook(other)
    return Right("between", case.events[event.parent].module)


def _rename(model: nn.Module, name: str) -> None:
    """The module is registered by another name; the code around it still finds it."""
    parent_name, _, word = name.rpartition(".")
    parent = model.get_submodule(parent_name)
    order = list(parent._modules.items())
    parent._modules.clear()
    for key, module in order:
        parent._modules[f"{key}_renamed" if key == word else key] = module
    object.__setattr__(parent, word, dict(order)[word])


def _renamed(case: Case) -> bool:
    """Renames a module that is called; not in a list, which is indexed."""
    found = [
        event.module
        for event in case.events
        if event.module and not event.module.rpartition(".")[2].isdigit()
        and not isinstance(case.module(event.module.rpartition(".")[0]), nn.Sequential)
    ]  # fmt: skip
    if not found:
        return False
    _rename(case.model, case.choose.choice(found))
    return True


def rename(case: Case) -> Right | None:
    return Right(None) if _renamed(case) else None


def rename_with_a_bug(case: Case) -> Right | None:
    right = result(case)
    return right if _renamed(case) else None


def other_class(case: Case) -> Right | None:
    found = [event for event in case.once(case.leaves()) if _kind(event.type) is not None]
    event = case.pick(found)
    if event is None:
        return None
    parent, _, word = event.module.rpartition(".")
    kind = _kind(event.type)
    assert kind is not None
    around = case.module(parent)
    around._modules[word] = kind()
    return Right("class", event.module)


def _kind(name: str) -> type[nn.Module] | None:
    return next((other for start, other in _ACTIVATIONS.items() if start in name), None)


def mode(case: Case) -> Right | None:
    """One module that drops by a function is in evaluation mode."""
    words = ("Attention", "Scaled")
    found = [event for event in case.once(case.events) if event.type.endswith(words)]
    used = [event for event in found if _drops(case.module(event.module))]
    event = case.pick(used)
    if event is None:
        return None
    case.module(event.module).training = False
    return Right("settings", event.module)


def _drops(module: nn.Module) -> bool:
    """By a function that is told the module's own mode."""
    return "training" in inspect.unwrap(type(module).forward).__code__.co_names


def nan_rows(case: Case) -> Right | None:
    event = case.pick(case.once(case.leaves()))
    if event is None:
        return None

    def change(y: torch.Tensor) -> torch.Tensor:
        y = y.clone()
        y[0] = float("nan")
        return y

    after(case.module(event.module), change)
    return Right("result", event.module)


def in_place(case: Case) -> Right | None:
    """A norm writes to what it was given, after it has computed its result."""
    found = [event for event in case.once(case.leaves()) if "Norm" in event.type]
    event = case.pick(found)
    if event is None:
        return None
    module = case.module(event.module)
    forward = module.forward

    def changed(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        y = forward(x, *args, **kwargs)
        with torch.no_grad():
            x.mul_(1.01)
        return y

    module.forward = changed
    return Right("result", event.module)


class _OtherGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 1.01


def gradient(case: Case) -> Right | None:
    """The backward of a module with weights of its own is wrong."""
    names = {info.name: info for info in case.sound.modules}
    shared = [full for info in case.sound.modules for full in info.params.values()]
    found = [
        event
        for event in case.once(case.leaves())
        if any(shared.count(full) == 1 for full in names[event.module].params.values())
        and event.outputs[0].requires_grad
    ]
    event = case.pick(found)
    if event is None:
        return None
    after(case.module(event.module), _OtherGradient.apply)
    return Right("gradients", event.module)


def inputs(case: Case) -> Right | None:
    name, value = case.choose.choice(sorted(case.batch.items()))
    case.batch[name] = value + 0.5 if value.is_floating_point() else (value + 1) % 64
    return Right("inputs", "")


FAULTS: dict[str, Callable[[Case], Right | None]] = {
    "own parameter": own_parameter,
    "weight of a layer": leaf_weight,
    "result": result,
    "code between": between,
    "rename": rename,
    "rename and a bug": rename_with_a_bug,
    "other class": other_class,
    "evaluation mode": mode,
    "NaN rows": nan_rows,
    "in place": in_place,
    "gradient": gradient,
    "other batch": inputs,
}
