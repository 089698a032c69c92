"""How much of the communication of a rank is hidden behind compute, by traces of torch's profiler.

On a GPU, communication is NCCL's (or RCCL's) kernels and compute all others; on the CPU the calls
of the process group's back end and the operators of aten. Times of one kind that overlap count
once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...core.extras import require
from ...core.ranges import RANK_MAX
from ...core.trusted_open import open_without_waiting
from ...trace.chrome_json import ChromeJson, TraceFileError
from .load import PURPOSE

if TYPE_CHECKING:
    import pandas as pd


TIME_US_MAX = 2.0**63
COMMUNICATION = re.compile(r"^(nccl|rccl|gloo:|mccl|hccl)", re.IGNORECASE)
Intervals = npt.NDArray[np.float64]  # n × 2: begin and end in µs


def measure_overlap(traces: Sequence[str]) -> pd.DataFrame:
    """A row a trace: rank, trace, communication_s, compute_s, hidden_s (communication while there
    is compute) and hidden_share; sorted by rank. A trace that cannot be read raises ValueError."""
    pandas = require("pandas", PURPOSE)
    columns = ["rank", "trace", "communication_s", "compute_s", "hidden_s", "hidden_share"]
    rows = [_overlap(Path(trace), number) for number, trace in enumerate(traces)]
    table: pd.DataFrame = pandas.DataFrame(rows, columns=columns).sort_values(["rank", "trace"])
    return table.reset_index(drop=True)


def _overlap(path: Path, number: int) -> tuple[int, str, float, float, float, float]:
    kernels: list[tuple[bool, float, float]] = []
    host: list[tuple[bool, float, float]] = []
    source = ChromeJson(path)
    try:
        with open(path, "rb", opener=open_without_waiting):
            pass  # a FIFO would have no end
        for event in source.events():
            if _is_slice(event):
                begin, name = float(event["ts"]), event["name"]
                is_communication = COMMUNICATION.match(name) is not None
                slice_ = (is_communication, begin, begin + float(event.get("dur", 0)))
                if event.get("cat") == "kernel":
                    kernels.append(slice_)
                elif is_communication or name.startswith("aten::"):
                    host.append(slice_)
    except (OSError, TraceFileError) as error:
        raise ValueError(f"{path} is not a trace of torch's profiler: {error}") from error
    rank = _read_rank(source.metadata.get("distributedInfo"), number)
    slices = np.array(kernels or host, "f8").reshape(-1, 3)
    communication = _intervals(slices[slices[:, 0] > 0, 1:])
    compute = _intervals(slices[slices[:, 0] == 0, 1:])
    hidden = _length(_common(communication, compute))
    total = _length(communication)
    share = hidden / total if total else float("nan")
    return rank, str(path), total * 1e-6, _length(compute) * 1e-6, hidden * 1e-6, share


def _is_slice(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("name"), str)
        and _is_time(event.get("ts"))
        and _is_time(event.get("dur", 0))
    )


def _is_time(value: Any) -> bool:
    return type(value) in (int, float, Decimal) and abs(value) < TIME_US_MAX


def _read_rank(about: Any, otherwise: int) -> int:
    rank = about.get("rank") if isinstance(about, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank <= RANK_MAX else otherwise


def _intervals(moments: Intervals) -> Intervals:
    """Their union, sorted and without overlaps."""
    if not len(moments):
        return moments
    moments = moments[np.argsort(moments[:, 0], kind="stable")]
    ends = np.maximum.accumulate(moments[:, 1])
    begins = np.flatnonzero(np.r_[True, moments[1:, 0] > ends[:-1]])
    last = np.r_[begins[1:] - 1, len(moments) - 1]
    return np.column_stack([moments[begins, 0], ends[last]])


def _common(first: Intervals, second: Intervals) -> Intervals:
    """What is in both, by a sweep over their edges."""
    moments = np.concatenate([first.ravel(), second.ravel()])
    changes = np.concatenate([np.tile([1, -1], len(first)), np.tile([1, -1], len(second))])
    order = np.lexsort((changes, moments))
    moments, depth = moments[order], np.cumsum(changes[order])
    inside = np.flatnonzero(depth[:-1] == 2)
    return np.column_stack([moments[inside], moments[inside + 1]])


def _length(intervals: Intervals) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())
