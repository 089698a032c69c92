"""Checks the specification of a capture window: where it starts, where it stops, for whom.

A window has two shapes, and no third:

* its description, here: `CaptureSpec`, or a mapping with the same fields where it is sent or stored
  in a file (`ProfileManager`'s specs, the `window` of a request to a running job);
* the engine's `struct mu_capture_spec`, which `CaptureWindows.arm_spec` reads from the fields of a
  `CaptureSpec`, one by one.

>>> spec = CaptureSpec(window_id="w", start_profile_names=["forward"], start_iter=10)
>>> spec.stop_policy
'ON_TRIGGER_FUNC_EXIT'
"""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.arguments import check_choice, check_integer, wrong_type
from ...core.public import public
from .backends import make_backend

# As csrc/engine/capture/capture.h has it.
LIST_MAX = 1024
INT_MAX = 2**63 - 1


@public("my_utils.profiling.capture_controller")
class StopPolicy(enum.StrEnum):
    """When a window closes.

    MANUAL: at `disarm`. ON_TRIGGER_FUNC_EXIT: when the call that opened it returns; calls of the
    same function inside it, nested or recursive, do not count. ON_STOP_PROFILE_NAME: at the stop
    gate.
    """

    MANUAL = "MANUAL"
    ON_TRIGGER_FUNC_EXIT = "ON_TRIGGER_FUNC_EXIT"
    ON_STOP_PROFILE_NAME = "ON_STOP_PROFILE_NAME"


@public("my_utils.profiling.capture_controller")
@dataclass(frozen=True, kw_only=True, slots=True)
class CaptureSpec:
    """A window, checked. `arm` takes one, or a mapping with these keys.

    window_id: its name, for messages and files.
    start_profile_names, start_iter, start_mb, start_edge: opens at a function of one of these names
        in that iteration and micro-batch (None: any), when it begins ("ENTER") or ends ("EXIT").
        A call that names no micro-batch does the work of all, and fits any number.
    stop_policy: see `StopPolicy`. By default ON_STOP_PROFILE_NAME where stop_profile_names are
        given, else ON_TRIGGER_FUNC_EXIT.
    stop_profile_names, stop_iter, stop_mb, stop_edge: the stop gate, used by ON_STOP_PROFILE_NAME
        only. When stop_iter is over the window closes as well.
    max_iters: it closes after that many iterations at most, whatever its policy; where hooks name
        no iteration, after that many calls of the function that opened it.
    roles, ranks: only events of these roles and ranks count; None or an empty list for all. An
        event without a role or rank does not pass a filter of that kind.
    nvtx: True for an NVTX range around the window, named by its id, or the name of the range.
    backend: what this window starts instead of the controller's backend, as the keywords of
        `backends.make_backend`: {"tool": "torch", "output_dir": "traces"}. Plain data, so that it
        travels to the process that captures.

    Raises TypeError or ValueError that names the field.
    """

    window_id: str
    start_profile_names: Sequence[str]
    start_iter: int | None = None
    start_mb: int | None = None
    start_edge: str = "ENTER"
    stop_profile_names: Sequence[str] = ()
    stop_iter: int | None = None
    stop_mb: int | None = None
    stop_edge: str = "EXIT"
    stop_policy: str | None = None
    roles: Sequence[str] | None = None
    ranks: Sequence[int] | None = None
    nvtx: bool | str = False
    backend: Mapping[str, Any] | None = None
    max_iters: int = 100

    def __post_init__(self) -> None:
        if not isinstance(self.window_id, str) or not self.window_id:
            raise wrong_type("window_id", "a str that is not empty", self.window_id)
        for name in ("start_profile_names", "stop_profile_names", "roles", "ranks"):
            self._check_list(name)
        if not self.start_profile_names:
            raise ValueError("start_profile_names must name at least one function, not none")
        for name, low in _LOWEST.items():
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _number(name, value, low, "an int or None"))
        most = _number("max_iters", self.max_iters, 1, "an int of at least 1")
        object.__setattr__(self, "max_iters", most)
        for name in ("start_edge", "stop_edge"):
            if getattr(self, name) not in ("ENTER", "EXIT"):
                raise ValueError(f"{name} must be 'ENTER' or 'EXIT', not {getattr(self, name)!r}")
        if not isinstance(self.nvtx, bool | str):
            raise wrong_type("nvtx", "a bool or a str", self.nvtx)
        self._check_policy()
        self._check_backend()

    def _check_list(self, name: str) -> None:
        value = getattr(self, name)
        if value is None and name in ("roles", "ranks"):
            return
        words = "a list of int" if name == "ranks" else "a list of str"
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise wrong_type(name, words, value)
        if len(value) > LIST_MAX:
            raise ValueError(f"{name} must have at most {LIST_MAX} items, not {len(value)}")
        if name == "ranks":
            value = [_number(name, item, 0, words) for item in value]
        elif not all(isinstance(item, str) for item in value):
            raise wrong_type(name, words, value)
        object.__setattr__(self, name, tuple(value))

    def _check_policy(self) -> None:
        policy = self.stop_policy
        if policy is None:
            for name in ("stop_iter", "stop_mb"):
                if getattr(self, name) is not None and not self.stop_profile_names:
                    raise ValueError(f"stop_profile_names must name a function for {name}")
            policy = "ON_STOP_PROFILE_NAME" if self.stop_profile_names else "ON_TRIGGER_FUNC_EXIT"
        check_choice("stop_policy", policy, [str(one) for one in StopPolicy])
        if policy == StopPolicy.ON_STOP_PROFILE_NAME and not self.stop_profile_names:
            raise ValueError("stop_profile_names must name a function for ON_STOP_PROFILE_NAME")
        start, stop = self.start_iter, self.stop_iter
        is_early = start is not None and stop is not None and stop < start
        if policy == StopPolicy.ON_STOP_PROFILE_NAME and is_early:
            raise ValueError(f"stop_iter must be at least start_iter, {start}, not {stop}")
        if policy == StopPolicy.ON_TRIGGER_FUNC_EXIT and self.start_edge == "EXIT":
            raise ValueError("start_edge must be 'ENTER' for ON_TRIGGER_FUNC_EXIT, not 'EXIT'")
        object.__setattr__(self, "stop_policy", str(policy))

    def _check_backend(self) -> None:
        if self.backend is None:
            return
        if not isinstance(self.backend, Mapping) or "tool" not in self.backend:
            raise wrong_type("backend", "a mapping with 'tool'", self.backend)
        try:
            make_backend(**self.backend)
        except (TypeError, ValueError) as error:
            raise type(error)(f"backend: {error}") from error

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> CaptureSpec:
        """A spec from the keys of a mapping; TypeError names one that is not known or missing.

        `expected_role`, one role, is taken for `roles`, `ranks_filter` for `ranks`, and
        `enable_nvtx_window` for `nvtx`.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        mapping = _with_our_names(mapping)
        for key in mapping:
            if key not in fields:
                raise TypeError(f"a window has no field {key!r}; it has {', '.join(fields)}")
        for name in ("window_id", "start_profile_names"):
            if name not in mapping:
                raise TypeError(f"a window needs the field {name!r}")
        return cls(**mapping)


def _with_our_names(mapping: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(mapping)
    for name, ours in _RENAMED.items():
        if name not in given:
            continue
        if ours in given:
            raise TypeError(f"a window has {ours} and {name}, which are the same")
        value = given.pop(name)
        given[ours] = [value] if name == "expected_role" and value is not None else value
    return given


_LOWEST = {"start_iter": -INT_MAX, "stop_iter": -INT_MAX, "start_mb": 0, "stop_mb": 0}
_RENAMED = {"expected_role": "roles", "ranks_filter": "ranks", "enable_nvtx_window": "nvtx"}


def _number(name: str, value: object, low: int, words: str) -> int:
    """An int, or what stands for one, such as numpy's."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type(name, words, value)
    return check_integer(name, operator.index(value), low, INT_MAX)
