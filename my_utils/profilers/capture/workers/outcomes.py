"""The outcomes of the windows that a driver sent to its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....core.public import public
from .calls import Target, await_value, started

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


@dataclass(eq=False)
class Sent:
    """The windows that one target was sent, until their outcomes are known."""

    last: int  # iteration
    target: Target
    roles: tuple[str, ...]
    ids: list[str]
    is_asked: bool = False
    is_over: bool = False  # the last iteration was, when it was asked
    timeout_s: float = 0.0
    answer: Any = None  # may come later

    def ask(self, timeout_s: float, iteration: int) -> None:
        """Asks for the outcomes, at that iteration."""
        self.is_asked, self.is_over, self.timeout_s = True, self.last < iteration, timeout_s
        if _has_method(self.target.worker):
            self.answer = started((self.target, self.roles, self.ids), METHOD, timeout_s)
        else:
            self.answer = dict.fromkeys(self.ids, "unknown")

    def outcomes(self, deadline: float) -> list[Outcome]:
        """What the workers say; "busy" for those that have not answered by the deadline."""
        several = isinstance(self.answer, list | tuple)
        answers = self.answer if several else [self.answer]
        found: list[Outcome] = []
        for place, answer in enumerate(answers):
            found += self._collect(answer, deadline, place if several else None)
        return found

    def _collect(self, answer: Any, deadline: float, place: int | None) -> list[Outcome]:
        status, detail, value = await_value(answer, deadline, self.timeout_s)
        if not isinstance(value, dict):
            known = status if status in ("busy", "dead") else "unknown"
            return [self._outcome(name, known, detail, place) for name in self.ids]
        found = []
        for name in self.ids:
            status, _, detail = str(value.get(name, "unknown")).partition(": ")
            if status == "armed" and self.is_over:
                status = "never opened"
            if not status.startswith("not for rank "):
                found.append(self._outcome(name, status, detail, place))
        return found

    def _outcome(self, name: str, status: str, detail: str, place: int | None) -> Outcome:
        return Outcome(name, self.roles, status, detail, self.target.rank, place)


def _has_method(worker: Any) -> bool:
    is_reference = callable(getattr(worker, "rpc_async", None))
    return is_reference or callable(getattr(worker, METHOD, None)) or hasattr(worker, "_actor_id")
