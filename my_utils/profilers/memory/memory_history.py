"""The history of torch's CUDA allocator: what records it, and its snapshots as files.

torch has one history a process, and drops it when the recording ends. So the first user here
switches it on, and the last one switches it off. If the program had switched it on already, it
stays on. All functions are thread-safe.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any, Literal

from ...core.arguments import check_choice, check_int
from ...core.extras import needs_torch
from .memory_snapshot_form import write_snapshot

Context = Literal["state", "alloc", "all"] | None
Stacks = Literal["python", "all"]

CONTEXTS = (None, "state", "alloc", "all")
STACKS = ("python", "all")

_logger = logging.getLogger("my_utils")


class Recording:
    """A share in the recording, from `record` until `end`."""

    def __init__(self, began_us: int, *, first: bool) -> None:
        self._began_us = began_us
        self._first = first

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes what happened since this share was taken; the file is complete or missing."""
        import torch

        snapshot: Any = torch.cuda.memory._snapshot()
        if not self._first:
            snapshot = trimmed(snapshot, self._began_us)
        write_snapshot(path, snapshot)
        return Path(path)

    def end(self) -> None:
        """Ends this share; further calls do nothing."""
        with _state.lock:
            if self not in _state.shares:
                return
            _state.shares.remove(self)
            if _state.shares or not _state.switched_on:
                return
            _state.switched_on = False
            import torch

            torch.cuda.memory._record_memory_history(None)


def trimmed(snapshot: dict[str, Any], since_us: int) -> dict[str, Any]:
    """The snapshot without events before `since_us` (Unix microseconds); it is left as it is.

    The segments are those of its end, from which the viewer works out what was there before the
    first event. Events without a time are kept.
    """
    traces = [
        [event for event in trace if event.get("time_us", since_us) >= since_us]
        for trace in snapshot["device_traces"]
    ]
    return {**snapshot, "device_traces": traces}


class _State:
    """Of the process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a forked child, which cannot use the parent's CUDA."""
        self.lock = threading.RLock()
        self.shares: list[Recording] = []
        self.switched_on = False  # by us


_state = _State()
os.register_at_fork(after_in_child=_state.forget)


def record(
    owner: str, *, max_entries: int, context: Context = "all", stacks: Stacks = "all"
) -> Recording | None:
    """Begins to record, or joins the recording that runs, with the options of that one.

    None, with a warning, if there is no CUDA. What torch raises goes through. `owner` is for
    messages.
    """
    with needs_torch("the history of CUDA's allocator"):
        import torch

    if not torch.cuda.is_available():
        _logger.warning("%s: CUDA is not available; nothing is recorded", owner)
        return None
    with _state.lock:
        first = not _is_on()
        share = Recording(time.time_ns() // 1000, first=first)
        if first:
            torch.cuda.memory._record_memory_history(
                "all", context=context, stacks=stacks, max_entries=max_entries
            )
            _state.switched_on = True
        _state.shares.append(share)
        return share


def _is_on() -> bool:
    import torch

    if _state.switched_on:
        return True
    is_on: Any = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(is_on is not None and is_on())


def check_options(max_entries: object, context: object, stacks: object) -> None:
    """TypeError or ValueError that names the argument."""
    check_int("max_entries", max_entries, 1)
    check_choice("context", context, CONTEXTS)
    check_choice("stacks", stacks, STACKS)
