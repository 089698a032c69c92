"""The first minute of a stranger: the commands and the script of README.md, taken from it as they
stand there, in a fresh environment. They end with a verdict and a page."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from ..conftest import ROOT
from ..support.fresh_environment import TORCH, Environment, installed, with_torch_of_the_tests

pytestmark = [
    pytest.mark.long_file,
    pytest.mark.timeout(400),
    pytest.mark.skipif(TORCH is None, reason="torch is not installed"),
]

README = (ROOT / "README.md").read_text(encoding="utf-8")

TRAINING = (ROOT / "examples" / "slow_loader.py").read_text(encoding="utf-8")

PRELUDE = """
import torch
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(torch.ones(120, 16), batch_size=4)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", README)


def commands() -> list[list[str]]:
    """The commands of my_utils in README.md, without their comments, in their order."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines]
    return [words for words in found if words[:1] == ["my_utils"]]


def test_the_readme_has_these_commands() -> None:
    assert [words[1:2] for words in commands()] == [
        ["run"], ["why"], ["report"], ["live"], ["trace"], ["capture"], [],
    ]  # fmt: skip


def first_minute(environment: Environment, home: Path) -> None:
    home.mkdir()
    (home / "train.py").write_text(TRAINING)
    run, why, report, _, trace, _, plain = commands()

    trained = environment.run(run, home)
    assert trained.returncode == 0, trained.stderr
    assert "BOUND BY INPUT on rank 1" in trained.stderr

    said = environment.run(why, home)
    assert said.returncode == 3 and said.stdout.startswith("BOUND BY INPUT on rank 1"), said.stderr
    made = environment.run(report, home)
    assert made.returncode == 0, made.stderr
    page = (home / "report.html").read_text(encoding="utf-8")
    assert "BOUND BY INPUT on rank 1" in page and "<canvas" in page
    assert environment.run(trace, home).returncode == 0
    assert (home / "trace.pftrace").stat().st_size > 1000
    listed = environment.run(plain, home)
    for words in commands():
        assert "".join(words[1:2]) in listed.stdout + listed.stderr

    own_stages(environment, home)


def while_it_runs(environment: Environment, home: Path) -> None:
    """A longer training, which ends when the test has seen it."""
    run, _, _, live, _, capture, _ = commands()
    before = len(list((home / "logs").glob("train-*/rank_1.heartbeat.json")))
    longer_training = TRAINING.replace("STEPS = 60", "STEPS = 100_000")
    assert longer_training != TRAINING
    (home / "train.py").write_text(longer_training)
    longer = environment.start(run, home, {})
    try:
        while len(list((home / "logs").glob("train-*/rank_1.heartbeat.json"))) == before:
            assert longer.poll() is None
            time.sleep(0.1)
        shown = environment.start(live, home, {})
        assert shown.stdout is not None
        lines: list[str] = []
        while not any(re.match(r"[ !] 1 +running", line) for line in lines):
            lines.append(shown.stdout.readline())
            assert lines[-1], "the view has ended"
        shown.send_signal(signal.SIGINT)
        shown.communicate()
        assert shown.returncode == 0
        captured = environment.run(capture, home)
        assert captured.returncode == 0, captured.stdout + captured.stderr
        assert "rank 1: done" in captured.stdout
    finally:
        longer.send_signal(signal.SIGINT)
        try:
            longer.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            longer.kill()
            longer.communicate()


def own_stages(environment: Environment, home: Path) -> None:
    """The lines for a script, with what every training script has before them."""
    (script,) = blocks("python")
    (home / "own.py").write_text(PRELUDE + script)
    done = environment.run(["python", "own.py"], home)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    rows = (home / "logs" / "profile_rank_0.csv").read_text(encoding="utf-8")
    for stage in ("input", "forward", "backward", "optimizer"):
        assert rows.count(f",{stage},END,") == 30, stage


@pytest.mark.slow
def test_the_first_minute(tmp_path: Path) -> None:
    first_minute(with_torch_of_the_tests(tmp_path / "venv"), tmp_path / "home")


@pytest.mark.thorough
def test_while_it_runs(tmp_path: Path) -> None:
    environment, home = with_torch_of_the_tests(tmp_path / "venv"), tmp_path / "home"
    first_minute(environment, home)
    while_it_runs(environment, home)


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # downloads torch and compiles the C module, beside other tests
def test_the_first_minute_with_what_pip_installs(tmp_path: Path) -> None:
    environment, home = installed(tmp_path / "venv"), tmp_path / "home"
    first_minute(environment, home)
    while_it_runs(environment, home)
