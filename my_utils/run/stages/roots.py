"""The modules that a training calls, found without a hook: their classes get a `__call__`.

One scan of what the garbage collector knows finds the modules without a parent that own parameters
to train. A hook on an instance would be copied and pickled with it, and a global one costs on every
module of the model.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.compiler import is_compiling

from ...core.warnings import warn_once

DEEPEST = 3

Begin = Callable[[], bool]
End = Callable[[], None]


def find_modules() -> list[nn.Module]:
    """All modules that the garbage collector can see."""
    # Not isinstance: it asks the object for its __class__, which proxies compute.
    modules = (thing for thing in gc.get_objects() if issubclass(type(thing), nn.Module))
    return [module for module in modules if "_modules" in vars(module)]


def find_parameters() -> Iterator[torch.Tensor]:
    """All parameters to train that the garbage collector can see."""
    return (t for t in gc.get_objects() if type(t) is nn.Parameter and t.requires_grad)


def held(module: nn.Module, name: str) -> Mapping[str, Any]:
    """`_modules`, `_parameters` or `_buffers` of a module, empty where it has none. Asks no method
    or property, as models have their own."""
    inner = vars(module).get("_actual_script_module", module)  # in the shell of torch.jit.trace
    found: Mapping[str, Any] = vars(inner).get(name, {})
    return found


def _children(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in held(module, "_modules").values() if child is not None)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and all below it, each once."""
    found: dict[int, nn.Module] = {}
    rest = [module]
    while rest:
        part = rest.pop()
        if id(part) not in found:
            found[id(part)] = part
            yield part
            rest += _children(part)


def tensors_of(module: nn.Module, name: str) -> Iterator[torch.Tensor]:
    """The `_parameters` or `_buffers` of the module and of all below it."""
    found = itertools.chain.from_iterable(held(part, name).values() for part in _parts(module))
    return (tensor for tensor in found if tensor is not None)


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in tensors_of(module, "_parameters"))


def outermost(modules: list[nn.Module]) -> list[nn.Module]:
    """Those that train and are in no other one."""
    inner = {id(child) for module in modules for child in _children(module)}
    return [module for module in modules if id(module) not in inner and _trains(module)]


def _wrapped(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """What DDP and its like wrap as `module`, which scripts call themselves to evaluate."""
    for module in modules:
        inner = held(module, "_modules").get("module")
        if inner is not None and not held(module, "_parameters"):
            yield inner
            yield from _wrapped([inner])


class Roots:
    """The classes whose calls are forwards. Not thread-safe.

    begin, end: called around each call; `end` only where `begin` returned True.
    """

    def __init__(self, begin: Begin, end: End) -> None:
        self._begin = begin
        self._end = end
        # Of the patched classes the __call__ that they defined, and what they have now.
        self._own: dict[Any, tuple[Any, Any]] = {}
        self._frozen: list[weakref.ref[nn.Module]] = []
        self.level = 0

    def __repr__(self) -> str:
        names = sorted(kind.__name__ for kind in self._own)
        return f"Roots({', '.join(names)}; level {self.level})"

    @property
    def classes(self) -> tuple[type, ...]:
        """What was patched."""
        return tuple(self._own)

    def remember(self) -> None:
        """Keeps the modules that there are, for a scan after `gc.freeze`, which hides them."""
        self._frozen = [weakref.ref(module) for module in find_modules()]

    def scan(self) -> list[nn.Module]:
        """Finds the modules that a training calls, and patches their classes. Returns all."""
        kept = (reference() for reference in self._frozen)
        modules = {id(module): module for module in kept if module is not None}
        modules |= {id(module): module for module in find_modules()}
        level = outermost(list(modules.values()))
        for _ in range(self.level):
            level = [child for module in level for child in _children(module) if _trains(child)]
        self._patch(type(module) for module in [*level, *_wrapped(level)])
        return list(modules.values())

    def descend(self) -> bool:
        """No call was seen: patches the classes one level down as well. False at the deepest."""
        if self.level == DEEPEST:
            return False
        self.level += 1
        self.scan()
        return True

    def _patch(self, classes: Iterable[Any]) -> None:
        for kind in classes:
            if kind is not nn.Module and kind not in self._own:
                own = vars(kind).get("__call__")
                call = _inherited_call(kind, self._begin, self._end) if own is None else (
                    _own_call(own, self._begin, self._end))  # fmt: skip
                try:
                    kind.__call__ = call
                except (AttributeError, TypeError) as error:  # its metaclass forbids that
                    warn_once(
                        f"run_calls:{kind.__qualname__}",
                        f"the calls of {kind.__qualname__} are not recorded: {error}",
                    )
                else:
                    self._own[kind] = own, call

    def restore(self) -> None:
        """Gives all classes back the `__call__` that they had."""
        for kind, (own, call) in self._own.items():
            if vars(kind).get("__call__") is not call:
                continue  # somebody else has replaced it since
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own
        self._own.clear()


def _inherited_call(kind: Any, begin: Begin, end: End) -> Any:
    """Looks up the call of the bases each time, as a class without `__call__` does."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not begin():
            return super(kind, self).__call__(*args, **kwargs)
        try:
            return super(kind, self).__call__(*args, **kwargs)
        finally:
            end()

    return __call__


def _own_call(own: Any, begin: Begin, end: End) -> Any:
    call = own if isinstance(own, FunctionType) else _bound_first(own)

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not begin():
            return call(self, *args, **kwargs)
        try:
            return call(self, *args, **kwargs)
        finally:
            end()

    __call__.__wrapped__ = own  # type: ignore[attr-defined]
    return __call__


def _bound_first(own: Any) -> Any:
    """Calls what a class has as its `__call__` as Python does: a static method or a partial one is
    given the module otherwise than a function is, and an object without `__get__` is not given
    it."""
    bind = getattr(type(own), "__get__", None)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = own if bind is None else bind(own, self, type(self))
        return bound(*args, **kwargs)

    return call
