"""Converts memory records of torch's profiler for torch's memory viewer.

`torch.cuda.memory._snapshot()` asks CUDA's allocator, and there is none on a CPU build. A profile
taken with `profile_memory=True` knows every allocation of every device, so the same form can be
made of it, for https://pytorch.org/memory_viz and for `python -m torch.cuda._memory_viz`.

The form, as of torch 2.13: a list of events for each device (`device_traces`), and what is
allocated at the end (`segments`, of `blocks` that fill them). Sizes are bytes, times microseconds
since 1970. The CPU is the device behind the last GPU. It has no segments; addresses that
are near each other make one.

Memory that was there before the profiler began is known from the inputs of operators, where shapes
were recorded, and from its release. Stacks need `with_stack=True`; operators are always named.

>>> import torch
>>> with torch.profiler.profile(profile_memory=True) as profile:
...     kept = torch.ones(256)
>>> snapshot = make_snapshot(profile)
>>> [(event["action"], event["size"]) for event in snapshot["device_traces"][-1]]
[('alloc', 1024)]
>>> [block["size"] for segment in snapshot["segments"] for block in segment["blocks"]]
[1024]
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ...core.files import atomic_write

# The viewer's own reader of pickles knows the protocols 2 to 4.
PICKLE_PROTOCOL = 4
# Addresses of the CPU that are this near to each other, in bytes, are shown as one segment.
SEGMENT_GAP = 1 << 20
# As torch names frames outside Python.
NO_FILE = "??"

Frame = dict[str, Any]


@dataclass(slots=True)
class _Block:
    """Memory in use."""

    address: int
    size: int
    frames: list[Frame]
    # Whether it was there when the profiler began. Its release may then be missing: the CPU's
    # part of the profiler records no release of memory that was allocated before.
    before: bool = False

    @property
    def end(self) -> int:
        return self.address + self.size


@dataclass
class _Device:
    """What was seen of one device."""

    events: list[dict[str, Any]] = field(default_factory=list)
    live: dict[int, _Block] = field(default_factory=dict)
    # The parts of the address space that were ever in use: address and size.
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def allocated(self, time_us: int, address: int, size: int, frames: list[Frame]) -> None:
        self.live[address] = _Block(address, size, frames)
        self.ranges.append((address, size))
        self._add("alloc", time_us, address, size, frames)

    def freed(self, time_us: int, address: int, size: int, frames: list[Frame]) -> None:
        block = self.live.pop(address, None)
        if block is None:
            self.ranges.append((address, size))
        else:
            size = block.size
        # The viewer takes the two, one right behind the other, for one.
        self._add("free_requested", time_us, address, size, frames)
        self._add("free_completed", time_us, address, size, frames)

    def used(self, address: int, size: int) -> None:
        """An operator read this: when nothing allocated it, it was there before."""
        block = self.live.setdefault(address, _Block(address, 0, [], before=True))
        if block.before and size > block.size:
            block.size = size
            self.ranges.append((address, size))

    def _add(self, action: str, time_us: int, address: int, size: int, frames: list[Frame]) -> None:
        self.events.append({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us,
            "frames": frames,
        })  # fmt: skip


def make_snapshot(profiler: Any) -> dict[str, Any]:
    """The snapshot of a `torch.profiler.profile` that was stopped, for `write_snapshot`.

    Without `profile_memory=True` it has no events. RuntimeError when the profiler has not run, or
    has not been stopped.
    """
    import torch

    seen = _seen(profiler)
    gpus = max([torch.cuda.device_count(), *(index + 1 for kind, index in seen if kind != "cpu")])
    devices = [_Device() for _ in range(gpus + 1)]
    for (kind, index), device in seen.items():
        devices[gpus if kind == "cpu" else index] = device
    return {
        "segments": [
            segment for index, device in enumerate(devices) for segment in _segments(index, device)
        ],
        "device_traces": [device.events for device in devices],
        "allocator_settings": {},
        "external_annotations": [],
    }


def write_snapshot(path: str | os.PathLike[str], snapshot: dict[str, Any]) -> None:
    """The snapshot as a pickle that the viewer opens, whole or not at all."""
    with atomic_write(path) as file:
        pickle.dump(snapshot, file, protocol=PICKLE_PROTOCOL)


# --- what the profiler saw ---


def _seen(profiler: Any) -> dict[tuple[str, int], _Device]:
    """The devices by kind and index, with their events in the order of time."""
    from torch._C._profiler import _EventType

    allocation, operator = _EventType.Allocation, _EventType.TorchOp
    nodes = [node for node in _nodes(_tree(profiler)) if node.tag in (allocation, operator)]
    nodes.sort(key=lambda node: node.start_time_ns)
    devices: dict[tuple[str, int], _Device] = {}
    frames = _Frames()
    for node in nodes:
        if node.tag == operator:
            for address, size, key in _inputs(node.extra_fields.inputs):
                devices.setdefault(key, _Device()).used(address, size)
            continue
        change = node.extra_fields
        device = devices.setdefault(_key(change.device), _Device())
        record = device.allocated if change.alloc_size > 0 else device.freed
        record(node.start_time_ns // 1000, change.ptr, abs(change.alloc_size), frames.of(node))
    return devices


def _tree(profiler: Any) -> list[Any]:
    # torch.profiler.profile holds a torch.autograd.profiler.profile, which can be given as well.
    results = getattr(getattr(profiler, "profiler", profiler), "kineto_results", None)
    if results is None:
        raise RuntimeError("the profiler has no results: it did not run, or was not stopped")
    tree: list[Any] = results.experimental_event_tree()
    return tree


def _nodes(roots: Iterable[Any]) -> Iterator[Any]:
    """All nodes; deep stacks of Python would overflow ours if each level were a call."""
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children)


def _key(device: Any) -> tuple[str, int]:
    return device.type, device.index or 0


def _inputs(values: Iterable[Any]) -> Iterator[tuple[int, int, tuple[str, int]]]:
    """Address, bytes and device of the tensors among the inputs of an operator."""
    for value in values:
        if isinstance(value, list):
            yield from _inputs(value)
            continue
        address = getattr(value, "storage_data_ptr", 0)
        if address and (size := _bytes_of(value)):
            yield address, size, _key(value.device)


def _bytes_of(tensor: Any) -> int:
    """From the storage's first byte to the tensor's last, except for the offset, which is
    unknown."""
    if 0 in tensor.sizes:
        return 0
    pairs = zip(tensor.sizes, tensor.strides, strict=False)  # sparse tensors have no strides
    last = sum((size - 1) * stride for size, stride in pairs)
    return int((last + 1) * tensor.dtype.itemsize)


class _Frames:
    """Stacks of nodes, innermost frame first. Equal frames are one object, so that a pickle holds
    each once."""

    def __init__(self) -> None:
        self._frames: dict[tuple[str, int, str], Frame] = {}

    def of(self, node: Any) -> list[Frame]:
        from torch._C._profiler import _EventType

        stack: list[Frame] = []
        innermost = True
        while (node := node.parent) is not None:
            if node.tag == _EventType.TorchOp:
                stack.append(self._frame(NO_FILE, 0, node.name))
            elif node.tag in (_EventType.PyCall, _EventType.PyCCall):
                stack += map(self._of_code, _make_frames(node.extra_fields, innermost))
                innermost = False
        return stack

    def _of_code(self, code: Any) -> Frame:
        return self._frame(code.file_name, code.line_number, code.function_name)

    def _frame(self, file: str, line: int, name: str) -> Frame:
        key = (file, line, name)
        return self._frames.setdefault(key, {"filename": file, "line": line, "name": name})


def _make_frames(call: Any, innermost: bool) -> Iterator[Any]:
    """The frames that a call of Python adds to those inside it.

    The line that runs is known of callers, and of the innermost function the first line. A function
    of C has no frame; the outermost one was running when the profiler began, as its own caller.
    """
    site, caller = getattr(call, "callsite", None), call.caller
    if innermost and site is not None:
        yield site
    if site is None or _place(site) != _place(caller):
        yield caller


def _place(code: Any) -> tuple[str, str, int]:
    return code.file_name, code.function_name, code.line_number


# --- segments ---


def _segments(index: int, device: _Device) -> list[dict[str, Any]]:
    """What is in use at the end, as segments filled with blocks."""
    blocks = _side_by_side(device.live.values())
    segments = []
    position = 0
    for begin, end in _joined(device.ranges):
        inside = []
        while position < len(blocks) and blocks[position].address < end:
            inside.append(blocks[position])
            position += 1
        segments.append(_segment(index, begin, end, inside))
    return segments


def _side_by_side(blocks: Iterable[_Block]) -> list[_Block]:
    """In the order of addresses. Where two overlap, as when memory from before was released unseen
    and taken again, the one whose allocation was seen stays."""
    kept: list[_Block] = []
    for block in sorted(blocks, key=lambda block: block.address):
        while kept and kept[-1].end > block.address and kept[-1].before and not block.before:
            kept.pop()
        if not kept or kept[-1].end <= block.address:
            kept.append(block)
    return kept


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Begin and end of the parts that are apart by more than SEGMENT_GAP."""
    joined: list[tuple[int, int]] = []
    for address, size in sorted(ranges):
        if joined and address <= joined[-1][1] + SEGMENT_GAP:
            joined[-1] = (joined[-1][0], max(joined[-1][1], address + size))
        else:
            joined.append((address, address + size))
    return joined


def _segment(index: int, begin: int, end: int, inside: list[_Block]) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    reached = begin
    for block in inside:
        if block.address > reached:
            blocks.append(_block(reached, block.address - reached, "inactive", []))
        blocks.append(_block(block.address, block.size, "active_allocated", block.frames))
        reached = block.end
    if reached < end:
        blocks.append(_block(reached, end - reached, "inactive", []))
    active = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "device": index, "address": begin, "total_size": end - begin, "allocated_size": active,
        "active_size": active, "requested_size": active, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
    }  # fmt: skip


def _block(address: int, size: int, state: str, frames: list[Frame]) -> dict[str, Any]:
    requested = size if state == "active_allocated" else 0
    return {
        "address": address, "size": size, "requested_size": requested, "state": state,
        "frames": frames,
    }  # fmt: skip
