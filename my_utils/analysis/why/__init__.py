"""Finds what bounds a run, and where it hangs; the rules are in `my_utils.analysis.verdict`."""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..replay.inputs import read_operations
    from ..replay.judge import judge_operations
    from ..replay.operations import Operations
    from ..replay.result import ReplayFinding, ReplayVerdict
    from ..replay.run_answer import judge
    from ..verdict.load import load_run
    from ..verdict.result import Finding, Verdict
    from ..verdict.run_data import RunData, SyncPoint

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
    "read_operations",
]

__getattr__, __dir__ = lazy_names(__name__)
