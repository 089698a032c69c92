"""The recorder and torch.compile.

Hooks that are put on a module after its first compiled call never fire, and hooks that change
Python's state inside a graph make torch compile it again and again. So there are two ways:

- "eager": torch runs everything eagerly while hooks are installed, and they fire as ever.
- "op": hooks that torch traces leave one operator in the graph for each tensor, which writes the
  tensor's digest into its row of an array. Rows are given out while torch traces, in the order of
  the calls, and read when the outermost call, which is not compiled, has ended.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ...core.warnings import warn_once
from .. import torch_ops as _torch_ops
from ..tensor_kinds import has_kernels
from .calls import Calls
from .metadata import digest_text
from .plan import Plan, inert_plan
from .recording import TraceEvent, TraceTensorMeta

_ROWS_A_MODULE = 12
_ROWS_MORE = 64
_DEPTH_MAX = 8  # of nested results inside a graph
_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
_ENVIRONMENT = "setup_compilation_env"  # in which such operators call torch.compile
_UNWRITTEN = -1  # both halves; no digest has them but by a chance of 2**-128


class _Place(NamedTuple):
    """What a row is of."""

    module: int  # index into the recorder's plans
    occurrence: int  # which call of the module in one outermost call
    side: str  # "inputs", "outputs", or "written": the inputs once more, after the call
    path: str
    dtype: str


class _Rows:
    """The rows of one recorder, given out while torch traces."""

    def __init__(self, device: torch.device, capacity: int) -> None:
        with torch.inference_mode(False):  # which could not be written to outside of it
            self.table = torch.full((capacity, 2), _UNWRITTEN, dtype=torch.int64, device=device)
        self.places: dict[_Place, int] = {}
        self._calls: dict[int, int] = {}

    def new_root(self) -> None:
        """Also forgets what was written while nobody listened."""
        self._calls.clear()
        if self.places:
            with torch.no_grad():
                self.table.fill_(_UNWRITTEN)

    def enter(self, module: int) -> None:
        self._calls[module] = self._calls.get(module, -1) + 1

    def row(self, module: int, side: str, path: str, dtype: str) -> int:
        """The last row takes all for which there is no room."""
        place = _Place(module, self._calls.get(module, 0), side, path, dtype)
        return self.places.setdefault(place, min(len(self.places), len(self.table) - 1))


_tables: dict[str, _Rows] = {}  # by the number of the recorder
_numbers = itertools.count()


def _enter(key: str) -> bool:
    """`key`: the number of the recorder and the index of the module, "3/17"."""
    number, module = key.split("/")
    rows = _tables.get(number)
    if rows is not None:
        rows.enter(int(module))
    return rows is not None


def _row(key: str, side: str, path: str, dtype: str) -> int:
    number, module = key.split("/")
    rows = _tables.get(number)
    return 0 if rows is None else rows.row(int(module), side, path, dtype)


# torch calls these while it traces and puts the result into the graph; the mark is what
# torch.compiler.assume_constant_result sets, which would import its compiler.
_enter._dynamo_marked_constant = True  # type: ignore[attr-defined]
_row._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _GraphHooks:
    """The hooks of one module in mode "op": traced in a graph, the usual ones elsewhere."""

    def __init__(self, plan: Plan, key: str, table: torch.Tensor) -> None:
        self.plan = plan
        self.key = key  # text: torch makes variables of numbers that differ between modules
        self.table = table
        options = plan.calls.options if plan.calls is not None and has_kernels(table) else None
        self.inputs = plan.recorded and options is not None and options.record_inputs
        self.outputs = plan.recorded and options is not None and options.record_outputs

    def before(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            self.plan.before(module, args, kwargs, 2)
            return
        _enter(f"{self.key}")  # a text that is put together is a constant to torch
        if self.inputs:
            self.hash_arguments("inputs", args, kwargs)

    def after(self, module: torch.nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.plan.after(module, args, kwargs, output, 2)
            return
        if self.outputs:
            self.hash(output, "outputs", "", 0)
        if self.inputs and self.outputs:
            self.hash_arguments("written", args, kwargs)

    def hash_arguments(self, side: str, args: Any, kwargs: Any) -> None:
        self.hash(args, side, "", -1)
        self.hash(kwargs, side, "", -1)

    def hash(self, value: Any, side: str, path: str, depth: int) -> None:
        """Plain enough for torch to trace."""
        if isinstance(value, torch.Tensor):
            plain = type(value) is torch.Tensor or type(value) is torch.nn.Parameter
            if plain and value.device == self.table.device:
                row = _row(f"{self.key}", side, f"{path}", str(value.dtype))
                torch.ops.my_utils.hash_into(value.detach(), self.table, row)
        elif depth < _DEPTH_MAX:
            prefix = path + "." if path else ""
            if isinstance(value, dict):
                for key, item in value.items():
                    self.hash(item, side, prefix + str(key), depth + 1)
            elif isinstance(value, list | tuple):
                for place, item in enumerate(value):
                    self.hash(item, side, prefix + str(place), depth + 1)

    def __deepcopy__(self, memo: Any) -> _GraphHooks:
        return _inert()

    def __reduce__(self) -> Any:
        return (_inert, ())


def _inert() -> _GraphHooks:
    """Of a module that was copied or loaded: its hooks do nothing."""
    hooks = _GraphHooks.__new__(_GraphHooks)
    hooks.plan = inert_plan()
    hooks.inputs = hooks.outputs = False
    hooks.key = ""
    return hooks


class _Compiler:
    """torch's compiler has one stance and one set of limits for the whole process: the first
    recorder that changes them saves what was there, the last one restores it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._eager = 0  # recorders
        self._stance: Any = None
        self._undo: Callable[[], None] | None = None
        self._graphs = 0  # which all recorders need beyond the limits
        self._limits: dict[str, int] = {}

    def begin_eager(self) -> None:
        with self._lock:
            if self._eager == 0:
                self._stance = torch.compiler.set_stance("force_eager")
                self._undo = self._let_operators_trace()
            self._eager += 1

    def end_eager(self) -> None:
        with self._lock:
            self._eager -= 1
            if self._eager == 0:
                self._stance.__exit__(None, None, None)
                if self._undo is not None:
                    self._undo()

    def _let_operators_trace(self) -> Callable[[], None]:
        """Operators that take functions, as torch.cond, work only if torch's compiler traces these
        functions first, which the stance would prevent. Returns what undoes it."""
        patched = [
            (module, module.__dict__[_ENVIRONMENT])
            for name, module in list(sys.modules.items())
            if name.startswith(("torch._higher_order_ops.", "torch.nn.attention."))
            and _ENVIRONMENT in getattr(module, "__dict__", ())
        ]
        for module, original in patched:
            setattr(module, _ENVIRONMENT, self._without_stance(original))

        def undo() -> None:
            for module, original in patched:
                setattr(module, _ENVIRONMENT, original)

        return undo

    def _without_stance(self, original: Callable[[], Any]) -> Callable[[], Any]:
        @contextlib.contextmanager
        def environment() -> Iterator[Any]:
            with original() as backend:
                if not self._eager:  # a module was imported meanwhile and keeps this
                    yield backend
                    return
                with torch.compiler.set_stance("default"):
                    yield backend

        return environment

    def add_graphs(self, graphs: int) -> None:
        """Raises the limits by so many graphs; a negative number takes them back."""
        from torch._dynamo import config

        with self._lock:
            if self._graphs == 0:
                self._limits = {name: getattr(config, name) for name in _LIMITS}
            self._graphs += graphs
            for name, limit in self._limits.items():
                setattr(config, name, limit + self._graphs)


_compiler = _Compiler()


class Graph:
    """What is done about compiled modules while a recorder is installed."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._mode = calls.options.compiled
        self._compiled: list[str] = []
        self._is_eager = False
        self.forced_eager = False
        self._graphs = 0  # those that the compiler has been asked to allow
        self._number = ""
        self._rows: _Rows | None = None
        self._plans: list[Plan] = []
        self._taken: list[tuple[int, torch.Tensor, list[bool]]] = []

    def begin(self, model: torch.nn.Module, plans: list[Plan], compiled: list[str]) -> None:
        self._compiled = compiled
        self._plans = plans
        if self._mode == "op":
            _torch_ops.register()
            tensors = itertools.chain(model.parameters(), model.buffers())
            device = next((tensor.device for tensor in tensors), torch.device("cpu"))
            self._rows = _Rows(device, _ROWS_A_MODULE * len(plans) + _ROWS_MORE)
            if not has_kernels(self._rows.table):
                warn_once(
                    "forward_trace_no_kernel",
                    f"compiled='op' records nothing inside graphs on {device}, for which there "
                    "is no kernel; compiled='eager' records everything",
                )
            self._number = str(next(_numbers))
            _tables[self._number] = self._rows
            self._calls.root_watchers = (self._rows.new_root, self._take)
        if compiled:
            warn_once(f"forward_trace_{self._mode}", _about(self._mode, compiled))

    def make_hooks(self, plan: Plan) -> tuple[Callable[..., None], Callable[..., None]]:
        if self._rows is None:
            return plan.before, plan.after
        key = f"{self._number}/{self._plans.index(plan)}"
        hooks = _GraphHooks(plan, key, self._rows.table)
        return hooks.before, hooks.after

    def resume(self) -> None:
        if not self._compiled and "torch._dynamo" not in sys.modules:
            return
        if self._mode == "eager":
            _compiler.begin_eager()
            self._is_eager = self.forced_eager = True
        else:
            # Each hooked module needs a separate graph where blocks of one class are compiled one
            # by one; torch would fall back to eager after eight.
            _compiler.add_graphs(2 * len(self._plans))
            self._graphs = 2 * len(self._plans)

    def pause(self) -> None:
        was_eager, self._is_eager = self._is_eager, False
        if was_eager:
            _compiler.end_eager()
        graphs, self._graphs = self._graphs, 0
        if graphs:
            _compiler.add_graphs(-graphs)

    def end(self) -> None:
        self.fetch()
        _tables.pop(self._number, None)
        self._rows = None
        self._calls.root_watchers = None

    # --- what the graphs have written ---

    def _take(self, root: int) -> None:
        """Sets the rows aside that were written in the outermost call that ends."""
        if self._rows is not None and self._rows.places:
            with torch.no_grad():
                training = [plan.module.training for plan in self._plans]
                self._taken.append((root, self._rows.table.clone(), training))

    def fetch(self) -> None:
        """Turns the rows into events."""
        if self._rows is None:
            return
        if not self._taken and not self._calls.roots:
            self._take(-1)  # the outermost call was inside the graph: its last run
        taken, self._taken = self._taken, []
        for root, table, training in taken:
            self._calls.add_compiled(root, self._events(root, table.tolist(), training))

    def _events(
        self, root: int, table: list[list[int]], training: list[bool]
    ) -> Iterable[TraceEvent]:
        rows = self._rows
        events: dict[tuple[int, int], TraceEvent] = {}
        for place, row in rows.places.items() if rows is not None else ():
            low, high = table[row]
            if low == high == _UNWRITTEN:
                continue
            if row == len(table) - 1:
                self._calls.count("graph_rows_full")
                continue
            plan = self._plans[place.module]
            event = events.get((place.module, place.occurrence))
            if event is None:
                event = TraceEvent(-1, plan.name, plan.type_name, root=root, compiled=True)
                event.training = training[place.module]
                events[place.module, place.occurrence] = event
            meta = TraceTensorMeta(
                place.path,
                dtype=place.dtype.removeprefix("torch."),
                device=str(rows.table.device) if rows is not None else "",
                hash=digest_text(low, high),
                hash_kind="tensor",
                layout="unknown",
                note="inside a compiled graph: the shape is not known",
            )
            getattr(event, place.side).append(meta)
        for event in events.values():
            event.written = _changed(event)
        return events.values()


def _changed(event: TraceEvent) -> list[TraceTensorMeta]:
    """The inputs that have other values after the call, and are not what it returned."""
    before = {meta.path: meta.hash for meta in event.inputs}
    given = {meta.hash for meta in event.outputs}
    return [
        meta
        for meta in event.written
        if meta.hash != before.get(meta.path) and meta.hash not in given
    ]


def _about(mode: str, compiled: list[str]) -> str:
    names = ", ".join(repr(name) for name in compiled[:3]) + (", …" if len(compiled) > 3 else "")
    if mode == "eager":
        return (
            f"{len(compiled)} compiled modules ({names}) run eagerly while the forward trace "
            "recorder is installed; compiled='op' keeps them compiled"
        )
    return (
        f"{len(compiled)} modules are compiled ({names}); those that were called already do not "
        "see the hooks of the forward trace recorder: install it before the first call, or call "
        "torch.compiler.reset() first"
    )
