"""What the files beside it were made of: the maker and the tests make the same values of it."""

from __future__ import annotations

import collections
import datetime
import decimal
import inspect
import lzma
import math
import pathlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FILES = Path(__file__).resolve().parent / "files"


def unpack(name: str, target: Path) -> Path:
    """A copy of a folder of `files/` that a test may change, with its .xz files unpacked."""
    for path in sorted((FILES / name).rglob("*")):
        if path.is_dir():
            continue
        copy = target / path.relative_to(FILES / name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".xz":
            copy.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
        else:
            shutil.copy(path, copy)
    return target


def pickle_files() -> list[Path]:
    return sorted((FILES / "pickles").glob("*.pickle*"))


def content(path: Path) -> bytes:
    """Of a file of `files/`."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def state_of(value: Any) -> Any:
    """What a user sees of an object, as it goes into JSON: attributes and items, by name."""
    if isinstance(type(value), type) and type(value).__module__.startswith("my_utils"):
        return _state_of_ours(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): state_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [state_of(item) for item in value]
    if hasattr(value, "tolist"):
        return state_of(value.tolist())
    if hasattr(value, "to_dict"):
        return state_of(value.to_dict("list"))
    if isinstance(value, type) or callable(value):
        return value.__qualname__ if hasattr(value, "__qualname__") else type(value).__qualname__
    return str(value) if isinstance(value, Path | pathlib.PurePath) else type(value).__qualname__


def _state_of_ours(value: Any) -> dict[str, Any]:
    names = set(getattr(value, "__dict__", ())) | {
        name
        for cls in type(value).__mro__
        if cls.__module__.startswith("my_utils")
        for name, static in vars(cls).items()
        if inspect.isdatadescriptor(static)
    }
    state: dict[str, Any] = {"class": type(value).__qualname__}
    for name in sorted(names):
        if not name.startswith("_"):
            try:
                state[name] = state_of(getattr(value, name))
            except ValueError:
                continue  # durations that were not sent one by one
    if isinstance(value, float | str):
        state["value"] = float(value) if isinstance(value, float) else str(value)
    if isinstance(value, BaseException):
        state["args"] = state_of(list(value.args))
        state["text"] = str(value)
    if isinstance(value, Mapping):
        state["items"] = {key: state_of(item) for key, item in value.items()}
    return state


def durations() -> dict[str, list[float]]:
    """Seconds by name."""
    return {"load": [0.25, 0.5, 1.0, 2.0], "save": [0.001 * i for i in range(1, 101)]}


def tensors() -> dict[str, Any]:
    import torch

    numbers = torch.arange(-6, 18).reshape(4, 6)
    floats = torch.tensor([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf")])
    return {
        "bool": numbers > 3,
        "uint8": numbers.to(torch.uint8),
        "int64": numbers,
        "float32": numbers.to(torch.float32) / 4,
        "float64": numbers.to(torch.float64) / 4,
        "bfloat16": numbers.to(torch.bfloat16),
        "float16": numbers.to(torch.float16),
        "complex64": torch.complex(numbers.float(), -numbers.float()),
        "float8_e4m3fn": numbers.to(torch.float32).to(torch.float8_e4m3fn),
        "special": floats,
        "strided": numbers.t()[::2],
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
    }


def objects() -> dict[str, Any]:
    """What `UniversalDumper` dumped, by its stage."""
    import numpy as np
    import torch

    shared = [1, 2]
    cyclic: list[Any] = [0]
    cyclic.append(cyclic)
    return {
        "plain": {
            "none": None, "bool": True, "int": -7, "big": 10**40, "float": 0.1, "text": "grün,\n\"",
            "bytes": bytes(range(256)), "complex": 1 - 2j, "list": [1, [2, [3]]], "tuple": (1, "a"),
            "set": {1, 2}, "frozenset": frozenset("ab"), 3: "key", (1, 2): "tuple key",
        },
        "standard": {
            "deque": collections.deque([1, 2], maxlen=5),
            "ordered": collections.OrderedDict(b=1, a=2),
            "counter": collections.Counter("abca"),
            "defaultdict": collections.defaultdict(list, {"a": [1]}),
            "date": datetime.date(2025, 6, 15),
            "time": datetime.datetime(2025, 6, 15, 12, 0, 1, 5, tzinfo=datetime.UTC),
            "span": datetime.timedelta(days=1, microseconds=3),
            "decimal": decimal.Decimal("1.10"), "path": pathlib.PurePosixPath("/data/run/x"),
            "range": range(1, 10, 3), "slice": slice(1, None, 2), "bytearray": bytearray(b"ab"),
        },
        "shared": {"a": shared, "b": shared, "cyclic": cyclic},
        "tensors": {**tensors(), "parameter": torch.nn.Parameter(torch.ones(2)),
                    "size": torch.Size([1, 2]), "dtype": torch.bfloat16,
                    "device": torch.device("cpu")},
        "arrays": {"float": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.int16(3),
                   "strings": np.array(["a", "bc"]), "big_endian": np.arange(3, dtype=">i4")},
        "pickled": {"module": torch.nn.ReLU()},
    }  # fmt: skip


def batch() -> dict[str, Any]:
    import torch

    return {"x": torch.arange(6.0).reshape(3, 2), "y": torch.arange(3)}


def hooked_models() -> dict[str, Any]:
    """Models as they are saved while something of ours is installed in them."""
    import torch

    from my_utils.compare_tool import open_module_tracker
    from my_utils.module_hook import ForwardTraceRecorder
    from my_utils.moduleProfiler import ModuleProfiler
    from my_utils.profiling.capture_controller import attach

    hooks: dict[str, Callable[[torch.nn.Module], object]] = {
        "profiled": lambda model: ModuleProfiler(model).start(),
        "recorded": lambda model: ForwardTraceRecorder(model).install(),
        "recorded in graphs": lambda model: ForwardTraceRecorder(model, compiled="op").install(),
        "tracked": open_module_tracker,
        "captured": attach,
    }
    models = {}
    for name, hook in hooks.items():
        linear = torch.nn.Linear(2, 2, bias=False)
        torch.nn.init.constant_(linear.weight, 0.5)
        models[name] = torch.nn.Sequential(linear)
        hook(models[name])
    return models


def public_objects() -> dict[str, Any]:
    """By public class, an object of each that pickles and that no other part of the maker makes.

    CompareError and NanInfError of the first release can be dumped, but not loaded again.
    """
    from my_utils import (
        clockSyncUtils,
        compare_tool,
        csv2trace,
        diverge,
        dump_utils,
        etcd_utils,
        logger,
        memory_snapshot,
        module_hook,
        moduleProfiler,
        ncu_analyze_from_csv,
        oom_restore,
        profilerwrapper,
        report,
        timeline,
        timing,
        utils,
    )
    from my_utils.CtrlRandom import control_random
    from my_utils.DITProfiler import FlexibleProfiler
    from my_utils.ForwardProfileHook import ForwardProfilerHook
    from my_utils.musa import converter, simple_porting
    from my_utils.profiling import ProfileManager, backends, capture_controller, capture_worker
    from my_utils.profiling.trainer_callback import ProfCallback

    net = hooked_models()["profiled"]
    spec = capture_controller.CaptureSpec(
        window_id="w", start_profile_names=["train_step"], start_iter=3, ranks=[0, 2]
    )
    utils.ChecksumUtils.enabled = True
    signed = utils.ChecksumUtils.sign(batch())
    changed = {**signed, "y": signed["y"].flip(0)}
    utils.ChecksumUtils.enabled = False
    objects = [
        clockSyncUtils.ClockOffset(1_500_000_000, 1e-5, 12.5, 3e-5, 1_750_000_000_000_000_000),
        clockSyncUtils.ClockSyncError("no message came back"),
        clockSyncUtils.ClockSynchronizer(),
        clockSyncUtils.SocketClockSynchronizer(),
        compare_tool.ModuleInfo("layers.1.attn", "Attention", "GPT/Block/Attention"),
        compare_tool.NanInfFinding(
            "aten.div", "torch.ops.aten.div", "fc", "producer", 1, 2, 3, 9, 4
        ),
        csv2trace.ConversionError("nothing to read"),
        csv2trace.ConversionWarning("a row was left out"),
        diverge.Cause.RESULT,
        diverge.Figures("sample", 4, 0.5, 0.25, 0.125, 0.99, (1, 2)),
        diverge.TensorCheck("0", diverge.Verdict.DIFFERENT, "digests"),
        diverge.Verdict.DIFFERENT,
        dump_utils.DumpError("/data/run/x", "cut off"),
        dump_utils.StandIn("module:Class", "not imported", {"a": 1}),
        dump_utils.UniversalLoader("/data/run/dumps"),
        etcd_utils.EtcdBarrierBroken("one is gone", "p", 4, (3,), 1),
        etcd_utils.EtcdBarrierError("not passed", "p", 4, (1, 2), 2),
        etcd_utils.EtcdBarrierTimeout("not in time", "p", 4, (1,), 1),
        logger.GlobalLogger(),
        memory_snapshot.NoOpMemorySnapshotter(),
        module_hook.ModuleInfo("fc", "Linear", ["tied"], {"weight": "fc.weight"}),
        module_hook.RecordingError("/data/run/x.pt: cut off"),
        module_hook.RootCall(0, "", began_unix=1.5),
        module_hook.TraceEvent(0, "fc", "Linear", end_index=0, input_values={"1": 3}),
        module_hook.TraceTensorMeta("0", (2, 3), "float32", "cpu", hash="00ff", hash_kind="tensor"),
        moduleProfiler.ModuleProfiler(net),
        converter.Outcome(pathlib.PurePosixPath("/data/run/a.py"), 3, "-a\n+b\n"),  # type: ignore[arg-type]
        simple_porting.PortingReport(pathlib.PurePosixPath("/data/run/out"), 2, 5),  # type: ignore[arg-type]
        simple_porting.Unmapped("cudaFoo", 2, "a.cu", 7),
        ncu_analyze_from_csv.NcuCsvError("a.csv:3: no header"),
        ncu_analyze_from_csv.NcuCsvWarning("a.csv:4: cut off"),
        oom_restore.catch_oom(),
        profilerwrapper.ProfilerWrapper(),
        control_random.ControlRandom(),
        FlexibleProfiler("task"),
        ForwardProfilerHook(2, 5),
        ProfileManager.Acknowledgement(("actor",), "worker", "armed", answer={"w": "armed"}),
        ProfileManager.ConfigError("must be an int", "windows[0].steps", 7, "a.yaml"),
        ProfileManager.ProfileManager(None),
        backends.CudaProfilerBackend(),
        backends.MemorySnapshotBackend("out"),
        backends.MultiBackend([backends.NoOpBackend()]),
        backends.NoOpBackend(),
        backends.TorchProfilerBackend("out"),
        spec,
        capture_controller.CaptureState.ARMED,
        capture_controller.HookEvent("train_step", {"iter": 1}, "actor", 2),
        capture_controller.StopPolicy.MANUAL,
        capture_controller.capture_hook("train_step"),
        capture_worker.CaptureWorker(),
        ProfCallback(),
        report.ReportError("no stage has ended"),
        timeline.Span(0, "12", 3, "forward", 10**18, 500, 7, 0),
        timing.ProfiledTime({}, world_size=1, missing={}),
        utils.ChecksumUtils(),
        utils.DebugLayer("here"),
        utils.MyTimer(tag="train", rank=3),
        utils.NoOpMyTimer(),
    ]
    named = {f"{type(value).__module__}.{type(value).__qualname__}": value for value in objects}
    named["signed batch"] = signed
    named["changed batch"] = changed
    named["functions and classes"] = [
        timing.timer_wrap, timing.TimeManager, timing.GatheredTime, utils.MyTimer,
        utils.ChecksumUtils, compare_tool.open_module_tracker, csv2trace.csv_to_trace,
    ]  # fmt: skip
    named["models with hooks"] = hooked_models()
    return named
