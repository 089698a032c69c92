"""Finds where two recordings differ: aligns them, searches and reports."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .compare import SCHEMA_VERSION, as_data, compare_files, compare_recordings, main
    from .result import (
        EXIT_DIFFERENT,
        EXIT_NOT_COMPARABLE,
        EXIT_SAME,
        CallCheck,
        Cause,
        Difference,
        Figures,
        RankReport,
        Report,
        ReportData,
        TensorCheck,
    )
    from .verdict import Verdict

__all__ = [
    "EXIT_DIFFERENT",
    "EXIT_NOT_COMPARABLE",
    "EXIT_SAME",
    "SCHEMA_VERSION",
    "CallCheck",
    "Cause",
    "Difference",
    "Figures",
    "RankReport",
    "Report",
    "ReportData",
    "TensorCheck",
    "Verdict",
    "as_data",
    "compare_files",
    "compare_recordings",
    "main",
]

__getattr__, __dir__ = lazy_names(__name__)
