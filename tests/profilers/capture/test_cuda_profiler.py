"""The CUDA profiler and NVTX ranges round windows, on a simulated driver and a tool that writes
down what it hears."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core

from ...conftest import RunPython
from ...fakes import compile_fake

pytestmark = pytest.mark.no_torch

# Steps 1 and 3 of five are captured.
SCRIPT = """
import ctypes, json, logging, sys
from my_utils.profiling.backends import CudaProfilerBackend
from my_utils.profiling.capture_controller import CaptureController

logging.basicConfig(stream=sys.stdout, level=logging.WARNING, format="%(message)s")
options = json.loads(sys.argv[1])
if options["context"]:
    ctypes.CDLL("libcuda.so.1").fakeCudaMakeCurrent(1)
if options["torch"]:
    import types
    torch = sys.modules["torch"] = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: True, current_device=lambda: 0)
controller = CaptureController(CudaProfilerBackend(**options["backend"]))
for step in (1, 3):
    controller.arm({"window_id": f"step {step}", "start_profile_names": ["train"],
                    "start_iter": step, "nvtx": options["nvtx"]})
for step in range(5):
    with controller.hook("train", iter=step):
        if step == options["fails_at"]:
            break
if options["twice"]:
    controller.backend.stop()
    for _ in range(2):
        controller.backend.start()
    controller.backend.stop()
print(json.dumps(controller.outcomes))
"""


@dataclass
class Run:
    outcomes: dict[str, str]
    log: str
    calls: list[str]  # of the driver
    heard: list[str]  # by the tool


@dataclass
class Device:
    run_python: RunPython
    folder: Path
    driver: Path
    tool: Path

    def run(self, fail: str = "", has_driver: bool = True, **options: Any) -> Run:
        chosen = {
            "context": True, "torch": False, "backend": {}, "nvtx": False, "fails_at": None,
            "twice": False, **options,
        }  # fmt: skip
        calls, heard = self.folder / "calls", self.folder / "heard"
        env = {
            "FAKE_CUDA_FAIL": fail, "FAKE_CUDA_LOG": str(calls), "FAKE_NVTX_LOG": str(heard),
            "NVTX_INJECTION64_PATH": str(self.tool),
            **({"LD_LIBRARY_PATH": str(self.driver.parent)} if has_driver else {}),
        }  # fmt: skip
        done = self.run_python("-c", SCRIPT, json.dumps(chosen), env=env)
        assert done.returncode == 0, done.stderr
        *log, last = done.stdout.splitlines()
        return Run(json.loads(last), "\n".join(log), lines(calls), lines(heard))


def lines(path: Path) -> list[str]:
    found = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("fakes")
    return (
        compile_fake("fake_cuda.c", folder / "libcuda.so.1"),
        compile_fake("nvtx_injection.c", folder / "libinjection.so"),
    )


@pytest.fixture
def device(run_python: RunPython, built: tuple[Path, Path], tmp_path: Path) -> Device:
    return Device(run_python, tmp_path, *built)


WINDOW = ["cuCtxSynchronize", "cuProfilerStart", "cuCtxSynchronize", "cuProfilerStop"]
DONE = {"step 1": "done", "step 3": "done"}


def without_looks(calls: list[str]) -> list[str]:
    return [call for call in calls if call not in ("cuCtxGetCurrent", "cuGetErrorName")]


def test_the_driver_is_asked_at_both_ends(device: Device) -> None:
    run = device.run()
    assert (run.outcomes, run.log) == (DONE, "")
    assert without_looks(run.calls) == WINDOW * 2


def test_without_waiting(device: Device) -> None:
    run = device.run(backend={"synchronize": False})
    assert without_looks(run.calls) == ["cuProfilerStart", "cuProfilerStop"] * 2


def test_a_thread_without_a_context_takes_torchs(device: Device) -> None:
    run = device.run(context=False, torch=True, backend={"synchronize": False})
    assert run.outcomes == DONE
    before = ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent"]
    after = ["cuCtxPopCurrent", "cuDevicePrimaryCtxRelease"]
    both = [*before, "cuProfilerStart", *after, *before, "cuProfilerStop", *after]
    assert without_looks(run.calls) == both * 2


@pytest.mark.parametrize("has_driver", [True, False])
def test_without_cuda_there_is_one_warning(device: Device, has_driver: bool) -> None:
    if not has_driver and _core.cuda_state()["available"]:
        pytest.skip("this machine has a CUDA driver")
    run = device.run(context=False, has_driver=has_driver)
    assert run.outcomes == DONE
    assert without_looks(run.calls) == []
    assert run.log == "CudaProfilerBackend: CUDA is not available; nothing is captured"


def test_one_that_cannot_be_started_is_not_stopped(device: Device) -> None:
    run = device.run(fail="cuProfilerStart:1:700")
    assert run.outcomes == {"step 1": "failed", "step 3": "done"}
    assert without_looks(run.calls) == [*WINDOW[:2], *WINDOW]
    assert "cuProfilerStart failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)" in run.log


def test_one_that_cannot_be_stopped_is_logged(device: Device) -> None:
    run = device.run(fail="cuProfilerStop:1:700")
    assert run.outcomes == {"step 1": "failed", "step 3": "done"}
    assert without_looks(run.calls) == WINDOW * 2
    assert "cuProfilerStop failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)" in run.log


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("cuCtxSynchronize", "cuCtxSynchronize"),
        ("cuDeviceGet", "cuDeviceGet"),
        ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain"),
        ("cuCtxPushCurrent", "cuCtxPushCurrent"),
    ],
)
def test_other_calls_that_fail(device: Device, call: str, what: str) -> None:
    needs_context = call == "cuCtxSynchronize"
    run = device.run(fail=f"{call}:0:700", context=needs_context, torch=True)
    assert run.outcomes == {"step 1": "failed", "step 3": "failed"}
    assert f"{what} failed with CUDA_ERROR_ILLEGAL_ADDRESS (700)" in run.log
    assert "cuProfilerStart" not in run.calls
    retained = run.calls.count("cuDevicePrimaryCtxRetain") * (call != "cuDevicePrimaryCtxRetain")
    assert run.calls.count("cuDevicePrimaryCtxRelease") == retained


def test_started_and_stopped_twice(device: Device) -> None:
    run = device.run(twice=True, backend={"synchronize": False})
    end = ["cuProfilerStop", "cuProfilerStart", "cuProfilerStart", "cuProfilerStop"]
    assert without_looks(run.calls)[-4:] == end


def test_a_window_that_is_open_at_the_end_is_closed(device: Device) -> None:
    run = device.run(fails_at=3)
    assert run.outcomes == DONE  # the hook's block was left by break
    assert without_looks(run.calls) == WINDOW * 2


@pytest.mark.skipif(not _core.nvtx_state()["built"], reason="built without NVTX's headers")
@pytest.mark.parametrize(("nvtx", "names"), [(True, ["step 1", "step 3"]), ("mine", ["mine"] * 2)])
def test_an_nvtx_range_round_each_window(device: Device, nvtx: Any, names: list[str]) -> None:
    run = device.run(nvtx=nvtx)
    events = [line.split("\t") for line in run.heard if line.startswith(("start", "end"))]
    assert [event[0] for event in events] == ["start", "end"] * 2
    assert [event[2] for event in events[::2]] == [f"message={name}" for name in names]
    assert [event[2] for event in events[1::2]] == ["range=1", "range=2"]
    assert all(event[1] == "domain=" for event in events)


def test_no_range_for_a_window_that_could_not_open(device: Device) -> None:
    run = device.run(nvtx=True, fail="cuProfilerStart:0:700")
    assert not [line for line in run.heard if line.startswith(("start", "end"))]
