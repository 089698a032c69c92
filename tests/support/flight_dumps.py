"""Dumps of torch's flight recorder in the form of torch 2.13, as NCCL's groups write them."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path
from typing import Any

START_NS = time.time_ns() - 60 * 10**9


def entry(
    record: int,
    name: str,
    seq: int,
    *,
    state: str = "completed",
    group: tuple[str, str] = ("0", "default_pg"),
    sizes: list[list[int]] | None = None,
    peer: int | None = None,
    line: int = 88,
) -> dict[str, Any]:
    """The record of one call. With `peer`, the number of a send or receive is `seq`."""
    shapes = [[16, 4]] if sizes is None else sizes
    return {
        "frames": [
            {"name": name, "filename": "/x/torch/distributed/distributed_c10d.py", "line": 1},
            {"name": "step", "filename": "/home/user/train.py", "line": line},
        ],
        "record_id": record,
        "pg_id": int(group[0]) if group[0].isdigit() else 9,
        "process_group": group,
        "thread_name": "pt_main",
        "thread_id": "1",
        "collective_seq_id": 0 if peer is not None else seq,
        "p2p_seq_id": seq if peer is not None else 0,
        "op_id": record + 1,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": START_NS + record * 1_000_000,
        "input_sizes": shapes,
        "input_dtypes": ["Float"] * len(shapes),
        "output_sizes": shapes,
        "output_dtypes": ["Float"] * len(shapes),
        "state": state,
        "time_discovered_started_ns": None if state == "scheduled" else START_NS,
        "time_discovered_completed_ns": START_NS if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": peer is not None,
    }


def calls(*names: str, last: str = "completed", **more: Any) -> list[dict[str, Any]]:
    """Collectives 1, 2, ... of a group, of which the last is in the given state."""
    entries = [entry(i, name, i + 1, **more) for i, name in enumerate(names)]
    entries[-1]["state"] = last
    entries[-1]["retired"] = last == "completed"
    return entries


def calls_at(at_s: float, *names: str) -> list[dict[str, Any]]:
    """Calls of that moment, the last of which is under way."""
    made = calls(*names, last="started")
    return [{**call, "time_created_ns": int(at_s * 1e9) + n} for n, call in enumerate(made)]


def content(
    entries: list[dict[str, Any]],
    groups: dict[str, tuple[str, list[int]]],
    enqueued: dict[str, int] | None = None,
) -> dict[str, Any]:
    """`groups`: description and ranks by name."""
    return {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": str(ranks)}
            for name, (desc, ranks) in groups.items()
        },
        "pg_status": {
            number: {
                "last_enqueued_collective": last,
                "last_started_collective": last,
                "last_completed_collective": last,
            }
            for number, last in (enqueued or {}).items()
        },
        "entries": entries,
    }


def write_dump(
    folder: Path,
    rank: int,
    entries: list[dict[str, Any]],
    *,
    world: int = 4,
    groups: dict[str, tuple[str, list[int]]] | None = None,
    enqueued: dict[str, int] | None = None,
    as_json: bool = False,
) -> Path:
    """`trace_<rank>`, a pickle of protocol 2 as torch writes it, or JSON."""
    known = {"0": ("default_pg", list(range(world)))} if groups is None else groups
    path = folder / f"trace_{rank}"
    data = content(entries, known, enqueued)
    path.write_bytes(json.dumps(data).encode() if as_json else pickle.dumps(data, protocol=2))
    return path
