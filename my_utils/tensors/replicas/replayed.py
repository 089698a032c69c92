"""What a replayed step gave, for people and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.reprs import short_repr
from ..passport.words import names_text

if TYPE_CHECKING:
    from ..diverge.result import Difference


class Replayed:
    """What two runs of one batch gave.

    is_same: loss, gradients and buffers are the same, bit for bit. differing: those that are not,
    such as "gradient of fc.weight". module: the name of the first module whose outputs differ, ""
    where none do, as when only the backward differs. reason: what is known of it. deterministic:
    whether torch.use_deterministic_algorithms is on. Without it a difference may be that of an
    operator that adds in any order, and no fault.
    """

    def __init__(
        self, differing: list[str], first: Difference | None, *, deterministic: bool
    ) -> None:
        call = None if first is None else first.call
        self.is_same = not differing and call is None
        self.differing = differing
        self.module = "" if call is None else call.name
        self.reason = "" if first is None or call is None else f"{call.title}: {first.text}"
        self.deterministic = deterministic

    def __repr__(self) -> str:
        return short_repr(self, "is_same", "differing", "module", "deterministic")

    def __str__(self) -> str:
        """In two lines at most."""
        if self.is_same:
            return "the step repeats itself, bit for bit"
        names = names_text(self.differing) or "outputs"
        text = f"the step does not repeat itself: {names} differ; "
        text += f"first {self.reason}" if self.reason else "the outputs of all modules are equal"
        if not self.deterministic:
            text += (
                "\ndeterministic algorithms are off, so that this may be no fault: "
                "torch.use_deterministic_algorithms(True)"
            )
        return text
