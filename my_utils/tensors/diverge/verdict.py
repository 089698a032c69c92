"""Whether a tensor of two recordings agrees."""

from __future__ import annotations

import enum
from collections.abc import Iterable

from ...core.public import public


@public("my_utils.tensors.diverge")
class Verdict(enum.StrEnum):
    """SAME: bit for bit. CLOSE: within the tolerance, or no figure differs where no bits were
    recorded. UNKNOWN: the recordings do not decide it."""

    SAME = "same"
    CLOSE = "close"
    UNKNOWN = "unknown"
    DIFFERENT = "different"

    @property
    def agrees(self) -> bool:
        return self in (Verdict.SAME, Verdict.CLOSE)


_ORDER = list(Verdict)


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The one that decides over all of them; None for none."""
    return max(verdicts, key=_ORDER.index, default=None)
