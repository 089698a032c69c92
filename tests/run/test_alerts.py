"""`my_utils run --alert` with real trainings: a slow rank, a death, a hang, failing receivers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..support.inbox import Inbox, open_inbox
from ..support.live_ranks import wait_until
from ..support.ranks import free_port

pytest.importorskip("torch", reason="torch is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.long_file, pytest.mark.timeout(400)]

START_S = 250.0

# Rank 1 is slow while the file `slow` is there, stands while `stand` is there, dies by `die`.
TRAIN = """
import os, signal, time, torch, torch.distributed as dist
from pathlib import Path
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(4000 * 4, 16))
for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
    ends = torch.tensor(float(Path("end").exists()))
    dist.all_reduce(ends)
    if ends:
        break
    optimizer.zero_grad()
    loss = model(batch).sum()
    time.sleep(0.02)
    if rank == 1:
        while Path("stand").exists():
            time.sleep(0.05)
        if Path("slow").exists():
            time.sleep(0.08)
        if Path("die").exists():
            os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
"""


class Run:
    """A training of two ranks in a folder, watched for `target`."""

    def __init__(self, folder: Path, target: str, **variables: str) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")
        words = ["-m", "my_utils", "run", "--alert", target, "--quiet", "-o", "alice/train-7", "--"]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        self.process = subprocess.Popen(
            [sys.executable, *words, sys.executable, *launch, "train.py", "--token=hunter2"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
                 "GLOO_SOCKET_IFNAME": "lo", "API_KEY": "hunter3", **variables},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def put(self, name: str) -> None:
        (self.folder / name).touch()

    def take(self, name: str) -> None:
        (self.folder / name).unlink()

    def end(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=120)
        return self.process.returncode, err


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    with open_inbox() as inbox:
        yield inbox


@pytest.mark.thorough
def test_a_slow_rank_and_its_death(inbox: Inbox, tmp_path: Path) -> None:
    run = Run(tmp_path, inbox.address)
    wait_until((tmp_path / "alice/train-7/profile_rank_1.csv").exists, START_S)
    run.put("slow")
    wait_until(lambda: ("held up", "began", [1]) in inbox.events(), START_S)
    run.put("die")
    status, err = run.end()
    assert status == 1
    assert "took no message" not in err
    last = inbox.messages()[-1]
    assert (last["kind"], last["event"], last["ranks"]) == ("gone", "began", [1])
    assert last["text"].splitlines()[:2] == [
        "train-7: the run ended with exit status 1", "rank 1 by SIGKILL",
    ]  # fmt: skip
    began = next(one for one in inbox.messages() if one["kind"] == "held up")
    assert began["run"] == "train-7" and len(began["run_id"]) == 32
    for message in inbox.messages():
        for secret in ("hunter", "alice", str(tmp_path), "SECRET", "train.py"):
            assert secret not in str(message)


@pytest.mark.thorough
def test_a_hang_that_ends(inbox: Inbox, tmp_path: Path) -> None:
    run = Run(tmp_path, inbox.address, MY_UTILS_RUN_HUNG="5")
    wait_until((tmp_path / "alice/train-7/profile_rank_1.csv").exists, START_S)
    run.put("stand")
    wait_until(lambda: ("hang", "began", [1]) in inbox.events(), START_S)
    (hang,) = (one for one in inbox.messages() if one["kind"] == "hang")
    assert hang["text"].startswith("train-7: hangs since ")
    assert "rank 1 on " in hang["text"].splitlines()[1]
    assert str(tmp_path) not in hang["text"]
    run.take("stand")
    run.put("end")
    assert run.end() == (0, "")
    assert ("hang", "ended", [1]) in inbox.events()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a dead port", "one that never answers"])
def test_a_receiver_that_fails_costs_one_warning(name: str, inbox: Inbox, tmp_path: Path) -> None:
    inbox.answers.clear()
    dead = f"http://127.0.0.1:{free_port()}/SECRET"
    run = Run(tmp_path, dead if name == "a dead port" else inbox.address)
    wait_until((tmp_path / "alice/train-7/profile_rank_1.csv").exists, START_S)
    run.put("die")
    status, err = run.end()
    assert status == 1
    said = [line for line in err.splitlines() if line.startswith("my_utils run:")]
    if name == "a dead port":
        assert len(said) == 1 and "Connection refused" in said[0] and "SECRET" not in said[0]
    else:  # it has five seconds at the end
        assert said == [] and len(inbox.bodies) == 1


def test_a_run_that_fails_before_its_first_step_is_told(inbox: Inbox, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "--alert", inbox.address, "-o", "x", "train.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 3
    (message,) = inbox.messages()
    assert message["text"].startswith("x: the run ended with exit status 3")


def test_a_run_that_is_stopped_by_its_user_is_not(inbox: Inbox, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import time; open('there', 'w').close()\nwhile True: time.sleep(1)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "my_utils", "run", "--alert", inbox.address, "train.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until((tmp_path / "there").exists)
    process.terminate()
    assert process.wait(60) == -15
    assert inbox.messages() == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--alert", "http://"], "names a host"),
        (["--alert-goodput", "0.5"], "needs --alert"),
        (["--alert", "true", "--alert-goodput", "90"], "a share from 0 to 1"),
    ],
)
def test_wrong_options(options: list[str], reason: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", *options, "train.py"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2 and reason in done.stderr


def test_a_rank_refuses_what_its_launcher_must_do(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('ran')")
    done = subprocess.run(
        [sys.executable, "-m", "my_utils", "run", "--alert", "true", "train.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1"},
    )  # fmt: skip
    assert done.returncode == 2 and "put --alert before the launcher" in done.stderr
