"""Finds what bounds a run, and where it hangs; the rules are in `my_utils.verdict`."""

from __future__ import annotations

from ..common.faces import lazy_names

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
    "verdict.result",
    {
        "Operations": "replay.operations",
        "ReplayFinding": "replay.result",
        "ReplayVerdict": "replay.result",
        "RunData": "verdict.run_data",
        "SyncPoint": "verdict.run_data",
        "judge": "replay.inputs",
        "judge_operations": "replay.judge",
        "load_run": "verdict.load",
        "main": "why.command",
        "read_operations": "replay.inputs",
    },
)
