"""Capture windows across workers: which steps, which roles and ranks, from one configuration.

The driver of a training run passes its iteration number at the top of each iteration. In the chosen
iterations the windows are sent to the workers, which arm them.

>>> manager = ProfileManager({
...     "tool": "none",
...     "steps": [10, "20-21", {"every": 100}],
...     "roles": {"actor": {"functions": ["actor.generate", "actor.update"], "ranks": [0, 3]}},
... })
>>> [step for step in range(250) if manager.should_capture_this_iter(step)]
[10, 20, 21, 100, 200]
>>> (spec,) = manager.build_specs_to_arm_at_iter(10, num_microbatches=4)
>>> spec["window_id"], spec["start_profile_names"], spec["stop_profile_names"], spec["stop_mb"]
('step10.actor', ['actor.generate'], ['actor.update'], 3)
>>> from my_utils.profiling.capture_worker import CaptureWorker
>>> class Worker(CaptureWorker): pass
>>> worker = Worker()
>>> manager.arm_iter(10, 4, {"actor": worker})[0].status
'armed'
>>> worker.capture.disarm()
True
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ....core.arguments import check_int, check_seconds
from ....core.extras import require
from ....core.public import public
from ....core.reprs import short_repr
from ....core.warnings import warn_once
from .calls import Acknowledgement, Target, call_targets, list_targets
from .finish import METHOD as FINISH_METHOD, finish_request
from .outcomes import Outcome, Sent
from .steps import is_chosen, last_in_a_row, ranks_together

if TYPE_CHECKING:
    from .config import Finish, Role


_logger = logging.getLogger("my_utils")
Spec = dict[str, Any]  # the fields of a CaptureSpec, see capture/spec.py
OUTCOMES_MAX = 10_000


class _Call(NamedTuple):
    """Where a window begins or ends."""

    function: str
    iteration: int
    micro_batch: int | None


@public("my_utils.profiling.ProfileManager")
class ProfileManager:
    """Turns a configuration into capture windows, and arms them on the workers.

    config: the path of a YAML file, YAML itself (a str of more than one line), or a mapping; None
        is an empty one. Its fields:

        enable            bool, true
        tool              "nsys", "ncu", "cuda", "torch", "torch_memory", "none", or a list of them
        output_dir        for what the tool writes, "profiles"
        options           keywords by tool: {torch: {record_shapes: true}}
        steps             10; "20-29", both included, or "20:30", without the end; {every: 100},
                          with `first` (`every` by default) and `last`; {first: 5, last: 9}; or a
                          list of such
        continuous_steps  bool, false: steps in a row share one window
        discrete          bool, false: one window a step; true: one for each call of a function
        micro_batches     a list of numbers, "first" and "last"; all by default; [] for functions
                          that run once a step, whatever num_microbatches is; or a schedule,
                          {skip_first, wait, warmup, active, repeat} as in
                          torch.profiler.schedule, 0 by default: one window for each `active`
                          micro-batches of the role's last function
        nvtx              true or a name: an NVTX range around each window
        finish            what workers run once, after the last of the steps, which have an end:
            command       for /bin/sh; see `CaptureWorker.finish_capture`; needed
            ranks         a list; those of the roles by default
            all_ranks     bool, false
        roles             by their names, in the order in which they work in a step:
            functions     what the role's hooks report, in the order of a step; needed
            enable        bool, true
            ranks         a list; [0] by default
            all_ranks     bool, false
            discrete, micro_batches   instead of those above

    arm_method: what `arm_iter` calls on the workers, with a list of specs.
    timeout_s: how long `arm_iter` waits for their acknowledgements, all together.
    logger: for messages; the package's by default.

    A window of a whole step begins with the first function and ends with the last one, in the
    first and last of the chosen micro-batches. A function that reports no `microbatch_index` runs
    once a step, and belongs to all micro-batches. A discrete window is one call: of one function,
    in one micro-batch. A schedule's wait and warm-up are not recorded.

    ConfigError, a ValueError, names the field, and the line of a YAML file. ImportError without
    msgspec, or pyyaml for a file. Not for use from several threads at once.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | os.PathLike[str] | None,
        *,
        arm_method: str = "arm_capture",
        timeout_s: float = 10.0,
        logger: logging.Logger | None = None,
    ) -> None:
        require("msgspec", "ProfileManager")
        from .config import read_plan

        if not isinstance(arm_method, str) or not arm_method.isidentifier():
            raise ValueError(f"arm_method must be the name of a method, not {arm_method!r:.100}")
        self._plan = read_plan(config)
        self._arm_method = arm_method
        self._timeout_s = check_seconds("timeout_s", timeout_s, most=math.inf)
        self._logger = _logger if logger is None else logger
        self._covered_to = -1  # the last step of the window that was armed last
        self._newest = -1  # iteration of arm_iter
        self._sent: list[Sent] = []  # windows whose outcomes are not known
        self._to_finish: list[Target] = []  # that may run the last command
        self._outcomes: dict[object, Outcome] = {}  # the newest OUTCOMES_MAX

    @classmethod
    def from_verl(
        cls,
        config: Mapping[str, Any] | str | os.PathLike[str],
        *,
        functions: Mapping[str, Sequence[str]] | None = None,
        arm_method: str = "arm_capture",
        timeout_s: float = 10.0,
        logger: logging.Logger | None = None,
    ) -> ProfileManager:
        """A manager for a configuration of verl, as verl's trainers have it today.

        config: a trainer's YAML file, YAML itself or a mapping, with `global_profiler` and a
            `profiler` in each role; or a role's `profiler` alone. `${oc.select:...}` is resolved.
        functions: what the hooks of the roles report, by role; by default what verl calls the tasks
            of a role, such as "actor_compute_log_prob" and "actor_update".

        It takes tool, steps, profile_continuous_steps, save_path, enable, all_ranks, ranks,
        discrete, finish_hook_cmd, finish_hook_all_ranks, finish_hook_ranks, and contents, schedule
        and trace_alloc_max_entries of torch's tools. What is set and has no counterpart here is
        named in one warning. ConfigError for the tools "npu" and "precision_debugger".

        >>> manager = ProfileManager.from_verl({
        ...     "global_profiler": {"tool": "nsys", "steps": [2], "save_path": "traces"},
        ...     "critic": {"profiler": {"enable": True, "all_ranks": True}},
        ... })
        >>> manager.build_specs_to_arm_at_iter(2)[0]["stop_profile_names"]
        ['critic_update']
        """
        require("msgspec", "ProfileManager")
        from .verl import config_of_verl

        ours = config_of_verl(config, functions)
        return cls(ours, arm_method=arm_method, timeout_s=timeout_s, logger=logger)

    def __repr__(self) -> str:
        return short_repr(self, "_arm_method", "_timeout_s")

    def enabled(self) -> bool:
        """Whether any step can be captured: enabled, with steps and an enabled role."""
        return self._plan.enabled and bool(self._plan.steps) and bool(self._plan.roles)

    def should_capture_this_iter(self, it: int) -> bool:
        """Whether the iteration is among the chosen steps, those in a continuous window too."""
        return self.enabled() and self._is_chosen(check_int("it", it))

    def build_specs_to_arm_at_iter(
        self, it: int, num_microbatches: int | None = None
    ) -> list[Spec]:
        """The windows that begin at the iteration, as `CaptureController.arm` takes them.

        num_microbatches: of the iteration; None, as 1, when its functions run once. Chosen
            micro-batches that it does not have are left out, with one warning.

        Plain data. Empty for iterations that are not chosen, and for those within a continuous
        window.
        """
        it, count = check_int("it", it), _check_microbatches(num_microbatches)
        if not self.should_capture_this_iter(it):
            return []
        if self._plan.continuous and self._is_chosen(it - 1):
            return []
        return [spec for role in self._plan.roles for spec in self._make_specs(role, it, count)]

    def arm_iter(
        self, it: int, num_microbatches: int | None, wg_by_role: Mapping[str, Any]
    ) -> list[Acknowledgement]:
        """Arms the windows that begin at the iteration on the workers; call it at its beginning.

        wg_by_role: what has the method `arm_method`, by role: a worker group that calls it on all
            of its workers and returns their results or Ray references, a Ray actor, an RRef of
            torch's RPC, or an object in this process; or a list of such, whose places are the
            ranks.

        Returns what each of them answered, and never raises because of a worker: dead, busy and
        failing ones, and roles without a group, are reported there and logged. A worker that
        several roles share is called once: its whole-step windows become one, from the first
        function of the first of its roles to the last function of the last one.

        At the first call after the last of the steps it has the workers run `finish`'s command.
        """
        it = check_int("it", it)
        count = _check_microbatches(num_microbatches)
        if not isinstance(wg_by_role, Mapping):
            raise TypeError(f"wg_by_role must be a mapping, not {wg_by_role!r:.100}")
        self._newest = it
        self._ask([sent for sent in self._sent if not sent.is_asked and sent.last < it])
        self._hear(0.0)
        if self._covered_to < it:
            self._finish()
        if not self._begins(it):
            return []
        self._covered_to = self._last_of(it)
        if self._plan.finish is not None and self._covered_to == self._plan.last_step:
            groups = [group for group in wg_by_role.values() if group is not None]
            targets = {target.key: target for group in groups for target in list_targets(group)}
            self._to_finish = list(targets.values())
        shared, missing = self._targets(wg_by_role)
        calls = [
            (target, tuple(role.name for role in roles), self._specs_for(target, roles, it, count))
            for target, roles in shared
        ]
        answers = missing + call_targets(calls, self._arm_method, self._timeout_s)
        for answer in answers:
            self._log("capture windows of iteration %d: %s", it, answer)
        self._sent += [
            Sent(self._covered_to, target, roles, [str(spec["window_id"]) for spec in specs])
            for target, roles, specs in calls
        ]
        return answers

    def _targets(
        self, wg_by_role: Mapping[str, Any]
    ) -> tuple[list[tuple[Target, list[Role]]], list[Acknowledgement]]:
        """What is called, with its roles, and the roles that have nothing to call."""
        missing = []
        shared: dict[object, tuple[Target, list[Role]]] = {}
        for role in self._plan.roles:
            group = wg_by_role.get(role.name)
            if group is None:
                missing.append(Acknowledgement((role.name,), None, "missing", "it has no workers"))
                continue
            chosen = [target for target in list_targets(group) if _is_for(role, target)]
            if not chosen:
                detail = f"none of its ranks is among {len(group)} workers"
                missing.append(Acknowledgement((role.name,), group, "missing", detail))
            for target in chosen:
                shared.setdefault(target.key, (target, []))[1].append(role)
        return [*shared.values()], missing

    def outcomes(self, timeout_s: float | None = None) -> list[Outcome]:
        """The outcome of the windows that were armed, as far as the workers say it by now.

        timeout_s: waits that long at most for workers that were not asked yet, or did not answer;
            `timeout_s` of this object by default, 0 for none.

        Windows whose iteration was over at an `arm_iter` were asked for there, without waiting for
        the answers; those that came are logged. Call this at the end for the last windows, and for
        `finish`'s command where no `arm_iter` came after the last of the steps. A worker needs the
        method `capture_outcomes`, as in `CaptureWorker`.
        """
        waits = self._timeout_s if timeout_s is None else check_seconds("timeout_s", timeout_s, 0)
        self._ask([sent for sent in self._sent if not sent.is_asked])
        self._hear(waits)
        if not self._sent:
            self._finish()
        return [*self._outcomes.values()]

    # --- outcomes ---

    def _ask(self, ended: Sequence[Sent]) -> None:
        for sent in ended:
            sent.ask(self._timeout_s, self._newest)

    def _hear(self, waits: float) -> None:
        deadline = time.monotonic() + waits
        for sent in [sent for sent in self._sent if sent.is_asked]:
            found = sent.outcomes(deadline)
            for outcome in found:
                self._note(outcome)
            if all(outcome.is_final for outcome in found):
                self._sent.remove(sent)
            elif not any(outcome.status == "busy" for outcome in found):
                sent.is_asked = False  # asked again

    def _note(self, outcome: Outcome) -> None:
        key = (outcome.window_id, outcome.rank, outcome.place, outcome.roles)
        if self._outcomes.get(key) == outcome:
            return
        self._outcomes[key] = outcome
        while len(self._outcomes) > OUTCOMES_MAX:
            del self._outcomes[next(iter(self._outcomes))]
        if outcome.is_final:
            self._log("capture window %s", outcome)

    def _log(self, text: str, *values: Any) -> None:
        """The last of the values is an answer or an outcome."""
        level = logging.INFO if values[-1].ok else logging.WARNING
        self._logger.log(level, text, *values)

    # --- the end ---

    def _finish(self) -> None:
        """Has the workers run the last command, once."""
        finish, targets, self._to_finish = self._plan.finish, self._to_finish, []
        if finish is None or not targets:
            return
        calls: list[tuple[Target, tuple[str, ...], Any]] = [
            (target, ("finish",), finish_request(finish, self._plan.backend, target.rank))
            for target in targets
            if _is_for(finish, target)
        ]
        for answer in call_targets(calls, FINISH_METHOD, self._timeout_s):
            self._log("command after the last capture: %s", answer)

    # --- steps ---

    def _is_chosen(self, it: int) -> bool:
        return is_chosen(self._plan.steps, it)

    def _begins(self, it: int) -> bool:
        """Whether windows begin here: in a continuous one only where none that was armed continues,
        as after a job resumed in the middle of it."""
        if not self.should_capture_this_iter(it):
            return False
        return not (self._plan.continuous and self._is_chosen(it - 1) and it <= self._covered_to)

    def _last_of(self, it: int) -> int:
        return last_in_a_row(self._plan.steps, it) if self._plan.continuous else it

    # --- specs ---

    def _make_specs(self, role: Role, it: int, count: int | None) -> list[Spec]:
        if role.schedule is not None and count is not None:
            return [self._group(role, it, *group) for group in role.schedule.groups(count)]
        if not role.discrete:
            return [self._whole_step([role], it, count)]
        calls = [
            _Call(function, it, number)
            for function in role.functions
            for number in self._micro_batches(role, count)
        ]
        return [
            self._spec(
                _window_id(it, it, _name_function(role, call), call.micro_batch), [role], call
            )
            for call in calls
        ]

    def _whole_step(self, roles: Sequence[Role], it: int, count: int | None) -> Spec:
        first, last, end = roles[0], roles[-1], self._last_of(it)
        start_mb = self._micro_batches(first, count)[0] if first.micro_batches else None
        stop_mb = self._micro_batches(last, count)[-1]
        window_id = _window_id(it, end, "+".join(role.name for role in roles), None)
        start = _Call(first.functions[0], it, start_mb)
        return self._spec(window_id, roles, start, _Call(last.functions[-1], end, stop_mb))

    def _group(self, role: Role, it: int, first: int, last: int) -> Spec:
        """The window of the micro-batches from the first to the last."""
        window_id = _window_id(it, it, role.name, first) + (f"-{last}" if last > first else "")
        function = role.functions[-1]
        start, stop = _Call(function, it, first), _Call(function, it, last)
        return self._spec(window_id, [role], start, stop)

    def _spec(
        self, window_id: str, roles: Sequence[Role], start: _Call, stop: _Call | None = None
    ) -> Spec:
        """Of a window from one call to another, or of one call only."""
        spec: Spec = {
            "window_id": window_id,
            "start_profile_names": [start.function],
            "start_iter": start.iteration,
            "start_mb": start.micro_batch,
            "stop_policy": "ON_TRIGGER_FUNC_EXIT",
            "roles": [role.name for role in roles],
            "ranks": ranks_together(role.ranks for role in roles),
            "nvtx": self._plan.nvtx,
            "backend": dict(self._plan.backend),
        }
        if stop is not None:
            spec |= {
                "stop_policy": "ON_STOP_PROFILE_NAME",
                "stop_profile_names": [stop.function],
                "stop_iter": stop.iteration,
                "stop_mb": stop.micro_batch,
            }
        return spec

    def _specs_for(
        self, target: Target, roles: Sequence[Role], it: int, count: int | None
    ) -> list[Spec]:
        """The windows of all roles that one target plays; of its rank, if known."""
        whole = [role for role in roles if not role.discrete and role.schedule is None]
        specs = [self._whole_step(whole, it, count)] if whole else []
        for role in roles:
            if role not in whole:
                specs += self._make_specs(role, it, count)
        if target.rank is not None:
            for spec in specs:
                spec["ranks"] = None
                spec["backend"]["rank"] = target.rank
        return specs

    def _micro_batches(self, role: Role, count: int | None) -> list[int | None]:
        """The chosen ones in their order, never none; [None] for functions that run once."""
        wanted = role.micro_batches
        if (
            count is None
            or role.schedule is not None
            or wanted == []
            or (count == 1 and wanted is None)
        ):
            return [None]
        names = {"first": 0, "last": count - 1}
        chosen = range(count) if wanted is None else wanted
        numbers = sorted({names.get(str(one), one) for one in chosen})
        found: list[int | None] = [one for one in numbers if isinstance(one, int) and one < count]
        if len(found) < len(numbers):
            warn_once(
                f"profile_manager_micro_batches_{role.name}",
                f"ProfileManager: role {role.name!r} asks for micro-batches {numbers}, and there "
                f"are {count}; those that are not there are left out",
            )
        return found or [count - 1]


def _is_for(chosen: Role | Finish, target: Target) -> bool:
    return target.rank is None or chosen.ranks is None or target.rank in chosen.ranks


def _name_function(role: Role, call: _Call) -> str:
    """Its name, with the role's name before it unless it begins so."""
    name = call.function
    return name if name.startswith(f"{role.name}.") else f"{role.name}.{name}"


def _window_id(first: int, last: int, name: str, microbatch: int | None) -> str:
    steps = f"step{first}" if first == last else f"steps{first}-{last}"
    return f"{steps}.{name}" if microbatch is None else f"{steps}.{name}.mb{microbatch}"


def _check_microbatches(count: object) -> int | None:
    return None if count is None else check_int("num_microbatches", count, 1)
