"""Writes objects with their tensors to disk and loads them, without pickle where possible."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .dump_utils import DumpConfig, DumperSingleton, UniversalDumper, UniversalLoader
    from .form import DumpError, StandIn
    from .tensor_io import DumpTensorIO

__all__ = [
    "DumpConfig",
    "DumpError",
    "DumpTensorIO",
    "DumperSingleton",
    "StandIn",
    "UniversalDumper",
    "UniversalLoader",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "tensors.dumps.dump_utils",
    {
        "DumpError": "tensors.dumps.form",
        "DumpTensorIO": "tensors.dumps.tensor_io",
        "StandIn": "tensors.dumps.form",
    },
)
