"""Clocks lined up: the true offset, which the tests know, lies within the stated bound."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import pickle
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from my_utils.clockSyncUtils import ClockSynchronizer, SocketClockSynchronizer
from my_utils.cluster.clock_sync import server as clock_server
from my_utils.cluster.clock_sync.client import MAGIC, measure
from my_utils.cluster.clock_sync.offset import (
    ClockHistory,
    ClockOffset,
    ClockSyncError,
    Exchange,
    estimate,
)
from my_utils.cluster.clock_sync.server import ClockServer
from my_utils.core.warnings import forget

from ...conftest import RunPython
from ...support.delay_relay import DelayRelay
from ...support.ranks import ROOT, free_port

pytestmark = [pytest.mark.long_file, pytest.mark.no_torch]


@pytest.fixture(autouse=True)
def patient_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes any client silent for seconds; no test is about one that is."""
    monkeypatch.setattr(clock_server, "TURN_S", 60.0)
    monkeypatch.setattr(clock_server, "HELLO_S", 60.0)


class Simulated:
    """Two clocks and a way between them, where the truth is known.

    drift_ppm: how much faster the other clock runs. loss: the share of exchanges that are lost,
    after which the client waits for its timeout.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_ns = chance.randrange(10**18)
        self.offset_ns = chance.randrange(-(10**12), 10**12)
        self.drift_ppm = chance.uniform(-100, 100)
        self.began_ns = self.now_ns
        base = 10 ** chance.uniform(4, 7.5)
        self.base = base * chance.uniform(0, 1), base * chance.uniform(0, 1)
        self.jitter = base * chance.choice([0.0, 0.1, 1.0, 10.0])
        self.loss = chance.choice([0.0, 0.0, 0.2])

    def true_offset_ns(self) -> float:
        return self.offset_ns + (self.now_ns - self.began_ns) * self.drift_ppm * 1e-6

    def other_clock(self) -> int:
        return int(self.now_ns + self.true_offset_ns())

    def pass_on(self, direction: int) -> None:
        late = self.chance.expovariate(1 / self.jitter) if self.jitter else 0
        self.now_ns += int(self.base[direction] + late) + 100

    def exchange(self) -> Exchange | None:
        if self.chance.random() < self.loss:
            self.now_ns += int(5 * sum(self.base) + 1000)
            return None
        sent = self.now_ns
        self.pass_on(0)
        received = self.other_clock()
        self.now_ns += self.chance.randrange(50_000)
        answered = self.other_clock()
        self.pass_on(1)
        return Exchange(sent, received, answered, self.now_ns)


def test_a_thousand_simulated_runs() -> None:
    for seed in range(1000):
        world = Simulated(random.Random(seed))
        exchanges = [found for found in (world.exchange() for _ in range(16)) if found]
        offset = estimate(exchanges)
        for moment_ns in (exchanges[0].sent_ns, offset.measured_ns, exchanges[-1].returned_ns):
            world.now_ns = moment_ns
            wrong_ns = abs(offset.offset_ns - world.true_offset_ns())
            assert wrong_ns <= offset.error_at(moment_ns) * 1e9 + 1, seed
        half = min(exchange.round_trip_ns for exchange in exchanges) / 2
        assert offset.error_s * 1e9 <= half + 1, seed
        assert offset.round_trip_s * 1e9 == pytest.approx(2 * half)


@pytest.mark.parametrize("drift_ppm", [-80.0, 0.0, 3.5, 60.0])
def test_drift_by_regression(drift_ppm: float) -> None:
    chance = random.Random(7)
    history = ClockHistory()
    for second in range(0, 600, 10):
        now_ns = second * 10**9
        error_s = chance.choice([1e-5, 1e-4])
        true_ns = 5_000_000 + now_ns * drift_ppm * 1e-6
        measured = round(true_ns + chance.uniform(-1, 1) * error_s * 1e9)
        last = history.add(ClockOffset(measured, error_s, measured_ns=now_ns))
    assert last.drift_ppm == pytest.approx(drift_ppm, abs=0.05)


def test_a_clock_that_was_set_ends_the_history() -> None:
    history = ClockHistory()
    for second in range(5):
        history.add(ClockOffset(1000 * second, 1e-6, measured_ns=second * 10**9))
    assert math.isnan(history.add(ClockOffset(10**9, 1e-6, measured_ns=6 * 10**9)).drift_ppm)


def test_a_clock_that_is_set_meanwhile() -> None:
    calm = [Exchange(at, at + 1100, at + 1200, at + 300) for at in range(0, 10_000, 1000)]
    assert estimate(calm).offset_ns == pytest.approx(1000, abs=100)
    jumped = [*calm, Exchange(20_000, 5_020_100, 5_020_200, 20_300)]
    with pytest.raises(ClockSyncError, match="a clock was set during the exchange"):
        estimate(jumped)
    with pytest.raises(ClockSyncError, match="a clock was set back"):
        estimate([Exchange(1000, 5000, 5100, 900)])
    with pytest.raises(ClockSyncError, match="no answer arrived"):
        estimate([])


def test_an_offset_is_a_float_with_more() -> None:
    offset = ClockOffset(-1_700_000_000_123_456_789, 2e-6, 1.5, 4e-6, 99)
    assert offset == -1_700_000_000.1234567
    assert int(offset.exact_s() * 10**9) == -1_700_000_000_123_456_789
    back = pickle.loads(pickle.dumps(offset))
    assert isinstance(back, ClockOffset)
    assert back.fields() == offset.fields() == (-1_700_000_000_123_456_789, 2e-6, 1.5, 4e-6, 99)
    assert offset.error_at(99 + 10**9) == pytest.approx(2e-6 + 500e-6)


# --- over sockets ---


def shifted(offset_ns: int) -> Callable[[], int]:
    return lambda: time.time_ns() + offset_ns


def test_over_a_socket() -> None:
    with ClockServer(clock=shifted(3_000_000_000)) as server:
        for _ in range(3):
            offset = measure(server.address)
            assert abs(offset.offset_ns - 3_000_000_000) <= offset.error_s * 1e9 + 1
            # Half of it, and the time that the readings of the clocks took on both sides.
            assert 0 < offset.error_s <= offset.round_trip_s
    assert (server.served, server.refused) == (3, 0)


MANY_FILES = 2048
SERVER = """
import sys, time
from my_utils.cluster.clock_sync import server as clock_server
from my_utils.cluster.clock_sync.server import ClockServer
clock_server.TURN_S = 60.0
with ClockServer(clock=lambda: time.time_ns() - 10**12) as server:
    print(server.address[1], flush=True)
    sys.stdin.read()
print(server.served)
"""


@pytest.mark.parametrize(
    ("there", "back"),
    [(0.004, 0.0), (0.0, 0.004), (0.002, 0.002)],
    ids=["slow there", "slow back", "both"],
)
def test_a_relay_that_delays_each_direction(there: float, back: float) -> None:
    chance = random.Random(3)
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    relay = DelayRelay(
        ("127.0.0.1", int(server.stdout.readline())),
        lambda: there + chance.expovariate(2000),
        lambda: back + chance.expovariate(2000),
    )
    offset = measure(relay.address, rounds=24, timeout_s=60)
    relay.close()
    assert server.communicate("")[0] == "1\n"
    assert abs(offset.offset_ns + 10**12) <= offset.error_s * 1e9 + 1
    assert offset.error_s <= 1.2 * offset.round_trip_s / 2
    assert offset.round_trip_s >= there + back


def test_many_clients_at_once() -> None:
    with ClockServer(clock=shifted(10**9), secret=b"s") as server:
        found: list[ClockOffset] = []

        def ask() -> None:
            found.append(measure(server.address, secret=b"s", timeout_s=60))

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == server.served == 40
    assert all(abs(offset.offset_ns - 10**9) <= offset.error_s * 1e9 + 1 for offset in found)


def test_more_clients_than_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_server, "SESSIONS_MAX", 2)
    with ClockServer() as server:
        waiting = [socket.create_connection(server.address, timeout=30) for _ in range(5)]
        for one in waiting:
            one.sendall(MAGIC + bytes(16))
        for one in waiting:
            assert one.recv(25).startswith(MAGIC)
            one.close()
        assert measure(server.address).error_s < 10
    assert (server.served, server.refused) == (1, 0)


def test_a_client_that_sends_without_being_asked(caplog: pytest.LogCaptureFixture) -> None:
    forget("clock server")
    with ClockServer() as server:
        takers = [socket.create_connection(server.address, timeout=30) for _ in range(8)]
        for one in takers:
            one.sendall(MAGIC + bytes(16))
            assert one.makefile("rb").read(26)[-1:] == b"G"
        with socket.create_connection(server.address, timeout=30) as flood:
            with contextlib.suppress(OSError):
                flood.sendall(MAGIC + bytes(10**6))
            with contextlib.suppress(ConnectionResetError):
                while flood.recv(100):
                    pass
        for one in takers:
            one.close()
    assert server.refused == 1
    assert "it wants more than 4096 exchanges" in caplog.text


def test_a_client_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    forget("clock server")
    monkeypatch.setattr(clock_server, "ROUNDS_MAX", 20)
    with ClockServer() as server:
        with pytest.raises(ClockSyncError, match="ended the session"):
            measure(server.address, rounds=21)
        measure(server.address, rounds=20)
    assert (server.served, server.refused) == (1, 1)


def test_a_clock_that_is_set_is_asked_again() -> None:
    """NTP puts the other clock a second ahead in the middle of the first attempt."""
    steps = itertools.count()

    def clock() -> int:
        return time.time_ns() + (10**9 if next(steps) > 20 else 0)

    with ClockServer(clock=clock) as server:
        with pytest.raises(ClockSyncError, match="a clock was set during the exchange"):
            SocketClockSynchronizer.sync(False, *server.address, retries=0)
        steps = itertools.count()
        offset = SocketClockSynchronizer.sync(False, *server.address, retries=1)
    assert abs(offset.offset_ns - 10**9) <= offset.error_s * 1e9 + 1


class Stepping:
    """A clock that is set `step_ns` ahead at its reading number `at`."""

    def __init__(self, at: int, step_ns: int) -> None:
        self.readings = 0
        self.at, self.step_ns = at, step_ns
        self.stepped_ns = math.inf  # when

    def ahead_ns(self, moment_ns: float = math.inf) -> int:
        return self.step_ns if self.readings > self.at and self.stepped_ns <= moment_ns else 0

    def __call__(self) -> int:
        self.readings += 1
        if self.readings == self.at + 1:
            self.stepped_ns = time.time_ns()
        return time.time_ns() + self.ahead_ns()


@pytest.mark.parametrize("step_ns", [3_000_000, -3_000_000])
@pytest.mark.parametrize("side", ["server", "client"])
def test_a_small_step_within_slow_messages_is_seen(side: str, step_ns: int) -> None:
    """The messages take 10 ms each way, so that the step fits into what they say of the offset."""
    clocks = {"server": time.time_ns, "client": time.time_ns}
    stepping = Stepping(8, step_ns)
    clocks[side] = stepping
    with ClockServer(clock=clocks["server"]) as server:
        relay = DelayRelay(server.address, lambda: 0.01, lambda: 0.01)
        try:
            with pytest.raises(ClockSyncError, match="clock was set during the exchange"):
                measure(relay.address, rounds=8, timeout_s=60, clock=clocks["client"])
            offset = measure(relay.address, rounds=4, timeout_s=60, clock=clocks["client"])
        finally:
            relay.close()
    true_ns = stepping.ahead_ns() * (1 if side == "server" else -1)
    assert abs(offset.offset_ns - true_ns) <= offset.error_s * 1e9 + 1


SERVER_READINGS = 3  # of the server's clock in an exchange


def test_no_step_breaks_the_bound() -> None:
    """Steps of any size at any reading of either side: seen, or within the bound."""
    chance = random.Random(5)
    seen = 0
    for _ in range(60):
        step_ns = round(10 ** chance.uniform(2, 8)) * chance.choice([-1, 1])
        stepping = Stepping(chance.randrange(1, 10), step_ns)
        is_server = chance.random() < 0.5
        with ClockServer(clock=stepping if is_server else time.time_ns) as server:
            try:
                offset = measure(
                    server.address, rounds=4, clock=time.time_ns if is_server else stepping
                )
            except ClockSyncError:
                seen += 1
                continue
        true_ns = stepping.ahead_ns(offset.measured_ns) if is_server else -stepping.ahead_ns()
        # A step of the server within the last exchange is seen in the next one.
        is_late = is_server and stepping.at >= stepping.readings - SERVER_READINGS
        unseen_ns = step_ns if is_late else 0
        wrong_ns = (offset.offset_ns - true_ns, offset.offset_ns - true_ns + unseen_ns)
        assert min(map(abs, wrong_ns)) <= offset.error_s * 1e9 + 1
    assert seen > 20


def test_ipv6() -> None:
    try:
        server = ClockServer("::1")
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with server:
        assert abs(measure(server.address)) < 1


def test_it_listens_on_loopback_unless_told_otherwise() -> None:
    with SocketClockSynchronizer.serve() as server:
        assert server.address[0] == "127.0.0.1"


# --- strangers and the dead ---


def test_secrets() -> None:
    forget("clock server")
    with ClockServer(secret=b"right") as server:
        measure(server.address, secret=b"right")
        with pytest.raises(ClockSyncError, match="wrong secret"):
            measure(server.address, secret=b"wrong")
        with pytest.raises(ClockSyncError, match="wants a secret"):
            measure(server.address)
        measure(server.address, secret=b"right")
    assert server.served == 2
    with ClockServer() as server, pytest.raises(ClockSyncError, match="has no secret"):
        measure(server.address, secret=b"any")


def test_answers_that_were_changed() -> None:
    """A relay in between makes the other clock a second late."""
    with ClockServer(secret=b"s") as server, socket.create_server(("127.0.0.1", 0)) as listener:

        def tamper() -> None:
            near, _ = listener.accept()
            with near, socket.create_connection(server.address) as far:

                def forward() -> None:
                    while data := near.recv(4096):
                        far.sendall(data)
                    far.shutdown(socket.SHUT_WR)

                forwarding = threading.Thread(target=forward, daemon=True)
                forwarding.start()
                while data := far.recv(4096):
                    if len(data) == 40:
                        number = int.from_bytes(data[8:16]) + 10**9
                        data = data[:8] + number.to_bytes(8) + data[16:]
                    near.sendall(data)
                forwarding.join(10)

        tampering = threading.Thread(target=tamper, daemon=True)
        tampering.start()
        with pytest.raises(ClockSyncError, match="were changed"):
            measure(listener.getsockname(), secret=b"s", rounds=1)
        tampering.join(10)


@pytest.mark.parametrize(
    "hello",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" + bytes(100),
        MAGIC[:-1] + b"9" + bytes(50),
        b"GET / HTTP/1.1\r\n" + b"x" * 3000,
    ],
)
def test_a_client_of_another_protocol(hello: bytes, caplog: pytest.LogCaptureFixture) -> None:
    forget("clock server")
    with ClockServer() as server:
        for _ in range(2):
            with socket.create_connection(server.address, timeout=60) as stranger:
                stranger.sendall(hello)
                with contextlib.suppress(ConnectionResetError):
                    assert stranger.recv(100) == b""
        assert measure(server.address).error_s < 1
    assert (server.served, server.refused) == (1, 2)
    assert caplog.text.count("it speaks another protocol") == 1


def test_a_server_of_another_protocol() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\nServer: something\r\n\r\n")
        connection.recv(100)
        connection.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(ClockSyncError, match="no clock server: it answered b'HTTP"):
        measure(listener.getsockname(), timeout_s=60)
    listener.close()


def test_a_client_that_falls_silent_does_not_hold_up_the_next() -> None:
    with ClockServer() as server:
        silent = socket.create_connection(server.address, timeout=60)
        silent.sendall(MAGIC + bytes(16))
        assert silent.recv(25).startswith(MAGIC)  # and now it has its turn
        assert abs(measure(server.address, timeout_s=60)) < 1
        silent.close()
    assert server.served == 1


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of the flood, where a login allows 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MANY_FILES:
        pytest.skip(f"a process may not open {MANY_FILES} files here, at most {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY_FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# 560 are more than the server keeps: the first ones say nothing, the others greet, and fall silent
# when their turn comes. All have a minute for it, and nobody waits for that.
@pytest.mark.parametrize("greet", [0, 280, 560])
def test_a_flood_of_silent_clients_holds_up_nobody(greet: int, many_files: None) -> None:
    flood = []
    with ClockServer() as server:
        for number in range(560):
            client = socket.create_connection(server.address, timeout=60)
            flood.append(client)
            if number >= 560 - greet:
                client.sendall(MAGIC + bytes(16))
        began = time.monotonic()
        for _ in range(5):
            measure(server.address, timeout_s=50)
        waited = time.monotonic() - began
    assert server.served == 5
    for client in flood:
        client.close()
    assert waited < 50, waited  # of 60 that each of the silent may take


FORKS = """
import os, sys
from my_utils.cluster.clock_sync.client import measure
from my_utils.cluster.clock_sync.server import ClockServer
with ClockServer() as server:
    child = os.fork()
    if child == 0:
        sys.exit()
    os.waitpid(child, 0)
    measure(server.address)
print(server.served)
"""


def test_a_forked_child_does_not_close_the_server(run_python: RunPython) -> None:
    done = run_python("-c", FORKS)
    assert done.stdout == "1\n", done.stderr


def test_a_server_that_is_silent() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(TimeoutError):
        measure(listener.getsockname(), timeout_s=0.2)
    with pytest.raises(ClockSyncError, match="could not be read"):
        SocketClockSynchronizer.sync(False, *listener.getsockname(), timeout_s=0.1, retries=1)
    listener.close()


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(ClockSyncError, match="Connection refused"):
            SocketClockSynchronizer.sync(False, *bound.getsockname(), timeout_s=0.2)
        bound.listen()
        with pytest.raises(OSError, match="in use"):
            ClockServer(*bound.getsockname())


def test_nobody_comes() -> None:
    with pytest.raises(ClockSyncError, match=r"no client connected to port \d+ within 0.1 s"):
        SocketClockSynchronizer.sync(True, port=free_port(), timeout_s=0.1)


def test_two_processes_that_both_call_it() -> None:
    port = free_port()
    found: list[ClockOffset] = []
    client = threading.Thread(
        target=lambda: found.append(SocketClockSynchronizer.sync(False, port=port, secret="s"))
    )
    client.start()  # before the server is up
    answered = SocketClockSynchronizer.sync(True, port=port, secret="s", clock=shifted(2 * 10**9))
    client.join()
    assert (answered, answered.error_s) == (0.0, 0.0)
    assert abs(found[0].offset_ns - 2 * 10**9) <= found[0].error_s * 1e9 + 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rounds": 0}, ValueError, "rounds must be at least 1, not 0"),
        ({"rounds": 5000}, ValueError, "rounds must be at most 4096, not 5000"),
        ({"rounds": 1.5}, TypeError, r"rounds must be an int, not 1\.5"),
        ({"timeout_s": "1"}, TypeError, "timeout_s must be a number of seconds, not '1'"),
        ({"retries": -1}, ValueError, "retries must be at least 0, not -1"),
        (
            {"port": 0},
            ValueError,
            "port must be from 1 to 65535, and the same on both sides, not 0",
        ),
        ({"secret": 3}, TypeError, "secret must be bytes, a str or None, not int"),
        ({"host": 3}, TypeError, "host must be a str, not 3"),
        ({"is_server": "10.0.0.1"}, TypeError, r"is_server must be a bool, not '10\.0\.0\.1'"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SocketClockSynchronizer.sync(**{"is_server": False, "port": 7, **arguments})


def test_wrong_arguments_before_a_connection() -> None:
    with pytest.raises(TypeError, match="port must be an int, not '7'"):
        SocketClockSynchronizer(port="7")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="host must be a str, not 3"):
        SocketClockSynchronizer.serve(host=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="is_server must be a bool, not 'rank 0'"):
        ClockSynchronizer.sync("rank 0", 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="peer_rank must be at least 0, not -1"):
        ClockSynchronizer.sync(True, -1)


def test_alone() -> None:
    offset = ClockSynchronizer.sync_all()
    assert (offset, offset.error_s) == (0.0, 0.0)
    ClockSynchronizer.stop()


# --- the ranks of a job ---

PAIR = """
import json
from my_utils.clockSyncUtils import ClockSynchronizer
clock = lambda: time.time_ns() + rank * 7_000_000_000
found = [ClockSynchronizer.sync(rank == 1, 1 - rank, clock=clock) for _ in range(2)]
print(json.dumps([offset.fields() for offset in found]))
"""


def test_two_ranks_by_messages(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from ...support.ranks import run_ranks

    client, server = (json.loads(text) for text in run_ranks(PAIR, 2, tmp_path))
    assert [fields[:2] for fields in server] == [[0, 0.0]] * 2
    for offset_ns, error_s, _, round_trip_s, _ in client:
        assert abs(offset_ns - 7_000_000_000) <= error_s * 1e9 + 1
        assert 0 < error_s <= 1.2 * round_trip_s / 2
    assert not math.isnan(client[1][2])


# Ranks 0 and 1 on a host whose clock is right; 2 and 3 on one that is 5 s late; 4 on its own.
ALL = """
import json
from my_utils.clockSyncUtils import ClockSynchronizer
from my_utils.logger import GlobalLogger
GlobalLogger().setup(".", rank=rank, world_size=world, console=False)
host = [0, 0, 1, 1, 2][rank]
late = [0, 5_000_000_000, -2_000_000_000][host]
clock = lambda: time.time_ns() - late
found = []
for call in range(2):
    offset = ClockSynchronizer.sync_all(machine=f"host{host}", clock=clock)
    found.append([offset.offset_ns, late, offset.error_s])
GlobalLogger().close()
for call in range(3):
    ClockSynchronizer.sync_all(machine=f"host{host}")
dist.barrier()
keys = dist.distributed_c10d._get_default_store().num_keys()
dist.barrier()  # rank 0 ends, and the store with it
print(json.dumps([found, keys]))
"""


@pytest.mark.slow
def test_all_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from ...support.profile_rows import read
    from ...support.ranks import run_ranks

    printed = [json.loads(text) for text in run_ranks(ALL, 5, tmp_path)]
    results = [found for found, _ in printed]
    assert max(keys for _, keys in printed) < 35  # those of earlier calls are gone
    assert results[2][0] == results[3][0]
    for rank, found in enumerate(results):
        for offset_ns, late_ns, error_s in found:
            assert abs(offset_ns - late_ns) <= error_s * 1e9 + 1
            assert (error_s == 0) == (rank < 2)
            assert error_s < 1
        rows = read(tmp_path / f"profile_rank_{rank}.csv")
        noted = [row.metadata for row in rows if row.name == "my_utils.clock_sync"]
        assert [int(facts["offset_ns"]) for facts in noted] == [offset for offset, *_ in found]


# Rank 2 dies before it takes part; rank 1 has its own host and lines up all the same.
DEAD = """
import json, logging
logging.basicConfig(stream=sys.stderr)
from my_utils.clockSyncUtils import ClockSynchronizer
dist.barrier()
if rank == 2:
    os._exit(3)
# Rank 0 goes on when its time is over, and answers all the same as it serves for longer.
timeout_s = 60 if rank else 2
offset = ClockSynchronizer.sync_all(machine=f"host{rank}", timeout_s=timeout_s, every_s=1000)
print(offset.error_s, flush=True)
store = dist.distributed_c10d._get_default_store()
store.add("over", 1)
while rank == 0 and store.add("over", 0) < 2:
    time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.slow
def test_a_dead_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from ...support.ranks import Ranks

    results = Ranks(DEAD, 3, tmp_path).finish()
    assert [status for status, _, _ in results] == [0, 0, 3]
    assert float(results[0][1]) == 0
    assert 0 < float(results[1][1]) < 1
    assert "not all ranks lined up their clocks in time" in results[0][2]


# Ranks 1, 2 and 3 share a host. The first of them that asks for it dies of that, the second at its
# third question; the third goes on.
LEAD_DIES = """
import signal
from my_utils.cluster.clock_sync import synchronizer
from my_utils.cluster.clock_sync import star as clock_star
from my_utils.clockSyncUtils import ClockSynchronizer
store = dist.distributed_c10d._get_default_store()
asked = 0
class Mortal(clock_star.Refresher):
    def _ask(self, key, deadline):
        global asked
        asked += 1
        if asked in (1, 3) and store.add(f"question {asked}", 1) == 1:
            store.add("died", 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._ask(key, deadline)
synchronizer.Refresher = Mortal
timeout_s = 20 if rank else 3
offset = ClockSynchronizer.sync_all(machine=f"host{rank > 0}", timeout_s=timeout_s, every_s=0.05)
if rank == 0:
    while store.add("over", 0) < 1:
        time.sleep(0.01)
else:
    while store.add("died", 0) < 2 or asked < 3:
        time.sleep(0.01)
    print(offset.error_s, flush=True)
    store.add("over", 1)
os._exit(0)
"""


@pytest.mark.thorough
def test_a_rank_that_asks_for_its_host_and_dies(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from ...support.ranks import Ranks

    results = Ranks(LEAD_DIES, 4, tmp_path).finish()
    assert results[0][0] == 0, results
    assert sorted(status for status, _, _ in results[1:]) == [-9, -9, 0], results
    survivor = next(out for status, out, _ in results[1:] if status == 0)
    assert 0 < float(survivor) < 1


ALONE_IN_A_GROUP = """
from my_utils.clockSyncUtils import ClockSynchronizer
group = dist.new_group([0])
try:
    print(ClockSynchronizer.sync_all(group).error_s)
except ValueError as error:
    print(error)
dist.barrier()
"""


def test_a_group_without_this_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from ...support.ranks import run_ranks

    inside, outside = run_ranks(ALONE_IN_A_GROUP, 2, tmp_path)
    assert float(inside) == 0
    assert outside == "group must be one that this rank belongs to\n"


# The clock of rank 1 runs 400 ppm slow: the drift shows after some seconds of measuring again, as
# many as it takes until their errors can make 60 ppm of it at most.
AGAIN = """
from my_utils.cluster.clock_sync import star
from my_utils.cluster.clock_sync.offset import ClockHistory
from my_utils.clockSyncUtils import ClockSynchronizer

star.ClockHistory = lambda: ClockHistory(10_000)

def error_ppm(offsets):
    weights = [1 / offset.error_s**2 for offset in offsets]
    moments = [(offset.measured_ns - offsets[0].measured_ns) * 1e-9 for offset in offsets]
    middle = sum(map(lambda w, x: w * x, weights, moments)) / sum(weights)
    far = [abs(x - middle) for x in moments]
    most = sum(w * x * offset.error_s for w, x, offset in zip(weights, far, offsets))
    return most / sum(w * x**2 for w, x in zip(weights, far)) * 1e6

began = time.time_ns()
clock = lambda: began + (time.time_ns() - began) * (1_000_000 - 400 * rank) // 1_000_000
ClockSynchronizer.sync_all(machine=f"host{rank}", clock=clock, every_s=0.1)
if rank == 1:
    found = ClockSynchronizer._refresher._history
    offsets = []
    while len(offsets) < 20 or error_ppm(offsets) > 60:
        time.sleep(0.05)
        offsets = list(found._offsets)
    history = ClockHistory(len(offsets))
    history._offsets.extend(offsets)
    print(history.drift_ppm())
dist.barrier()
ClockSynchronizer.stop()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_measured_again_at_an_interval(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from ...support.ranks import run_ranks

    _, text = run_ranks(AGAIN, 2, tmp_path)
    assert float(text) == pytest.approx(400, rel=0.2)


# --- as others call it ---


def test_an_object_with_a_port() -> None:
    with SocketClockSynchronizer.serve() as server:
        host, port = server.address
        offset = SocketClockSynchronizer(port=port).sync(False, peer_ip=host)  # type: ignore[call-arg]
    assert abs(offset) <= offset.error_s
    with pytest.raises(TypeError, match="got host and peer_ip, which are the same"):
        SocketClockSynchronizer.sync(False, host, port, peer_ip=host)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="port must be from 1 to 65535"):
        SocketClockSynchronizer(port=0).sync(False, host)
    with pytest.raises(ValueError, match="port must be from 0 to 65535, not 70000"):
        SocketClockSynchronizer.serve(port=70000)
    with pytest.raises(TypeError, match="port must be an int, not str"):
        SocketClockSynchronizer.serve(port="x")  # type: ignore[arg-type]
