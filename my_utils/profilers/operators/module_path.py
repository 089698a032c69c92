"""Finds the module in which an operator runs, and the line of the user's code that called it,
in the forward and in the backward pass.

Hooks record the current module of each thread; reading it costs the same at any depth. In the
backward pass, each node that autograd runs has the sequence number that it got in the forward pass.
Hooks record which numbers were given out in which module.

>>> import torch
>>> model = torch.nn.Sequential(torch.nn.Linear(2, 2))
>>> seen = []
>>> handle = model[0].register_forward_hook(lambda *_: seen.append(where().text))
>>> with open_module_tracker(model):
...     y = model(torch.ones(1, 2))
>>> seen
['Sequential/Linear[0]/']
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple, Self

import torch
from torch import nn
from torch.utils._traceback import CapturedTraceback

from ...core.public import public
from ...core.reprs import short_repr
from ...core.running_frames import is_running
from ...core.warnings import warn_once

_sequence_nr = torch._C._autograd._get_sequence_nr
_graph_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node

Phase = Literal["forward", "backward", "recompute"]

_MARKS_MAX = 1 << 18  # entries into and exits from modules that are kept, a thread

_HERE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_TORCH = os.path.dirname(torch.__file__)
_STACKS_MAX = 100_000  # forward operators
_FRAMES_SHOWN = 12


@public("my_utils.compare_tool")
@dataclass(frozen=True, slots=True, init=False)
class ModuleInfo:
    """A module around an operator.

    name: its path in the model, "layers.17.attn"; "" for the model itself. type: its class.
    path: the classes of the modules around it and its own, "GPT/Block/Attention".

    `ModuleInfo.current()` returns that of the calling thread. In one that you make, the type is the
    name by default, and `father`, the module around it, gives the path.

    >>> ModuleInfo("attn", "Attention", father=ModuleInfo("GPT")).path
    'GPT/Attention'
    """

    name: str
    type: str
    path: str

    def __init__(
        self,
        name: str,
        type: str | None = None,
        path: str | None = None,
        *,
        father: ModuleInfo | None = None,
    ) -> None:
        if path is not None and father is not None:
            raise TypeError("ModuleInfo() got path and father, which are the same")
        kind = name if type is None else type
        around = f"{father.path}/" if father is not None and father.path else ""
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "type", kind)
        object.__setattr__(self, "path", around + kind if path is None else path)

    @staticmethod
    def current() -> ModuleInfo | None:
        """The innermost tracked module that runs now, forward or backward; None outside of all."""
        return where().info


class Scope:
    """A place in the nesting of calls. `text` goes in front of operators in the log."""

    __slots__ = ("_inner", "info", "owner", "parent", "text")

    def __init__(self, parent: Scope | None, info: ModuleInfo | None, owner: int) -> None:
        self.parent = parent
        self.info = info
        self.owner = owner
        self.text = ""
        if info is not None:
            self.text = f"{info.path}[{info.name}]/" if info.name else f"{info.path}/"
        self._inner: dict[int, Scope] = {}

    def inner(self, owner: int, name: str, type_name: str) -> Scope:
        found = self.known(owner, name, type_name)
        if found is None:
            path = type_name if self.info is None else f"{self.info.path}/{type_name}"
            found = self._inner[owner] = Scope(self, ModuleInfo(name, type_name, path), owner)
        return found

    def known(self, owner: int, name: str, type_name: str) -> Scope | None:
        """The place inside of this one, unless it was that of a module whose id another has now."""
        found = self._inner.get(owner)
        if found is None or found.info is None:
            return None
        return found if (found.info.name, found.info.type) == (name, type_name) else None

    @property
    def name(self) -> str:
        return "" if self.info is None else self.info.name


OUTSIDE = Scope(None, None, 0)


class _Marks:
    """From which sequence number on nodes belong to which place, of one thread."""

    __slots__ = ("numbers", "scopes")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.scopes: list[Scope] = []

    def add(self, number: int, scope: Scope) -> None:
        if self.numbers and self.numbers[-1] >= number:
            self.scopes[-1] = scope  # no node was made in between
            return
        if len(self.numbers) >= _MARKS_MAX:
            half = _MARKS_MAX // 2
            del self.numbers[:half], self.scopes[:half]
        self.numbers.append(number)
        self.scopes.append(scope)

    def find(self, number: int) -> Scope:
        place = bisect_right(self.numbers, number)
        return self.scopes[place - 1] if place else OUTSIDE


class _Call(NamedTuple):
    """A call of a module."""

    scope: Scope
    caller: FrameType  # of torch, which calls the hooks and the module


class _Here(threading.local):
    def __init__(self) -> None:
        self.calls: list[_Call] = []  # those that run, the innermost last
        self.marks = _Marks()


_here = _Here()
_last_marks = _here.marks  # of the thread that last ran a forward pass
_parameters: dict[int, tuple[weakref.ref[Any], Scope]] = {}


def _innermost() -> Scope:
    """The innermost tracked module that runs in this thread, or OUTSIDE. torch calls no hook after
    what is not an Exception, such as a Ctrl-C; calls that it has ended are dropped here."""
    calls = _here.calls
    if not calls:
        return OUTSIDE
    count = len(calls)
    while calls and not is_running(calls[-1].caller):
        calls.pop()
    scope = calls[-1].scope if calls else OUTSIDE
    if len(calls) < count:
        _here.marks.add(_sequence_nr(), scope)
    return scope


def phase() -> Phase:
    """What this thread computes. In a backward pass, what runs in modules is activation
    checkpointing, which computes again."""
    if _graph_task() == -1:
        return "forward"
    return "backward" if _innermost() is OUTSIDE else "recompute"


def where() -> Scope:
    """The place of the calling thread."""
    scope = _innermost()
    if scope is not OUTSIDE or _graph_task() == -1:
        return scope
    node = _node()
    return OUTSIDE if node is None else _of_node(node)


def _of_node(node: Any) -> Scope:
    number = node._sequence_nr()
    if number >= 1 << 63:  # AccumulateGrad has none
        parameter = getattr(node, "variable", None)
        known = _parameters.get(id(parameter))
        return known[1] if known is not None and known[0]() is parameter else OUTSIDE
    marks = _here.marks
    return (marks if marks.numbers else _last_marks).find(number)


def _again(owner: int, name: str, type_name: str) -> Scope:
    """The place of a module that is computed again, which begins in the middle of the nesting: it
    has the name that it had in the forward pass."""
    around: Scope | None = where()
    while around is not None:
        known = around.known(owner, name, type_name)
        if known is not None:
            return Scope(OUTSIDE, known.info, owner)
        around = around.parent
    return OUTSIDE.inner(owner, name, type_name)


# --- stacks ---


class OpStacks:
    """Python's stack at each forward operator that autograd may come back to. `note` takes some
    microseconds; text is made only when it is asked for. For one thread."""

    def __init__(self) -> None:
        self._stacks: OrderedDict[int, Any] = OrderedDict()

    def note(self) -> None:
        """Call it while a forward operator runs: autograd has given it its number already."""
        if not torch.is_grad_enabled():
            return
        number = _sequence_nr() - 1
        if number in self._stacks:
            return
        self._stacks[number] = CapturedTraceback.extract(script=False, cpp=False)
        if len(self._stacks) > _STACKS_MAX:
            self._stacks.popitem(last=False)

    def text(self) -> str:
        """The stack of the operator that runs now; of its forward operator in a backward pass; ""
        if it is not known."""
        if phase() != "backward":
            return _of_users(traceback.extract_stack())
        node = _node()
        known = None if node is None else self._stacks.get(int(node._sequence_nr()))
        return "" if known is None else _of_users(known.summary())


def _of_users(stack: traceback.StackSummary) -> str:
    """The innermost frames outside of torch and of this package."""
    frames = [frame for frame in stack if not frame.filename.startswith((_HERE, _TORCH))]
    return "".join(traceback.format_list(frames[-_FRAMES_SHOWN:])).rstrip()


# --- hooks ---


class _Enter:
    """A copy of a hooked module has a hook that does nothing."""

    def __init__(self, owner: int, name: str, type_name: str) -> None:
        self.owner, self.name, self.type_name = owner, name, type_name

    def __call__(self, module: nn.Module, args: Any) -> None:
        global _last_marks
        if torch.compiler.is_compiling() or self.owner != id(module):
            return
        here, around = _here, _innermost()
        if around is OUTSIDE and _graph_task() != -1:
            scope = _again(self.owner, self.name, self.type_name)
        else:
            scope = around.inner(self.owner, self.name, self.type_name)
        here.calls.append(_Call(scope, sys._getframe(1)))
        here.marks.add(_sequence_nr(), scope)
        _last_marks = here.marks

    def __reduce__(self) -> Any:
        return (type(self), (0, "", ""))


class _Leave(_Enter):
    def __call__(self, module: nn.Module, args: Any, output: Any = None) -> None:
        if torch.compiler.is_compiling() or self.owner != id(module):
            return
        calls = _here.calls
        for place in reversed(range(len(calls))):
            if calls[place].scope.owner == self.owner:
                del calls[place:]
                _here.marks.add(_sequence_nr(), calls[-1].scope if calls else OUTSIDE)
                return


@public("my_utils.compare_tool")
class ModuleTracker:
    """The result of `open_module_tracker`: `close()` removes the hooks. A context manager."""

    def __init__(self, model: nn.Module) -> None:
        self._handles: list[Any] = []
        self._ids: list[int] = []
        for name, module in model.named_modules():
            self._hook(name, module)
        for name, parameter in model.named_parameters():
            self._note(model, name, parameter)

    def __repr__(self) -> str:
        return short_repr(self)

    def _hook(self, name: str, module: nn.Module) -> None:
        hooks = module._forward_pre_hooks.values()
        # A copy has the hooks of its original.
        if any(isinstance(hook, _Enter) and hook.owner == id(module) for hook in hooks):
            return  # another tracker has it
        arguments = (id(module), name, type(module).__qualname__)
        try:
            self._handles.append(module.register_forward_pre_hook(_Enter(*arguments), prepend=True))
            # Checkpointing stops early by an exception, which must not leave its modules open.
            self._handles.append(module.register_forward_hook(_Leave(*arguments), always_call=True))
        except Exception as error:  # as of a module of torch.jit
            warn_once("module_tracker", f"the module {name!r} takes no hooks ({error})")

    def _note(self, model: nn.Module, name: str, parameter: nn.Parameter) -> None:
        scope = OUTSIDE
        for owner_name, module in _modules_on_the_way(model, name):
            scope = scope.inner(id(module), owner_name, type(module).__qualname__)
        _parameters[id(parameter)] = (weakref.ref(parameter), scope)
        self._ids.append(id(parameter))

    def close(self) -> None:
        """Removes the hooks. May be called twice."""
        for handle in self._handles:
            handle.remove()
        for key in self._ids:
            _parameters.pop(key, None)
        self._handles.clear()
        self._ids.clear()
        _innermost()  # what a Ctrl-C has ended holds the inputs of its call

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _modules_on_the_way(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """From the model to the owner of a parameter, without the containers that are never called."""
    yield "", model
    module, so_far = model, ""
    for part in name.split(".")[:-1]:
        module = getattr(module, part)
        so_far = f"{so_far}.{part}" if so_far else part
        if not isinstance(module, nn.ModuleList | nn.ModuleDict):
            yield so_far, module


def open_module_tracker(model: nn.Module) -> ModuleTracker:
    """Lets the comparison tools name the module of `model` in which an operator runs.

    Sets two hooks on each module, which stay until `close()` of what is returned, or to the end of
    a `with` block. Wrap the model first (DDP, `fully_shard`, `torch.compile`). Several models may
    be tracked; one that is already tracked does not change. Forward hooks only, so that in-place
    operators stay allowed; calls from several threads are kept apart. TypeError if `model` is not a
    module.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    >>> tracker = open_module_tracker(model)
    >>> tracker.close()
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {model!r:.100}")
    return ModuleTracker(model)
