"""What the public functions of captures say of arguments that are wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from my_utils import ForwardProfilerHook
from my_utils.profilers import capture
from my_utils.profiling.backends import (
    MemorySnapshotBackend,
    MultiBackend,
    NoOpBackend,
    TorchProfilerBackend,
    make_backend,
)
from my_utils.profiling.capture_controller import (
    CaptureController,
    HookEvent,
    capture_hook,
    set_default_controller,
    set_position,
)
from my_utils.profiling.ProfileManager import ProfileManager

pytestmark = pytest.mark.no_torch

ROLES = {"actor": {"functions": ["f"]}}
NOWHERE = "/nowhere/logs"  # nothing is written where an argument is wrong


def arm(spec: Any) -> None:
    controller = CaptureController(NoOpBackend())
    try:
        controller.arm(spec)
    finally:
        assert controller.armed == []


def window(**fields: Any) -> None:
    arm({"window_id": "w", "start_profile_names": ["f"], **fields})


def controller(**fields: Any) -> CaptureController:
    return CaptureController(NoOpBackend(), **fields)


def wait(**fields: Any) -> None:
    capture.wait_for_capture(capture.Request(id="a", ranks=((0, 0),)), NOWHERE, **fields)


def manager(**fields: Any) -> ProfileManager:
    return ProfileManager({"tool": "none", "steps": [10], "roles": ROLES, **fields})


def at_step_10(*given: Any) -> None:
    manager().build_specs_to_arm_at_iter(*given)


def request(**fields: Any) -> None:
    capture.request_capture(NOWHERE, **{"first_step": "now", **fields})


# By function: its arguments, as a tuple or by their names, the error, and the text in it.
_Row = tuple[tuple[Any, ...] | dict[str, Any], type[Exception], str]
WRONG: dict[Callable[..., object], list[_Row]] = {
    window: [
        ({"window_id": ""}, TypeError, "window_id must be a str that is not empty, not ''"),
        ({"start_profile_names": "f"}, TypeError, "start_profile_names must be a list of str"),
        ({"start_profile_names": []}, ValueError, "start_profile_names must name at least one"),
        ({"start_profile_names": ["f"] * 1025}, ValueError,
         "start_profile_names must have at most"),
        ({"start_iter": "3"}, TypeError, "start_iter must be an int or None, not '3'"),
        ({"start_iter": 2**63}, ValueError, "start_iter must be from "),
        ({"start_mb": -1}, ValueError, "start_mb must be from 0 to "),
        ({"stop_iter": 3}, ValueError, "stop_profile_names must name a function for stop_iter"),
        ({"start_iter": 5, "stop_iter": 4, "stop_profile_names": ["g"]}, ValueError,
         "stop_iter must be at least start_iter, 5, not 4"),
        ({"stop_mb": True}, TypeError, "stop_mb must be an int or None, not True"),
        ({"start_edge": "BEGIN"}, ValueError, "start_edge must be 'ENTER' or 'EXIT', not 'BEGIN'"),
        ({"start_edge": "EXIT"}, ValueError, "start_edge must be 'ENTER'"),
        ({"stop_policy": "NEVER"}, ValueError, "stop_policy must be one of 'MANUAL'"),
        ({"stop_policy": "ON_STOP_PROFILE_NAME"}, ValueError, "stop_profile_names must name"),
        ({"roles": "actor"}, TypeError, "roles must be a list of str"),
        ({"ranks": [0.5]}, TypeError, "ranks must be a list of int"),
        ({"ranks": [-1]}, ValueError, "ranks must be from 0 to "),
        ({"nvtx": 3}, TypeError, "nvtx must be a bool or a str"),
        ({"start_names": ["f"]}, TypeError, "a window has no field 'start_names'"),
        ({"roles": None, "expected_role": None}, TypeError,
         "has roles and expected_role, which are the same"),
        ({"ranks": None, "ranks_filter": None}, TypeError,
         "has ranks and ranks_filter, which are the same"),
        ({"nvtx": None, "enable_nvtx_window": None}, TypeError,
         "has nvtx and enable_nvtx_window, which are the same"),
        ({"backend": "torch"}, TypeError, "backend must be a mapping with 'tool'"),
        ({"backend": {}}, TypeError, "backend must be a mapping with 'tool'"),
        ({"backend": {"output_dir": "x"}}, TypeError, "backend must be a mapping with 'tool'"),
        ({"backend": {"tool": "vtune"}}, ValueError, "backend: tool must be one of"),
        ({"backend": {"tool": "none", "colour": 1}}, TypeError, "backend: "),
    ],
    arm: [
        (({"start_profile_names": ["f"]},), TypeError, "needs the field 'window_id'"),
        (("w",), TypeError, "spec must be a mapping"),
    ],
    controller: [
        ({"enable_nvtx_window": True}, TypeError, "nvtx=True in the spec of a window"),
        ({"nvtx_domain": "d"}, TypeError, "ranges of windows are in NVTX's default domain"),
    ],
    CaptureController(NoOpBackend()).on_enter: [
        (("f",), TypeError, "event must be a HookEvent, not str"),
    ],
    HookEvent: [
        ({}, TypeError, "profile_name"),
        ({"profile_name": 3}, TypeError, "profile_name must be str, not int"),
        ({"profile_name": "f", "meta": []}, TypeError, "meta must be a dict or None"),
        ({"profile_name": "f", "role": 1}, TypeError, "role must be str or None"),
        ({"profile_name": "f", "rank": "0"}, TypeError, "rank must be int or None"),
        ({"profile_name": "f", "iter": 0}, TypeError, "iter"),
    ],
    capture_hook: [
        ((1,), TypeError, "profile_name"),
        ({"profile_name": "f", "meta": {"iter": 1}}, TypeError, "meta must be a function"),
    ],
    capture_hook("f"): [((1,), TypeError, "capture_hook decorates functions, not 1")],
    set_default_controller: [
        (("c",), TypeError, "controller must be"),
        ({"controller": None, "rank": "0"}, TypeError, "rank must be an int"),
        ({"controller": None, "role": 1}, TypeError, "role must be a str"),
    ],
    set_position: [((1, "0"), TypeError, "microbatch_index")],
    make_backend: [
        (("nvprof",), ValueError, "tool must be one of 'nsys', 'ncu', 'cuda', 'torch', "
                                  "'torch_memory', 'none', not 'nvprof'"),
        ((3,), TypeError, "tool must be a str or a list"),
        (([],), TypeError, "tool must be a str or a list"),
        (("torch", 1), TypeError, "output must be a path"),
        (("torch", "d", ["x"]), TypeError, "options must be a mapping"),
        (("torch", "d", {"nsys": {}}), ValueError,
         "options are for the tools torch, not for 'nsys'"),
        (("nsys", "d", {"nsys": {"colour": 1}}), ValueError, "options of nsys are: synchronize"),
        (("nsys", "d", {"nsys": {"synchronize": "no"}}), TypeError,
         "option synchronize of nsys must be bool"),
        (("none", "d", {"none": {"a": 1}}), ValueError, "options of none are: none"),
        (("torch", "d", {"torch": [1]}), TypeError, "options of torch must be a mapping"),
    ],
    TorchProfilerBackend: [
        ((5,), TypeError, "output must be a path, not 5"),
        (("x", -1), ValueError, "rank must be at least 0"),
    ],
    MemorySnapshotBackend: [
        ((5,), TypeError, "output must be a path, not 5"),
        ({"output": "x", "max_entries": -3}, ValueError, "max_entries must"),
    ],
    MultiBackend: [(([5],), TypeError, "each of backends must have start")],
    ForwardProfilerHook: [
        (("1", 2), TypeError, "start_iter must be an int"),
        ((True, 2), TypeError, "start_iter must be an int"),
        ((-1, 2), ValueError, "start_iter must be at least 0"),
        ((2, 2), ValueError, "stop_iter must be at least 3, not 2"),
        ((2, 2**63), ValueError, "stop_iter must be below 2**63"),
        ((1, 2, "0"), TypeError, "rank_only must be"),
        ({"start_iter": 1, "stop_iter": 2, "rank_only": 0, "ranks": 0}, ValueError,
         "give one of them"),
        ((1, 2, None, 5), TypeError, "nvtx_range must be a str"),
        ((1, 2, None, None, "torch"), TypeError, "backend must have start"),
        ({"start_iter": 1, "stop_iter": 2, "forward_only": 1}, TypeError,
         "forward_only must be a bool"),
    ],
    ForwardProfilerHook(0, 1).attach: [((print,), TypeError, "model must be")],
    request: [
        ({"options": "with_stack"}, TypeError, "options must be a list of str, not 'with_stack'"),
        ({"options": 5}, TypeError, "options must be a list of str, not 5"),
        ({"lead_s": "1"}, TypeError, "lead_s must be a number of seconds, not '1'"),
        ({"lead_s": math.nan}, ValueError, "lead_s must be finite and above 0, not nan"),
        ({"steps": 0}, ValueError, "steps must be an int from 1"),
        ({"first_step": "soon"}, ValueError, "'next' or 'now'"),
        ({"ranks": []}, ValueError, "ranks must name at least one rank"),
        *(({"steps": 3, "every": every}, ValueError, "every must be None or an int above steps")
          for every in (3, 0, -5, True, "10", 4.0)),
        *(({"every": every, "times": times}, ValueError,
           "times must be 1, or with every an int to 1,000")
          for every, times in ((None, 2), (9, 0), (9, True), (9, 1001))),
    ],
    wait: [({"timeout_s": math.nan}, ValueError, "timeout_s must be at least 0, not nan")],
    capture.register: [(("controller",), TypeError, "must be a CaptureController")],
    ProfileManager: [
        ({"config": {}, "arm_method": "not a name"}, ValueError, "arm_method"),
        ({"config": {}, "timeout_s": "1"}, TypeError, "timeout_s"),
        ({"config": {}, "timeout_s": 0}, ValueError, "timeout_s"),
        (({3: 4},), ValueError, "fields have names, not 3"),
        ((3,), TypeError, "config must be"),
        (("/nowhere/profile.yaml",), FileNotFoundError, "profile.yaml"),
        (({"profile": {"enabled": True}},), ValueError, "capture.windows are roles"),
    ],
    manager: [
        ({"roles": {"actor": {"functions": ["f"], "ranks": ["0"]}}}, ValueError,
         "roles.actor.ranks[0]: expected int, got str"),
        ({"finish": {}}, ValueError, "finish.command: this field is needed"),
        ({"finish": {"command": "a", "ranks": [0], "all_ranks": True}}, ValueError, "not both"),
        ({"finish": {"command": "a"}, "steps": {"every": 2}}, ValueError, "steps have no 'last'"),
        ({"micro_batches": {"wait": 1}}, ValueError,
         "micro_batches.active: this field is needed"),
        ({"micro_batches": {"active": 0}}, ValueError, "micro_batches.active"),
        ({"micro_batches": {"active": 1}, "discrete": True}, ValueError, "and no schedule"),
        ({"micro_batches": {"active": 1}, "continuous_steps": True}, ValueError,
         "follow a schedule"),
    ],
    at_step_10: [
        (("3",), TypeError, "it must be an int"),
        ((10, 0), ValueError, "num_microbatches must be at least 1"),
    ],
    manager().arm_iter: [((10, 1, []), TypeError, "wg_by_role must be a mapping")],
}  # fmt: skip


@pytest.mark.parametrize(
    ("function", "given", "error", "text"),
    [(function, *row) for function, rows in WRONG.items() for row in rows],
)
def test_a_wrong_argument(
    function: Callable[..., object], given: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        function(**given) if isinstance(given, dict) else function(*given)
