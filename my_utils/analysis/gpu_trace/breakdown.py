"""Where the time of a device went, each nanosecond in one row.

The time is from the begin of the first kernel or copy to the end of the last one. While kernels of
several streams run it is in the first of the rows, in their order: kinds of kernels that compute,
fills, communication that nothing computes beside, copies with neither beside them. The rest is
idle. Until the host called for what comes next, the host is why: it is in an operator, it waits for
a device or is in neither, which is Python. After the call what comes next was held up on the
device's side, by its launch or by what it waits for.

So compute (with fills), exposed communication, exposed copies and idle time are those of TraceLens;
HTA's "non-compute" is communication, copies and fills together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ...core.units import count_text
from ..replay.operations import Flags, Ints, parts_of
from ..replay.spans import Spans
from ..replay.torch_trace import left_out_text
from .events import (
    COLLECTIVE,
    COPY,
    FILL,
    KERNEL,
    UNKNOWN,
    DeviceEvents,
    HostEvents,
    Trace,
    read_gpu_trace,
)
from .kinds import COMMUNICATION, COPIES, FILLS, KINDS, kind_of
from .nsys import is_database, read_nsys_trace

IN_OPERATORS = "idle: the host is in an operator"
HOST_WAITS = "idle: the host waits for the device"
IN_PYTHON = "idle: the host is in no operator"
LAUNCHED = "idle: launched, not begun"
UNLAUNCHED = "idle: who launches is not known"
IDLE = (IN_OPERATORS, HOST_WAITS, IN_PYTHON, LAUNCHED, UNLAUNCHED)
COMPUTE = (*KINDS, FILLS)
ROWS = (*COMPUTE, COMMUNICATION, COPIES, *IDLE)
LONGEST = 5  # kernels
DEVICES_MAX = 256


@dataclass(frozen=True)
class KernelSum:
    """All calls of a kernel by one operator on inputs of one shape. shapes: as torch recorded them,
    "" where it did not."""

    name: str
    operator: str
    shapes: str
    count: int
    ns: int


@dataclass
class Breakdown:
    """path: of the trace. rows: ns by the names in `ROWS`; they add up to `span_ns`.
    communication_ns, copies_ns: all of it, whatever runs beside it. launch_ns: from the host's call
    to the begin, the median and the 99th of a hundred; None where no call is known. longest:
    kernels with most time. steps: that the trace marks, 0 for none. left_out: events of the whole
    trace, for they are damaged."""

    path: str
    device: int
    steps: int
    span_ns: int
    events: int
    rows: dict[str, int]
    communication_ns: int
    copies_ns: int
    left_out: int
    launch_ns: tuple[int, int] | None = None
    longest: list[KernelSum] = field(default_factory=list)

    def share(self, *rows: str) -> float:
        return sum(self.rows[row] for row in rows) / self.span_ns if self.span_ns else 0.0

    @property
    def hidden_share(self) -> float:
        """Of the communication, what runs while something computes."""
        exposed = self.rows[COMMUNICATION]
        return 1 - exposed / self.communication_ns if self.communication_ns else 0.0


def break_down(path: str) -> list[Breakdown]:
    """Of each device that did something in a trace, or in a database of Nsight Systems. Raises as
    `read_gpu_trace` and `read_nsys_trace`; ValueError where there is none, but damaged events.

    >>> import json, tempfile
    >>> kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 10, "dur": 6, "args": {}}
    >>> copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 14, "dur": 4}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     _ = file.write(json.dumps({"traceEvents": [kernel, copy]}))
    ...     file.flush()
    ...     (found,) = break_down(file.name)
    >>> found.span_ns, found.rows["matmul"], found.rows["copies"], found.copies_ns
    (8000, 6000, 2000, 4000)
    """
    trace = read_nsys_trace(path) if is_database(path) else read_gpu_trace(path)
    if trace.left_out and not trace.devices:
        raise ValueError(left_out_text(trace.left_out))
    if len(trace.devices) > DEVICES_MAX:
        raise ValueError(f"{count_text(len(trace.devices), 'device')}: no host has so many")
    kinds = np.array([KINDS.index(kind_of(name)) for name in trace.names], np.int64)
    devices = sorted(trace.devices.items())
    return [_breakdown(path, number, one, kinds, trace) for number, one in devices]


def _breakdown(
    path: str, number: int, events: DeviceEvents, kinds: Ints, trace: Trace
) -> Breakdown:
    """kinds: of the names of the trace."""
    kernels, collectives, copies = (events.what == one for one in (KERNEL, COLLECTIVE, COPY))
    chosen = [kernels & (kinds[events.name] == at) for at in range(len(KINDS))]
    chosen += [events.what == FILL, collectives, copies]
    rows = dict.fromkeys(ROWS, 0)
    counted, before = np.zeros(len(events.begin), np.bool_), 0
    for row, those in zip(ROWS, chosen, strict=False):
        counted |= those
        covered = _union_ns(events, counted)
        rows[row], before = covered - before, covered
    for row, ns in _idle(events, trace.host).items():
        rows[row] = ns
    span_ns = int(events.end.max() - events.begin.min())
    return Breakdown(
        path, number, trace.steps, span_ns, len(events.begin), rows,
        _union_ns(events, collectives), _union_ns(events, copies), trace.left_out,
        _launch_delays(events), _longest(events, trace),
    )  # fmt: skip


def _union_ns(events: DeviceEvents, rows: Flags) -> int:
    """How long at least one of these ran."""
    return Spans.union(events.begin[rows], events.end[rows]).total


def _idle(events: DeviceEvents, host: HostEvents) -> dict[str, int]:
    found = dict.fromkeys(IDLE, 0)
    done = np.maximum.accumulate(events.end)[:-1]
    after = np.flatnonzero(events.begin[1:] > done) + 1
    begin, end = done[after - 1], events.begin[after]
    launch, thread = events.launch[after], events.thread[after]
    known = launch != UNKNOWN
    found[UNLAUNCHED] = int((end - begin)[~known].sum())
    called = np.clip(launch, begin, end)[known]
    found[LAUNCHED] = int((end[known] - called).sum())
    order = np.argsort(thread[known], kind="stable")
    for here in parts_of(order, thread[known]):
        first, last = begin[known][here], called[here]
        own = host.of_thread(int(thread[known][here[0]]))
        waits = _covered_ns(host, own[host.waits[own] == 1], first, last)
        either = _covered_ns(host, own, first, last)
        found[HOST_WAITS] += waits
        found[IN_OPERATORS] += either - waits
        found[IN_PYTHON] += int((last - first).sum()) - either
    return found


def _covered_ns(host: HostEvents, rows: Ints, first: Ints, last: Ints) -> int:
    """How much of these spans, which do not overlap, the union of these slices of the host has."""
    return int(Spans.union(host.begin[rows], host.end[rows]).within(first, last).sum())


def _launch_delays(events: DeviceEvents) -> tuple[int, int] | None:
    known = events.launch != UNKNOWN
    if not known.any():
        return None
    delays = np.maximum(events.begin[known] - events.launch[known], 0)
    median, most = np.quantile(delays, [0.5, 0.99], method="lower").tolist()
    return int(median), int(most)


def _longest(events: DeviceEvents, trace: Trace) -> list[KernelSum]:
    rows = np.flatnonzero((events.what == KERNEL) | (events.what == COLLECTIVE))
    keys = np.stack([events.name[rows], events.operator[rows]], axis=1)
    if not len(rows):
        return []
    kernels, which, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    sums = np.zeros(len(kernels), np.int64)
    np.add.at(sums, which.ravel(), (events.end - events.begin)[rows])
    found = []
    for at in np.argsort(-sums, kind="stable")[:LONGEST].tolist():
        name, called = kernels[at].tolist()
        operator, shapes = trace.operators[called] if called != UNKNOWN else ("", "")
        found.append(KernelSum(trace.names[name], operator, shapes, int(counts[at]), int(sums[at])))
    return found
