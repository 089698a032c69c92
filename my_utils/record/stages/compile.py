"""Timer calls under torch.compile: they vanish by default, so that the graph stays whole.

A call of a C method breaks a compiled graph. `torch.compiler.substitute_in_graph` registers a
stand-in, which Dynamo traces in its place. The stand-ins here do nothing, so the calls vanish. They
are keyed by the method descriptor, so each timer class is registered separately.

`import torch` does not import Dynamo, which takes a second. If Dynamo is loaded, stand-ins are
registered at once. Otherwise a finder registers them when Dynamo is imported; it does nothing for
any other module and removes itself.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Literal

from ... import _core
from ...core.older_torch import trace_substitutes, wrap_objects
from ...core.warnings import warn_once

DYNAMO = "torch._dynamo"
QUIET_METHODS = ("start", "stop", "set_step", "step", "synchronize_and_log")

CompileMode = Literal["vanish", "break"]
TimerClass = type[_core.Timer] | type[_core.NoOpTimer]

_lock = threading.RLock()
_known: dict[TimerClass, bool] = {}  # whether registered with Dynamo; keeps the classes alive
_breaking: dict[TimerClass, TimerClass] = {}
_hooks: dict[type, bool] = {_core.ModuleHook: False}  # whether registered with Dynamo
_handles_registered = False


def vanish(timer_class: TimerClass) -> None:
    """Lets the calls of the class' timers vanish from compiled graphs; one lookup if known."""
    if _known.get(timer_class):
        return
    with _lock:
        _known.setdefault(timer_class, False)
        _register_now_or_later()


def vanish_hooks(*classes: type) -> None:
    """Lets the hooks of module profilers vanish from compiled graphs: `ModuleHook` and `classes`.

    All hooks of a module must be known. Of hooks that were put before others, Dynamo in torch 2.11
    checks one where it traced another.
    """
    with _lock:
        for hook_class in classes:
            _hooks.setdefault(hook_class, False)
        _register_now_or_later()


def _register_now_or_later() -> None:
    dynamo = sys.modules.get(DYNAMO)
    if dynamo is not None and hasattr(dynamo, "substitute_in_graph"):
        _register_all(dynamo)
    elif not any(isinstance(finder, _DynamoFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _DynamoFinder())


def breaking(timer_class: TimerClass) -> Any:
    """A subclass whose calls stay, at the price of graph breaks: it is not registered."""
    with _lock:
        known = _breaking.get(timer_class)
        if known is None:
            body = {
                "__slots__": (),
                "__module__": timer_class.__module__,
                "__qualname__": timer_class.__qualname__,
                "__doc__": timer_class.__doc__,
            }
            known = _breaking[timer_class] = type(timer_class.__name__, (timer_class,), body)
            _breaking[known] = known
        return known


def is_breaking(timer_class: type) -> bool:
    return _breaking.get(timer_class) is timer_class


def _register_all(dynamo: ModuleType) -> None:
    """Registers the stand-ins of all classes that are not registered yet."""
    global _handles_registered
    for timer_class in [known for known, registered in _known.items() if not registered]:
        _known[timer_class] = True
        try:
            _substitute(dynamo, timer_class)
        except Exception as error:
            _warn(error)
    if not _handles_registered:
        _handles_registered = True
        try:
            for base in (_core.Timer, _core.NoOpTimer):  # not a method of every class
                _replace(dynamo, base.__dict__["register_stage"], lambda self, *a, **k: None)
            _register_handles()
        except Exception as error:
            _warn(error)
    for hook_class in [known for known, registered in _hooks.items() if not registered]:
        _hooks[hook_class] = True
        try:
            _register_hook(hook_class)
        except Exception as error:
            _warn(error)


def _warn(error: Exception) -> None:
    warn_once(
        "torch_compile",
        "this version of torch does not let timer calls vanish from compiled functions "
        f"({type(error).__name__}: {error}); they break the graph",
    )


def _substitute(dynamo: ModuleType, timer_class: TimerClass) -> None:
    for name in QUIET_METHODS:
        descriptor = timer_class.__dict__.get(name)
        _replace(dynamo, descriptor, lambda self, *args, **kwargs: None)
    descriptor = timer_class.__dict__.get("time_stage")
    _replace(dynamo, descriptor, lambda self, *args, **kwargs: nullcontext())
    trace_substitutes(timer_class)


def _replace(dynamo: ModuleType, descriptor: object, stand_in: Callable[..., object]) -> None:
    """`stand_in` must be a separate function: Dynamo takes each for one method only."""
    # A method that a subclass wrote in Python is traced as it is.
    if inspect.ismethoddescriptor(descriptor):
        dynamo.substitute_in_graph(descriptor, skip_signature_check=True)(stand_in)


def _register_handles() -> None:
    """For `with handle:` where the handle was made outside.

    Dynamo treats a nullcontext from outside as we want a Stage to be treated, by its exact type.
    """
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables.ctx_manager import NullContextVariable

    def wrap_handle(builder: Any, handle: Any) -> Any:
        if isinstance(handle, _core.Stage) and is_breaking(type(handle.timer)):
            return builder.wrap_user_defined(handle)
        builder.install_guards(GuardBuilder.TYPE_MATCH)
        return NullContextVariable(source=builder.source)

    wrap_objects(wrap_handle, _core.Stage, _core.NoOpStage)


def _no_hook(*args: Any) -> None:
    """What a hook of a module profiler is in a graph."""


def _register_hook(hook_class: type) -> None:
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.variables import UserFunctionVariable

    stand_in: Any = _no_hook

    def wrap_hook(builder: Any, hook: Any) -> Any:
        builder.install_guards(GuardBuilder.TYPE_MATCH)
        return UserFunctionVariable(stand_in)

    wrap_objects(wrap_hook, hook_class)


class _DynamoFinder(importlib.abc.MetaPathFinder):
    """Waits for the import of Dynamo, and has the stand-ins registered right after it."""

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != DYNAMO or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            loader.exec_module = execute
            execute(module)
            with _lock:
                _register_all(module)

        loader.exec_module = exec_module
        return spec
