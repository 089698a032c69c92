"""Every command of README.md and of docs/ runs, or the page says why not."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ROOT
from .blocks import SHELL, Block, blocks
from .folders import FOLDERS, planted

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

# How a command ends on these files where it is not with 0, by its first words.
STATUSES = {
    "my_utils capture": 1,  # the ranks of the run are not running
    "my_utils diff base/* --with new/* --gate": 4,  # these runs have no memory
    "my_utils diverge": 1,
    "my_utils live logs/train --hung 300 >": 0,  # of the whole line
    "my_utils live logs/train --hung": 1,
    "my_utils live logs/train --once": 1,
    "my_utils live logs --once": 1,
    "my_utils passport diff 'pp/trainer_*.json'": 1,
    "my_utils passport history": 1,
    "my_utils why trace.json": 4,
    "my_utils why": 3,
}
# Pages with a newcomer's first commands, which tests/run/test_the_readme.py runs too.
REPEATED = {"docs/for-assistants.md", "docs/index.md"}


def commands_of(code: str) -> list[str]:
    """Lines that end with a backslash go on; comments are left out."""
    lines = re.sub(r"\\\n\s*", "", code).splitlines()
    return [line for line in lines if shlex.split(line, comments=True)]


def marks_of(block: Block) -> list[pytest.MarkDecorator]:
    if "my_utils run" not in block.code:
        return []
    return [pytest.mark.thorough if block.page in REPEATED else pytest.mark.slow]


def cases() -> list[object]:
    return [
        pytest.param(block, id=str(block), marks=marks_of(block))
        for block in blocks(SHELL)
        if not block.why
    ]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The commands are those of this checkout, with the interpreter of the tests."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, module in (("my_utils", "-m my_utils"), ("python", ""),
                         ("musa-converter", "-m my_utils.musa.converter")):  # fmt: skip
        (folder / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (folder / name).chmod(0o755)
    return {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT),
            "PATH": f"{folder}:{os.environ['PATH']}"}  # fmt: skip


def status_of(command: str) -> int:
    plain = command.removeprefix("python -m ")
    return next((status for words, status in STATUSES.items() if plain.startswith(words)), 0)


@pytest.mark.parametrize("block", cases())
def test_the_commands_run(block: Block, environment: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    FOLDERS.get(block.page, planted)(home)
    for command in commands_of(block.code):
        watches = re.match(r"my_utils live (?!.*--once|.*--hung)", command)
        run = watch if watches else to_the_end
        status, said = run(command, environment, home)
        assert status == status_of(command), f"{command}\n{said}"


def to_the_end(command: str, environment: dict[str, str], home: Path) -> tuple[int, str]:
    done = subprocess.run(
        ["bash", "-c", command], cwd=home, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def watch(command: str, environment: dict[str, str], home: Path) -> tuple[int, str]:
    """Until it has shown something; then it is interrupted as with Ctrl-C."""
    shown = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=home, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert shown.stdout is not None
    said = shown.stdout.readline()
    shown.send_signal(signal.SIGINT)
    said += shown.communicate(timeout=60)[0]
    return shown.returncode, said
