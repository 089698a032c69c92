"""Completion in each shell that is there."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from my_utils.cli.table import COMMANDS

from ..conftest import RunPython

# What is typed, and what completes it.
TYPED = [
    ("my_utils re", {"report"}),
    ("my_utils report --ra", {"--ranks"}),
    ("my_utils port ", {"cuda", "scripts"}),
    ("my_utils passport diff --ig", {"--ignore"}),
    ("my_utils port cuda --platform m", {"musa"}),
    ("my_utils live fold", {"folder"}),
]

BASH = """
source ./script
complete_it() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
    COMPREPLY=(); _shtab_my_utils; printf '%s\\n' "${COMPREPLY[@]}"
}
"""


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.fixture
def script(tmp_path: Path, run_python: RunPython, request: pytest.FixtureRequest) -> Path:
    pytest.importorskip("shtab", reason="shtab is not installed")
    needs(request.param)
    done = run_python("-m", "my_utils", "completion", request.param)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "script").write_text(done.stdout)
    (tmp_path / "folder").mkdir()
    return tmp_path


def output_of(folder: Path, *command: str) -> str:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True,
        env={**os.environ, "HOME": str(folder)},
    ).stdout  # fmt: skip


@pytest.mark.parametrize("script", ["bash"], indirect=True)
@pytest.mark.parametrize(("typed", "wanted"), TYPED)
def test_bash(typed: str, wanted: set[str], script: Path) -> None:
    words = " ".join(f"'{word}'" for word in typed.split(" "))
    assert set(output_of(script, "bash", "-c", f"{BASH}\ncomplete_it {words}").split()) == wanted


@pytest.mark.parametrize("script", ["fish"], indirect=True)
@pytest.mark.parametrize(("typed", "wanted"), TYPED)
def test_fish(typed: str, wanted: set[str], script: Path) -> None:
    lines = output_of(script, "fish", "-c", f"source ./script; complete -C '{typed}'").splitlines()
    assert {line.split("\t")[0].rstrip("/") for line in lines} == wanted


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("my_utils repo\t", "my_utils report"),
        pytest.param("my_utils report --ran\t", "my_utils report --ranks", marks=pytest.mark.slow),
        pytest.param("my_utils port scr\t", "my_utils port scripts", marks=pytest.mark.slow),
        pytest.param("my_utils live fold\t", "my_utils live folder", marks=pytest.mark.slow),
    ],
)
def test_zsh(typed: str, completed: str, script: Path) -> None:
    """As a person does it: Tab, then to the beginning of the line, and echo before it."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(script)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "HOME": str(script)})
    setup = 'autoload -U compinit; compinit -u -D; eval "$(<./script)"\n'
    keys = f"{setup}{typed}\x01print -r 'typed:' \nprint -r the''-end\n"
    os.write(terminal, keys.encode())
    shown = b""
    while b"\nthe-end" not in shown:
        shown += os.read(terminal, 65536)
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    lines = [line.strip().rstrip("/") for line in shown.decode().splitlines()]
    assert f"typed: {completed}" in lines


def test_every_command_is_in_it(run_python: RunPython) -> None:
    pytest.importorskip("shtab", reason="shtab is not installed")
    text = run_python("-m", "my_utils", "completion", "bash").stdout
    for command in COMMANDS:
        assert command.words[-1] in text


def test_without_shtab_it_names_the_extra(run_python: RunPython) -> None:
    program = (
        "import sys; sys.modules['shtab'] = None\n"
        "from my_utils.cli.command import main; sys.exit(main(['completion', 'zsh']))"
    )
    done = run_python("-c", program)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install shtab" in done.stderr
