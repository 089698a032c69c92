"""The folders of two hosts without a common disk, of a run that is started twice, are one run.
Their clocks are five hours apart, or their ranks change places at the restart."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.clock_shim import clock_shim
from ..support.ranks import free_port
from ..support.variants import gate_runs
from .test_several_hosts import outputs_of, run_of, start_on_host

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.long_file, pytest.mark.timeout(400)]

STEPS = 30
APART_S = 5 * 3600
CASES = ("clocks apart", "ranks change places")

TRAIN = f"""
import ctypes, os, time, torch, torch.distributed as dist
if os.environ["HOST"] == "1":
    ctypes.CDLL(None).set_clock(ctypes.c_longlong(int(os.environ["APART_S"]) * 10**9))
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({STEPS}):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    time.sleep(0.05 if os.environ["HOST"] == "1" else 0.005)
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module", params=gate_runs(CASES[:1], CASES))
def hosts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with those of both hosts."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    swaps = int(request.param == CASES[1])
    shim, ports = clock_shim(folder), [free_port() for _ in range(2)]
    processes = []
    for host in range(2):
        attempts = [
            f"env LD_PRELOAD={shim} HOST={host} APART_S={0 if swaps else APART_S} WORLD_SIZE=2 "
            f"RANK={(host + swaps * attempt) % 2} TORCHELASTIC_RESTART_COUNT={attempt} "
            f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port} {sys.executable} {folder}/train.py"
            for attempt, port in enumerate(ports)
        ]
        command = ["sh", "-ec", "\n".join(attempts)]
        processes.append(start_on_host(folder, host, "separate", command))
    outputs = outputs_of(processes)
    assert [process.returncode for process in processes] == [0, 0], outputs
    both = folder / "both"
    for host in range(2):
        logs = folder / f"of{host}" / "logs"
        (found,) = (one for one in logs.iterdir() if not one.is_symlink())
        shutil.copytree(found, both / f"node{host}")
    return both


def test_the_case_is_what_it_is_called(hosts: Path) -> None:
    (first, ids), (second, other_ids) = (run_of(hosts / f"node{host}") for host in range(2))
    assert ids == other_ids == {first["run_id"]} == {second["run_id"]}
    begins = [
        float(csv.read_text().splitlines()[1].split(",")[0])
        for csv in sorted(hosts.glob("*/profile_rank_*.csv"))
    ]
    if len(begins) == 2:
        assert abs(begins[1] - begins[0]) > APART_S - 600
    else:
        assert len(begins) == 4  # of both ranks on both hosts


@pytest.mark.parametrize(
    "form",
    [
        "each",
        pytest.param("in the other order", marks=pytest.mark.thorough),
        pytest.param("the folder of both", marks=pytest.mark.thorough),
    ],
)
def test_why_judges_both_attempts_of_both_ranks(
    hosts: Path, form: str, tmp_path: Path, run_python: RunPython
) -> None:
    named = [hosts / "node0", hosts / "node1"]
    paths = {"each": named, "in the other order": named[::-1]}.get(form, [hosts])
    done = run_python("-m", "my_utils", "why", *map(str, paths), "-o", str(tmp_path / "v.json"))
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert (verdict["judged_ranks"], verdict["attempts"]) == (2, 2), done.stdout
    assert verdict["last_step"] == 2 * STEPS - 1
    assert verdict["notes"] == []
    assert verdict["step_ms"] < 200.0  # no step takes the hours between the clocks
    assert max(verdict["ledger"]["wall_ns"]) * 1e-9 < APART_S / 2
    assert verdict["ledger"]["ranks"] == [0, 1]


def test_the_others_read_both(hosts: Path, tmp_path: Path, run_python: RunPython) -> None:
    report = json.loads(run_python("-m", "my_utils", "report", str(hosts), "--json").stdout)
    assert (report["run"]["ranks"], report["run"]["steps"]) == (2, 2 * STEPS)
    live = json.loads(run_python("-m", "my_utils", "live", str(hosts), "--once", "--json").stdout)
    assert [(one["rank"], one["state"]) for one in live["ranks"]] == [(0, "closed"), (1, "closed")]
    assert live["missing_ranks"] == [] and live["suspects"] == []
    # What a host was sent by the other one is not read twice.
    alone = [tmp_path / "node0", tmp_path / "node1"]
    for place in alone:
        shutil.copytree(hosts / place.name, place, ignore=shutil.ignore_patterns("hosts"))
    slices = []
    for place in [*alone, hosts]:
        done = run_python(
            "-m", "my_utils", "trace", str(place), "-o", f"{place}.trace.json", "--json"
        )
        slices.append(json.loads(done.stdout)["slices"])
    assert slices[2] == slices[0] + slices[1] > 0


def test_diff_takes_the_folder_as_one_run(
    hosts: Path, tmp_path: Path, run_python: RunPython
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(hosts, copy)
    done = run_python("-m", "my_utils", "diff", str(hosts), str(copy), "--json")
    difference = json.loads(done.stdout)
    assert (difference["a"], difference["b"]) == ([str(hosts)], [str(copy)])
    assert difference["ranks"] == [2, 2]


def test_a_copy_of_a_host_adds_nothing(hosts: Path, tmp_path: Path, run_python: RunPython) -> None:
    copies = tmp_path / "copies"
    for name in ("node0", "node1"):
        shutil.copytree(hosts / name, copies / name)
    shutil.copytree(hosts / "node1", copies / "node1 again")
    done = run_python("-m", "my_utils", "why", str(copies), "-o", str(tmp_path / "v.json"))
    verdict = json.loads((tmp_path / "v.json").read_text())
    assert verdict["last_step"] == 2 * STEPS - 1, done.stdout
    assert any("is left out" in note for note in verdict["notes"])
