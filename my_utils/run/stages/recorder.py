"""Records the stages of a training whose script is not changed.

>>> recorder = arm(lambda: None)
>>> recorder.is_rank  # nothing has trained yet
False
>>> recorder.disarm()

Until a process turns out to be a rank, its rows wait in memory and no file is made: most processes
that import torch are launchers, loader workers and helpers.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ... import _core
from ...core.environment import read_switch
from ...core.process_end import call_at_end
from ...core.signals import is_of_a_signal
from ...core.warnings import warn_once
from ...record.log.logger import GlobalLogger
from ...record.stages.timers import MyTimer
from ..environment import COLLECTIVES, HOST_SAMPLES, bucket_steps, hung_after_s, replica_steps
from . import describe
from .batches import batch_size
from .buckets import BucketSampler, SampledSteps
from .counters import MemoryCounter
from .fsdp_backward import FlightSampler
from .iterations import LEADS_AFTER, HiddenUpdates, Iterations
from .meetings import Meetings
from .patches import Listener, Patches
from .roots import Roots, outermost
from .standstill import StandstillWatch

if TYPE_CHECKING:
    from ...tensors.replicas.checks import ReplicaChecks

# The host works in these, and events would time that.
_ON_THE_DEVICE = "^(?!input$|checkpoint$|restore$)"
_DRAIN_NS = 100_000_000
_DRAIN_STEPS = 32
_LOOK_NS = 10_000_000
_LOOK_STEPS = 32
_MET_MAX = 1024  # stages in groups
_FILES_MAX = 64  # that are loaded before the first iteration

OnFirst = Callable[[], Mapping[str, object] | None]

_armed: Recorder | None = None
_watches_forks = False


def arm(on_first_iteration: OnFirst) -> Recorder:
    """Patches torch in this process; call it once torch has executed, before the script runs.

    on_first_iteration: called once, when this process turns out to be a rank: at the end of its
        first optimizer step, or of its eighth backward without one. It sets up GlobalLogger, and
        the rows that were recorded before follow. What it returns is added to the row
        `my_utils.run`.

    A second call returns the recorder that there is. Not thread-safe. Never raises later: trouble
    is one warning, and the recorder steps aside.
    """
    global _armed, _watches_forks
    if _armed is None:
        _armed = Recorder(on_first_iteration)
        _armed.start()
        if not _watches_forks:
            _watches_forks = True
            os.register_at_fork(after_in_child=_after_fork_in_child)
    return _armed


def _after_fork_in_child() -> None:
    if _armed is not None:
        _armed.after_fork_in_child()


def _all_ranks() -> None:
    """In the place of a reference to the group of all ranks, which is None."""


def _shares_parameters(one: object, other: object) -> bool:
    """Whether the first parameter of the second optimizer is among those of the first one."""
    groups = [getattr(each, "param_groups", None) or [{}] for each in (one, other)]
    first = next(iter(groups[1][0].get("params", ())), None)
    return any(first is known for group in groups[0] for known in group.get("params", ()))


def _make_timer() -> MyTimer:
    return MyTimer(tag="run", cuda_stages=_ON_THE_DEVICE)


class Recorder(Listener):
    """Ties stages, iterations and rows together. Its methods run on the training thread.

    >>> recorder = Recorder(lambda: None)
    >>> recorder
    Recorder(Iterations(0 complete), Roots(; level 0))
    """

    def __init__(self, on_first_iteration: OnFirst) -> None:
        self.is_rank = False
        """Whether this process has turned out to be a rank."""
        self.stages = _core.RunStages(_make_timer, torch.is_grad_enabled)
        self.stages.is_interrupt = is_of_a_signal
        self.stages.know_tensors(torch.Tensor, torch.int64, torch.int32)
        self.roots = Roots(self.stages.begin_forward, self.stages.end)
        records_collectives = read_switch(COLLECTIVES, default=True)
        self._meetings = Meetings(self.stages, self._write) if records_collectives else None
        self.patches = Patches(self.stages, self, self._meetings)
        self._on_first = on_first_iteration
        self._settings: dict[str, object] | None = None  # of the first loader
        self._imported_ns = time.time_ns()  # torch has executed
        self._joined_ns = 0  # in init_process_group
        self._finished = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.iterations = Iterations(self)
        self._updates: HiddenUpdates | None = HiddenUpdates(
            self.stages, self.iterations, self._become_rank
        )
        self.stages.unfollow()
        self.stages.forget_batches()
        self.stages.forget_host()
        self._watch_workers(None)
        if self._meetings is not None:
            self._meetings.begin_anew()
        self._leader: weakref.ref[object] | None = None  # the optimizer that leads
        self._optimizers: weakref.WeakSet[object] = weakref.WeakSet()  # that have stepped
        self._memory = MemoryCounter()
        self._buckets: SampledSteps = BucketSampler(self.stages, self._write, bucket_steps())
        self.stages.buckets = None
        self._standstill: StandstillWatch | None = None
        self._replicas: ReplicaChecks | None = None
        # Groups by id() too, weakly: one that the script drops takes its threads with it.
        self._met: dict[tuple[str, str, int], Callable[[], object]] = {}
        self._written: set[tuple[str, str, str]] = set()
        self._files: list[dict[str, object]] = []  # that were loaded before this is a rank
        self._forwards = 0
        self._drained_ns = 0
        self._drained_steps = -1  # before the first iteration is over

    def __repr__(self) -> str:
        self._catch_up()
        return f"Recorder({self.iterations!r}, {self.roots!r})"

    def start(self) -> None:
        """Applies the patches."""
        self._watch_backwards()
        # Steps inside a backward are one step.
        self.stages.on_step = functools.partial(self._stepped, 0)
        gc.callbacks.append(self.stages.collected)
        self.patches.apply()

    def _watch_backwards(self) -> None:
        if self._updates is not None:
            self.stages.on_backward = self._updates.after_backward

    def disarm(self) -> None:
        """Ends the recording and takes every patch back. Idempotent."""
        global _armed
        self.finish()
        self.stages.on = False
        self.patches.remove()
        if self.stages.collected in gc.callbacks:
            gc.callbacks.remove(self.stages.collected)
        self.roots.restore()
        if _armed is self:
            _armed = None

    def finish(self) -> None:
        """The training is over: what came after the last step belongs to no iteration. Idempotent;
        called at the end of the process."""
        if self._finished or not self.is_rank or not self.stages.on:
            return
        self._finished = True
        if self._standstill is not None:
            self._standstill.stop()
        if self._replicas is not None:
            self._replicas.close()
        try:
            if self._updates is not None:
                self._updates.finish()
            self._catch_up()
            self._buckets.forget()
            count = self.iterations.finish()
            self.stages.write_batches(count - 1)
            self.stages.forget_host()
            ended: dict[str, object] = {"iterations": count}
            if (error := getattr(sys, "last_type", None)) is not None:
                ended["error"] = error.__name__
            GlobalLogger().instant("my_utils.run_end", ended, step=-1)
        except Exception as error:
            self._step_aside(error)

    def after_fork_in_child(self) -> None:
        """A child may become a rank, as other processes do. That of a rank records nothing before
        its first optimizer step, as its rows would go to files at once: most are loader workers."""
        self.stages.on = not self.is_rank
        if self.is_rank:
            self._wake_at_a_step()
        self.is_rank = self._finished = False
        self._begin_anew()
        self._watch_backwards()

    def _wake_at_a_step(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def wake(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
            if torch.compiler.is_compiling():
                return
            handle.remove()
            self.stages.on = True
            self.stepped(optimizer)

        handle = register_optimizer_step_post_hook(wake)

    # --- Records ---

    def position(self) -> int:
        """Where the next record goes."""
        return self.stages.position()

    def change_step(self, begin: int, end: int, step: int, /) -> int:
        """Gives the records between two positions another step."""
        return self.stages.change_step(begin, end, step)

    def set_step(self, step: int) -> None:
        """The step of the records from here on."""
        self.stages.timer.set_step(step)

    # --- Listener ---

    def stepped(self, optimizer: object) -> None:
        try:
            if self.stages.led:
                self._look()
            else:
                self._let_lead(optimizer)
                self._stepped(id(optimizer))
        except Exception as error:
            self._step_aside(error)

    def loaded(self, iterator: object, batch: object) -> None:
        try:
            if self._settings is None:
                self._settings = describe.workload(iterator)
                if self.is_rank:
                    self._write("my_utils.workload", self._settings)
            workers = getattr(iterator, "_workers", None)
            if workers is not self._workers:
                self._watch_workers(workers)
            self._add_batch(batch)
        except Exception as error:
            self._step_aside(error)

    def exhausted(self) -> None:
        """What it took belongs to the iteration before: another one may not come."""
        try:
            begin = self.position()
            self.stages.end()
            following = self.stages.following
            step = self.iterations.current if following is None else following - 1
            self.change_step(begin, self.position(), step)
        except Exception as error:
            self._step_aside(error)

    def _add_batch(self, batch: object) -> None:
        try:
            if not self.stages.add_batch(batch):
                self.stages.add_samples(*batch_size(batch))
        except Exception as error:
            if is_of_a_signal(error):
                raise
            warn_once(
                "run_batch_size",
                f"batches whose size cannot be read are not counted ({type(error).__name__}: "
                f"{error})",
            )

    def _watch_workers(self, workers: list[Any] | None) -> None:
        """The processes of the loader's iterator are these; None: it loads in this one."""
        self._workers = workers
        processes = [worker.pid for worker in workers or ()]
        self.stages.watch_workers([process for process in processes if process])

    def met(self, stage: str, kind: str, group: object) -> None:
        key = stage, kind, id(group)
        known = self._met.get(key)
        if known is not None and known() is group:
            return
        try:
            reference = _all_ranks if group is None else weakref.ref(group)
        except TypeError:  # no group
            return
        try:
            if len(self._met) >= _MET_MAX:
                self._met.clear()
            self._met[key] = reference
            if self.is_rank:
                self._write_met(stage, kind, group)
        except Exception as error:
            self._step_aside(error)

    def saved(self, file: object) -> None:
        self._note_file("saved", file)

    def restored(self, file: object) -> None:
        if not self.is_rank:  # what is loaded later continues no attempt
            self._note_file("restored", file)

    def _note_file(self, did: str, file: object) -> None:
        try:
            keys = describe.keys_of_file(file)
            if keys and self.is_rank:
                self._write("my_utils.file", {"did": did, **keys})
            elif keys and len(self._files) < _FILES_MAX:
                self._files.append({"did": did, **keys})
        except Exception as error:
            self._step_aside(error)

    def joined(self, ns: int) -> None:
        self._joined_ns += ns

    def compiled(self, ns: int) -> None:
        try:
            self._catch_up()
            _core.log_event("compile", "COUNTER", self.iterations.number, f"us={ns // 1000}")
        except Exception as error:
            self._step_aside(error)

    def freezes(self) -> None:
        try:
            self.roots.remember()
        except Exception as error:
            self._step_aside(error)

    def _step_aside(self, error: Exception) -> None:
        if is_of_a_signal(error):
            raise error
        self.stages.on = False
        warn_once(
            "run_stages",
            "the stages of this run are recorded no further "
            f"({type(error).__name__}: {error}); the training goes on",
        )

    # --- steps ---

    def _let_lead(self, optimizer: object) -> None:
        """A new optimizer leads from its first step on where the one that leads is gone, or had the
        same parameters: the script goes on with another. Else it has to prove it."""
        self._catch_up()
        is_new = optimizer not in self._optimizers
        if is_new:
            self._optimizers.add(optimizer)
        if self.iterations.leader in (None, 0, id(optimizer)):
            self._leader = weakref.ref(optimizer)
            return
        leader = None if self._leader is None else self._leader()
        is_later = self.iterations.is_regular and self.iterations.number > LEADS_AFTER
        if is_new and (leader is None or (is_later and _shares_parameters(leader, optimizer))):
            self.iterations.lead_anew()
            self._leader = weakref.ref(optimizer)

    def _stepped(self, optimizer: int) -> None:
        if self._updates is not None:
            self._updates = self.stages.on_backward = self.stages.on_forward = None
        self._catch_up()
        leads = self.iterations.stepped(optimizer)
        if not self.is_rank:
            self._become_rank()
        self.stages.step_batches(leads, self.iterations.current)
        if leads:
            self._memory.write(self.iterations.current)
            self._buckets.after_step(self.iterations.current)
            self.stages.end_host(self.iterations.current)
            self._check_replicas()
            self._follow_forwards(self.stages.forwards == self._forwards)
            self._drain_sometimes()
            if self.iterations.is_regular:
                self._follow()

    def _follow(self) -> None:
        """Regular iterations are counted in C; it reports now and then."""
        leader = self.iterations.leader
        assert isinstance(leader, int)
        number = self.iterations.number
        steps = self._buckets.steps_to_next(number, _LOOK_STEPS)
        if self._replicas is not None:
            steps = min(steps, self._replicas.steps_to_next(self.iterations.current))
        self.stages.follow(leader, number, steps, _LOOK_NS)

    def _catch_up(self) -> None:
        """With what was counted in C, which ends."""
        counted = self.stages.unfollow()
        if counted is not None:
            self.iterations.resume(*counted)

    def _look(self) -> None:
        """What must be done now and then, while iterations are counted in C."""
        self._catch_up()
        self._memory.write(self.iterations.current)
        self._buckets.after_step(self.iterations.current)
        self._check_replicas()
        self._follow_forwards(self.stages.forward_missing)
        self._drain_sometimes()
        self._follow()

    def _follow_forwards(self, is_missing: bool) -> None:
        """No forward in an iteration: the script calls what is deeper."""
        if is_missing and self._drained_steps >= 0:
            self.roots.descend()
        self._forwards = self.stages.forwards

    def _drain_sometimes(self) -> None:
        """All is in the journal at once; its way to the CSV may wait for more rows.

        Where iterations differ, the thread that drains could take rows whose step will change; so
        it could in the first iteration, whose length nobody knows.
        """
        steps = self.stages.steps
        if self._drained_steps < 0:
            self._drained_steps = steps
            return
        now = time.monotonic_ns()
        if steps - self._drained_steps >= _DRAIN_STEPS or now - self._drained_ns > _DRAIN_NS:
            self._drained_ns, self._drained_steps = now, steps
            if self.iterations.varies:
                self.stages.timer.step(False)
            else:
                self.stages.drain_soon()

    # --- what is written once ---

    def _become_rank(self) -> None:
        modules = self.roots.scan()
        extra = self._on_first() or {}
        self.is_rank = True
        call_at_end(self.finish)
        if read_switch(HOST_SAMPLES, default=True):
            self.stages.sample_host()
            if uuid := describe.gpu_uuid():
                self.stages.watch_gpu(uuid)
        stage = describe.pipeline_stage()
        self._write("my_utils.run", {
            "device": describe.device_kind(modules),
            "torch": torch.__version__,
            "wrappers": describe.wrappers(modules),
            "threads": torch.get_num_threads(),
            **({} if stage is None else {"pipeline_stage": stage}),
            "forward_from_step": self.iterations.number,
            **extra,
        })  # fmt: skip
        if self._settings is not None:
            self._write("my_utils.workload", self._settings)
        self._write(
            "my_utils.launch",
            {"imported_ns": self._imported_ns, "process_group_ns": self._joined_ns},
        )
        for file in self._files:
            self._write("my_utils.file", file)
        self._files.clear()
        self._write_meetings(modules)
        if self._meetings is not None:
            self._meetings.write_groups()
        self._watch_backward(modules)
        self._watch_replicas(modules)
        self._watch_standstill()

    def _watch_standstill(self) -> None:
        """Where other ranks can be waited for."""
        logger, after_s = GlobalLogger(), hung_after_s()
        if logger.world_size > 1 and logger.log_dir is not None and after_s > 0:
            self._standstill = StandstillWatch(
                lambda: self.stages.steps, logger.log_dir, logger.rank, after_s
            )

    def _watch_replicas(self, modules: list[torch.nn.Module]) -> None:
        """A step is one of the optimizer; the timer of the stages is theirs."""
        every, models = replica_steps(), outermost(modules)
        if every and models and GlobalLogger().world_size > 1:
            from ...tensors.replicas.checks import ReplicaChecks

            names = [f"{type(model).__name__}_{n}" for n, model in enumerate(models)]
            named = dict(zip(names, models, strict=True)) if len(models) > 1 else {"": models[0]}
            self._replicas = ReplicaChecks(named, every, timer=self.stages.timer)

    def _check_replicas(self) -> None:
        if self._replicas is not None:
            begin = self.position()
            self._replicas.step(self.iterations.current)
            self.change_step(begin, self.position(), self.iterations.current)

    def _watch_backward(self, modules: list[torch.nn.Module]) -> None:
        """Which rank the others wait for inside it: by DDP's buckets or FSDP's collectives."""
        models = describe.ddp_models(modules)
        sampler = BucketSampler if models else FlightSampler
        self._buckets = watched = sampler(self.stages, self._write, bucket_steps())
        watched.watch(models or describe.fsdp_modules(modules))

    def _write_meetings(self, modules: list[torch.nn.Module]) -> None:
        for meeting in describe.meetings(modules):
            self._write_meeting(*meeting)
        for (stage, kind, _), reference in self._met.items():
            if reference is _all_ranks or reference() is not None:
                self._write_met(stage, kind, reference())
        if not self._written:
            self._write_meeting("", "none", "")

    def _write_met(self, stage: str, kind: str, group: object) -> None:
        """Nothing if this process is not a member of the group."""
        if describe.is_member(group):
            self._write_meeting(stage, kind, describe.group_ranks(group))

    def _write_meeting(self, stage: str, kind: str, members: str) -> None:
        if (stage, kind, members) not in self._written:
            self._written.add((stage, kind, members))
            self._write("my_utils.sync", {"stage": stage, "kind": kind, "members": members})

    def _write(self, name: str, metadata: Mapping[str, object], step: int = 0) -> None:
        GlobalLogger().instant(name, dict(metadata), step=step)
