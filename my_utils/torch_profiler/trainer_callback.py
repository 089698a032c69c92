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
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.arguments import check_bool, check_int, check_path
from ..common.public import public
from ..common.ranks import check_ranks, is_chosen, own_name
from ..common.reprs import short_repr
from .running_call import RunningCall
from .step_windows import NvtxWindow, StepWindow, TorchWindow
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
        Trainer's `global_step` at the end of the window. A folder with files of an earlier
        training is left alone: the new one is `iteration_<step>.2`, and so on.
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

    Files in each folder, of which a file that is there is whole:

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
    window of another thread is closed when the next training begins, whichever its callback is, and
    when the process exits. While another profiler runs, a window passes unprofiled with a warning;
    when the program opens one within a window, the window ends there and is written. One training
    at a time; not for use from several threads.

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
        self.output_dir = _path("output_dir", output_dir, default=Path(OUTPUT_DIR))
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
        self.nsight_systems_output_file = _path(
            "nsight_systems_output_file",
            nsight_systems_output_file,
            default=self.output_dir / NSYS_FILE,
        )
        self.ranks = check_ranks("ranks", ranks)
        self.folders: list[Path] = []
        if not (with_stack and record_shapes) and profile_memory:
            _logger.warning(
                "ProfCallback: profile_memory=True sets with_stack=True and record_shapes=True"
            )
        self._window: StepWindow | None = None
        self._training: RunningCall | None = None
        # Steps to the next change; never 0 at the end of a step when nothing is left to do.
        self._countdown = 0
        # A change that waits until evaluation and saving are over, so that they are not profiled.
        self._due = False
        self._cycles = 0
        self._began_at = 0
        self._warned_short = False

    def __repr__(self) -> str:
        return short_repr(
            self, "output_dir", "wait_steps", "warmup_steps", "active_steps", "num_cycles"
        )

    # --- what the Trainer calls ---

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts to count. `global_step` is above 0 when a training is resumed."""
        self.close()
        self._training = RunningCall(skip=_of_trainer_callbacks)
        self._cycles = 0
        self._began_at = state.global_step
        self._warned_short = False
        if not is_chosen(self.ranks) or not self._may_profile():
            return
        if state.max_steps > 0:
            self._warn_if_short(state.max_steps - state.global_step)
        if self._next_cycle():
            self._change(state.global_step)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluation and saving at the end of an epoch are over."""
        if self._due:
            self._change(state.global_step)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins, with its data at hand."""
        if self._due:
            self._change(state.global_step)
        if self._window is not None:
            self._window.inside = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step of the optimizer is over."""
        self._countdown -= 1
        if self._countdown:
            return
        window = self._window
        if window is not None:
            window.inside = False
            window.done += 1
            if window.complete:
                self._close_window()
                if not self._next_cycle():
                    return
        if _pauses(state, control):
            self._due = True
        else:
            self._change(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation is over, in the training or apart from it."""
        if self._due and not control.should_save:
            self._change(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        if self._due and not control.should_evaluate:
            self._change(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes what there is of a window that the training did not fill."""
        cut = self._window is not None or self._due or self._countdown > 0
        self.close()
        if cut:
            self._warn_if_short(state.global_step - self._began_at)

    # --- what the user calls ---

    def close(self) -> None:
        """Ends the profiling of this training. A window that has a recorded step, or part of one,
        is written. Does nothing when nothing runs."""
        self._countdown = 0
        self._due = False
        self._close_window()

    def __enter__(self) -> ProfCallback:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # --- windows ---

    def _next_cycle(self) -> bool:
        """Waits for the next window, if there is one more; whether the next step is its first."""
        if self.num_cycles and self._cycles == self.num_cycles:
            return False
        self._cycles += 1
        self._countdown = self.wait_steps
        return not self._countdown

    def _change(self, step: int) -> None:
        """The next step, behind `step` others, is one of a window. Trouble ends the profiling."""
        self._due = False
        self._countdown = 1
        try:
            if self._window is None:
                self._window = self._new_window(step)
                self._window.open()
            else:
                self._window.go_on()
        except Exception:
            _logger.exception("ProfCallback: the profiler failed, and the training goes on without")
            self.close()

    def _close_window(self) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        try:
            window.close()
        except Exception:
            _logger.exception("ProfCallback: the profiler failed, and the training goes on without")

    def _new_window(self, step: int) -> StepWindow:
        steps = (step, self.warmup_steps, self.active_steps)
        owner = f"ProfCallback, output_dir={os.fspath(self.output_dir)!r}"
        over = None if self._training is None else self._training.over
        if self.enable_nsight_systems:
            return NvtxWindow(
                *steps, owner=owner, at_exit=self.close, over=over, record_shapes=self.record_shapes
            )
        # What it writes must know the window, also when the window is being closed.
        window = TorchWindow(
            *steps,
            owner=owner,
            write=lambda profiler: self._write(profiler, window),
            at_exit=self.close,
            over=over,
            wants_history=self.profile_memory and self.export_memory_timeline,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            record_shapes=self.record_shapes,
            with_flops=self.with_flops,
            activities=None if self.cpu and self.cuda else ["cpu" if self.cpu else "cuda"],
        )
        return window

    def _write(self, profiler: Any, window: TorchWindow) -> None:
        name = own_name("rank{}")
        folder = own_folder(self.output_dir, f"iteration_{window.last_step}", name)
        files = WindowFiles(
            name=name,
            leading=name == f"rank{min(self.ranks or (0,))}",
            key_averages=self.export_key_averages,
            memory=self.profile_memory and self.export_memory_timeline,
            stacks=self.with_stack and self.export_stacks,
            by_shape=self.record_shapes,
            by_stack=self.with_stack,
        )
        if files.write(profiler, folder, window.history):
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
            _logger.warning(
                "ProfCallback: enable_nsight_systems=True, but the program does not run under "
                "nsys, so nothing is profiled. Start it as: %s", self._command_line(),
            )  # fmt: skip
            return False
        import torch

        if not torch.cuda.is_available():
            _logger.warning(
                "ProfCallback: CUDA is not available, so there are no NVTX ranges of operators for "
                "nsys; stages of a MyTimer are ranges also without CUDA"
            )
            return False
        return True

    def _command_line(self) -> str:
        script = sys.argv[0] if sys.argv and sys.argv[0].endswith(".py") else "your_script.py"
        return (
            f"nsys profile --trace=cuda,nvtx -o {self.nsight_systems_output_file} python {script}"
        )


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


# --- arguments ---


def _steps(name: str, value: int | None, *, default: int, least: int) -> int:
    return default if value is None else check_int(name, value, least, or_none=True)


def _path(name: str, value: str | os.PathLike[str] | None, *, default: Path) -> Path:
    return default if value is None else check_path(name, value, or_none=True)
