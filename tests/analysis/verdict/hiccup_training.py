"""A training of one rank whose every tenth step has a hiccup that is made for real.

    python hiccup_training.py CAUSE FOLDER HICCUPS

Iterations take some 12 ms, hiccups 60 ms and more. FOLDER: for files. Causes that need root say
so by failing. It prints the time by the clock that each hiccup took, ns, as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

EVERY = 10
FIRST = 29  # the first iteration with a hiccup
LASTS_S = 0.1
PAGE = mmap.PAGESIZE
CGROUPS = Path("/sys/fs/cgroup")  # of version 1
Hiccup = Callable[[], object]
Cause = Callable[[Path], contextlib.AbstractContextManager[Hiccup]]


def work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def passes(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield


def _before_others() -> None:
    """Other processes of the machine wait for this one, where that can be had. Forked ones and
    threads inherit it."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def _like_others() -> None:
    """Takes that back: real-time threads have no quota, and take turns every 100 ms only."""
    for thread in os.listdir("/proc/self/task"):
        os.sched_setscheduler(int(thread), os.SCHED_OTHER, os.sched_param(0))


# --- the causes: each yields what makes one hiccup ---


@contextlib.contextmanager
def nothing_at_all(folder: Path) -> Iterator[Hiccup]:
    yield lambda: None


@contextlib.contextmanager
def collection(folder: Path) -> Iterator[Hiccup]:
    kept = [[number] for number in range(2_000_000)]
    yield gc.collect
    kept.clear()


@contextlib.contextmanager
def busy_core(folder: Path) -> Iterator[Hiccup]:
    """Four processes want the same core."""
    _like_others()
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [core])
    hogs = [_forked(_busy) for _ in range(4)]

    def hiccup() -> None:
        for process in hogs:
            os.kill(process, signal.SIGCONT)
        work(0.03)
        for process in hogs:
            os.kill(process, signal.SIGSTOP)

    for process in hogs:
        os.kill(process, signal.SIGSTOP)
    try:
        yield hiccup
    finally:
        _end(hogs)


def _busy() -> None:
    while os.getppid() != 1:
        work(0.1)


def _forked(function: Callable[[], object]) -> int:
    process = os.fork()
    if process == 0:
        function()
        os._exit(0)
    return process


def _end(processes: list[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


@contextlib.contextmanager
def _cgroup(controller: str) -> Iterator[Path]:
    """This process is in a separate cgroup meanwhile."""
    own = CGROUPS / controller / f"my_utils_hiccups_{os.getpid()}"
    own.mkdir()
    (own / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield own
    finally:
        (own.parent / "cgroup.procs").write_text(str(os.getpid()))
        own.rmdir()


@contextlib.contextmanager
def quota(folder: Path) -> Iterator[Hiccup]:
    """A tenth of a core meanwhile."""
    _like_others()
    with _cgroup("cpu") as cgroup:
        (cgroup / "cpu.shares").write_text(str(1 << 18))

        def hiccup() -> None:
            (cgroup / "cpu.cfs_quota_us").write_text("10000")
            work(0.025)
            (cgroup / "cpu.cfs_quota_us").write_text("-1")

        yield hiccup


@contextlib.contextmanager
def lack_of_memory(folder: Path) -> Iterator[Hiccup]:
    """A limit below what the step touches: new memory pushes pages of a file out, which are read
    again."""
    with _cgroup("memory") as cgroup, _mapped(folder, 160) as (file, pages):
        for at in range(0, len(pages), 1 << 20):  # else most reads were the first of their page
            os.pread(file, 1 << 20, at)

        def hiccup() -> None:
            _limit(cgroup, 64 << 20)
            new = bytearray(24 << 20)
            for at in range(0, len(new), PAGE):
                new[at] = 1
            _touch(pages, LASTS_S)

        yield hiccup
        (cgroup / "memory.limit_in_bytes").write_text("-1")


@contextlib.contextmanager
def little_memory(folder: Path) -> Iterator[Hiccup]:
    """A limit below what is used again and again: pages that are read push each other out."""
    with _cgroup("memory") as cgroup, _mapped(folder, 32) as (_, pages):
        for _ in range(4):
            for at in range(0, len(pages), PAGE):
                pages[at]

        def hiccup() -> None:
            _limit(cgroup, 8 << 20)
            _touch(pages, LASTS_S)

        yield hiccup
        (cgroup / "memory.limit_in_bytes").write_text("-1")


def in_version_2(cause: Cause) -> Cause:
    """In a cgroup of version 2 whose pressure the kernel counts; it has no controllers here."""

    @contextlib.contextmanager
    def moved(folder: Path) -> Iterator[Hiccup]:
        with _cgroup("unified"), cause(folder) as hiccup:
            yield hiccup

    return moved


def _limit(cgroup: Path, files: int) -> None:
    """Leaves so many bytes for pages of files."""
    lines = (cgroup / "memory.stat").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("rss "))
    (cgroup / "memory.limit_in_bytes").write_text(str(own + files))


@contextlib.contextmanager
def dropped_pages(folder: Path) -> Iterator[Hiccup]:
    """Pages of a file that nobody keeps in memory."""
    with _mapped(folder, 256) as (file, pages):

        def hiccup() -> None:
            pages.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            _touch(pages, LASTS_S)

        yield hiccup


@contextlib.contextmanager
def _mapped(folder: Path, megabytes: int) -> Iterator[tuple[int, mmap.mmap]]:
    path = folder / "pages"
    with path.open("wb") as out:
        for _ in range(megabytes):
            out.write(os.urandom(1 << 20))
        os.fsync(out.fileno())
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    pages = mmap.mmap(file, 0, prot=mmap.PROT_READ)
    pages.madvise(mmap.MADV_RANDOM)
    try:
        yield file, pages
    finally:
        pages.close()
        os.close(file)
        path.unlink()


def _touch(pages: mmap.mmap, seconds: float) -> None:
    for _ in passes(seconds):
        for _ in range(64):
            pages[random.randrange(len(pages))]


@contextlib.contextmanager
def slow_disk(folder: Path) -> Iterator[Hiccup]:
    """Each read takes 25 ms."""
    mount = folder / "slow"
    mount.mkdir()
    server = Path(__file__).resolve().parents[2] / "support" / "slow_disk.py"
    command = [sys.executable, str(server), str(mount), "0.025"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as disk:
        assert disk.stdout is not None
        assert disk.stdout.readline() == "ready\n", "needs root and FUSE"
        file = os.open(mount / "file", os.O_RDONLY)
        try:
            yield lambda: [os.pread(file, PAGE, 0) for _ in range(4)]
        finally:
            os.close(file)
            disk.kill()
    subprocess.run(["umount", "-l", str(mount)], check=True)


@contextlib.contextmanager
def gil_by_python(folder: Path) -> Iterator[Hiccup]:
    """Another thread runs Python: each time that this one lets the GIL go it waits for 5 ms."""

    def hiccup() -> None:
        stop = threading.Event()
        thread = threading.Thread(target=lambda: [None for _ in iter(stop.is_set, True)])
        thread.start()
        for _ in passes(LASTS_S):
            time.sleep(0)
        stop.set()
        thread.join()

    yield hiccup


@contextlib.contextmanager
def gil_by_c(folder: Path) -> Iterator[Hiccup]:
    """A call of C on another thread keeps the GIL."""
    hold = ctypes.PyDLL(None).usleep

    def hiccup() -> None:
        thread = threading.Thread(target=hold, args=(int(LASTS_S * 1e6),))
        thread.start()
        thread.join()

    yield hiccup


@contextlib.contextmanager
def stopped(folder: Path) -> Iterator[Hiccup]:
    """SIGSTOP, and SIGCONT later."""
    read, write = os.pipe()
    training = os.getpid()

    def stop_it() -> None:
        os.close(write)
        while os.read(read, 1):
            os.kill(training, signal.SIGSTOP)
            time.sleep(LASTS_S)
            os.kill(training, signal.SIGCONT)

    helper = _forked(stop_it)

    def hiccup() -> None:
        last = now = time.monotonic()
        os.write(write, b"x")
        while now - last < LASTS_S / 2:  # the time between two looks
            last, now = now, time.monotonic()

    yield hiccup
    _end([helper])


@contextlib.contextmanager
def own_work(folder: Path) -> Iterator[Hiccup]:
    yield lambda: work(LASTS_S)


@contextlib.contextmanager
def sleep(folder: Path) -> Iterator[Hiccup]:
    yield lambda: time.sleep(LASTS_S)


CAUSES = {
    "collection": collection, "busy core": busy_core, "quota": quota,
    "lack of memory": lack_of_memory, "slow disk": slow_disk, "dropped pages": dropped_pages,
    "GIL, by Python": gil_by_python, "GIL, by C": gil_by_c, "SIGSTOP": stopped,
    "own work": own_work, "sleep": sleep, "nothing": nothing_at_all,
    "little memory": little_memory, "little memory, v2": in_version_2(little_memory),
    "lack of memory, v2": in_version_2(lack_of_memory),
    "slow disk, v2": in_version_2(slow_disk), "dropped pages, v2": in_version_2(dropped_pages),
}  # fmt: skip


def train(hiccup: Hiccup, hiccups: int) -> Iterator[int]:
    """Yields the time that each hiccup took, ns."""
    net = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for number in range(FIRST + EVERY * hiccups):
        net(torch.randn(4, 8)).sum().backward()
        work(0.01)
        if number >= FIRST and (number - FIRST) % EVERY == 0:
            began = time.monotonic_ns()
            hiccup()
            yield time.monotonic_ns() - began
        optimizer.step()


def main(cause: str, folder: str, hiccups: int) -> None:
    torch.set_num_threads(1)
    gc.disable()
    _before_others()
    with CAUSES[cause](Path(folder)) as hiccup:
        took = list(train(hiccup, hiccups))
    print(json.dumps(took))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
