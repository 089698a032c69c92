"""OpRecorder: digests or figures of every operator's inputs and outputs, to compare two runs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import torch

from ...core.public import public
from ...core.warnings import warn_once
from ...tensors.recordings.metadata import HashKind, MetadataCollector
from ...tensors.recordings.recording import Recording, TraceEvent, TraceTensorMeta, save_recording
from ...tensors.recordings.walk import Found, find, find_arguments
from .mode import OpMode
from .module_path import phase, where
from .options import OpOptions
from .policy import OpPlan

# Operators that do not read what they write to: it may be memory as it is.
_OVERWRITE = frozenset(
    (
        *("fill_", "zero_", "copy_", "uniform_", "normal_", "bernoulli_", "exponential_"),
        *("random_", "geometric_", "cauchy_", "log_normal_"),
    )
)


@public("my_utils.compare_tool")
class OpRecorder(OpMode):
    """Records the tensor hash, or statistics, of every operator's inputs and outputs in the block.

        with open_module_tracker(model), OpRecorder() as recorder:
            train_step(batch)
        recorder.save("good.pt")            # and bad.pt in the other run

    `python -m my_utils diverge good.pt bad.pt` then names the first operator whose inputs are the
    same, bit for bit, and whose result is not. Nothing is run twice, and no tensor is kept.

    hash: "tensor" (`my_utils.tensors.tensor_hash`), "md5" or "none". stats: also count, range,
    mean, deviation, norms, zeros, NaN and Inf, as `my_utils.tensors.stats`. record_inputs: also of
    the inputs, as they were before the call; without it a run costs half, and the first operator
    that differs may have been given other inputs. max_events: after so many nothing more is
    recorded, with a warning. name: goes into the file. The other arguments are those of
    `CompareWithCPU`; `verbose` writes a line for each operator, with the digests of its results.

    Views, and operators that return uninitialized memory, are left out. On CUDA digests are taken
    on the current stream and fetched by `save`, `snapshot` and `events`; nothing waits before that.

    >>> with OpRecorder() as recorder:  # doctest: +ELLIPSIS
    ...     y = torch.ones(2).add(1).mul(2)
    2...
    >>> [(event.module, event.outputs[0].shape) for event in recorder.events[1:]]
    [('aten.add', (2,)), ('aten.mul', (2,))]
    """

    test_name: ClassVar[str] = "OpRecorder"

    def __init__(
        self,
        enabled: bool = True,
        *,
        hash: HashKind = "tensor",
        stats: bool = False,
        record_inputs: bool = True,
        target_list: Any = None,
        white_list: Any = None,
        verbose: bool = False,
        enable_ranks: int | Iterable[int] | None = None,
        should_log_to_file: bool = False,
        output_dir: str | os.PathLike[str] = "",
        start_step: int | None = None,
        end_step: int | None = None,
        every: int = 1,
        max_events: int = 1_000_000,
        name: str = "op_trace",
    ) -> None:
        options = OpOptions.of(locals())
        super().__init__(options)
        self.name = options.name
        self._collector = MetadataCollector(0)
        self._events: list[TraceEvent] = []
        self._calls: Counter[str] = Counter()

    # --- operators ---

    def _watch(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> Any:
        event = None
        try:
            event = self._begin(plan, args, kwargs)
        except Exception as error:
            self._failed_itself(plan, self._title(plan), error)
        result = plan.func(*args, **kwargs)
        if event is not None:
            try:
                self._finish(event, plan, args, kwargs, result)
            except Exception as error:
                self._failed_itself(plan, self._title(plan), error)
        return result

    def _begin(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> TraceEvent | None:
        most = self._options.max_events
        if len(self._events) >= most:
            warn_once("op_recorder_full", f"only the first {most} calls are recorded")
            return None
        module = where().name
        now = phase()
        name = f"{module}/{plan.short}" if module else plan.short
        if now == "backward":
            name += "(backward)"
        event = TraceEvent(len(self._events), name, plan.overload, call=self._calls[name])
        event.phase = "recompute" if now == "recompute" else "forward"
        event.end_index = event.index
        event.grad_enabled = torch.is_grad_enabled()
        found, event.input_values = find_arguments(args, kwargs)
        if self._options.record_inputs:
            event.inputs = self._take(_that_are_read(found, plan))
        return event

    def _finish(
        self, event: TraceEvent, plan: OpPlan, args: Any, kwargs: dict[str, Any], result: Any
    ) -> None:
        found, event.output_values = find(result)
        found = _without(found, {str(place) for place in plan.scratch})
        seen = {id(tensor) for _, tensor in found}
        written, _ = find(plan.written(args, kwargs))
        found += [(f"written.{path}", tensor) for path, tensor in written if id(tensor) not in seen]
        event.outputs = self._take(found)
        self._tested.add(plan.name)
        if event.inputs or event.outputs:
            self._events.append(event)
            self._calls[event.module] += 1
        if self.verbose:
            digests = " ".join(meta.hash or "-" for meta in event.outputs)
            self._log.line(self._title(plan), " ", digests)

    def _take(self, found: Found) -> list[TraceTensorMeta]:
        options = self._options
        return self._collector.take(found, options.hash, options.stats) if found else []

    def _end_untested(self, text: str) -> None:
        warn_once("op_recorder_nothing", text)  # `save` shows it: there are no events

    # --- what was recorded ---

    @property
    def events(self) -> list[TraceEvent]:
        """The calls so far. Waits for CUDA if it was used."""
        self._collector.flush()
        return self._events

    def clear(self) -> None:
        """Deletes the records, for example after a `save` in a long run."""
        self._events = []
        self._calls.clear()

    def snapshot(self, extra: Any = None) -> Recording:
        """All records as one object, for `my_utils.tensors.diverge.compare_recordings`."""
        return Recording.of_this_rank(
            self.name,
            settings={"hash": self._options.hash, "stats": self._options.stats},
            events=list(self.events),
            counts={"errors": self.errors} if self.errors else {},
            extra=extra,
        )

    def save(self, path: str | os.PathLike[str], extra: Any = None) -> Path:
        """Writes a file for `my_utils.tensors.diverge`, whole or not at all; returns its path.

        extra: plain values that go with it. OSError if it cannot be written, TypeError for what
        `extra` cannot hold.
        """
        return save_recording(self.snapshot(extra), path)


def _that_are_read(found: Found, plan: OpPlan) -> Found:
    """Without what the operator overwrites, and what means nothing outside of a kernel."""
    overwritten = {name for _, name in plan.writes if name.startswith("out")}
    if plan.func._opname in _OVERWRITE:
        overwritten.add("0")
    return _without(found, overwritten | plan.scratch_inputs)


def _without(found: Found, places: set[str]) -> Found:
    if not places:
        return found
    return [(path, tensor) for path, tensor in found if path.split(".")[0] not in places]
