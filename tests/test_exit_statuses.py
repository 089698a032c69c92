"""The table of docs/exit-statuses.md is that of the commands."""

from __future__ import annotations

import sys

import pytest

from my_utils.cli.command import load
from my_utils.cli.table import COMMANDS, Command
from tools.exit_statuses import PAGE, page

from .conftest import RunPython

pytestmark = pytest.mark.no_torch


def test_the_committed_page_is_that_of_the_code() -> None:
    """If it is not: `python -m tools.exit_statuses`."""
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command.words))
def test_the_help_has_the_same(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    parser = load(command).command_parser()
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for number, text in parser.statuses.items():
        assert f"{number} {text}" in shown


def test_the_page_lists_other_numbers_in_its_text() -> None:
    statuses = {number for one in COMMANDS for number in load(one).command_parser().statuses}
    text = PAGE.read_text(encoding="utf-8")
    assert [number for number in statuses - set(range(5)) if str(number) not in text] == []


@pytest.mark.parametrize("words", ["env", "live --once .", "why missing"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_a_closed_stream_changes_no_status(run_python: RunPython, words: str, closed: str) -> None:
    status = run_python("-m", "my_utils", *words.split()).returncode
    script = f'import os; os.execlp("sh", "sh", "-c", "$0 -m my_utils {words} {closed}", PYTHON)'
    done = run_python("-c", f"PYTHON = {sys.executable!r}\n{script}", timeout=60)
    assert done.returncode == status, done.stderr
