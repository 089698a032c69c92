"""Compatibility module; the code is in `my_utils.tensors.dumps`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tensors.dumps.config import DumpConfig
    from .tensors.dumps.dump_utils import DumperSingleton, UniversalDumper, UniversalLoader
    from .tensors.dumps.form import DumpError, StandIn
    from .tensors.dumps.tensor_io import DumpTensorIO

__all__ = [
    "DumpConfig",
    "DumpError",
    "DumpTensorIO",
    "DumperSingleton",
    "StandIn",
    "UniversalDumper",
    "UniversalLoader",
]

__getattr__, __dir__ = lazy_names(__name__)
