"""Calls one method on many workers, and waits for their responses under one time limit.

A worker is a Ray actor, an RRef of torch's RPC, a worker group whose method runs on all of its
workers, or an object of this process. Neither Ray nor torch is imported here: if an object comes
from one of them, that package is loaded already.
"""

from __future__ import annotations

import concurrent.futures
import inspect
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ....core.public import public

_POLL_S = 0.005


@dataclass(frozen=True)
class Target:
    """What is called. `key` is equal for what is the same; `rank` None if it is not known."""

    worker: Any
    rank: int | None
    key: object


@public("my_utils.profiling.ProfileManager")
@dataclass(frozen=True)
class Acknowledgement:
    """The outcome of one call.

    roles: those whose windows were sent. worker: what was called; None for a role without one.
    status: "armed"; "busy", without an answer in time: it may arm them later; "dead"; "failed";
        "missing", a role without workers.
    detail: an explanation for people; of a group, by the places of its workers. answer: what was
        returned; of a group, a list with None for workers that returned nothing.
    """

    roles: tuple[str, ...]
    worker: Any
    status: str
    detail: str = ""
    answer: Any = None

    @property
    def ok(self) -> bool:
        """Whether the windows are armed."""
        return self.status == "armed"

    def __str__(self) -> str:
        text = f"{', '.join(self.roles)}: {self.status}"
        return f"{text} ({self.detail})" if self.detail else text


def list_targets(group: Any) -> list[Target]:
    """A group as what is called: each of a list by itself, with its place as its rank."""
    if isinstance(group, list | tuple):
        return [Target(worker, rank, _key(worker)) for rank, worker in enumerate(group)]
    return [Target(group, None, _group_key(group))]


def _key(worker: Any) -> object:
    """Ray makes several handles of one actor, which have its id in common."""
    actor = getattr(worker, "_actor_id", None) if _is_ray_actor(worker) else None
    return ("object", id(worker)) if actor is None else ("actor", actor)


def _group_key(group: Any) -> object:
    """Groups that are views of the same actors, one a role, are the same."""
    workers = getattr(group, "workers", None)
    if isinstance(workers, list) and workers and all(map(_is_ray_actor, workers)):
        return ("actors", tuple(_key(worker) for worker in workers))
    return _key(group)


def _is_ray_actor(worker: Any) -> bool:
    actor = sys.modules.get("ray.actor")
    return actor is not None and isinstance(worker, actor.ActorHandle)


# --- calls ---

_Call = tuple[Target, tuple[str, ...], list[Any]]  # and what the method is passed


def call_targets(calls: Sequence[_Call], method: str, timeout_s: float) -> list[Acknowledgement]:
    """Calls `method(specs)` on all targets first, then waits for all answers together."""
    deadline = time.monotonic() + timeout_s
    begun = [started(call, method, timeout_s) for call in calls]
    return [
        _acknowledged(call, answer, deadline, timeout_s)
        for call, answer in zip(calls, begun, strict=True)
    ]


def started(call: _Call, method: str, timeout_s: float) -> Any:
    """What the call returned, a coroutine as a future, or the exception that it raised."""
    target, _, specs = call
    try:
        if callable(getattr(target.worker, "rpc_async", None)):
            remote = target.worker.rpc_async(timeout=timeout_s + 1)  # after our own limit
            return getattr(remote, method)(specs)
        function = getattr(target.worker, method)
        start: Callable[..., Any] = getattr(function, "remote", function)
        return _running(start(specs))
    except Exception as error:
        return error


def _running(answer: Any) -> Any:
    """A coroutine as a future: it runs in a separate event loop and thread, so that a driver
    with a loop and one without it may wait. Anything else as it is."""
    if isinstance(answer, list | tuple):
        return [_running(one) for one in answer]
    if not inspect.iscoroutine(answer):
        return answer
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        import asyncio

        try:
            future.set_result(asyncio.run(answer))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="my_utils-arm", daemon=True).start()
    return future


def _acknowledged(call: _Call, answer: Any, deadline: float, timeout_s: float) -> Acknowledgement:
    target, roles, _ = call
    if not isinstance(answer, list | tuple):
        found = await_value(answer, deadline, timeout_s)
        return Acknowledgement(roles, target.worker, *found)
    all_found = [await_value(one, deadline, timeout_s) for one in answer]
    worst = max((status for status, _, _ in all_found), key=_WORSE.index, default="armed")
    detail = "; ".join(
        f"worker {place} {status}: {text}"
        for place, (status, text, _) in enumerate(all_found)
        if status != "armed"
    )
    return Acknowledgement(roles, target.worker, worst, detail, [one[2] for one in all_found])


_WORSE = ("armed", "busy", "failed", "dead")


def await_value(answer: Any, deadline: float, timeout_s: float) -> tuple[str, str, Any]:
    """(status, detail, value) of one worker's answer."""
    try:
        if isinstance(answer, Exception):
            raise answer
        value = _awaited(answer, deadline)
    except TimeoutError:
        return "busy", f"no answer within {timeout_s:g} s", None
    except Exception as error:
        return (*_trouble(error), None)
    wrong = _not_armed(value)
    return "failed" if wrong else "armed", wrong, value


def _trouble(error: Exception) -> tuple[str, str]:
    """Its status, and one line of text."""
    names = {kind.__name__ for kind in type(error).__mro__}
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
    if "RayTaskError" in names:  # its first line says where it was raised, its last line what
        return "failed", lines[-1] if lines else text
    if "PendingCallsLimitExceeded" in names:
        return "busy", text
    return "dead" if names & {"RayError", "ConnectionError"} else "failed", text


def _not_armed(value: Any) -> str:
    """What a worker's `arm_capture` says went wrong; "" for nothing, or for other answers."""
    if not isinstance(value, dict):
        return ""
    return "; ".join(
        f"{name}: {text}"
        for name, text in value.items()
        if isinstance(text, str) and text != "armed" and not text.startswith("not for rank ")
    )


# --- responses that come later ---


def _awaited(answer: Any, deadline: float) -> Any:
    """The value of a reference or a future; what else it is, is the value."""
    ray = sys.modules.get("ray")
    if ray is not None and isinstance(answer, ray.ObjectRef):
        try:
            return ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
        except ray.exceptions.GetTimeoutError:
            raise TimeoutError from None
    get = getattr(answer, "result", None) or getattr(answer, "wait", None)
    if callable(getattr(answer, "done", None)) and callable(get):
        while not answer.done():
            if time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(_POLL_S)
        return get()
    return answer
