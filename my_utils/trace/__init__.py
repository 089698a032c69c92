"""Converts profile CSVs to traces and pictures."""

from __future__ import annotations

from ..core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .csv2trace import ConversionError, ConversionWarning, Summary, csv_to_trace, main
    from .timeline import Span, find_csvs, plot_timeline, read_spans

__all__ = [
    "ConversionError",
    "ConversionWarning",
    "Span",
    "Summary",
    "csv_to_trace",
    "find_csvs",
    "main",
    "plot_timeline",
    "read_spans",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "trace.csv2trace",
    {
        "Span": "trace.timeline",
        "find_csvs": "trace.timeline",
        "plot_timeline": "trace.timeline",
        "read_spans": "trace.timeline",
    },
)
