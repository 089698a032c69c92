"""Dumps that are cut short: whatever ends them, no half of one looks whole."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from my_utils.dump_utils import UniversalLoader

from ..conftest import ROOT, RunPython
from .test_disk import run_on_mount

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("safetensors", reason="safetensors is not installed")

VICTIM = """
import ctypes, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: dies with its parent
import torch
from my_utils.dump_utils import DumpConfig, UniversalDumper
torch.set_num_threads(1)
mode, size = sys.argv[1], int(sys.argv[2])
dumper = UniversalDumper(DumpConfig(root_dir="dumps", asynchronous=mode == "async", strict=True))
for number in range(100):  # should it be killed late
    tensors = [torch.full((size,), float(number)) for _ in range(20)]
    dump_dir = dumper.dump("s", {"n": number, "t": tensors}, data_id=number % 3)
    if mode == "async":
        dumper.flush()
    print(dump_dir, flush=True)
signal.pause()
"""


def check(root: Path, finished: list[str]) -> int:
    """All dumps that can be seen load with every digest right; how many there are."""
    loader = UniversalLoader(root)
    seen = loader.dumps()
    assert {Path(path).name for path in finished} <= {Path(path).name for path in seen}
    for path in seen:
        found = loader.load(path)
        assert all((tensor == found["n"]).all() for tensor in found["t"])
    return len(seen)


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_killed_while_it_dumps(tmp_path: Path, mode: str, part: int) -> None:
    rng = random.Random(f"{mode} {part}")
    halves, whole = 0, 0
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        victim = subprocess.Popen(
            [sys.executable, "-c", VICTIM, mode, str(rng.choice([10, 1000, 100_000]))],
            cwd=folder, env={"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert victim.stdout is not None
            finished = [victim.stdout.readline().strip()]
            time.sleep(rng.uniform(0, 0.08))
        finally:
            victim.kill()
        finished += [line.strip() for line in victim.stdout if line.endswith("\n")]
        victim.stdout.close()
        assert victim.wait() == -signal.SIGKILL
        whole += check(folder / "dumps", finished)
        halves += len(list(folder.rglob(".unfinished-*")))
    assert whole >= 2
    assert halves <= 2  # the one that was being written, at most


def test_killed_at_every_system_call_that_changes_files(
    tmp_path: Path, run_python: RunPython
) -> None:
    """By a count of calls to the audit hook, which open, mkdir, rename and chmod go through."""
    program = """
import os, signal, sys, torch
from my_utils.dump_utils import DumpConfig, UniversalDumper
dumper = UniversalDumper(DumpConfig(root_dir="dumps", strict=True, fsync=True))
obj = {"n": 1, "t": [torch.ones(10)], "p": print}
dumper.dump("s", obj)
for stop in range(1, 40):
    pid = os.fork()
    if pid == 0:
        left = stop
        def count(event, args):
            global left
            if event in ("open", "os.mkdir", "os.rename", "os.chmod") and "dumps" in str(args[0]):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(count)
        dumper.dump("s", obj)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == 0:
        break
    assert status == -signal.SIGKILL
print(stop)
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    stops = int(done.stdout)
    assert stops > 6
    loader = UniversalLoader(tmp_path / "dumps")
    # The first one, the one that nothing stopped, and those that were stopped after the rename.
    assert 2 <= len(loader.dumps()) <= 4
    for path in loader.dumps():
        assert loader.load(path, allow_pickle=True)["t"][0].tolist() == [1.0] * 10
    unfinished = list((tmp_path / "dumps").rglob(".unfinished-*"))
    assert len(unfinished) > 3
    for half in unfinished:
        with pytest.raises(ValueError, match="was not finished"):
            loader.load(half)


FULL = """
import json, torch
from my_utils.dump_utils import DumpConfig, DumpTensorIO, UniversalDumper, UniversalLoader
MODE = {mode!r}
dumper = UniversalDumper(DumpConfig(root_dir="disk/dumps", asynchronous=MODE == "async"))
tensors = DumpTensorIO("disk/tensors")
obj = {{"n": 1, "t": [torch.ones(100_000) for _ in range(5)]}}
made = [dumper.dump("s", obj) for _ in range(3)]
dumper.flush()
tensors.dump(torch.ones(1000), 1, "x")
fill_the_disk()
made += [dumper.dump("s", obj) for _ in range(3)]
dumper.flush()
assert tensors.dump(torch.zeros(1000), 1, "x") is None
assert (dumper.written, dumper.failed) == (3, 3), (dumper.written, dumper.failed)
os.remove("disk/filler")
made.append(dumper.dump("s", obj))
dumper.close()
assert (dumper.written, dumper.failed) == (4, 3)
loader = UniversalLoader("disk/dumps")
assert len(loader.dumps()) == 4
for path in loader.dumps():
    assert all((tensor == 1).all() for tensor in loader.load(path)["t"])
assert tensors.load(1, "x").sum() == 1000
left = [name for _, folders, files in os.walk("disk") for name in folders + files]
assert not [name for name in left if name.startswith(".")], left
print(json.dumps(made))
"""


@pytest.mark.parametrize("mode", [pytest.param("sync", marks=pytest.mark.thorough), "async"])
def test_a_full_disk(tmp_path: Path, mode: str) -> None:
    done = run_on_mount(tmp_path, "rw", FULL.format(mode=mode))
    made = json.loads(done.stdout.splitlines()[-1])
    assert (made[3:6] == [None] * 3) == (mode == "sync")
    told = [line for line in done.stderr.splitlines() if "No space left on device" in line]
    assert len(told) == 2  # one of each class
    assert len(done.stderr.splitlines()) == 2


def test_files_that_may_not_grow(run_python: RunPython, tmp_path: Path) -> None:
    """A limit of the shell or the batch system does what a full disk does."""
    done = run_python(
        "-c",
        """
import resource, torch
from my_utils.dump_utils import DumpConfig, UniversalDumper
dumper = UniversalDumper(DumpConfig(root_dir="dumps"))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
assert dumper.dump("s", torch.ones(1000)) is not None
for _ in range(3):
    assert dumper.dump("s", torch.ones(100_000)) is None
assert dumper.dump("s", ["text" * 50_000]) is None
assert dumper.dump("s", torch.ones(1000)) is not None
print(dumper.written, dumper.failed)
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "4"]
    assert len(done.stderr.splitlines()) == 1
    assert len(UniversalLoader(tmp_path / "dumps").dumps()) == 2
    assert not list(tmp_path.rglob(".unfinished*"))
