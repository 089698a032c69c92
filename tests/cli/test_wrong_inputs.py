"""What commands say of a directory that is not a run, cannot be read, or is not there."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import RunPython

COMMANDS = {  # that read logs, with the status for a directory without a run
    "report": 1,
    "trace": 1,
    "timeline": 1,
    "capture": 1,
    "live --once": 1,
    "live --hung 5": 1,
    "why": 4,
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_without_a_run(
    command: str, tmp_path: Path, run_python: RunPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One status for all, and a line that names the directory; `why` has one of its own for what it
    does not judge."""
    monkeypatch.chdir(tmp_path)
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    (wrong / "notes.txt").write_text("no run")
    name, *options = command.split()
    done = run_python("-m", "my_utils", name, str(wrong), *options)
    assert done.returncode == COMMANDS[command], done.stderr
    assert str(wrong) in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["wrong"], "nothing is written"


@pytest.mark.parametrize("command", ["report", "trace", "timeline"])
def test_an_output_in_a_missing_folder(command: str, tmp_path: Path, run_python: RunPython) -> None:
    logs = tmp_path / "logs"
    write_run(logs)
    suffix = {"report": "html", "trace": "json", "timeline": "png"}[command]
    target = tmp_path / "missing" / f"out.{suffix}"
    done = run_python("-m", "my_utils", command, str(logs), "-o", str(target))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"{target}: No such file or directory"), "the path as it was given"


def test_an_input_that_cannot_be_read_is_named_and_not_the_output(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    write_run(logs)
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    said = as_nobody(logs, lambda: trace(logs, out))
    assert f"{logs}: Permission denied" in said
    assert "x.json" not in said


def write_run(logs: Path) -> None:
    from my_utils import _core

    _core.open_output(log_dir=str(logs), rank=0, world_size=1)
    timer = _core.Timer("train")
    for step in range(25):
        timer.set_step(step)
        with timer.time_stage("iter"):
            pass
        timer.step()
    _core.close_output()


def trace(logs: Path, folder: Path) -> None:
    from my_utils.trace.csv2trace import main

    raise SystemExit(main([str(logs), "-o", str(folder / "x.json"), "--quiet"]))


def as_nobody(folder: Path, call: Callable[[], None]) -> str:
    """Standard error of the call in a child that may not read the folder, whoever runs the test."""
    ours, theirs = os.pipe()
    folder.chmod(0)
    child = os.fork()
    if child == 0:
        sys.stderr = os.fdopen(theirs, "w", buffering=1)
        if os.getuid() == 0:
            for above in (folder.parent, *folder.parent.parents):
                if above.stat().st_uid == 0 and str(above) != "/":
                    above.chmod(above.stat().st_mode | 0o5)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        status = 1
        try:
            call()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    folder.chmod(0o755)
    assert os.waitstatus_to_exitcode(status) != 0
    return said


def test_the_page_counts_one_as_one(tmp_path: Path, run_python: RunPython) -> None:
    """Of a run of one rank: no "1 ranks", no sentence glued to the next one, no share above all."""
    write_run(tmp_path / "logs")
    page = tmp_path / "page.html"
    done = run_python("-m", "my_utils", "report", str(tmp_path / "logs"), "-o", str(page))
    assert done.returncode == 0, done.stderr
    text = re.sub(r"(?s)<(script|style)\b.*?</\1>", " ", page.read_text(encoding="utf-8"))
    text = re.sub(r"<[^>]+>", "", text) + done.stdout + done.stderr
    assert not re.search(r"\b1 (ranks|hosts|steps|rows|files|stages)\b", text)
    assert not re.search(r"[a-z]{3}\.[A-Z][a-z]", text)
    shares = [float(share) for share in re.findall(r"(\d+(?:\.\d+)?) %", text)]
    assert max(shares, default=0.0) <= 100.0
