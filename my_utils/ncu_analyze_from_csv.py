"""Compatibility module; the code is in `my_utils.ncu`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .ncu import (
        NcuCsvError,
        NcuCsvWarning,
        analyze_sm_throughput_from_csv,
        compare_kernel_metrics,
        main,
    )

__all__ = [
    "NcuCsvError",
    "NcuCsvWarning",
    "analyze_sm_throughput_from_csv",
    "compare_kernel_metrics",
    "main",
]

__getattr__, __dir__ = lazy_names(__name__, __all__, "ncu")

if __name__ == "__main__":
    raise SystemExit(__getattr__("main")())
