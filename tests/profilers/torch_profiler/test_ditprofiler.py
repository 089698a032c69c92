"""create_profiler_context and FlexibleProfiler: when they profile, their files, their figures."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")
import torch

from my_utils.core import warnings as _warnings
from my_utils.csv2trace import csv_to_trace
from my_utils.DITProfiler import FlexibleProfiler, create_profiler_context
from my_utils.profilers.torch_profiler import dit_profiler as DITProfiler, slot as _slot
from my_utils.profilers.torch_profiler.operator_figures import summarise
from my_utils.utils import MyTimer

from ...conftest import RunPython
from ...support.no_gil import frees_at_once
from ...support.profile_rows import Profile

FILES = [f"DIT__rank0_{suffix}" for suffix in ("operators.json", "summary.txt", "trace.json")]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROFILE_TASK_TYPES", raising=False)
    for kind in list(_warnings.counts()):
        if "FlexibleProfiler" in kind:
            _warnings.forget(kind)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed is freed without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def attend(rows: int) -> torch.Tensor:
    q = torch.ones(rows, 16)
    return torch.matmul(torch.matmul(q, q.T).softmax(-1), q)


def trace_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return found


# --- when it profiles ---


@pytest.mark.parametrize(
    ("variable", "task", "profiles"),
    [
        (None, "DIT", False),
        ("", "DIT", False),
        ("DIT,VAE", "DIT", True),
        (" VAE , DIT ", "DIT", True),
        ("DIT,VAE", "dit", False),
        ("DIT2,VAE", "DIT", False),
        ("DIT VAE", "DIT", False),
        (",", "", False),
    ],
)
def test_the_variable(
    variable: str | None, task: str, profiles: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if variable is not None:
        monkeypatch.setenv("PROFILE_TASK_TYPES", variable)
    context = create_profiler_context(task, logging.getLogger("x"), output=tmp_path)
    assert isinstance(context, FlexibleProfiler) == profiles
    if not profiles:
        assert isinstance(context, contextlib.nullcontext)
        with context as profiler:
            assert profiler is None


def test_the_variable_may_change_at_any_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for environment in (DITProfiler._environment, None):
        monkeypatch.setattr(DITProfiler, "_environment", environment)
        for value, profiles in (("DIT", True), ("VAE", False), ("VAE,DIT", True), (None, False)):
            if value is None:
                del os.environ["PROFILE_TASK_TYPES"]
            else:
                os.environ["PROFILE_TASK_TYPES"] = value
            context = create_profiler_context("DIT", output=tmp_path)
            assert isinstance(context, FlexibleProfiler) == profiles


OFF = """
import os, sys
from my_utils.DITProfiler import create_profiler_context
for value in ("", "VAE"):
    os.environ["PROFILE_TASK_TYPES"] = value
    with create_profiler_context(current_task_type="DIT", logger=None, ops_to_analyze={"a": 3}):
        with create_profiler_context("DIT", None):
            pass
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""


def test_off_it_imports_no_torch(run_python: RunPython) -> None:
    result = run_python("-c", OFF)
    assert result.returncode == 0, result.stderr


def test_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    for options in ({"ranks": 0}, {"ranks": [0, 1]}, {"enabled": False}):
        with FlexibleProfiler("DIT", output=tmp_path, **options) as profiler:
            attend(4)
        assert profiler.paths == [] == os.listdir(tmp_path)
    with FlexibleProfiler("a/b c", output=tmp_path, ranks=3) as profiler:
        attend(4)
    names = [path.name for path in profiler.paths]
    assert names == ["a_b_c__rank3_trace.json", "a_b_c__rank3_summary.txt"]


# --- what it writes ---


def own_time_us(events: list[dict[str, Any]], event: dict[str, Any]) -> float:
    """Duration without what ran inside, from the trace alone."""
    start, end = event["ts"], event["ts"] + event["dur"]
    inside = [
        other for other in events
        if other is not event and other["tid"] == event["tid"]
        and start <= other["ts"] and other["ts"] + other["dur"] <= end
    ]  # fmt: skip
    own, reached = event["dur"], start
    for other in sorted(inside, key=lambda each: (each["ts"], -each["dur"])):
        if other["ts"] >= reached:
            own -= other["dur"]
            reached = other["ts"] + other["dur"]
    return float(own)


@pytest.fixture
def analysed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> FlexibleProfiler:
    """A block with ten products of matrices of two sizes."""
    monkeypatch.setenv("PROFILE_TASK_TYPES", "DIT,VAE")
    with caplog.at_level(logging.INFO, logger="a test"), create_profiler_context(
        current_task_type="DIT",
        logger=logging.getLogger("a test"),
        ops_to_analyze={"aten::matmul": "self_cuda_time_total", "aten::mm": "cpu_time_total",
                        "aten::no_such_thing": "cuda_time"},
        output=tmp_path / "new",
    ) as profiler:  # fmt: skip
        for rows in (4, 4, 4, 32, 32):
            attend(rows)
    assert isinstance(profiler, FlexibleProfiler)
    assert sorted(os.listdir(tmp_path / "new")) == FILES
    return profiler


def test_the_analysis_agrees_with_the_trace(analysed: FlexibleProfiler) -> None:
    events = [event for event in trace_of(analysed.paths[0]) if event.get("cat") == "cpu_op"]
    matmuls = [event for event in events if event["name"] == "aten::matmul"]
    seen = json.loads(analysed.paths[2].read_text())["operators"]["aten::matmul"]
    assert (seen["asked"], seen["figure"]) == ("self_cuda_time_total", "self_cpu_time_total")
    assert len(seen["calls"]) == len(matmuls) == 10 and seen["calls_left_out"] == 0
    for call, event in zip(seen["calls"], sorted(matmuls, key=lambda e: e["ts"]), strict=True):
        assert call["shapes"] == event["args"]["Input Dims"]
        assert call["duration_us"] == pytest.approx(event["dur"], abs=0.01)
        assert call["self_cpu_us"] == pytest.approx(own_time_us(events, event), abs=0.05)
        assert call["value"] == call["self_cpu_us"]
        assert call["device_us"] == call["self_device_us"] == 0
        assert any("test_ditprofiler.py" in at and "attend" in at for at in call["stack"][:2])


def test_the_statistics_of_the_analysis(
    analysed: FlexibleProfiler, caplog: pytest.LogCaptureFixture
) -> None:
    _, summary, operators = analysed.paths
    found = json.loads(operators.read_text())
    assert (found["task_type"], found["rank"], found["has_device_time"]) == ("DIT", 0, False)
    seen = found["operators"]["aten::matmul"]
    check_statistics(seen["statistics"], np.array([call["value"] for call in seen["calls"]]))
    shapes = [group["shapes"] for group in seen["by_shape"]]
    assert sorted(shapes) == [[[4, 4], [4, 16]], [[4, 16], [16, 4]],
                              [[32, 16], [16, 32]], [[32, 32], [32, 16]]]  # fmt: skip
    for group in seen["by_shape"]:
        calls = [call for call in seen["calls"] if call["shapes"] == group["shapes"]]
        check_statistics(group["statistics"], np.array([call["value"] for call in calls]))
    products = found["operators"]["aten::mm"]
    assert products["figure"] == "cpu_time_total" and products["statistics"]["count"] == 10
    assert all(call["value"] == call["duration_us"] for call in products["calls"])
    absent = found["operators"]["aten::no_such_thing"]
    assert absent["statistics"]["count"] == 0 and absent["statistics"]["mean"] is None
    assert (absent["calls"], absent["by_shape"]) == ([], [])
    text = summary.read_text()
    assert text.startswith("DIT, rank 0: operators by self_cpu_time_total (no GPU time was seen)")
    assert "aten::mm" in text and ".py(" not in text
    logged = [record.getMessage().strip() for record in caplog.get_records("setup")]
    assert logged == [text.strip()]


def check_statistics(found: dict[str, Any], values: np.ndarray[Any, Any]) -> None:
    assert found["count"] == len(values)
    assert found["total"] == pytest.approx(values.sum(), abs=0.01)
    assert found["mean"] == pytest.approx(values.mean(), abs=0.01)
    assert found["std"] == pytest.approx(values.std(), abs=0.01)
    assert (found["min"], found["max"]) == (values.min(), values.max())
    for q in (50, 90, 99):
        assert found[f"p{q}"] == np.percentile(values, q, method="inverted_cdf")


def test_statistics_of_many_values() -> None:
    values = np.random.default_rng(0).lognormal(3, 2, 1001).round(3)
    check_statistics(summarise(values.tolist()), values)


def test_memory_figures_and_calls_left_out(tmp_path: Path) -> None:
    with FlexibleProfiler(
        "DIT", ops_to_analyze={"aten::empty": "self_cpu_memory_usage"}, output=tmp_path,
        profile_memory=True, calls_max=2, with_stack=False, record_shapes=False,
    ) as profiler:  # fmt: skip
        kept = [torch.empty(size, dtype=torch.uint8) for size in (1000, 2000, 6000)]
    del kept
    seen = json.loads(profiler.paths[2].read_text())["operators"]["aten::empty"]
    assert [call["value"] for call in seen["calls"]] == [1000, 2000]
    assert seen["calls_left_out"] == 1 and seen["statistics"]["total"] == 9000
    assert seen["calls"][0]["stack"] == [] and seen["calls"][0]["shapes"] == []


@frees_at_once
@pytest.mark.usefixtures("no_collector")
def test_names_alone_and_a_second_block(tmp_path: Path) -> None:
    profiler = FlexibleProfiler("DIT", ops_to_analyze=["aten::mm"], output=tmp_path)
    profilers = []
    for number in range(3):
        with profiler as entered:
            found = entered.profiler
            attend(4 + number)
        profilers.append(weakref.ref(found))
        del found
        assert profiler.profiler is None
    assert all(each() is None for each in profilers)
    assert [path.name for path in profiler.paths] == [
        f"DIT__rank0.3_{suffix}" for suffix in ("trace.json", "summary.txt", "operators.json")
    ]
    assert len(os.listdir(tmp_path)) == 9
    seen = json.loads((tmp_path / "DIT__rank0.2_operators.json").read_text())["operators"]
    assert seen["aten::mm"]["asked"] == "self_device_time_total"
    assert seen["aten::mm"]["calls"][0]["shapes"] == [[5, 16], [16, 5]]


def test_it_is_merged_with_the_timers_trace(profile: Profile, tmp_path: Path) -> None:
    timer = MyTimer(tag="train")
    timer.set_step(0)
    with timer.time_stage("denoise"):  # noqa: SIM117
        with FlexibleProfiler("DIT", output=tmp_path / "out") as profiler:
            attend(8)
    timer.step()
    profile.ended()
    out = tmp_path / "merged.json"
    csv_to_trace(profile.folder, out, merge=[profiler.paths[0]])
    slices = [event for event in trace_of(out) if event.get("ph") == "X"]
    (stage,) = [event for event in slices if event["name"] == "denoise"]
    inside = [event for event in slices if event["name"] == "aten::matmul"]
    assert len(inside) == 2
    for event in inside:
        assert stage["ts"] < event["ts"] < stage["ts"] + stage["dur"]


# --- trouble ---


def test_long_names_are_cut_and_stay_apart(tmp_path: Path) -> None:
    long = "module/" * 60
    written = []
    for end in "ab":
        ops = ["aten::mm"]
        with FlexibleProfiler(long + end, ops_to_analyze=ops, output=tmp_path) as profiler:
            attend(4)
        written += profiler.paths
    assert len({path.name.rsplit("__rank0", 1)[0] for path in written}) == 2
    assert sorted(path.name for path in written) == sorted(os.listdir(tmp_path))
    assert [path.name.rsplit("__rank0_", 1)[1] for path in written] == [
        *("trace.json", "summary.txt", "operators.json") * 2
    ]
    assert all(path.name.startswith("module_module_") for path in written)


def test_an_exception_passes_through(tmp_path: Path) -> None:
    error = RuntimeError("the user's own")
    with pytest.raises(RuntimeError) as caught:  # noqa: SIM117
        with FlexibleProfiler("DIT", output=tmp_path) as profiler:
            attend(4)
            raise error
    assert caught.value is error and error.__context__ is None
    assert _slot.holder() is None
    assert any(event["name"] == "aten::mm" for event in trace_of(profiler.paths[0]))


def test_a_block_inside_a_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profiler = FlexibleProfiler("DIT", output=tmp_path)
    with profiler:
        with FlexibleProfiler("VAE", output=tmp_path) as inner:
            attend(4)
        with profiler:
            attend(4)
        assert profiler.profiler is not None
    assert inner.paths == [] and len(os.listdir(tmp_path)) == 2
    assert "FlexibleProfiler 'VAE' runs unprofiled: FlexibleProfiler 'DIT' is" in caplog.text
    assert "FlexibleProfiler 'DIT' runs unprofiled" in caplog.text
    assert sum(event["name"] == "aten::mm" for event in trace_of(profiler.paths[0])) == 4


def test_what_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        with FlexibleProfiler("DIT", output=tmp_path / "file") as profiler:
            attend(4)
        assert profiler.paths == []
    assert caplog.text.count("nothing could be written") == 1
    assert _slot.holder() is None


def test_one_file_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("torch is in a bad mood")

    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", fails)
    with FlexibleProfiler("DIT", output=tmp_path, ops_to_analyze=["aten::mm"]) as profiler:
        attend(4)
    assert sorted(os.listdir(tmp_path)) == FILES[:2]
    assert sorted(profiler.paths) == [tmp_path / name for name in FILES[:2]]
    assert "trace.json could not be written: RuntimeError: torch is in a bad mood" in caplog.text


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"task_type": ""}, ValueError, "task_type must not be empty"),
        ({"task_type": 3}, TypeError, "task_type"),
        ({"ops_to_analyze": "aten::mm"}, TypeError, "ops_to_analyze must map operators"),
        ({"ops_to_analyze": {3: "cpu_time"}}, TypeError, "ops_to_analyze must name operators"),
        ({"ops_to_analyze": {"a": "speed"}}, ValueError, r"ops_to_analyze\['a'\] must be one of"),
        ({"ops_to_analyze": {"a": 3}}, TypeError, r"ops_to_analyze\['a'\]"),
        ({"sort_by": "speed"}, ValueError, "sort_by"),
        ({"row_limit": 0}, ValueError, "row_limit"),
        ({"calls_max": "3"}, TypeError, "calls_max"),
        ({"ranks": "0"}, TypeError, "ranks"),
        ({"with_stack": 1}, TypeError, "with_stack must be a bool, not 1"),
        ({"output": 3}, TypeError, "output must be a path, not 3"),
        ({"logger": "print"}, TypeError, "logger must be a logging.Logger or None, not 'print'"),
        ({"activities": ["tpu"]}, ValueError, "activities"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FlexibleProfiler(**{"task_type": "DIT", **options})


PROCESSES = """
import os, sys, torch
from my_utils.DITProfiler import FlexibleProfiler
torch.set_num_threads(1)
profiler = FlexibleProfiler("DIT", ops_to_analyze=["aten::add"])
with profiler:
    torch.ones(4) + 1
    child = os.fork()
if not child:
    os._exit(len(profiler.paths) or len(os.listdir(".")))
assert os.waitpid(child, 0)[1] == 0
assert len(profiler.paths) == 3
left_open = FlexibleProfiler("open")
left_open.__enter__()
torch.ones(4) + 1
"""


@pytest.mark.slow
def test_a_forked_child_and_a_block_open_at_exit(run_python: RunPython, tmp_path: Path) -> None:
    result = run_python("-c", PROCESSES)
    assert result.returncode == 0, result.stderr
    assert sorted(os.listdir(tmp_path)) == sorted(
        [*FILES, "open__rank0_summary.txt", "open__rank0_trace.json"]
    )


@pytest.mark.gpu
def test_on_a_gpu(tmp_path: Path) -> None:
    with FlexibleProfiler(
        "DIT", ops_to_analyze={"aten::mm": "self_cuda_time_total"}, output=tmp_path
    ) as profiler:
        x = torch.ones(512, 512, device="cuda")
        (x @ x).sum().item()
    found = json.loads(profiler.paths[2].read_text())
    assert found["has_device_time"]
    products = found["operators"]["aten::mm"]
    assert products["figure"] == "self_device_time_total"
    assert products["calls"][0]["value"] > 0
