"""Whether stages of an automatic run get GPU times: a simulated driver, from its first use on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..conftest import RunPython
from ..fakes import compile_fake

pytest.importorskip("torch", reason="torch is not installed")

# A torch without CUDA has no first use of it; what torch calls then is called here.
SCRIPT = """
import sys, torch
from my_utils.run.stages.recorder import arm

if sys.argv[1] == "initialised":
    torch.cuda.is_initialized = lambda: True
recorder = arm(lambda: None)
before = recorder.stages.timer.use_cuda
for call in torch.cuda._queued_calls:
    call[0]()
print(before, recorder.stages.timer.use_cuda)
recorder.disarm()
"""

# What a stage asks of the driver is counted: a torch without CUDA knows no stream.
STAGES = """
import ctypes, torch
from my_utils import _core
from my_utils.run.stages.names import STAGES
from my_utils.run.stages.recorder import arm

ctypes.CDLL("libcuda.so.1").fakeCudaMakeCurrent(1)
torch.cuda.is_initialized = lambda: True
recorder = arm(lambda: None)
assert recorder.stages.timer.use_cuda
for number, name in enumerate(STAGES):
    before = _core.cuda_state()
    recorder.stages.begin(number)
    recorder.stages.end()
    after = _core.cuda_state()
    if any(after[key] > before[key] for key in ("spans", "no_stream")):
        print(name, end=" ")
recorder.disarm()
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> str:
    driver = compile_fake("fake_cuda.c", tmp_path_factory.mktemp("cuda") / "libcuda.so.1")
    return os.pathsep.join(filter(None, [str(driver.parent), os.environ.get("LD_LIBRARY_PATH")]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("when", "switch", "said"),
    [
        ("later", "", "False True"),
        ("initialised", "", "True True"),
        ("later", "0", "False False"),
        ("initialised", "0", "False False"),
    ],
)
def test_they_begin_with_cuda_unless_switched_off(
    when: str, switch: str, said: str, libraries: str, run_python: RunPython, tmp_path: Path
) -> None:
    env = {"LD_LIBRARY_PATH": libraries}
    if switch:
        env["MY_UTILS_RUN_GPU_TIMES"] = switch
    done = run_python("-c", SCRIPT, when, env=env)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr


@pytest.mark.thorough
def test_stages_of_the_host_have_none(libraries: str, run_python: RunPython) -> None:
    """Two events there are as far apart as the host waits, which looks like work of the device."""
    done = run_python("-c", STAGES, env={"LD_LIBRARY_PATH": libraries})
    assert done.stdout.split() == [
        "h2d", "forward", "loss", "backward", "optimizer", "collective", "eval",
    ], done.stderr  # fmt: skip
