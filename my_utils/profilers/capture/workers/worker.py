"""The worker's side of `ProfileManager`: windows that a driver sends are armed here.

A Ray actor, an RPC worker or a plain object gets `arm_capture` by one line, and its functions
report to the process's controller:

    @ray.remote
    class Actor(CaptureWorker):
        @capture_hook("actor.update")
        def update(self, batch): ...

>>> class Worker(CaptureWorker):
...     capture_rank = 3
>>> worker = Worker()
>>> worker.arm_capture([
...     {"window_id": "a", "start_profile_names": ["f"], "ranks": [3], "backend": {"tool": "none"}},
...     {"window_id": "b", "start_profile_names": ["f"], "ranks": [0]},
... ])
{'a': 'armed', 'b': 'not for rank 3'}
>>> worker.capture.disarm()
True
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from ....core.public import public
from ....core.ranks import check_rank, current_rank
from ..backends import NoOpBackend
from ..controller import CaptureController
from ..hooks import default_controller, play_role, set_default_controller
from .finish import finish_capture

_logger = logging.getLogger("my_utils")
_lock = threading.Lock()


def arm_capture(
    specs: Iterable[Mapping[str, Any]],
    controller: CaptureController | None = None,
    *,
    rank: int | None = None,
) -> dict[str, str]:
    """Arms the windows of a driver; the outcome of each, by its id: "armed", "not for rank 3", or
    what was wrong with it, which is logged, too.

    controller: the one that arms them; by default the process's, which is made if there is none.
        The `backend` of a window says what it starts; it is made here from the driver's `tool`.
    rank: of this worker, by default as `GlobalLogger().setup`, torch.distributed or the launcher
        say. Windows for other ranks are left out here, so that hooks need not name the rank.

    Hooks that name no role take the role of the windows, if all windows are for the same one.
    """
    mine = current_rank() if rank is None else check_rank("rank", rank)
    found = _controller_here() if controller is None else controller
    answers: dict[str, str] = {}
    roles: set[str] = set()
    for number, spec in enumerate(specs):
        name = str(spec.get("window_id", number)) if isinstance(spec, Mapping) else str(number)
        try:
            answers[name] = _arm(found, spec, mine)
        except (TypeError, ValueError, RuntimeError) as error:
            _logger.warning("capture window %s could not be armed: %s", name, error)
            answers[name] = f"{type(error).__name__}: {error}"
            found.note(name, f"failed: {answers[name]}")
            continue
        roles.update(spec.get("roles") or ())
    if len(roles) == 1:
        play_role(roles.pop())
    return answers


def _arm(controller: CaptureController, spec: Mapping[str, Any], rank: int) -> str:
    if not isinstance(spec, Mapping):
        raise TypeError(f"a spec must be a mapping, not {spec!r:.100}")
    ranks = spec.get("ranks")  # none and [] mean all
    if ranks and rank not in ranks:
        elsewhere = f"not for rank {rank}"
        controller.note(str(spec.get("window_id")), elsewhere)
        return elsewhere
    here = {**spec, "ranks": None}
    if isinstance(here.get("backend"), Mapping):
        here["backend"] = {"rank": rank, **here["backend"]}
    controller.arm(here)
    return "armed"


def capture_outcomes(
    window_ids: Iterable[str], controller: CaptureController | None = None
) -> dict[str, str]:
    """The outcome of windows, by their ids: the outcome, as `CaptureController` names them; "open"
    or "armed" for those that have none yet; "unknown" for what was never armed here. After a colon
    comes why one is not done: "overrun: no hook has reported 'rollout.finnish'".

    controller: the process's by default.
    """
    found = _controller_here() if controller is None else controller
    return {name: found.state_of(name) for name in window_ids}


def _controller_here() -> CaptureController:
    with _lock:
        controller = default_controller()
        if controller is None:
            controller = CaptureController(NoOpBackend())
            set_default_controller(controller)
        return controller


@public("my_utils.profiling.capture_worker")
class CaptureWorker:
    """Gives a class `arm_capture(specs)`, which `ProfileManager.arm_iter` calls.

    capture_rank: this worker's rank, where the launcher does not say it; a class or instance
        attribute.
    """

    capture_rank: int | None = None

    @property
    def capture(self) -> CaptureController:
        """The controller of the process, made at first use."""
        return _controller_here()

    def arm_capture(self, specs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """See the function of this name."""
        return arm_capture(specs, rank=self.capture_rank)

    def capture_outcomes(self, window_ids: Iterable[str]) -> dict[str, str]:
        """See the function of this name; `ProfileManager.outcomes` calls it."""
        return capture_outcomes(window_ids)

    def finish_capture(self, request: Mapping[str, Any]) -> str:
        """Starts the command that the driver's configuration has in `finish`, on its ranks.

        request: what `ProfileManager` sends after the last captured step.

        /bin/sh runs it with VERL_PROFILE_SAVE_PATH (the absolute output_dir), VERL_PROFILE_TOOL,
        VERL_PROFILE_RANK and VERL_PROFILE_PID (of this process), as verl's hook does. Nothing waits
        for it, and it outlives the process; an exit status that is not 0 is logged. Returns
        "started", or "not for rank 3". OSError if it cannot be started.
        """
        return finish_capture(request, rank=self.capture_rank)
