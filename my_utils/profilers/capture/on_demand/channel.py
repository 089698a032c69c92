"""How requests for captures get to the ranks of a job, and their responses back: through its log
directory, or in `store` through torch's store."""

from __future__ import annotations

import abc
import dataclasses
import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from ....core.ranges import ranges_text
from .control_file import Request, add_request, read_response, response_path
from .result import FINAL_STATES, Response
from .steps import Survey, furthest_step, step_ahead, survey

SURVEY_S = 1.0  # journals are large


class Channel(abc.ABC):
    """Sends requests, and reads the responses."""

    def ask(self, request: Request, *, find_step: bool, lead_s: float | None = None) -> Request:
        """Sends the request, and returns it as it was sent.

        find_step: whether the window begins at a step ahead of all its ranks, which takes about a
            second to find, or as long as the lead. lead_s: as for `request_capture`.
        """
        if find_step:
            request = beginning_at(request, self.step_ahead(request, lead_s))
        self.send(request)
        return request

    def responses(
        self, request: Request, ranks: Sequence[int], *, over: bool
    ) -> dict[int, Response]:
        """The responses, with failures for the ranks that will send none.

        over: whether the time to wait for them is.
        """
        found = self.read(request.id, ranks, over=over)
        for rank in ranks:
            response = found.get(rank)
            if response is not None and response["state"] in FINAL_STATES:
                continue
            reason = self.why_none(request, rank)
            if over and not reason:
                reason = _why_late(response, self.where(request, rank), request)
            if reason:
                found[rank] = {
                    "state": "failed", "reason": reason, "files": [], "opened_at_step": None,
                }  # fmt: skip
        return found

    @abc.abstractmethod
    def step_ahead(self, request: Request, lead_s: float | None) -> int | None:
        """A step that none of its ranks will have begun in `lead_s` seconds, by the timers with its
        tag; None if none has begun any."""

    @abc.abstractmethod
    def send(self, request: Request) -> None:
        """Leaves the request where its ranks find it. OSError if that cannot be."""

    @abc.abstractmethod
    def asked(self, request: Request) -> list[int]:
        """The ranks of a request that was sent, by number."""

    @abc.abstractmethod
    def read(self, id: str, ranks: Sequence[int], *, over: bool) -> dict[int, Response]:
        """What these ranks have responded so far."""

    @abc.abstractmethod
    def why_none(self, request: Request, rank: int) -> str:
        """Why the rank will not respond; "" if it may."""

    def where(self, request: Request, rank: int) -> str:
        """Where the rank is, as the end of a sentence; "" if that is not known."""
        return ""


class Folder(Channel):
    """The log directory of a job, which also says which ranks are alive."""

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        self.log_dir = os.fspath(log_dir)
        self.there = Survey({}, [])
        self.next_survey = 0.0

    def step_ahead(self, request: Request, lead_s: float | None) -> int | None:
        chosen = None if request.ranks is None else request.rank_numbers()
        asked = survey(self.log_dir, chosen).asked
        return step_ahead(self.log_dir, asked, lead_s, request.tag)

    def send(self, request: Request) -> None:
        add_request(Path(self.log_dir), request)

    def asked(self, request: Request) -> list[int]:
        """Without numbers, those of the run that have not ended normally: one that was killed is
        missed. With `at_start` also those that came, responded and ended."""
        if request.ranks is not None:
            return request.rank_numbers()
        self._look()
        return [
            rank
            for rank in self.there.asked
            if self.there.ranks[rank].state != "closed"
            or (request.at_start and response_path(self.log_dir, request.id, rank).exists())
        ]

    def _look(self, *, anew: bool = False) -> None:
        if anew or time.monotonic() >= self.next_survey:
            self.there = survey(self.log_dir)
            self.next_survey = time.monotonic() + SURVEY_S

    def read(self, id: str, ranks: Sequence[int], *, over: bool) -> dict[int, Response]:
        self._look(anew=over)
        # Read after the survey, so that the last response of a rank that has ended is seen.
        return responses(self.log_dir, id, ranks)

    def why_none(self, request: Request, rank: int) -> str:
        may_begin = request.at_start or rank in self.there.alive
        return "" if may_begin else self.there.why_not(rank)

    def where(self, request: Request, rank: int) -> str:
        known = self.there.ranks.get(rank)
        if known is None:
            return ""
        stack = " > ".join(known.stack)
        step = furthest_step(known, request.tag)
        place = f"; it is at step {step}" if step is not None else "; it has begun no step"
        if request.tag is not None:
            place += f" of the timer {request.tag!r}"
        return place + (f", in {stack}" if stack else "")


def responses(
    log_dir: str | os.PathLike[str], id: str, ranks: Collection[int]
) -> dict[int, Response]:
    """What ranks have responded to a request so far, by rank; without those that have not.

    `Response` says what a response has.
    """
    found = {rank: read_response(response_path(log_dir, id, rank)) for rank in ranks}
    return {rank: response for rank, response in found.items() if response is not None}


def beginning_at(request: Request, ahead: int | None) -> Request:
    """The request from its first step that is not before `ahead`, None if no rank has begun."""
    first = request.first_step
    if first is not None and ahead is not None:
        assert request.every is not None
        first += max(-((first - ahead) // request.every), 0) * request.every
    return dataclasses.replace(request, first_step=ahead if first is None else first)


def describe_request(request: Request) -> str:
    """What was asked for, in one line for people."""
    ranks = "all ranks" if request.ranks is None else f"ranks {ranges_text(request.ranks)}"
    first, last = request.first_step, None
    if first is None:
        steps = f"the next {request.steps} steps" if request.steps > 1 else "the next step"
    else:
        last = first + request.steps - 1
        steps = f"step {first}" if last == first else f"steps {first} to {last}"
    if request.times > 1:
        steps += f" and {request.times - 1} more times, each {request.every} steps later,"
    return f"capture {request.id}: {steps} of {ranks}, {request.backend}"


def _why_late(response: Response | None, where: str, request: Request) -> str:
    if response is None:
        return (
            f"no answer in time{where}; does its timer call set_step, and is MY_UTILS_CAPTURE=0 "
            "not set?"
        )
    if response["state"] == "armed" and request.first_step is not None:
        return f"it did not come to step {request.first_step} in time{where}"
    return f"it was {response['state']} when the time was over{where}"
