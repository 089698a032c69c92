"""Dumps that a thread writes: values of the time of the call, a bounded queue, nothing lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from my_utils.dump_utils import DumpConfig, UniversalDumper, UniversalLoader
from my_utils.tensors.dumps.work_queue import WriteQueue

from ...conftest import RunPython
from ...support.dump_values import assert_same

torch = pytest.importorskip("torch", reason="torch is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

pytestmark = pytest.mark.long_file


def dumper_of(folder: Path, **options: Any) -> UniversalDumper:
    return UniversalDumper(
        DumpConfig(root_dir=folder, asynchronous=True, **{"strict": True, **options})
    )


def test_the_values_are_those_of_the_call(tmp_path: Path) -> None:
    dumper, loader = dumper_of(tmp_path), UniversalLoader(tmp_path)
    tensor, array, items, raw = torch.zeros(1000), np.zeros(1000), [0], bytearray(100)
    view = tensor[::2]
    made = []
    for i in range(20):
        tensor.fill_(i)
        array.fill(i)
        items[0] = i
        raw[:] = bytes([i]) * 100
        made.append(dumper.dump("s", {"t": tensor, "v": view, "a": array, "i": items, "r": raw}))
    tensor.fill_(-1)
    array.fill(-1)
    assert dumper.flush()
    for i, dump_dir in enumerate(made):
        assert dump_dir is not None
        found = loader.load(dump_dir)
        wanted = {"t": torch.full((1000,), float(i)), "v": torch.full((500,), float(i))}
        wanted |= {"a": np.full(1000, float(i)), "i": [i], "r": bytearray([i]) * 100}
        assert_same(found, wanted)
    assert dumper.written == 20


def test_images_are_copied_too(tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image", reason="PIL is not installed")
    image = Image.new("L", (8, 8), 7)
    dumper = dumper_of(tmp_path)
    dump_dir = dumper.dump("s", image)
    image.paste(9, (0, 0, 8, 8))
    dumper.close()
    assert dump_dir is not None
    assert set(UniversalLoader(tmp_path).load(dump_dir).tobytes()) == {7}


def test_the_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    dumper = dumper_of(tmp_path)
    dump_dir = dumper.dump("s", torch.zeros(1 << 20))
    assert dump_dir is not None
    while not os.path.exists(dump_dir):
        time.sleep(0.001)
    assert UniversalLoader(tmp_path).load(dump_dir).numel() == 1 << 20


def test_the_queue_is_bounded() -> None:
    queue = WriteQueue(100)
    go, done = threading.Event(), []
    queue.put(go.wait, 60)  # type: ignore[arg-type]
    queue.put(lambda: done.append("second"), 40)
    third = threading.Thread(target=queue.put, args=(lambda: done.append("third"), 1))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    assert not queue.flush(0.01)
    go.set()
    third.join(60)
    assert queue.flush(60)
    assert done == ["second", "third"]
    queue.put(lambda: done.append("larger than the queue"), 1000)
    assert queue.flush(60)
    queue.close()
    queue.close()
    queue.put(lambda: done.append("after close"), 1)
    queue.close()
    assert done[2:] == ["larger than the queue", "after close"]


def threads_that_write() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "my_utils dump"}


def test_closing_ends_the_thread(tmp_path: Path) -> None:
    before = threads_that_write()
    with dumper_of(tmp_path) as dumper:
        dumper.dump("s", [1])
        (thread,) = threads_that_write() - before
    assert not thread.is_alive()
    assert dumper.written == 1


def test_a_signal_handler_may_dump_while_the_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, done = WriteQueue(100), []
    before, start = threads_that_write(), threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.undo()
        queue.put(lambda: done.append("handler"), 1)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    queue.put(lambda: done.append("call"), 1)
    assert len(threads_that_write() - before) == 1
    queue.close()
    assert done == ["handler", "call"]


def test_many_threads(tmp_path: Path) -> None:
    dumper = dumper_of(tmp_path, queue_bytes=10_000)

    def work(number: int) -> None:
        for i in range(25):
            dumper.dump("s", {"n": number, "i": i, "t": torch.full((100,), float(i))})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dumper.close()
    loader = UniversalLoader(tmp_path)
    found = [loader.load(path) for path in loader.dumps()]
    assert {(f["n"], f["i"]) for f in found} == {(n, i) for n in range(4) for i in range(25)}
    assert all(f["t"][0] == f["i"] for f in found)


def test_errors_of_the_thread(tmp_path: Path) -> None:
    dumper = dumper_of(tmp_path, strict=False, queue_bytes=1 << 30)
    block = threading.Event()
    dumper.dump("s", [0])
    dumper.flush()
    dumper._queue.put(block.wait, 1)  # type: ignore[arg-type]
    dumper.dump("s", [1])
    (folder,) = tmp_path.glob("sample_none/.unfinished*")
    folder.rmdir()  # as somebody's clean-up might
    block.set()
    dumper.flush()
    assert (dumper.written, dumper.failed) == (1, 1)


ENDS = {
    "the last line": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "an exception": ("raise ValueError('mine')", 1),
    "an exception in a thread": (
        "t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()", 0,
    ),
    "atexit of another": ("atexit.register(lambda: dumper.dump('s', [99]))", 0),
}  # fmt: skip

PROGRAM = """
import atexit, multiprocessing, os, sys, threading, torch
from my_utils.dump_utils import DumpConfig, UniversalDumper
dumper = UniversalDumper(DumpConfig(root_dir="dumps", asynchronous=True))
for i in range(10):
    dumper.dump("s", [i, torch.zeros(1 << 18)])
"""


@pytest.mark.thorough
@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_lost_at_the_end(run_python: RunPython, tmp_path: Path, end: str) -> None:
    statement, status = ENDS[end]
    done = run_python("-c", PROGRAM + statement)
    assert done.returncode == status, done.stderr
    loader = UniversalLoader(tmp_path / "dumps")
    found = [loader.load(path)[0] for path in loader.dumps()]
    assert found[:10] == list(range(10))
    assert len(found) == (11 if "atexit" in end else 10)
    assert not list(tmp_path.rglob(".unfinished*"))


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_nothing_is_lost_in_children(run_python: RunPython, tmp_path: Path, method: str) -> None:
    """Each process writes its own dumps, and none those of another."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import multiprocessing, os, sys, torch
from my_utils.dump_utils import DumpConfig, UniversalDumper
dumper = UniversalDumper(DumpConfig(root_dir="dumps", asynchronous=True))
def work(number):
    torch.set_num_threads(1)  # as DataLoader's workers do: torch's pool does not survive a fork
    for i in range(5):
        dumper.dump("s", [number, i, torch.zeros(1 << 16)])
if __name__ == "__main__":
    work(0)
    context = multiprocessing.get_context({method!r})
    children = [context.Process(target=work, args=(n,)) for n in (1, 2)]
    for child in children: child.start()
    for child in children: child.join()
    assert [child.exitcode for child in children] == [0, 0]
""",
        encoding="utf-8",
    )
    done = run_python(str(program))
    assert done.returncode == 0, done.stderr
    loader = UniversalLoader(tmp_path / "dumps")
    found = sorted(tuple(loader.load(path)[:2]) for path in loader.dumps())
    assert found == [(n, i) for n in range(3) for i in range(5)]


def test_a_fork_while_the_thread_writes(run_python: RunPython, tmp_path: Path) -> None:
    program = (
        PROGRAM
        + """
for i in range(10):
    pid = os.fork()
    if pid == 0:
        assert dumper.flush(5)
        assert dumper.dump("child", [i]) is not None
        dumper.close()
        assert dumper.written == 1
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    dumper.dump("s", [10 + i])
"""
    )
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    loader = UniversalLoader(tmp_path / "dumps")
    assert [loader.load(path)[0] for path in loader.dumps(stage="s")] == list(range(20))
    assert sorted(loader.load(path)[0] for path in loader.dumps(stage="child")) == list(range(10))


def test_a_signal_handler_may_dump_while_a_dump_is_counted(tmp_path: Path) -> None:
    dumper = UniversalDumper(DumpConfig(root_dir=tmp_path, strict=True))
    with dumper._lock:
        dumper.dump("handler", [1])
    assert dumper.written == 1


def test_a_signal_handler_may_dump(tmp_path: Path) -> None:
    dumper = dumper_of(tmp_path, queue_bytes=1000)
    taken: list[str | None] = []

    def handler(*_: object) -> None:
        taken.append(dumper.dump("handler", [1]))
        signal.setitimer(signal.ITIMER_REAL, 0.01)  # no signal meanwhile, however long it took

    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        for i in range(100):
            dumper.dump("s", [i, torch.zeros(1000)])
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert taken
    dumper.close()
    assert dumper.written == 100 + len(taken)
    assert json.dumps(dumper.failed) == "0"
