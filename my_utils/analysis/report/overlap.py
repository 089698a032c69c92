"""How much of the communication of a rank is hidden behind compute, by traces of torch's profiler.

On a GPU, communication is NCCL's (or RCCL's) kernels and compute all others; on the CPU the calls
of the process group's back end and the operators of aten. Times of one kind that overlap count
once.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...core.extras import require
from ...core.ranges import RANK_MAX
from ...core.trusted_open import open_without_waiting
from .load import PURPOSE

if TYPE_CHECKING:
    import pandas as pd


TRACE_BYTES_MAX = 4 << 30  # unpacked
TIME_US_MAX = 2.0**63
COMMUNICATION = re.compile(r"^(nccl|rccl|gloo:|mccl|hccl)", re.IGNORECASE)
Intervals = npt.NDArray[np.float64]  # n × 2: begin and end in µs


def overlap_of(traces: Sequence[str]) -> pd.DataFrame:
    """A row a trace: rank, trace, communication_s, compute_s, hidden_s (communication while there
    is compute) and hidden_share; sorted by rank. A trace that cannot be read raises ValueError."""
    pandas = require("pandas", PURPOSE)
    columns = ["rank", "trace", "communication_s", "compute_s", "hidden_s", "hidden_share"]
    rows = [_overlap(Path(trace), number) for number, trace in enumerate(traces)]
    table: pd.DataFrame = pandas.DataFrame(rows, columns=columns).sort_values(["rank", "trace"])
    return table.reset_index(drop=True)


def _overlap(path: Path, number: int) -> tuple[int, str, float, float, float, float]:
    content = _read(path)
    rank = _rank_of(content.get("distributedInfo"), number)
    events = [event for event in content["traceEvents"] if _is_slice(event)]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    if kernels:
        communication = _intervals(e for e in kernels if COMMUNICATION.match(e["name"]))
        compute = _intervals(e for e in kernels if not COMMUNICATION.match(e["name"]))
    else:
        communication = _intervals(e for e in events if COMMUNICATION.match(e["name"]))
        compute = _intervals(e for e in events if e["name"].startswith("aten::"))
    hidden = _length(_common(communication, compute))
    total = _length(communication)
    share = hidden / total if total else float("nan")
    return rank, str(path), total * 1e-6, _length(compute) * 1e-6, hidden * 1e-6, share


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_bytes_of(path))
    except (OSError, ValueError, EOFError, zlib.error, RecursionError) as error:
        raise ValueError(f"{path} is not a trace of torch's profiler: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise ValueError(f"{path} is not a trace of torch's profiler: it has no traceEvents")
    return content


def _bytes_of(path: Path) -> bytes:
    with open(path, "rb", opener=open_without_waiting) as file:
        if path.suffix != ".gz":
            data = file.read(TRACE_BYTES_MAX + 1)
        else:
            with gzip.open(file) as unpacked:
                data = unpacked.read(TRACE_BYTES_MAX + 1)
    if len(data) > TRACE_BYTES_MAX:
        raise ValueError(f"it has more than {TRACE_BYTES_MAX} bytes")
    return data


def _is_slice(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("ph") == "X"
        and isinstance(event.get("name"), str)
        and _is_time(event.get("ts"))
        and _is_time(event.get("dur", 0))
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) < TIME_US_MAX


def _rank_of(about: Any, otherwise: int) -> int:
    rank = about.get("rank") if isinstance(about, dict) else None
    return rank if isinstance(rank, int) and 0 <= rank <= RANK_MAX else otherwise


def _intervals(events: Iterable[dict[str, Any]]) -> Intervals:
    """Their union, sorted and without overlaps."""
    moments = np.array([(e["ts"], e["ts"] + e.get("dur", 0)) for e in events], "f8").reshape(-1, 2)
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
