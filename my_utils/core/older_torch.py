"""Replacements for what the oldest supported torch lacks.

Each function asks torch for what it needs and not for its version. All are thread-safe.

>>> import torch
>>> with torch.profiler.profile() as profile:
...     _ = torch.ones(2)
>>> results = profile.profiler.kineto_results
>>> sorted(map(event_kinds(results), results.events()))
['cpu_op', 'cpu_op', 'cpu_op']
>>> is_python_function(profile.events()[0])
False
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

# --- the events of a profile ---


def is_python_function(event: Any) -> bool:
    """Whether a `FunctionEvent` is a call of Python. torch 2.11 has those in stacks alone, not as
    events."""
    return bool(getattr(event, "is_python_function", False))


def event_kinds(results: Any) -> Callable[[Any], str]:
    """What says of an event of Kineto's results whether it is a "cpu_op" or a "cpu_instant_event",
    as an allocation is; other kinds have other names.

    torch 2.11 does not say, so there the operators are looked up in the tree of the results, which
    takes as long again as reading the events.
    """
    from torch._C._autograd import _KinetoEvent

    ask: Callable[[Any], str] | None = getattr(_KinetoEvent, "activity_type", None)
    return ask or kinds_from_tree(results)


def kinds_from_tree(results: Any) -> Callable[[Any], str]:
    """Like `event_kinds`, on any torch; kinds other than its two are ""."""
    from torch._C._profiler import RecordScope, _EventType
    from torch.autograd.profiler_util import MEMORY_EVENT_NAME, OUT_OF_MEMORY_EVENT_NAME

    # Kernels have their own numbers, which may be those of operators.
    operators = set()
    left = list(results.experimental_event_tree())
    while left:
        node = left.pop()
        left += node.children
        tag, fields = node.typed
        if tag == _EventType.TorchOp and fields.scope != RecordScope.USER_SCOPE:
            operators.add((node.correlation_id, node.start_time_ns))

    def kind(event: Any) -> str:
        if (event.correlation_id(), event.start_ns()) in operators:
            return "cpu_op"
        instant = event.name() in (MEMORY_EVENT_NAME, OUT_OF_MEMORY_EVENT_NAME)
        return "cpu_instant_event" if instant else ""

    return kind


# --- a session of the profiler that another thread stops ---


def close_lost_session(profiler: Any) -> None:
    """Stops a `torch.profiler.profile` that was started in another thread, or did not start; its
    events are lost. torch 2.11 raises there and leaves Kineto running."""
    profiler.on_trace_ready = None
    try:
        profiler.stop()
    except RuntimeError:
        free_kineto()


def free_kineto() -> None:
    """Ends Kineto's session where that is another thread's, for no other one starts in torch 2.11
    until then. A session that this thread opens on top of it and closes ends both."""
    from torch.autograd import profiler as sessions

    session = _plain_session()
    with contextlib.suppress(RuntimeError):  # of torch 2.11, where Kineto runs
        session._prepare_trace()
    try:
        session._start_trace()
        session.__exit__(None, None, None)
    finally:
        sessions._run_on_profiler_stop()


def end_stale_session() -> None:
    """Ends what is left in this thread of a session that another thread stopped, for torch 2.11
    opens none on top of it. Only for callers that know that nothing profiles."""
    from torch._C import _autograd

    if _autograd._profiler_enabled():
        _plain_session()._prepare_trace()  # to end it while Kineto idles is a crash
        _autograd._disable_profiler()


def _plain_session() -> Any:
    from torch.autograd.profiler import profile

    return profile(use_kineto=True)


# --- torch.compile ---


def trace_substitutes(known: type) -> None:
    """Has Dynamo call what `substitute_in_graph` has for methods in C of this class' objects.

    torch 2.11 finds a substitute where the method is called as a function, `C.method(object)`, and
    not in `object.method()`. Objects of subclasses are not affected.
    """
    from torch._dynamo.variables import UserDefinedObjectVariable

    if "is_polyfilled_callable" in UserDefinedObjectVariable.call_method.__code__.co_names:
        return
    from torch._dynamo.guards import GuardBuilder
    from torch._dynamo.side_effects import SideEffects

    variable = _variable_with_substitutes()

    def wrap(builder: Any, value: Any) -> Any:
        builder.install_guards(GuardBuilder.TYPE_MATCH)
        wrapped = variable(value, source=builder.source)
        if not SideEffects.cls_supports_mutation_side_effects(type(value)):
            return wrapped
        return builder.tx.output.side_effects.track_object_existing(value, wrapped)

    wrap_objects(wrap, known)


def wrap_objects(wrap: Callable[[Any, Any], Any], *classes: type) -> None:
    """Has Dynamo take `wrap(builder, object)` as the variable of an object whose type is one of the
    classes: there is no public way to say it."""
    from torch._dynamo.variables.builder import VariableBuilder

    for trace_numpy in (False, True):
        dispatch: dict[object, Any] = VariableBuilder._type_dispatch_impl(trace_numpy)
        dispatch.update(dict.fromkeys(classes, wrap))


@functools.cache
def _variable_with_substitutes() -> Any:
    from torch._dynamo.variables import UserDefinedObjectVariable, UserMethodVariable
    from torch._dynamo.variables.functions import PolyfilledFunctionVariable

    class WithSubstitutes(UserDefinedObjectVariable):
        def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            method: Any = self._maybe_get_baseclass_method(name)
            found: Any = PolyfilledFunctionVariable._get_polyfill_handlers().get(method)
            if found is None:
                return super().call_method(tx, name, args, kwargs)
            substitute = UserMethodVariable(found.__torch_dynamo_polyfill__, self)
            return substitute.call_function(tx, args, kwargs)

    return WithSubstitutes
