"""Records each collective, send and receive of a rank, however it was called.

`torch.distributed`, FSDP and pipelines call the methods of `ProcessGroup`; DTensor and functional
collectives call operators in `torch.ops._c10d_functional`. Both are patched. DDP reduces inside
C++: its meetings are known from its buckets (`buckets.py`).

A call is a row, "all_reduce tp", and so is the wait for it, "wait all_reduce tp", of a timer with
the tag `collectives`. Where a step has many, only some steps are recorded: which ones depends on
their numbers alone, so that ranks record the same.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any, cast

import torch
from torch.compiler import is_compiling

from ... import _core
from ...core.ranges import as_ranges, ranges_text
from ...core.run_files.state import COLLECTIVES_TAG, NUMBERED_GROUP
from ...record.stages.timers import MyTimer

WAIT = "wait "
GROUP_ROW = "my_utils.group"
SAMPLED_ROW = "my_utils.collectives"

_METHODS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
_PEER_METHODS = ("send", "recv")  # (tensors, rank in the group, tag)
_FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}

# What torch and Megatron's `parallel_state` call their groups.
_ROLES = {
    "default_pg": "world",
    "undefined": "",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP": "dp",
    "CONTEXT_PARALLEL_GROUP": "cp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_TENSOR_PARALLEL_GROUP": "etp",
    "EXPERT_DATA_PARALLEL_GROUP": "edp",
    "MODEL_PARALLEL_GROUP": "tp_pp",
    "DATA_PARALLEL_GROUP_WITH_CP": "dp_cp",
    "TENSOR_AND_DATA_PARALLEL_GROUP": "tp_dp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "tp_dp_cp",
    "TENSOR_AND_CONTEXT_PARALLEL_GROUP": "tp_cp",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "etp_ep",
}

ALL_UNTIL = 4096  # calls of a rank: so many are recorded whatever a step has
CALLS_A_STEP = 8  # on average, from then on
LABEL_MAX = 40
_WORKS_MAX = 1024  # of works that nobody has waited for yet

Write = Callable[[str, dict[str, object]], None]


class Meetings:
    """The calls of one process. Threads may call at once: each has its own rows.

    stages: whose count of steps numbers the steps. write: writes a row about the run.
    """

    def __init__(self, stages: _core.RunStages, write: Write) -> None:
        self._stages, self._write = stages, write
        self._timer: MyTimer | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets all calls and groups, in a forked child."""
        self._labels: dict[str, str] = {}
        self._members: dict[str, list[int]] = {}
        self._texts: dict[str, dict[tuple[str, int | None], str]] = {}  # by the group's name
        self._taken: dict[str, tuple[int, ...]] = {}  # the members by each label ever given
        self._free: dict[tuple[str, tuple[int, ...]], list[str]] = {}  # labels by role and members
        self._waits: dict[int, str] = {}  # by the address of a Work, or of a tensor's memory
        self._step = -1
        self._calls = 0  # in this step
        self._total = 0
        self._every = 1
        self._is_on = True
        self._unwritten: list[str] | None = []  # labels, until `write` may be called

    def write_groups(self) -> None:
        """From now on rows about the run may be written."""
        labels, self._unwritten = self._unwritten or [], None
        for label in labels:
            self._write_group(label)

    def forget_groups(self, names: Collection[str] | None) -> None:
        """These groups are gone, or all of them: torch gives their names to later ones."""
        for name in list(self._labels) if names is None else names:
            label, members = self._labels.pop(name, None), self._members.pop(name, [])
            self._texts.pop(name, None)
            if label is not None:
                role = "" if NUMBERED_GROUP.fullmatch(label) else label
                self._free.setdefault((role, tuple(members)), []).append(label)

    # --- what a call does ---

    def begin(self, kind: str, group_name: str, peer: int | None = None) -> str:
        """Begins a row for a call; returns its text, "" where none is recorded."""
        if not self._stages.on or not self._counts():
            return ""
        texts = self._texts.get(group_name)
        text = (texts and texts.get((kind, peer))) or self._text(kind, group_name, peer)
        if self._timer is None:
            self._timer = MyTimer(tag=COLLECTIVES_TAG)
        self._timer.start(text)
        return text

    def end(self, text: str, awaited: int = 0) -> None:
        """Ends it. awaited: the address of what is waited for later, 0 for nothing."""
        assert self._timer is not None
        self._timer.stop(text)
        if awaited:
            if len(self._waits) >= _WORKS_MAX:
                self._waits.clear()
            self._waits[awaited] = WAIT + text

    def begin_wait(self, awaited: int) -> str:
        """Begins the row of a wait; returns its text, "" where the call was not recorded."""
        text = self._waits.pop(awaited, "")
        if text and self._timer is not None and self._stages.on:
            self._timer.start(text)
            return text
        return ""

    def _counts(self) -> bool:
        """Counts a call; whether it is recorded."""
        step = self._stages.steps
        if step != self._step:
            self._begin_step(step)
        self._calls += 1
        self._total += self._is_on
        return self._is_on

    def _begin_step(self, step: int) -> None:
        if self._total >= ALL_UNTIL and self._calls > CALLS_A_STEP * self._every:
            while self._calls > CALLS_A_STEP * self._every:
                self._every *= 2
            if self._unwritten is None:
                self._write(SAMPLED_ROW, {"every": self._every, "calls_per_step": self._calls})
        self._step, self._calls = step, 0
        self._is_on = is_sampled(step, self._every)
        if self._timer is not None:
            self._timer.set_step(self._stages.timer.current_step)

    # --- groups ---

    def _text(self, kind: str, group_name: str, peer: int | None) -> str:
        where = self._labels.get(group_name)
        if where is None:
            where = self._labels[group_name] = self._new_label(group_name)
        if peer is not None:  # its place in the group
            members = self._members[group_name]
            where = str(members[peer] if 0 <= peer < len(members) else peer)
        text = sys.intern(f"{kind} {where}")
        self._texts.setdefault(group_name, {})[kind, peer] = text
        return text

    def _new_label(self, group_name: str) -> str:
        """What a group is called in the rows: its role, else its number. One that no group has;
        that of a group with the same members that is gone, if it may."""
        role, self._members[group_name] = _describe_group(group_name)
        role = "" if NUMBERED_GROUP.fullmatch(role) else role
        members = tuple(self._members[group_name])
        for free in (role, members), ("", members):
            if self._free.get(free):
                return self._free[free].pop()
        label = role if role and role not in self._taken else f"group {len(self._taken)}"
        self._taken[label] = members
        if self._unwritten is None:
            self._write_group(label)
        else:
            self._unwritten.append(label)
        return label

    def _write_group(self, label: str) -> None:
        ranks = ranges_text(as_ranges(self._taken[label]))
        self._write(GROUP_ROW, {"label": label, "members": ranks})


def _describe_group(group_name: str) -> tuple[str, list[int]]:
    """Its role, "" where it has none, and its ranks in the order of their places."""
    distributed = sys.modules["torch.distributed"]
    try:
        group = distributed.distributed_c10d._resolve_process_group(group_name)
        return parse_role(group.group_desc), list(distributed.get_process_group_ranks(group))
    except (AttributeError, KeyError, RuntimeError, ValueError):
        return "", []


def parse_role(described: str) -> str:
    """
    >>> parse_role("mesh_tp"), parse_role("default_pg"), parse_role("undefined")
    ('tp', 'world', '')
    >>> parse_role("EXPERT_MODEL_PARALLEL_GROUP")
    'ep'
    """
    return _ROLES.get(described, described.removeprefix("mesh_"))[:LABEL_MAX]


def is_sampled(step: int, every: int) -> bool:
    """Whether a step is one of those of which every n-th is recorded, n a power of two. Distances
    are at random, and a process that records fewer steps records a part of the same ones.

    >>> [step for step in range(40) if is_sampled(step, 8)]
    [0, 6, 17, 24, 29, 38]
    """
    mixed = (step * 0x9E3779B97F4A7C15) & (1 << 64) - 1
    mixed = ((mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93) & (1 << 64) - 1
    return (mixed >> 40) & (every - 1) == 0


# --- patches ---


def method_calls(meetings: Meetings, group_type: Any) -> dict[str, Any]:
    """By name, the methods of ProcessGroup that take the place of its own."""
    calls: dict[str, Any] = {}
    for name, kind in _METHODS.items():
        if (method := getattr(group_type, name, None)) is not None:
            calls[name] = as_method(name, _collective(meetings, method, kind))
    for name in _PEER_METHODS:
        calls[name] = as_method(name, _with_peer(meetings, getattr(group_type, name), name))
    return calls


def as_method(name: str, call: Any) -> Any:
    """A Python function in the place of a method of C++. pybind11 takes it for an overriding one
    and calls it again, without end, unless its code has this name."""
    call.__code__ = call.__code__.replace(co_name=name)
    return call


def _collective(meetings: Meetings, method: Any, kind: str) -> Any:
    begin, end = meetings.begin, meetings.end

    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = None if is_compiling() else _name_of(self)
        text = "" if name is None else begin(kind, name)
        if not text:
            return method(self, *args, **kwargs)
        work = None
        try:
            work = method(self, *args, **kwargs)
        finally:
            end(text, 0 if work is None else id(work))
        return work

    return recorded


def _with_peer(meetings: Meetings, method: Any, kind: str) -> Any:
    begin, end = meetings.begin, meetings.end
    parameter = "dstRank" if kind == "send" else "srcRank"

    @functools.wraps(method)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = None if is_compiling() else _name_of(self)
        peer = args[1] if len(args) > 1 else kwargs.get(parameter)
        text = begin(kind, name, peer) if name is not None and isinstance(peer, int) else ""
        if not text:
            return method(self, *args, **kwargs)
        work = None
        try:
            work = method(self, *args, **kwargs)
        finally:
            end(text, 0 if work is None else id(work))
        return work

    return recorded


def _name_of(group: Any) -> str | None:
    """None for a group that was made by hand, without one."""
    try:
        return cast(str, group.group_name)
    except (AttributeError, RuntimeError):
        return None


def destroy_call(meetings: Meetings, destroy: Any) -> Any:
    """`destroy_process_group`."""

    @functools.wraps(destroy)
    def destroyed(group: Any = None) -> None:
        world = sys.modules["torch.distributed"].group.WORLD
        name = _name_of(group)
        destroy(group)
        if group is None or group is world:
            meetings.forget_groups(None)
        elif name is not None:
            meetings.forget_groups([name])

    return destroyed


def wait_call(meetings: Meetings, wait: Any) -> Any:
    """`Work.wait`."""
    begin, stop = meetings.begin_wait, meetings.end

    @functools.wraps(wait)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        text = "" if is_compiling() else begin(id(self))
        if not text:
            return wait(self, *args, **kwargs)
        try:
            return wait(self, *args, **kwargs)
        finally:
            stop(text)

    return as_method("wait", recorded)


def recorded_operators(meetings: Meetings) -> list[tuple[Any, type]]:
    """Operators of functional collectives, each with the class that records its calls. It is a
    class of torch's operators still, as compilers and DTensor ask for it."""
    namespace = torch.ops._c10d_functional
    found = []
    for name, kind in _FUNCTIONAL.items():
        packet = getattr(namespace, name, None)
        if packet is not None:
            found.append((packet, _recording_class(meetings, type(packet), kind)))
    wait = namespace.wait_tensor
    found.append((wait, _waiting_class(meetings, type(wait))))
    return found


def _address(result: Any) -> int:
    """Of the memory of a tensor, or of the first of several; 0 where there is none."""
    if isinstance(result, list):
        return _address(result[0]) if result else 0
    try:
        return int(result.data_ptr())
    except (AttributeError, RuntimeError):  # a fake one, while a compiler traces
        return 0


def _recording_class(meetings: Meetings, packet_type: Any, kind: str) -> type:
    begin, end = meetings.begin, meetings.end

    class RecordedOperator(packet_type):  # type: ignore[misc]
        """An operator of a functional collective, whose last argument names its group."""

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            name = kwargs.get("group_name", args[-1] if args else None)
            name = getattr(name, "group_name", name)
            text = "" if is_compiling() or not isinstance(name, str) else begin(kind, name)
            if not text:
                return super().__call__(*args, **kwargs)
            result = None
            try:
                result = super().__call__(*args, **kwargs)
            finally:
                end(text, _address(result))
            return result

    return RecordedOperator


def _waiting_class(meetings: Meetings, packet_type: Any) -> type:
    begin, end = meetings.begin_wait, meetings.end

    class RecordedWait(packet_type):  # type: ignore[misc]
        """The wait for the tensor of a functional collective."""

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            text = "" if is_compiling() or not args else begin(_address(args[0]))
            if not text:
                return super().__call__(*args, **kwargs)
            try:
                return super().__call__(*args, **kwargs)
            finally:
                end(text)

    return RecordedWait
