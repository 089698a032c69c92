"""Which of two sides of runs is slower, by how much, in which stage and on which ranks.

`load` reads runs, `intervals` says how far a figure may be off, `comparison` compares two sides,
`gates` judges limits, `text` and `junit` say it. docs/runs/diff.md has the rule.
"""

from __future__ import annotations

from ...core.faces import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .command import main
    from .comparison import compare
    from .gates import Gate, GateResult, judge_gate, parse_gate
    from .intervals import Interval
    from .load import NothingToCompare, RunSteps, load_steps
    from .result import Difference, FigureDifference, StageDifference

__all__ = [
    "Difference",
    "FigureDifference",
    "Gate",
    "GateResult",
    "Interval",
    "NothingToCompare",
    "RunSteps",
    "StageDifference",
    "compare",
    "judge_gate",
    "load_steps",
    "main",
    "parse_gate",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    "analysis.diff.result",
    {
        "Gate": "analysis.diff.gates",
        "GateResult": "analysis.diff.gates",
        "Interval": "analysis.diff.intervals",
        "NothingToCompare": "analysis.diff.load",
        "RunSteps": "analysis.diff.load",
        "compare": "analysis.diff.comparison",
        "judge_gate": "analysis.diff.gates",
        "load_steps": "analysis.diff.load",
        "main": "analysis.diff.command",
        "parse_gate": "analysis.diff.gates",
    },
)
