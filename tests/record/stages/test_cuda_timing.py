"""GPU times of stages: on a simulated driver, whose truth is known, and on a real GPU."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from my_utils import _core
from my_utils.csv2trace import csv_to_trace

from ...conftest import RunPython
from ...fakes import compile_fake
from ...support.profile_rows import only_opens

# What the scripts below share: the simulated device, and a way to time stages whose true GPU times
# stand in `truth`, on the host's clock.
DEVICE = """
import ctypes, json, os, sys, time
from my_utils import _core

device = ctypes.CDLL("libcuda.so.1")
device.fakeCudaStream.restype = ctypes.c_void_p
device.fakeCudaLastEvent.restype = ctypes.c_int64
device.fakeCudaLastEvent.argtypes = [ctypes.c_void_p]
device.fakeCudaWork.argtypes = [ctypes.c_void_p, ctypes.c_int64]
device.fakeCudaCapture.argtypes = [ctypes.c_void_p, ctypes.c_int]
device.fakeCudaDevice.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_double]
device.fakeCudaDevice(5_000, 86_400_000_000_000, 50.0)
device.fakeCudaMakeCurrent(1)
warnings = []
_core.set_warning_hook(lambda kind, message: warnings.append([kind, message]))
_core.open_output(log_dir=os.environ["LOGS"])
truth = []

def run(timer, name, work_ns):
    timer.start(name)
    begin = device.fakeCudaLastEvent(None)
    device.fakeCudaWork(None, work_ns)
    timer.stop(name)
    truth.append([name, begin, device.fakeCudaLastEvent(None) - begin])

def unix_offset():
    before, real, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
    return after - before, real - (before + after) // 2

def report(**more):
    _core.close_output()
    _, unix = min(unix_offset() for _ in range(100))
    print(json.dumps({"truth": truth, "unix": unix, "warnings": warnings,
                      "state": _core.cuda_state(), "misuse": device.fakeCudaMisuse(), **more}))
"""

# A torch that has nothing but its table of DLPack functions, as torch 2.13 lays it out: to import
# the real one takes seconds. `streams` says what is current.
TABLE = """
import types

streams = [None]
@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def current_work_stream(device_type, device_id, out):
    assert (device_type, device_id) == (2, 0)
    out[0] = streams[-1]
    return 0

class Table(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("older", ctypes.c_void_p),
                ("others", ctypes.c_void_p * 4), ("current_work_stream", ctypes.c_void_p)]

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
table = Table(1, 3, None, current_work_stream=ctypes.cast(current_work_stream, ctypes.c_void_p))
newer = Table(2, 0, ctypes.addressof(table))
capsule = new_capsule(ctypes.addressof(table), b"dlpack_exchange_api", None)
torch = types.ModuleType("torch")
torch.Tensor = type("Tensor", (), {"__dlpack_c_exchange_api__": capsule})
sys.modules["torch"] = torch
"""

PRELUDE = DEVICE + TABLE

FUNCTIONS = [
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuCtxPushCurrent",
    "cuEventCreate",
    "cuEventDestroy",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
]


@dataclass
class Run:
    """What a script said, and the rows that it left."""

    said: dict[str, Any]
    rows: list[dict[str, str]]
    calls: list[str]

    def ends(self, name: str | None = None) -> list[dict[str, str]]:
        return [
            metadata_of(row)
            for row in self.rows
            if row["event_type"] == "END" and name in (None, row["event_name"])
        ]


def metadata_of(row: dict[str, str]) -> dict[str, str]:
    pairs = (item.split("=", 1) for item in row["metadata"].split(","))
    return dict(pairs)


def ns_of(text: str, digits: int) -> int:
    """Decimal text with exactly that many digits after the point, as a whole number."""
    whole, _, fraction = text.partition(".")
    assert len(fraction) == digits
    return int(whole + fraction)


def rows_in(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            rows.extend(row for row in csv.DictReader(file) if not only_opens(row))
    return rows


RunScript = Callable[..., Run]


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("fake_cuda.c", tmp_path_factory.mktemp("cuda") / "libcuda.so.1")


@pytest.fixture
def run_script(run_python: RunPython, fake_driver: Path, tmp_path: Path) -> RunScript:
    logs = tmp_path / "logs"
    logs.mkdir()
    log = tmp_path / "calls"

    def run(script: str, prelude: str = PRELUDE, status: int = 0) -> Run:
        libraries = [str(fake_driver.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        env = {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries)),
            "FAKE_CUDA_LOG": str(log),
            "LOGS": str(logs),
        }
        result = run_python("-c", prelude + script, env=env)
        assert result.returncode == status, result.stderr
        # The scripts open the output by the C module, which the hint at the end knows nothing of.
        told = [line for line in result.stderr.splitlines() if "never written: set" not in line]
        assert told == []
        said = json.loads(result.stdout) if result.stdout else {}
        return Run(said, rows_in(logs), log.read_text().split() if log.exists() else [])

    return run


def test_times_are_right_and_say_how_right(run_script: RunScript) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.version.cuda is not None:
        pytest.skip("a torch for CUDA asks its runtime for the stream; the fake driver serves none")
    run = run_script(
        """
timer = _core.Timer(use_cuda=True)
for step in range(100):
    timer.set_step(step)
    run(timer, "forward", 700_000)
    run(timer, "backward", 1_500_000)
    timer.step()
report(figures=timer.cuda_aggregates())
""",
        prelude="import torch\n" + DEVICE,
    )
    ends = run.ends()
    assert len(ends) == 200
    drift = 50e-6
    end_before = 0
    for found, (_, begin, duration) in zip(ends, run.said["truth"], strict=True):
        assert list(found)[-4:] == ["cuda_ms", "cuda_ts", "cuda_err_ms", "stream"]
        error = ns_of(found["cuda_err_ms"], 6)
        start = ns_of(found["cuda_ts"], 9) - run.said["unix"]
        # The rows' Unix time follows the system's clock, which may be slewed meanwhile.
        assert abs(start - begin) <= error + 100_000
        assert abs(ns_of(found["cuda_ms"], 6) - duration) <= duration * drift + 1000
        cuda_ts = ns_of(found["cuda_ts"], 9)
        assert cuda_ts >= end_before, "stages of one stream overlap"
        end_before = cuda_ts + ns_of(found["cuda_ms"], 6)
    assert sorted(ns_of(found["cuda_err_ms"], 6) for found in ends)[100] < 1_000_000
    assert run.said["state"]["spans"] == 200
    assert run.said["warnings"] == []
    assert run.said["misuse"] == 0
    counts = {tuple(path): count for path, count, *_ in run.said["figures"]}
    assert counts == {("forward",): 100, ("backward",): 100}
    assert run.calls.count("cuEventSynchronize") == 100
    assert not [call for call in run.calls if call in ("cuCtxSynchronize", "cuStreamSynchronize")]
    assert run.calls.count("cuEventCreate") < 20


def test_a_stream_is_one_track_of_the_trace(run_script: RunScript, tmp_path: Path) -> None:
    run = run_script("""
from my_utils import MyTimer
timer = MyTimer(use_cuda=True)
for step in range(1000):
    timer.set_step(step)
    with timer.time_stage("iter"):
        run(timer, "forward", 300_000)
        run(timer, "backward", 600_000)
        streams.append(device.fakeCudaStream(3))
        with timer.time_stage("copy"):
            device.fakeCudaWork(streams[-1], 900_000)
        streams.pop()
    timer.step()
report()
""")
    out = tmp_path / "trace.json"
    csv_to_trace(tmp_path / "logs", out)
    events = json.loads(out.read_text(encoding="utf-8"))["traceEvents"]
    named = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    on_gpu = {tid: name for tid, name in named.items() if "CUDA" in name}
    assert sorted(on_gpu.values()) == ["CUDA stream 1", "CUDA stream 4"]
    slices = Counter(
        (event["name"], named[event["tid"]])
        for event in events
        if event["ph"] == "X" and event["tid"] in on_gpu
    )
    assert slices == {
        ("iter", "CUDA stream 1"): 1000,
        ("forward", "CUDA stream 1"): 1000,
        ("backward", "CUDA stream 1"): 1000,
        ("copy", "CUDA stream 4"): 1000,
    }
    measured = {
        end["node_id"]: (float(end["cuda_ms"]) * 1000, float(end["cuda_err_ms"]) * 1000)
        for end in run.ends()
    }
    for event in events:
        if event["ph"] == "X" and event["tid"] in on_gpu:
            us, error_us = measured[str(event["args"]["node_id"])]
            assert (
                us - 0.01
                <= event["dur"]
                <= us + 2 * max(error_us, event["args"]["cuda_err_ms"] * 1000)
            )


def test_cuda_stages_narrows(run_script: RunScript) -> None:
    run = run_script("""
timer = _core.Timer(use_cuda=True, cuda_stages="forward|backward")
for name in ("data", "forward", "backward", "optimizer") * 3:
    run(timer, name, 10_000)
timer.step()
report()
""")
    with_times = {row["event_name"] for row in run.rows if "cuda_ms=" in row["metadata"]}
    assert with_times == {"forward", "backward"}
    assert len(run.ends()) == 12
    assert run.said["state"]["spans"] == 6


def test_a_timer_without_cuda_makes_no_calls(run_script: RunScript) -> None:
    run = run_script("""
timer = _core.Timer()
run(timer, "forward", 10_000)
timer.step()
report()
""")
    assert "cuda_ms" not in run.ends()[0]
    assert run.calls == []


def test_no_context_no_times(run_script: RunScript) -> None:
    run = run_script("""
device.fakeCudaMakeCurrent(0)
timer = _core.Timer(use_cuda=True)
run(timer, "forward", 10_000)
timer.step()
report()
""")
    assert "cuda_ms" not in run.ends()[0]
    assert set(run.calls) == {"cuCtxGetCurrent"}, "no context may be made"
    assert run.said["warnings"] == []


def test_torch_is_not_imported_for_it(run_script: RunScript) -> None:
    run = run_script(
        """
timer = _core.Timer(use_cuda=True)
run(timer, "forward", 10_000)
timer.step()
report(torch="torch" in sys.modules)
""",
        prelude=DEVICE,
    )
    assert run.said["torch"] is False
    assert run.said["state"]["spans"] == 0
    assert "cuda_ms" not in run.ends()[0]


def test_the_current_stream_is_torchs(run_script: RunScript) -> None:
    run = run_script("""
timer = _core.Timer(use_cuda=True)
timer.start("main")
begin = device.fakeCudaLastEvent(None)
streams.append(device.fakeCudaStream(3))
with timer.time_stage("side"):
    device.fakeCudaWork(streams[-1], 2_000_000)
streams.pop()
timer.stop("main")
truth.append(["main", begin, device.fakeCudaLastEvent(None) - begin])
timer.step()
report()
""")
    (main,), (side,) = run.ends("main"), run.ends("side")
    assert main["stream"] == "1"
    assert side["stream"] == "4"
    assert float(side["cuda_ms"]) >= 2.0
    ((_, _, duration),) = run.said["truth"]
    assert abs(ns_of(main["cuda_ms"], 6) - duration) <= duration * 50e-6 + 1000


@pytest.mark.parametrize(
    ("change", "times"),
    [
        ("capsule = new_capsule(ctypes.addressof(newer), b'dlpack_exchange_api', None)", True),
        ("newer.older = None; capsule = new_capsule(ctypes.addressof(newer), "
         "b'dlpack_exchange_api', None)", False),
        ("capsule = new_capsule(ctypes.addressof(table), b'another name', None)", False),
        ("capsule = 7", False),
    ],
)  # fmt: skip
def test_other_tables_of_torch(run_script: RunScript, change: str, times: bool) -> None:
    run = run_script(f"""
{change}
torch.Tensor = type("Tensor", (), {{"__dlpack_c_exchange_api__": capsule}})
timer = _core.Timer(use_cuda=True)
timer.start("forward")
timer.stop("forward")
timer.step()
report()
""")
    assert ("cuda_ms" in run.ends("forward")[0]) is times
    kinds = [kind for kind, _ in run.said["warnings"]]
    assert kinds == ([] if times else ["cuda_no_stream"])
    assert run.said["state"]["no_stream"] == (0 if times else 1)


def test_nothing_is_recorded_into_a_graph(run_script: RunScript) -> None:
    run = run_script("""
timer = _core.Timer(use_cuda=True)
run(timer, "before", 10_000)
timer.start("over the beginning")
side = device.fakeCudaStream(3)
device.fakeCudaCapture(side, 1)
for _ in range(3):
    run(timer, "captured", 10_000)
timer.step()
timer.stop("over the beginning")
device.fakeCudaCapture(side, 0)
run(timer, "after", 10_000)
timer.step()
report()
""")
    with_times = {row["event_name"] for row in run.rows if "cuda_ms=" in row["metadata"]}
    assert with_times == {"before", "after"}
    assert len(run.ends()) == 6
    assert run.said["misuse"] == 0, "an event got into the graph, or the capture was broken"
    assert run.said["state"]["captured"] == 4
    assert run.said["state"]["errors"] == 0


def test_late_times_hold_back_their_own_row_alone(run_script: RunScript) -> None:
    run = run_script("""
from pathlib import Path
timer = _core.Timer(use_cuda=True, cuda_stages="slow")
def ended(name):
    text = "".join(path.read_text() for path in Path(os.environ["LOGS"]).glob("*.csv"))
    return text.count(f",{name},END,")
seen = []
run(timer, "slow", 1_000_000_000_000)
run(timer, "quick", 0)
for _ in range(65):
    timer.step(wait=False)
    _core.drain(60.0)  # where another drain was running, the step left it to that one
    seen.append([ended("slow"), ended("quick")])
report(seen=seen)
""")
    assert run.said["seen"] == [[0, 1]] * 64 + [[1, 1]]
    assert "cuda_ms" not in run.ends("slow")[0]
    assert run.said["state"]["late"] == 1
    assert [kind for kind, _ in run.said["warnings"]] == ["cuda_late"]


def test_stages_of_a_run_have_gpu_times(run_script: RunScript) -> None:
    run = run_script("""
stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
assert stages.use_cuda()
for stage in (0, 2, 4, 5):
    stages.begin(stage) if stage != 5 else stages.begin_step(stages)
    device.fakeCudaWork(None, 3_000_000)
    stages.end() if stage != 5 else stages.end_step(stages)
report()
""")
    for name in ("input", "forward", "backward", "optimizer"):
        [end] = run.ends(name)
        assert 3 <= float(end["cuda_ms"]) < 4, name
    assert run.said["misuse"] == 0


BACKWARD = (
    PRELUDE
    + """
class Parameter:
    _backward_hooks = None

def backward(parameters, work_ns):
    # Autograd's order: the last layer first, each after the device was given its work.
    stages.begin(4)
    ended = [device.fakeCudaLastEvent(None)]
    for parameter in parameters:
        device.fakeCudaWork(None, work_ns)
        for hook in (parameter._backward_hooks or {}).values():
            hook(None)
        ended.append(device.fakeCudaLastEvent(None))
    stages.end()
    return ended

def on_gpu(times):
    deadline = time.monotonic() + 60
    while (found := times.read_gpu()) is None:
        assert time.monotonic() < deadline
        stages.drain_soon()
        time.sleep(0.005)
    return found

parameters = [Parameter() for _ in range(4)]
stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
assert stages.use_cuda()
times = _core.BucketTimes(tuple(parameters), (0, 0, 1, 1))
"""
)


def test_buckets_of_gradients_are_ready_on_the_gpu_later_than_on_the_host(
    run_script: RunScript,
) -> None:
    said = run_script(
        """
truths, found = [], []
for _ in range(5):
    stages.buckets = times
    truths.append(backward(parameters, 20_000_000))
    stages.buckets = None
    pending = times.read_gpu()
    began, _, host = times.read()
    found.append([pending, began, host, on_gpu(times), times.read_gpu()])
report(found=found, truths=truths)
""",
        BACKWARD,
    ).said
    for (pending, began_ns, host, (gpu, error_us), again), truth in zip(
        said["found"], said["truths"], strict=True
    ):
        assert pending is None and again == [[], 0]
        begin, *wanted = [(at - began_ns) / 1e3 for at in (truth[0], truth[2], truth[4])]
        assert 0 <= gpu[0] <= begin + error_us  # the stage's own event comes after it
        for one, true, enqueued in zip(gpu[1:], wanted, host, strict=True):
            assert abs(one - true) <= error_us + 3
            assert one >= enqueued + 20_000 - error_us - 3
        assert abs((gpu[2] - gpu[1]) - (wanted[1] - wanted[0])) <= 3
        assert gpu[2] - gpu[0] >= 80_000
    assert said["misuse"] == 0 and said["warnings"] == []


def test_without_a_gradient_or_a_gpu_a_bucket_has_no_time_there(run_script: RunScript) -> None:
    said = run_script(
        """
stages.buckets = times
backward(parameters[:3], 1_000)  # the last bucket is not whole
stages.buckets = None
partial = on_gpu(times)
device.fakeCudaMakeCurrent(0)
stages.buckets = times
backward(parameters, 1_000)
stages.buckets = None
outside = times.read_gpu()
times.install()
times.remove()
report(partial=partial, outside=outside, alone=times.read_gpu())
""",
        BACKWARD,
    ).said
    (begin, first, second), _ = said["partial"]
    assert begin is not None and first is not None and second is None
    assert said["outside"] == said["alone"] == [[], 0]


def test_a_gradient_that_comes_again_counts_anew(run_script: RunScript) -> None:
    """As in a backward inside a backward: the last call of a bucket counts."""
    said = run_script(
        """
stages.buckets = times
truth = backward([*parameters, parameters[2]], 5_000_000)
stages.buckets = None
report(gpu=on_gpu(times), truth=truth, began=times.read()[0])
""",
        BACKWARD,
    ).said
    times, error_us = said["gpu"]
    assert abs(times[2] - (said["truth"][5] - said["began"]) / 1e3) <= error_us + 3


def test_marks_go_back_to_the_pool(run_script: RunScript) -> None:
    said = run_script(
        """
for turn in range(1000):  # five spans each, and the pool has 4,096
    times = _core.BucketTimes(tuple(parameters), (0, 0, 1, 1))
    stages.buckets = times
    backward(parameters, 0)
    stages.buckets = None
    if turn % 3 == 0:
        on_gpu(times)
    if turn % 50 == 0:
        stages.timer.step(False)
child = os.fork()
if child == 0:
    os._exit(0 if times.read_gpu() == ([], 0) else 1)
report(child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        BACKWARD,
    ).said
    assert said["state"]["pool_empty"] == 0 and said["misuse"] == 0
    assert said["child"] == 0


def test_an_empty_pool_is_counted(run_script: RunScript) -> None:
    run = run_script("""
timer = _core.Timer(use_cuda=True)
timers = [_core.Timer(use_cuda=True, tag=tag) for tag in "ab"]
for timer in timers:
    for _ in range(2048 + 5):
        timer.start("many")  # an open one keeps its place
for timer in timers:
    for _ in range(2048 + 5):
        timer.stop("many")
timer.step()
report()
""")
    assert len(run.ends()) == 4106
    assert run.said["state"]["pool_empty"] == 10
    assert "cuda_pool_empty" in [kind for kind, _ in run.said["warnings"]]


def test_every_call_of_the_driver_may_fail(run_script: RunScript) -> None:
    run = run_script(f"""
counts = {{}}
timer = _core.Timer(use_cuda=True)
for function in {FUNCTIONS!r}:
    before = _core.cuda_state()["errors"]
    device.fakeCudaFail(f"{{function}}:0:700".encode())
    for _ in range(6):
        run(timer, function, 1000)
        timer.step()
    device.fakeCudaFail(b"")
    counts[function] = _core.cuda_state()["errors"] - before
    device.fakeCudaReset()
    timer.step()  # sees that the context is another one
run(timer, "works again", 1000)
timer.step()
report(counts=counts)
""")
    assert len(run.ends()) == 6 * len(FUNCTIONS) + 1
    assert len([row for row in run.rows if row["event_type"] == "START"]) == len(run.ends())
    assert all(count <= 1 for count in run.said["counts"].values())
    assert run.said["counts"]["cuEventRecord"] == 1
    assert run.said["misuse"] == 0
    errors = [message for kind, message in run.said["warnings"] if kind == "cuda_error"]
    assert len(errors) == 1, "one warning, whatever goes on failing"
    assert "CUDA_ERROR_ILLEGAL_ADDRESS (700)" in errors[0]
    assert "cuda_ms" in run.ends("works again")[0]


def test_a_device_reset_leaves_cpu_times_only(run_script: RunScript) -> None:
    run = run_script("""
timer = _core.Timer(use_cuda=True)
run(timer, "before", 1000)
timer.start("open")
device.fakeCudaReset()
timer.stop("open")
timer.step()
run(timer, "after", 1000)
timer.step()
report()
""")
    assert "cuda_ms" not in run.ends("open")[0]
    assert "cuda_ms" in run.ends("after")[0]
    assert run.said["misuse"] == 0, "an event was used after its context was gone"
    assert run.said["state"]["errors"] == 1


def test_a_forked_child_has_cpu_times(run_script: RunScript) -> None:
    run = run_script("""
timer = _core.Timer(use_cuda=True)
run(timer, "parent", 1000)
timer.step()
pid = os.fork()
if pid == 0:
    # What a real driver says in a forked child.
    device.fakeCudaFail(b"cuCtxGetCurrent:0:3,cuCtxGetId:0:3,cuCtxPushCurrent:0:3")
    assert _core.cuda_state()["spans"] == 0
    timer.step()
    timer.start("child")
    timer.stop("child")
    timer.step()
    _core.close_output()
    os._exit(0)
status = os.waitpid(pid, 0)[1]
run(timer, "parent", 1000)
timer.step()
report(status=status)
""")
    assert run.said["status"] == 0
    assert len(run.ends("child")) == 1
    assert "cuda_ms" not in run.ends("child")[0]
    assert ["cuda_ms" in end for end in run.ends("parent")] == [True, True]


def test_a_kill_loses_no_held_row(run_script: RunScript) -> None:
    run_script(
        """
timer = _core.Timer(use_cuda=True)
for i in range(20):
    run(timer, "held", 1_000_000_000)
    if i == 10:
        timer.step(wait=False)
os.kill(os.getpid(), 9)
""",
        status=-signal.SIGKILL,
    )
    run = run_script("report()\n")
    assert len([row for row in run.rows if row["event_type"] == "START"]) == 20
    assert len(run.ends("held")) == 20
    assert len({end["node_id"] for end in run.ends("held")}) == 20


def test_memory_and_events_do_not_grow(run_script: RunScript) -> None:
    run = run_script("""
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
timer = _core.Timer(use_cuda=True)
sizes = []
for step in range(30_000):
    timer.start("forward")
    timer.stop("forward")
    if step % 10 == 9:
        timer.step()
    if step % 10_000 == 9_999:
        sizes.append(resident())
report(sizes=sizes, live=device.fakeCudaLiveEvents())
""")
    assert run.said["live"] < 100
    assert run.said["sizes"][2] - run.said["sizes"][0] < 1 << 20


def test_without_a_driver_one_warning(run_python: RunPython) -> None:
    if _core.cuda_state()["available"]:
        pytest.skip("this machine has a CUDA driver")
    result = run_python(
        "-c",
        """
from my_utils import _core
_core.set_warning_hook(lambda kind, message: print(kind, message))
timer = _core.Timer(use_cuda=True)
assert timer.use_cuda is False
timer.start("forward")
timer.stop("forward")
timer.step()
""",
    )
    assert result.stderr == ""
    assert result.stdout.startswith("cuda_unavailable use_cuda=True, but there is no CUDA driver")
    assert result.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("pattern", "error", "message"),
    [
        ("(", ValueError, "cuda_stages must be a valid regular expression, not '('"),
        (
            3,
            TypeError,
            "cuda_stages must be a regular expression (str or re.Pattern) or None, not int (3)",
        ),
    ],
)
def test_bad_patterns_say_what_is_allowed(
    pattern: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as raised:
        _core.Timer(cuda_stages=pattern)
    assert str(raised.value) == message


# --- on a real GPU ---

REAL = """
import json, os, time
import torch
from my_utils import _core

warnings = []
_core.set_warning_hook(lambda kind, message: warnings.append([kind, message]))
_core.open_output(log_dir=os.environ["LOGS"])
a = torch.randn(4096, 4096, device="cuda")
(a @ a).sum().item()
timer = _core.Timer(use_cuda=True)

def report(**more):
    _core.close_output()
    print(json.dumps({"warnings": warnings, "state": _core.cuda_state(), **more}))
"""


@pytest.fixture
def run_on_gpu(run_python: RunPython, tmp_path: Path) -> RunScript:
    def run(script: str) -> Run:
        result = run_python("-c", REAL + script, env={"LOGS": str(tmp_path)})
        assert result.returncode == 0, result.stderr
        return Run(json.loads(result.stdout), rows_in(tmp_path), [])

    return run


@pytest.mark.gpu
def test_gpu_durations_agree_with_torch_events(run_on_gpu: RunScript) -> None:
    run = run_on_gpu("""
theirs = []
for step in range(20):
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    timer.start("matmul")
    before.record()
    for _ in range(10):
        a @ a
    after.record()
    timer.stop("matmul")
    timer.step()
    theirs.append(before.elapsed_time(after))
report(theirs=theirs)
""")
    for found, theirs in zip(run.ends("matmul"), run.said["theirs"], strict=True):
        assert theirs <= float(found["cuda_ms"]) + 0.002
        assert float(found["cuda_ms"]) <= theirs + 0.2
    assert run.said["warnings"] == []


@pytest.mark.gpu
def test_gpu_starts_lie_between_launch_and_wait(run_on_gpu: RunScript) -> None:
    run = run_on_gpu("""
bounds = []
for step in range(50):
    torch.cuda.synchronize()
    before = time.time_ns()
    with timer.time_stage("matmul"):
        a @ a
    torch.cuda.synchronize()
    bounds.append([before, time.time_ns()])
    timer.step()
report(bounds=bounds)
""")
    errors = []
    for found, (before, after) in zip(run.ends("matmul"), run.said["bounds"], strict=True):
        start = ns_of(found["cuda_ts"], 9)
        error = ns_of(found["cuda_err_ms"], 6)
        errors.append(error)
        assert before - error <= start <= after + error
    assert sorted(errors)[25] < 200_000


@pytest.mark.gpu
def test_gpu_graph_capture_is_left_alone(run_on_gpu: RunScript) -> None:
    run = run_on_gpu("""
out = torch.empty_like(a)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    torch.mm(a, a, out=out)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
timer.start("before")
timer.stop("before")
with torch.cuda.graph(graph, stream=stream):
    timer.start("captured")
    torch.mm(a, a, out=out)
    timer.stop("captured")
    timer.step(wait=False)
graph.replay()
torch.cuda.synchronize()
with timer.time_stage("replay"):
    graph.replay()
timer.step()
report(right=bool(torch.allclose(out, a @ a, rtol=1e-3, atol=1e-2)))
""")
    assert run.said["right"]
    assert run.said["state"]["errors"] == 0
    assert "cuda_ms" not in run.ends("captured")[0]
    assert "cuda_ms" in run.ends("replay")[0]


@pytest.mark.gpu
def test_gpu_side_streams_have_their_own_number(run_on_gpu: RunScript) -> None:
    run = run_on_gpu("""
side = torch.cuda.Stream()
with timer.time_stage("main"):
    a @ a
with torch.cuda.stream(side), timer.time_stage("side"):
    a @ a
torch.cuda.synchronize()
timer.step()
report()
""")
    assert run.ends("main")[0]["stream"] != run.ends("side")[0]["stream"]
