"""Where two recordings part: aligned, searched and reported."""

from __future__ import annotations

from ..common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .compare import (
        EXIT_DIFFERENT,
        EXIT_NOT_COMPARABLE,
        EXIT_SAME,
        SCHEMA_VERSION,
        RankReport,
        Report,
        compare_files,
        compare_recordings,
        main,
    )
    from .search import CallCheck, Cause, Difference
    from .tensors import Figures, TensorCheck, Verdict

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
    "TensorCheck",
    "Verdict",
    "compare_files",
    "compare_recordings",
    "main",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "diverge.compare",
    {
        "CallCheck": "diverge.search",
        "Cause": "diverge.search",
        "Difference": "diverge.search",
        "Figures": "diverge.tensors",
        "TensorCheck": "diverge.tensors",
        "Verdict": "diverge.tensors",
    },
)
