"""Runs torch's profiler, or Nsight Systems, for a few steps of transformers' `Trainer`.

>>> from my_utils.profiling.trainer_callback import ProfCallback  # doctest: +SKIP
>>> trainer = Trainer(model, args, train_dataset=data, callbacks=[ProfCallback()])  # doctest: +SKIP
>>> trainer.train()  # doctest: +SKIP

leaves a trace, tables and the memory's history of the ninth step in `profiler_output/iteration_9`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ...core.arguments import check_bool, check_int, check_path
from ...core.public import public
from ...core.ranks import check_ranks, is_chosen, own_name
from ...core.reprs import short_repr
from .step_windows import NvtxWindow, Schedule, TorchWindow, Windows
from .torch_profile import Steps
from .window_files import WindowFiles, own_folder

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    try:
        from transformers import TrainerCallback
    except ImportError:
        TrainerCallback = object  # ProfCallback() raises and names what is missing


_logger = logging.getLogger("my_utils")

OUTPUT_DIR = "./profiler_output"
NSYS_FILE = "nsys_profile.nsys-rep"
# Set in programs that run under `nsys profile`.
NSYS_SESSION = "NSYS_PROFILING_SESSION_ID"


@public("my_utils.profiling.trainer_callback")
class ProfCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Profiles some steps of `Trainer.train` and writes traces, tables and memory figures.

    output_dir: where the folders `iteration_<step>` go, one for each window. `step` is the
        Trainer's `global_step` at the end of the window. A folder with files of an earlier training
        run is left alone: the new one is `iteration_<step>.2`, and so on.
    wait_steps, warmup_steps, active_steps: steps that pass unprofiled, steps in which the profiler
        runs and its data is thrown away, and steps that are recorded. A step is one of the
        optimizer, however many batches it accumulates, with the loading of its data.
    num_cycles: how often wait, warm-up and active come; 0: until the training ends.
    profile_memory: records allocations, and sets `with_stack` and `record_shapes`.
    with_stack, record_shapes: records stacks of Python, and shapes of inputs.
    export_memory_timeline: writes the timeline and the snapshot of the memory, when
        `profile_memory` is on. The timeline needs matplotlib.
    export_stacks: writes the stacks, when `with_stack` is on.
    export_key_averages: writes the table of operators.
    enable_nsight_systems: for runs under `nsys profile`, see below.
    nsight_systems_output_file: the report's name in the command line that is suggested;
        `<output_dir>/nsys_profile.nsys-rep` by default.
    ranks: the ranks that profile; None for all.
    cpu, cuda: what torch's profiler records, the CPU's operators and the device's kernels.
    with_flops: the table has the operators' FLOPs.

    None for a parameter means its default. TypeError and ValueError name the parameter;
    ImportError when transformers is missing.

    Files in each folder; each is whole or not there:

    ========================================  ====================================================
    `rank<rank>.pt.trace.json`                trace for https://ui.perfetto.dev and TensorBoard
    `key_averages.txt`                        operators by time: a short table of their names, and
                                              one grouped by name, shapes, stack;
                                              `rank<rank>_key_averages.txt` on all ranks but
                                              the lowest
    `rank<rank>_memory-timeline.html`         memory over time by category
    `rank<rank>_memory_snapshot.pickle`       for https://pytorch.org/memory_viz; of CUDA's
                                              allocator, or without CUDA what the profiler saw
    `rank<rank>_stacks.txt`                   stacks and microseconds, for flame graphs
    ========================================  ====================================================

    An actor or a task of Ray that has no rank, from torch.distributed, the environment or
    `GlobalLogger().setup`, has its id in the names instead: `actor_0123456789ab.pt.trace.json`.

    With `enable_nsight_systems=True` torch's profiler stays off and none of these is written. Under
    nsys (`NSYS_PROFILING_SESSION_ID` is set) each operator and step of the window is an NVTX range,
    and the CUDA profiler is started and stopped around it. Otherwise a warning says how to start
    the program.

    The Trainer calls nothing when the training raises or is interrupted. The window that was open
    is then closed, and written as far as it went, by `close()`, at the end of `with callback:`, and
    without either within a second of the end of `train()`, when the main thread runs Python code. A
    window of another thread is closed when the next training run begins, with whichever callback,
    and when the process exits. While another profiler runs, a window passes unprofiled with a
    warning; when the program opens one within a window, the window ends there and is written. One
    training run at a time; not for use from several threads.

    `folders` are the folders that were written, in order.
    """

    def __init__(
        self,
        output_dir: str | os.PathLike[str] | None = OUTPUT_DIR,
        wait_steps: int | None = 4,
        warmup_steps: int | None = 4,
        active_steps: int | None = 1,
        num_cycles: int | None = 1,
        profile_memory: bool = True,
        with_stack: bool = True,
        record_shapes: bool = True,
        export_memory_timeline: bool = True,
        export_stacks: bool = True,
        export_key_averages: bool = True,
        enable_nsight_systems: bool = False,
        nsight_systems_output_file: str | os.PathLike[str] | None = None,
        ranks: int | Iterable[int] | None = None,
        *,
        cpu: bool = True,
        cuda: bool = True,
        with_flops: bool = False,
    ) -> None:
        _check_transformers()
        self.cpu = check_bool("cpu", cpu)
        self.cuda = check_bool("cuda", cuda)
        if not cpu and not cuda:
            raise ValueError("cpu and cuda must not both be False")
        self.with_flops = check_bool("with_flops", with_flops)
        output = OUTPUT_DIR if output_dir is None else output_dir
        self.output_dir = check_path("output_dir", output, or_none=True)
        self.wait_steps = _steps("wait_steps", wait_steps, default=4, least=0)
        self.warmup_steps = _steps("warmup_steps", warmup_steps, default=4, least=0)
        self.active_steps = _steps("active_steps", active_steps, default=1, least=1)
        self.num_cycles = _steps("num_cycles", num_cycles, default=1, least=0)
        self.profile_memory = check_bool("profile_memory", profile_memory)
        self.with_stack = check_bool("with_stack", with_stack) or profile_memory
        self.record_shapes = check_bool("record_shapes", record_shapes) or profile_memory
        self.export_memory_timeline = check_bool("export_memory_timeline", export_memory_timeline)
        self.export_stacks = check_bool("export_stacks", export_stacks)
        self.export_key_averages = check_bool("export_key_averages", export_key_averages)
        self.enable_nsight_systems = check_bool("enable_nsight_systems", enable_nsight_systems)
        report = nsight_systems_output_file
        if report is None:
            report = self.output_dir / NSYS_FILE
        self.nsight_systems_output_file = check_path(
            "nsight_systems_output_file", report, or_none=True
        )
        self.ranks = check_ranks("ranks", ranks)
        self.folders: list[Path] = []
        if not (with_stack and record_shapes) and profile_memory:
            _logger.warning(
                "ProfCallback: profile_memory=True sets with_stack=True and record_shapes=True"
            )
        self._windows: Windows | None = None  # None when nothing is left to profile
        # Whether a step runs. Between steps data is loaded, which counts as part of the next one.
        self._inside = False
        # A change that waits until evaluation and saving are over, so that they are not profiled.
        self._due = False
        self._warned_short = False

    def __repr__(self) -> str:
        return short_repr(
            self, "output_dir", "wait_steps", "warmup_steps", "active_steps", "num_cycles"
        )

    # --- what the Trainer calls ---

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts to count. `global_step` is above 0 when a training run is resumed."""
        self.close()
        self._warned_short = False
        if not is_chosen(self.ranks) or not self._may_profile():
            return
        if state.max_steps > 0:
            self._warn_if_short(state.max_steps - state.global_step)
        training = RunningCall(skip=_of_trainer_callbacks)
        self._windows = Windows(
            f"ProfCallback, output_dir={os.fspath(self.output_dir)!r}",
            Schedule(0, self.wait_steps, self.warmup_steps, self.active_steps, self.num_cycles),
            lambda steps: self._new_window(steps, training.over),
            began_at=state.global_step,
        )
        if self._windows.begin():
            self._windows.go_on()

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluation and saving at the end of an epoch are over."""
        self._change_if_due()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins, with its data at hand."""
        if self._due:
            self._change_if_due()
        self._inside = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step of the optimizer is over."""
        self._inside = False
        windows = self._windows
        if windows is None:
            return
        windows.steps += 1
        if windows.steps == windows.change_at and windows.close_whole():
            self._due = True
            if not _pauses(state, control):
                self._change_if_due()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over, in the training or apart from it."""
        if not control.should_save:
            self._change_if_due()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        if not control.should_evaluate:
            self._change_if_due()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes what there is of a window that the training did not fill."""
        windows = self._windows
        self.close()
        if windows is not None:
            self._warn_if_short(state.global_step - windows.began_at)

    # --- what the user calls ---

    def close(self) -> None:
        """Ends the profiling of this training run. A window that has a recorded step, or part of
        one, is written. Does nothing when nothing runs."""
        self._due = False
        if self._windows is not None:
            self._windows.close()
        self._windows = None
        self._inside = False

    def __enter__(self) -> ProfCallback:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- windows ---

    def _change_if_due(self) -> None:
        due, self._due = self._due, False
        if due and self._windows is not None:
            self._windows.go_on()

    def _new_window(self, steps: Steps, over: Callable[[], bool]) -> TorchWindow | NvtxWindow:
        assert self._windows is not None
        owner = self._windows.owner
        if self.enable_nsight_systems:
            return NvtxWindow(owner, steps, over=over, record_shapes=self.record_shapes)
        return TorchWindow(
            owner,
            steps,
            self._write,
            over=over,
            wants_history=self.profile_memory and self.export_memory_timeline,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            record_shapes=self.record_shapes,
            with_flops=self.with_flops,
            activities=None if self.cpu and self.cuda else ["cpu" if self.cpu else "cuda"],
        )

    def _write(self, window: TorchWindow) -> None:
        assert self._windows is not None
        last_step = self._windows.steps + self._inside
        if last_step <= window.steps.active:  # no recorded step has begun
            return
        name = own_name("rank{}")
        folder = own_folder(self.output_dir, f"iteration_{last_step}", name)
        files = WindowFiles(
            name=name,
            leading=name == f"rank{min(self.ranks or (0,))}",
            key_averages=self.export_key_averages,
            memory=self.profile_memory and self.export_memory_timeline,
            stacks=self.with_stack and self.export_stacks,
            by_shape=self.record_shapes,
            by_stack=self.with_stack,
        )
        if files.write(window.profiler, folder, window.history):
            self.folders.append(folder)

    # --- messages ---

    def _warn_if_short(self, steps: int) -> None:
        """Warns, once a training, that its steps are too few for the schedule."""
        parts = (self.wait_steps, self.warmup_steps, self.active_steps)
        cycle = sum(parts)
        needed = cycle * max(self.num_cycles, 1)
        if steps >= needed or self._warned_short:
            return
        self._warned_short = True
        _logger.warning(
            "ProfCallback needs %d steps (%s wait + %s warm-up + %s active%s), this training has "
            "%d: %s",
            needed, *parts, f", {self.num_cycles} times" if self.num_cycles > 1 else "", steps,
            f"{steps // cycle} windows are complete" if steps >= cycle else "no window is complete",
        )  # fmt: skip

    def _may_profile(self) -> bool:
        """False when Nsight Systems is asked for and cannot be served."""
        if not self.enable_nsight_systems:
            return True
        if not os.environ.get(NSYS_SESSION):
            is_script = bool(sys.argv) and sys.argv[0].endswith(".py")
            _logger.warning(
                "ProfCallback: enable_nsight_systems=True, but the program does not run under "
                "nsys, so nothing is profiled. Start it as: nsys profile --trace=cuda,nvtx "
                "-o %s python %s",
                self.nsight_systems_output_file,
                sys.argv[0] if is_script else "your_script.py",
            )
            return False
        import torch

        if not torch.cuda.is_available():
            _logger.warning(
                "ProfCallback: CUDA is not available, so there are no NVTX ranges of operators for "
                "nsys; stages of a MyTimer are ranges also without CUDA"
            )
            return False
        return True


def _check_transformers() -> None:
    if TrainerCallback is object:
        raise ImportError(
            "ProfCallback needs transformers, which cannot be imported: "
            "pip install transformers accelerate",
            name="transformers",
        )


def _of_trainer_callbacks(file: str) -> bool:
    """Whether it is the file by which the Trainer calls its callbacks."""
    return os.path.basename(file) == "trainer_callback.py"


def _pauses(state: Any, control: Any) -> bool:
    """Whether something else may come between the step that is over and the next, if one comes."""
    ends_epoch = state.epoch is not None and float(state.epoch).is_integer()
    return bool(
        ends_epoch or control.should_evaluate or control.should_save or control.should_training_stop
    )


def _steps(name: str, value: int | None, *, default: int, least: int) -> int:
    return default if value is None else check_int(name, value, least, or_none=True)


class RunningCall:
    """The call that called the function which makes this; of its callers the first that is not in
    a file that `skip` names.

    It holds no frame, which would keep the variables of the call alive, but where the frame is. Any
    thread may ask.

    >>> def begin():
    ...     return RunningCall()
    >>> def outer():
    ...     call = begin()
    ...     return call, call.over()
    >>> call, early = outer()
    >>> early, call.over()
    (False, True)
    """

    def __init__(self, skip: Callable[[str], bool] = lambda file: False) -> None:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and skip(frame.f_code.co_filename):
            frame = frame.f_back
        self._thread = threading.get_ident()
        self._mark = None if frame is None else _mark_of(frame, _depth(frame))

    def over(self) -> bool:
        """Whether the call has ended, by returning or by an exception. False if there is no such
        call."""
        if self._mark is None:
            return False
        frame = sys._current_frames().get(self._thread)
        below = 0 if frame is None else _depth(frame) - self._mark[0]
        while frame is not None and below > 0:
            frame = frame.f_back
            below -= 1
        return frame is None or below < 0 or _mark_of(frame, self._mark[0]) != self._mark


def _depth(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += 1
        frame = frame.f_back
    return count


def _mark_of(frame: FrameType, depth: int) -> tuple[int, int, int]:
    """What no other frame of the thread has while this one is there."""
    return depth, id(frame), id(frame.f_code)
