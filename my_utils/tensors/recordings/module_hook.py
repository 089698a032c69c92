"""Records the inputs and outputs of each module of a model, to compare two runs.

    from my_utils.module_hook import ForwardTraceRecorder

    with ForwardTraceRecorder(model) as recorder:
        model(x)
    recorder.save("forward_trace.pt")

`python -m my_utils diverge A.pt B.pt` then names the first module at which two recordings part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from ...core.aliases import renamed_parameters
from ...core.arguments import check_str
from ...core.extras import needs_torch
from ...core.public import public
from ...core.ranks import rank_path
from ...core.reprs import short_repr
from ...core.warnings import warn_once
from .recording import (
    ModuleInfo,
    Recording,
    RootCall,
    TraceEvent,
    load_recording,
    save_recording,
)

with needs_torch("my_utils.module_hook"):
    import torch

    from .calls import Calls
    from .graph import Graph
    from .metadata import HashKind
    from .options import CompiledMode, ParamsAt, TraceOptions
    from .plan import Plan, Plans, is_compiled
    from .sample import SampleMode


@public("my_utils.module_hook")
class ForwardTraceRecorder:
    """Records the calls of a model's modules in the order in which they run.

    Parameters (all but `model` and `name` by keyword):

    model: the module whose calls, and those of the modules below it, are recorded. Wrap it first
        (DDP, `fully_shard`, `torch.compile`), then make and install the recorder.
    name: goes into the file.
    record_inputs, record_outputs: whether the arguments and the results of each call are recorded.
    include_name_regex, exclude_name_regex: `re.search` in the names of a module ("" is the model
        itself; a shared module has several); the first must be found in one of them, the second in
        none.
    include_types, exclude_types: classes, or names of classes, one or several of them.
    sample_mode: "none" keeps no values, "head" the first elements, "rand" elements from all over
        the tensor, the same ones in each run and on each device.
    sample_max_elems: elements of each tensor; None takes all of them.
    record_param_dtypes, record_buffer_dtypes: the dtypes of each module's own parameters and
        buffers at each call.
    record_param_md5, record_buffer_md5: their MD5, as of `hashlib` over the row-major bytes.
    record_param_hash, record_buffer_hash: their tensor hash instead, which costs a tenth.
    hash: of inputs, outputs and gradients: "tensor" (`my_utils.tensors.tensor_hash`), "md5", or
        "none".
    stats: whether count, min, max, mean, std, norms, zeros, NaN and Inf are recorded for them.
    record_grads: the gradients that arrive at the tensors of each call, and at the parameters.
    params_at: when parameters get their MD5 or hash. "end": together when the outermost call has
        ended; one that was written to meanwhile is reported as changed. "call": in each module's
        pre-hook, which costs more and is exact whatever is written. "auto": "end" for MD5, "call"
        for tensor hashes.
    compiled: "eager" runs compiled modules eagerly while the recorder is installed, so that all
        hooks fire; "op" puts `torch.ops.my_utils.hash_into` into the graphs instead (tensor hashes
        of inputs and outputs only).
    max_pending_bytes: room for copies of tensors whose MD5 is still to be taken, for the CPU and
        for CUDA each. Larger tensors are hashed at once.
    seed: of `sample_mode="rand"`.

    Digests are of the values at the time of the call: inputs and buffers before it, outputs after
    it. On CUDA they are taken on the current stream and fetched when they are asked for; nothing
    waits for the device before that.

    An error inside the recorder does not reach the training: it is one warning, a count, and the
    `error` of the event. TypeError and ValueError are raised for wrong arguments only.
    Calls from several threads are recorded, too.

    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
    ...     _ = model(torch.ones(1, 2))
    >>> [(event.module, event.type, event.outputs[0].shape) for event in recorder.events]
    [('', 'Sequential', (1, 3)), ('0', 'Linear', (1, 3)), ('1', 'ReLU', (1, 3))]
    >>> recorder.events[2].inputs[0].hash == recorder.events[1].outputs[0].hash
    True
    >>> sorted(recorder.roots[0].weights)
    ['0.bias', '0.weight']
    """

    @renamed_parameters(
        {
            "cast_float32": (False, "values and hashes are of the tensors as they are"),
            "save_stats_only": (False, "sample_mode='none' keeps no values, stats=True figures"),
            "max_modules": (None, "include_name_regex and include_types choose modules"),
            "verbose": (False, "snapshot().modules has the modules that are recorded"),
            "record_param_md5_per_param": (True, "record_param_md5 takes one of each parameter"),
            "record_buffer_md5_per_buffer": (True, "record_buffer_md5 takes one of each buffer"),
        },
        include_module_types="include_types",
        exclude_module_types="exclude_types",
        sample_seed="seed",
        record_param_dtypes_each_call="record_param_dtypes",
        record_buffer_dtypes_each_call="record_buffer_dtypes",
        record_param_md5_each_call="record_param_md5",
        record_buffer_md5_each_call="record_buffer_md5",
    )
    def __init__(
        self,
        model: torch.nn.Module,
        name: str = "forward_trace",
        *,
        record_inputs: bool = True,
        record_outputs: bool = True,
        include_name_regex: str | None = None,
        exclude_name_regex: str | None = None,
        include_types: type | str | Iterable[type | str] | None = None,
        exclude_types: type | str | Iterable[type | str] | None = None,
        sample_mode: SampleMode = "none",
        sample_max_elems: int | None = 1024,
        record_param_dtypes: bool = False,
        record_buffer_dtypes: bool = False,
        record_param_md5: bool = False,
        record_buffer_md5: bool = False,
        record_param_hash: bool = False,
        record_buffer_hash: bool = False,
        hash: HashKind = "tensor",
        stats: bool = False,
        record_grads: bool = False,
        params_at: ParamsAt = "auto",
        compiled: CompiledMode = "eager",
        max_pending_bytes: int = 256 << 20,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, not {model!r:.100}")
        self._options = TraceOptions.of(locals())
        self.model = model
        self.name = check_str("name", name)
        self._calls = Calls(self._options)
        self._plans: Plans | None = None
        self._infos: list[ModuleInfo] = []
        self._handles: list[Any] = []
        self._graph = Graph(self._calls)

    def __repr__(self) -> str:
        return short_repr(self, "name", "installed", "recording")

    # --- hooks on and off ---

    @property
    def installed(self) -> bool:
        """Whether its hooks are on the model."""
        return self._plans is not None

    @property
    def recording(self) -> bool:
        """Whether calls are recorded now: installed, and not paused."""
        return bool(self._handles)

    def install(self) -> ForwardTraceRecorder:
        """Another name for `start`."""
        return self.start()

    def remove(self) -> None:
        """Another name for `stop`."""
        self.stop()

    def start(self) -> ForwardTraceRecorder:
        """Puts the hooks on the modules and begins to record; returns the recorder.

        What was recorded before stays. Starting twice is a warning.
        """
        if self._plans is not None:
            warn_once("forward_trace_installed", "the forward trace recorder is installed already")
            return self
        self._plans = Plans(self.model, self._calls)
        self._infos = self._plans.infos
        compiled = [name for name, item in self.model.named_modules() if is_compiled(item)]
        self._graph.begin(self.model, self._plans.hooked, compiled)
        self.resume()
        return self

    def stop(self) -> None:
        """Takes all hooks off again. What was recorded stays; stopping twice does nothing."""
        if self._plans is None:
            return
        was_recording = self.recording
        self.pause()
        self._calls.release()
        self._graph.end()  # which adds the calls inside graphs
        self._plans = None
        if was_recording and not (self._calls.roots or self._calls.events):
            warn_once(
                "forward_trace_empty",
                "the forward trace recorder was removed before it saw any call; install it on the "
                "module that is called, and after torch.compile",
            )

    def pause(self) -> None:
        """Stops recording until `resume`. The hooks are removed, so that the recorder costs
        nothing; call it between two steps."""
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._calls.unwatch()
        self._graph.pause()

    def resume(self) -> None:
        """Continues after `pause`. Warns if the recorder is not installed."""
        if self._plans is None:
            warn_once("forward_trace_resume", "resume() of a recorder that is not installed")
        elif not self._handles:
            for plan in self._plans.hooked:
                self._hook(plan)
            if self._options.record_grads:
                recorded = [info for info in self._plans.infos if info.recorded]
                names = {full for info in recorded for full in info.params.values()}
                self._calls.watch_params(self.model, names)
            self._graph.resume()

    def _hook(self, plan: Plan) -> None:
        try:
            before, after = self._graph.make_hooks(plan)
            self._handles += (
                plan.module.register_forward_pre_hook(before, with_kwargs=True),
                plan.module.register_forward_hook(after, with_kwargs=True, always_call=True),
            )
        except Exception as error:  # as of a module of torch.jit
            self._calls.count("not_hooked")
            warn_once(
                "forward_trace_not_hooked",
                f"the module {plan.name!r} takes no hooks and is not recorded ({error})",
            )

    def __enter__(self) -> ForwardTraceRecorder:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # --- what was recorded ---

    @property
    def events(self) -> list[TraceEvent]:
        """The calls so far, in the order in which they began, in a new list. Waits for CUDA where
        it was used."""
        self._fetch()
        return list(self._calls.events)

    @property
    def roots(self) -> list[RootCall]:
        """The outermost calls so far, each with the digests of its weights."""
        self._fetch()
        return self._calls.roots

    def _fetch(self) -> None:
        self._graph.fetch()
        self._calls.fetch()

    def clear(self) -> None:
        """Deletes the records, for example after a `save` in a long run."""
        self._graph.fetch()
        self._calls.clear()
        for plan in self._plans.hooked if self._plans is not None else ():
            plan.counts = dict.fromkeys(plan.counts, 0)

    def snapshot(self, extra: Any = None) -> Recording:
        """All records as one object, like the result of `load`. Waits for CUDA where it was
        used."""
        self._fetch()
        calls = self._calls
        return Recording.of_this_rank(
            self.name,
            settings={**self._options.settings(), "forced_eager": self._graph.forced_eager},
            modules=list(self._infos),
            roots=list(calls.roots),
            events=list(calls.events),
            param_grads=list(calls.param_grads),
            counts=dict(calls.counts),
            extra=extra,
        )

    def save(self, path: str | os.PathLike[str], extra: Any = None) -> Path:
        """Writes the records to one file that `torch.load(path, weights_only=True)` reads.

        path: "{rank}" in it becomes the rank. Folders are made; a file of that name is replaced
            when the new one is complete, so that no file is ever incomplete.
        extra: kept under the key "extra": numbers, text, tensors, and dicts, lists, tuples and
            sets of them; paths, enumerations, dataclasses and numpy's values are made plain.

        Returns the path. TypeError for an `extra` that such a file cannot hold, OSError if the
        file cannot be written.
        """
        return save_recording(self.snapshot(extra), rank_path(path, "forward_trace_rank"))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Recording:
        """Reads a file of `save`; nothing in it is executed.

        RecordingError, a ValueError, names the file and the reason where it is cut short, damaged
        or of another kind; OSError if it cannot be read.
        """
        return load_recording(path)
