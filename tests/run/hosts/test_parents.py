"""Parents of one run, each with a folder: they find that of rank 0, by real connections."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from my_utils.core.ranks import host_name
from my_utils.core.run_files.hosts import host_folders
from my_utils.run.hosts import parent as parent_module, wire
from my_utils.run.hosts.parent import Parent
from my_utils.run.hosts.wire import Address

pytestmark = [pytest.mark.no_torch, pytest.mark.timeout(120)]

WITHIN_S = 60.0


class Host:
    """A folder with the rows of a rank, and a parent that knows of them."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.rank = rank
        self.logs = folder / f"host{rank}"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.csv = self.logs / f"profile_rank_{rank}.csv"
        self.csv.write_text(f"header\nrow of rank {rank}\n")
        self.report = folder / f"report{rank}"
        self.report.touch()
        self.reports(rank, 1000 + rank, self.logs)
        self._parent: Parent | None = None
        self.judges: bool | None = None

    def hear(self, meeting: Address, port: socket.socket | None = None, size: int = 3) -> None:
        message = {"rank": self.rank, "world_size": size, "meeting": meeting.text()}
        if self._parent is None:
            self._parent = Parent(self.report)
        self._parent.hear(json.dumps(message).encode(), port)

    def becomes(self, rank: int) -> None:
        """A process with another rank, which writes to the same folder."""
        self.rank = rank
        (self.logs / f"profile_rank_{rank}.csv").write_text(f"header\nrow of rank {rank}\n")
        self.reports(rank, 2000 + rank, self.logs)

    def moves(self) -> None:
        """Its process writes to another folder from now on, which it has chosen."""
        self.logs = self.logs.with_name(f"{self.logs.name}.later")
        self.writes_to(self.logs, self.rank, 1000 + self.rank)

    def writes_to(self, folder: Path, rank: int, pid: int) -> None:
        folder.mkdir()
        (folder / f"profile_rank_{rank}.csv").write_text(f"header\nrow of rank {rank}\n")
        self.reports(rank, pid, folder)

    def reports(self, rank: int, pid: int, folder: Path) -> None:
        about = {"rank": rank, "pid": pid, "folder": str(folder), "own": False}
        with self.report.open("a") as file:
            file.write(f"rank {json.dumps(about)}\n")

    def end(self) -> float:
        """How long that took, in s."""
        began_s = time.monotonic()
        if self._parent is not None:
            self._parent.end()
            self.judges = self._parent.judges
        self._parent = None
        return time.monotonic() - began_s

    def received(self) -> dict[str, str]:
        return dict(self.received_files())

    def received_files(self) -> list[tuple[str, str]]:
        """Also those that several folders have."""
        return sorted(
            (path.name, path.read_text())
            for folder in host_folders(self.logs)
            for path in Path(folder).glob("profile_rank_*.csv")
        )


def new_port() -> tuple[Address, socket.socket]:
    port = socket.create_server(("127.0.0.1", 0))
    return Address("127.0.0.1", port.getsockname()[1], secrets.token_hex(32)), port


def leader_at(meeting: Address) -> Address | None:
    """Where rank 0 is, as the meeting point says."""

    async def ask() -> wire.Response:
        async with wire.connected(meeting) as (connection, _):
            return await connection.ask(wire.Request("hello", id="f" * 16))

    return asyncio.run(ask()).leader


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    found = [Host(tmp_path, rank) for rank in range(3)]
    yield found
    for host in reversed(found):  # rank 0's waits for the others
        host.end()


@pytest.mark.parametrize("meets", [0, 2], ids=["that of rank 0", "another"])
def test_all_rows_come_to_the_host_of_rank_0(
    hosts: list[Host], meets: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever is the meeting point, and whoever comes first."""
    meeting, port = new_port()
    for host in sorted(hosts, key=lambda host: host.rank == 0):
        host.hear(meeting, port if host.rank == meets else None)
    with hosts[1].csv.open("a") as file:
        file.write("later row\n")
    for host in reversed(hosts):
        host.end()
    assert hosts[0].received() == {
        "profile_rank_1.csv": "header\nrow of rank 1\nlater row\n",
        "profile_rank_2.csv": "header\nrow of rank 2\n",
    }
    assert hosts[1].received() == hosts[2].received() == {}
    for folder in host_folders(hosts[0].logs):
        assert json.loads(Path(folder, "host.json").read_text())["complete"] is True
    assert not list(hosts[0].logs.glob(".my_utils.*"))
    assert capfd.readouterr().err == ""


def test_rows_come_while_the_command_runs(hosts: list[Host]) -> None:
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    hosts[1].hear(meeting, size=2)
    wait_for(hosts[0].received)
    with hosts[1].csv.open("a") as file:
        file.write("later row\n")
    wait_for(lambda: "later row" in hosts[0].received()["profile_rank_1.csv"])


def test_rank_0_moves_to_another_host(hosts: list[Host]) -> None:
    """As after a restart with fewer hosts."""
    meeting, port = new_port()
    hosts[0].hear(meeting, port)
    hosts[1].hear(meeting)
    hosts[2].hear(meeting)
    wait_for(lambda: len(hosts[0].received()) == 2)
    hosts[1].becomes(0)
    hosts[1].hear(meeting, size=2)
    wait_for(lambda: "profile_rank_2.csv" in hosts[1].received())
    hosts.reverse()  # so that rank 0's ends last
    hosts[0], hosts[1] = hosts[1], hosts[0]


def test_a_host_that_joins_late_gets_rank_0(hosts: list[Host]) -> None:
    """All meet anew, and the one that was that of rank 0 sends, too."""
    meeting, port = new_port()
    first, second, third = hosts
    first.hear(meeting, port, size=2)
    third.hear(meeting, size=2)
    wait_for(first.received)
    meeting, port = new_port()
    for host, rank in ((first, 1), (second, 0), (third, 2)):
        host.becomes(rank)
        host.hear(meeting, port if host is third else None)
    wait_for(lambda: {"profile_rank_0.csv", "profile_rank_2.csv"} <= second.received().keys())
    with first.csv.open("a") as file:
        file.write("later row\n")
    for host in (third, first):
        host.end()
    assert "later row" in second.received()["profile_rank_0.csv"]
    second.end()
    assert [host.judges for host in hosts] == [False, True, False]
    for folder in host_folders(second.logs):
        assert json.loads(Path(folder, "host.json").read_text())["complete"] is True


def test_an_old_receiver_that_answers_late_does_not_replace_the_new_one(hosts: list[Host]) -> None:
    """Or nobody ever learns where rank 0 is."""

    async def check() -> None:
        asked, answers, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = wire.Connection(reader, writer)
            await connection.prove_second(old.token)
            await connection.receive(wire.Request)
            asked.set()
            await answers.wait()
            await connection.send(wire.Response(marks=["of another folder"]))
            await connection.receive_frame()
            writer.close()
            over.set()

        old, old_port = new_port()
        async with await asyncio.start_server(serve, sock=old_port):
            hosts[1].hear(old)
            await asyncio.wait_for(asked.wait(), WITHIN_S)
            meeting, port = new_port()
            hosts[1].hear(meeting, port)
            new, new_one = new_port()
            async with wire.connected(meeting) as (connection, _):
                await connection.ask(wire.Request("lead", newest=[0], address=new))
            answers.set()
            await asyncio.wait_for(over.wait(), WITHIN_S)
            async with wire.connected(meeting) as (connection, _):
                answer = await connection.ask(wire.Request("hello", id="f" * 16, newest=[2]))
            assert answer.leader == new
            new_one.close()

    asyncio.run(check())


def test_what_comes_where_rank_0_was_is_refused(hosts: list[Host]) -> None:
    """Its sender would take it for kept."""
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    other = Address("127.0.0.1", 9, secrets.token_hex(32))

    async def ask() -> None:
        async with wire.connected(meeting) as (connection, _):
            await connection.ask(wire.Request("lead", id="f" * 16, newest=[1], address=other))
            put = wire.Request("put", id="f" * 16, name="run.json", fresh=True, last=True)
            await connection.ask(put, b"{}")

    with pytest.raises((OSError, wire.Refused)):
        asyncio.run(ask())


def test_hosts_with_a_common_folder_send_nothing(tmp_path: Path) -> None:
    hosts = [Host(tmp_path, rank) for rank in range(2)]
    about = {"rank": 1, "pid": 1001, "folder": str(hosts[0].logs), "own": False}
    hosts[1].report.write_text(f"rank {json.dumps(about)}\n")
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    hosts[1].hear(meeting, size=2)
    for host in reversed(hosts):
        host.end()
    assert host_folders(hosts[0].logs) == []


def test_of_hosts_with_a_common_folder_one_judges_and_neither_waits(tmp_path: Path) -> None:
    first, second = (Host(tmp_path, rank) for rank in range(2))
    second.reports(1, 1001, first.logs)
    meeting, port = new_port()
    first.hear(meeting, port, size=2)
    second.hear(meeting, size=2)
    took_s = [first.end(), second.end()]  # the first one hears of the other before it ends
    assert [first.judges, second.judges] == [True, False]
    assert max(took_s) < parent_module.QUIET_S


def test_a_common_folder_counts_until_a_restart(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it rank 0 may be on a host with another disk, which is lost before it is found."""
    first, second = (Host(tmp_path, rank) for rank in range(2))
    second.reports(1, 1001, first.logs)
    meeting, port = new_port()
    first.hear(meeting, port, size=2)
    second.hear(meeting, size=2)
    first.end()
    monkeypatch.setattr(parent_module, "QUIET_S", 0.5)
    meeting, port = new_port()
    port.close()
    second.hear(meeting, size=2)
    second.end()
    assert second.judges
    assert "the host of rank 0 has gone" in capfd.readouterr().err


def test_a_folder_keeps_its_number_where_another_comes_before_it(
    hosts: list[Host], tmp_path: Path
) -> None:
    """Folders are in the order of the pids, which begin anew at some time."""
    first, second, _ = hosts
    meeting, port = new_port()
    first.hear(meeting, port, size=2)
    second.hear(meeting, size=2)
    wait_for(first.received)
    second.writes_to(tmp_path / "another", 2, 7)
    with second.csv.open("a") as file:
        file.write("later row\n")
    second.hear(meeting, size=2)
    wait_for(lambda: len(first.received()) == 2)
    second.end()
    assert first.received_files() == [
        ("profile_rank_1.csv", "header\nrow of rank 1\nlater row\n"),
        ("profile_rank_2.csv", "header\nrow of rank 2\n"),
    ]


@pytest.mark.parametrize("rows", ["later row\n", ""], ids=["with new rows", "with nothing new"])
def test_what_comes_is_in_the_folder_of_rank_0_that_has_moved(hosts: list[Host], rows: str) -> None:
    """Where a script calls `setup` after a library has: all of the run is in the newer folder."""
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    hosts[1].hear(meeting, size=2)
    wait_for(hosts[0].received)
    hosts[0].moves()
    with hosts[1].csv.open("a") as file:
        file.write(rows)
    hosts[1].end()
    hosts[0].end()
    assert hosts[0].received() == {"profile_rank_1.csv": f"header\nrow of rank 1\n{rows}"}


def test_ranks_that_were_done_before_a_restart_are_waited_for(hosts: list[Host]) -> None:
    """Another host has that rank now."""
    first, second, third = hosts
    meeting, port = new_port()
    for host in (first, second, third):
        host.hear(meeting, port if host is first else None)
    wait_for(lambda: len(first.received()) == 2)
    second.end()
    third.becomes(1)
    meeting, port = new_port()
    first.hear(meeting, port, size=2)
    third.hear(meeting, size=2)
    wait_for(lambda: len(first.received_files()) == 3)
    ends = threading.Thread(target=first.end)
    ends.start()
    ends.join(0.5)  # which it would do at once
    with (third.logs / "profile_rank_1.csv").open("a") as file:
        file.write("last row\n")
    third.end()
    ends.join()
    assert ("profile_rank_1.csv", "header\nrow of rank 1\nlast row\n") in first.received_files()
    assert [first.judges, third.judges] == [True, False]


def test_a_meeting_point_that_has_met_again_does_not_wait_for_who_knows_rank_0(
    hosts: list[Host],
) -> None:
    """The others have gone on to send to where that was, and is."""
    for _ in range(2):
        meeting, port = new_port()
        for host in hosts:
            host.hear(meeting, port if host.rank == 1 else None)
        wait_for(partial(leader_at, meeting))
        wait_for(lambda: len(hosts[0].received()) == 2)
    hosts[2].end()
    assert hosts[1].end() < parent_module.QUIET_S


def test_a_lost_meeting_point_does_not_delay_the_host_of_rank_0(hosts: list[Host]) -> None:
    lost, silent = new_port()
    with silent:  # as of a host that has lost its power
        hosts[0].hear(lost, size=2)
        wait_for(lambda: select.select([silent], [], [], 0.0)[0])
        meeting, port = new_port()
        hosts[0].hear(meeting, size=2)
        hosts[1].hear(meeting, port, size=2)
        wait_for(hosts[0].received)
        hosts[1].end()
        assert hosts[0].end() < wire.ANSWER_S / 2


def test_many_folders_on_a_host(hosts: list[Host], tmp_path: Path) -> None:
    """One for each rank, as scripts choose them."""
    first, second, _ = hosts
    for rank in range(3, 40):
        own = first if rank % 2 else second
        own.writes_to(tmp_path / f"of{rank}", rank, 1000 + rank)
    meeting, port = new_port()
    first.hear(meeting, port, size=2)
    second.hear(meeting, size=2)
    second.end()
    sent = [1, *range(4, 40, 2)]
    assert first.received().keys() == {f"profile_rank_{rank}.csv" for rank in sent}


def test_folders_that_are_too_many_are_counted(
    hosts: list[Host],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parent_module, "PLACES_MAX", 3)
    for rank in range(3, 8):
        hosts[1].writes_to(tmp_path / f"of{rank}", rank, 1000 + rank)
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    hosts[1].hear(meeting, size=2)
    hosts[1].end()
    assert len(hosts[0].received()) == 3
    expected = "my_utils run: 3 folders of this host were not sent: too many\n"
    assert capfd.readouterr().err == expected


def test_a_host_whose_files_cannot_be_kept_is_named_and_nobody_waits_for_it(
    hosts: list[Host], capfd: pytest.CaptureFixture[str]
) -> None:
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    hosts[1].hear(meeting, size=2)
    wait_for(hosts[0].received)
    (folder,) = host_folders(hosts[0].logs)
    Path(folder, "host.json.new").mkdir()
    hosts[1].end()
    assert hosts[0].end() < parent_module.QUIET_S
    said = f"my_utils run: cannot keep what {host_name()} sends: Is a directory"
    assert capfd.readouterr().err.startswith(said)


def test_of_many_hosts_each_has_its_longer_pause_in_its_file(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By which readers know for how long it may say nothing."""
    monkeypatch.setattr(parent_module, "QUIET_S", 0.5)
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=1000)
    hosts[1].hear(meeting, size=1000)
    wait_for(hosts[0].received)
    (folder,) = host_folders(hosts[0].logs)
    assert json.loads(Path(folder, "host.json").read_text())["pause"] == 50.0
    hosts[1].end()
    hosts[0].end()  # it waits for the others


def test_a_host_that_finds_nobody_says_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_module, "QUIET_S", 0.5)
    host = Host(tmp_path, 1)
    meeting, port = new_port()
    port.close()
    host.hear(meeting)
    host.end()
    assert "the host of rank 0 was not reached" in capfd.readouterr().err
    assert host.csv.exists()


def test_hosts_that_answer_nothing_do_not_keep_a_run_from_saying_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other for as long as its command waits at the end."""
    monkeypatch.setattr(wire, "ANSWER_S", 1.0)
    monkeypatch.setattr(parent_module, "AT_END_S", 2.0)
    monkeypatch.setattr(parent_module, "QUIET_S", 1.0)
    host = Host(tmp_path, 1)
    with contextlib.ExitStack() as stack:
        silent = []
        for _ in range(8):  # as after so many restarts
            meeting, port = new_port()
            silent.append(stack.enter_context(port))
            host.hear(meeting)
        wait_for(lambda: any(select.select(silent, [], [], 0.0)))
        host.end()
    assert "the host of rank 0 was not reached" in capfd.readouterr().err


STRANGERS = {
    "silent": b"",
    "garbage": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(200),
    "a wrong token": bytes(wire.NONCE + wire.PROOF),
    "too much": bytes(1 << 20),
}


@pytest.mark.parametrize("sent", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_closed_and_counted(
    hosts: list[Host],
    sent: bytes,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "ANSWER_S", 1.0)
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    with socket.create_connection((meeting.host, meeting.port), WITHIN_S) as stranger:
        try:
            stranger.sendall(sent)
            while stranger.recv(1 << 16):  # the other side's nonce, and then its end
                pass
        except ConnectionError:
            pass
    hosts[1].hear(meeting, size=2)
    wait_for(hosts[0].received)
    hosts[1].end()
    hosts[0].end()
    assert "1 connections of strangers were closed" in capfd.readouterr().err
    names = {path.name for path in hosts[0].logs.iterdir()}
    assert names == {"profile_rank_0.csv", "hosts"}


def test_a_stranger_that_stays_until_the_end_changes_no_output(
    hosts: list[Host], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    with socket.create_connection((meeting.host, meeting.port), WITHIN_S) as stranger:
        assert stranger.recv(wire.NONCE)
        hosts[1].hear(meeting, size=2)
        wait_for(hosts[0].received)
        hosts[1].end()
        hosts[0].end()
    assert capfd.readouterr().err == ""
    assert caplog.text == ""  # which goes there without a logger


def test_many_that_send_a_byte_at_a_time_keep_nobody_out_for_long(
    hosts: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "ANSWER_S", 1.0)
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    before = len(os.listdir("/proc/self/fd"))
    slow = [socket.create_connection((meeting.host, meeting.port)) for _ in range(200)]
    for one in slow:
        one.sendall(b"x")
    hosts[1].hear(meeting, size=2)
    wait_for(hosts[0].received)
    for one in slow:
        one.close()
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before + 8)


def test_a_member_that_asks_for_what_no_sender_asks_gains_nothing(
    hosts: list[Host], tmp_path: Path
) -> None:
    meeting, port = new_port()
    hosts[0].hear(meeting, port, size=2)
    before = hosts[0].csv.read_text()
    requests = [
        wire.Request("put", id="f" * 16, name="../profile_rank_0.csv", fresh=True, last=True),
        wire.Request("put", id="../../evil", name="run.json", fresh=True, last=True),
        wire.Request("put", id="f" * 16, place=999, name="run.json", fresh=True, last=True),
        wire.Request("put", id="f" * 16, name="run.json", at=1 << 50),
        wire.Request("anything"),
    ]

    async def ask(request: wire.Request) -> None:
        async with wire.connected(meeting) as (connection, _):
            await connection.ask(request, b"mine")

    for request in requests:
        with pytest.raises((OSError, wire.Refused)):
            asyncio.run(ask(request))
    hosts[1].hear(meeting, size=2)
    wait_for(hosts[0].received)
    assert hosts[0].csv.read_text() == before
    outside = {path.name for path in tmp_path.iterdir()}
    assert outside == {f"{kind}{rank}" for kind in ("host", "report") for rank in range(3)}
    assert all(re.fullmatch(r"[0-9a-z._-]+", name) for name in os.listdir(hosts[0].logs / "hosts"))
