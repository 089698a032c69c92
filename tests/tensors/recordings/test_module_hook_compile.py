"""The forward trace recorder and torch.compile: eager by force, or operators in the graph."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from my_utils.core import warnings as _warnings
from my_utils.module_hook import ForwardTraceRecorder

from ...conftest import RunPython
from ...support.compilers import needs_cxx
from .test_module_hook import Block, Net


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    for kind in ("forward_trace_eager", "forward_trace_op"):
        _warnings.forget(kind)
    yield
    torch._dynamo.reset()


def compiled_by(model: nn.Module, **options: Any) -> Any:
    return torch.compile(model, **options)


def digests(recorder: ForwardTraceRecorder) -> dict[tuple[str, int, str], str | None]:
    """By the module without the compiler's part of the name, the call, and the side and path."""
    found = {}
    for event in recorder.events:
        name = event.module.replace("_orig_mod.", "").replace("_orig_mod", "").rstrip(".")
        for side in ("inputs", "outputs"):
            for meta in getattr(event, side):
                found[name, event.call, f"{side}.{meta.path}"] = meta.hash
    return found


def eagerly(model: nn.Module, *given: torch.Tensor, **options: Any) -> Any:
    with ForwardTraceRecorder(model, **options) as recorder:
        for x in given:
            model(x)
    return digests(recorder)


def test_eager_makes_all_hooks_fire(caplog: pytest.LogCaptureFixture) -> None:
    model = Net()
    model.blocks[0] = compiled_by(model.blocks[0], backend="eager")
    model.blocks[1].compile(backend="eager")
    x = torch.ones(2, 4)
    model(x)  # compiled before the hooks are there
    with ForwardTraceRecorder(model, record_param_md5=True) as recorder:
        expected = model(x)
        model(x)
    assert "2 compiled modules ('blocks.0', 'blocks.1') run eagerly" in caplog.text
    names = [event.module for event in recorder.events[:11]]
    assert names[1:4] == ["blocks.0", "blocks.0._orig_mod", "blocks.0._orig_mod.first"]
    assert "blocks.1.act" in names and len(recorder.events) == 22
    assert all(event.error is None and event.outputs for event in recorder.events)
    info = {module.name: module for module in recorder.snapshot().modules}
    assert info["blocks.0"].compiled and info["blocks.1"].compiled and not info["head"].compiled
    torch._dynamo.utils.counters.clear()
    assert torch.equal(model(x), expected) and len(recorder.events) == 22


def test_eager_ends_with_the_recorder() -> None:
    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    model = compiled_by(nn.Linear(2, 2), backend=backend)
    with ForwardTraceRecorder(model) as recorder:
        model(torch.ones(1, 2))
        assert not calls
        recorder.pause()
        model(torch.ones(1, 2))
        assert len(calls) == 1
    model(torch.ones(1, 2))
    assert [event.module for event in recorder.events] == ["", "_orig_mod"] and len(calls) == 1


def test_recorders_that_overlap_leave_the_compiler_as_it_was() -> None:
    calls: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        calls.append(1)
        return graph.forward

    first, second = nn.Linear(2, 2), compiled_by(nn.Linear(2, 2), backend=backend)
    recorders = [ForwardTraceRecorder(first).start(), ForwardTraceRecorder(second).start()]
    x = torch.ones(1, 2)
    for recorder in recorders:  # the one that was started first is stopped first
        first(x)
        second(x)
        assert not calls
        recorder.stop()
    second(x)
    assert len(calls) == 1
    assert [len(recorder.events) for recorder in recorders] == [1, 4]


def test_recorders_that_overlap_share_the_limits_of_the_compiler() -> None:
    config = torch._dynamo.config
    limits = config.recompile_limit, config.accumulated_recompile_limit
    recorders = [ForwardTraceRecorder(nn.Linear(2, 2), compiled="op") for _ in range(2)]
    for recorder in recorders:
        recorder.start()
    assert config.recompile_limit == limits[0] + 4
    for recorder in recorders:
        recorder.stop()
    assert (config.recompile_limit, config.accumulated_recompile_limit) == limits


def test_a_model_that_is_compiled_later_is_told(caplog: pytest.LogCaptureFixture) -> None:
    _warnings.forget("forward_trace_empty")
    model = nn.Sequential(nn.Linear(2, 2))
    recorder = ForwardTraceRecorder(model, compiled="op").install()
    recorder.remove()
    assert "before it saw any call" in caplog.text


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "train"),
    [
        *(("eager", False), ("aot_eager", False), ("aot_eager", True)),
        pytest.param("inductor", True, marks=needs_cxx),
    ],
)
def test_op_records_inside_one_graph(backend: str, train: bool) -> None:
    model = Net().train(train)
    given = [torch.randn(3, 4), torch.randn(3, 4), torch.randn(5, 4)]
    # The compiler may compute with other instructions than eager: its own results are compared.
    compiled = compiled_by(model, backend=backend, fullgraph=True)
    results = []
    with ForwardTraceRecorder(compiled, compiled="op", record_param_md5=True) as recorder:
        for x in given:
            result = compiled(x)
            if train:
                result.sum().backward()
            results.append(result)
    found = digests(recorder)
    expected = eagerly(model, *given)
    if backend != "inductor":
        assert {key: found[key] for key in expected if key[0]} == {
            key: value for key, value in expected.items() if key[0]
        }
    else:
        assert found.keys() >= {key for key in expected if key[0]}
    metas = [meta for event in recorder.events if event.compiled for meta in event.outputs]
    assert {meta.layout for meta in metas} == {"unknown"}
    for call in range(3):
        assert found["blocks.0", call, "inputs.0"] == expected["blocks.0", call, "inputs.0"]
        assert found["blocks.1", call, "inputs.0"] == found["blocks.0", call, "outputs."]
        assert found["blocks.0.act", call, "inputs.0"] == found["blocks.0.first", call, "outputs."]
    assert [event.root for event in recorder.events if event.module == ""] == [0, 1, 2]
    inner = [event for event in recorder.events if event.root == 1 and event.compiled]
    assert [event.module for event in inner[:4]] == [
        "_orig_mod", "_orig_mod.blocks.0", "_orig_mod.blocks.0.first", "_orig_mod.blocks.0.act",
    ]  # fmt: skip
    assert all(meta.hash for meta in recorder.roots[2].weights.values())


def test_op_tells_repeated_calls_in_one_graph_apart() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Block()

        def forward(self, x: torch.Tensor) -> Any:
            return {"a": self.inner(self.inner(x)), "b": [x]}

    model = Twice()
    x = torch.randn(2, 4)
    compiled = compiled_by(model, backend="eager", fullgraph=True)
    with ForwardTraceRecorder(compiled, compiled="op") as recorder:
        compiled(x)
        compiled(x)
    found, expected = digests(recorder), eagerly(model, x, x)
    assert {key[2] for key in found if key[0] == ""} == {"inputs.0", "outputs.a", "outputs.b.0"}
    inner = {key: value for key, value in expected.items() if key[0]}
    assert len(inner) == 2 * 2 * 4 * 2 and {key: found[key] for key in inner} == inner


@pytest.mark.thorough
def test_op_with_many_compiled_blocks() -> None:
    """Each block has its own graph, more of them than torch compiles by default."""
    blocks = [compiled_by(Block(), backend="eager", fullgraph=True) for _ in range(12)]
    model = nn.Sequential(*blocks)
    limit = torch._dynamo.config.recompile_limit
    x = torch.randn(2, 4)
    with ForwardTraceRecorder(model, compiled="op") as recorder:
        expected = model(x)
        model(x)
    assert torch._dynamo.config.recompile_limit == limit
    assert all(event.error is None for event in recorder.events)
    found = digests(recorder)
    torch._dynamo.reset()
    plain = nn.Sequential(*(block._orig_mod for block in blocks))
    assert torch.equal(plain(x), expected)
    for key, value in eagerly(plain, x, x).items():
        assert found[key] == value, key


def test_op_where_the_outermost_call_is_in_the_graph() -> None:
    model = Net()
    x = torch.randn(2, 4)
    recorder = ForwardTraceRecorder(model, compiled="op").install()
    compiled = compiled_by(model, backend="eager", fullgraph=True)
    compiled(x)
    found = digests(recorder)
    recorder.remove()
    torch._dynamo.reset()
    assert found == eagerly(model, x)


def test_op_adds_nothing_to_the_graph_for_what_is_not_recorded() -> None:
    """The model is called through hooks, though only one of its modules is recorded."""
    added: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        added.extend(
            str(node.target) for node in graph.graph.nodes if "my_utils" in str(node.target)
        )
        return graph.forward

    model = Net()
    with ForwardTraceRecorder(model, compiled="op", include_name_regex="head$") as recorder:
        compiled_by(model, backend=backend, fullgraph=True)(torch.randn(2, 4))
    assert len(added) == 3, added  # the head's input, also after the call, and its output
    assert {key[0] for key in digests(recorder)} == {"head"}


def test_op_forgets_what_ran_while_it_was_paused() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Linear(2, 2)
            self.right = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, left: bool) -> Any:
            return self.left(x) if left else self.right(x)

    model = Branches()
    compiled = compiled_by(model, backend="eager", fullgraph=True)
    x = torch.ones(1, 2)
    with ForwardTraceRecorder(compiled, compiled="op") as recorder:
        compiled(x, True)
        compiled(x, False)
        recorder.pause()
        compiled(x, True)
        recorder.resume()
        compiled(x, False)
    names = [[e.module for e in recorder.events if e.root == root] for root in range(3)]
    left, right = ["_orig_mod", "_orig_mod.left"], ["_orig_mod", "_orig_mod.right"]
    assert [set(found) - {""} for found in names] == [set(left), set(right), set(right)]


def test_copies_of_a_model_with_traced_hooks_record_nothing() -> None:
    model = Net()
    with ForwardTraceRecorder(model, compiled="op") as recorder:
        copied = copy.deepcopy(model)
        loaded = pickle.loads(pickle.dumps(model))
        x = torch.ones(1, 4)
        assert torch.equal(copied(x), loaded(x))
        assert recorder.events == []
        model(x)
    assert len(recorder.events) == 10


def test_op_inside_checkpointing() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.block, x, use_reentrant=False)

    model = Checkpointed()
    compiled = compiled_by(model, backend="aot_eager")
    x = torch.randn(2, 4, requires_grad=True)
    with ForwardTraceRecorder(compiled, compiled="op") as recorder:
        (found,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(found, expected)
    assert not recorder.snapshot().counts


@pytest.mark.thorough
def test_a_compiled_recording_compares_with_an_eager_one(
    tmp_path: Path, run_python: RunPython
) -> None:
    model = Net()
    x = torch.randn(2, 4)
    compiled = compiled_by(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), ForwardTraceRecorder(compiled, compiled="op") as recorder:
        compiled(x)
    recorder.save(tmp_path / "op.pt")
    with torch.no_grad(), ForwardTraceRecorder(model) as recorder:
        model(x)
    recorder.save(tmp_path / "eager.pt")
    same = run_python("-m", "my_utils", "diverge", "op.pt", "eager.pt")
    assert same.returncode == 0, same.stdout + same.stderr
    with torch.no_grad(), ForwardTraceRecorder(model) as recorder:
        model.get_parameter("blocks.1.second.bias").add_(1)
        model(x)
    recorder.save(tmp_path / "other.pt")
    other = run_python("-m", "my_utils", "diverge", "op.pt", "other.pt")
    assert other.returncode == 1 and "blocks.1.second" in other.stdout, other.stdout


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.cond(x.sum() > 0, lambda a: self.lin(a).sin(), lambda a: a.cos(), (x,))
        result: torch.Tensor = self.head(out)
        return result


@pytest.mark.thorough
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_eager_leaves_operators_that_take_functions_alone(train: bool, whole: bool) -> None:
    """torch.cond has its gradient, also within a module that is compiled and runs eagerly."""
    model = Branches()
    called: Any = compiled_by(model, backend="eager") if whole else model
    x = torch.rand(4, 4)

    def step(recorder: Any) -> list[torch.Tensor]:
        model.zero_grad()
        with recorder, torch.set_grad_enabled(train):
            out = called(x)
            if train:
                out.sum().backward()
        found = [out.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        return [one.clone() for one in found]

    bare = step(contextlib.nullcontext())
    recorder = ForwardTraceRecorder(called)
    found = step(recorder)
    assert len(found) == len(bare) and all(map(torch.equal, found, bare))
    assert "head" in {event.module.removeprefix("_orig_mod.") for event in recorder.events}
    again = step(contextlib.nullcontext())
    assert all(map(torch.equal, again, bare))


@pytest.mark.parametrize("called_before", [False, True])
def test_op_with_calls_inside_graphs_only_is_silent(called_before: bool) -> None:
    _warnings.forget("forward_trace_empty")
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model.compile(backend="aot_eager")
    x = torch.randn(4, 8)
    if called_before:
        model(x)
    with ForwardTraceRecorder(model, compiled="op") as recorder:
        model(x)
    assert [event.module for event in recorder.events] == ["", "0", "1"]
    assert "forward_trace_empty" not in _warnings.counts()
    with ForwardTraceRecorder(model, compiled="op"):
        pass
    assert _warnings.counts()["forward_trace_empty"] == 1
