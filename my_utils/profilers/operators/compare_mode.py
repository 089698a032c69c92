"""CompareWithCPU: runs every operator a second time, and compares the two results."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from ...core.public import public
from ...core.warnings import warn_once
from .check import OpCheck, Rules, Slack, check_view, coarsest
from .dump import comparison_again
from .finite import Counts, is_clean, is_finding
from .inputs import distinct_tensors, tensors_in
from .mode import RULE, OpMode, OpModeError, alone, dump_or_say
from .module_path import Scope, where
from .options import OpOptions
from .policy import Action, OpPlan
from .reference import Draws, NotComparable, OpCopy, Reference
from .rounding import find_slacks
from .summary import OpSummary

_STARTS = " starts to run ..."
_SUCCEEDS = " succeeds to pass CompareWithCPU test"
_OF_VIEWS = Rules(strides=True)


@public("my_utils.compare_tool")
class CompareError(OpModeError):
    """An operator failed, and `dump_error_data` asks to stop there; `files`: what was dumped. Or
    nothing at all could be tested in a block; then there are no files."""


@public("my_utils.compare_tool")
class CompareWithCPU(OpMode):
    """Runs every operator in the block a second time on the CPU, and compares the results.

    enabled: False makes the tool do nothing.
    atol, rtol: an element agrees where |a - b| <= atol + rtol * |b|. None: those of
        `torch.testing.assert_close` for the dtype, each by itself.
    target_list: operators to compare, all others are left alone; `target_op` is another name of it.
        Names as "torch.ops.aten.addmm", "aten.addmm", "aten.addmm.default" or "addmm", or
        operators.
    white_list: operators that are not compared, named in the same way.
    dump_error_data: the first failure is written to `output_dir` and raised as `CompareError`.
    verbose: a line for each operator; otherwise only what fails.
    enable_ranks: ranks on which the tool is active; None for all.
    should_log_to_file: the log goes to `output_dir/CompareWithCPU.log`, with the rank in its name
        if there are several, and is written by a separate thread; otherwise it is printed.
    output_dir: a folder, which is made. By default the log directory of `GlobalLogger.setup` if
        that ran, else the working directory.
    start_step, end_step: active while start_step <= step_cnt < end_step, see `step()`.

    By keyword only:

    namespaces: operators of other libraries that may be run twice. Without it only those of aten
        and prims are: a collective that one rank runs twice would corrupt the others.
    reference: what to compare with: a device; "float64", the same operator on the same device; or a
        function `(func, args, kwargs) -> result`, which gets copies.
    check_stride: whether other strides are a failure; None: only if both ran on one kind of device.
    every: active in every n-th step. max_elements: of larger tensors only so many are compared.
    stacks: what fails is shown with the lines of code that it comes from, in the backward pass with
        those of its forward operator. It costs some microseconds an operator.

    `summary` has counts and the worst figures by operator and module; `errors` counts what the tool
    could not do; a block in which it could test nothing ends with `CompareError`. Results,
    gradients and random numbers of the training are the same, bit for bit, with the tool and
    without it. Random operators are compared with the numbers that they drew where the reference is
    on the same kind of device, and skipped elsewhere. What has no counterpart on the reference is
    skipped and counted, with the reason in the log.

    A block is for one thread and its backward pass. TypeError and ValueError name a wrong argument.

    >>> model = torch.nn.Linear(2, 2)
    >>> with CompareWithCPU(verbose=False) as compare:  # doctest: +ELLIPSIS
    ...     model(torch.ones(1, 2)).sum().backward()
    2...
    >>> compare.summary.failed
    0
    """

    test_name: ClassVar[str] = "CompareWithCPU"
    _checks_views: ClassVar[bool] = True
    _stop_error: ClassVar[type[OpModeError]] = CompareError

    def __init__(
        self,
        enabled: bool = True,
        atol: float | None = None,
        rtol: float | None = None,
        target_list: Any = None,
        white_list: Any = None,
        dump_error_data: bool = False,
        verbose: bool = True,
        enable_ranks: int | Iterable[int] | None = None,
        should_log_to_file: bool = False,
        output_dir: str | os.PathLike[str] = "",
        start_step: int | None = None,
        end_step: int | None = None,
        *,
        target_op: Any = None,
        namespaces: Iterable[str] = (),
        reference: Any = "cpu",
        check_stride: bool | None = None,
        every: int = 1,
        stacks: bool = False,
        max_elements: int | None = None,
    ) -> None:
        options = OpOptions.of(locals())
        super().__init__(options, any_namespace=False)
        self.dump_error_data = options.dump_error_data
        self._summary = OpSummary()
        self._reference = Reference(options.reference)
        self._rules: dict[str, Rules] = {}
        self._repeated = 0  # calls whose reference was the same operator on the same device

    def _watch(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> Any:
        scope = where()
        call = _Call(plan, self._title(plan, scope), scope)
        if self.verbose and self._log.path is None:
            self._say_started(call)  # to be seen even if the operator does not come back
        if plan.action is Action.VIEW:
            return self._watch_view(call, args, kwargs)
        return self._watch_values(call, args, kwargs)

    def _say_started(self, call: _Call) -> None:
        if self.verbose and not call.said:
            call.said = True
            self._log.line(call.title, _STARTS)

    # --- operators that compute ---

    def _watch_values(self, call: _Call, args: Any, kwargs: dict[str, Any]) -> Any:
        plan = call.plan
        try:
            with alone():
                call.take(args, kwargs, keep=self.dump_error_data)
        except Exception as error:
            self._failed_itself(plan, call.title, error)
            return plan.func(*args, **kwargs)
        if call.copy.device.type == "meta":
            self._skip(call, "has no values on the device meta")
            return plan.func(*args, **kwargs)
        result = self._run(call, args, kwargs)
        written = plan.written(args, kwargs) if plan.writes else []
        try:
            with alone():
                check = self._compare(call, result, written)
        except Exception as error:
            self._failed_itself(plan, call.title, error)
            return result
        if check is not None and check.lines:
            self._fail(call, check, result, written)
        return result

    def _run(self, call: _Call, args: Any, kwargs: dict[str, Any]) -> Any:
        try:
            return call.plan.func(*args, **kwargs)
        except BaseException:
            self._say_started(call)
            raise

    def _compare(self, call: _Call, result: Any, written: list[Any]) -> OpCheck | None:
        outputs = (call.plan.results(result), written)
        if not is_clean(outputs):  # before the reference writes to its inputs
            self._warn_unless_meant(call, outputs)
        try:
            drew = call.draws if call.draws is not None and call.draws.changed() else None
            expected = self._reference.run(call.copy, drew)
        except NotComparable as error:
            if drew is None:
                self._not_tested(call.plan, call.title, str(error))
            self._skip(call, str(error))
            return None
        if expected.notes and self.verbose:
            self._say_started(call)
            for note in expected.notes:
                self._log.line(note)
        coarse = coarsest([*call.copy.tensors, *tensors_in(result)]) if expected.dtypes else None
        rules = self._rules_on(call.copy.device)
        # What drew random numbers would draw others where it is asked for its roundings.
        slacks = [] if drew is not None else self._find_slacks(call, result, expected.result)
        check = OpCheck(rules, expected.dtypes, coarse, slacks)
        if not written or not _is_written(result, written):
            check.values(*_without_scratch(call.plan, result, expected.result))
        if written:
            for place, pair in enumerate(zip(written, expected.written, strict=True)):
                check.values(*pair, where=f"written.{place}" if len(written) > 1 else "")
        self._tested.add(call.plan.name)
        if self._reference.is_a_repetition(call.copy.device):
            self._note_repetition()
        if not check.lines:
            self._succeed(call, check)
        return check

    def _find_slacks(self, call: _Call, result: Any, expected: Any) -> list[Slack]:
        """Where the tolerances of the dtypes hold: what a user gives is used as it is."""
        if self._options.atol is not None or self._options.rtol is not None:
            return []
        return find_slacks(call.copy, self._reference, result, expected)

    def _note_repetition(self) -> None:
        self._repeated += 1
        if self._repeated == 1:
            text = (
                f"operators run on {self._reference.name}, the device of their reference: if "
                "they agree, they are deterministic, but not necessarily right; use "
                'reference="float64" to check that'
            )
            self._log.line("[WARNING] ", text)
            warn_once("op_mode_repetition", text)

    def _warn_unless_meant(self, call: _Call, outputs: Any) -> None:
        before = Counts.of(call.plan.read(call.copy.args, call.copy.kwargs))
        after = Counts.of(distinct_tensors(outputs))
        if is_finding(call.plan, before, after, call.copy.tensors):
            self._say_started(call)
            came = "which came in" if before.nan and after.nan else "its inputs have none"
            self._log.line("[WARNING] ", call.title, f" gives {_kinds(after)}; {came}")

    def _rules_on(self, device: torch.device) -> Rules:
        rules = self._rules.get(device.type)
        if rules is None:
            options = self._options
            strides = options.check_stride
            if strides is None:
                strides = self._reference.has_same_strides(device)
            rules = Rules(options.atol, options.rtol, strides, options.max_elements)
            self._rules[device.type] = rules
        return rules

    def _skip(self, call: _Call, reason: str) -> None:
        self._left_out[call.plan.name] = reason
        if self.verbose:
            self._say_started(call)
            self._log.line(call.title, " is not compared: ", reason)
        self._summary.add(call.plan.name, call.scope.name, "skipped", None, reason)

    def _succeed(self, call: _Call, check: OpCheck) -> None:
        if self.verbose:
            if call.said:
                self._log.line(call.title, _SUCCEEDS)
            else:  # at once: an append costs as much as what is appended
                self._log.line(call.title, _STARTS, "\n", call.title, _SUCCEEDS)
        self._summary.add(call.plan.name, call.scope.name, "succeeds", check.metrics)

    # --- views ---

    def _watch_view(self, call: _Call, args: Any, kwargs: dict[str, Any]) -> Any:
        result = self._run(call, args, kwargs)
        self._viewed.add(call.plan.name)
        try:
            check = OpCheck(_OF_VIEWS)
            with alone():
                check_view(check, call.plan, args, kwargs, result)
        except Exception as error:
            self._failed_itself(call.plan, call.title, error)
            return result
        if check.agrees:
            self._succeed(call, check)
        else:
            call.take(args, kwargs, keep=False)
            self._fail(call, check, result, [])
        return result

    # --- failures ---

    def _fail(self, call: _Call, check: OpCheck, result: Any, written: list[Any]) -> None:
        self._summary.add(call.plan.name, call.scope.name, "fails", check.metrics)
        self._say_started(call)
        if not self._is_first_report(call.title) and not self.dump_error_data:
            return
        line = self._log.line
        line("\n", RULE)
        line("[ERROR] ", call.title, " fails to pass ", self.test_name, " test")
        self._log_call(call.shown.args, call.shown.kwargs)
        self._log_output(result)
        self._log_stack()
        line(f"...... compare with {self._reference.name} .......")
        for text in check.lines:
            line(text, "\n")
        line(RULE, "\n")
        self._log.flush()
        if self.dump_error_data:
            self._dump_and_raise(call, check, (result, written))

    def _dump_and_raise(self, call: _Call, check: OpCheck, outputs: Any) -> None:
        inputs = (call.shown.args, call.shown.kwargs)
        again = comparison_again(call.plan, self._options.atol, self._options.rtol, self._reference)
        files, said = dump_or_say(self._folder(), call.plan, inputs, outputs, again)
        what = check.lines[0].split("\n")[0]
        text = f"{call.title} fails to pass {self.test_name} test ({what}); {said}"
        raise CompareError(text, files)

    # --- the end ---

    @property
    def summary(self) -> OpSummary:
        """Counts and the worst figures so far, by operator and module."""
        for plan in self._policy.plans:
            if plan.passed:
                calls, plan.passed = plan.passed, 0
                self._summary.add(plan.name, "", "skipped", None, plan.reason, calls)
        return self._summary

    def _end(self) -> None:
        super()._end()
        if self.summary.rows:
            self._log.line("\n", self.summary.table())
        if self._repeated:
            self._log.line(f"{self._repeated} calls were compared with themselves, run again")


class _Call:
    """One call of an operator.

    copy: its inputs for the reference, which may write to them. shown: what is printed and dumped:
    copies that nobody writes to where `keep` is set, else those of the reference. said: whether the
    log says that it started.
    """

    __slots__ = ("copy", "draws", "plan", "said", "scope", "shown", "title")

    copy: OpCopy
    shown: OpCopy
    draws: Draws | None

    def __init__(self, plan: OpPlan, title: str, scope: Scope) -> None:
        self.plan = plan
        self.title = title
        self.scope = scope
        self.said = False

    def take(self, args: Any, kwargs: dict[str, Any], keep: bool) -> None:
        """Notes the inputs; must be called before the operator runs."""
        self.copy = OpCopy(self.plan, args, kwargs)
        self.shown = self.copy.again() if keep else self.copy
        self.draws = Draws(args, kwargs, self.copy.device) if self.plan.may_draw else None


def _without_scratch(plan: OpPlan, result: Any, expected: Any) -> tuple[Any, Any]:
    """The two results without what means nothing outside of a kernel."""
    if not plan.uncompared or not isinstance(result, tuple) or not isinstance(expected, tuple):
        return result, expected
    kept = [[None if place in plan.uncompared else item for place, item in enumerate(side)]
            for side in (result, expected)]  # fmt: skip
    return kept[0], kept[1]


def _kinds(counts: Counts) -> str:
    return f"{counts.nan} NaN, {counts.pos_inf} +Inf, {counts.neg_inf} -Inf"


def _is_written(result: Any, written: list[Any]) -> bool:
    """Whether all of the result are arguments that were written to, which are compared anyway."""
    if isinstance(result, list | tuple):
        return bool(result) and all(_is_written(item, written) for item in result)
    return result is None or any(result is item for item in written)
