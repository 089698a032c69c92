"""Decides which modules of a model are recorded, their names, and where parameters are hashed.

A plan is made for each hooked module when the recorder is installed, so that the hooks themselves
need no searches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .nesting import names_above
from .options import TraceOptions
from .recording import ModuleInfo

if TYPE_CHECKING:
    from .calls import Calls

_is_compiling = torch.compiler.is_compiling
_trace = torch._C._get_tracing_state
_count_modes = torch._C._len_torch_dispatch_stack
_mode_of = torch._C._get_dispatch_mode
_PROXY = torch._C._TorchDispatchModeKey.PROXY

_FSDP = frozenset(("FSDPModule", "FullyShardedDataParallel"))


class Slot(NamedTuple):
    """Where a parameter lives. What lives there may be exchanged, as FSDP does."""

    full: str  # its first name in the model
    module: torch.nn.Module
    local: str

    def current(self) -> torch.Tensor | None:
        there = self.module._parameters
        return there[self.local] if self.local in there else None  # noqa: SIM401 - torch.jit's has no get


def _is_recorded(names: Sequence[str], module: torch.nn.Module, options: TraceOptions) -> bool:
    """Whether it passes both of what is to be included and hits no exclusion."""
    include, exclude = options.include_name_regex, options.exclude_name_regex
    if include is not None and not any(map(include.search, names)):
        return False
    if exclude is not None and any(map(exclude.search, names)):
        return False
    if options.include_types and not is_of(module, options.include_types):
        return False
    return not is_of(module, options.exclude_types)


def is_of(module: torch.nn.Module, kinds: Sequence[type | str]) -> bool:
    """Whether the module is of one of the classes, or of names of classes."""
    names = set()
    for cls in type(module).__mro__:
        names |= {cls.__name__, f"{cls.__module__}.{cls.__qualname__}"}
    return any(
        kind in names if isinstance(kind, str) else isinstance(module, kind) for kind in kinds
    )


@dataclass(slots=True, eq=False, repr=False)
class Plan:
    """What the hooks of one module do. A copy of the module, as by deepcopy, gets an inert one."""

    plans: Plans
    calls: Calls | None
    name: str
    type_name: str
    module: torch.nn.Module
    recorded: bool
    params: list[tuple[str, str]]  # own ones: name in the module, full name
    counts: dict[str, int] = field(default_factory=lambda: {"forward": 0, "recompute": 0})
    deferred: list[Slot] = field(default_factory=list)  # own ones that the end of a root hashes
    unit: list[Slot] = field(default_factory=list)  # those that this module's pre-hook hashes

    def before(self, module: torch.nn.Module, args: Any, kwargs: Any, depth: int = 1) -> None:
        """depth: of the function of torch that runs the hook, among the callers."""
        if _is_compiling() or self.calls is None or _trace() is not None:
            return
        if _count_modes() and _mode_of(_PROXY) is not None:
            return  # torch.fx would write down our copies, as torch.jit would
        self.calls.before(self, args, kwargs, sys._getframe(depth))

    def after(
        self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any, depth: int = 1
    ) -> None:
        if _is_compiling() or self.calls is None:
            return
        self.calls.after(self, output, sys._getframe(depth))

    def below(self) -> tuple[list[Slot], list[Slot]]:
        return self.plans.below(self.name)

    def __deepcopy__(self, memo: Any) -> Plan:
        return inert_plan()

    def __reduce__(self) -> Any:
        return (inert_plan, ())


def inert_plan() -> Plan:
    """Of a module that was copied or loaded: its hooks do nothing."""
    plan = Plan.__new__(Plan)
    plan.calls = None
    return plan


class Plans:
    """All modules of the model as it is now."""

    def __init__(self, model: torch.nn.Module, calls: Calls) -> None:
        options = calls.options
        hash_params = options.param_kind != "none"
        self.hooked: list[Plan] = []
        self.infos: list[ModuleInfo] = []
        self._deferred: list[tuple[str, Slot]] = []  # with the owner's name
        self._units: list[tuple[str, Slot]] = []
        self._below: dict[str, tuple[list[Slot], list[Slot]]] = {}
        names = _list_names(model)
        first_names = _first_names(model)
        by_name: dict[str, Plan] = {}
        hashed_below: set[str] = set()
        for module, own_names in names.items():
            recorded = _is_recorded(own_names, module, options)
            if recorded:
                hashed_below.add(own_names[0])
            self.infos.append(_describe_module(module, own_names, first_names, recorded))
            if recorded or module is model or (hash_params and _is_sharded(module)):
                info = self.infos[-1]
                params = list(info.params.items())
                plan = Plan(self, calls, info.name, info.type, module, recorded, params)
                by_name[plan.name] = plan
                self.hooked.append(plan)
        if hash_params:
            self._assign(names, by_name, hashed_below, options.params_at_call)

    def _assign(
        self,
        names: dict[torch.nn.Module, list[str]],
        by_name: dict[str, Plan],
        hashed_below: set[str],
        at_call: bool,
    ) -> None:
        """Says for each parameter where it is hashed."""
        sharded = {name: plan for name, plan in by_name.items() if _is_sharded(plan.module)}
        seen: set[str] = set()
        for info, module in zip(self.infos, names, strict=True):
            above = [info.name, *names_above(info.name)]
            if hashed_below.isdisjoint(above):
                continue
            plan = by_name.get(info.name)
            unit = next((sharded[name] for name in above if name in sharded), None)
            for local, full in info.params.items():
                slot = Slot(full, module, local)
                # ZeRO-3 marks its parameters so, and accelerate the modules that it offloads.
                is_gathered = hasattr(slot.current(), "ds_id") or hasattr(module, "_hf_hook")
                now = unit is not None or at_call or is_gathered
                if full not in seen:
                    seen.add(full)
                    (self._units if now else self._deferred).append((info.name, slot))
                    if unit is not None:
                        unit.unit.append(slot)
                if plan is not None and unit is None:
                    (plan.unit if now else plan.deferred).append(slot)

    def below(self, name: str) -> tuple[list[Slot], list[Slot]]:
        """The slots of the parameters at and below a module: deferred ones, and those of units."""
        known = self._below.get(name)
        if known is None:
            deferred, units = (
                [slot for owner, slot in slots if name == owner or name in names_above(owner)]
                for slots in (self._deferred, self._units)
            )
            known = self._below[name] = deferred, units
        return known


def _list_names(model: torch.nn.Module) -> dict[torch.nn.Module, list[str]]:
    """The names of each module, the first one first."""
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    return names


def _first_names(model: torch.nn.Module) -> dict[int, str]:
    """By id, of parameters and buffers."""
    names: dict[int, str] = {}
    for name, param in model.named_parameters():
        names.setdefault(id(param), name)
    for name, buffer in model.named_buffers():
        names.setdefault(id(buffer), name)
    return names


def _describe_module(
    module: torch.nn.Module, names: list[str], first_names: dict[int, str], recorded: bool
) -> ModuleInfo:
    return ModuleInfo(
        names[0],
        type(module).__qualname__,
        names[1:],
        {n: first_names[id(p)] for n, p in module._parameters.items() if p is not None},
        {n: first_names[id(b)] for n, b in module._buffers.items() if b is not None},
        recorded,
        compiled=is_compiled(module),
    )


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the module was compiled, by torch.compile(module) or by module.compile()."""
    wrapped = any(cls.__name__ == "OptimizedModule" for cls in type(module).__mro__)
    return wrapped or module._compiled_call_impl is not None


def _is_sharded(module: torch.nn.Module) -> bool:
    """Whether the parameters below it have their values during its calls only."""
    return any(cls.__name__ in _FSDP for cls in type(module).__mro__)
