"""What NCCL's RAS adds, from a real server on a local port that speaks as NCCL 2.28.7 does
(`src/ras/client_support.cc`, and "RAS" in its user guide)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.analysis import live
from my_utils.analysis.live import ras
from my_utils.core.run_files.ranks import find_ranks

from ...support.flight_dumps import calls_at, write_dump
from ...support.live_ranks import Start, Started, beat, wait_until, write_beats

pytestmark = pytest.mark.no_torch

snapshot: Any = live.snapshot  # without the types of its keys

Answer = Callable[[str], bytes]  # to a command; b"" ends the connection


class Server:
    """Answers each line of each client."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.commands: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._speak, args=(client,), daemon=True).start()

    def _speak(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            for line in lines:
                command = line.decode().strip()
                self.commands.append(command)
                try:
                    client.sendall(self._answer(command))
                except OSError:
                    return
                if command == "STATUS":  # after which NCCL ends the connection
                    return

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may be closed
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        monkeypatch.setenv(ras.ADDRESS, servers[-1].address)
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def start_rank(tmp_path: Path) -> Iterator[Start]:
    started = Started(tmp_path)
    yield started
    started.end()


def missing(rank: int, pid: int, *, dead: bool = False, silent: bool = False) -> dict[str, Any]:
    status = {"unresponsive": silent, "considered_dead": dead}
    place = {"host": "172.16.64.245", "cuda_dev": rank, "nvml_dev": rank}
    return {"rank": rank, "pid": pid, **place, "status": status}


def report(size: int, *without: dict[str, Any]) -> dict[str, Any]:
    """As the user guide has it."""
    return {
        "nccl_version": "2.29.1",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": "2025-12-19 13:06:53",
        "communicators_count": 1,
        "communicators": [
            {
                "hash": "0xae94423cfbb2ef4a",
                "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
                "size": size,
                "ranks_count": size - len(without),
                "missing_ranks_count": len(without),
                "ranks": [],
                "missing_ranks": list(without),
            }
        ],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0},
    }


def answers(content: object) -> Answer:
    def answer(command: str) -> bytes:
        if command.startswith("CLIENT PROTOCOL "):
            return b"SERVER PROTOCOL 2\n"
        return json.dumps(content, indent=2).encode() if command == "STATUS" else b"OK\n"

    return answer


def asked(folder: Path) -> dict[int, str]:
    return ras.ask_ras(find_ranks(str(folder)).ranks)


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """Ranks with the process numbers 100 to 103."""
    write_beats(tmp_path, *(beat(rank, 12, "forward") for rank in range(4)))
    return tmp_path


class TestWhatItSays:
    def test_who_is_dead_and_who_does_not_answer(
        self, four: Path, serve: Callable[[Answer], Server]
    ) -> None:
        content = report(
            2, missing(0, 101, dead=True, silent=True), missing(1, 103, silent=True),
            missing(2, 102), missing(0, 999, dead=True),
        )  # fmt: skip
        server = serve(answers(content))
        assert asked(four) == {1: ras.DEAD, 3: ras.SILENT}
        commands = ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]
        assert server.commands == commands

    def test_a_number_that_two_ranks_have_says_nothing_but_with_the_rank(
        self, four: Path, serve: Callable[[Answer], Server]
    ) -> None:
        write_beats(four, beat(2, 12, "forward", pid=101), beat(1, 12, "forward", pid=101))
        serve(answers(report(2, missing(1, 101, dead=True))))
        assert asked(four) == {}
        serve(answers(report(4, missing(1, 101, dead=True), missing(3, -1, dead=True))))
        assert asked(four) == {1: ras.DEAD, 3: ras.DEAD}

    def test_it_is_evidence_beside_the_stages(
        self, tmp_path: Path, start_rank: Start, serve: Callable[[Answer], Server]
    ) -> None:
        start_rank(0, 12, "iter,all_reduce", world=2)
        pid = start_rank(1, 12, "iter,input", world=2).pid
        serve(answers(report(2, missing(1, pid, silent=True))))

        def reasons() -> list[str]:
            suspects = snapshot(tmp_path, hung_after_s=0.5)["suspects"]
            return [reason for one in suspects for reason in one["reasons"]]

        wait_until(reasons)
        (reason,) = reasons()
        expected = "in iter > input while 1 of 2 ranks wait in iter > all_reduce"
        assert reason == f"{expected}; {ras.SILENT}"

    def test_a_dead_one_decides_among_ranks_without_a_dump(
        self, tmp_path: Path, start_rank: Start, serve: Callable[[Answer], Server]
    ) -> None:
        dumps = tmp_path / "dumps"
        dumps.mkdir()
        for rank in (0, 1):
            start_rank(rank, 12, "forward", world=4)
            began_s = time.time()
            path = write_dump(dumps, rank, calls_at(began_s, "all_reduce", "broadcast"))
            os.utime(path, (began_s + 60, began_s + 60))
        serve(answers(report(4, missing(3, -1, dead=True), missing(2, -1, silent=True))))
        write_beats(tmp_path, *(beat(rank, 12, "forward") for rank in (2, 3)))
        data: dict[str, Any] = {}

        def stands() -> bool:
            data.update(snapshot(tmp_path, hung_after_s=0.5, flight_recorder=dumps))
            return min(rank["still_s"] or 0.0 for rank in data["ranks"]) >= 1.0

        wait_until(stands)
        (cause,) = data["flight_recorder"]["causes"]
        assert (cause["kind"], cause["ranks"]) == ("dead", [3])
        assert cause["reasons"][-1] == f"rank 3: {ras.DEAD}"


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        "content",
        [
            [],
            {"communicators": 5},
            {"communicators": [{"size": "4"}]},
            report(2, {**missing(0, 101), "status": []}),
            report(2, {**missing(0, 101), "pid": 1e300}),
            report(2, missing(-5, -1, dead=True), missing(10**9, -1, dead=True)),
        ],
    )
    def test_another_form(
        self, content: object, four: Path, serve: Callable[[Answer], Server]
    ) -> None:
        serve(answers(content))
        assert asked(four) == {}

    def test_an_nccl_without_json(self, four: Path, serve: Callable[[Answer], Server]) -> None:
        text = answers({})

        def answer(command: str) -> bytes:
            is_known = not command.startswith("SET FORMAT")
            return text(command) if is_known else b"ERROR: Unknown command SET FORMAT json\n"

        server = serve(answer)
        assert asked(four) == {}
        assert "STATUS" not in server.commands

    @pytest.mark.parametrize(
        "address", ["", "localhost", "localhost:x", "localhost:99999", ":0", "[::1"]
    )
    def test_a_wrong_address(
        self, address: str, four: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ras.ADDRESS, address)
        assert asked(four) == {}

    def test_nobody_listens(self, four: Path, serve: Callable[[Answer], Server]) -> None:
        serve(answers({})).close()
        assert asked(four) == {}

    def test_a_server_that_says_nothing(
        self, four: Path, serve: Callable[[Answer], Server], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ras, "TIMEOUT_S", 0.3)
        serve(lambda command: b"")
        began_s = time.monotonic()
        assert asked(four) == {}
        assert time.monotonic() - began_s < 30.0

    @pytest.mark.parametrize("part", [b"x", b"[" * 65536])
    def test_a_server_that_says_too_much(
        self,
        part: bytes,
        four: Path,
        serve: Callable[[Answer], Server],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """In a line, or in all."""
        monkeypatch.setattr(ras, "TIMEOUT_S", 0.5)
        monkeypatch.setattr(ras, "BYTES_MAX", 1 << 20)
        serve(lambda command: part if command == "CLIENT PROTOCOL 2" else b"")
        assert asked(four) == {}
        serve(lambda c: part * 1000 if c == "STATUS" else answers({})(c))
        assert asked(four) == {}
