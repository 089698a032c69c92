"""`my_utils why logs`: prints the verdict on a run and, if it hangs, the stacks of its ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...core.run_files.ranks import find_ranks
from ..replay.inputs import verdict_of
from ..verdict.command import command_parser, main as judge_command
from ..verdict.result import Verdict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .hang import HungRun

__all__ = ["command_parser", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status. docs/runs/verdict.md has the options."""
    return judge_command(argv, verdict_of, _find_hang)


def _find_hang(
    logs: Sequence[str], ranks: set[int] | None, after_s: float | None, verdict: Verdict
) -> HungRun | None:
    """As `hang.find_hang`, whose imports take longer than the verdict on a small run. They are
    needed only where a process was in a stage when it left its last sign."""
    folders = [path for path in logs if os.path.isdir(path)]
    try:
        found = find_ranks(folders, only=ranks).ranks
    except OSError:  # the verdict says which directory cannot be read
        return None
    if not any(rank.stack and rank.state != "closed" for rank in found):
        return None
    from .hang import find_hang

    return find_hang(logs, ranks, after_s, verdict)
