"""Events as torch.profiler writes them into its traces."""

from __future__ import annotations

from typing import Any


def slice_of(
    category: str, name: str, begin_us: float, end_us: float, **args: Any
) -> dict[str, Any]:
    """One slice. tid: 1 unless it is among args, which are those of the event."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": args.pop("tid", 1),
        "ts": begin_us, "dur": end_us - begin_us, "args": args,
    }  # fmt: skip
