"""What commands show on a terminal, and only there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..support.on_terminal import on_terminal, plain
from ..support.profile_rows import COLUMNS

pytestmark = pytest.mark.no_torch

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")
ROWS = "".join(
    f'{n}.0,,h,{n},a,START,,"node_id={n + 1}"\n{n}.5,,h,{n},a,END,500.000000,"node_id={n + 1}"\n'
    for n in range(1000)
)


@pytest.fixture
def csv_path(tmp_path: Path) -> Path:
    path = tmp_path / "profile_rank_0.csv"
    path.write_text(",".join(COLUMNS) + "\n" + ROWS)
    return path


def test_csv2trace_shows_a_bar_on_a_terminal(csv_path: Path) -> None:
    command = ["-m", "my_utils.csv2trace", str(csv_path), "-o", "trace.json"]
    status, shown = on_terminal(command, csv_path.parent)
    assert status == 0, shown
    assert "trace:" in plain(shown)
    assert "%" in plain(shown)
    assert COLOUR.search(shown)
    assert "1000 slices" in plain(shown)


def test_the_bar_has_no_colour_where_none_is_wanted(csv_path: Path) -> None:
    command = ["-m", "my_utils.csv2trace", str(csv_path), "-o", "trace.json"]
    status, shown = on_terminal(command, csv_path.parent, env={"NO_COLOR": "1"})
    assert status == 0, shown
    assert "%" in plain(shown)
    assert not COLOUR.search(shown)


def test_no_bar_and_no_rich_off_a_terminal(csv_path: Path, run_python: RunPython) -> None:
    program = f"""
import sys
from my_utils.csv2trace import main
status = main([{str(csv_path)!r}, "-o", "trace.json"])
print(status, "rich" in sys.modules)
"""
    done = run_python("-c", program)
    assert done.stdout == "0 False\n"
    assert done.stderr.splitlines()[-1] == "my_utils trace: 1000 slices of 2000 rows -> trace.json"
    assert "\x1b" not in done.stderr


def test_quiet_shows_nothing(csv_path: Path) -> None:
    command = ["-m", "my_utils.csv2trace", str(csv_path), "-o", "trace.json", "--quiet"]
    assert on_terminal(command, csv_path.parent) == (0, "")


RECORDINGS = """
import sys
from my_utils.tensors.diverge import main
from my_utils.tensors.recordings.recording import *
def run(digest, name):
    out = TraceTensorMeta("", (2,), "float32", "cpu", hash=digest, hash_kind="tensor")
    x = TraceTensorMeta("0", (2,), "float32", "cpu", hash="aa", hash_kind="tensor")
    event = TraceEvent(0, name, "Linear", end_index=0, root=0, inputs=[x], outputs=[out])
    return Recording(roots=[RootCall(0, name)], events=[event])
save_recording(run("0b", NAME), "a.pt")
save_recording(run("0c", NAME), "b.pt")
sys.argv[1:] = ["a.pt", "b.pt"]
status = main(sys.argv[1:])
print("rich" in sys.modules, file=sys.stderr)
"""


@pytest.mark.slow
def test_tables_of_commands_are_by_rich_on_a_terminal_alone(
    tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    program = RECORDINGS.replace("NAME", repr("\x1b[31m層"))
    _, shown = on_terminal(["-c", program], tmp_path, with_output=True)
    lines = shown.splitlines()
    start = next(n for n, line in enumerate(lines) if "how the difference" in line)
    head, row = lines[start : start + 2]
    assert "\x1b[1m" in head, "the head is bold"
    assert "\\x1b[31m層" in row and "\x1b" not in row, "a name does not steer the terminal"
    # Of the two columns that the character takes, its text has one.
    assert plain(head).index("inputs") == row.index("same") + 1
    done = run_python("-c", program, cwd=tmp_path)
    assert "\x1b[1m" not in done.stdout and done.stderr.endswith("False\n")
