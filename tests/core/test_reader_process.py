"""Why a child did not read a file, as the user is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from my_utils.core import reader_process
from my_utils.core.reader_process import ReaderError, Readers

from ..conftest import ROOT
from ..support.live_ranks import wait_until


def first_bytes(count: int, path: str) -> tuple[int, bytes]:
    with open(path, "rb") as file:
        return os.getpid(), file.read(count)


def raises(path: str) -> None:
    raise KeyError(path)


def asks_for_all_memory(path: str) -> int:
    return len(bytes(1 << 60))


def never_ends(path: str) -> None:
    while True:
        pass


def does_nothing(path: str) -> None:
    threading.Event().wait()


def crashes(path: str) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def returns_what_cannot_be_passed(path: str) -> Callable[[], None]:
    return lambda: None


def exits(path: str) -> None:
    os._exit(7)


def returns_too_much(path: str) -> bytes:
    return bytes((1 << 30) + 1)


def crashes_at_the_first(path: str) -> int:
    if Path(path).name == "first":
        crashes(path)
    return os.getpid()


def meets_its_neighbour(path: str) -> int:
    Path(path).touch()
    wait_until(lambda: len(list(Path(path).parent.iterdir())) == 2)
    return os.getpid()


def says_its_process(path: str) -> None:
    part = Path(f"{path}.part")
    part.write_text(str(os.getpid()))
    part.rename(path)
    while True:
        time.sleep(60)


def reason(function: Callable[..., Any], bounded: bool = True) -> str:
    with Readers(function, 1, bounded=bounded) as readers, pytest.raises(ReaderError) as error:
        readers.read("/no/such/file")
    return str(error.value)


def test_one_child_reads_the_files_of_one_reader() -> None:
    with Readers(first_bytes, 1, bounded=True) as readers:
        child, read = readers.read(__file__, 3)
        assert read == b'"""' and child != os.getpid()
        with pytest.raises(ReaderError, match="No such file"):
            readers.read("/no/such/file", 3)
        assert readers.read(__file__, 1) == (child, b'"')


def test_reasons() -> None:
    of_size = "to read than a file of its size may"
    assert reason(raises) == "reading it fails with KeyError: '/no/such/file'"
    assert reason(asks_for_all_memory) == f"it takes more memory {of_size}"
    assert (
        reason(asks_for_all_memory, bounded=False) == "it takes more memory to read than there is"
    )
    assert reason(never_ends) == f"it takes more time {of_size}"
    assert reason(crashes) == "reading it was ended by SIGSEGV"
    assert reason(exits) == "its reader ended with exit status 7"
    assert "pickle" in reason(returns_what_cannot_be_passed)


def test_a_child_that_does_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_process, "SECONDS_WAITED", 1)
    monkeypatch.setattr(reader_process, "BUSY", 0)
    assert reason(does_nothing) == "its reader does nothing, and was ended after 1 s"


def test_a_response_has_a_bound_where_the_file_has() -> None:
    assert reason(returns_too_much) == "it takes more memory to read than a file of its size may"


def test_after_a_crash_another_child_reads_the_next_file(tmp_path: Path) -> None:
    with Readers(crashes_at_the_first, 1, bounded=True) as readers:
        with pytest.raises(ReaderError, match="SIGSEGV"):
            readers.read(str(tmp_path / "first"))
        child = readers.read(str(tmp_path / "second"))
        assert child == readers.read(str(tmp_path / "third")) != os.getpid()


def test_several_children_read_at_once(tmp_path: Path) -> None:
    """Each of them ends only when the other has begun."""
    paths = [str(tmp_path / name) for name in "ab"]
    with ThreadPoolExecutor(2) as pool, Readers(meets_its_neighbour, 2, bounded=False) as readers:
        assert len(set(pool.map(readers.read, paths))) == 2


INTERRUPTED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from my_utils.core.reader_process import Readers
from tests.core.test_reader_process import says_its_process

with ThreadPoolExecutor(2) as pool, Readers(says_its_process, 2, bounded=False) as readers:
    list(pool.map(readers.read, sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_children_end_with_their_process(number: signal.Signals, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abcd"]
    job = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *paths], cwd=ROOT, stderr=subprocess.DEVNULL
    )
    wait_until(lambda: all(map(Path.exists, paths[:2])))
    children = [int(path.read_text()) for path in paths[:2]]
    job.send_signal(number)
    assert job.wait(60) == -number
    wait_until(lambda: not any(map(runs, children)))
    assert not any(map(Path.exists, paths[2:]))


def runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
