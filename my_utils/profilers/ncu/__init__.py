"""Results of Nsight Compute, by kernel."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .analysis import analyze_sm_throughput_from_csv, compare_kernel_metrics, main
    from .ncu_csv import NcuCsvError, NcuCsvWarning

__all__ = [
    "NcuCsvError",
    "NcuCsvWarning",
    "analyze_sm_throughput_from_csv",
    "compare_kernel_metrics",
    "main",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "profilers.ncu.analysis",
    {"NcuCsvError": "profilers.ncu.ncu_csv", "NcuCsvWarning": "profilers.ncu.ncu_csv"},
)
