"""Compatibility module; the code is in `my_utils.profilers.ncu`."""

from __future__ import annotations

from .core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .profilers.ncu.analysis import analyze_sm_throughput_from_csv, compare_kernel_metrics, main
    from .profilers.ncu.ncu_csv import NcuCsvError, NcuCsvWarning

__all__ = [
    "NcuCsvError",
    "NcuCsvWarning",
    "analyze_sm_throughput_from_csv",
    "compare_kernel_metrics",
    "main",
]

__getattr__, __dir__ = lazy_names(__name__)

if __name__ == "__main__":
    raise SystemExit(__getattr__("main")())
