"""One run on two hosts: it has one identity, in all files of both. A host is a name, a disk and,
where that matters, an address: namespaces of this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ..conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.thorough, pytest.mark.long_file, pytest.mark.timeout(450)]

ENDS_S, LEAVES_S = 300, 60
JOINS_S = 120  # torch waits for 600 by default

# Rank 0 is the one that fails. A static rendezvous keeps the ranks' addresses in its process: while
# that lives, gloo of another rank that starts again gets the addresses of the dead,
# without this package too.
TRAIN = """
import os, sys, torch, torch.distributed as dist
case, rank = sys.argv[1], os.environ["RANK"]
model = torch.nn.Linear(4, 4)
if case != "alone":
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    if case == "restarts" and rank == "0" and step == 6:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(5)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if case == "fails" and rank == "1":
    sys.exit(5)
"""

ON_A_HOST = """
set -e
if [ "$1" = separate ]; then mount -t tmpfs tmpfs "$2"; fi
hostname "$3"
cd "$2"
out=$4
shift 4
status=0
"$@" || status=$?
mkdir "$out"
cp -r logs "$out"
exit $status
"""


class Host(NamedTuple):
    """status: of its command. runs: by folder, run.json and the ids in the CSVs."""

    status: int
    runs: dict[str, tuple[dict[str, Any], set[str]]]
    output: str


class Network(NamedTuple):
    """How the two hosts reach each other. enter: the words before a command of each."""

    addresses: tuple[str, str]
    interface: str
    enter: tuple[list[str], list[str]]


SHARED_NETWORK = Network(("127.0.0.1", "127.0.0.1"), "lo", ([], []))


@pytest.fixture
def own_addresses() -> Iterator[Network]:
    """Two hosts with a cable in between."""
    if shutil.which("ip") is None:
        pytest.skip("not installed: ip")
    names = [f"my_utils.{os.getpid()}.{host}" for host in range(2)]
    addresses = ("10.77.0.1", "10.77.0.2")
    with contextlib.ExitStack() as stack:
        for name in names:
            made = ip("netns", "add", name)
            if made.returncode:
                pytest.skip(f"no namespaces here: {made.stderr.strip()}")
            stack.callback(ip, "netns", "delete", name)
        cable = ["type", "veth", "peer", "name", "eth0", "netns", names[1]]
        made = ip("link", "add", "eth0", "netns", names[0], *cable)
        if made.returncode:
            pytest.skip(f"no pair of interfaces here: {made.stderr.strip()}")
        for name, address in zip(names, addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0").check_returncode()
            for interface in ("eth0", "lo"):
                ip("-n", name, "link", "set", interface, "up").check_returncode()
        enter = tuple(["ip", "netns", "exec", name] for name in names)
        yield Network(addresses, "eth0", (enter[0], enter[1]))


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def meeting_place(kind: str, host: int, port: int, addresses: tuple[str, str]) -> list[str]:
    first = addresses[0]
    if kind == "static":
        return [f"--master-addr={first}", f"--master-port={port}", f"--node-rank={host}"]
    own = ["--rdzv-backend=c10d", f"--rdzv-endpoint={first}:{port}"]
    # A host that the other one does not join again gives up before the test does.
    conf = f"is_host={int(host == 0)},join_timeout={JOINS_S}"
    return [*own, f"--local-addr={addresses[host]}", f"--rdzv-conf={conf}"]


def run_of(place: Path) -> tuple[dict[str, Any], set[str]]:
    ids: set[str] = set()
    for path in place.glob("profile_rank_*.csv"):
        ids.update(re.findall(r"run_id=([^,\"]*)", path.read_text()))
    return json.loads((place / "run.json").read_text()), ids


def start_on_host(
    folder: Path, host: int, disk: str, command: list[str], network: Network = SHARED_NETWORK,
    options: Sequence[str] = (),
) -> subprocess.Popen[str]:  # fmt: skip
    """`my_utils run -- COMMAND` in namespaces of a host, whose logs come to `of<host>`."""
    probe = subprocess.run(
        ["unshare", "-m", "-u", "mount", "-t", "tmpfs", "tmpfs", folder],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if probe.returncode:
        pytest.skip(f"no namespaces here: {probe.stderr.strip()}")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": network.interface,
    }  # fmt: skip
    words = [sys.executable, "-m", "my_utils", "run", *options, "--", *command]
    arguments = [disk, str(work), f"host{host}", str(folder / f"of{host}"), *words]
    enter = [*network.enter[host], "unshare", "-m", "-u"]
    return subprocess.Popen(
        [*enter, "sh", "-c", ON_A_HOST, "sh", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def outputs_of(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Waits for the commands of the hosts. Where one does not end all are interrupted, so that
    nothing is left that waits, and what they printed is the failure."""
    until = time.monotonic() + ENDS_S
    try:
        return [one.communicate(timeout=until - time.monotonic())[0] for one in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            os.killpg(process.pid, signal.SIGTERM)  # passed on to the launcher, and to its ranks
        printed = [process.communicate(timeout=LEAVES_S)[0] for process in processes]
        pytest.fail(f"not ended after {ENDS_S} s:\n" + "\n---\n".join(printed))


def on_two_hosts(
    folder: Path, kind: str, case: str, *, disk: str = "separate", ranks: int = 1,
    rdzv_id: str | None = None, network: Network = SHARED_NETWORK, restarts: int = 0,
) -> list[Host]:  # fmt: skip
    script, work, port = folder / "train.py", folder / "work", free_port()
    script.write_text(TRAIN)
    processes = []
    for host in range(2):
        launcher = [
            "env", f"RANK={host}", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", f"MASTER_PORT={port}",
            sys.executable,
        ]  # fmt: skip
        if kind != "by hand":
            launcher = [
                sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
                f"--nproc-per-node={ranks}", f"--max-restarts={restarts}",
                *meeting_place(kind, host, port, network.addresses),
                *([f"--rdzv-id={rdzv_id}"] if rdzv_id else []),
            ]  # fmt: skip
        processes.append(start_on_host(folder, host, disk, [*launcher, str(script), case], network))
    found = []
    outputs = outputs_of(processes)
    for host, (process, output) in enumerate(zip(processes, outputs, strict=True)):
        # A shared one as it is once both commands are over: each takes its empty folder back.
        logs = folder / f"of{host}" / "logs" if disk == "separate" else work / "logs"
        places = logs.iterdir()
        runs = {place.name: run_of(place) for place in places if not place.is_symlink()}
        found.append(Host(process.returncode, runs, output))
    return found


# The rank that makes the first step proposes the folder.
STEPS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
optimizer = torch.optim.SGD(torch.nn.Linear(4, 4).parameters(), lr=0.1)
is_first = os.environ["RANK"] == sys.argv[1]
if not is_first:
    dist.barrier()
for step in range(12):
    optimizer.step()
    if is_first and step == 0:
        dist.barrier()
"""

BOTH_JOBS = """
unset MY_UTILS_RUN
run() { env RANK=$1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$2 \\
    "$3" -m my_utils run -o "logs/$4" -- "$3" "$5" "$6"; }
run $1 $2 "$4" $5 "$7" 0 & first=$!
run $1 $3 "$4" $6 "$7" 1 & second=$!
wait $first && wait $second
"""


def test_two_jobs_whose_folders_have_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one host the first job has made `x`, on the other one the second job has, and each job's
    ranks agree on that `x`."""
    monkeypatch.setenv("MY_UTILS_RUN", "0")
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    ports = [str(free_port()) for _ in range(2)]
    processes = [
        start_on_host(
            tmp_path, host, "separate",
            ["sh", "-c", BOTH_JOBS, "sh", str(host), *ports, sys.executable, *names, str(script)],
        )
        for host, names in enumerate((["x", "y"], ["y", "x"]))
    ]  # fmt: skip
    outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [0, 0], outputs
    found = [
        [run_of(tmp_path / f"of{host}" / "logs" / name) for name in names]
        for host, names in enumerate((["x", "y"], ["y", "x"]))
    ]
    assert found[0][0][0]["run_id"] != found[0][1][0]["run_id"]
    for host in found:
        for (about, ids), (first, _) in zip(host, found[0], strict=True):
            assert ids == {about["run_id"]} == {first["run_id"]}, found


def check_one_identity(hosts: list[Host], world_size: int, statuses: set[int]) -> None:
    abouts = [one for host in hosts for one in host.runs.values()]
    assert len(hosts[0].runs) == len(hosts[1].runs) == 1, hosts
    assert len({about["run_id"] for about, _ in abouts}) == 1, hosts
    for about, ids in abouts:
        assert ids == {about["run_id"]}, hosts
        assert about["script"].endswith("train.py") and about["torch"], about
        assert about["world_size"] == world_size and about["command"] and about["started"], about
        assert about["exit_status"] in statuses, hosts


@pytest.mark.parametrize(
    ("kind", "case", "ranks", "rdzv_id"),
    [
        ("static", "ddp", 1, None),
        ("static", "alone", 2, "none"),  # no process group: they meet in the launcher's store
        pytest.param("c10d", "ddp", 2, "job7", marks=pytest.mark.thorough),
    ],
)
def test_hosts_without_a_shared_folder(
    kind: str, case: str, ranks: int, rdzv_id: str | None, tmp_path: Path
) -> None:
    hosts = on_two_hosts(tmp_path, kind, case, ranks=ranks, rdzv_id=rdzv_id)
    check_one_identity(hosts, 2 * ranks, {0})
    assert [host.status for host in hosts] == [0, 0], hosts


def test_hosts_with_a_shared_folder_of_which_one_fails(tmp_path: Path) -> None:
    """The status is that of the command that failed, whichever ended last."""
    hosts = on_two_hosts(tmp_path, "by hand", "fails", disk="shared")
    check_one_identity(hosts, 2, {0, 5})
    assert [host.status for host in hosts] == [0, 5], hosts
    (place,) = (one for one in (tmp_path / "work" / "logs").iterdir() if not one.is_symlink())
    assert run_of(place)[0]["exit_status"] == 5


@pytest.mark.parametrize(
    ("kind", "case", "restarts"),
    [
        ("static", "ddp", 0),
        pytest.param("c10d", "ddp", 0, marks=pytest.mark.thorough),
        pytest.param("static", "restarts", 1, marks=pytest.mark.thorough),
        pytest.param("c10d", "restarts", 1, marks=pytest.mark.thorough),
    ],
)
def test_hosts_with_addresses_of_their_own(
    kind: str, case: str, restarts: int, own_addresses: Network, tmp_path: Path
) -> None:
    hosts = on_two_hosts(tmp_path, kind, case, network=own_addresses, restarts=restarts)
    check_one_identity(hosts, 2, {0})
    assert [host.status for host in hosts] == [0, 0], hosts
