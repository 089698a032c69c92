"""Bad input: the exact message, and that the good part is kept."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from ..conftest import ROOT, RunPython
from ..support.run_csv import HEADER as HEADER_TEXT

pytestmark = pytest.mark.c_code

HEADER = HEADER_TEXT.encode()


def row(at: float, kind: str, node: int, name: str = "forward", step: int = 0) -> bytes:
    length = "500000.000000" if kind == "END" else ""
    return (
        f"175000000{at:.9f},2025-06-15 15:06:40.000000,node-0,{step},{name},{kind},{length},"
        f'"node_id={node},parent_id=0"\n'
    ).encode()


GOOD = row(1, "START", 1) + row(2, "END", 1)


def convert(
    run_python: RunPython, path: Path, *arguments: str
) -> tuple[int, list[str], list[dict[str, object]]]:
    """Exit status, lines on standard error, the stages in the trace."""
    out = path.parent / "out.json"
    result = run_python("-m", "my_utils.csv2trace", str(path), "-o", str(out), *arguments)
    assert result.stdout == ""
    events = json.loads(out.read_bytes())["traceEvents"] if out.exists() else []
    stages = [event for event in events if event["ph"] in "XB" and "args" in event]
    return result.returncode, result.stderr.splitlines(), stages


# What the file holds, the exit status, what follows "my_utils trace: " (with {path}), the stages.
TABLE: dict[str, tuple[bytes, int, str, list[str]]] = {
    "missing column": (
        HEADER.replace(b"step,", b"") + GOOD,
        1,
        "error: {path}: the header has no column 'step'",
        [],
    ),
    "empty file": (b"", 1, "error: {path}: the file is empty", []),
    "header only": (HEADER, 1, "error: the input holds no rows", []),
    "time is not a number": (
        HEADER + row(3, "START", 2).replace(b"1750000003", b"yesterday") + GOOD + GOOD,
        3,
        "warning: {path}:2: timestamp_unix is not a decimal number: 'yesterday.000000000';"
        " row skipped",
        ["forward", "forward"],
    ),
    "time with an exponent": (
        HEADER + GOOD + row(3, "START", 2).replace(b"1750000003.000000000", b"1.75e9"),
        3,
        "warning: {path}:4: timestamp_unix is not a decimal number: '1.75e9'; row skipped",
        ["forward"],
    ),
    "step is not a number": (
        HEADER + GOOD + row(3, "START", 2).replace(b",0,", b",1.5,")
        + row(4, "END", 2).replace(b",0,", b",x,"),
        3,
        "warning: {path}:4: step is not an integer: '1.5'; row skipped (2 rows)",
        ["forward"],
    ),
    "unknown event type": (
        HEADER + GOOD + row(3, "BEGIN", 2),
        3,
        "warning: {path}:4: event_type is unknown: 'BEGIN'; row skipped",
        ["forward"],
    ),
    "END row before START row": (
        HEADER + row(2, "END", 1) + row(1, "START", 1),
        0,
        "",
        ["forward"],
    ),
    "END before START in time": (
        HEADER + row(2, "START", 1) + row(1, "END", 1),
        0,
        "warning: {path}:3: END of 'forward' is 1000000000 ns before its START in time;"
        " drawn from its START, by its duration_ms",
        ["forward"],
    ),
    "END before START in time, and no duration": (
        HEADER + row(2, "START", 1) + row(1, "END", 1).replace(b"500000.000000", b""),
        0,
        "warning: {path}:3: END of 'forward' is 1000000000 ns before its START in time;"
        " drawn without length",
        ["forward"],
    ),
    "a duration beyond all bounds": (
        HEADER + row(2, "START", 1)
        + row(1, "END", 1).replace(b"500000.000000", b"9000000000000.0"),
        0,
        "warning: {path}:3: END of 'forward' is 1000000000 ns before its START in time;"
        " drawn without length",
        ["forward"],
    ),
    "no row can be used": (
        HEADER + row(1, "BEGIN", 1) + row(2, "BEGIN", 1),
        1,
        "error: {path}:2: event_type is unknown: 'BEGIN'; row skipped (2 rows)",
        [],
    ),
    "control characters in a name": (
        HEADER + GOOD + row(3, "START", 2, "\x1b[2Jhung"),
        0,
        "warning: {path}:4: '\\x1b[2Jhung' has no END; shown as open",
        ["forward", "\x1b[2Jhung"],
    ),
    "no readable_time and no metadata": (
        b"timestamp_unix,machine_id,step,event_name,event_type,duration_ms\n"
        b"1.5,h,0,forward,START,\n2.5,h,0,forward,END,1000.0\n",
        0,
        "",
        ["forward"],
    ),
    "END without START": (
        HEADER + row(2, "END", 1),
        0,
        "warning: {path}:2: END of 'forward' has no START; drawn by its duration_ms",
        ["forward"],
    ),
    "END without START and length": (
        HEADER + GOOD + row(3, "END", 2).replace(b"500000.000000", b""),
        3,
        "warning: {path}:4: END of 'forward' has no START and no duration_ms; left out",
        ["forward"],
    ),
    "START without END": (
        HEADER + GOOD + row(3, "START", 2, "hung"),
        0,
        "warning: {path}:4: 'hung' has no END; shown as open",
        ["forward", "hung"],
    ),
    "NUL bytes before a row": (
        HEADER + bytes(5000) + GOOD,
        0,
        "warning: {path}:2: NUL bytes stand before the row; left out",
        ["forward"],
    ),
    "NUL byte in a name": (
        HEADER + GOOD.replace(b"forward", b"for\0ward"),
        0,
        "",
        ["for\0ward"],
    ),
    "100 MB line": (
        HEADER + b"x" * 100_000_000 + b"\n" + GOOD,
        3,
        "warning: {path}:2: the row is longer than 1048576 bytes; skipped",
        ["forward"],
    ),
    "invalid UTF-8": (
        HEADER + GOOD.replace(b"forward", b"\xffward\xc3"),
        0,
        "warning: {path}:2: invalid UTF-8; the bytes are written as \\xNN (2 rows)",
        ["\\xffward\\xc3"],
    ),
    "cut in quotes": (
        HEADER + GOOD + row(3, "START", 2)[:-5],
        3,
        "warning: {path}:4: the row is cut off; skipped",
        ["forward"],
    ),
    "cut before the metadata": (
        HEADER + GOOD + row(3, "START", 2)[:40],
        3,
        "warning: {path}:4: the row is cut off; skipped",
        ["forward"],
    ),
    "torn row in the middle": (
        HEADER + row(1, "START", 1)[:-9] + b"\n" + GOOD,
        3,
        "warning: {path}:2: the row is cut off; skipped",
        ["forward"],
    ),
    "too few columns": (
        HEADER + b"1750000000.5,,node-0\n" + GOOD,
        3,
        "warning: {path}:2: the row has 3 columns where the header has 8; skipped",
        ["forward"],
    ),
    "CRLF": ((HEADER + GOOD).replace(b"\n", b"\r\n"), 0, "", ["forward"]),
    "BOM": (b"\xef\xbb\xbf" + HEADER + GOOD, 0, "", ["forward"]),
    "no line end at the end": ((HEADER + GOOD)[:-1], 0, "", ["forward"]),
    "blank lines": (HEADER + GOOD.replace(b"\n", b"\n\n"), 0, "", ["forward"]),
    "duplicate node ids": (
        HEADER + row(1, "START", 1, "a") + row(2, "START", 1, "b") + row(3, "END", 1, "b")
        + row(4, "END", 1, "a"),
        0,
        "warning: {path}:3: node_id 1 is open already; "
        "an END goes to the latest START of its thread",
        ["b", "a"],
    ),
    "rows of no step": (
        HEADER + row(1, "START", 1, step=7) + row(2, "END", 1, step=7)
        + row(3, "START", 2, step=-1) + row(4, "END", 2, step=-1),
        0,
        "",
        ["forward", "forward"],
    ),
    "steps that go backwards": (
        HEADER + row(1, "START", 1, step=7) + row(2, "END", 1, step=7)
        + row(3, "START", 2, step=3) + row(4, "END", 2, step=3),
        0,
        "warning: {path}:4: step goes back from 7 to 3",
        ["forward", "forward"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_bad_input(case: str, tmp_path: Path, run_python: RunPython) -> None:
    content, status, message, stages = TABLE[case]
    path = tmp_path / "profile_rank_0.csv"
    path.write_bytes(content)
    code, lines, found = convert(run_python, path, "--quiet")
    assert lines == ([f"my_utils trace: {message.format(path=path)}"] if message else [])
    assert code == status
    assert [event["name"] for event in found] == stages


def test_a_directory_with_none(tmp_path: Path, run_python: RunPython) -> None:
    code, lines, _ = convert(run_python, tmp_path / ".", "--quiet")
    assert lines == [
        f"my_utils trace: error: {tmp_path}: the directory holds no profile_rank_*.csv"
    ]
    assert code == 1


def test_a_name_without_a_possible_rank(tmp_path: Path, run_python: RunPython) -> None:
    path = tmp_path / f"profile_rank_{10**30}.csv"
    for file in (path, tmp_path / "profile_rank_0.csv"):
        file.write_bytes(HEADER + GOOD)
    code, lines, found = convert(run_python, tmp_path, "--quiet")
    assert lines == [f"my_utils trace: warning: {path} belongs to no rank and is left out"]
    assert (code, [event["name"] for event in found]) == (3, ["forward"])
    code, lines, found = convert(run_python, path, "--rank", "7", "--quiet")
    assert (code, lines) == (0, [])
    assert [event["name"] for event in found] == ["forward"]


def test_links_in_a_circle_are_left_out(tmp_path: Path, run_python: RunPython) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "profile_rank_0.csv").write_bytes(HEADER + GOOD)
    circle = logs / "profile_rank_1.csv"
    circle.symlink_to(circle.name)
    code, lines, found = convert(run_python, logs, "--quiet")
    assert lines == [f"my_utils trace: warning: {circle}: no regular file"]
    assert (code, [event["name"] for event in found]) == (3, ["forward"])


def test_strict_writes_nothing(tmp_path: Path, run_python: RunPython) -> None:
    path = tmp_path / "profile_rank_0.csv"
    path.write_bytes(HEADER + GOOD + row(3, "BEGIN", 2))
    code, lines, found = convert(run_python, path, "--strict")
    assert (code, found) == (1, [])
    assert lines == [
        f"my_utils trace: error: {path}:4: event_type is unknown: 'BEGIN'; row skipped",
    ]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_columns_in_any_order_and_others_ignored(tmp_path: Path, run_python: RunPython) -> None:
    path = tmp_path / "profile_rank_0.csv"
    path.write_text(
        "metadata,more,event_type,event_name,step,machine_id,readable_time,timestamp_unix,duration_ms\n"
        '"node_id=1,parent_id=0",?,START,"a ""b"", c",4,h,,1750000000.5,\n'
        '"node_id=1,parent_id=0",?,END,"a ""b"", c",4,h,,1750000000.75,\n'
    )
    code, lines, found = convert(run_python, path, "--quiet")
    assert (code, lines) == (0, [])
    assert [(e["name"], e["dur"], e["args"]) for e in found] == [
        ('a "b", c', 250000.0, {"step": 4, "node_id": 1}),
    ]


def rows_forever() -> Iterable[bytes]:
    """A second of a file's worth: one line that does not end, in pieces."""
    return (b"y" * (1 << 20) for _ in range(100))


def test_a_long_line_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "profile_rank_0.csv"
    with path.open("wb") as out:
        out.write(HEADER)
        out.writelines(rows_forever())
        out.write(b"\n" + GOOD)
    code = (
        "import re, sys, my_utils.csv2trace as c\n"
        "c.convert([sys.argv[1]], '/dev/null', c.Options())\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(result.stdout) < 64 * 1024
