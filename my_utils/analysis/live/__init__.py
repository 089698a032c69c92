"""What a running job does now, from the files of its ranks."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...core.ranges import parse_ranks
    from .command import EXIT_FINE, EXIT_NOTHING, EXIT_SUSPECTS, EXIT_USAGE, main, snapshot
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
    {
        "analysis.live.command": (
            "EXIT_FINE",
            "EXIT_NOTHING",
            "EXIT_SUSPECTS",
            "EXIT_USAGE",
            "main",
            "snapshot",
        ),
        "analysis.live.result": ("SnapshotData",),
        "core.ranges": ("parse_ranks",),
    },
)
