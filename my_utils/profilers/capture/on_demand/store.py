"""Capture on demand through torch's store, for ranks that share no log directory.

Requests have numbers, counted under `COUNT`. Ranks that listen poll the count every half second, on
a separate thread and connection, because a store that hangs must not delay the training.
A request may ask for the step of a rank; the thread responds with it.
"""

from __future__ import annotations

import atexit
import dataclasses
import datetime
import itertools
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .... import _core
from ....core.extras import needs_torch
from ....core.process_end import join_within
from ....core.store import default_store, own_connection
from ....record.stages.open_stages import where_now
from .channel import Channel
from .control_file import Request, RequestError
from .steps import Seen, watched_step

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from .control_data import StoreMessage
    from .result import Response

_T = TypeVar("_T")


_logger = logging.getLogger("my_utils")

PREFIX = "my_utils/control"
COUNT = f"{PREFIX}/count"
WORLD = f"{PREFIX}/world_size"
POLL_S = 0.5
POLLS_FOR_A_NUMBER = 60  # polls; a request follows its number at once, or its sender died
# One poll a rank and half second is too much for one store from some thousand ranks on.
POLLS_A_SECOND_MAX = 4000
LEAD_S = 2.0
ASK_AGAIN_S = 0.05
ANSWER_S = 10.0  # for a rank to respond with its step
CONNECT_S = 10.0
# For a store that hangs. Python before 3.14 aborts a process whose thread comes back from torch
# while the interpreter ends, so this is long.
EXIT_WAIT_S = 10.0


def open_store(store: Store | str) -> Store:
    """A connection of one's own to a store, without prefixes.

    store: torch's, "default" for that of `init_process_group`, or "HOST:PORT" of a TCPStore, which
        is MASTER_ADDR and MASTER_PORT of the job.

    TypeError or ValueError for what is none of these, ConnectionError when nobody is there.
    """
    with needs_torch("a store of torch"):
        from torch._C._distributed_c10d import Store, TCPStore

    if isinstance(store, str) and store != "default":
        host, colon, port = store.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit():
            raise ValueError(f"store must be HOST:PORT, 'default' or a torch store, not {store!r}")
        limit = datetime.timedelta(seconds=CONNECT_S)
        try:
            return TCPStore(
                host.strip("[]"), int(port), is_master=False, timeout=limit, wait_for_workers=False
            )
        except RuntimeError as error:
            raise ConnectionError(f"no store answers at {store}") from error
    if store == "default":
        found = default_store()
        if found is None:
            raise ValueError("store 'default' needs torch.distributed.init_process_group()")
        store = found
    if not isinstance(store, Store):
        raise TypeError(f"store must be a torch store or HOST:PORT, not {store!r:.100}")
    return own_connection(store)


def _key(kind: str, id: str, rank: int) -> str:
    return f"{PREFIX}/{kind}/{id}/{rank}"


def _read(store: Store, key: str, kind: type[_T]) -> _T | None:
    """The JSON under a key, None if there is none of that kind; without waiting for it."""
    from ....core.checked_json import Damaged, Foreign, decoded

    if not store.check([key]):
        return None
    try:
        return decoded(store.get(key), kind)
    except (Damaged, Foreign):
        return None


# --- outside, or on the rank that asks ---


class StoreChannel(Channel):
    """A store, through which the ranks that `listen` to it are asked."""

    def __init__(self, store: Store | str) -> None:
        self.store = open_store(store)
        self.world_size = _read(self.store, WORLD, int)  # None if no rank listens

    def ask(self, request: Request, *, find_step: bool, lead_s: float | None = None) -> Request:
        if self.world_size is None:
            raise ConnectionError(
                "no rank listens to this store; see my_utils.profilers.capture.listen"
            )
        if request.ranks is None:
            request = dataclasses.replace(request, ranks=((0, self.world_size - 1),))
        return super().ask(request, find_step=find_step, lead_s=lead_s)

    def step_ahead(self, request: Request, lead_s: float | None) -> int | None:
        """By requests to the ranks for their steps."""
        assert self.world_size is not None
        ranks = [rank for rank in request.rank_numbers() if rank < self.world_size]
        numbers = itertools.count()
        before = self._steps(f"{request.id}.{next(numbers)}", ranks, request.tag)

        def look() -> dict[int, Seen]:
            return self._steps(f"{request.id}.{next(numbers)}", list(before), request.tag)

        lead = LEAD_S + _pause(len(ranks)) if lead_s is None else lead_s
        return watched_step(before, look, POLL_S, lead)

    def _steps(self, id: str, ranks: list[int], tag: str | None) -> dict[int, Seen]:
        reported: dict[int, Seen] = {}
        if not ranks:
            return reported
        self._put({"question": id, "tag": tag})
        end = time.monotonic() + ANSWER_S
        while len(reported) < len(ranks) and time.monotonic() < end:
            for rank in ranks:
                if rank in reported:
                    continue
                reply = _read(self.store, _key("step", id, rank), tuple[int, float])
                if reply is not None:
                    reported[rank] = Seen(*reply, known_s=time.monotonic())
            time.sleep(ASK_AGAIN_S)
        return reported

    def send(self, request: Request) -> None:
        self._put({"request": request.as_data()})

    def _put(self, content: Mapping[str, Any]) -> None:
        self.store.set(f"{PREFIX}/{self.store.add(COUNT, 1)}", json.dumps(content))

    def asked(self, request: Request) -> list[int]:
        return request.rank_numbers()

    def read(self, id: str, ranks: Sequence[int], *, over: bool = False) -> dict[int, Response]:
        from .control_data import parse_response

        found: dict[int, Response] = {}
        try:
            for rank in ranks:
                key = _key("answer", id, rank)
                if self.store.check([key]) and (response := parse_response(self.store.get(key))):
                    found[rank] = response
        except RuntimeError as error:
            raise ConnectionError("the store of the job is gone") from error
        return found

    def why_none(self, request: Request, rank: int) -> str:
        is_there = self.world_size is None or rank < self.world_size
        return "" if is_there else f"the job has {self.world_size} ranks"


# --- in the job ---


def _pause(world_size: int) -> float:
    """Seconds between two polls of a rank."""
    return max(POLL_S, world_size / POLLS_A_SECOND_MAX)


def _step_now(tag: str | None) -> int | None:
    """The step of this process's timers with the tag, as `furthest_step` has it from outside."""
    if tag is None:
        return where_now().step
    found = (step for _, own_tag, step, _ in _core.open_stages() if own_tag == tag)
    return max(found, default=None)


class Listener:
    """The thread of a rank that polls for requests.

    offer: takes a request, or what is wrong with one, on this thread.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        offer: Callable[[Request | RequestError], object],
    ) -> None:
        self.store = store
        self.rank = rank
        self.offer = offer
        self.replies: deque[tuple[str, str]] = deque()
        self.pause = _pause(world_size)
        self.wake = threading.Event()
        self.ended = False
        self.seen = store.add(COUNT, 0)  # requests from before are not for us
        self.awaited: dict[int, int] = {}  # polls without the request, by number
        store.set(WORLD, json.dumps(world_size))
        self.thread = threading.Thread(target=self._run, name="my_utils-store", daemon=True)
        self.thread.start()
        atexit.register(self.end)

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def end(self) -> None:
        """Writes the last responses and stops. A store that hangs is waited for ten seconds."""
        self.ended = True
        self.wake.set()
        join_within(self.thread, EXIT_WAIT_S)
        atexit.unregister(self.end)

    def respond(self, id: str, rank: int, response: Response) -> None:
        """Lets the processes that asked know, whatever way they did."""
        self.replies.append((_key("answer", id, rank), json.dumps(response)))
        self.wake.set()

    def _run(self) -> None:
        try:
            while True:
                self.wake.wait(self.pause)
                self.wake.clear()
                ended = self.ended  # read before the queue of replies is emptied for the last time
                while self.replies:
                    self.store.set(*self.replies.popleft())
                if ended:
                    return
                self._poll()
        except Exception as error:
            # The store lives on one rank, which may have ended. That is not an error of this rank.
            _logger.info("requests by the store are not heard any more: %s", error)

    def _poll(self) -> None:
        from .control_data import StoreMessage

        count = self.store.add(COUNT, 0)
        while self.seen < count:
            self.seen += 1
            self.awaited[self.seen] = 0
        for number, polls in list(self.awaited.items()):
            content = _read(self.store, f"{PREFIX}/{number}", StoreMessage)
            if content is None and polls < POLLS_FOR_A_NUMBER:
                self.awaited[number] += 1
                continue
            del self.awaited[number]
            if content is not None:
                self._hear(content)

    def _hear(self, content: StoreMessage) -> None:
        request_id = content.step_request
        if request_id is not None and (step := _step_now(content.tag)) is not None:
            self.store.set(_key("step", request_id, self.rank), json.dumps([step, time.time()]))
        if content.has_request:
            try:
                self.offer(Request.from_data(content.request))
            except RequestError as error:
                self.offer(error)
