"""Which of two sides of runs is slower, by how much, in which stage and on which ranks.

`load` reads runs, `intervals` says how far a figure may be off, `comparison` compares two sides,
`gates` judges limits, `text` says it. docs/runs/diff.md has the rule.
"""

from __future__ import annotations

from ...core.lazy_names import lazy_names

TYPE_CHECKING = False
if TYPE_CHECKING:
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
    "parse_gate",
]

__getattr__, __dir__ = lazy_names(__name__)
