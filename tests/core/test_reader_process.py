"""Why a child did not read a file, as the user is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from my_utils.core.reader_process import ReaderError, Readers


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


def crashes(path: str) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def returns_what_cannot_be_passed(path: str) -> Callable[[], None]:
    return lambda: None


def exits(path: str) -> None:
    os._exit(7)


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
    assert reason(crashes) == "reading it ends in SIGSEGV"
    assert reason(exits) == "its reader ended with status 7"
    assert "pickle" in reason(returns_what_cannot_be_passed)
