"""NanInfTracker: finds the first operator that returns NaN or Inf from inputs without them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ...core.public import public
from ...tensors import torch_ops as _torch_ops
from ...tensors.tensor_kinds import has_kernels
from .dump import Again
from .finite import Arrivals, Counts, counts_on_device, is_clean, is_finding, values_of
from .inputs import copied, distinct_tensors, tensors_in
from .mode import RULE, OpMode, OpModeError, dump_or_say
from .module_path import where
from .options import OpOptions
from .policy import OpPlan

_SHOWN_A_STEP = 20  # of those that only pass on what came in

_FINDINGS_MAX = 10_000
_CALLS_MAX = 20_000  # that wait to be read; then they are, before the step has ended

Role = Literal["producer", "propagator"]


@public("my_utils.compare_tool")
class NanInfError(OpModeError):
    """An operator gave a NaN or Inf, and `dump_error_data` asks to stop; `files`: the dump. Or
    nothing at all could be searched in a block; then there are no files."""


@public("my_utils.compare_tool")
@dataclass(frozen=True, slots=True)
class NanInfFinding:
    """One call whose result is not finite.

    title: as the log names it. role: "producer" where no input had a NaN, else "propagator".
    nan, pos_inf, neg_inf: elements of the results. step: `step_cnt` at the time.
    """

    title: str
    op: str
    module: str
    role: Role
    nan: int
    pos_inf: int
    neg_inf: int
    elements: int
    step: int


@public("my_utils.compare_tool")
class NanInfTracker(OpMode):
    """Finds the first operator in the block that gave a NaN or an infinity.

    Nothing is run twice; tensors are read where they are, by one pass at the speed of memory. A NaN
    is always a warning. An infinity is one if it came from finite inputs, except from operators
    that make constants and masks, where it is meant.

    A finding of one operator and module is reported once a step; `findings` has each. A NaN that a
    collective brought, while what this rank gave to it was clean, "arrived by all_reduce".

    The arguments are those of `CompareWithCPU`; `verbose` is off unless it is asked for. With
    `dump_error_data` the first producer is written to `output_dir` and raised as `NanInfError`.

    sync: when results on a GPU are checked. "op": at each operator, which waits for it. "step":
        the GPU counts NaNs beside its work, and the counts are read at `step()` and at the end of
        the block; then only NaNs are findings, and the first of them counts as the producer.

    `findings` has what was found, in order, 10,000 at most (`unlisted` counts the others), and
    `first` is the cause: the first producer, an operator whose inputs were clean. Others are
    propagators.

    >>> import torch
    >>> x = torch.tensor([1.0, 0.0])
    >>> with NanInfTracker() as tracker:  # doctest: +ELLIPSIS
    ...     y = (x / x).sum()
    2...
    >>> tracker.first.op, tracker.first.role, tracker.first.nan
    ('torch.ops.aten.div', 'producer', 1)
    >>> [found.role for found in tracker.findings]
    ['producer', 'propagator']
    """

    test_name: ClassVar[str] = "NanInfTracker"
    _stop_error: ClassVar[type[OpModeError]] = NanInfError

    def __init__(
        self,
        enabled: bool = True,
        target_list: Any = None,
        white_list: Any = None,
        dump_error_data: bool = False,
        verbose: bool = False,
        enable_ranks: int | Iterable[int] | None = None,
        should_log_to_file: bool = False,
        output_dir: str | os.PathLike[str] = "",
        start_step: int | None = None,
        end_step: int | None = None,
        *,
        target_op: Any = None,
        sync: Literal["op", "step"] = "op",
        every: int = 1,
        stacks: bool = False,
    ) -> None:
        options = OpOptions.of(locals())
        super().__init__(options)
        self.dump_error_data = options.dump_error_data
        self.findings: list[NanInfFinding] = []
        self.unlisted = 0
        self._later = LaterCounts() if options.sync == "step" else None
        self._quiet = 0  # propagators of this step
        self._arrivals = Arrivals() if options.sync == "op" else None
        self._arrived: list[str] = []  # collectives that brought a NaN, in their order

    @property
    def first(self) -> NanInfFinding | None:
        """The first producer; where there is none, the first finding."""
        producers = (found for found in self.findings if found.role == "producer")
        return next(producers, self.findings[0] if self.findings else None)

    def _watch(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> Any:
        if self._later is not None:
            return self._watch_later(plan, self._later, args, kwargs)
        shown, before = (args, kwargs), None
        try:
            if self.dump_error_data:
                shown = copied(shown)
            if plan.writes or self.dump_error_data:  # what inputs were must be known before
                before = Counts.of(plan.read(args, kwargs))
        except Exception as error:
            self._failed_itself(plan, self._title(plan), error)
            return plan.func(*args, **kwargs)
        result = plan.func(*args, **kwargs)
        try:
            written = plan.written(args, kwargs) if plan.writes else []
            outputs = (plan.results(result), written) if written else plan.results(result)
            clean = is_clean(outputs)
            self._tested.add(plan.name)
            if not clean:
                inputs = before or Counts.of(plan.read(args, kwargs))
                after = Counts.of(distinct_tensors(outputs))
                self._found(plan, inputs, after, _Shown(shown, result, written))
            elif self.verbose:
                self._log.line(self._title(plan), " succeeds to pass ", self.test_name, " test")
        except NanInfError:
            raise
        except Exception as error:
            self._failed_itself(plan, self._title(plan), error)
        return result

    def _watch_later(
        self, plan: OpPlan, later: LaterCounts, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        result = plan.func(*args, **kwargs)
        try:
            outputs = distinct_tensors((plan.results(result), plan.written(args, kwargs)))
            elements = sum(tensor.numel() for tensor in outputs)
            later.add((self._title(plan), plan.name, where().name, elements), outputs)
            self._tested.add(plan.name)
            if later.is_full:
                self._read(later)
        except Exception as error:
            self._failed_itself(plan, self._title(plan), error)
        return result

    def _read(self, later: LaterCounts) -> None:
        """With the inputs gone, the first NaN of all is the producer."""
        for (title, op, module, elements), counts in later.take():
            role: Role = "propagator" if self.findings else "producer"
            nan, inf, minus_inf = counts
            finding = NanInfFinding(
                title, op, module, role, nan, inf, minus_inf, elements, self.step_cnt
            )
            self._keep(finding)
            if role == "producer":
                self._log.line("[WARNING] ", finding.title, self._fails(finding))
            else:
                self._log_propagator(finding)

    # --- what is found ---

    def _keep(self, finding: NanInfFinding) -> None:
        if len(self.findings) < _FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.unlisted += 1

    def _found(self, plan: OpPlan, inputs: Counts, after: Counts, call: _Shown) -> None:
        if not is_finding(plan, inputs, after, tensors_in(call.inputs)):
            return
        finding = NanInfFinding(
            title=self._title(plan),
            op=plan.name,
            module=where().name,
            role="propagator" if inputs.nan else "producer",
            nan=after.nan,
            pos_inf=after.pos_inf,
            neg_inf=after.neg_inf,
            elements=after.elements,
            step=self.step_cnt,
        )
        self._keep(finding)
        if finding.role == "producer":
            self._log_producer(finding, inputs, call)
            if self.dump_error_data:
                self._dump_and_raise(plan, finding, call)
            return
        arrived = None if self._arrivals is None else self._arrivals.source(call.inputs)
        if arrived and arrived not in self._arrived:
            self._arrived.append(arrived)
        self._log_propagator(finding, arrived or "")

    def _log_producer(self, found: NanInfFinding, inputs: Counts, call: _Shown) -> None:
        if not self._is_first_report(found.title):
            return
        line = self._log.line
        came = f"; {inputs.inf} Inf came in" if inputs.inf else "; its inputs are finite"
        line("\n", RULE)
        line("[WARNING] ", found.title, self._fails(found), came)
        self._log_call(*call.inputs)
        self._log_output(call.result)
        self._log_stack()
        line(RULE, "\n")
        self._log.flush()

    def _fails(self, found: NanInfFinding) -> str:
        return f" fails to pass {self.test_name} test: {_format_counts(found)}"

    def _log_propagator(self, found: NanInfFinding, arrived: str = "") -> None:
        if not self._is_first_report(found.title):
            return
        self._quiet += 1
        if self._quiet <= _SHOWN_A_STEP or arrived:
            came = f"what {_arrived_text(arrived)}" if arrived else "what came in"
            text = f" passes on {came}: {_format_counts(found)}"
            self._log.line("[WARNING] ", found.title, text)

    def _dump_and_raise(self, plan: OpPlan, found: NanInfFinding, call: _Shown) -> None:
        again = Again(self.test_name, "nan_inf_track_for_single_op")
        outputs = (call.result, call.written)
        files, said = dump_or_say(self._folder(), plan, call.inputs, outputs, again)
        raise NanInfError(f"{found.title} fails to pass {self.test_name} test; {said}", files)

    # --- steps ---

    def _begin_step(self) -> None:
        self._quiet = 0
        if self._arrivals is not None:
            self._arrivals.clear()
        super()._begin_step()

    def _end_step(self) -> None:
        if self._later is not None:
            self._read(self._later)
        if self._quiet > _SHOWN_A_STEP:
            self._log.line(
                f"[WARNING] {self._quiet - _SHOWN_A_STEP} more passed on values of their inputs"
            )
        super()._end_step()

    def _end(self) -> None:
        super()._end()
        first = self.first
        if first is None:
            self._log.line(f"no NaN and no unexpected Inf in {self.step_cnt + 1} steps")
        else:
            self._log.line(f"first: {first.title} in step {first.step} ({first.role})")
            if first.role == "propagator" and self._arrived:
                self._log.line(f"it {_arrived_text(self._arrived[0])}")


class _Shown(NamedTuple):
    """What the log and the files have of a call. inputs: args and kwargs, as they were before it
    if there may be a dump. written: arguments that it wrote to."""

    inputs: tuple[Any, Any]
    result: Any
    written: list[Any]


def _arrived_text(collective: str) -> str:
    return f"arrived by {collective}: look at the other ranks"


def _format_counts(found: NanInfFinding) -> str:
    return (
        f"{found.nan} NaN, {found.pos_inf} +Inf, {found.neg_inf} -Inf of {found.elements} elements"
    )


# --- counts that are read later ---


Call = tuple[str, str, str, int]
"""Title, operator and module of a call, and how many elements its results have."""


class LaterCounts:
    """Counts NaNs on the device asynchronously; they are read once a step, without waiting before
    that. For one thread."""

    def __init__(self) -> None:
        _torch_ops.register()
        self._calls: list[tuple[Call, list[Tensor]]] = []

    @property
    def is_full(self) -> bool:
        return len(self._calls) >= _CALLS_MAX

    def add(self, call: Call, results: list[Tensor]) -> None:
        """Starts counting; nothing is waited for."""
        counts = [
            _count(values_of(tensor.detach()))
            for tensor in results
            if (tensor.is_floating_point() or tensor.is_complex()) and not tensor.is_meta
        ]
        if counts:
            self._calls.append((call, counts))

    def take(self) -> list[tuple[Call, list[int]]]:
        """The calls that gave a NaN, in their order. Waits for the devices."""
        calls, self._calls = self._calls, []
        sums = _sums([counts for _, counts in calls])
        return [(call, row) for (call, _), row in zip(calls, sums, strict=True) if row[0]]


def _count(tensor: Tensor) -> Tensor:
    """NaN, +Inf, -Inf of a tensor, where it is."""
    if has_kernels(tensor):
        counts: Tensor = torch.ops.my_utils.nan_inf_count(tensor)
        return counts
    return counts_on_device(tensor)


def _sums(groups: list[list[Tensor]]) -> list[list[int]]:
    """Of the counts of each call; each device is read once."""
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for place, counts in enumerate(groups):
        for count in counts:
            by_device.setdefault(count.device, []).append((place, count))
    sums = [[0, 0, 0] for _ in groups]
    for waiting in by_device.values():
        rows = torch.stack([count for _, count in waiting]).cpu().tolist()
        for (place, _), row in zip(waiting, rows, strict=True):
            sums[place] = [a + b for a, b in zip(sums[place], row, strict=True)]
    return sums
