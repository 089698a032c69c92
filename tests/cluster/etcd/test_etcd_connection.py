"""The barrier over TLS, with a password, over IPv6, and with endpoints that fail."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from my_utils.etcd_utils import (
    EtcdBarrierBroken,
    EtcdBarrierError,
    EtcdBarrierTimeout,
    etcd_barrier,
)

from ...conftest import ROOT, RunPython
from ...support.etcd_certificates import Certificates, needs_openssl
from ...support.etcd_crew import PATIENCE
from ...support.etcd_server import EtcdServer, make_cluster, needs_etcd
from ...support.live_ranks import wait_until
from ...support.ranks import free_port

pytestmark = [pytest.mark.long_file, pytest.mark.no_torch]

PATIENT_S = 100.0
PATIENT: dict[str, Any] = {"timeout_s": PATIENT_S, "lease_s": 60.0}


def with_etcd(test: Any) -> Any:
    for mark in needs_etcd:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def both(prefix: str, **arguments: Any) -> list[bool]:
    """Two ranks, each a thread of this process."""
    with ThreadPoolExecutor(2) as pool:
        waiting = [
            pool.submit(etcd_barrier, prefix, 2, rank=rank, **{**PATIENT, **arguments})
            for rank in range(2)
        ]
        return [each.result() for each in waiting]


# --- which etcd ---


@with_etcd
def test_threads_wait_for_one_another(server: EtcdServer) -> None:
    assert both("threads", etcd_port=server.port) == [True, True]


@with_etcd
def test_one_alone_need_not_wait(server: EtcdServer) -> None:
    assert etcd_barrier("alone", 1, "127.0.0.1", server.port, 60, 0.2) is True


@with_etcd
def test_rank_and_number_from_the_launcher(server: EtcdServer, run_python: RunPython) -> None:
    barrier = f"etcd_barrier('l', etcd_port={server.port}, timeout_s=0)"
    code = f"{PATIENCE}\nfrom my_utils.etcd_utils import *\n{barrier}"
    done = run_python("-c", code, env={"RANK": "2", "WORLD_SIZE": "3"}, timeout=100)
    assert "2 of 3 missing: ranks 0, 1 (rank 2 waited" in done.stderr


@with_etcd
def test_the_next_endpoint_is_tried(server: EtcdServer) -> None:
    endpoints = f"127.0.0.1:{free_port()},http://{server.address}"
    for attempt in range(4):  # each begins with one of them
        assert both(f"endpoints{attempt}", endpoints=endpoints, interval_s=0.01) == [True, True]


@with_etcd
def test_an_endpoint_that_never_answers(server: EtcdServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoints = [f"127.0.0.1:{silent.getsockname()[1]}", server.address]
        assert both("silent", endpoints=endpoints, lease_s=2, restart_s=60) == [True, True]


@with_etcd
def test_ipv6(tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    with EtcdServer(tmp_path, host="::1") as server:
        assert both("address", etcd_host="::1", etcd_port=server.port) == [True, True]
        assert both("endpoint", endpoints=[f"http://[::1]:{server.port}"]) == [True, True]


@pytest.mark.slow
@with_etcd
def test_a_member_of_the_cluster_dies_meanwhile(tmp_path: Path) -> None:
    members = make_cluster(tmp_path, 3)
    try:
        at: dict[str, Any] = {"endpoints": [each.address for each in members], **PATIENT}
        with ThreadPoolExecutor(3) as pool:
            first = [pool.submit(etcd_barrier, "c", 3, rank=rank, **at) for rank in range(2)]
            time.sleep(0.5)
            members[0].kill()
            last = pool.submit(etcd_barrier, "c", 3, rank=2, **at)
            assert [each.result() for each in (*first, last)] == [True] * 3
    finally:
        for member in members:
            member.forget()


_MEMBER = """
import json, sys
from my_utils.etcd_utils import etcd_barrier
at = json.loads(sys.argv[1])
for number in range(2):
    assert etcd_barrier(f"{number}", rank=int(sys.argv[2]), **at)
    print(number, flush=True)
"""


@pytest.mark.thorough
@pytest.mark.timeout(400)
@with_etcd
@needs_openssl
def test_fifty_processes_over_tls_while_the_leader_dies(
    tmp_path: Path, certificates: Certificates
) -> None:
    """It is killed while all but one wait; the others decide who leads then."""
    members = make_cluster(tmp_path, 3, scheme="https", arguments=certificates.for_server)
    settings = json.dumps({
        "world_size": 50, "timeout_s": 200, **certificates.for_client,
        "endpoints": [f"https://{each.address}" for each in members],
    })  # fmt: skip
    processes: list[subprocess.Popen[str]] = []

    def come(ranks: range) -> None:
        processes.extend(
            subprocess.Popen(
                [sys.executable, "-c", _MEMBER, settings, str(rank)],
                cwd=ROOT, stdout=subprocess.PIPE, text=True,
            )
            for rank in ranks
        )  # fmt: skip

    try:
        come(range(49))
        time.sleep(5)
        assert all(each.poll() is None for each in processes)
        (leader,) = (each for each in members if each.leads)
        leader.kill()
        come(range(49, 50))
        assert [each.communicate()[0] for each in processes] == ["0\n1\n"] * 50
        assert [each.returncode for each in processes] == [0] * 50
    finally:
        for process in processes:
            process.kill()
        for member in members:
            member.forget()


# --- etcd that is not there ---


@with_etcd
def test_etcd_may_come_later(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(both, "later", etcd_port=server.port)
        time.sleep(1)
        with server:
            assert waits.result() == [True, True]


@with_etcd
def test_etcd_that_lost_its_data(tmp_path: Path) -> None:
    server = EtcdServer(tmp_path)
    with server, ThreadPoolExecutor(2) as pool:
        at: dict[str, Any] = {"etcd_port": server.port, **PATIENT}
        assert etcd_barrier("lost", 1, etcd_port=server.port)  # so that revisions go back
        first = pool.submit(etcd_barrier, "lost", 2, rank=0, **at)
        time.sleep(0.5)
        server.forget()
        server.start()
        assert etcd_barrier("lost", 2, rank=1, **at)
        assert first.result()


def test_nobody_at_the_endpoint() -> None:
    pytest.importorskip("pyetcd", reason="etcd-sdk-python is not installed")
    port = free_port()
    with pytest.raises(EtcdBarrierTimeout, match=rf"etcd cannot be reached .*127\.0\.0\.1:{port}"):
        etcd_barrier("nobody", 2, rank=0, etcd_port=port, timeout_s=0.5)


def test_something_else_at_the_endpoint() -> None:
    pytest.importorskip("pyetcd", reason="etcd-sdk-python is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(EtcdBarrierTimeout, match="etcd cannot be reached"):
            etcd_barrier("silent", 2, rank=0, etcd_port=silent.getsockname()[1], timeout_s=1)
        assert time.monotonic() - began < 30


@with_etcd
def test_an_etcd_that_hangs(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        waits = pool.submit(etcd_barrier, "h", 2, rank=0, etcd_port=server.port, **PATIENT)
        time.sleep(0.5)
        server.send(signal.SIGSTOP)
        time.sleep(1)
        server.send(signal.SIGCONT)
        assert etcd_barrier("h", 2, rank=1, etcd_port=server.port, **PATIENT)
        assert waits.result()


# --- TLS and passwords ---


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@with_etcd
@needs_openssl
def test_tls(tmp_path: Path, certificates: Certificates) -> None:
    with EtcdServer(tmp_path, scheme="https", arguments=certificates.for_server) as server:
        at: dict[str, Any] = {"endpoints": [f"https://{server.address}"]}
        assert both("tls", **at, **certificates.for_client) == [True, True]
        wrongs: list[dict[str, Any]] = [{}, {"ca_cert": certificates.path("ca.crt")}]
        for wrong in wrongs:  # signed by nobody, no own one
            with pytest.raises(EtcdBarrierTimeout, match="cannot be reached"):
                etcd_barrier("tls", 1, timeout_s=0.5, **at, **wrong)
        with pytest.raises(EtcdBarrierTimeout, match="cannot be reached"):
            etcd_barrier("tls", 1, timeout_s=0.5, etcd_port=server.port)


def ask_for_passwords(server: EtcdServer) -> None:
    """`ann` may use the keys below team/, `bob` none; `root` is what etcd demands."""
    rpc = importlib.import_module("pyetcd.etcdrpc")
    with importlib.import_module("pyetcd").client(port=server.port) as client:
        auth = rpc.AuthStub(client.channel)
        for user, role in (("root", "root"), ("ann", "team"), ("bob", "")):
            auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=f"{user}'s word"))
            if role:
                auth.RoleAdd(rpc.AuthRoleAddRequest(name=role))
                auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=role))
        permission = importlib.import_module("pyetcd.etcdrpc.auth_pb2").Permission
        may = permission(permType=permission.READWRITE, key=b"team/", range_end=b"team0")
        auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="team", perm=may))
        auth.AuthEnable(rpc.AuthEnableRequest())


@pytest.mark.slow
@with_etcd
def test_user_and_password(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        at: dict[str, Any] = {"etcd_port": server.port}
        ann: dict[str, Any] = {"user": "ann", "password": "ann's word"}
        assert both("team/before", **at, **ann) == [True, True]  # it does not ask yet
        ask_for_passwords(server)
        assert both("team/x", **at, **ann) == [True, True]
        refused = "etcd refuses: 127.0.0.1"
        with pytest.raises(EtcdBarrierError, match=f"{refused}.*invalid user ID or password"):
            etcd_barrier("team/x", 1, user="ann", password="a guess", **at)
        with pytest.raises(EtcdBarrierError, match=f"{refused}.*permission denied"):
            etcd_barrier("team/x", 1, user="bob", password="bob's word", **at)
        with pytest.raises(EtcdBarrierError, match=f"{refused}.*permission denied"):
            etcd_barrier("others/x", 1, **at, **ann)
        with pytest.raises(EtcdBarrierError, match=f"{refused}.*user name is empty"):
            etcd_barrier("team/x", 1, **at)
        # A restarted etcd knows no token any more.
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(etcd_barrier, "team/r", 2, rank=0, **PATIENT, **at, **ann)
            time.sleep(0.5)
            server.kill()
            server.start()
            assert etcd_barrier("team/r", 2, rank=1, **PATIENT, **at, **ann)
            assert waits.result()


@pytest.mark.slow
@with_etcd
@needs_openssl
def test_a_token_that_ends_while_it_is_used(tmp_path: Path) -> None:
    own, public = str(tmp_path / "own.pem"), str(tmp_path / "public.pem")
    subprocess.run(["openssl", "genrsa", "-out", own], check=True, capture_output=True)
    command = ["openssl", "rsa", "-in", own, "-pubout", "-out", public]
    subprocess.run(command, check=True, capture_output=True)
    token = f"jwt,pub-key={public},priv-key={own},sign-method=RS256,ttl=1s"
    with EtcdServer(tmp_path, arguments=("--auth-token", token)) as server:
        ask_for_passwords(server)
        at: dict[str, Any] = {"etcd_port": server.port, "timeout_s": PATIENT_S, "restart_s": 60}
        ann: dict[str, Any] = {"user": "ann", "password": "ann's word"}
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(etcd_barrier, "team/t", 2, rank=0, lease_s=3, **at, **ann)
            time.sleep(3)  # and the lease is kept alive meanwhile
            assert etcd_barrier("team/t", 2, rank=1, lease_s=60, **at, **ann)
            assert waits.result()


# --- processes ---


FORKS = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
from my_utils.etcd_utils import EtcdBarrierTimeout, etcd_barrier

def statuses(work):
    children = []
    for rank in range(2):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work(rank)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]

port = int(sys.argv[1])
at = {"etcd_port": port, "lease_s": 60}
print(statuses(lambda rank: etcd_barrier("forked", 2, rank=rank, **at)))
with ThreadPoolExecutor(4) as pool:
    waiting = [pool.submit(etcd_barrier, "threads", 4, rank=r, **at) for r in range(4)]
    print([each.result() for each in waiting])
print(statuses(lambda rank: None))  # as the workers of a DataLoader
for _ in range(2):
    print(statuses(lambda rank: etcd_barrier("forked", 2, rank=rank, **at)))

def is_told(rank):
    text = "cannot be reached"
    while "cannot be reached" in text:  # etcd took more than a second to answer
        try:
            etcd_barrier("forked", 3, rank=rank, timeout_s=0.2, **at)
        except EtcdBarrierTimeout as error:
            text, missing = str(error), error.missing
    assert missing[-1] == 2, text

print(statuses(is_told))
"""


@with_etcd
def test_processes_that_fork(server: EtcdServer, run_python: RunPython) -> None:
    done = run_python("-c", FORKS, str(server.port), timeout=110)
    both_well, threads = "[0, 0]\n", "[True, True, True, True]\n"
    assert done.stdout == both_well + threads + 4 * both_well, done.stderr


@with_etcd
def test_nothing_is_left_in_the_process(server: EtcdServer) -> None:
    etcd_barrier("leftovers", 1, etcd_port=server.port)
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for _ in range(3):
        etcd_barrier("leftovers", 1, etcd_port=server.port)
    # grpc closes them in threads of its own.
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)
    wait_until(lambda: threading.active_count() <= threads)


INTERRUPTED = f"""
import signal, sys
{PATIENCE}
from my_utils.etcd_utils import etcd_barrier
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started this may ignore it
etcd_barrier("interrupted", 3, rank=1, etcd_port=int(sys.argv[1]), lease_s=600)
"""


def most_answers(server: EtcdServer, prefix: str) -> int:
    """How many answered the call that most answered."""
    calls = [key.rpartition("/")[0] for key in server.keys(prefix) if "/answers/" in key]
    return max(map(calls.count, calls), default=0)


@with_etcd
def test_an_interrupted_one_leaves_at_once(server: EtcdServer) -> None:
    at: dict[str, Any] = {"etcd_port": server.port, **PATIENT}
    command = [sys.executable, "-c", INTERRUPTED, str(server.port)]
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(etcd_barrier, "interrupted", 3, rank=0, **at)
        settings = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: most_answers(server, "interrupted/") == 2)
        child.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in child.communicate(timeout=60)[1]
        with pytest.raises(EtcdBarrierBroken) as caught:
            waits.result()
    assert caught.value.missing == (1, 2)


def test_without_the_client(run_python: RunPython) -> None:
    code = (
        "import sys\nsys.modules['pyetcd'] = None\nfrom my_utils.etcd_utils import *\n"
        "etcd_barrier('x', 1)"
    )
    done = run_python("-c", code)
    assert "ImportError: etcd_barrier needs pyetcd" in done.stderr
    assert "pip install etcd-sdk-python" in done.stderr


def test_errors_can_be_sent_to_other_processes() -> None:
    for kind in (EtcdBarrierError, EtcdBarrierTimeout, EtcdBarrierBroken):
        error = pickle.loads(pickle.dumps(kind("text", "x", 8, (1, 2), 2)))
        assert type(error) is kind
        facts = (str(error), error.prefix, error.world_size, error.missing, error.missing_count)
        assert facts == ("text", "x", 8, (1, 2), 2)
    assert issubclass(EtcdBarrierBroken, TimeoutError)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prefix": 1}, TypeError, "prefix must be a str, not 1"),
        ({"prefix": "/"}, ValueError, "prefix must not be empty"),
        ({"world_size": "8"}, TypeError, "world_size must be an int, not '8'"),
        ({"world_size": 0}, ValueError, "world_size must be at least 1, not 0"),
        ({"rank": -1}, ValueError, "rank must be at least 0, not -1"),
        ({"rank": 2}, ValueError, r"rank must be below world_size \(2\), not 2"),
        ({"timeout_s": "1"}, TypeError, "timeout_s must be a number of seconds, not '1'"),
        ({"timeout_s": -1}, ValueError, "timeout_s must be at least 0, not -1"),
        ({"interval_s": float("nan")}, ValueError, "interval_s must be at least 0, not nan"),
        ({"lease_s": 0.5}, ValueError, "lease_s must be at least 1, not 0.5"),
        ({"lease_s": float("inf")}, ValueError, "lease_s must be at most 86400, not inf"),
        ({"ca_cert": 5}, TypeError, "ca_cert must be a path or None, not 5"),
        ({"user": 5, "password": ""}, TypeError, "user must be a str or None, not int"),
        ({"restart_s": None}, TypeError, "restart_s must be a number of seconds, not None"),
        ({"etcd_host": None}, TypeError, "etcd_host must be a str, not None"),
        ({"etcd_port": "2379"}, TypeError, "etcd_port must be an int, not '2379'"),
        ({"etcd_port": 0}, ValueError, "the port must be from 1 to 65535, not 0"),
        ({"endpoints": []}, ValueError, "endpoints must not be empty"),
        ({"endpoints": "ftp://x:1"}, ValueError, "must be http or https, not 'ftp://x:1'"),
        ({"endpoints": ["host"]}, ValueError, "must be 'host:port', not 'host'"),
        ({"endpoints": 1}, TypeError, "endpoints must be a list or a str of 'host:port', not 1"),
        ({"endpoints": [1]}, TypeError, "each of endpoints must be a str, not 1"),
        ({"user": "ann"}, ValueError, "user and password must be given both or not at all"),
        ({"cert_key": "k"}, ValueError, "cert_cert and cert_key must be given both or not at all"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        etcd_barrier(**{"prefix": "x", "world_size": 2, **arguments})


class NoSense:
    """A gRPC server that answers every call with an empty message."""

    def __init__(self) -> None:
        self.grpc = importlib.import_module("grpc")
        self.server = self.grpc.server(ThreadPoolExecutor(8))
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, call: Any) -> Any:
        if call.method.endswith(("Watch", "LeaseKeepAlive")):
            return self.grpc.stream_stream_rpc_method_handler(lambda requests, _: iter([b""]))
        return self.grpc.unary_unary_rpc_method_handler(lambda request, _: b"")

    def service_name(self) -> None:
        return None


def test_an_answer_without_sense_is_an_error_of_the_barrier() -> None:
    pytest.importorskip("pyetcd")
    server = NoSense()
    try:
        with pytest.raises(EtcdBarrierError):
            etcd_barrier("team/no-sense", 2, "127.0.0.1", server.port, timeout_s=2)
    finally:
        server.server.stop(None)
