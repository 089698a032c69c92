"""The timer for a training script, and small tools to debug one.

from my_utils import GlobalLogger, MyTimer

GlobalLogger().setup(log_dir="logs/train")
timer = MyTimer(tag="train")
for step, batch in enumerate(loader):
    timer.set_step(step)
    with timer.time_stage("forward"):
        ...
    timer.step()
timer.generate_report(".*", "logs/train/report.txt")
"""

from __future__ import annotations

import logging
import os
import re
import threading
import traceback
from typing import TYPE_CHECKING, Any, NoReturn, Self

from ... import _core
from ...core import step_requests
from ...core.aliases import renamed_parameters
from ...core.environment import read_choice, switch_at_import
from ...core.lazy_modules import lazy_module
from ...core.public import public
from ...core.warnings import warn_once
from . import compile as _compile, unwritten
from .compile import CompileMode

if TYPE_CHECKING:
    from . import stage_report, steps as _steps
else:
    stage_report = lazy_module("my_utils.record.stages.stage_report")
    _steps = lazy_module("my_utils.record.stages.steps")


_RANK_MAX = 2**31 - 2
StrPath = str | os.PathLike[str]
_FIXED = {
    "verbose": (False, "generate_report() has the times, GlobalLogger().setup(level=) the level"),
    "profile_memory": (False, "GPU_Performance_Tracker and MemorySnapshotter record memory"),
    "use_nvtx": (True, "stages are NVTX ranges whenever a tool such as nsys listens, else nothing"),
    "labeler": (None, "start(color=, domain_name=) says how a range looks"),
    "nvtx_domain": (None, "start(domain_name=) and time_stage(domain_name=) choose the domain"),
}


@public("my_utils.utils")
class MyTimer(_core.Timer):
    """Times the stages of a run: on every thread a tree, written as rows of the profile CSV.

    >>> timer = MyTimer(tag="example")
    >>> timer.set_step(0)
    >>> with timer.time_stage("iter"):
    ...     timer.start("forward")
    ...     timer.stop("forward")
    >>> timer.step()
    >>> [stage["path"] for stage in timer.generate_report("", None)["stages"]]
    ['iter', 'iter/forward']

    use_cuda: take GPU times too, with CUDA events on torch's current stream. Without a CUDA device
        the CPU times continue alone.
    tag: separates timers; each tag has a separate track on every thread. At most 63 bytes.
    log_dir: where to write when GlobalLogger was not set up: the timer then sets it up on that
        directory, without output to the console. A later `GlobalLogger().setup` moves the output to
        its own directory.
    cuda_stages: a regular expression; GPU times are recorded for stages whose name matches it. None
        is all of them. Events can break the overlap of communication and compute.
    strict: misuse raises RuntimeError. Otherwise it is one warning and a count
        (`unmatched_stops`, `closed_stages`), and training continues.
    compile: what torch.compile does with calls in a compiled function: "vanish" leaves them out, so
        that the graph stays whole; "break" keeps them, at the price of graph breaks.
    rank: for `log_dir`. None means RANK, SLURM_PROCID or OMPI_COMM_WORLD_RANK from the environment,
        else 0.

    Raises TypeError and ValueError for wrong arguments. `start`, `stop`, `time_stage`, `set_step`,
    `step` and `synchronize_and_log` are methods in C; all methods are thread-safe. Unpickling
    creates a new timer from these arguments, without records; copies are the timer itself. At most
    479 timers live at once, and at most 64 pairs of a timer and a thread record. A further one
    records nothing, with one warning and counts.
    """

    __slots__ = ("__weakref__", "_arguments", "_logger")

    def __new__(cls, *args: Any, compile: CompileMode = "vanish", **kwargs: Any) -> Self:
        if compile not in ("vanish", "break"):
            raise ValueError(f'compile must be "vanish" or "break", not {compile!r}')
        if compile == "break":
            cls = _compile.breaking(cls)
        return _core.Timer.__new__(cls)

    @renamed_parameters(_FIXED)
    def __init__(
        self,
        use_cuda: bool = False,
        tag: str = "",
        log_dir: StrPath | None = None,
        *,
        cuda_stages: str | re.Pattern[str] | None = None,
        strict: bool = False,
        compile: CompileMode = "vanish",
        rank: int | None = None,
    ) -> None:
        _check_type("use_cuda", use_cuda, bool)
        _check_type("strict", strict, bool)
        _check_type("tag", tag, str)
        _check_output(log_dir, rank)
        super().__init__(tag, strict=strict, use_cuda=use_cuda, cuda_stages=cuda_stages)
        self._logger: logging.Logger | None = None
        self._arguments: dict[str, Any] = {
            "use_cuda": use_cuda,
            "tag": tag,
            "log_dir": log_dir,
            "cuda_stages": cuda_stages,
            "strict": strict,
            "compile": compile,
            "rank": rank,
        }
        unwritten.watch(self)
        if compile == "vanish":
            _compile.vanish(type(self))
        if log_dir is not None:
            _set_up_logger(log_dir, rank)

    __new__.__wrapped__ = __init__  # type: ignore[attr-defined]  # what inspect.signature shows

    def set_logger(self, logger: logging.Logger | None) -> None:
        """Sets the logger of this timer's messages; None means `GlobalLogger`'s.

        Warnings of misuse (a stop without its start, a stage left open) go there too, each kind
        once per logger.

        Rows of the profile CSV are not messages: `GlobalLogger().setup` says where they go.
        """
        if logger is not None and not callable(getattr(logger, "warning", None)):
            raise TypeError(f"logger must be a logging.Logger, not {type(logger).__name__}")
        self._logger = logger

    def generate_report(
        self,
        stage_pattern: str | re.Pattern[str] = "",
        output_filename: StrPath | None = None,
        iteration_filter: _steps.StepFilter | None = None,
    ) -> stage_report.Report:
        """Figures of the stages, as a dict, and as a table and JSON in files.

        For each stage: count, total, mean, standard deviation, least, p50, p90, p99 and most, in
        milliseconds, and its share of its parent in percent; the same of GPU times where they were
        taken. See docs/time/reports.md for the keys. Stages that still run are not in it.

        stage_pattern: a regular expression, searched for in paths such as "iter/forward".
        output_filename: the table goes there, the JSON next to it with the suffix .json; None
            writes nothing. Folders are made. A failed write is one warning, with `strict` an
            OSError. If memory runs out, the report is empty, with `strict` a MemoryError.
        iteration_filter: None is the whole run, from what the timer adds up as it goes (its
            percentiles are within 1 %). Otherwise a step, a range, a slice, a collection of steps,
            text such as "10:20" (10 to 19), or a callable that takes a step: then the profile CSV
            of this process is read, and the report has each of these iterations as well, with exact
            percentiles. If rows are kept in memory, it has only the newest 1,024 of these
            iterations.

        Raises TypeError and ValueError for wrong arguments. Memory grows with the iterations asked
        for, not with the files. Thread-safe.
        """
        from ...core.arguments import check_path
        from .stage_report import empty_report, make_report, write_text_and_json

        if output_filename is not None:
            check_path("output_filename", output_filename, or_none=True)
        unwritten.has_been_read()
        try:
            report = make_report(self, stage_pattern, iteration_filter, rank=self._rank())
        except MemoryError as error:
            self._fail("not enough memory for the timer report, which is empty", error)
            report = empty_report(str(getattr(stage_pattern, "pattern", stage_pattern)))
        if report["bad_rows"]:
            self._warn(f"{report['bad_rows']} rows of the profile CSV could not be read")
        if output_filename is not None:
            try:
                text, _ = write_text_and_json(report, output_filename)
                self._get_logger().info("timer report written to %s", text)
            except OSError as error:
                self._fail("the timer report could not be written", error)
        return report

    def generate_csv(
        self, report_data: stage_report.Report, csv_filename: StrPath = "timer_report.csv"
    ) -> None:
        """Writes a report as CSV: a line a stage, those of the whole selection first.

        report_data: what `generate_report` returned. The column `step` is empty for the whole
        selection. A failed write is one warning, with `strict` an OSError.
        """
        from ...core.arguments import check_path
        from .stage_report import write_csv

        check_path("csv_filename", csv_filename)
        try:
            write_csv(report_data, csv_filename)
        except OSError as error:
            self._fail("the timer report could not be written", error)

    def _rank(self) -> int:
        from ..log.logger import GlobalLogger

        logger = GlobalLogger()
        given: int | None = self._arguments["rank"]
        return logger.rank if given is None or logger.is_set_up else given

    def _get_logger(self) -> logging.Logger:
        if self._logger is None:
            from ..log.logger import get_global_logger

            return get_global_logger()
        return self._logger

    def _warn(self, message: str) -> None:
        self._get_logger().warning(message)

    def _fail(self, message: str, error: OSError | MemoryError) -> None:
        if self.strict:
            raise error
        self._warn(f"{message}: {error}")

    def __reduce__(self) -> tuple[Any, ...]:
        timer_class = type(self)
        if _compile.is_breaking(timer_class):
            timer_class = timer_class.__bases__[0]
        return _make_timer, (timer_class, self._arguments)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items() if value)
        return f"{type(self).__name__}({given})"


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, not {type(value).__name__}")


def _check_output(log_dir: StrPath | None, rank: int | None) -> None:
    """Also where another directory is in use, and they have no effect."""
    if log_dir is None and rank is None:
        return
    from ...core.arguments import check_integer, check_output_path  # not loaded with a timer

    if log_dir is not None:
        check_output_path("log_dir", log_dir)
    if rank is not None:
        check_integer("rank", rank, 0, _RANK_MAX)


def _make_timer(timer_class: type[MyTimer], arguments: dict[str, Any]) -> MyTimer:
    return timer_class(**arguments)


def _set_up_logger(log_dir: StrPath, rank: int | None) -> None:
    from ..log.logger import GlobalLogger

    logger = GlobalLogger()
    if not logger.is_set_up:
        logger.setup(log_dir, rank=rank, console=False)


@public("my_utils.utils")
class NoOpMyTimer(_core.NoOpTimer):
    """Takes every call of MyTimer and does nothing, at the cost of an empty C method.

    Arguments are ignored. Reports are empty and no file is written; `time_stage` as a decorator
    returns the function unchanged.

    >>> timer = NoOpMyTimer(tag="off")
    >>> with timer.time_stage("forward"):
    ...     pass
    >>> timer.generate_report("")["stages"]
    []
    """

    __slots__ = ("__weakref__",)

    @renamed_parameters(_FIXED)
    def __init__(
        self,
        use_cuda: bool = False,
        tag: str = "",
        log_dir: StrPath | None = None,
        *,
        cuda_stages: str | re.Pattern[str] | None = None,
        strict: bool = False,
        compile: CompileMode = "vanish",
        rank: int | None = None,
    ) -> None:
        _compile.vanish(type(self))

    def set_logger(self, logger: logging.Logger | None) -> None:
        """Does nothing."""

    def generate_report(
        self,
        stage_pattern: str | re.Pattern[str] = "",
        output_filename: StrPath | None = None,
        iteration_filter: _steps.StepFilter | None = None,
    ) -> stage_report.Report:
        """An empty report; no file is written."""
        from .stage_report import empty_report

        return empty_report(str(getattr(stage_pattern, "pattern", stage_pattern)))

    def generate_csv(
        self, report_data: stage_report.Report, csv_filename: StrPath = "timer_report.csv"
    ) -> None:
        """Does nothing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


@public("my_utils.utils")
class DebuggingEvent(threading.Event):
    """A threading.Event that logs who set it: the stack of every `set()`, at level INFO.

    name: is in the message.
    logger: None is that of `GlobalLogger`.

    Thread-safe. It cannot be pickled, as its lock belongs to this process.

    >>> import logging
    >>> done = DebuggingEvent("done", logging.getLogger("quiet"))
    >>> done.set()
    >>> done.is_set()
    True
    """

    def __init__(self, name: str = "", logger: logging.Logger | None = None) -> None:
        super().__init__()
        self.name = name
        self._logger = logger

    def set(self) -> None:
        """Sets the event, waking the threads that wait, and then logs the stack of the caller."""
        super().set()
        logger = self._logger
        if logger is None:
            from ..log.logger import get_global_logger

            logger = get_global_logger()
        if logger.isEnabledFor(logging.INFO):
            stack = "".join(traceback.format_stack()[:-1]).rstrip()
            label = f" {self.name!r}" if self.name else ""
            thread = threading.current_thread().name
            logger.info("event%s was set by thread %s:\n%s", label, thread, stack)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a DebuggingEvent cannot be pickled: its lock belongs to this process; make one in "
            "each process, or share a multiprocessing.Event"
        )


def make_global_timer() -> MyTimer | NoOpMyTimer:
    """`my_utils.utils.global_timer`."""
    if not switch_at_import("ENABLE_TIMER"):
        return NoOpMyTimer()
    try:
        return MyTimer()
    except (OSError, MemoryError, RuntimeError) as error:
        warn_once("global_timer", f"global_timer records nothing: {error}")
        return NoOpMyTimer()


def _serve_request(timer: _core.Timer, step: int) -> None:
    """Called by `set_step` once somebody asked for a capture, see `my_utils.profilers.capture`,
    which is loaded only then."""
    at_step = step_requests.load()
    _core.set_step_hook(at_step)
    at_step(timer, step)


_capture = read_choice("MY_UTILS_CAPTURE", "store", default=True)
if _capture:
    _core.set_step_hook(_serve_request)
if _capture == "store":
    _core.watch_steps(True)  # until torch.distributed has begun
