"""Names that are not UTF-8, where the C part takes and gives them, and where they are recorded."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core

from ...conftest import ROOT

pytestmark = [pytest.mark.c_code, pytest.mark.no_torch]

BAD = b"f\xff\xfeld"
SHOWN = r"f\xff\xfeld"

FORMS: dict[str, Callable[[bytes], object]] = {
    "bytes": bytes,
    "str": os.fsdecode,
    "os.PathLike of str": lambda path: Path(os.fsdecode(path)),
    "os.PathLike of bytes": lambda path: PathOfBytes(path),
}


class PathOfBytes(os.PathLike[bytes]):
    def __init__(self, path: bytes) -> None:
        self._path = path

    def __fspath__(self) -> bytes:
        return self._path


def part(name: Any) -> tuple[Any, int, int, bytes, bool]:
    return (name, -1, -1, b"no,profile\n1,2\n", True)


# Every function that takes a path or the name of a part, with a file that it cannot read: the
# message has the name.
CALLS: dict[str, Callable[..., object]] = {
    "recover_rows": _core.recover_rows,
    "read_journal": _core.read_journal,
    "StageRows": lambda name: _core.StageRows(part(name)),
    "trace_first_ns": lambda name: _core.trace_first_ns(part(name)),
    "read_stages": lambda name: raise_first(_core.read_stages([part(name)])["errors"]),
    "read_notes": lambda name: raise_first(_core.read_notes([part(name)])["errors"]),
    "convert": lambda name: raise_first(
        _core.TraceJob(-1, "json").convert([part(name)], 0)["errors"]
    ),
    "open_output": lambda name: open_output(log_dir=name),
    "open_output, journal_dir": lambda name: open_output(log_dir="logs", journal_dir=name),
}


def raise_first(errors: list[str]) -> None:
    raise OSError(*errors)


def open_output(**settings: object) -> None:
    """Below a file nothing can be made."""
    try:
        report = _core.open_output(**settings)  # type: ignore[arg-type]
        raise_first([report["journal_error"]])
    finally:
        _core.close_output()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", CALLS)
def test_an_error_names_a_path_of_any_bytes(
    call: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises((OSError, ValueError)) as raised:
        CALLS[call](FORMS[form](b"file/" + BAD))
    assert f"file/{SHOWN}" in str(raised.value)
    str(raised.value).encode()


@pytest.mark.parametrize("form", FORMS)
def test_a_folder_of_any_bytes_is_written_and_read(form: str, tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), BAD)
    report = _core.open_output(log_dir=FORMS[form](folder), journal_dir=FORMS[form](folder))  # type: ignore[arg-type]
    try:
        with _core.Timer("train").time_stage("iter"):
            journal = _core.read_journal(str(report["journal_path"]))
            assert os.fsencode(journal["log_dir"]) == folder
    finally:
        _core.close_output()
    assert os.fsencode(str(report["csv_path"])) == folder + b"/profile_rank_0.csv"
    with open(str(report["csv_path"]), encoding="utf-8") as file:
        # Rows of threads that other tests of this process left may follow.
        rows = [row[4:6] for row in csv.reader(file) if row[4] == "iter"]
    assert rows == [["iter", "START"], ["iter", "END"]]


RECORDS = """
import logging, os, sys, threading
from my_utils import GlobalLogger, MyTimer
logger, given = GlobalLogger(), sys.argv[1]
logger.setup("logs", rank=0, world_size=1, console=False, extra_log_label=given)
logger.instant("settings", {given: given, "home": os.environ["GIVEN"]})
logger.instant("text", f"argument={given}")
logging.getLogger("my_utils").warning("got %s", given)
def work(name):
    with MyTimer().time_stage(name):
        pass
thread = threading.Thread(target=work, args=["threaded"], name=given)
thread.start()
thread.join()
child = os.fork()  # it has its own files
if child == 0:
    work("forked")
    logger.close()
    os._exit(0)
os.waitpid(child, 0)
logger.close()
"""


def test_what_is_recorded_is_utf8(tmp_path: Path) -> None:
    """Labels, metadata, arguments, the environment, names of threads and, where a process may give
    itself one, of the host."""
    given = os.fsdecode(BAD)
    command = [sys.executable, "-c", RECORDS, given]
    has_host = os.geteuid() == 0 and shutil.which("unshare") is not None
    if has_host:
        rename = 'printf "h\\377st" > /proc/sys/kernel/hostname && exec "$@"'
        command = ["unshare", "-u", "sh", "-c", rename, "sh", *command]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GIVEN": given},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, forked = (
        (tmp_path / "logs" / name).read_bytes().decode()
        for name in ("profile_rank_0.csv", "profile_rank_0.w1.csv")
    )
    for recorded in (
        f"label={SHOWN}",
        f"{SHOWN}={SHOWN},home={SHOWN}",
        f"argument={SHOWN}",
        r"thread_name=f\udcff\udcfeld",
    ):
        assert recorded in first
    for rows in (first, forked):
        assert rows.count(f",{SHOWN}-rank0,") == len(rows.splitlines()) - 1
        assert not has_host or r"host=h\xffst" in rows
    assert r"got f\udcff\udcfeld" in (tmp_path / "logs" / "rank_0.log").read_bytes().decode()
