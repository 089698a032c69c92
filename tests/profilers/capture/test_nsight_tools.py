"""nsys and ncu, where they and a GPU are at hand, see the armed window and nothing else."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from my_utils.ncu_analyze_from_csv import analyze_sm_throughput_from_csv

from ...conftest import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(400)]

# Each step is one kernel; the window has the steps 2 and 3 of six.
PROGRAM = """
import sys
import torch
from my_utils.ForwardProfileHook import ForwardProfilerHook
from my_utils.profiling.backends import CudaProfilerBackend
from my_utils.profiling.capture_controller import CaptureController

class Model(torch.nn.Module):
    def forward(self, x):
        return x.add_(1)

model, x = Model(), torch.zeros(1000, device="cuda")
if sys.argv[1] == "hook":
    ForwardProfilerHook(2, 4, nvtx_range="the window").attach(model)
    for _ in range(6):
        model(x)
else:
    controller = CaptureController(CudaProfilerBackend())
    controller.arm({
        "window_id": "the window", "start_profile_names": ["step"], "start_iter": 2,
        "stop_policy": "ON_STOP_PROFILE_NAME", "stop_profile_names": ["step"], "stop_iter": 3,
        "stop_edge": "EXIT", "nvtx": True,
    })
    for step in range(6):
        with controller.hook("step", iter=step):
            model(x)
assert x.sum().item() == 6000
"""


def run(folder: Path, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    (folder / "program.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}")
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=360, check=False
    )
    said = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in said:
        pytest.skip("this user may not read the GPU's performance counters")
    assert done.returncode == 0, said
    return said


@pytest.mark.parametrize("how", ["hook", "controller"])
def test_nsys(how: str, tmp_path: Path) -> None:
    run(tmp_path, "nsys", "profile", "--trace=cuda,nvtx", "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop", "-o", "report", sys.executable, "program.py", how)  # fmt: skip
    run(tmp_path, "nsys", "export", "--type=sqlite", "-o", "report.sqlite", "report.nsys-rep")
    with closing(sqlite3.connect(tmp_path / "report.sqlite")) as report:
        (kernels,) = report.execute("select count(*) from CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
    assert kernels == 2


@pytest.mark.parametrize("how", ["hook", "controller"])
def test_ncu(how: str, tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    run(tmp_path, "ncu", "--profile-from-start", "off", "--csv", "--page", "raw", "--log-file",
        "report.csv", sys.executable, "program.py", how)  # fmt: skip
    table = analyze_sm_throughput_from_csv(tmp_path / "report.csv")
    assert list(table["count"]) == [2]
    assert table["time_ms"][0] > 0
