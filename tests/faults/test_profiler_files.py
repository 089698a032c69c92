"""What the profilers leave where files cannot be written, and when a child process ends in the
middle: each file is whole or absent, and the program goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from ..conftest import RunPython
from ..support.variants import gate_runs

USERS = """
import logging, os, resource, signal, sys
import torch
from my_utils.annotations import parametrize_shapes
from my_utils.DITProfiler import create_profiler_context
from my_utils.ForwardProfileHook import ForwardProfilerHook
from my_utils.gpu_mem_tracker import GPU_Performance_Tracker
from my_utils.moduleProfiler import ModuleProfiler
from my_utils.profilerwrapper import ProfilerWrapper
from my_utils.profiling.backends import TorchProfilerBackend
from my_utils.profiling.decorator import profiler, step_profiler

logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
x = torch.ones(2, 8)

def work(times=40):
    for _ in range(times):
        model(x)
    return times
"""

# A file grows no longer than this, as on a full disk: EFBIG, where the signal is ignored.
NO_ROOM = """
import matplotlib.figure  # which writes a cache
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))
"""

ALL = """
options = {"profile_memory": True, "enabled_record_cuda_average_time": True}
pw = ProfilerWrapper(output="out", keep_all_traces=True, dump_memory_snapshot=True, **options)
for _ in range(2):
    with pw:
        work()
written = pw.leave()
with create_profiler_context("DIT", None, ["aten::addmm"], output="out") as context:
    work()
written += context.paths

@profiler(output_dir="out", skip_first=0, wait=0)
def train():
    for _ in range(5):
        work(15)
        step_profiler()
    return "trained"
assert train() == "trained"

backend = TorchProfilerBackend("out")
hook = ForwardProfilerHook(1, 50, backend=backend).attach(model)
assert work(60) == 60
hook.stop()
written += backend.traces
with ModuleProfiler(model) as modules:
    work(3)
assert len(modules.summary("out/modules.csv")) == 2
with GPU_Performance_Tracker("out/run", 0.01, False) as tracker:
    while tracker.samples < 2:
        work()
assert tracker.samples > 1

@parametrize_shapes([1, 2], output_csv="out/sweep.csv", output_png="out/sweep.png", repeats=1)
def sweep(shape):
    return work
assert [point.status for point in sweep().points] == ["ok", "ok"]
print("WRITTEN", *sorted(path.name for path in written))
"""


def whole(path: Path) -> bool:
    """Whether a file can be read to its end."""
    content = path.read_bytes()
    if path.suffix == ".json":
        return bool(json.loads(content))
    if path.suffix == ".png":
        return content.endswith(b"IEND\xaeB`\x82")
    return content.endswith(b"\n" if path.suffix in (".csv", ".txt") else b".")  # a pickle's end


@pytest.mark.slow
@pytest.mark.parametrize("place", gate_runs(("no room",), ("no room", "no folder", "room")))
def test_files_are_whole_or_absent(place: str, tmp_path: Path, run_python: RunPython) -> None:
    if place == "no folder":
        (tmp_path / "out").write_text("a file where the folder is to be")
    else:
        (tmp_path / "out").mkdir()
    program = USERS + (NO_ROOM if place == "no room" else "") + ALL
    done = run_python("-c", program, env={"PROFILE_TASK_TYPES": "DIT"})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    listed = done.stdout.splitlines()[-1].split()
    assert listed.pop(0) == "WRITTEN"
    found = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "out"]
    assert [path.name for path in found if not whole(path)] == []
    assert [path.name for path in found if path.name.startswith(".")] == []
    names = {path.name for path in found}
    assert set(listed) <= names
    if place == "room":
        assert len(found) == 17, sorted(names)
        assert "could not" not in done.stdout
    else:
        assert not any(name.endswith((".png", ".pickle")) or "trace" in name for name in names)
        for who in ("ProfilerWrapper", "FlexibleProfiler", "@profiler", "ForwardProfilerHook",
                    "performance tracker", "the sweep goes on"):  # fmt: skip
            assert who in done.stdout, who


ENDS = """
import multiprocessing

def child(kind):
    global kept
    folder = f"out/{kind}"
    if kind == "wrapper and hook":
        pw = ProfilerWrapper(output=folder)
        with pw:
            work()
        hook = ForwardProfilerHook(1, 100, backend=TorchProfilerBackend(folder)).attach(model)
        work(3)
        kept = pw, hook
    elif kind == "context":
        kept = create_profiler_context("DIT", output=folder)
        kept.__enter__()
        work()
    else:
        @profiler(output_dir=folder, skip_first=0, wait=0, warmup=0)
        def steps():
            while True:
                yield work()
                step_profiler()
        kept = steps()
        next(kept), next(kept)

for kind in ("wrapper and hook", "context", "decorator"):
    process = multiprocessing.get_context("fork").Process(target=child, args=(kind,))
    process.start()
    process.join()
    assert process.exitcode == 0, kind
"""


@pytest.mark.thorough
@pytest.mark.slow
def test_a_child_of_multiprocessing_writes_what_is_open(
    tmp_path: Path, run_python: RunPython
) -> None:
    done = run_python("-c", USERS + ENDS, env={"PROFILE_TASK_TYPES": "DIT"})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = {kind: sorted(os.listdir(tmp_path / "out" / kind))
             for kind in sorted(os.listdir(tmp_path / "out"))}  # fmt: skip
    assert found == {
        "context": ["DIT__rank0_summary.txt", "DIT__rank0_trace.json"],
        "decorator": ["rank_0", "trace_rank_0.json"],
        "wrapper and hook": ["forward_1-100__rank0.json", "profile_trace.json"],
    }
    assert all(whole(path) for path in tmp_path.rglob("*.json"))
