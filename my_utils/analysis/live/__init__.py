"""What a running job does now, from the files of its ranks."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .poll import snapshot
    from .result import SnapshotData

__all__ = ["SnapshotData", "snapshot"]

__getattr__, __dir__ = lazy_names(__name__)
