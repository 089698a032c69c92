"""A loss of a group of ranks that the rules found, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .kinds import Kind
from .run_data import Integers, Matrix

LEAST_SHARE = 0.10  # of a step: what costs less leaves a run ok
LOW_SHARE = 0.03  # of a step: ranks that are slow by so much together may be a finding


@dataclass
class Loss:
    """saved_ns: per step, how much shorter it is without the loss. rows: of the group. part: of
    `Work.parts`, None if it is not known. since: the place among the judged steps at which it
    began, None for always."""

    kind: Kind
    saved_ns: Matrix
    rows: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    part: int | None = None
    since: int | None = None
    hosts: tuple[str, ...] = ()
    detail: dict[str, Any] = field(default_factory=dict)
    inside_ns: Matrix | None = None  # of saved_ns, what is taken to be inside meetings

    @property
    def cost_ns(self) -> float:
        """The mean a step."""
        return float(self.saved_ns.mean()) if self.saved_ns.size else 0.0


@dataclass
class Remaining:
    """What is left of a group's work once losses were found. parts: rank × step × part. bases:
    step × meeting, what a meeting takes the rank that waits least. lasts: which rank comes last
    inside a stage though that costs too little for a loss; figures for the text, by the stage."""

    parts: Matrix
    bases: Matrix
    losses: list[Loss] = field(default_factory=list)
    lasts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def own(self) -> Matrix:
        """rank × step."""
        total: Matrix = self.parts.sum(2)
        return total

    def take_off(self, row: int, amount_ns: Matrix, part: int | None) -> None:
        """Takes ns a step off a rank's work: off a part, or off all in the same proportion."""
        if part is not None:
            self.parts[row, :, part] -= amount_ns
            return
        total = self.parts[row].sum(1)
        kept = np.where(total > 0, (total - amount_ns) / np.maximum(total, 1.0), 1.0)
        self.parts[row] *= kept[:, None]

    def take_off_meetings(self, amount_ns: Matrix) -> None:
        """Takes ns a step off the meetings, in proportion."""
        total = self.bases.sum(1)
        kept = np.where(total > 0, (total - amount_ns) / np.maximum(total, 1.0), 1.0)
        self.bases *= np.maximum(kept, 0.0)[:, None]
