"""Patches torch for the stages of a run.

What Dynamo may trace is a Python function that begins with `is_compiling()`, which is a constant in
a graph. What only eager code calls is a `StageCall` in C, which has no Python frame.

Every patch has an undo; `Patches.remove` calls them all, the newest first.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.compiler import is_compiling

from ... import _core
from ...core.environment import read_switch
from ..environment import GPU_TIMES
from . import names
from .batches import LoaderUses
from .late_imports import when_imported
from .meetings import Meetings, as_method, destroy_call, method_calls, recorded_operators, wait_call

_MEETS = (
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object"),
    *("all_gather_single", "all_reduce", "all_reduce_coalesced", "all_to_all"),
    *("all_to_all_single", "barrier", "broadcast", "broadcast_object_list", "gather"),
    *("gather_object", "monitored_barrier", "reduce", "reduce_scatter", "reduce_scatter_single"),
    *("reduce_scatter_tensor", "scatter", "scatter_object_list"),
)
_PASSES_ON = ("irecv", "isend", "recv", "recv_object_list", "send", "send_object_list")
_SHARDS_SOUGHT = 8


class Listener:
    """What the patches tell, beside the stages. The methods must not raise."""

    def stepped(self, optimizer: object) -> None:
        """An optimizer has stepped, or a GradScaler has skipped its step."""

    def loaded(self, iterator: object, batch: object) -> None:
        """A loader has given a batch."""

    def exhausted(self) -> None:
        """A loader has no more; the stage in which it was asked is still open."""

    def met(self, stage: str, kind: str, group: object) -> None:
        """The script has called what waits for the ranks of `group` (None: for all) in the stage
        "collective" or "checkpoint"; kind is "collective", "pipeline" or "clip"."""

    def saved(self, file: object) -> None:
        """A checkpoint was saved: into a file, whose path or which itself is passed."""

    def restored(self, file: object) -> None:
        """The same of one that was loaded."""

    def joined(self, ns: int) -> None:
        """A process group was made, and took so long."""

    def compiled(self, ns: int) -> None:
        """Dynamo has compiled something, and took so long."""

    def freezes(self) -> None:
        """gc.freeze will hide all objects from a scan."""


class Patches:
    """All patches of torch for one RunStages. meetings: what records collectives, None for nothing.

    A function that is patched stays patched until `remove`, in the modules that torch keeps it in.
    """

    def __init__(
        self, stages: _core.RunStages, listener: Listener, meetings: Meetings | None
    ) -> None:
        self._stages = stages
        self._listener = listener
        self._meetings = meetings
        self._uses = LoaderUses(stages)
        self._undo: list[Callable[[], object]] = []
        self._removed = False

    def apply(self) -> None:
        """Patches what is imported, and the rest when it is."""
        self._optimizers()
        self._backward()
        self._file(torch.serialization, "save", "f", torch)
        self._file(torch.serialization, "load", "f", torch)
        self._freeze()
        self._transfers()
        when_imported("torch.amp.grad_scaler", self._late(self._scaler))
        when_imported("torch.utils.data.dataloader", self._late(self._loader))
        when_imported("torch.distributed", self._late(self._collectives))
        when_imported("torch.distributed._functional_collectives", self._late(self._functional))
        when_imported("torch.nn.utils.clip_grad", self._late(self._clipping))
        when_imported("torch.distributed.checkpoint", self._late(self._distributed_checkpoints))
        when_imported("safetensors.torch", self._late(self._safetensors))
        for package in ("lightning.fabric", "lightning_fabric"):
            when_imported(f"{package}.plugins.io.torch_io", self._late(self._lightning))
        when_imported("torch._dynamo.callback", self._late(self._compiling))
        for module, kind in (("arrow", "Dataset"), ("iterable", "IterableDataset")):
            when_imported(f"datasets.{module}_dataset", self._late(self._iterated(kind, "iter")))
        when_imported("webdataset.pipeline", self._late(self._iterated("DataPipeline")))
        when_imported("ray.data.iterator", self._late(self._iterated("_IterableFromIterator")))

    def remove(self) -> None:
        """Takes all patches back."""
        self._removed = True
        while self._undo:
            self._undo.pop()()

    # --- how ---

    def _late(self, patch: Callable[[Any], None]) -> Callable[[Any], None]:
        """An import must not fail because of us."""

        def quiet(module: Any) -> None:
            if not self._removed:
                try:
                    patch(module)
                except Exception as error:
                    names.warn_of_patch(module.__name__, error)

        return quiet

    def _set(self, owner: Any, name: str, value: Any) -> None:
        old = vars(owner).get(name, self)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name) is not value:
                return  # somebody else has replaced it since
            if old is self:
                delattr(owner, name)
            else:
                setattr(owner, name, old)

        self._undo.append(undo)

    def _in_c(self, owner: Any, name: str, stage: int, *others: Any, **options: str) -> None:
        """A function that only eager code calls. others: modules that show it as well."""
        function = getattr(owner, name, None)
        if function is not None:
            call = _core.StageCall(function, self._stages, stage, **options)
            self._set_all(name, call, owner, *others)

    def _file(self, owner: Any, name: str, parameter: str, *others: Any) -> None:
        """A function that saves or loads a file, whose path, or which itself, is the parameter."""
        function = getattr(owner, name, None)
        if function is not None:
            stage, _ = self._saves_or_loads(name)
            call = _core.StageCall(function, self._stages, stage)
            noted = self._noted(call, name, _place(function, parameter), parameter)
            self._set_all(name, noted, owner, *others)

    def _saves_or_loads(self, name: str) -> tuple[int, Callable[[object], None]]:
        if "save" in name:
            return names.CHECKPOINT, self._listener.saved
        return names.RESTORE, self._listener.restored

    def _noted(self, function: Any, name: str, place: int, *parameters: str) -> Any:
        """Says which file the function has saved or loaded: the argument at that place, or the
        first of these parameters that is passed."""
        _, note = self._saves_or_loads(name)

        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if not is_compiling():
                named = (kwargs[one] for one in parameters if kwargs.get(one) is not None)
                note(args[place] if place < len(args) else next(named, None))
            return result

        return noted

    def _make_scriptable(self, function: Any, operator: str) -> None:
        """torch.jit.script knows an operator by the id of its function. The table is made late,
        from the list."""
        from torch.jit import _builtins

        known = function, operator
        _builtins._builtin_ops.append(known)
        if _builtins._builtin_table is not None:
            _builtins._builtin_table[id(function)] = operator

        def undo() -> None:
            _builtins._builtin_ops.remove(known)
            if _builtins._builtin_table is not None:
                _builtins._builtin_table.pop(id(function), None)

        self._undo.append(undo)

    def _set_all(self, name: str, value: Any, owner: Any, *others: Any) -> None:
        """In a module, and in others that show the same function."""
        function = getattr(owner, name)
        for place in (owner, *others):
            if getattr(place, name, None) is function:
                self._set(place, name, value)

    # --- what ---

    def _optimizers(self) -> None:
        from torch.optim import optimizer as module

        begin, end, stepped = self._stages.begin_step, self._stages.end_step, self._listener.stepped

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling():
                return
            begin(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            if is_compiling():
                return
            if end(optimizer):
                stepped(optimizer)

        for handle in (
            module.register_optimizer_step_pre_hook(before),
            module.register_optimizer_step_post_hook(after),
        ):
            self._undo.append(handle.remove)

    def _scaler(self, module: Any) -> None:
        begin, end, stepped = self._stages.begin_step, self._stages.end_step, self._listener.stepped
        step = module.GradScaler.step

        @functools.wraps(step)
        def timed(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return step(self, optimizer, *args, **kwargs)
            begin(self)
            try:
                return step(self, optimizer, *args, **kwargs)
            finally:
                if end(self):
                    stepped(optimizer)

        self._set(module.GradScaler, "step", timed)

    def _backward(self) -> None:
        self._in_c(torch.autograd, "backward", names.BACKWARD)  # Tensor.backward calls it
        self._make_scriptable(torch.autograd.backward, "aten::backward")
        # autograd.grad is traced by Dynamo, and what it calls is not.
        self._in_c(
            torch.autograd, "_engine_run_backward", names.BACKWARD, keyword="accumulate_grad"
        )

    def _loader(self, module: Any) -> None:
        begin, end, loaded = self._stages.begin, self._stages.end, self._listener.loaded
        uses, exhausted = self._uses, self._listener.exhausted
        following = module._BaseDataLoaderIter.__next__

        @functools.wraps(following)
        def timed(self: Any) -> Any:
            if is_compiling():
                return following(self)
            dataset = getattr(self, "_dataset", None)
            stage = uses.stage_of(self, dataset)
            if not begin(stage):
                return following(self)
            try:
                batch = following(self)
            except StopIteration:
                exhausted()
                raise
            finally:
                end()
                uses.ended()
            uses.loaded(self, dataset)
            if stage == names.INPUT:
                loaded(self, batch)
            return batch

        self._set(module._BaseDataLoaderIter, "__next__", timed)

    def _iterated(self, name: str, *others: str) -> Callable[[Any], None]:
        """A class whose `__iter__`, and other methods, give batches or samples."""

        def patch(module: Any) -> None:
            kind = getattr(module, name, None)
            for method in ("__iter__", *others):
                iterate = vars(kind).get(method) if isinstance(kind, type) else None
                if iterate is not None:
                    self._set(kind, method, self._iterator(iterate))

        return patch

    def _iterator(self, iterate: Any) -> Any:
        begin, end, uses = self._stages.begin, self._stages.end, self._uses
        exhausted = self._listener.exhausted

        @functools.wraps(iterate)
        def timed(*args: Any, **kwargs: Any) -> Iterator[Any]:
            items = iterate(*args, **kwargs)
            while True:
                began = begin(uses.stage_of(items, args[0]))
                try:
                    item = next(items)
                except StopIteration:
                    if began:
                        exhausted()
                    return
                finally:
                    if began:
                        end()
                        uses.ended()
                if began:
                    uses.loaded(items, args[0])
                yield item

        return timed

    def _transfers(self) -> None:
        """Before the first use of CUDA no call changes the device."""
        try:
            if torch.cuda.is_initialized():
                self._begin_cuda()
            else:
                torch.cuda._lazy_call(self._begin_cuda)
        except (AttributeError, RuntimeError, AssertionError) as error:
            names.warn_of_patch("torch.cuda", error)

    def _begin_cuda(self) -> None:
        if not self._removed:
            try:
                self.transfers()
                if read_switch(GPU_TIMES, default=True):
                    self._stages.use_cuda()
            except Exception as error:
                names.warn_of_patch("torch.cuda", error)

    def transfers(self) -> None:
        """Patches `Tensor.to` and `Tensor.cuda`."""
        for name in ("to", "cuda"):
            self._set(torch.Tensor, name, _transfer(name, self._stages))

    def _collectives(self, module: Any) -> None:
        if not module.is_available():
            return
        c10d = module.distributed_c10d
        for kind, calls in (("collective", _MEETS), ("pipeline", _PASSES_ON)):
            wrap = functools.partial(self._meeting, stage=names.COLLECTIVE, kind=kind)
            for name in calls:
                self._collective(module, name, wrap)
        self._collective(module, "batch_isend_irecv", self._batch)
        self._collective(module, "init_process_group", self._joining)
        work, meetings = c10d.Work, self._meetings
        if meetings is not None:
            for name, call in method_calls(meetings, c10d.ProcessGroup).items():
                self._set(c10d.ProcessGroup, name, call)
            self._set(work, "wait", wait_call(meetings, work.wait))
            forgetting = functools.partial(destroy_call, meetings)
            self._collective(module, "destroy_process_group", forgetting)
        self._set(work, "wait", self._wait(work.wait))

    def _joining(self, function: Any) -> Any:
        joined = self._listener.joined

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_ns = time.monotonic_ns()
            try:
                return function(*args, **kwargs)
            finally:
                joined(time.monotonic_ns() - began_ns)

        return timed

    def _functional(self, module: Any) -> None:
        if self._meetings is not None:
            for operator, kind in recorded_operators(self._meetings):
                self._undo.append(functools.partial(setattr, operator, "__class__", type(operator)))
                operator.__class__ = kind

    def _wait(self, wait: Any) -> Any:
        begin, end = self._stages.begin, self._stages.end

        @functools.wraps(wait)
        def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not begin(names.COLLECTIVE):
                return wait(self, *args, **kwargs)
            try:
                return wait(self, *args, **kwargs)
            finally:
                end()

        return as_method("wait", timed)

    def _collective(self, module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        function = getattr(module.distributed_c10d, name, None)
        if function is None:
            return
        self._set_all(name, wrap(function), module.distributed_c10d, module)

    def _batch(self, batch: Any) -> Any:
        """Sends and receives, each of which has its group."""
        begin, end, met = self._stages.begin, self._stages.end, self._listener.met

        @functools.wraps(batch)
        def timed(p2p_op_list: Any) -> Any:
            if is_compiling() or not begin(names.COLLECTIVE):
                return batch(p2p_op_list)
            try:
                works = batch(p2p_op_list)
            finally:
                end()
            for group in {operation.group for operation in p2p_op_list}:
                met("collective", "pipeline", group)
            return works

        return timed

    def _meeting(self, function: Any, stage: int, kind: str, group: str = "group") -> Any:
        """group: the name of the parameter that has the process group."""
        begin, end, met = self._stages.begin, self._stages.end, self._listener.met
        name = names.STAGES[stage]
        place = _place(function, group)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not begin(stage):
                return function(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                end()
                met(name, kind, args[place] if place < len(args) else kwargs.get(group))

        return timed

    def _clipping(self, module: Any) -> None:
        """The norm of gradients that are in shards is a collective, which nobody sees called."""
        clip = module.clip_grad_norm_
        begin, end, met = self._stages.begin, self._stages.end, self._listener.met

        @functools.wraps(clip)
        def timed(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return clip(parameters, *args, **kwargs)
            if not isinstance(parameters, torch.Tensor):
                parameters = list(parameters)  # it may be a generator
            mesh = _mesh_of_shards(parameters)
            if mesh is None or not begin(names.COLLECTIVE):
                return clip(parameters, *args, **kwargs)
            try:
                return clip(parameters, *args, **kwargs)
            finally:
                end()
                met("collective", "clip", mesh.get_group() if mesh.ndim == 1 else None)

        self._set_all("clip_grad_norm_", timed, module, torch.nn.utils)

    def _distributed_checkpoints(self, module: Any) -> None:
        """Ranks agree on what each writes or reads. An asynchronous save does so in a separate
        thread."""
        saver, loader = module.state_dict_saver, module.state_dict_loader
        self._file(saver, "async_save", "checkpoint_id", module)
        for owner, name in (
            (saver, "save"), (saver, "save_state_dict"),
            (loader, "load"), (loader, "load_state_dict"),
        ):  # fmt: skip
            function = getattr(owner, name, None)
            if function is not None:
                stage, _ = self._saves_or_loads(name)
                timed = self._meeting(function, stage, "collective", "process_group")
                storage = "storage_writer" if owner is saver else "storage_reader"
                noted = self._noted(timed, name, sys.maxsize, "checkpoint_id", storage)
                self._set_all(name, noted, owner, module)

    def _safetensors(self, module: Any) -> None:
        for name in ("save_file", "load_file", "save_model", "load_model"):
            self._file(module, name, "filename")

    def _lightning(self, module: Any) -> None:
        """Which gives torch.save a buffer, and then writes the file itself."""
        self._file(module.TorchCheckpointIO, "save_checkpoint", "path")

    def _compiling(self, module: Any) -> None:
        handler, compiled = module.callback_handler, self._listener.compiled
        began_ns = 0  # of the outermost one, which is the only one that is told

        def starts(_: object) -> None:
            nonlocal began_ns
            began_ns = time.monotonic_ns()

        def ends(_: object) -> None:
            compiled(time.monotonic_ns() - began_ns)

        handler.register_start_callback(starts)
        handler.register_end_callback(ends)

        def undo() -> None:
            with contextlib.suppress(ValueError):  # somebody else has removed them since
                handler.remove_start_callback(starts)
                handler.remove_end_callback(ends)

        self._undo.append(undo)

    def _freeze(self) -> None:
        freeze, freezes = gc.freeze, self._listener.freezes

        @functools.wraps(freeze)
        def scanned() -> None:
            freezes()
            freeze()

        self._set(gc, "freeze", scanned)


def _place(function: Any, parameter: str) -> int:
    """Where a parameter is if it is passed by position; beyond all where it cannot be."""
    known = list(inspect.signature(function).parameters.values())
    by_position = [one.name for one in known if one.kind is not one.KEYWORD_ONLY]
    return by_position.index(parameter) if parameter in by_position else sys.maxsize


def _mesh_of_shards(parameters: Any) -> Any:
    """The device mesh of the first parameter that is in shards; None if none of the first few
    does, for a model has thousands."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    if kind is None:
        return None
    several = [parameters] if isinstance(parameters, torch.Tensor) else parameters[:_SHARDS_SOUGHT]
    return next((one.device_mesh for one in several if isinstance(one, kind)), None)


def _transfer(name: str, stages: _core.RunStages) -> Any:
    """`Tensor.to` or `Tensor.cuda`; a stage where the device changes."""
    function = getattr(torch.Tensor, name)
    begin, end, forget = stages.begin, stages.end, stages.forget
    has_torch_function = torch.overrides.has_torch_function_unary
    handle = torch.overrides.handle_torch_function

    @functools.wraps(function)
    def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return function(self, *args, **kwargs)
        if has_torch_function(self):
            # The handler compares with torch.Tensor.to, which is this function.
            return handle(timed, (self,), self, *args, **kwargs)
        if not begin(names.H2D):
            return function(self, *args, **kwargs)
        moved = False
        try:
            result = function(self, *args, **kwargs)
            moved = result.device != self.device
        finally:
            if moved:
                end()
            else:
                forget()
        return result

    return timed
