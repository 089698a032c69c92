"""What the ranks of a run have left of their replicas, where they were watched."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...core.run_files.files import REPLICAS_FOLDER

if TYPE_CHECKING:
    from ...tensors.replicas.result import ReplicasData

TIMES_ITS_COST = 100.0


class ReplicaReader:
    """For a run that goes on. Not thread-safe."""

    def __init__(self, log_dirs: Sequence[str]) -> None:
        self._log_dirs = log_dirs
        self._seen: list[tuple[str, int]] = []
        self._found: ReplicasData | None = None
        self._next_s = 0.0

    def read(self) -> ReplicasData | None:
        """None if nothing was watched. What was read last as long as no file has grown, and where
        reading takes more than 1 % of the time."""
        began_s = time.monotonic()
        if began_s < self._next_s or not _is_watched(self._log_dirs):
            return self._found
        from ...tensors.replicas.compare import compare_replicas
        from ...tensors.replicas.file import files_in, sums_bytes

        seen = [(one.path, sums_bytes(one.path)) for one in files_in(self._log_dirs)]
        if seen != self._seen:
            self._seen, self._found = seen, compare_replicas(self._log_dirs)
            self._next_s = began_s + TIMES_ITS_COST * (time.monotonic() - began_s)
        return self._found


def replica_text(found: ReplicasData | None, *, only_differing: bool = False) -> list[str]:
    """A line for each difference; where there is none, one that says so."""
    if found is None or (only_differing and found["status"] != "differ"):
        return []
    from ...tensors.replicas.compare import replica_lines

    return replica_lines(found)


def _is_watched(log_dirs: Sequence[str]) -> bool:
    return any(os.path.isdir(os.path.join(path, REPLICAS_FOLDER)) for path in log_dirs)
