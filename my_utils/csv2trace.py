"""Compatibility module; the code is in `my_utils.trace`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .trace.csv2trace import (
        ConversionError,
        ConversionWarning,
        Note as Note,
        Options,
        Summary,
        convert,
        csv_to_trace,
        main,
    )

__all__ = [
    "ConversionError",
    "ConversionWarning",
    "Options",
    "Summary",
    "convert",
    "csv_to_trace",
    "main",
]

__getattr__, __dir__ = lazy_names(__name__)

if __name__ == "__main__":
    raise SystemExit(__getattr__("main")())
