"""Finds what bounds a run, and where it hangs; the rules are in `my_utils.analysis.verdict`."""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..replay.inputs import judge, read_operations
    from ..replay.judge import judge_operations
    from ..replay.operations import Operations
    from ..replay.result import ReplayFinding, ReplayVerdict
    from ..verdict.load import load_run
    from ..verdict.result import Finding, Verdict
    from ..verdict.run_data import RunData, SyncPoint
    from .command import main

__all__ = [
    "Finding",
    "Operations",
    "ReplayFinding",
    "ReplayVerdict",
    "RunData",
    "SyncPoint",
    "Verdict",
    "judge",
    "judge_operations",
    "load_run",
    "main",
    "read_operations",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "analysis.verdict.result",
    {
        "Operations": "analysis.replay.operations",
        "ReplayFinding": "analysis.replay.result",
        "ReplayVerdict": "analysis.replay.result",
        "RunData": "analysis.verdict.run_data",
        "SyncPoint": "analysis.verdict.run_data",
        "judge": "analysis.replay.inputs",
        "judge_operations": "analysis.replay.judge",
        "load_run": "analysis.verdict.load",
        "main": "analysis.why.command",
        "read_operations": "analysis.replay.inputs",
    },
)
