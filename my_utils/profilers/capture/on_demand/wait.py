"""Waits for the responses to a request for a capture."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....core.arguments import check_seconds
from ....core.identity import identity
from ....core.lazy_modules import lazy_module
from . import store as capture_store
from .control_file import Request, read_response, response_path
from .result import FINAL_STATES, Response
from .steps import Survey, survey

if TYPE_CHECKING:
    from torch._C import _distributed_c10d as _c10d
else:
    _c10d = lazy_module("torch._C._distributed_c10d")


WAIT_S = 120.0
POLL_S = 0.2
SURVEY_S = 1.0  # journals are large


def job_log_dir(log_dir: str | os.PathLike[str] | None) -> Path:
    """The log directory of a job, by default that of this process; ValueError for none."""
    if log_dir is not None:
        return Path(log_dir)
    known = identity()
    if known is None:
        raise ValueError("log_dir must be given, as GlobalLogger was not set up")
    return Path(known.log_dir)


def responses(
    log_dir: str | os.PathLike[str], id: str, ranks: Collection[int]
) -> dict[int, Response]:
    """What ranks have responded to a request so far, by rank; without those that have not.

    `Response` says what a response has.
    """
    found = {rank: read_response(response_path(log_dir, id, rank)) for rank in ranks}
    return {rank: response for rank, response in found.items() if response is not None}


def wait_for_capture(
    request: Request,
    log_dir: str | os.PathLike[str] | None = None,
    *,
    store: _c10d.Store | str | None = None,
    timeout_s: float = WAIT_S,
    on_change: Callable[[int, Response], object] | None = None,
) -> dict[int, Response]:
    """Waits until each rank of the request is done or has failed; the responses by rank.

    log_dir, store: as for `request_capture`.
    timeout_s: a rank that has not finished by then gets the state "failed", with the reason; a rank
        without a live process gets it at once.
    on_change: called with (rank, response) whenever a rank's state changes.

    A training process cannot wait for itself: its window needs its steps.
    """
    check_seconds("timeout_s", timeout_s, 0, math.inf)
    source = _Folder(os.fspath(job_log_dir(log_dir))) if store is None else _Store(store)
    ranks = source.asked(request)
    end = time.monotonic() + timeout_s
    states: dict[int, str] = {}
    while True:
        found = source.responses(request, ranks, over=time.monotonic() >= end)
        for rank in ranks:
            response = found.get(rank)
            if response is not None and states.get(rank) != response["state"]:
                states[rank] = response["state"]
                if on_change is not None:
                    on_change(rank, response)
        if all(states.get(rank) in FINAL_STATES for rank in ranks):
            return found
        time.sleep(POLL_S)


class _Folder:
    """Where responses come from: files, with what is known of which ranks are alive."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir
        self.there = Survey({}, [])
        self.next_survey = 0.0

    def asked(self, request: Request) -> list[int]:
        """The ranks by number. "All" are those of the run that have not ended normally: one
        that was killed is missed."""
        if request.ranks is not None:
            return request.rank_numbers()
        there = survey(self.log_dir)
        return [rank for rank in there.asked if there.ranks[rank].state != "closed"]

    def responses(
        self, request: Request, ranks: Sequence[int], *, over: bool
    ) -> dict[int, Response]:
        """The responses, with failures for the ranks that will send none."""
        if over or time.monotonic() >= self.next_survey:
            self.there = survey(self.log_dir, ranks)
            self.next_survey = time.monotonic() + SURVEY_S
        # Read after the survey, so that the last response of a rank that has ended is seen.
        found = responses(self.log_dir, request.id, ranks)
        for rank in ranks:
            if _is_final(found.get(rank)):
                continue
            if not request.at_start and rank not in self.there.alive:
                found[rank] = _failure(self.there.why_not(rank))
            elif over:
                found[rank] = _failure(_why_late(found.get(rank), self.where(rank), request))
        return found

    def where(self, rank: int) -> str:
        known = self.there.ranks.get(rank)
        if known is None:
            return ""
        stack = " > ".join(known.stack)
        return f"; it is at step {known.step}" + (f", in {stack}" if stack else "")


class _Store:
    """Where responses come from: torch's store."""

    def __init__(self, store: _c10d.Store | str) -> None:
        self.store = capture_store.open_store(store)
        self.world_size = capture_store.world_size(self.store)

    def asked(self, request: Request) -> list[int]:
        return request.rank_numbers()

    def responses(
        self, request: Request, ranks: Sequence[int], *, over: bool
    ) -> dict[int, Response]:
        try:
            found = capture_store.responses(self.store, request.id, ranks)
        except RuntimeError as error:
            raise ConnectionError("the store of the job is gone") from error
        for rank in ranks:
            if _is_final(found.get(rank)):
                continue
            if self.world_size is not None and rank >= self.world_size:
                found[rank] = _failure(f"the job has {self.world_size} ranks")
            elif over:
                found[rank] = _failure(_why_late(found.get(rank), "", request))
        return found


def _is_final(response: Response | None) -> bool:
    return response is not None and response["state"] in FINAL_STATES


def _failure(reason: str) -> Response:
    return {"state": "failed", "reason": reason, "files": [], "opened_at_step": None}


def _why_late(response: Response | None, where: str, request: Request) -> str:
    if response is None:
        return (
            f"no answer in time{where}; does its timer call set_step, and is MY_UTILS_CAPTURE=0 "
            "not set?"
        )
    if response["state"] == "armed" and request.first_step is not None:
        return f"it did not come to step {request.first_step} in time{where}"
    return f"it was {response['state']} when the time was over{where}"
