"""Hosts with their own disks, names, addresses and clocks: namespaces of this machine, joined by a
bridge, on which `my_utils run -- torchrun` runs as it would on machines."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ...conftest import ROOT
from ...support.clock_shim import clock_shim
from ..test_several_hosts import JOINS_S, ip, outputs_of

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.long_file, pytest.mark.timeout(500)]

PORT = 29_411
APART_S = 5 * 3600
# Where the launchers share their store with the ranks, torch 2.13 keeps on to a dead host's when
# rank 0 moves, and the ranks wait for 30 minutes.
OTHER_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
ENDS_S = 240

# With its process the host dies, and all that runs on it.
ALONE = ["unshare", "-m", "-u", "-p", "--fork", "--kill-child", "--mount-proc"]

# The last rank is slow. HELD: it waits in step 60 for as long as this file is there.
TRAIN = """
import ctypes, os, sys, time, torch, torch.distributed as dist
kind, apart_s, held = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if apart_s:
    ctypes.CDLL(None).set_clock(ctypes.c_longlong(apart_s * 10**9))
dist.init_process_group("gloo")
rank, last = dist.get_rank(), dist.get_world_size() - 1
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(80):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    time.sleep(0.05 if rank == last else 0.005)
    while kind == "held" and step == 60 and os.path.exists(held):
        time.sleep(0.05)
    loss.backward()
    optimizer.step()
"""

ON_A_HOST = """
mount -t tmpfs tmpfs "$1" || exit 99
hostname "$2"
cd "$1"
out=$3
shift 3
"$@"
status=$?
mkdir "$out"
cp -r logs "$out"
exit $status
"""


class Network:
    """So many hosts, each with an address."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.addresses = [f"10.79.0.{host + 1}" for host in range(len(names))]


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    if shutil.which("ip") is None:
        pytest.skip("not installed: ip")
    names = [f"my_utils.{os.getpid()}.h{host}" for host in range(request.param)]
    switch = f"my_utils.{os.getpid()}.sw"
    with contextlib.ExitStack() as stack:
        for name in [switch, *names]:
            made = ip("netns", "add", name)
            if made.returncode:
                pytest.skip(f"no namespaces here: {made.stderr.strip()}")
            stack.callback(ip, "netns", "delete", name)
        made = ip("-n", switch, "link", "add", "br0", "type", "bridge")
        if made.returncode:
            pytest.skip(f"no bridge here: {made.stderr.strip()}")
        ip("-n", switch, "link", "set", "br0", "up").check_returncode()
        found = Network(names)
        for host, name in enumerate(names):
            plug = ["type", "veth", "peer", "name", f"p{host}", "netns", switch]
            made = ip("link", "add", "eth0", "netns", name, *plug)
            if made.returncode:
                pytest.skip(f"no pair of interfaces here: {made.stderr.strip()}")
            ip("-n", switch, "link", "set", f"p{host}", "master", "br0", "up").check_returncode()
            address = f"{found.addresses[host]}/24"
            ip("-n", name, "address", "add", address, "dev", "eth0").check_returncode()
            for interface in ("eth0", "lo"):
                ip("-n", name, "link", "set", interface, "up").check_returncode()
        yield found


class Job:
    """One run on all hosts of a network. Each is started by `start`. least: hosts with which it
    goes on after a restart; all by default. meets: the host of the rendezvous."""

    def __init__(
        self, folder: Path, network: Network, kind: str, backend: str, *,
        least: int | None = None, meets: int = 0,
    ) -> None:  # fmt: skip
        self.folder, self.network, self.kind, self.backend = folder, network, kind, backend
        self.least, self.meets = least, meets
        self.held = folder / "held"
        self.held.touch()
        self.work = folder / "work"
        self.work.mkdir()
        (folder / "train.py").write_text(TRAIN)
        self.shim = clock_shim(folder) if kind == "clocks" else None
        self.started: dict[int, subprocess.Popen[str]] = {}

    @property
    def processes(self) -> list[subprocess.Popen[str]]:
        return [self.started[host] for host in sorted(self.started)]

    def start(self, host: int) -> None:
        count = len(self.network.names)
        least, restarts = (count, 0) if self.least is None else (self.least, 3)
        launcher = [
            sys.executable, "-m", "torch.distributed.run", f"--nnodes={least}:{count}",
            "--nproc-per-node=1", f"--max-restarts={restarts}", *self._rendezvous(host),
            str(self.folder / "train.py"), self.kind,
            str(APART_S * host if self.shim else 0), str(self.held),
        ]  # fmt: skip
        # The folder that the ranks agree on is not the one that each command has made.
        output = ["-o", f"logs/train-of-{host}"] if host else []
        words = [
            "ip", "netns", "exec", self.network.names[host], *ALONE, "sh", "-c",
            ON_A_HOST, "sh", str(self.work), f"node-{host}", str(self.folder / f"of{host}"),
            sys.executable, "-m", "my_utils", "run", *output, "--", *launcher,
        ]  # fmt: skip
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0", **OTHER_STORE,
            **({"LD_PRELOAD": str(self.shim)} if self.shim else {}),
        }  # fmt: skip
        self.started[host] = subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip

    def _rendezvous(self, host: int) -> list[str]:
        first = self.network.addresses[self.meets]
        if self.backend == "static":
            return [f"--master-addr={first}", f"--master-port={PORT}", f"--node-rank={host}"]
        return [
            "--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{PORT}",
            f"--local-addr={self.network.addresses[host]}",
            f"--rdzv-conf=is_host={int(host == self.meets)},join_timeout={JOINS_S},"
            "last_call_timeout=15",
        ]  # fmt: skip

    def kill(self, host: int) -> None:
        self.started[host].kill()
        self.started[host].communicate()

    def on_host_0(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.on_host(0, *words)

    def on_host(self, host: int, *words: str) -> subprocess.CompletedProcess[str]:
        """A command that sees the disk of a host while the run goes on."""
        return subprocess.run(
            ["nsenter", "-t", str(self.started[host].pid), "-m", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def wait_until_host_0_has(self, name: str) -> Path:
        return self.wait_until_host_has(0, name)

    def wait_until_host_has(self, host: int, name: str) -> Path:
        """The path of a file that another host sends."""
        deadline = time.monotonic() + ENDS_S
        while time.monotonic() < deadline:
            place = "-path", f"*/hosts/*/{name}"
            found = self.on_host(host, "find", str(self.work), *place).stdout
            if found:
                return Path(found.splitlines()[0])
            time.sleep(0.2)
        outputs = [process.poll() for process in self.processes]
        pytest.fail(f"{name} did not come; the commands: {outputs}")

    def end(self) -> list[str]:
        self.held.unlink(missing_ok=True)
        return outputs_of(self.processes)

    def run_folder(self, host: int = 0) -> Path:
        places = (self.folder / f"of{host}" / "logs").iterdir()
        (found,) = (one for one in places if not one.is_symlink())
        return found


def verdict_of(*folders: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(why(*folders, "--json"))
    return found


def why(*words: Path | str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "why", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("network", "backend", "kind"),
    [
        (2, "static", "plain"),
        pytest.param(4, "c10d", "plain", marks=pytest.mark.thorough),
        pytest.param(2, "c10d", "clocks", marks=pytest.mark.thorough),
    ],
    indirect=["network"],
)
def test_the_host_of_rank_0_judges_all(
    network: Network, backend: str, kind: str, tmp_path: Path
) -> None:
    job = Job(tmp_path, network, kind, backend)
    for host in range(len(network.names)):
        job.start(host)
    outputs = job.end()
    assert [process.returncode for process in job.processes] == [0] * len(outputs), outputs
    count = len(network.names)
    first = next(output for output in outputs if "WAITING" in output)
    assert f"judged: {count} of {count} ranks" in first, outputs
    assert f"WAITING FOR rank {count - 1}" in first
    assert "hosts;" not in first
    places = [job.folder / f"of{host}" / "logs" for host in range(count)]
    led = next(one for one in places if list(one.rglob("hosts")))
    (folder,) = (one for one in led.iterdir() if not one.is_symlink())
    verdict = verdict_of(folder)
    assert (verdict["judged_ranks"], verdict["last_step"]) == (count, 79)
    assert verdict["notes"] == []
    assert verdict["step_ms"] < 1000.0  # no step takes the hours between the clocks
    for host in range(count):
        about = json.loads((job.run_folder(host) / "run.json").read_text())
        assert "torch.distributed.run" in about["command"]
    for place in places:  # what came is what was sent
        for path in place.glob("*/profile_rank_*.csv"):
            copies = [copy for copy in folder.rglob(path.name) if copy != path]
            assert place == led or [copy.read_bytes() for copy in copies] == [path.read_bytes()]


@pytest.mark.thorough
@pytest.mark.parametrize("network", [2], indirect=True)
def test_of_a_host_that_dies_there_is_what_it_sent(network: Network, tmp_path: Path) -> None:
    """And while it lived, `live` there knew its rank."""
    job = Job(tmp_path, network, "held", "static")
    for host in range(2):
        job.start(host)
    came = job.wait_until_host_0_has("profile_rank_1.csv")
    deadline = time.monotonic() + ENDS_S
    while job.on_host_0("grep", "-q", ",59,loss,END", str(came)).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    run = came.parents[2]
    live = [sys.executable, "-m", "my_utils", "live", str(run), "--once", "--json"]
    seen = json.loads(job.on_host_0("env", f"PYTHONPATH={ROOT}", *live).stdout)
    assert {one["rank"] for one in seen["ranks"]} == {0, 1}
    job.kill(1)
    output = job.end()[0]
    assert re.search(r"1 of 2 hosts; node-1 until \d\d:\d\d", output), output
    assert "killed or crashed on rank 1" in output
    assert "my_utils capture" not in output  # which asks a run that goes on
    run = job.run_folder()
    assert any("1 of 2 hosts; node-1 until" in one for one in verdict_of(run)["notes"])
    assert "\n1 of 2 hosts; node-1 until" in why(run)


@pytest.mark.thorough
@pytest.mark.parametrize("network", [2], indirect=True)
def test_a_host_may_join_late(network: Network, tmp_path: Path) -> None:
    job = Job(tmp_path, network, "plain", "c10d")
    job.start(0)
    deadline = time.monotonic() + ENDS_S
    while not job.on_host_0("find", str(job.work), "-name", "run.json").stdout:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    job.start(1)
    outputs = job.end()
    assert [process.returncode for process in job.processes] == [0, 0], outputs
    assert any("judged: 2 of 2 ranks" in output for output in outputs), outputs


@pytest.mark.thorough
@pytest.mark.parametrize("network", [3], indirect=True)
def test_a_run_that_goes_on_with_fewer_hosts(network: Network, tmp_path: Path) -> None:
    """The last one dies, and the launchers of the others start again: both are judged, and of the
    dead one there is what it had sent."""
    job = Job(tmp_path, network, "held", "c10d", least=2)
    for host in range(3):
        job.start(host)
    for rank in (1, 2):
        job.wait_until_host_0_has(f"profile_rank_{rank}.csv")
    job.kill(2)
    outputs = job.end()
    assert [process.returncode for process in job.processes[:2]] == [0, 0], "\n".join(outputs)
    assert "judged: 2 of 2 ranks" in outputs[0], outputs
    verdict = verdict_of(job.run_folder())
    assert (verdict["judged_ranks"], verdict["world_size"], verdict["attempts"]) == (2, 2, 2)
    assert "rank 2 is left out: the last attempt has fewer ranks" in verdict["notes"]
    assert any("2 of 3 hosts; node-2 until" in one for one in verdict["notes"])


PRINTS = "the host of rank 0 prints the verdict"


@pytest.mark.thorough
@pytest.mark.parametrize("network", [3], indirect=True)
def test_the_host_of_rank_0_dies_and_the_rendezvous_with_it(
    network: Network, tmp_path: Path
) -> None:
    """The launchers of the others fail. Each host says what it has."""
    job = Job(tmp_path, network, "held", "c10d", least=2)
    for host in range(3):
        job.start(host)
    for rank in (1, 2):
        job.wait_until_host_0_has(f"profile_rank_{rank}.csv")
    job.kill(0)
    outputs = job.end()
    assert [process.returncode for process in job.processes[1:]] == [1, 1], "\n".join(outputs)
    for host, others in ((1, "0,2"), (2, "0-1")):
        assert "the host of rank 0 has gone" in outputs[host]
        assert PRINTS not in outputs[host]
        assert f"NOT JUDGED: no files of ranks {others} of 3" in outputs[host], outputs
    verdict = verdict_of(job.run_folder(1), job.run_folder(2))
    assert (verdict["judged_ranks"], verdict["reason"]) == (2, "no files of rank 0 of 3")


@pytest.mark.thorough
@pytest.mark.parametrize("network", [3], indirect=True)
def test_the_host_of_rank_0_dies_and_the_others_go_on(network: Network, tmp_path: Path) -> None:
    job = Job(tmp_path, network, "held", "c10d", least=2, meets=1)
    for host in range(3):
        job.start(host)
    for rank in (1, 2):
        job.wait_until_host_0_has(f"profile_rank_{rank}.csv")
    job.kill(0)
    outputs = job.end()
    assert [process.returncode for process in job.processes[1:]] == [0, 0], "\n".join(outputs)
    assert sum("judged: 2 of 2 ranks" in output for output in outputs) == 1, "\n".join(outputs)
    (led,) = (host for host in (1, 2) if "judged: 2 of 2 ranks" in outputs[host])
    assert PRINTS in outputs[3 - led]
    assert "ENDED EARLY" not in outputs[led]
    verdict = verdict_of(job.run_folder(led))
    assert (verdict["judged_ranks"], verdict["world_size"], verdict["attempts"]) == (2, 2, 2)
    assert verdict["ending"] is None


@pytest.mark.thorough
@pytest.mark.parametrize("network", [3], indirect=True)
def test_a_host_that_joins_late_becomes_that_of_rank_0(network: Network, tmp_path: Path) -> None:
    """As its address is the lowest: what all have recorded comes there from then on."""
    job = Job(tmp_path, network, "held", "c10d", least=2, meets=1)
    for host in (1, 2):
        job.start(host)
    job.wait_until_host_has(1, "profile_rank_1.csv")
    job.start(0)
    for rank in (1, 2):
        job.wait_until_host_0_has(f"profile_rank_{rank}.csv")
    outputs = job.end()
    assert [process.returncode for process in job.processes] == [0, 0, 0], "\n".join(outputs)
    assert "judged: 3 of 3 ranks" in outputs[0], outputs
    assert "ENDED EARLY" not in outputs[0] and "hosts;" not in outputs[0]
    for output in outputs[1:]:
        assert PRINTS in output and "judged:" not in output, outputs
