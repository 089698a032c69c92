"""The common base of the comparison tools: the block, its steps and ranks, the log, and the path
of every operator through the mode."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ...core.dispatched import is_plain, is_traced
from ...core.identity import identity
from ...core.ranks import current_rank, is_chosen, world_size
from ...core.reprs import short_repr
from ...core.tables import write_text
from ...core.warnings import warn_once
from .check import describe
from .dump import Again, dump_call, script
from .finite import Arrivals
from .log import OpLog
from .module_path import OpStacks, Scope, phase, where
from .options import OpOptions
from .policy import Action, OpPlan, OpPolicy

_NOTHING: AbstractContextManager[Any] = nullcontext()
RULE = "=" * 28

# Backends of torch.compile that run a graph operator by operator.
_SEEN_BACKENDS = frozenset(("eager", "aot_eager", "aot_eager_decomp_partition", "eager_noexcept"))


def alone() -> AbstractContextManager[Any]:
    """Without the modes below this one: what a tool does for itself is not theirs to see, and a
    reference must not be changed by them."""
    if torch._C._len_torch_dispatch_stack():
        return _disable_current_modes()
    return _NOTHING


def skip_dynamo(function: Any) -> None:
    """Keeps torch.compile out of a function and of all that it calls, for no time at each call.

    What torch does by itself to the modes of its users costs four microseconds an operator.
    """
    try:
        from torch._C._dynamo import eval_frame

        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        eval_frame.set_code_exec_strategy(function.__code__, strategy)
    except (ImportError, AttributeError):
        return  # a version of torch without it: its compiler may trace the function, too


class OpModeError(RuntimeError):
    """Ends a block. files: what was dumped, if anything was."""

    def __init__(self, text: str, files: list[Any]) -> None:
        super().__init__(text)
        self.files = files

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.files)


class OpMode(TorchDispatchMode):
    """The base of the tools, which define `_watch`.

    A mode may be entered many times, one after the other. An error of the tool itself is one
    warning and a count in `errors`; the caller gets the operator's result. A block in which
    operators ran and none was tested, or a named one was not, ends with an exception, as
    `_stop_error` makes it. Operators that torch runs to work out shapes and graphs have no values
    and are not tested.
    """

    supports_higher_order_operators = True  # else torch raises for each of them
    test_name: ClassVar[str] = ""
    _checks_views: ClassVar[bool] = False
    _stop_error: ClassVar[type[OpModeError]]

    def __init__(self, options: OpOptions, *, any_namespace: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.enabled, self.verbose = options.enabled, options.verbose
        self.output_dir = options.output_dir
        self.step_cnt = 0
        self.errors = 0
        self._options = options
        self._policy = OpPolicy(options, any_namespace=any_namespace)
        self._plan_of = self._policy.plan
        self._stacks = OpStacks() if options.stacks else None
        self._log = OpLog(None)
        self._active = False
        self._entered = 0
        self._begin_block()
        self._arrivals: Arrivals | None = None  # where the tool asks what came from other ranks
        self._seen: Counter[str] = Counter()  # reports of this step

    def __repr__(self) -> str:
        return short_repr(self, "enabled", "step_cnt", "errors")

    # --- the block ---

    def __enter__(self) -> Self:
        if not (self.enabled and is_chosen(self._options.enable_ranks)):
            return self
        if not self._entered:
            self._begin_block()
            self._open_log()
            self._begin_step()
        self._entered += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._entered:
            return
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._entered -= 1
        if not self._entered:
            self._active = False
            warn_of_unseen()  # of what was compiled within the block
            self._end()
            try:
                self._check_block(error)
            finally:
                self._log.close()

    def _begin_block(self) -> None:
        self._ran = False  # an operator with values
        self._traced = 0  # calls without values
        self._tested: set[str] = set()  # operators whose results were looked at
        self._viewed: set[str] = set()  # and those where the place in memory is all there is
        self._left_out: dict[str, str] = {}  # operators, and why one call at least was not tested
        self._untested = 0  # calls where testing failed
        self._why_untested = ""

    def _check_block(self, error: BaseException | None) -> None:
        """Silence must not look like a success: says what was not tested."""
        unseen, traced = self._policy.unseen_text(), ""
        if self._traced and not self._ran:
            traced = f"{self._traced} calls had no values (torch was tracing); nothing was tested"
        for text in filter(None, (unseen, self._untested_text(), traced)):
            self._log.line("[WARNING] ", text)
        if unseen or traced:
            text = "; ".join(filter(None, (unseen, traced)))
            warn_once(f"op_mode_silent_{text}", f"{self.test_name}: {text}")
        why = self._why_nothing()
        if why and error is None:
            self._end_untested(f"{self.test_name} could test nothing{why}")

    def _untested_text(self) -> str:
        if not self._untested:
            return ""
        return f"{self._untested} calls could not be tested ({self._why_untested})"

    def _why_nothing(self) -> str:
        """Why the block was no test, of anything or of an operator that is named; "" if it was."""
        if self._policy.targets is not None:
            missed = self._left_out.keys() - self._tested - self._viewed
            if missed:
                why = "; ".join(f"{name}: {self._left_out[name]}" for name in sorted(missed))
                return f" of {why}"
        if self._tested or not self._ran:
            return ""
        if self._untested:
            return f": {self._untested_text()}"
        if self._viewed:
            return ""
        reasons = [f"{name} {why}" for name, why in self._left_out.items()]
        why = "; ".join(reasons[:5]) or self._policy.unseen_text()
        return f": {why}" if why else ""

    def _end_untested(self, text: str) -> None:
        raise self._stop_error(text, [])

    def _open_log(self) -> None:
        name = f"{self.test_name}{rank_suffix()}.log"
        path = self._folder() / name if self._options.should_log_to_file else None
        self._log = OpLog(path, _line_prefix())
        try:
            self._log.open()
        except OSError as error:
            warn_once("op_log_open", f"{path} cannot be written ({error}); the log is printed")
            self._log = OpLog(None, _line_prefix())

    def _folder(self) -> Path:
        """`output_dir`; where none was given, the log directory of `GlobalLogger.setup`."""
        known = identity()
        if known is None or self.output_dir != Path(""):
            return self.output_dir
        return Path(known.log_dir)

    def _is_first_report(self, title: str) -> bool:
        """Whether a finding of that name is the first one of its step; the others are counted."""
        self._seen[title] += 1
        return self._seen[title] == 1

    def _end_step(self) -> None:
        """At the end of a step, and of the block."""
        for title, calls in self._seen.items():
            if calls > 1:
                self._log.line(f"[WARNING] {title}: {calls - 1} more in step {self.step_cnt}")
        self._seen.clear()

    def _end(self) -> None:
        """What there is to say once the block has ended."""
        self._end_step()

    # --- steps ---

    def step(self) -> None:
        """Says that a training step has ended: `step_cnt` grows by one. The tool is active while
        `start_step <= step_cnt < end_step`."""
        if self._entered:
            self._end_step()
        self.step_cnt += 1
        if self._entered:
            self._begin_step()
            self._log.flush()

    def _begin_step(self) -> None:
        options, now = self._options, self.step_cnt
        warn_of_unseen()
        began = options.start_step is None or options.start_step <= now
        ended = options.end_step is not None and now >= options.end_step
        self._active = began and not ended and now % options.every == 0
        self._log.line(time.strftime("%Y-%m-%d, %H:%M:%S"))
        self._log.line(f"-------------------------  step = {self.step_cnt}  ----------------------")

    # --- operators ---

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # done below, for less

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # else torch.compile would silently do nothing within the block

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._active:
            return func(*args, **(kwargs or {}))
        if is_traced(types):
            self._traced += 1
            return func(*args, **(kwargs or {}))
        if types and not all(map(is_plain, types)):
            return NotImplemented  # subclasses first: what they are made of comes here again
        self._ran = True
        plan = self._plan_of(func)
        if plan.is_collective and self._arrivals is not None:
            if self.verbose:
                self._log.line(self._title(plan), " ", plan.reason)
            return self._arrivals.run(plan, args, kwargs or {})
        if plan.action is Action.IGNORE:
            return func(*args, **(kwargs or {}))
        if plan.action is Action.PASS:
            return self._pass_on(plan, args, kwargs or {})
        if self._stacks is not None:
            self._stacks.note()
        if plan.action is Action.VIEW and not self._checks_views:  # no new values
            self._viewed.add(plan.name)
            return func(*args, **(kwargs or {}))
        return self._watch(plan, args, kwargs or {})

    def _pass_on(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> Any:
        plan.passed += 1
        self._left_out[plan.name] = plan.reason
        if self.verbose:
            self._log.line(self._title(plan), " ", plan.reason, ", pass")
        return plan.func(*args, **kwargs)

    def _watch(self, plan: OpPlan, args: Any, kwargs: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _title(self, plan: OpPlan, scope: Scope | None = None) -> str:
        """As the log names a call: "GPT/Linear[fc]/torch.ops.aten.addmm(forward)"."""
        return f"{(scope or where()).text}{plan.name}({phase()})"

    def _not_tested(self, plan: OpPlan, title: str, reason: str) -> None:
        if not self._untested:
            self._why_untested = f"the first: {title}: {reason}"
        self._untested += 1
        self._left_out[plan.name] = reason

    def _failed_itself(self, plan: OpPlan, title: str, error: Exception) -> None:
        self.errors += 1
        text = f"{type(error).__name__}: {error}"
        self._not_tested(plan, title, text)
        self._log.line(title, " could not be tested: ", text)
        warn_once(f"op_mode_{self.test_name}", f"{title} could not be tested ({text})")

    def _log_call(self, args: Any, kwargs: dict[str, Any]) -> None:
        self._log.line("....... input .........")
        for place, value in enumerate(args):
            self._log.line(*_described(str(place), value))
        for name, value in kwargs.items():
            self._log.line(*_described(name, value))
        self._log.line("\n")

    def _log_stack(self) -> None:
        if self._stacks is not None:
            self._log.line("...... stack ........")
            self._log.line(self._stacks.text() or "not known")
            self._log.line("")

    def _log_output(self, result: Any) -> None:
        self._log.line("...... output ........")
        values = result if isinstance(result, list | tuple) else (result,)
        for value in values:
            self._log.line(describe(value) if isinstance(value, Tensor) else repr(value)[:1000])
        self._log.line("")


def _described(place: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, Tensor):
        return (f"{place}: {describe(value)}, ",)
    if isinstance(value, list | tuple) and any(isinstance(item, Tensor) for item in value):
        lines = ["".join(_described(f"{place}.{index}", item)) for index, item in enumerate(value)]
        return ("\n".join(lines),)
    return (f"{place}: {value!r:.1000}, ",)


def _line_prefix() -> str:
    """ "rank 3: ", or nothing if there is one rank only."""
    return f"rank {current_rank()}: " if world_size() > 1 else ""


def rank_suffix() -> str:
    """ "_rank3", or nothing if there is one rank only."""
    return f"_rank{current_rank()}" if world_size() > 1 else ""


def dump_or_say(
    folder: Path, plan: OpPlan, inputs: Any, outputs: Any, again: Again
) -> tuple[list[Path], str]:
    """Writes the files of a failing call and the script that runs it again; returns them, and a
    text for people. A full disk must not hide what was found."""
    try:
        suffix = rank_suffix()
        names = (f"{plan.name}_inputs{suffix}", f"{plan.name}_outputs{suffix}")
        files = dump_call(folder, names, plan.overload, inputs, outputs)
        written = folder / f"{plan.name}_again{suffix}.py"
        write_text(written, script(plan, files[0], again))
        files.append(written)
    except Exception as error:
        said = f"inputs and outputs could not be written: {error}"
        warn_once("op_dump", said)
        return [], said
    return files, (
        f"inputs and outputs are in {files[0]} and {files[1]}; python {files[-1]} runs it again"
    )


def warn_of_unseen() -> None:
    """One warning for each backend of torch.compile that hides operators from a mode, of those that
    the process has compiled with."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return
    backends: dict[int, Any] = getattr(dynamo, "cached_backends", {})
    for backend in list(backends.values()):
        name = getattr(backend, "compiler_name", None)
        if isinstance(name, str) and name not in _SEEN_BACKENDS:
            warn_once(
                f"op_mode_backend_{name}",
                f"torch.compile with the backend {name!r} is in use: the comparison tools do not "
                "see operators that it compiled to kernels, only the others; with "
                'backend="aot_eager" they see all',
            )


skip_dynamo(OpMode.__torch_dispatch__)
