"""The history of torch's CUDA allocator without CUDA: which calls come in which order, and
snapshots in the form that torch 2.13 gives them. What real ones hold only a GPU tells."""

from __future__ import annotations

import time
from typing import Any

import pytest

SEGMENT_BYTES = 2 << 20


class FakeAllocator:
    """One segment, in which allocations lie one behind the other."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.options: dict[str, Any] = {}
        self.enabled = False
        self.failure: Exception | None = None
        self._trace: list[dict[str, Any]] = []
        self._live: dict[int, int] = {}
        self._next = 0x7F0000000000
        self._base = self._next

    # --- what torch has ---

    def record_memory_history(self, enabled: str | None = "all", **options: Any) -> None:
        self.calls.append(f"record {enabled}")
        self._raise()
        self.enabled = enabled is not None
        self.options = options
        if not self.enabled:
            self._trace.clear()  # as torch does

    def snapshot(self) -> dict[str, Any]:
        self.calls.append("snapshot")
        self._raise()
        blocks = [
            {"address": address, "size": size, "requested_size": size, "frames": [],
             "state": "active_allocated"}
            for address, size in self._live.items()
        ]  # fmt: skip
        used = sum(self._live.values())
        end = self._base + used
        blocks.append({"address": end, "size": SEGMENT_BYTES - used, "requested_size": 0,
                       "frames": [], "state": "inactive"})  # fmt: skip
        segment = {
            "device": 0, "address": self._base, "total_size": SEGMENT_BYTES, "stream": 0,
            "segment_type": "large", "segment_pool_id": (0, 0), "allocated_size": used,
            "active_size": used, "requested_size": used, "is_expandable": False, "frames": [],
            "blocks": blocks,
        }  # fmt: skip
        return {
            "segments": [segment],
            "device_traces": [list(self._trace)],
            "allocator_settings": {"expandable_segments": False},
            "external_annotations": [],
        }

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure

    # --- what a program does ---

    def allocate(self, size: int) -> int:
        address, self._next = self._next, self._next + size
        self._live[address] = size
        self._note("alloc", address, size)
        return address

    def free(self, address: int) -> None:
        size = self._live.pop(address)
        self._note("free_requested", address, size)
        self._note("free_completed", address, size)

    def _note(self, action: str, address: int, size: int) -> None:
        if self.enabled:
            frames = [{"filename": "train.py", "line": 7, "name": "forward"}]
            self._trace.append(
                {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames,
                 "time_us": time.time_ns() // 1000, "pool_id": (0, 0)}
            )  # fmt: skip


def put_in(patch: pytest.MonkeyPatch) -> FakeAllocator:
    """Torch finds CUDA and this allocator until the patch is taken back."""
    import torch

    fake = FakeAllocator()
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda.memory, "_record_memory_history", fake.record_memory_history)
    patch.setattr(torch.cuda.memory, "_snapshot", fake.snapshot)
    patch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: fake.enabled, raising=False)
    return fake
