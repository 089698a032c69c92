"""Who leaves files, and where: real ranks, restarts, workers and ends of any kind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython
from ..support.variants import gate_runs

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.long_file, pytest.mark.timeout(400)]

RUN = [sys.executable, "-m", "my_utils.run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]

TRAINING = """
import os, sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""

DDP = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(command: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def only_run(folder: Path) -> Path:
    """The folder of the only run in `logs`, to which `latest` points."""
    runs = [path for path in (folder / "logs").iterdir() if not path.is_symlink()]
    assert len(runs) == 1, runs
    assert (folder / "logs" / "latest").resolve() == runs[0].resolve()
    return runs[0]


def profiles(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("profile_rank_*.csv"))


def abouts(folder: Path) -> list[dict[str, str]]:
    """The rows `my_utils.run` of all ranks."""
    found = []
    for path in sorted(folder.glob("profile_rank_*.csv")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if ",my_utils.run,INSTANT," in line:
                pairs = re.findall(r"(\w+)=([^,\"]*)", line)
                found.append(dict(pairs))
    return found


@pytest.mark.slow
def test_a_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING + "for _ in range(12): step()\nprint('trained')")
    done = run([*RUN, "train.py", "--lr", "0.1"], tmp_path)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    folder = only_run(tmp_path)
    assert re.fullmatch(r"train-\d{8}-\d{6}", folder.name)
    assert f"files: logs/{folder.name}" in done.stderr
    assert len(done.stderr.splitlines()) <= 12
    assert profiles(folder) == ["profile_rank_0.csv"]
    about = json.loads((folder / "run.json").read_text())
    assert about["script"] == "train.py" and about["command"][-3:] == ["train.py", "--lr", "0.1"]
    assert about["world_size"] == 1 and about["version"] == 1
    (row,) = abouts(folder)
    assert row["run_id"] == about["run_id"] and row["torch"] == about["torch"]
    assert (row["device"], row["attempt"]) == ("cpu", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", gate_runs(["before the import of torch"], ["before the import of torch", "after it"])
)
def test_a_script_that_clears_its_environment(place: str, tmp_path: Path) -> None:
    parts = ["import os; os.environ.clear()\n", TRAINING]
    script = "".join(reversed(parts) if place == "after it" else parts)
    (tmp_path / "train.py").write_text(f"{script}for _ in range(12): step()\n")
    done = run([*RUN, "-o", "out", "train.py"], tmp_path)
    assert profiles(tmp_path / "out") == ["profile_rank_0.csv"]
    assert not (tmp_path / "logs").exists()
    assert done.stderr.count("files: out\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", gate_runs(["in rank"], ["parent", "in rank"]))
def test_torchrun(form: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DDP)
    launcher = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    if form == "parent":
        command = [*RUN, "--", *launcher, "train.py"]
    else:
        command = [*launcher, "-m", "my_utils.run", "train.py"]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    assert profiles(folder) == ["profile_rank_0.csv", "profile_rank_1.csv"]
    assert [row["attempt"] for row in abouts(folder)] == ["1", "1"]
    assert json.loads((folder / "run.json").read_text())["world_size"] == 2
    assert done.stderr.count(f"files: logs/{folder.name}") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["parent", "in rank"])
def test_two_nodes_take_one_folder(form: str, tmp_path: Path) -> None:
    """Two agents, each in a separate folder, as on hosts whose working directories differ."""
    nodes = []
    for number in range(2):
        node = tmp_path / f"node{number}"
        node.mkdir()
        (node / "train.py").write_text(DDP)
        launcher = [
            *TORCHRUN, "--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "1",
            "--master-addr", "127.0.0.1", "--master-port", "29677",
        ]  # fmt: skip
        if form == "parent":
            command = [*RUN, "--", *launcher, "train.py"]
        else:
            command = [*launcher, "-m", "my_utils.run", "train.py"]
        nodes.append(
            subprocess.Popen(
                command,
                cwd=node,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    said = [node.communicate(timeout=300)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    made = [path for path in tmp_path.glob("node*/logs/*") if not path.is_symlink()]
    assert len(made) == 1
    assert profiles(made[0]) == ["profile_rank_0.csv", "profile_rank_1.csv"]
    assert len({row["run_id"] for row in abouts(made[0])}) == 1
    assert "files: " in said[0] and made[0].name in said[0]


@pytest.mark.thorough
def test_a_restart_is_the_next_attempt(tmp_path: Path) -> None:
    """Rank 1 dies before its first step in attempt 1, and counts like the others in attempt 2."""
    (tmp_path / "train.py").write_text(
        TRAINING
        + "first, rank = os.environ['TORCHELASTIC_RESTART_COUNT'] == '0', os.environ['RANK']\n"
        "if first and rank == '1':\n"
        "    import time\n"
        "    while not os.path.exists('trained'): time.sleep(0.01)\n"
        "    os._exit(3)\n"
        "for _ in range(12): step()\n"
        "if first:\n"
        "    open('trained', 'w').close()\n"
        "    import signal; signal.pause()\n"
    )
    launcher = [*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", "29678"]
    done = run([*launcher, "-m", "my_utils.run", "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    assert profiles(folder) == ["profile_rank_0.csv", "profile_rank_1.csv"]
    assert [row["attempt"] for row in abouts(folder)] == ["1", "2", "2"]
    processes = re.findall(r"rank=(\d),world_size=2,attempt=(\d)", "".join(
        path.read_text() for path in sorted(folder.glob("profile_rank_*.csv"))
    ))  # fmt: skip
    assert processes == [("0", "1"), ("0", "2"), ("1", "2")]


HELPERS = """
import multiprocessing, subprocess, sys, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.ones(4) * index

def helper():
    import torch
    torch.ones(2).sum()

if __name__ == "__main__":
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = sys.argv[1]
    for _ in range(2):
        loader = DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context=method)
        for batch in loader:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    other = multiprocessing.get_context(method).Process(target=helper)
    other.start(); other.join()
    subprocess.run([sys.executable, "-c", "import torch; torch.ones(2).sum()"], check=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", gate_runs(["fork"], ["fork", "spawn", "forkserver"]))
def test_workers_and_helpers_leave_no_files(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HELPERS)
    done = run([*RUN, "train.py", method], tmp_path)
    assert done.returncode == 0, done.stderr
    assert profiles(only_run(tmp_path)) == ["profile_rank_0.csv"]


SPAWNED = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29679")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    END

if __name__ == "__main__":
    START
"""

STARTS = {
    "spawn": "mp.spawn(train, nprocs=2)",
    "fork": "mp.start_processes(train, nprocs=2, start_method='fork')",
}


@pytest.mark.thorough
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("door", ["run", "auto"])
def test_ranks_that_the_script_starts(start: str, door: str, tmp_path: Path) -> None:
    """No launcher sets RANK for them, and forked ones end without atexit."""
    program = SPAWNED.replace("START", STARTS[start]).replace("END", "os._exit(0)")
    if door == "auto":
        program = "import my_utils\nmy_utils.auto()\n" + program
    (tmp_path / "train.py").write_text(program)
    done = run([*RUN, "train.py"] if door == "run" else [sys.executable, "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    assert profiles(folder) == ["profile_rank_0.csv", "profile_rank_1.csv"]
    worlds = re.findall(r"world_size=(\d)", "".join(
        (folder / name).read_text() for name in profiles(folder)
    ))  # fmt: skip
    assert worlds == ["2", "2"]


ACCELERATED = """
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 4)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(12):
    optimizer.zero_grad()
    accelerator.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
"""


@pytest.mark.thorough
def test_accelerate_launch(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    (tmp_path / "train.py").write_text(ACCELERATED)
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_machines", "1"]
    plain = ["--num_processes", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = run([*RUN, "--", *launcher, *plain, "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    folder = only_run(tmp_path)
    assert profiles(folder) == ["profile_rank_0.csv"]
    assert folder.name.startswith("train-")


ENDS = {
    "os._exit": ("os._exit(7)", 7),
    "exception": ("raise ValueError('mine')", 1),
    "SIGTERM": ("os.kill(os.getpid(), 15)", -signal.SIGTERM),
    "SIGKILL": ("os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "SIGINT": ("os.kill(os.getpid(), 2); step()", -signal.SIGINT),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", gate_runs(["SIGKILL"], ENDS))
def test_the_end_is_said_whatever_it_is(end: str, tmp_path: Path) -> None:
    statement, status = ENDS[end]
    (tmp_path / "train.py").write_text(TRAINING + f"for _ in range(12): step()\n{statement}\n")
    done = run([*RUN, "train.py"], tmp_path)
    assert done.returncode == status
    folder = only_run(tmp_path)
    assert f"files: logs/{folder.name}" in done.stderr
    assert abouts(folder) or any(folder.glob("*.journal"))


@pytest.mark.slow
def test_a_setup_of_the_script_wins(tmp_path: Path) -> None:
    early = "from my_utils import GlobalLogger\nGlobalLogger().setup('mine', console=False)\n"
    (tmp_path / "train.py").write_text(early + TRAINING + "for _ in range(12): step()\n")
    done = run([*RUN, "train.py"], tmp_path)
    assert profiles(tmp_path / "mine") == ["profile_rank_0.csv"], done.stderr
    assert "files: mine (the script's own setup chose it)" in done.stderr
    assert not list((tmp_path / "logs").iterdir())


@pytest.mark.slow
def test_a_fork_that_trains_is_no_setup_of_the_script(tmp_path: Path) -> None:
    forks = (
        "step()\nchild = os.fork()\nfor _ in range(12): step()\n"
        "if child == 0: os._exit(0)\nos.wait()\n"
    )
    (tmp_path / "train.py").write_text(TRAINING + forks)
    done = run([*RUN, "train.py"], tmp_path)
    assert profiles(only_run(tmp_path)) == ["profile_rank_0.csv", "profile_rank_0.w1.csv"]
    assert done.stderr.endswith(f"files: logs/{only_run(tmp_path).name}\n")


@pytest.mark.thorough
def test_a_late_setup_of_the_script_wins_from_then_on(tmp_path: Path) -> None:
    late = (
        "step()\nfrom my_utils import GlobalLogger\n"
        "GlobalLogger().setup('mine', console=False)\nfor _ in range(12): step()\n"
    )
    (tmp_path / "train.py").write_text(TRAINING + late)
    done = run([*RUN, "train.py"], tmp_path)
    folder = only_run(tmp_path)
    assert profiles(folder) == profiles(tmp_path / "mine") == ["profile_rank_0.csv"]
    about = json.loads((folder / "run.json").read_text())
    assert about["moved_to"] == str(tmp_path / "mine")
    assert "files: mine (the script's own setup chose it)" in done.stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_text_goes_where_it_went(run_python: RunPython, tmp_path: Path) -> None:
    """Messages of the script's logger are on stderr, bare and recorded."""
    program = TRAINING + (
        "import logging, my_utils\nlog = my_utils.get_global_logger()\n"
        "log.handlers[0].setFormatter(logging.Formatter('%(message)s'))\nlog.info('before')\n"
        "for _ in range(12): step()\nlog.info('after')\nlog.debug('never')\n"
        "print(log.propagate, log.level)\n"
    )
    (tmp_path / "train.py").write_text(program)
    bare = run_python("train.py")
    done = run_python("-m", "my_utils.run", "--quiet", "train.py")
    date = re.compile(r"^[-\d]{10} [\d:,]+ INFO ", re.MULTILINE)
    assert (date.sub("", done.stderr), done.stdout) == (bare.stderr, bare.stdout)
    assert date.sub("", done.stderr) == "before\nafter\n"
