"""The outcomes of a proof in a file, a JSON line each, so that one that was interrupted goes on.

They hold for the rules and the simulator that made them: where the code of either has changed
since, a new file is begun, and the old one stays beside it under the digest of its rules. Comments
and layout do not count as a change.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path

from tests.analysis.verdict.trials import Outcome, Trial
from tests.support.run_simulator.noise import TABLE

__all__ = ["OutcomeStore", "digest_of_rules"]

_ROOT = Path(__file__).resolve().parents[3]
_MADE_BY = (
    "my_utils/analysis/verdict/*.py",
    "tests/support/run_simulator/*.py",
    "tests/analysis/verdict/tr*.py",
)
# Of my_utils/verdict what only reads files or puts the verdict into words.
_NO_RULES = {
    *("endings", "export", "load", "next_steps", "rank_files", "reduce", "result"),
    *("text", "tracks"),
}


def digest_of_rules() -> str:
    """Of the code that decides an outcome, and of the noise."""
    digest = hashlib.sha256(TABLE.read_bytes())
    for pattern in _MADE_BY:
        for path in sorted(_ROOT.glob(pattern)):
            if path.stem not in _NO_RULES:
                digest.update(ast.dump(ast.parse(path.read_text(encoding="utf-8"))).encode())
    return digest.hexdigest()


class OutcomeStore:
    """`known` has what the file holds for these rules. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.known: dict[Trial, Outcome] = {}
        digest = digest_of_rules()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines and lines[0] == digest:
            self.known = {one.trial: one for one in map(_parsed, lines[1:]) if one is not None}
        elif lines:
            path.rename(f"{path}.{lines[0][:10]}")
        self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115  # for the life of the proof
        self._file.write(f"{digest}\n")
        for one in self.known.values():
            self._write(one)
        self._file.flush()

    def add(self, outcome: Outcome) -> None:
        """It is in the file when the call returns."""
        self.known[outcome.trial] = outcome
        self._write(outcome)
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _write(self, outcome: Outcome) -> None:
        fields = asdict(outcome)
        if math.isnan(outcome.promise):
            fields["promise"] = None
        self._file.write(json.dumps(fields, default=bool) + "\n")  # numpy's bool is none


def _parsed(line: str) -> Outcome | None:
    """None for a line that an interruption cut."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    promise = math.nan if fields["promise"] is None else fields["promise"]
    return Outcome(**{**fields, "trial": Trial(**fields["trial"]), "promise": promise})
