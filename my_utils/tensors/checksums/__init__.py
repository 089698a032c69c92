"""Checksums that travel with a batch."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .batches import ChecksumUtils

__all__ = ["ChecksumUtils"]

__getattr__, __dir__ = lazy_names(__name__, __all__, "tensors.checksums.batches")
