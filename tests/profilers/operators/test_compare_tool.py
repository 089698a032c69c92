"""CompareWithCPU and its log, its files and its arguments, as a user meets them."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

from my_utils.compare_tool import (
    CompareError,
    CompareWithCPU,
    ModuleInfo,
    NanInfTracker,
    compare_for_single_op,
    nan_inf_track_for_single_op,
    open_module_tracker,
)

from ...support.op_faults import Fault, one_wrong_element

ADDMM = "torch.ops.aten.addmm"
aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("same_numbers")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.act(layer(x))
        return x


def train(model: nn.Module, steps: int = 1, tool: Any = None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(3, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if tool is not None:
            tool.step()


def test_the_log_of_a_clean_run(capsys: pytest.CaptureFixture[str]) -> None:
    model = Net()
    with open_module_tracker(model), CompareWithCPU(white_list=["aten.relu_"]) as compare:
        train(model, 2, compare)
    text = capsys.readouterr().out
    assert re.search(r"^\d{4}-\d\d-\d\d, \d\d:\d\d:\d\d$", text, re.M)
    for step in range(3):
        assert f"-------------------------  step = {step}  ----------------------\n" in text
    at = "Net/Linear[layers.1]/torch.ops.aten.addmm(forward)"
    assert f"{at} starts to run ...\n{at} succeeds to pass CompareWithCPU test\n" in text
    assert "Net/ReLU[act]/torch.ops.aten.relu_(forward) is in white_list, pass\n" in text
    assert "Net/Linear[layers.0]/torch.ops.aten.mm(backward) succeeds to pass" in text
    assert "[ERROR]" not in text
    (warning,) = re.findall(r"\[WARNING\].*", text)
    assert warning.startswith("[WARNING] operators run on cpu, the device of their reference: if ")
    assert compare.summary.failed == 0 and compare.errors == 0 and compare.step_cnt == 2


def test_the_log_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    model = Net()
    fault = Fault(aten.addmm, one_wrong_element, 1)
    with open_module_tracker(model), fault, CompareWithCPU(verbose=False):
        model(torch.ones(3, 4))
    block = capsys.readouterr().out.split("============================")[1]
    assert "[ERROR] Net/Linear[layers.1]/torch.ops.aten.addmm(forward) fails to pass" in block
    assert "....... input .........\n0: Tensor <shape=torch.Size([4]), dtype=torch.float32" in block
    assert (
        "\n1: Tensor <shape=torch.Size([3, 4]), dtype=torch.float32, device=cpu, size=12, >, \n"
        in (block)
    )
    assert "...... output ........\nTensor <shape=torch.Size([3, 4])" in block
    assert "...... compare with cpu .......\nTensor values are not close\n" in block
    assert re.search(r"Element at index \(2, 3\) is not close: \S+\(cpu\) vs \S+\(cpu\)", block)


def test_many_wrong_elements_are_counted_and_the_first_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Fault(aten.add.Tensor, lambda result: result + 1), CompareWithCPU(verbose=False):
        torch.add(torch.zeros(50, 50), torch.ones(50, 50))
    text = capsys.readouterr().out
    assert "Too many indices (total 2500) to print \n" in text
    assert text.count("Element at index ") == 20


def test_the_log_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "made" / "by the tool"
    with CompareWithCPU(should_log_to_file=True, output_dir=folder) as compare:
        torch.ones(3).add(1)
        compare.step()
        text = (folder / "CompareWithCPU.log").read_text()
        assert "torch.ops.aten.add(forward) succeeds to pass CompareWithCPU test\n" in text
    assert "operator" in (folder / "CompareWithCPU.log").read_text()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("argument", ["target_list", "target_op"])
@pytest.mark.parametrize(
    "name", [ADDMM, "aten.addmm", "addmm", "addmm.default", "aten::addmm", aten.addmm]
)
def test_only_targets_are_compared(argument: str, name: Any) -> None:
    given: Any = {argument: [name]}
    with CompareWithCPU(verbose=False, **given) as compare:
        train(Net())
    assert {row.op for row in compare.summary.rows} == {ADDMM}
    assert compare.summary.passed == 2


def test_an_overload_as_a_target() -> None:
    with CompareWithCPU(verbose=False, target_list=["aten.add.Tensor"]) as compare:
        torch.ones(2).add(torch.ones(2)).add_(1)
    assert compare.summary.passed == 1


def test_active_between_start_and_end_step() -> None:
    seen = []
    with CompareWithCPU(verbose=False, start_step=2, end_step=4) as compare:
        for _ in range(6):
            before = compare.summary.passed
            torch.ones(2).add(1)
            seen.append(compare.summary.passed > before)
            compare.step()
    assert seen == [False, False, True, True, False, False]


def test_every_third_step() -> None:
    with CompareWithCPU(verbose=False, every=3, target_list=["add"]) as compare:
        for _ in range(7):
            torch.ones(2).add(1)
            compare.step()
    assert compare.summary.passed == 3


@pytest.mark.parametrize("given", [{"enabled": False}, {"enable_ranks": [1]}])
def test_off_means_nothing_is_seen(given: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with CompareWithCPU(**given) as compare:
        torch.ones(2).add(1)
        compare.step()
    assert not compare.summary.rows and capsys.readouterr().out == ""


def test_rank_0_without_a_launcher_is_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with CompareWithCPU(verbose=False, enable_ranks=[0]) as compare:
        torch.ones(2).add(1)
    assert compare.summary.passed


def test_tolerances_are_those_of_the_dtype_unless_given() -> None:
    def shift(result: torch.Tensor) -> torch.Tensor:
        return result + 5e-3

    def failures(dtype: torch.dtype, **given: Any) -> int:
        with Fault(aten.mul.Tensor, shift), CompareWithCPU(verbose=False, **given) as compare:
            torch.ones(3, dtype=dtype) * 1
        return compare.summary.failed

    assert failures(torch.float32) == 1
    assert failures(torch.bfloat16) == 0
    assert failures(torch.float32, atol=0.01, rtol=0.0) == 0
    assert failures(torch.bfloat16, atol=0.001, rtol=0.0) == 1


def test_the_first_failure_is_dumped_and_raised(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    a, b = torch.randn(3, 4), torch.randn(4, 4)
    bias = torch.randn(4)
    tool = CompareWithCPU(dump_error_data=True, output_dir=folder, verbose=False)
    fault = Fault(aten.addmm, one_wrong_element)
    with pytest.raises(CompareError, match="addmm") as caught, fault, tool:
        torch.addmm(bias, a, b.t(), beta=0.5)
    names = {f"{ADDMM}_inputs.pkl", f"{ADDMM}_outputs.pkl", f"{ADDMM}_again.py"}
    assert {path.name for path in folder.iterdir()} == names
    assert set(caught.value.files) == set(folder.iterdir())
    places = [str(folder / f"{ADDMM}_{kind}.pkl") for kind in ("inputs", "outputs")]
    assert f"inputs and outputs are in {' and '.join(places)}; python" in str(caught.value)
    inputs = torch.load(folder / f"{ADDMM}_inputs.pkl", weights_only=True)
    assert torch.equal(inputs["args"][1], a) and inputs["args"][2].stride() == (1, 4)
    assert inputs["kwargs"] == {"beta": 0.5} and inputs["op"] == "aten.addmm.default"
    outputs = torch.load(folder / f"{ADDMM}_outputs.pkl", weights_only=True)
    assert not torch.allclose(outputs["result"], torch.addmm(bias, a, b.t(), beta=0.5))


def test_a_dumped_call_runs_again(tmp_path: Path) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 4)
    tool = CompareWithCPU(dump_error_data=True, output_dir=tmp_path, verbose=False)
    with pytest.raises(CompareError), Fault(aten.addmm, one_wrong_element), tool:
        torch.addmm(torch.ones(4), a, b.t())
    path = tmp_path / f"{ADDMM}_inputs.pkl"
    correct, args, kwargs, out = compare_for_single_op(path, aten.addmm, atol=1e-3, rtol=1e-3)
    assert correct and kwargs == {}
    assert torch.equal(args[1], a) and args[2].stride() == (1, 4)
    assert torch.equal(out, torch.addmm(torch.ones(4), a, b.t()))
    with Fault(aten.addmm, one_wrong_element):
        correct, *_ = compare_for_single_op(path, torch.ops.aten.addmm, atol=0.01, rtol=0.01)
    assert not correct


def test_a_call_that_cannot_be_compared_is_an_error_and_no_difference(tmp_path: Path) -> None:
    tool = CompareWithCPU(dump_error_data=True, output_dir=tmp_path, verbose=False)
    with pytest.raises(CompareError), Fault(aten.addmm, one_wrong_element), tool:
        torch.addmm(torch.ones(4), torch.randn(3, 4), torch.randn(4, 4))
    with pytest.raises(CompareError, match="nothing"):
        compare_for_single_op(tmp_path / f"{ADDMM}_inputs.pkl", lambda *args: None)


def written_by_the_original(path: Path, args: object, kwargs: object) -> Path:
    """As torch_musa's own tool writes it."""
    with open(path, "wb") as file:
        pickle.dump({"args": args, "kwargs": kwargs}, file)
    return path


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64],
    ids=str,
)  # fmt: skip
def test_a_file_of_the_original_may_hold_any_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, 2.0, 4.0, 8.0]).to(dtype)
    args = (values[1:], values.reshape(2, 2).t())
    path = written_by_the_original(tmp_path / "to.pkl", args[:1], {"dtype": torch.float32})
    correct, (read,), _, out = compare_for_single_op(path, aten._to_copy)
    assert correct
    assert (read.dtype, out.tolist()) == (dtype, [2.0, 4.0, 8.0])
    path = written_by_the_original(tmp_path / "turned.pkl", args[1:], {"dtype": torch.float32})
    _, (read,), _, out = compare_for_single_op(path, aten._to_copy)
    assert (read.stride(), out.tolist()) == ((1, 2), [[1.0, 4.0], [2.0, 8.0]])


def test_a_file_of_the_original_runs_again(tmp_path: Path) -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 4)
    args = (nn.Parameter(torch.ones(4)), a, b.t())
    path = written_by_the_original(tmp_path / f"{ADDMM}_inputs.pkl", args, {"beta": 0.5})
    correct, read, kwargs, out = compare_for_single_op(path, aten.addmm)
    assert correct and kwargs == {"beta": 0.5} and read[2].stride() == (1, 4)
    assert torch.equal(out, torch.addmm(args[0], a, b.t(), beta=0.5))
    words = {"dtype": torch.bfloat16, "device": torch.device("cpu"), "layout": torch.strided}
    path = written_by_the_original(tmp_path / "to.pkl", (a.half(),), words)
    correct, read, kwargs, out = compare_for_single_op(path, aten._to_copy)
    assert correct and kwargs == words and torch.equal(out, a.half().bfloat16())
    four = torch.ones(1, 2, 3, 4).to(memory_format=torch.channels_last)
    path = written_by_the_original(
        tmp_path / "clone.pkl", [four], {"memory_format": torch.channels_last}
    )
    assert nan_inf_track_for_single_op(path, aten.clone)[3].stride() == four.stride()


def test_words_of_torch_that_another_module_had_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pickle writes the first module that knows torch, such as one of polars."""
    first: Any = types.ModuleType("another_one")
    first.torch = torch
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "another_one", first)
        patched.setattr(sys, "modules", {"another_one": first, **sys.modules})
        words = {"memory_format": torch.channels_last}
        path = written_by_the_original(tmp_path / "clone.pkl", [torch.ones(1, 2, 3, 4)], words)
    assert b"another_one" in path.read_bytes()
    result = nan_inf_track_for_single_op(path, aten.clone)[3]
    assert result.is_contiguous(memory_format=torch.channels_last)


class Runs:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("where", ["args", "kwargs", "key", "storage"])
def test_nothing_in_a_pickle_is_executed(where: str, tmp_path: Path) -> None:
    ran, path = tmp_path / "ran", tmp_path / "bad_inputs.pkl"
    args: list[Any] = [torch.ones(2)]
    kwargs: dict[Any, Any] = {}
    if where == "args":
        args.append(Runs(ran))
    elif where == "kwargs":
        kwargs["x"] = Runs(ran)
    elif where == "key":
        kwargs[Runs(ran)] = 1
    written_by_the_original(path, args, kwargs)
    if where == "storage":
        inner = pickle.dumps(Runs(ran), protocol=2)
        rest = pickle.dumps((torch.storage._load_from_bytes, inner), protocol=4)[:-1]
        path.write_bytes(rest.replace(b"\x86\x94", b"\x85R") + b".")
    with pytest.raises(ValueError, match=r"bad_inputs\.pkl"):
        compare_for_single_op(path, aten.relu)
    assert not ran.exists()


def test_pickles_that_would_take_all_memory_or_time_are_refused(tmp_path: Path) -> None:
    deep: Any = ()
    for _ in range(400):
        deep = (deep,)
    twice: Any = (1,)
    for _ in range(40):
        twice = (twice, twice)
    for bomb in ({"args": (deep,), "kwargs": {}}, {"args": (twice,), "kwargs": {}}):
        path = tmp_path / "bomb.pkl"
        path.write_bytes(pickle.dumps(bomb))
        with pytest.raises(ValueError, match=r"bomb\.pkl: it (is nested|has) more than"):
            compare_for_single_op(path, aten.relu)
    whole = pickle.dumps({"args": (torch.ones(2),), "kwargs": {}})
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"bomb\.pkl"):
            compare_for_single_op(path, aten.relu)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.pkl"
    torch.save({"a": 1}, other)
    with pytest.raises(ValueError, match=r"other\.pkl"):
        compare_for_single_op(other, aten.add)
    broken = tmp_path / "broken.pkl"
    broken.write_bytes(b"\x10")
    with pytest.raises(ValueError, match=r"broken\.pkl"):
        compare_for_single_op(broken, aten.add)
    with pytest.raises(FileNotFoundError):
        compare_for_single_op(tmp_path / "nothing.pkl", aten.add)
    with pytest.raises(TypeError, match="op must be"):
        compare_for_single_op(other, "aten.add")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"atol": -1}, ValueError),
        ({"rtol": "small"}, TypeError),
        ({"target_list": "torch.ops.aten.addmm"}, TypeError),
        ({"white_list": [3]}, TypeError),
        ({"enable_ranks": [-1]}, ValueError),
        ({"start_step": 1.5}, TypeError),
        ({"end_step": 3, "start_step": 5}, ValueError),
        ({"every": 0}, ValueError),
        ({"max_elements": 0}, ValueError),
        ({"reference": 3}, TypeError),
        ({"reference": "nothing"}, ValueError),
        ({"target_list": ["add"], "target_op": ["add"]}, ValueError),
        ({"enabled": "False"}, TypeError),
        ({"verbose": "no"}, TypeError),
        ({"dump_error_data": None}, TypeError),
        ({"should_log_to_file": "op.log"}, TypeError),
        ({"output_dir": 5}, TypeError),
        ({"check_stride": "no"}, TypeError),
        ({"stacks": "no"}, TypeError),
    ],
)
def test_wrong_arguments_are_named(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(given))):
        CompareWithCPU(**given)


def test_numbers_that_stand_for_bools() -> None:
    numpy = pytest.importorskip("numpy")
    given: dict[str, Any] = {"enabled": numpy.bool_(True), "dump_error_data": numpy.int64(0)}
    tool = CompareWithCPU(**given, verbose=0, check_stride=1)  # type: ignore[arg-type]
    assert (tool.enabled, tool.dump_error_data, tool.verbose) == (True, False, False)


def test_another_reference() -> None:
    calls = []

    def mine(func: Any, args: Any, kwargs: Any) -> Any:
        calls.append(str(func))
        return func(*args, **kwargs).double()

    with CompareWithCPU(verbose=False, reference=mine) as compare:
        torch.ones(3).add(1)
    assert "aten.add.Tensor" in calls and compare.summary.failed == 0
    with CompareWithCPU(verbose=False, reference="float64") as compare:
        train(Net())
    assert compare.summary.failed == 0 and compare.summary.passed > 20
    worst = compare.summary.worst(1)[0].worst
    assert 0 < worst.max_abs < 1e-5  # float32 is not float64


def test_the_summary_as_files(tmp_path: Path) -> None:
    model = Net()
    fault = Fault(aten.addmm, one_wrong_element)
    with open_module_tracker(model), fault, CompareWithCPU(verbose=False) as compare:
        train(model)
    compare.summary.write_jsonl(tmp_path / "ops.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "ops.jsonl").read_text().splitlines()]
    failed = [row for row in rows if row["failed"]]
    assert [(row["op"], row["module"]) for row in failed] == [(ADDMM, "layers.0")]
    assert failed[0]["worst"]["max_abs"] > 0
    compare.summary.write_html(tmp_path / "ops.html")
    page = (tmp_path / "ops.html").read_text()
    assert "<tr class=bad><td>torch.ops.aten.addmm</td><td>layers.0</td>" in page
    assert compare.summary.worst(1)[0].op == ADDMM
    by_op = {row.op: row for row in compare.summary.by_op().rows}
    assert (by_op[ADDMM].passed, by_op[ADDMM].failed) == (1, 1)


def test_where_the_training_is_can_be_asked() -> None:
    model = Net()
    seen = []
    model.layers[1].register_forward_hook(lambda *_: seen.append(ModuleInfo.current()))
    tracker = open_module_tracker(model)
    with tracker:
        train(model)
    assert seen == [ModuleInfo("layers.1", "Linear", "Net/Linear")]
    assert ModuleInfo.current() is None
    tracker.close()
    assert not any(module._forward_hooks for module in model.layers[:1])
    with pytest.raises(TypeError, match="model must be"):
        open_module_tracker("model")  # type: ignore[arg-type]


def test_tracked_twice_copied_and_pickled_models() -> None:
    model = Net()
    first, second = open_module_tracker(model), open_module_tracker(model)
    twin, loaded = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with CompareWithCPU(verbose=False, target_list=["addmm"]) as compare:
        for net in (model, twin, loaded):
            net(torch.ones(3, 4))
    names = {row.module: row.passed for row in compare.summary.rows}
    assert names == {"layers.0": 1, "layers.1": 1, "": 4}
    second.close()
    first.close()
    assert not model._forward_pre_hooks


def test_both_tools_at_once_and_modes_below_see_each_operator_once() -> None:
    counted = Fault(aten.add, lambda result: result, nth=-1)
    with counted, NanInfTracker() as tracker, CompareWithCPU(verbose=False) as compare:
        torch.tensor([-1.0]).log().add(1)
    assert counted.left == -2  # one call of add
    assert compare.summary.failed == 0 and tracker.first is not None


def test_module_info_with_a_father() -> None:
    root = ModuleInfo(name="", father=None)
    block = ModuleInfo("Block", father=ModuleInfo("Net", father=root))
    assert (block.name, block.type, block.path) == ("Block", "Block", "Net/Block")
    assert dataclasses.replace(block, name="b").path == "Net/Block"
    assert pickle.loads(pickle.dumps(block)) == block
    with pytest.raises(TypeError, match="got path and father, which are the same"):
        ModuleInfo("a", "A", "A", father=root)
