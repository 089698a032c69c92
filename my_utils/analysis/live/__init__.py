"""What a running job does now, from the files of its ranks."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...core.ranges import parse_ranks
    from .command import (
        EXIT_FINE,
        EXIT_NOTHING,
        EXIT_SUSPECTS,
        EXIT_USAGE,
        main,
        snapshot,
    )
    from .result import SnapshotData

__all__ = [
    "EXIT_FINE",
    "EXIT_NOTHING",
    "EXIT_SUSPECTS",
    "EXIT_USAGE",
    "SnapshotData",
    "main",
    "parse_ranks",
    "snapshot",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "analysis.live.command",
    {"SnapshotData": "analysis.live.result", "parse_ranks": "core.ranges"},
)
