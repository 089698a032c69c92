"""Finds what bounds a run, and where it hangs; the rules are in `my_utils.verdict`."""

from __future__ import annotations

from ..common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..verdict.load import load_run
    from ..verdict.result import Finding, Verdict
    from ..verdict.rules import judge
    from ..verdict.run_data import RunData, SyncPoint
    from .command import main

__all__ = ["Finding", "RunData", "SyncPoint", "Verdict", "judge", "load_run", "main"]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "verdict.result",
    {
        "RunData": "verdict.run_data",
        "SyncPoint": "verdict.run_data",
        "judge": "verdict.rules",
        "load_run": "verdict.load",
        "main": "why.command",
    },
)
