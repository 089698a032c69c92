"""A breakdown as plain data, for JSON."""

from __future__ import annotations

from typing import TypedDict

from .breakdown import Breakdown


class KernelData(TypedDict):
    """All calls of a kernel by one operator on inputs of one shape.

    operator: that launched it, empty where the trace does not say.
    shapes: of its inputs, as torch recorded them, or empty.
    """

    name: str
    operator: str
    shapes: str
    count: int
    ns: int


class DeviceRowData(TypedDict):
    """A row of a device's time, of which each nanosecond is in one row.

    row: its name.
    share: of the time from the first begin to the last end.
    """

    row: str
    share: float
    ns: int


class DeviceData(TypedDict):
    """Where the time of a device went, by a trace.

    path: of the trace.
    span_ns: from the begin of the first kernel or copy to the end of the last one.
    events: how many kernels, copies and fills.
    rows: those that have time; they add up to span_ns.
    communication_ns: all of it, also what runs while something computes.
    copies_ns: the same of copies.
    launch_median_ns: from the host's call to the begin, null where no call is known.
    launch_most_ns: the same of the 99th of a hundred.
    longest: the kernels with most time.
    """

    path: str
    device: int
    span_ns: int
    events: int
    rows: list[DeviceRowData]
    communication_ns: int
    copies_ns: int
    launch_median_ns: int | None
    launch_most_ns: int | None
    longest: list[KernelData]


def as_data(one: Breakdown) -> DeviceData:
    median, most = one.launch_ns or (None, None)
    return {
        "path": one.path,
        "device": one.device,
        "span_ns": one.span_ns,
        "events": one.events,
        "rows": [
            {"row": row, "share": round(one.share(row), 6), "ns": ns}
            for row, ns in one.rows.items()
            if ns
        ],
        "communication_ns": one.communication_ns,
        "copies_ns": one.copies_ns,
        "launch_median_ns": median,
        "launch_most_ns": most,
        "longest": [
            {
                "name": kernel.name, "operator": kernel.operator, "shapes": kernel.shapes,
                "count": kernel.count, "ns": kernel.ns,
            }
            for kernel in one.longest
        ],
    }  # fmt: skip
