"""torch's profiler is one a process: whoever comes second runs without, and says so."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from my_utils.profilers.torch_profiler import slot as _slot

pytestmark = pytest.mark.no_torch


def test_the_second_taker_is_told_who_profiles(caplog: pytest.LogCaptureFixture) -> None:
    lease = _slot.take("the first", close=lambda: None)
    assert lease is not None
    with caplog.at_level(logging.WARNING):
        assert _slot.take("the second", close=lambda: None) is None
    assert "the second runs unprofiled: the first is profiling" in caplog.text
    lease.release()
    lease.release()
    again = _slot.take("the second", close=lambda: None)
    assert again is not None
    lease.release()
    assert again.held
    again.release()


def test_one_of_many_threads_gets_it() -> None:
    begin = threading.Barrier(8)
    found: list[_slot.Lease | None] = []

    def ask() -> None:
        begin.wait()
        found.append(_slot.take("a thread", close=lambda: None))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lease,) = filter(None, found)
    lease.release()


def test_a_forked_child_holds_nothing() -> None:
    lease = _slot.take("the parent", close=lambda: None)
    assert lease is not None
    child = os.fork()
    if child == 0:
        os._exit(int(lease.held or _slot.holder() is not None))
    assert os.waitpid(child, 0)[1] == 0
    assert lease.held
    lease.release()


EXIT = """
import sys
from my_utils.profilers.torch_profiler import slot as _slot
def close():
    print("closed")
    if "raise" in sys.argv: raise RuntimeError("the disk is full")
lease = _slot.take("the holder", close=close)
if "release" in sys.argv: lease.release()
if "fail" in sys.argv: raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("argument", "printed", "status"),
    [
        ("stay", "closed\n", 0),
        ("release", "", 0),
        ("fail", "closed\n", 3),
        ("raise", "closed\n", 0),
    ],
)
def test_the_holder_is_closed_at_exit(argument: str, printed: str, status: int) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", EXIT, argument],
        cwd=root, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (printed, status), done.stderr
    if argument == "raise":
        assert "the holder could not be closed" in done.stderr
        assert "the disk is full" in done.stderr


def test_a_profiler_of_the_users_own_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with torch.profiler.profile():
        assert _slot.take("ours", close=lambda: None) is None
    assert "a torch.profiler.profile of the program is profiling" in caplog.text
    assert _slot.holder() is None
