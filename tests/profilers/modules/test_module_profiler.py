"""Times of modules against planted sleeps and torch's profiler, counts against formulas."""

from __future__ import annotations

import collections
import copy
import dataclasses
import io
import itertools
import json
import logging
import math
import os
import pickle
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import pandas
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from my_utils import _core
from my_utils.core import warnings as _warnings
from my_utils.moduleProfiler import ModuleProfiler
from my_utils.profilers.modules import overhead

from ...conftest import RunPython
from ...fakes import compile_fake


@pytest.fixture(autouse=True)
def fresh_warnings() -> Iterator[None]:
    torch.manual_seed(0)
    for kind in list(_warnings.counts()):
        if kind.startswith("module_"):
            _warnings.forget(kind)
    yield


def hooks_in(model: nn.Module) -> int:
    return sum(
        len(m._forward_hooks) + len(m._forward_pre_hooks) + ("timed" in repr(m._compiled_call_impl))
        for m in model.modules()
    )


def table_of(profiler: ModuleProfiler) -> Any:
    return profiler.summary().set_index("module")


class Stopwatch:
    """Adds up the time in its blocks, by the clock of the profiler."""

    def __init__(self) -> None:
        self._ns = 0

    def __enter__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def __exit__(self, *error: object) -> None:
        self._ns += time.monotonic_ns() - self._began_ns

    @property
    def ms(self) -> float:
        return self._ns / 1e6


class Sleeps(nn.Module):
    """Takes its time in the forward, and in the backward; `slept` knows how long it was."""

    def __init__(self, forward_s: float, backward_s: float = 0.0) -> None:
        super().__init__()
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.slept, self.slept_backward = Stopwatch(), Stopwatch()

    def forward(self, x: torch.Tensor) -> Any:
        with self.slept:
            time.sleep(self.forward_s)
        return _Slow.apply(x, self)  # type: ignore[no-untyped-call]


class Around(nn.Sequential):
    """Knows how long each of its modules took, seen from outside."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.watches = [Stopwatch() for _ in modules]

    def forward(self, x: torch.Tensor) -> Any:
        for module, watch in zip(self, self.watches, strict=True):
            with watch:
                x = module(x)
        return x


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: Sleeps) -> torch.Tensor:
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with ctx.module.slept_backward:
            time.sleep(ctx.module.backward_s)
        return grads[0], None


class Raises(nn.Module):
    error: BaseException | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        return x


# --- times ---


def test_times_are_those_of_planted_sleeps() -> None:
    model = Around(Sleeps(0.005, 0.1), Sleeps(0.1, 0.005), nn.Identity())
    around_backward = Stopwatch()
    with ModuleProfiler(model, backward=True) as profiler:
        for _ in range(5):
            loss = model(torch.ones(2, requires_grad=True)).sum()
            with around_backward:
                loss.backward()
    rows = table_of(profiler)
    assert list(rows.calls) == [5, 5, 5] and rows.loc["0", "backward_calls"] == 5
    for name, module, around in zip("012", model, model.watches, strict=True):
        slept = module.slept.ms if isinstance(module, Sleeps) else 0
        slept_backward = module.slept_backward.ms if isinstance(module, Sleeps) else 0
        assert slept <= rows.total_ms[name] <= around.ms
        assert slept_backward <= rows.backward_ms[name]
    assert rows.backward_ms.sum() <= around_backward.ms
    whole = rows.total_ms + rows.backward_ms
    assert list(rows.share_percent) == pytest.approx(list(100 * whole / whole.sum()))
    assert rows.mean_ms["0"] == pytest.approx(rows.total_ms["0"] / 5)
    assert 5 <= rows.min_ms["0"] <= rows.mean_ms["0"] <= rows.max_ms["0"]
    facts = rows.attrs
    assert facts["clock"] == "cpu" and facts["model_calls"] == 5
    inside = rows.total_ms.sum()
    assert facts["model_ms"] == pytest.approx(inside + facts["outside_ms"])
    assert facts["unmatched"] == facts["abandoned"] == facts["dropped"] == 0


def test_what_is_between_the_leaves_is_said_too() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.leaf = Sleeps(0.005)

        def forward(self, x: torch.Tensor) -> Any:
            time.sleep(0.02)
            return self.leaf(x)

    model = Model()
    with ModuleProfiler(model) as profiler:
        model(torch.ones(1))
    facts = profiler.summary().attrs
    assert 20 <= facts["outside_ms"] < facts["model_ms"]
    assert facts["model_ms"] >= 25


def test_as_the_profiler_of_torch_sees_it() -> None:
    class Marked(nn.Sequential):
        def forward(self, x: torch.Tensor) -> Any:
            for module in self:
                with torch.profiler.record_function(f"around {type(module).__name__}"):
                    x = module(x)
            return x

    model = Marked(nn.Linear(256, 512), nn.ReLU(inplace=True), nn.Linear(512, 512))
    x = torch.randn(512, 256)
    model(x)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as peer,
        ModuleProfiler(model) as profiler,
    ):
        for _ in range(10):
            model(x)
    rows = table_of(profiler)
    seen = {event.key: event.cpu_time_total / 1e3 for event in peer.key_averages()}
    linear = rows.total_ms["0"] + rows.total_ms["2"]
    assert seen["aten::linear"] <= linear <= seen["around Linear"]
    assert seen["aten::relu_"] <= rows.total_ms["1"] <= seen["around ReLU"]


def test_modules_called_often_shared_and_recursive() -> None:
    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 3) -> torch.Tensor:
            time.sleep(0.003)
            return x if depth == 0 else self(x, depth - 1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU()
            self.first = nn.Linear(4, 4)
            self.again = nn.Sequential(self.first, nn.Identity())
            self.deep = Recursive()

        def forward(self, x: torch.Tensor) -> Any:
            return self.deep(self.act(self.again(self.act(self.first(x)))))

    model = Model()
    with ModuleProfiler(model) as profiler:
        model(torch.ones(1, 4))
        model(torch.ones(1, 4))
    rows = table_of(profiler)
    assert set(rows.index) == {"act", "first, again.0", "again.1", "deep"}
    assert dict(rows.calls) == {"act": 4, "first, again.0": 4, "again.1": 2, "deep": 8}
    assert rows.parameters["first, again.0"] == 20
    # Four sleeps a call of the outermost, each counted once.
    assert 24 <= rows.total_ms["deep"] <= profiler.summary().attrs["model_ms"]


def test_calls_of_threads() -> None:
    model = nn.Sequential(Sleeps(0.002), Sleeps(0.001))
    with ModuleProfiler(model) as profiler:
        threads = [
            threading.Thread(target=lambda: [model(torch.ones(1)) for _ in range(20)])
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = table_of(profiler)
    assert list(rows.calls) == [120, 120]
    assert rows.total_ms["0"] >= 240 and rows.min_ms["0"] >= 2
    assert rows.attrs["unmatched"] == rows.attrs["abandoned"] == 0


def test_a_model_without_children_is_its_own_row(tmp_path: Path) -> None:
    """The way it is used in the notes of those who had the first one."""
    model = nn.Linear(10, 10)
    x = torch.randn(8, 10)
    with ModuleProfiler(model) as mp:
        model(x)  # before start: not counted
        mp.start()
        model(x)
        mp.stop()
        df = mp.summary(output_path=tmp_path / "module_summary.csv")
    assert list(df.module) == ["(model)"] and list(df.calls) == [1]
    assert df.attrs["model_calls"] == 1 and df.attrs["outside_ms"] == 0
    assert hooks_in(model) == 0
    back = pandas.read_csv(tmp_path / "module_summary.csv")
    pandas.testing.assert_frame_equal(back, pandas.DataFrame(df), check_dtype=False)


def test_whole_types_are_leaves() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with ModuleProfiler(model) as profiler:
        model(torch.ones(1, 3, 8))
    rows = table_of(profiler)
    assert rows.type["self_attn"] == "MultiheadAttention" and rows.calls["self_attn"] == 1
    assert rows.parameters["self_attn"] == 4 * 8 * 8 + 4 * 8
    assert "self_attn.out_proj" not in rows.index
    whole = ModuleProfiler(nn.Sequential(model), whole="TransformerEncoderLayer")
    with whole:
        whole.model(torch.ones(1, 3, 8))
    assert list(table_of(whole).index) == ["0"]


# --- backward ---


@dataclasses.dataclass
class Output:
    hidden: torch.Tensor
    cache: Any = None


class Encoding(dict[str, Any]):
    """As the outputs of many libraries: torch's pytrees do not know it."""


class Stages(list[Any]):
    pass


class Hidden:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


class Packed(nn.Module):
    def __init__(self, pack: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.pack = pack

    def forward(self, x: torch.Tensor) -> Any:
        return self.pack(x @ self.weight)


PACKS: list[tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = [
    (lambda x: Output(x), lambda out: out.hidden),
    (lambda x: {"out": [Output(x)]}, lambda out: out["out"][0].hidden),
    (lambda x: Encoding(hidden=x), lambda out: out["hidden"]),
    (lambda x: collections.UserDict(hidden=x), lambda out: out["hidden"]),
    (lambda x: Stages([x]), lambda out: out[0]),
    (lambda x: collections.deque([x]), lambda out: out[0]),
]


@pytest.mark.parametrize(("pack", "unpack"), PACKS)
def test_the_backward_of_results_in_any_container(
    pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]
) -> None:
    model = nn.ModuleList([Packed(pack), nn.Linear(4, 1)])
    with ModuleProfiler(model, backward=True) as profiler:
        model[1](unpack(model[0](torch.ones(2, 4)))).sum().backward()
    table = profiler.summary().set_index("module")
    assert table.backward_calls.to_dict() == {"0": 1, "1": 1}


def test_a_result_without_tensors_is_named(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleList([Packed(Hidden), nn.Identity()])
    with caplog.at_level(logging.WARNING), ModuleProfiler(model, backward=True) as profiler:
        for _ in range(2):
            model[0](torch.ones(2, 4)).tensor.sum().backward()
            model[1](Hidden(torch.ones(1)))  # calculates nothing
    table = profiler.summary().set_index("module")
    assert table.calls["0"] == 2 and table.backward_calls["0"] == 0
    (message,) = caplog.messages
    assert "backward of '0'" in message and "Hidden" in message


def test_in_place_operations_that_break_full_backward_hooks() -> None:
    class Chunks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1).mul_(2)

    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8), Chunks(), nn.ReLU(inplace=True), nn.Linear(8, 1))

    x = torch.randn(4, 8)
    hooked = model()
    for module in hooked:
        module.register_full_backward_hook(lambda module, given, made: None)
    with pytest.raises(RuntimeError, match="modified inplace"):
        hooked(x)

    plain = model()
    watched = copy.deepcopy(plain)
    plain(x).sum().backward()
    with ModuleProfiler(watched, backward=True) as profiler:
        watched(x).sum().backward()
    rows = table_of(profiler)
    assert list(rows.backward_calls) == [1, 1, 1, 1] and (rows.backward_ms > 0).all()
    for mine, other in zip(watched.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool) -> None:
    """What a backward repeats is told apart, also where it stops early."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(Sleeps(0.04, 0.01), nn.Linear(4, 4), Sleeps(0.04, 0.01))
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(checkpoint(self.block, x, use_reentrant=reentrant))

    model = Model()
    around_backward = Stopwatch()
    with ModuleProfiler(model, backward=True) as profiler:
        for _ in range(2):
            loss = model(torch.ones(2, 4, requires_grad=True)).sum()
            with around_backward:
                loss.backward()
    rows = table_of(profiler)
    assert set(rows.calls) == {2}
    assert rows.recompute_calls["head"] == 0
    assert rows.recompute_calls["block.0"] == rows.recompute_calls["block.1"] == 2
    assert rows.recompute_ms["block.0"] >= 80
    assert set(rows.backward_calls) == {2}
    # The repetition runs inside of a node, whose own time it is not.
    assert rows.backward_ms["block.0"] >= 20 and rows.backward_ms["block.2"] >= 20
    assert rows.backward_ms.sum() + rows.recompute_ms.sum() <= around_backward.ms
    assert rows.attrs["unmatched"] == rows.attrs["abandoned"] == 0


@pytest.mark.parametrize("whole", [False, True])
def test_what_the_counted_call_repeats_is_not_timed_either(whole: bool) -> None:
    """Four steps, of which the first is counted; the whole model is repeated, or a block."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> Any:
            if whole:
                return self.head(self.block(x))
            return self.head(checkpoint(self.block, x, use_reentrant=False))

    model = Model()
    with ModuleProfiler(model, backward=True, flops=True) as profiler:
        for _ in range(4):
            x = torch.ones(2, 4, requires_grad=True)
            loss = checkpoint(model, x, use_reentrant=False) if whole else model(x)
            loss.sum().backward()
    rows = table_of(profiler)
    assert rows.calls["block"] == rows.recompute_calls["block"] == rows.backward_calls["block"] == 3
    assert rows.recompute_calls["head"] == (3 if whole else 0)


def test_modules_that_share_their_input_share_no_time() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = Sleeps(0, 0.002), Sleeps(0, 0.1), Sleeps(0, 0.002)

        def forward(self, x: torch.Tensor) -> Any:
            x = x * 2
            return self.q(x) + self.k(x) + self.v(x)

    model = Model()
    around_backward = Stopwatch()
    with ModuleProfiler(model, backward=True) as profiler:
        loss = model(torch.ones(2, requires_grad=True)).sum()
        with around_backward:
            loss.backward()
    rows = table_of(profiler)
    assert rows.backward_ms["k"] >= 100
    assert rows.backward_ms.sum() <= around_backward.ms


def test_gradients_accumulate_and_a_backward_may_raise() -> None:
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise KeyError("mine")

    class Fails(nn.Module):
        bad = True

        def forward(self, x: torch.Tensor) -> Any:
            return Bad.apply(x) if self.bad else x * 1  # type: ignore[no-untyped-call]

    fails = Fails()
    model = nn.Sequential(nn.Linear(3, 3), fails, nn.Linear(3, 3))
    with ModuleProfiler(model, backward=True) as profiler:
        with pytest.raises(KeyError, match="mine"):
            model(torch.ones(1, 3)).sum().backward()
        fails.bad = False
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
    rows = table_of(profiler)
    assert list(rows.calls) == [4, 4, 4]
    assert rows.backward_calls["0"] == rows.backward_calls["1"] == 3
    assert rows.backward_calls["2"] == 4


def test_hooks_on_nodes_are_quiet_after_stop() -> None:
    model = nn.Linear(3, 3)
    with ModuleProfiler(model, backward=True) as profiler:
        kept = model(torch.ones(1, 3)).sum()
    kept.backward()
    assert list(profiler.summary().backward_calls) == [0]


# --- FLOPs, memory, parameters ---


def test_flops_are_those_of_the_formulas_and_nothing_runs_twice() -> None:
    calls: list[int] = []

    class Counts(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append(len(calls))
            return x

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 64, 10), Counts()
    )
    x = torch.randn(2, 3, 8, 8)
    with FlopCounterMode(display=False) as peer:
        model(x)
    calls.clear()
    with ModuleProfiler(model, flops=True) as profiler:
        for _ in range(3):
            model(x).sum().backward()
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    rows = table_of(profiler)
    assert len(calls) == 3
    assert set(rows.calls) == {2}, "the call that is counted is not timed"
    assert rows.flops["0"] == 2 * 2 * 8 * 64 * 3 * 9
    assert rows.flops["3"] == 2 * 2 * 8 * 64 * 10
    assert rows.flops["1"] == rows.flops["4"] == 0
    assert rows.flops.sum() == peer.get_total_flops()
    assert hooks_in(model) == 0


def test_flops_and_memory_of_a_call_that_raises() -> None:
    raises = Raises()
    model = nn.Sequential(nn.Linear(4, 4), raises)
    raises.error = ValueError("mine")
    with ModuleProfiler(model, flops=True, memory=True) as profiler:
        with pytest.raises(ValueError, match="mine"):
            model(torch.ones(2, 4))
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        raises.error = None
        model(torch.ones(2, 4))
    rows = table_of(profiler)
    assert rows.flops["0"] == 64 and set(rows.calls) == {1}


def test_ctrl_c_in_the_counted_call_leaves_no_mode_behind() -> None:
    raises = Raises()
    model = nn.Sequential(nn.Linear(4, 4), raises)
    raises.error = KeyboardInterrupt()
    with (
        pytest.raises(KeyboardInterrupt),
        ModuleProfiler(model, backward=True, flops=True, memory=True),
    ):
        model(torch.ones(2, 4))
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert hooks_in(model) == 0


def test_after_a_caught_ctrl_c_the_next_call_is_counted() -> None:
    raises = Raises()
    model = nn.Sequential(nn.Linear(4, 4), raises, nn.Linear(4, 4))
    raises.error = KeyboardInterrupt()
    with ModuleProfiler(model, flops=True, memory=True) as profiler:
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2, 4))
        raises.error = None
        for _ in range(3):
            model(torch.ones(2, 4))
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    rows = table_of(profiler)
    assert rows.flops["0"] == rows.flops["2"] == 64
    assert profiler.summary().attrs["model_flops"] == 128 + rows.flops["1"]
    assert rows.calls["2"] == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_flops_are_those_of_the_forward_alone(reentrant: bool) -> None:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(8, 8, bias=False)
            self.head = nn.Linear(8, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(checkpoint(self.block, x, use_reentrant=reentrant))
            out.backward(torch.ones_like(out))
            return out

    model = Step()
    with ModuleProfiler(model, flops=True) as profiler:
        model(torch.ones(2, 8, requires_grad=True))
    assert dict(table_of(profiler).flops) == {"block": 256, "head": 256}
    assert profiler.summary().attrs["model_flops"] == 512


def test_peak_memory() -> None:
    class Big(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            big = torch.zeros(1 << 18) + 1  # two of 1 MiB, the first dies
            return x + big.sum()

    model = nn.Sequential(nn.Linear(64, 256), Big(), nn.ReLU(inplace=True), nn.Flatten())
    with ModuleProfiler(model, memory=True) as profiler, torch.no_grad():
        model(torch.ones(32, 64))
    rows = table_of(profiler)
    assert rows.peak_memory_bytes["0"] == 32 * 256 * 4
    assert 2 << 20 <= rows.peak_memory_bytes["1"] <= (2 << 20) + 3 * 32 * 256 * 4
    assert rows.peak_memory_bytes["2"] == rows.peak_memory_bytes["3"] == 0


def test_peak_memory_of_sparse_tensors() -> None:
    class Sparse(nn.Module):
        def forward(self, x: torch.Tensor) -> None:
            x.to_sparse()  # dies
            x.to_sparse()

    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse, self.last = Sparse(), nn.Identity()

        def forward(self, x: torch.Tensor) -> Any:
            self.sparse(x)
            return self.last(x)

    with ModuleProfiler(Steps(), memory=True) as profiler, torch.no_grad():
        profiler.model(torch.ones(64, 64))
    assert table_of(profiler).peak_memory_bytes.to_dict() == {
        "sparse": 64 * 64 * (8 + 8 + 4),  # two indices and a value of each element
        "last": 0,
    }


def test_not_counted_is_nan() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with ModuleProfiler(model, flops=True, memory=True) as profiler:
        model[0](torch.ones(1, 4))  # not the model
    rows = table_of(profiler)
    assert rows.calls["0"] == 1 and math.isnan(rows.flops["0"])
    assert math.isnan(rows.peak_memory_bytes["0"])


def test_parameters_are_elements() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4), nn.LazyLinear(7), nn.ReLU())
    profiler = ModuleProfiler(model)
    profiler.start()
    rows = table_of(profiler)
    assert rows.parameters["2"] == 0
    model.append(nn.Identity())
    with torch.no_grad():
        model[2](torch.ones(1, 5))
    rows = table_of(profiler)
    profiler.stop()
    assert dict(rows.parameters) == {"0": 4 * 75 + 4, "1": 8, "2": 42, "3": 0}


# --- hooks: on, off, copies ---


def test_exceptions_of_the_model_go_through_and_hooks_go() -> None:
    raises = Raises()
    model = nn.Sequential(nn.Linear(2, 2), raises)
    raises.error = error = ValueError("mine")
    profiler = ModuleProfiler(model)
    with pytest.raises(ValueError) as caught, profiler:
        model(torch.ones(1, 2))
    assert caught.value is error
    assert hooks_in(model) == 0 and not profiler.running
    rows = table_of(profiler)
    assert rows.calls["0"] == rows.calls["1"] == 1 and rows.attrs["abandoned"] == 0
    raises.error = None
    with profiler:
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 3))
        model(torch.ones(1, 2))
    assert profiler.summary().attrs["model_calls"] == 2


def test_start_and_stop_in_any_order(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    profiler = ModuleProfiler(model)
    with caplog.at_level(logging.WARNING):
        profiler.stop()
        profiler.stop()
    assert len(caplog.messages) == 1 and "not started" in caplog.messages[0]
    empty = profiler.summary()
    assert len(empty) == 0 and "total_ms" in empty.columns
    profiler.start()
    model(torch.ones(1, 2))
    profiler.start()
    assert hooks_in(model) == 4
    model(torch.ones(1, 2))
    assert list(profiler.summary().calls) == [1], "start begins anew"
    model(torch.ones(1, 2))
    assert list(profiler.summary().calls) == [2], "a summary while it runs"
    profiler.stop()
    profiler.stop()
    model(torch.ones(1, 2))
    assert hooks_in(model) == 0 and list(profiler.summary().calls) == [2]
    assert len(caplog.messages) == 1


def test_start_and_stop_in_the_middle_of_a_forward() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(2, 2), nn.Identity())
    profiler = ModuleProfiler(model, backward=True)
    model[0].register_forward_hook(lambda *given: profiler.start())
    model[2].register_forward_pre_hook(lambda *given: profiler.stop())
    model(torch.ones(1, 2)).sum().backward()
    rows = table_of(profiler)
    assert rows.calls["1"] == 1 and rows.calls["0"] == rows.calls["2"] == 0
    assert rows.attrs["model_calls"] == 0
    assert all("ModuleHook" not in repr(m._forward_hooks) for m in model.modules())


def test_two_at_once() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with ModuleProfiler(model) as one:
        model(torch.ones(1, 2))
        with ModuleProfiler(model, backward=True) as two:
            model(torch.ones(1, 2)).sum().backward()
    assert list(one.summary().calls) == [2] and list(two.summary().calls) == [1]
    assert list(two.summary().backward_calls) == [1]


def test_copies_of_a_hooked_model_are_not_timed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with ModuleProfiler(model, backward=True, flops=True, memory=True) as profiler:
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        copies.append(torch.load(file, weights_only=False))
        for copied in copies:
            assert torch.equal(copied(torch.ones(1, 2)), model[1](model[0](torch.ones(1, 2))))
        assert profiler.summary().attrs["model_calls"] == 0
        assert list(profiler.summary().calls) == [3, 3]


def test_a_forked_child_is_not_timed() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with ModuleProfiler(model, backward=True) as profiler:
        model(torch.ones(1, 2))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                model(torch.ones(1, 2))
                said = (profiler.running, hooks_in(model), int(profiler.summary().calls.sum()))
                os.write(writing, json.dumps(said).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert json.loads(os.read(reading, 1000)) == [False, 0, 1]
        model(torch.ones(1, 2))
    os.close(reading)
    os.close(writing)
    assert list(profiler.summary().calls) == [2]


def test_ranks(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with ModuleProfiler(model, ranks=[1, 2]) as profiler:
        assert hooks_in(model) == 0
        model(torch.ones(1, 2))
        profiler.stop()
    assert len(profiler.summary(tmp_path / "out.csv")) == 0
    assert not (tmp_path / "out.csv").exists()
    with ModuleProfiler(model, ranks=0) as profiler:
        model(torch.ones(1, 2))
    profiler.summary(tmp_path / "rank{rank}.csv")
    assert (tmp_path / "rank0.csv").exists()


def test_wrong_arguments() -> None:
    model = nn.Linear(1, 1)
    for arguments, match in (
        ({"backward": 1}, "backward must be a bool"),
        ({"use_cuda": "yes"}, "use_cuda must be"),
        ({"whole": 3}, "whole must hold classes"),
        ({"whole": [3]}, "whole must hold classes"),
        ({"ranks": "0"}, "ranks must be"),
    ):
        with pytest.raises(TypeError, match=match):
            ModuleProfiler(model, **arguments)
    with pytest.raises(TypeError, match="output_path must be a path or None, not 5"):
        ModuleProfiler(model).summary(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module"):
        ModuleProfiler(lambda x: x)  # type: ignore[arg-type]


def test_a_csv_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(1, 1)
    with ModuleProfiler(model) as profiler:
        model(torch.ones(1))
    with caplog.at_level(logging.WARNING):
        table = profiler.summary(tmp_path / "no" / "such" / "folder.csv")
    assert list(table.calls) == [1] and "is not written" in caplog.text


def test_modules_of_torch_jit(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Linear(2, 2), torch.jit.script(nn.Linear(2, 2)))
    with ModuleProfiler(model, backward=True) as profiler:
        model(torch.ones(1, 2)).sum().backward()
    assert table_of(profiler).calls["0"] == 1


def test_its_own_overhead() -> None:
    model = nn.Sequential(*(nn.Identity() for _ in range(10)))
    with ModuleProfiler(model, backward=True) as profiler:
        for _ in range(50):
            model(1)
    table = profiler.summary()
    facts = table.attrs
    assert facts["overhead_ns_per_pair"] > 0  # benchmarks/ say how much
    assert facts["overhead_ns_per_node"] > 0
    assert table.overhead_ms.sum() == pytest.approx(500 * facts["overhead_ns_per_pair"] / 1e6)
    assert facts["overhead_ms"] == pytest.approx(550 * facts["overhead_ns_per_pair"] / 1e6)
    assert 0 < facts["empty_call_ms"] < facts["model_ms"]


def test_global_hooks_of_the_program_see_its_own_modules_only() -> None:
    seen = []

    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        seen.append(tuple(output.shape))

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with ModuleProfiler(nn.Linear(2, 2)) as profiler:
            profiler.model(torch.ones(1, 2))
    finally:
        handle.remove()
    assert seen == [(1, 2)]
    table = profiler.summary()
    assert (table.calls[0], table.overhead_ms[0]) == (1, 0)


def test_a_measurement_of_the_cost_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Refuses(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, *_: Any, **__: Any) -> Any:
            raise RuntimeError("not here")

    profiler = ModuleProfiler(nn.Linear(2, 2), backward=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with Refuses():  # type: ignore[no-untyped-call]
                profiler.start()
            profiler.model(torch.ones(1, 2))
            profiler.stop()
    assert caplog.messages == ["the cost of hooks is not measured (RuntimeError: not here)"]
    assert profiler.summary().calls[0] == 1


def test_a_stall_is_no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def forward(module: nn.Module, value: Any) -> Any:
        time.sleep(1 if next(calls) == 50 else 0)
        return value

    monkeypatch.setattr(overhead._Nothing, "forward", forward)
    assert 0 < overhead.measure_overhead(backward=False, use_cuda=False).empty_ns < 1e6


# --- wrapped and compiled models ---


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.act(self.first(x)))


class Graphs:
    """A backend that counts what it is given, and the nodes in it."""

    def __init__(self) -> None:
        self.nodes: list[int] = []

    def __call__(self, module: Any, given: Any) -> Callable[..., Any]:
        self.nodes.append(len(list(module.graph.nodes)))
        return module.forward  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["compiled model", "model.compile", "a part", "before"])
def test_compiled_modules_are_timed_as_one(how: str) -> None:
    torch._dynamo.reset()
    graphs = Graphs()
    net = Net()
    model: Any = net
    if how == "model.compile":
        net.compile(backend=graphs, fullgraph=True)
    elif how == "a part":
        net.compile(backend=graphs, fullgraph=True)
        model = nn.Sequential(net, nn.Linear(4, 1))
    else:
        model = torch.compile(net, backend=graphs, fullgraph=True)
    x = torch.ones(2, 4)
    if how == "before":
        model(x)
    with ModuleProfiler(model, backward=True) as profiler:
        for _ in range(3):
            model(x).sum().backward()
    rows = table_of(profiler)
    name = "0" if how == "a part" else "(model)"
    assert rows.type[name] == "Net (compiled)"
    assert rows.calls[name] == rows.backward_calls[name] == 3
    assert rows.parameters[name] == 40
    assert len(graphs.nodes) == 1, "one graph, made once"
    model(x)
    assert len(graphs.nodes) == 1 and hooks_in(model) == 0
    torch._dynamo.reset()


def test_hooks_leave_no_trace_in_graphs_around_the_model(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    plain, hooked = Graphs(), Graphs()
    net = Net()
    x = torch.ones(2, 4)
    torch.compile(lambda x: net(x) + 1, backend=plain, fullgraph=True)(x)
    torch._dynamo.reset()
    with ModuleProfiler(net, backward=True, flops=True, memory=True) as profiler:
        step = torch.compile(lambda x: net(x) + 1, backend=hooked, fullgraph=True)
        step(x)
        step(x)
    assert hooked.nodes == plain.nodes
    assert set(profiler.summary().calls) == {0}
    torch._dynamo.reset()


def test_flops_of_compiled_models_are_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    model: Any = torch.compile(Net(), backend="eager")
    with caplog.at_level(logging.WARNING), ModuleProfiler(model, flops=True) as profiler:
        model(torch.ones(2, 4))
    assert "are not counted" in caplog.text
    table = profiler.summary()
    assert list(table.calls) == [1] and table.flops.isna().all()
    torch._dynamo.reset()


WRAPPED = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from my_utils.moduleProfiler import ModuleProfiler
dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=0, world_size=1)
said = {}

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 2))

def profile(name, model):
    with ModuleProfiler(model, backward=True, flops=True) as profiler:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    table = profiler.summary()
    said[name] = {row.module: [row.type, row.calls, row.backward_calls, row.parameters, row.flops]
                  for row in table.itertuples()}

profile("ddp", nn.parallel.DistributedDataParallel(net()))
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (1,))
model = net()
for layer in model:
    fully_shard(layer, mesh=mesh)
profile("fsdp", fully_shard(model, mesh=mesh))
profile("parallel", nn.DataParallel(net()))
print(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_wrapped_models(run_python: RunPython, tmp_path: Path) -> None:
    result = run_python("-c", WRAPPED, env={"STORE": str(tmp_path / "store")}, timeout=100)
    assert result.returncode == 0, result.stderr
    said = json.loads(result.stdout)
    linear = ["Linear", 2, 2, 40, 128]
    assert said["ddp"]["module.0"] == said["parallel"]["module.0"] == linear
    assert said["ddp"]["module.1"] == ["ReLU", 2, 2, 0, 0]
    assert said["fsdp"]["0"][1:] == linear[1:]
    assert all(len(rows) == 3 for rows in said.values())


# --- CUDA ---


SIMULATED = """
import ctypes, json, sys, time
import torch
from my_utils.core import warnings as _warnings
from my_utils.moduleProfiler import ModuleProfiler

device = ctypes.CDLL("libcuda.so.1")
device.fakeCudaWork.argtypes = [ctypes.c_void_p, ctypes.c_int64]
device.fakeCudaDevice.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_double]
device.fakeCudaClock.argtypes = [ctypes.c_int64]
device.fakeCudaDevice(5_000, 86_400_000_000_000, 50.0)
device.fakeCudaMakeCurrent(1)

class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward_ns, backward_ns):
        ctx.backward_ns = backward_ns
        device.fakeCudaWork(None, forward_ns)
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        device.fakeCudaWork(None, ctx.backward_ns)
        return grad, None, None

class Module(torch.nn.Module):
    def __init__(self, forward_ns, backward_ns):
        super().__init__()
        self.ns = forward_ns, backward_ns
    def forward(self, x):
        return Work.apply(x, *self.ns)

model = torch.nn.Sequential(Module(1_000_000, 2_000_000), Module(3_000_000, 500_000))
def run(calls, **options):
    with ModuleProfiler(model, use_cuda=True, **options) as profiler:
        for _ in range(calls):
            model(torch.ones(1, requires_grad=True)).sum().backward()
    return profiler
def report(profiler, **more):
    table = profiler.summary()
    print(json.dumps({"rows": json.loads(table.set_index("module").to_json(orient="index")),
                      "facts": table.attrs, "warnings": _warnings.counts(),
                      "misuse": device.fakeCudaMisuse(), **more}))
"""

FAILING = [
    "cuCtxGetCurrent",
    "cuCtxGetId",
    "cuEventCreate",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuStreamIsCapturing",
]


@pytest.fixture(scope="session")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake("fake_cuda.c", tmp_path_factory.mktemp("cuda") / "libcuda.so.1")


Simulate = Callable[[str], dict[str, Any]]


@pytest.fixture
def simulate(run_python: RunPython, fake_driver: Path) -> Simulate:
    if torch.version.cuda is not None:
        pytest.skip("a torch for CUDA asks its runtime for the stream; the fake driver serves none")

    def run(script: str) -> dict[str, Any]:
        libraries = [str(fake_driver.parent), os.environ.get("LD_LIBRARY_PATH", "")]
        env = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
        result: subprocess.CompletedProcess[str] = run_python("-c", SIMULATED + script, env=env)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)  # type: ignore[no-any-return]

    return run


@pytest.mark.slow
def test_gpu_times_on_a_simulated_device(simulate: Simulate) -> None:
    said = simulate(
        """
device.fakeCudaClock(time.monotonic_ns())  # no work is done before the last of it is given
profiler = run(20, backward=True, cpu=True)
waits = sum(device.fakeCudaCalls(b"cu%sSynchronize" % of) for of in (b"Event", b"Stream", b"Ctx"))
device.fakeCudaClock(time.monotonic_ns() + 3_600_000_000_000)
report(profiler, waits=waits)
"""
    )
    first, second = said["rows"]["0"], said["rows"]["1"]
    assert said["facts"]["clock"] == "gpu"
    assert first["calls"] == second["calls"] == first["backward_calls"] == 20
    assert first["total_ms"] == pytest.approx(20, rel=0.1)
    assert second["total_ms"] == pytest.approx(60, rel=0.1)
    assert first["backward_ms"] == pytest.approx(40, rel=0.1)
    assert second["backward_ms"] == pytest.approx(10, rel=0.1)
    assert second["mean_ms"] == pytest.approx(3, rel=0.1)
    assert second["cpu_total_ms"] > 0 and said["waits"] == 0, "Python does not wait"
    assert said["facts"]["model_ms"] >= 80
    assert said["facts"]["gpu_waits"] == said["facts"]["gpu_missed"] == said["misuse"] == 0
    assert not any(kind.startswith("module") for kind in said["warnings"])


@pytest.mark.slow
def test_every_call_of_the_driver_may_fail(simulate: Simulate) -> None:
    said = simulate(
        f"""
import my_utils.moduleProfiler as home
home._GPU_WAIT_S = 0.05
results = []
for name in {FAILING}:
    for nth in (1, 7, 0):
        device.fakeCudaFail(f"{{name}}:{{nth}}:700".encode())
        profiler = run(3, backward=True)
        table = profiler.summary()
        device.fakeCudaFail(b"")
        facts = table.attrs
        results.append([name, list(table.calls), facts["gpu_missed"] + facts["gpu_lost"]])
report(run(2), results=results)
"""
    )
    assert len(said["results"]) == 3 * len(FAILING)
    for name, calls, _ in said["results"]:
        assert calls == [3, 3], name
    assert any(missed > 0 for _, _, missed in said["results"])
    assert said["rows"]["0"]["calls"] == 2 and said["facts"]["gpu_missed"] == 0
    assert said["warnings"]["module_profiler_gpu"] > 0 and said["misuse"] == 0


def test_a_forked_child_leaves_the_gpu_alone(simulate: Simulate) -> None:
    said = simulate(
        """
import os
with ModuleProfiler(model, use_cuda=True) as profiler:
    model(torch.ones(1))
    calls = device.fakeCudaCalls(b"cuEventRecord")
    child = os.fork()
    if child == 0:
        model(torch.ones(1))
        same = device.fakeCudaCalls(b"cuEventRecord") == calls
        table = profiler.summary()
        os._exit(0 if same and set(table.calls) == {1} else 1)
    status = os.waitpid(child, 0)[1]
    model(torch.ones(1))
report(profiler, status=status)
"""
    )
    assert said["status"] == 0 and said["rows"]["0"]["calls"] == 2


def test_without_a_driver_there_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    if _core.cuda_state()["available"]:
        pytest.skip("there is a CUDA driver")
    model = nn.Linear(1, 1)
    with caplog.at_level(logging.WARNING), ModuleProfiler(model, use_cuda=True) as profiler:
        model(torch.ones(1))
    table = profiler.summary()
    assert "no CUDA driver" in caplog.text
    assert table.attrs["clock"] == "cpu" and list(table.calls) == [1]


@pytest.mark.gpu
def test_on_a_real_gpu() -> None:
    model = nn.Sequential(
        nn.Linear(2048, 2048), nn.ReLU(inplace=True), nn.Linear(2048, 8192)
    ).cuda()
    x = torch.randn(4096, 2048, device="cuda")
    model(x).sum().backward()
    torch.cuda.synchronize()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with ModuleProfiler(model, backward=True, cpu=True, flops=True, memory=True) as profiler:
        model(x)
        began.record()
        for _ in range(10):
            model(x).sum().backward()
        ended.record()
    rows = table_of(profiler)
    ended.synchronize()
    assert rows.attrs["clock"] == "gpu" and set(rows.calls) == set(rows.backward_calls) == {10}
    timed = rows.total_ms.sum() + rows.backward_ms.sum()
    assert 0.3 * began.elapsed_time(ended) < timed <= 1.05 * began.elapsed_time(ended)
    assert 2 < rows.total_ms["2"] / rows.total_ms["0"] < 8
    assert rows.flops["2"] == 4 * rows.flops["0"] == 2 * 4096 * 2048 * 8192
    assert rows.peak_memory_bytes["0"] >= 4096 * 2048 * 4
    assert rows.peak_memory_bytes["1"] == 0
    assert rows.attrs["gpu_lost"] == rows.attrs["gpu_missed"] == rows.attrs["gpu_waits"] == 0


@pytest.mark.gpu
def test_modules_in_a_cuda_graph_have_no_times() -> None:
    model = nn.Linear(64, 64).cuda()
    x = torch.randn(8, 64, device="cuda")
    for _ in range(3):
        model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with ModuleProfiler(model) as profiler, torch.no_grad():
        with torch.cuda.graph(graph):
            model(x)
        graph.replay()
    assert profiler.summary().attrs["gpu_missed"] == 1


def test_the_printed_table_shows_the_times() -> None:
    """Also of a part of it, at the 80 characters of a terminal, with every optional column."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    profiler = ModuleProfiler(model, flops=True, memory=True, backward=True)
    profiler.start()
    for _ in range(2):  # the first call is counted and not timed
        model(torch.ones(2, 8)).sum().backward()
    profiler.stop()
    table = profiler.summary()
    for part in (table, table.head(2), table[table["calls"] > 0]):
        shown = repr(part)
        lines = shown.splitlines()
        assert {"module", "total_ms", "share_percent"} <= set(lines[0].split())
        assert max(map(len, lines[:-1])) <= 80
        assert f"[{len(part)} rows x {len(part.columns)} columns]" in lines[-1]
    assert "overhead_ms" in shown, "what is left out is named"
    again = pickle.loads(pickle.dumps(table))
    assert repr(again) == repr(table) and again.attrs == table.attrs
    assert repr(table["calls"]).startswith("0 ")
    assert repr(table[["calls", "type"]]).split()[:2] == ["calls", "type"]
