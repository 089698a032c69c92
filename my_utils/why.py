"""What bounds a run; the code is in `my_utils.verdict`."""

from __future__ import annotations

from .common.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .verdict.command import main
    from .verdict.load import load_run
    from .verdict.result import Finding, Verdict
    from .verdict.rules import judge
    from .verdict.run_data import RunData, SyncPoint

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
        "main": "verdict.command",
    },
)

if __name__ == "__main__":
    raise SystemExit(__getattr__("main")())
