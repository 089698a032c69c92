"""The outcomes of the windows that a driver sent to its workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....core.public import public
from .calls import Target, started, value_of

METHOD = "capture_outcomes"
NOT_FINAL = ("armed", "open", "busy")


@public("my_utils.profiling.ProfileManager")
@dataclass(frozen=True)
class Outcome:
    """The outcome of one window on one worker.

    status: an outcome of `CaptureController`, such as "done", "failed" and "overrun"; "never
        opened" for one that still waits although its iteration is over; "armed" and "open" before
        that; "busy", without an answer in time; "dead", the worker or the way to it; "unknown", as
        the worker does not say.
    rank: of the worker, if known. place: among the workers of a group.
    """

    window_id: str
    roles: tuple[str, ...]
    status: str
    detail: str = ""
    rank: int | None = None
    place: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the window was captured as it should."""
        return self.status == "done"

    @property
    def is_final(self) -> bool:
        """Whether no other status can come."""
        return self.status not in NOT_FINAL

    def __str__(self) -> str:
        where = [] if self.rank is None else [f"rank {self.rank}"]
        where += [] if self.place is None else [f"worker {self.place}"]
        text = " ".join([f"{self.window_id}:", *(f"{part}:" for part in where), self.status])
        return f"{text} ({self.detail})" if self.detail else text


class OutcomeCall:
    """Asks one target for the outcomes of its windows; the answer may come later."""

    def __init__(
        self,
        target: Target,
        roles: tuple[str, ...],
        specs: Sequence[dict[str, Any]],
        timeout_s: float,
        is_over: bool,
    ) -> None:
        self._target = target
        self._roles = roles
        self._ids = [str(spec["window_id"]) for spec in specs]
        self._timeout_s = timeout_s
        self._is_over = is_over  # the iteration of the windows
        self._answer: Any = (
            started((target, roles, self._ids), METHOD, timeout_s)
            if _has_method(target.worker)
            else dict.fromkeys(self._ids, "unknown")
        )

    def outcomes(self, deadline: float) -> list[Outcome]:
        """What the workers say; [] where none has answered by the deadline."""
        several = isinstance(self._answer, list | tuple)
        answers = self._answer if several else [self._answer]
        found: list[Outcome] = []
        for place, answer in enumerate(answers):
            found += self._outcomes_of(answer, deadline, place if several else None)
        return found

    def _outcomes_of(self, answer: Any, deadline: float, place: int | None) -> list[Outcome]:
        status, detail, value = value_of(answer, deadline, self._timeout_s)
        if not isinstance(value, dict):
            known = status if status in ("busy", "dead") else "unknown"
            return [self._outcome(name, known, detail, place) for name in self._ids]
        texts = {name: str(value.get(name, "unknown")) for name in self._ids}
        return [
            self._outcome(name, *self._status_of(text), place)
            for name, text in texts.items()
            if not text.startswith("not for rank ")
        ]

    def _status_of(self, text: str) -> tuple[str, str]:
        status, _, detail = text.partition(": ")
        return "never opened" if status == "armed" and self._is_over else status, detail

    def _outcome(self, name: str, status: str, detail: str, place: int | None) -> Outcome:
        return Outcome(name, self._roles, status, detail, self._target.rank, place)


def _has_method(worker: Any) -> bool:
    is_reference = callable(getattr(worker, "rpc_async", None))
    return is_reference or callable(getattr(worker, METHOD, None)) or hasattr(worker, "_actor_id")
