"""Compatibility module; the code is in `my_utils.tensors.dumps`."""

from __future__ import annotations

from .core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tensors.dumps import (
        DumpConfig,
        DumpError,
        DumperSingleton,
        DumpTensorIO,
        StandIn,
        UniversalDumper,
        UniversalLoader,
    )

__all__ = [
    "DumpConfig",
    "DumpError",
    "DumpTensorIO",
    "DumperSingleton",
    "StandIn",
    "UniversalDumper",
    "UniversalLoader",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, "tensors.dumps")
