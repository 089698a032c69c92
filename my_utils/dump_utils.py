"""Compatibility module; the code is in `my_utils.dumps`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dumps import (
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

__getattr__, __dir__ = lazy_names(__name__, __all__, "dumps")
