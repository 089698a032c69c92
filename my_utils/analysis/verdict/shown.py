"""What of a verdict concerns some of the ranks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from .kinds import is_costly
from .result import Verdict
from .run_ranks import ranks_have


def about(verdict: Verdict, ranks: Collection[int], there: Collection[int]) -> Verdict:
    """The verdict on a whole run, as far as it concerns these of its ranks.

    A finding that costs time concerns all ranks, for they wait for one another; another one
    concerns those that it names. there: the ranks with files.
    """
    asked = {*ranks}
    missing = asked - {*there}
    notes = [f"{ranks_have(missing)} no files"] if missing else []
    if missing == asked:
        return Verdict("not judged", reason=notes[0], paths=verdict.paths)
    findings = [
        one
        for one in verdict.findings
        if is_costly(one.kind) or not one.ranks or asked & {*one.ranks}
    ]
    return replace(verdict, findings=findings, notes=[*notes, *verdict.notes])
