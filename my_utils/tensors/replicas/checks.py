"""Each rank leaves the sums of what other ranks must have equal, every so many steps; whoever reads
the files compares them."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ... import _core
from ...core.arguments import check_bool, check_int, check_path, wrong_type
from ...core.identity import attempt_from_environment
from ...core.process_end import call_at_end, join_within
from ...core.ranks import current_rank, world_size
from ...core.reprs import short_repr
from ...core.signals import is_of_a_signal
from ...core.warnings import warn_once
from ...record.log.logger import GlobalLogger
from ...record.stages.timers import MyTimer
from ..passport.file import HASH
from .differences import Neighbours
from .file import FORMAT, VERSION, ClassData, SumsWriter, WatchData, stem_of

if TYPE_CHECKING:
    from .sums import Taken
    from .tensors import Finder, Tracked

STAGE = "replicas"
WAITING_MAX = 8  # checks whose sums are not written yet
GENERATIONS_MAX = 16
END_S = 10.0


class ReplicaChecks:
    """Hashes what other ranks must have equal every so many steps, and writes the sums.

    The arguments are those of `ReplicaWatch`. The methods run on the training thread, and raise
    nothing later: trouble is one warning, and the training goes on.
    """

    def __init__(
        self,
        model: Any = None,
        every: int = 100,
        optimizer: Any = None,
        *,
        gradients: bool = False,
        log_dir: str | os.PathLike[str] = "logs",
        timer: _core.Timer | None = None,
    ) -> None:
        self._models = find_models(model)
        self.every = check_int("every", every, 1)
        if optimizer is not None and not hasattr(optimizer, "state"):
            raise wrong_type("optimizer", "an optimizer or None", optimizer)
        self._optimizer = None if optimizer is None else weakref.ref(optimizer)
        self.gradients = check_bool("gradients", gradients)
        self.log_dir = check_path("log_dir", log_dir)
        if timer is not None and not isinstance(timer, _core.Timer):
            raise wrong_type("timer", "a MyTimer or None", timer)
        self.checks = 0
        """How many there were."""
        self._timer: Any = timer
        self._own_timer: MyTimer | None = None  # which has the number of the step
        self._step = self._launch = 0
        self._is_off = False
        self._pid = os.getpid()
        self._finder: Finder | None = None
        self._classes: list[ClassData] | None = None  # of the newest check
        self._notes: list[str] = []
        self._generations: list[tuple[list[ClassData], list[str], int]] = []
        self._writer: Writer | None = None

    def __repr__(self) -> str:
        return short_repr(self, "every", "checks")

    def step(self, step: int | None = None) -> None:
        """A step has ended. Checks if it is the first one, or a multiple of `every`.

        step: its number, the same on all ranks. None counts on from the last one.
        """
        self._step = self._step + 1 if step is None else check_int("step", step, 0, or_none=True)
        is_due = not self.checks or self._step % self.every == 0
        if not is_due or self._is_off or os.getpid() != self._pid:
            return
        try:
            self._check()
        except Exception as error:
            if is_of_a_signal(error):
                raise
            self._give_up(error)

    def steps_to_next(self, step: int) -> int:
        """How many steps after `step` the next check is."""
        return self.every - step % self.every

    def close(self) -> None:
        """Writes what is left. Idempotent; called at the end of the process."""
        if self._writer is not None and os.getpid() == self._pid:
            self._writer.close()
            self._writer = None
        self._is_off = True

    # --- a check ---

    def known_models(self) -> dict[str, Any]:
        """By name; ValueError where there is none any more."""
        models = {name: model() for name, model in self._models.items()}
        if not models or None in models.values():
            raise ValueError("model must be a module: no trainer has said one, or it is gone")
        return models

    def _check(self) -> None:
        if self._finder is None:
            models = self.known_models()
        self.checks += 1
        size = world_size()
        if size == 1:
            self._is_off = True
            warn_once("replicas:alone", "there is one rank, which has no replica to watch")
            return
        if self._finder is None:
            self._set_up(models, size)
        assert self._finder is not None
        self._is_off = self._finder.is_over
        if self._is_off or _is_captured():
            return
        if self._own_timer is not None:
            self._own_timer.set_step(self._step)
        self._timer.start(STAGE)
        try:
            taken = self._take(self._finder.tracked())
        finally:
            self._timer.stop(STAGE)
        if self._writer is not None:
            self._writer.add(self._step, taken)

    def _set_up(self, models: dict[str, Any], size: int) -> None:
        from .launch import launch_number
        from .tensors import Finder

        logger = GlobalLogger()
        if not logger.is_set_up:
            logger.setup(self.log_dir, rank=current_rank(), world_size=size, console=False)
        if self._timer is None:
            self._timer = self._own_timer = MyTimer(tag=STAGE)
        self._finder = Finder(
            models, self._optimizer and self._optimizer(), gradients=self.gradients,
            rank=current_rank(), world_size=size,
        )  # fmt: skip
        self._launch = launch_number()
        call_at_end(self.close)

    def _take(self, tracked: Tracked) -> Taken:
        from .sums import take

        if tracked.classes is not self._classes:
            self._follow(tracked.classes, tracked.notes)
        return take([source.values for source in tracked.sources])

    def _follow(self, classes: list[ClassData], notes: list[str]) -> None:
        """Other tensors have other files; those of before are gone on with."""
        is_same = (self._classes, self._notes) == (classes, notes)
        self._classes, self._notes = classes, notes
        if is_same:
            return
        if self._writer is None:
            self._writer = Writer(str(GlobalLogger().log_dir))
        for known, of_known, generation in self._generations:
            if (known, of_known) == (classes, notes):
                self._writer.go_on(generation)
                return
        if len(self._generations) == GENERATIONS_MAX:
            raise RuntimeError(f"the tensors have changed {GENERATIONS_MAX} times")
        generation = self._begin(self._writer, classes, notes)
        self._generations.append((classes, notes, generation))

    def _begin(self, writer: Writer, classes: list[ClassData], notes: list[str]) -> int:
        attempt = int(_core.output_state()["attempt"] or attempt_from_environment() or 1)
        data = WatchData(
            FORMAT, VERSION, HASH, current_rank(), world_size(), attempt, self.every, classes,
            notes, self._launch,
        )  # fmt: skip
        generation = _next_generation(writer.folder, data.number)
        writer.begin(data, generation)
        return generation

    def _give_up(self, error: Exception) -> None:
        self._is_off = True
        warn_once(
            "replicas",
            f"replicas are not watched any more ({type(error).__name__}: {error}); the training "
            "goes on",
        )


_generations: Counter[tuple[str, int]] = Counter()
"""How many files this process has begun, by folder and launch: each watch has others."""


def _next_generation(folder: str, number: int) -> int:
    _generations[folder, number] += 1
    return _generations[folder, number] - 1


class Writer:
    """A thread that writes the sums once the GPU has them, and looks at what a neighbour wrote."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._files: dict[int, tuple[SumsWriter, Neighbours]] = {}
        self._generation = 0
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="my_utils replicas", daemon=True)
        self._thread.start()

    def begin(self, data: WatchData, generation: int) -> None:
        """New files, for what is added from here on."""
        self._jobs.put(lambda: self._open(data, generation))

    def go_on(self, generation: int) -> None:
        """With the files of before, for what is added from here on."""
        self._jobs.put(lambda: setattr(self, "_generation", generation))

    def add(self, step: int, taken: Taken) -> None:
        """A check is left out while several wait for the disk."""
        if self._jobs.qsize() < WAITING_MAX:
            self._jobs.put(lambda: self._write(step, taken))
        else:
            warn_once("replicas:slow", "checks of replicas are left out while the disk is slow")

    def close(self) -> None:
        """Waits for what is left, some seconds at most."""
        self._jobs.put(None)
        join_within(self._thread, END_S)

    # --- the thread ---

    def _run(self) -> None:
        is_broken = False
        while (job := self._jobs.get()) is not None:
            try:
                if not is_broken:
                    job()
            except Exception as error:
                is_broken = True
                warn_once(
                    "replicas:file",
                    "the sums of replicas are not written any more "
                    f"({type(error).__name__}: {error}); the training goes on",
                )
        for file, _ in self._files.values():
            file.close()

    def _open(self, data: WatchData, generation: int) -> None:
        stem = stem_of(self.folder, data.rank, data.number, generation)
        if os.path.exists(f"{stem}.json"):  # of a process that is gone, which is kept
            data = msgspec.structs.replace(data, launch=0)
            stem = stem_of(self.folder, data.rank, data.number, generation)
        os.makedirs(os.path.dirname(stem), exist_ok=True)
        neighbours = Neighbours(self.folder, data, generation)
        self._files[generation] = SumsWriter(stem, data), neighbours
        self._generation = generation

    def _write(self, step: int, taken: Taken) -> None:
        file, neighbours = self._files[self._generation]
        check = file.add(step, taken.wait())
        for number in neighbours.new_differences(check):
            file.keep(number)


def find_models(model: Any) -> dict[str, weakref.ref[Any]]:
    import torch

    if model is None:
        return {}
    found = dict(model) if isinstance(model, Mapping) else {"": model}
    if not found or not all(isinstance(each, torch.nn.Module) for each in found.values()):
        raise wrong_type("model", "a module, modules by name, or None", model)
    return {name: weakref.ref(each) for name, each in found.items()}


def _is_captured() -> bool:
    """Whether a CUDA graph is being captured, in which nothing can be taken."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
