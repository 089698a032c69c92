"""Compatibility module; the code is in `my_utils.cluster.sequence`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .cluster.sequence.pad import pad_for_sequence_parallel, remove_pad_by_value

__all__ = ["pad_for_sequence_parallel", "remove_pad_by_value"]

__getattr__, __dir__ = lazy_names(__name__)
