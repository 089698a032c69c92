"""Reads what the devices of a trace did, who launched it, and what the host did meanwhile."""

from __future__ import annotations

import functools
import operator
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...trace.chrome_json import ChromeJson
from ..replay.operations import Ints, Words, parts_of
from ..replay.torch_trace import (
    IS_COLLECTIVE,
    LAUNCHES,
    ON_DEVICE,
    STEP,
    are_near,
    bounded_number,
    span_ns,
)

UNKNOWN = -1
KERNEL, COLLECTIVE, COPY, FILL = range(4)
_WHAT = {"gpu_memcpy": COPY, "gpu_memset": FILL}
_SYNCHRONIZES = ("Synchronize", "cudaMemcpy", "hipMemcpyWithStream", "cuMemcpy")  # and not Async


@dataclass
class DeviceEvents:
    """What one device did: columns in the order of `begin`, ns.

    name: places in `Trace.names`. what: KERNEL, COLLECTIVE, COPY or FILL. launch: when the host
    called for it, and thread: which of its threads did; UNKNOWN where the trace does not say.
    operator: the place in `Trace.operators` of the one that launched it, or UNKNOWN.
    """

    begin: Ints
    end: Ints
    name: Ints
    what: Ints
    launch: Ints
    thread: Ints
    operator: Ints


@dataclass
class HostEvents:
    """Slices of the host's threads: begin, end, thread, and whether it waits for a device."""

    begin: Ints
    end: Ints
    thread: Ints
    waits: Ints

    def of_thread(self, thread: int) -> Ints:
        """The rows of one, in time that does not grow with those of the others."""
        first, last = np.searchsorted(self._threads, [thread, thread + 1])
        return self._by_thread[first:last]

    @functools.cached_property
    def _by_thread(self) -> Ints:
        return np.argsort(self.thread, kind="stable")

    @functools.cached_property
    def _threads(self) -> Ints:
        return self.thread[self._by_thread]


@dataclass
class Trace:
    """devices: by number. steps: how many `ProfilerStep#` it marks. operators: names and shapes, as
    ("aten::mm", "[[8, 4], [4, 2]]"). left_out: events that are damaged."""

    names: list[str]
    operators: list[tuple[str, str]]
    devices: dict[int, DeviceEvents]
    host: HostEvents
    steps: int
    left_out: int


def read_gpu_trace(path: str) -> Trace:
    """Raises TraceFileError for a file that is no trace, OSError where it cannot be read."""
    reader = _Reader()
    source = ChromeJson(Path(path))
    for event in source.events():
        if isinstance(event, dict) and event.get("ph") == "X":
            try:
                reader.take(event)
            except (KeyError, TypeError, ValueError, ArithmeticError):
                reader.left_out += 1
    reader.left_out += sum(count for count, _ in source.left_out.values())
    return reader.trace()


class _Reader:
    def __init__(self) -> None:
        self.left_out = self._steps = 0
        self._names, self._operators, self._threads = Words(), Words(), Words()
        self._device: list[array[int]] = [array("q") for _ in range(7)]
        self._host: list[array[int]] = [array("q") for _ in range(4)]
        self._launches: dict[int, tuple[int, int]] = {}  # by correlation: when, and the thread
        self._operator_of: dict[int, int] = {}  # by external id

    def take(self, event: dict[str, Any]) -> None:
        category = event.get("cat")
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if category in ON_DEVICE:
            self._take_device(event, args)
        elif category == "user_annotation" and str(event.get("name")).startswith(STEP):
            self._steps += 1
        elif category == "cpu_op":
            begin, end = span_ns(event)
            self._add(self._host, begin, end, self._threads[event.get("tid")], 0)
            external = args.get("External id")
            if isinstance(external, int):
                shapes = args.get("Input Dims") or args.get("Input dims") or ""
                self._operator_of[external] = self._operators[str(event.get("name")), str(shapes)]
        elif str(category).endswith(LAUNCHES):
            begin, end = span_ns(event)
            thread, name = self._threads[event.get("tid")], str(event.get("name"))
            if "correlation" in args:
                self._launches[operator.index(args["correlation"])] = begin, thread
            self._add(self._host, begin, end, thread, int(synchronizes(name)))

    def _take_device(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        begin, end = span_ns(event)
        name = str(event.get("name"))
        what = _WHAT.get(event["cat"], KERNEL)
        if what == KERNEL and IS_COLLECTIVE.search(name) is not None:
            what = COLLECTIVE
        numbers = (args.get(key) for key in ("device", "correlation", "External id"))
        device, correlation, external = (
            one if isinstance(one, int) else UNKNOWN for one in numbers
        )
        self._add(
            self._device, begin, end, self._names[name], what, max(device, 0), correlation,
            external,
        )  # fmt: skip

    @staticmethod
    def _add(columns: list[array[int]], *row: int) -> None:
        for value in row:
            bounded_number(value)
        for column, value in zip(columns, row, strict=True):
            column.append(value)

    def trace(self) -> Trace:
        host = HostEvents(*(np.array(column, np.int64) for column in self._host))
        devices = dict(self._devices())
        names, operators = list(self._names), list(self._operators)
        return Trace(names, operators, devices, host, self._steps, self.left_out)

    def _devices(self) -> Iterator[tuple[int, DeviceEvents]]:
        columns = [np.array(column, np.int64) for column in self._device]
        near = are_near(*columns[:2])
        self.left_out += int((~near).sum())
        columns = [column[near] for column in columns]
        begin, end, name, what, device, correlation, external = columns
        nothing = (UNKNOWN, UNKNOWN)
        launches = [self._launches.get(one, nothing) for one in correlation.tolist()]
        launch, thread = np.array(launches, np.int64).reshape(-1, 2).T
        called = np.array(
            [self._operator_of.get(one, UNKNOWN) for one in external.tolist()], np.int64
        )
        order = np.lexsort((begin, device))
        for rows in parts_of(order, device):
            yield int(device[rows[0]]), DeviceEvents(
                begin[rows], end[rows], name[rows], what[rows], launch[rows], thread[rows],
                called[rows],
            )  # fmt: skip


def synchronizes(call: str) -> bool:
    """Whether a call of the runtime returns once the device has done what it asks for.

    >>> [synchronizes(f"cuda{name}") for name in ("StreamSynchronize", "Memcpy", "MemcpyAsync")]
    [True, True, False]
    """
    return any(word in call for word in _SYNCHRONIZES) and "Async" not in call
