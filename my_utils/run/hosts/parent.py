"""The parent of a command on one of several hosts: finds the parent of rank 0, and sends it what
the ranks here write; or, where rank 0 is here, receives.

All of it is in an event loop in a thread, from the first message of a rank on; see `listening`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from ...core.bounded_read import describe
from ...core.checked_json import decoded
from ...core.printable import printable
from ...core.process_end import join_within
from ...core.ranks import host_name
from ...core.run_files.hosts import HOSTS_MAX
from ..closing import print_lines
from ..parent import FORWARDED, FROM_TERMINAL
from ..report_file import Reported, read_reports
from .meeting import BACKLOG
from .receiving import HostFolder
from .sending import Sending
from .wire import (
    MARKS_MAX,
    Address,
    Connection,
    Frame,
    Refused,
    Request,
    Response,
    connected,
    parsed,
)

PAUSE_S = 2.0  # between two turns of a host; a rank's heartbeat changes as often
PAUSE_OF_EACH_S = 0.05  # so that rank 0's parent is idle, whatever the number of hosts
PAUSE_MAX_S = 60.0
SEARCH_S = 0.2  # while the host of rank 0 is not known
AT_END_S = 20.0  # in all
QUIET_S = 5.0  # of that, without a sign of the others
STRANGERS_MAX = 64  # connections that have proved nothing yet
CONNECTIONS_MAX = 128  # each with a piece of half a megabyte at most
PLACES_MAX = 256  # folders of a host
ROWS_MAX = 256 << 20  # bytes of rows of a host
ALL_ROWS_MAX = 8 << 30  # of all hosts
MARK = ".my_utils.hosts."  # begins the name of an empty file in the folders of a receiver

_FAILURES = (OSError, TimeoutError, Refused)


class Message(msgspec.Struct):
    """What a rank says, by `meeting`."""

    rank: int
    world_size: int
    meeting: str  # the text of an Address


class Parent:
    """From its creation on until `end`. report: the file in which processes report. RuntimeError
    where no more threads may be started."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._report_size = -1
        self._reported = Reported()
        self._id = secrets.token_hex(8)
        self._loop = asyncio.new_event_loop()
        self._ended_s: float | None = None  # when the command has
        self._wakes = asyncio.Event()
        self._own: dict[Address, asyncio.Server | None] = {}  # where this one listens
        self._tasks: list[asyncio.Task[None]] = []  # which begin to
        self._meetings: list[Address] = []  # the newest last
        self._world_size = 0
        self._ranks: set[int] = set()  # here, of those that meet at the newest
        self._leads = False
        self._leader: Address | None = None  # as was told last
        self._announced: set[Address] = set()
        self._announcing: dict[Address, asyncio.Task[None]] = {}  # one may say nothing for long
        # of a sender
        self._sending: dict[Path, Sending] = {}
        self._numbers: dict[Path, int] = {}  # of the folders here, which keep them
        self._sent_to: Address | None = None
        self._kept_in = ""  # the mark of the folder that has what was sent
        self._shares_disk = False
        self._is_done = False
        self._sent_s: float | None = None
        # of a receiver, and of a meeting point
        self._received: dict[tuple[str, int, Path], HostFolder] = {}  # by sender, its folder, ours
        self._ranks_heard: set[int] = set()
        self._ranks_done: set[int] = set()
        self._marks: dict[Path, str] = {}
        self._heard_s = time.monotonic()
        self._connections = 0
        self._strangers = 0
        self._turned_away = 0
        self._is_full = False
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="my_utils hosts", daemon=True)
        self._thread.start()

    def hear(self, data: bytes, port: socket.socket | None) -> None:
        """A message of a rank, and the port that it has opened. ValueError for what is none."""
        message = decoded(data, Message)
        meeting = Address.from_text(message.meeting)
        with contextlib.suppress(RuntimeError):  # it has ended, and has said why
            self._loop.call_soon_threadsafe(self._hear, message, meeting, port)

    def end(self) -> None:
        """The command has ended. Sends what is left, or waits for that of the other hosts, for 20
        seconds at most."""
        self._ended_s = time.monotonic()
        with contextlib.suppress(RuntimeError):  # it has ended, and has said why
            self._loop.call_soon_threadsafe(self._wakes.set)
        join_within(self._thread, AT_END_S + QUIET_S)

    @property
    def judges(self) -> bool:
        """After `end`: whether rank 0 was here, or its host has not heard that this one is done.
        Where they share a disk, that host has all, and does not wait for this one."""
        return self._leads or not (self._is_done or self._shares_disk)

    # --- the thread ---

    def _run(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*FORWARDED, *FROM_TERMINAL))
        try:
            with contextlib.closing(self._loop):
                self._loop.run_until_complete(self._go_on())
        except Exception as error:
            _say(f"no more of other hosts: {type(error).__name__}: {error}")
        finally:
            for place, mark in self._marks.items():
                with contextlib.suppress(OSError):
                    os.unlink(place / mark)

    async def _go_on(self) -> None:
        while self._ended_s is None:
            self._wakes.clear()
            pause_s = await self._turn()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wakes.wait(), pause_s)
        left_s = AT_END_S - (time.monotonic() - self._ended_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._finish(), max(left_s, QUIET_S / 2))
        self._say_what_is_missing()
        for server in self._own.values():
            if server is not None:
                server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self, *, last: bool = False) -> float:
        """Sends what is new, or says where this one receives. The seconds until the next turn."""
        self._read_reports()
        if self._leads and 0 in self._ranks:
            for meeting in [one for one in self._meetings if one not in self._announced]:
                before = self._announcing.get(meeting)
                if before is None or before.done():
                    announcing = self._loop.create_task(self._announce(meeting))
                    self._announcing[meeting] = announcing
            return PAUSE_S if self._announced.issuperset(self._meetings) else SEARCH_S
        if self._leads:
            with contextlib.suppress(*_FAILURES):
                await self._look_for_successor()
            return PAUSE_S if self._leads else SEARCH_S
        newest, older = self._meetings[-1:], self._meetings[-2::-1]
        # The newest meeting point before others: it ends once all have asked it.
        for address in dict.fromkeys([self._leader, *newest, self._sent_to, *older]):
            if address is None or address in self._own:
                continue
            if self._ended_s is not None and not last:
                break  # each may take ten seconds to say nothing
            with contextlib.suppress(*_FAILURES):
                pause_s = await self._send_to(address, last=last)
                if pause_s is not None:
                    return pause_s
        return SEARCH_S if self._sent_s is None else PAUSE_S

    def _read_reports(self) -> None:
        with contextlib.suppress(OSError):
            size = self._report.stat().st_size
            if size != self._report_size:
                self._report_size, self._reported = size, read_reports(self._report)

    async def _finish(self) -> None:
        """After the command: all is sent, or has come, or nothing has come for a while."""
        self._heard_s = time.monotonic()
        while True:
            if not self._is_done:
                await self._turn(last=True)
            others = set(range(self._world_size)) - self._ranks
            heard = self._ranks_done if self._leads else self._ranks_heard
            serves = self._leads or any(server is not None for server in self._own.values())
            is_sent = self._is_done or self._leads or self._shares_disk
            is_over = is_sent and (not serves or heard >= others)
            if is_over or time.monotonic() - self._heard_s > QUIET_S:
                return
            await asyncio.sleep(SEARCH_S)

    def _say_what_is_missing(self) -> None:
        if self._turned_away:
            _say(f"{self._turned_away} connections of strangers were closed")
        if self._is_full:
            _say("not all of other hosts was kept: no more space, or too much")
        if len(self._numbers) > PLACES_MAX:
            _say(f"{len(self._numbers) - PLACES_MAX} folders of this host were not sent: too many")
        if self._leads or self._is_done or self._shares_disk:
            return
        if self._sent_s is None:
            _say("the host of rank 0 was not reached, and has nothing of this one")
        else:
            until = time.strftime("%H:%M:%S", time.localtime(self._sent_s))
            _say(f"the host of rank 0 has gone, and has what came until {until} of this one")

    # --- what ranks here say ---

    def _hear(self, message: Message, meeting: Address, port: socket.socket | None) -> None:
        self._world_size = message.world_size
        if meeting not in self._meetings:  # the ranks have started again
            self._meetings.append(meeting)
            for known in (self._ranks, self._ranks_heard, self._ranks_done):
                known.clear()
            self._leader, self._shares_disk = None, False
        self._ranks.add(message.rank)
        if message.rank == 0:
            self._leads, self._leader = True, None
            self._announced.clear()
        if port is not None:
            self._own.setdefault(meeting, None)
            self._tasks.append(self._loop.create_task(self._listen(port, meeting)))
        self._wakes.set()

    # --- to others ---

    async def _announce(self, meeting: Address) -> None:
        """That rank 0 is here, at an address which the others reach."""
        if meeting in self._own:
            self._announced.add(meeting)
            return
        with contextlib.suppress(*_FAILURES):
            async with connected(meeting) as (connection, own_host):
                address = await self._own_at(own_host)
                if 0 not in self._ranks:
                    return  # which has moved meanwhile
                await connection.ask(Request("lead", newest=sorted(self._ranks), address=address))
                self._announced.add(meeting)

    async def _own_at(self, own_host: str) -> Address:
        """Where this one receives, at that address of this host."""
        address = next((one for one in self._own if one.host == own_host), None)
        if address is None:
            family = socket.AF_INET6 if ":" in own_host else socket.AF_INET
            port = socket.create_server((own_host, 0), family=family, backlog=BACKLOG)
            address = Address(own_host, port.getsockname()[1], secrets.token_hex(32))
            self._own[address] = None
            await self._listen(port, address)
        return address

    async def _look_for_successor(self) -> None:
        """Rank 0 was here, and is on another host now. This one receives until that one does."""
        meeting = self._meetings[-1]
        if meeting in self._own:
            return  # it says so here
        async with connected(meeting) as (connection, _):
            found = await connection.ask(self._hello())
            if not self._leads or 0 in self._ranks:
                return  # was told so meanwhile, or has rank 0 again
            if found.marks:
                self._leads, self._leader = False, meeting
            elif found.leader is not None and found.leader not in self._own:
                self._leads, self._leader = False, found.leader

    async def _send_to(self, address: Address, *, last: bool) -> float | None:
        """The seconds until the next turn; None where this is not the host of rank 0."""
        async with connected(address) as (connection, _):
            hello, leader = self._hello(), self._leader
            found = await connection.ask(hello)
            if not found.marks:
                if found.leader is None or found.leader == address:
                    return None
                if self._leader == leader:  # else another has told it meanwhile
                    self._leader = found.leader
                return SEARCH_S
            self._sent_to = address
            if found.marks[0] != self._kept_in:  # another host, or a folder that has moved
                self._kept_in = found.marks[0]
                self._sending.clear()
            places = [Path(place) for place in self._reported.places()]
            mine = [place for place in places if not _has_any(place, found.marks)]
            self._shares_disk = bool(places) and not mine
            for place in mine:
                number = self._numbers.setdefault(place, len(self._numbers))
                if number < PLACES_MAX:
                    await self._send_folder(connection, place, hello, number, found.rows_max)
            left_out = sum(one.left_out for one in self._sending.values())
            await connection.ask(
                Request(
                    "end", id=self._id, host=hello.host, ranks=hello.ranks, newest=hello.newest,
                    last=last, left_out=left_out, shared=self._shares_disk,
                )
            )  # fmt: skip
            self._sent_s = time.time()
            self._is_done = last
            return found.pause_s

    def _hello(self) -> Request:
        ranks, newest = sorted(self._reported.ranks), sorted(self._ranks)
        return Request("hello", id=self._id, host=host_name(), ranks=ranks, newest=newest)

    async def _send_folder(
        self, connection: Connection, place: Path, hello: Request, number: int, rows_max: int
    ) -> None:
        """number: of the folder among those of this host."""
        sending = self._sending.setdefault(place, Sending(place))
        try:
            for piece in sending.pieces(hello.ranks, rows_max):
                request = Request(
                    "drop" if piece.data is None else "put", id=self._id, host=hello.host,
                    place=number, name=piece.name, at=piece.at, fresh=piece.fresh, last=piece.last,
                )  # fmt: skip
                answer = await connection.ask(request, piece.data or b"")
                if not answer.ok:
                    sending.refuse()
        except _FAILURES:
            del self._sending[place]  # what came is not known
            raise

    # --- from others ---

    async def _listen(self, port: socket.socket, address: Address) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # asyncio prints the traceback of one that is cancelled at the end.
            with contextlib.suppress(*_FAILURES, asyncio.CancelledError):
                async with self._admitted(reader, writer, address.token) as connection:
                    while True:
                        frame = await connection.receive_frame()
                        await connection.send(self._answer(frame))
            writer.close()

        self._own[address] = await asyncio.start_server(serve, sock=port, backlog=BACKLOG)

    @contextlib.asynccontextmanager
    async def _admitted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str
    ) -> AsyncIterator[Connection]:
        """One that knows the token. Others are closed and counted."""
        if self._strangers >= STRANGERS_MAX or self._connections >= CONNECTIONS_MAX:
            raise Refused("too many connections")
        connection = Connection(reader, writer)
        self._strangers += 1
        try:
            await connection.prove_second(token)
        except BaseException:
            self._turned_away += 1
            raise
        finally:
            self._strangers -= 1
        self._connections += 1
        try:
            yield connection
        finally:
            self._connections -= 1

    def _answer(self, frame: Frame) -> Response:
        request = parsed(frame, Request)
        self._heard_s = time.monotonic()
        if request.do == "lead" and request.address is not None:
            self._leads, self._leader = False, request.address
            self._ranks_heard.update(request.newest)
            self._wakes.set()
            return Response()
        if not self._leads:
            if request.do != "hello":
                raise Refused("rank 0 is not here any more")
            if self._leader is not None:
                self._ranks_heard.update(request.newest)
            return Response(leader=self._leader)
        if request.do == "hello":
            return self._welcome()
        try:
            return self._take(request, frame.payload)
        except OSError as error:
            text = f"cannot keep what {request.host} sends: {describe(error)}"
            if text not in self._said:
                self._said.add(text)
                _say(printable(text))
            return Response(ok=False)

    def _welcome(self) -> Response:
        """Nothing yet while the folder of rank 0 is not known."""
        self._read_reports()
        for place in self._reported.places() if 0 in self._reported.ranks else []:
            if Path(place) not in self._marks:
                mark = f"{MARK}{secrets.token_hex(8)}"
                with contextlib.suppress(OSError):
                    (Path(place) / mark).touch()
                    self._marks[Path(place)] = mark
        newest = list(reversed(self._marks))
        newest.sort(key=lambda place: place != self._run_folder())
        return Response(
            marks=[self._marks[place] for place in newest[:MARKS_MAX]],
            pause_s=self._pause_s(),
            rows_max=min(ROWS_MAX, ALL_ROWS_MAX // self._host_count()),
        )

    def _host_count(self) -> int:
        """As many as there are if each has as many ranks as this one."""
        return max(self._world_size // max(len(self._reported.ranks), 1), 1)

    def _pause_s(self) -> float:
        return min(max(PAUSE_S, PAUSE_OF_EACH_S * self._host_count()), PAUSE_MAX_S)

    def _take(self, request: Request, payload: bytes) -> Response:
        if request.do == "end":
            if request.last or request.shared:
                self._ranks_done.update(request.newest)
            for (sender, _, _), folder in self._received.items():
                if sender == request.id:
                    folder.note(
                        request.ranks, request.left_out, self._pause_s(), complete=request.last
                    )
            return Response()
        if request.do not in ("put", "drop"):
            raise Refused(f"no request: {request.do!r}")
        folder = self._folder_of(request)
        if request.do == "drop":
            folder.drop(request.name)
            return Response()
        ok = folder.put(request.name, request.at, payload, fresh=request.fresh, last=request.last)
        self._is_full |= not ok
        return Response(ok=ok)

    def _folder_of(self, request: Request) -> HostFolder:
        run = self._run_folder()
        if run is None:
            raise Refused("the folder of rank 0 is not known")
        key = request.id, request.place, run
        if key not in self._received:
            if len(self._received) >= HOSTS_MAX or request.place >= PLACES_MAX:
                raise Refused("too many hosts")
            rows_max = self._welcome().rows_max
            self._received[key] = HostFolder(run, request.host, request.id, request.place, rows_max)
        return self._received[key]

    def _run_folder(self) -> Path | None:
        """That of rank 0, which may move."""
        pid = self._reported.ranks.get(0)
        return None if pid is None else Path(self._reported.folders[pid])


def _has_any(place: Path, marks: list[str]) -> bool:
    return any(mark.startswith(MARK) and (place / mark).exists() for mark in marks)


def _say(text: str) -> None:
    print_lines([f"my_utils run: {text}"])
