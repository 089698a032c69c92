"""A `torch.profiler.profile` of the program's own within a window of ours: torch gives it the
session, and nothing crashes or is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ...conftest import RunPython

pytest.importorskip("torch", reason="torch is not installed")

# Each opens a window, does `before`, lets the program profile, does `after` and closes it.
BEGIN = """
import sys, torch
from torch.profiler import ProfilerAction, profile, schedule
out = sys.argv[1]

def before():
    torch.ones(4).add(1)

def after():
    torch.ones(4).sub(1)

def theirs():
    with profile() as found:
        torch.ones(4).mul(2)
    names = {event.name for event in found.events()}
    assert "aten::mul" in names, names
    found.export_chrome_trace(out + "-theirs.json")

def a_fresh_one_profiles():
    from my_utils.profilers.torch_profiler.torch_profile import TorchProfile
    fresh = TorchProfile("fresh")
    assert fresh.start()
    before()
    fresh.stop()
    assert "aten::add" in {event.name for event in fresh.profiler.events()}

def within():
    before()
    theirs()
    after()
"""

OURS = {
    "profiler": """
from my_utils.profiling.decorator import profiler, step_profiler
@profiler(output_dir=out, skip_first=0, wait=0, warmup=0, active=2, repeat=2, with_flops=False)
def train():
    within()
    for _ in range(4):
        step_profiler()
        before()
train()
""",
    "wrapper": """
from my_utils.profilerwrapper import ProfilerWrapper
with (wrapper := ProfilerWrapper(prefix="a", output=out)):
    within()
wrapper.close()
""",
    "blocks": """
from my_utils.DITProfiler import FlexibleProfiler
with FlexibleProfiler("a", output=out):
    within()
""",
    "backend": """
from my_utils.profiling.backends import TorchProfilerBackend
backend = TorchProfilerBackend(out)
backend.start_window("w")
within()
backend.stop_window("w")
""",
    "callback": """
from types import SimpleNamespace as Some
from my_utils.main import ProfCallback
callback = ProfCallback(
    out, wait_steps=0, warmup_steps=0, active_steps=1, profile_memory=False, with_stack=False
)
state = Some(global_step=0, max_steps=1, epoch=0.5)
control = Some(should_evaluate=False, should_save=False, should_training_stop=False)
callback.on_train_begin(None, state, control)
callback.on_step_begin(None, state, control)
within()
callback.on_step_end(None, state, control)
callback.on_train_end(None, state, control)
""",
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", OURS)
def test_what_was_recorded_until_then_is_kept(
    tmp_path: Path, run_python: RunPython, kind: str
) -> None:
    if kind == "callback":
        pytest.importorskip("transformers", reason="transformers is not installed")
    out = tmp_path / "out"
    done = run_python("-c", BEGIN + OURS[kind], str(out), timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the program opens a torch.profiler.profile") == 1
    assert "Traceback" not in done.stderr
    names = [
        {event.get("name") for event in json.loads(path.read_text("utf-8"))["traceEvents"]}
        for path in out.rglob("*.json")
        if "operators" not in path.name
    ]
    assert any({"aten::add"} <= each for each in names)
    assert not any({"aten::mul", "aten::sub"} & each for each in names)


OVERLAPPING = """
from my_utils.profilers.torch_profiler.torch_profile import TorchProfile, export_trace
ours = TorchProfile("ours")
ours.start()
before()
steps = schedule(wait=1, warmup=1, active=1) if sys.argv[2] == "steps" else None
their = profile(schedule=steps)
their.start()
for _ in range(3):
    torch.ones(4).mul(2)
    their.step()
ours.stop()
torch.ones(4).mul(2)
if steps is None:
    their.stop()
    assert "aten::mul" in {event.name for event in their.events()}
export_trace(ours.profiler, out)
a_fresh_one_profiles()
"""


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["whole", "steps"])
def test_one_that_goes_on_after_ours(tmp_path: Path, run_python: RunPython, how: str) -> None:
    out = tmp_path / "trace.json"
    done = run_python("-c", BEGIN + OVERLAPPING, str(out), how, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("ours ends here") == 1
    names = {event.get("name") for event in json.loads(out.read_text("utf-8"))["traceEvents"]}
    assert "aten::add" in names
    assert how == "steps" or "aten::mul" not in names  # their first step waits, so it is ours


UNSEEN = """
from torch.autograd import profiler as autograd
from my_utils.profilers.torch_profiler.torch_profile import TorchProfile
ours = TorchProfile("ours")
ours.start()
before()
autograd._disable_profiler()  # what torch's own code may do
try:
    ours.stop()
except RuntimeError as error:
    print(error)
assert ours.profiler is None
"""


@pytest.mark.thorough
def test_a_loss_that_nobody_saw_is_said_at_the_end(tmp_path: Path, run_python: RunPython) -> None:
    done = run_python("-c", BEGIN + UNSEEN, str(tmp_path / "out"), timeout=600)
    assert done.returncode == 0, done.stderr
    assert "ours lost torch's only session to a profiler of the program" in done.stdout


IN_ANOTHER_THREAD = """
import threading
from my_utils.profilers.torch_profiler.torch_profile import TorchProfile
ours = TorchProfile("ours")
ours.start()
before()
thread = threading.Thread(target=theirs)
thread.start()
thread.join()
try:
    ours.stop()
except RuntimeError as error:
    print(error)
for number in range(2):
    a_fresh_one_profiles()
"""


@pytest.mark.thorough
def test_one_in_another_thread(tmp_path: Path, run_python: RunPython) -> None:
    done = run_python("-c", BEGIN + IN_ANOTHER_THREAD, str(tmp_path / "out"), timeout=600)
    assert done.returncode == 0, done.stderr
    assert "opens a torch.profiler.profile in another thread" in done.stderr
    assert "ours lost torch's only session to a profiler of the program" in done.stdout
    assert "Traceback" not in done.stderr
    assert "aten::mul" in (tmp_path / "out-theirs.json").read_text("utf-8")


def test_torch_is_as_it_was_afterwards() -> None:
    from torch.autograd.profiler import profile

    from my_utils.profilers.torch_profiler.torch_profile import TorchProfile

    before = profile._prepare_trace, profile._start_trace
    ours = TorchProfile("ours")
    ours.start()
    assert (profile._prepare_trace, profile._start_trace) != before
    ours.stop()
    assert (profile._prepare_trace, profile._start_trace) == before
