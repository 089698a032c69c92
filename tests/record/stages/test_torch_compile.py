"""Timers in compiled functions: calls vanish and the graph stays whole, or stay and break it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from my_utils.utils import (  # noqa: E402
    DebugLayer,
    MyTimer,
    NoOpMyTimer,
)

from ...support.compilers import needs_cxx  # noqa: E402

pytestmark = pytest.mark.long_file

Function = Callable[[Any], Any]
ROOT = Path(__file__).resolve().parents[3]


class CountingBackend:
    """Runs the graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.graphs += 1
        return module.forward


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def counts(timer: MyTimer) -> dict[str, int]:
    return {row[0][-1]: row[1] for row in timer.aggregates()}


def with_calls(timer: Any) -> Function:
    def function(x: Any) -> Any:
        timer.set_step(3)
        timer.start("first", color="red")
        y = x.sin()
        timer.stop("first")
        timer.register_stage("second")
        timer.start("second")
        y = y * 2 + x
        timer.stop("second")
        timer.step()
        timer.synchronize_and_log(wait=False)
        return y.cos()

    return function


def with_time_stage(timer: Any) -> Function:
    def function(x: Any) -> Any:
        with timer.time_stage("outer", "green"):
            for number in range(3):
                with timer.time_stage(f"inner {number}"):
                    x = x * 2
            if x.shape[0] > 100:
                return x
        return x.cos()

    return function


def with_handle(timer: Any) -> Function:
    handle = timer.time_stage("kept")

    def function(x: Any) -> Any:
        with handle:
            y = x * 2
        return y.cos()

    return function


def decorated(timer: Any) -> Function:
    @timer.time_stage("decorated")  # type: ignore[untyped-decorator]
    def function(x: Any) -> Any:
        return x.sin() + 1

    def caller(x: Any) -> Any:
        return function(x) * 2

    return caller


def in_a_module(timer: Any) -> Function:
    class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.timer = timer
            self.handle = timer.time_stage("attention")
            self.mark = DebugLayer("after")

        def forward(self, x: Any) -> Any:
            with self.handle:
                x = x.sin()
            with self.timer.time_stage("mlp"):
                return self.mark(x) * 3

    module: Function = torch.nn.Sequential(Block(), Block())
    return module


MAKERS = [with_calls, with_time_stage, with_handle, decorated, in_a_module]
TIMERS = [MyTimer, NoOpMyTimer]


@pytest.mark.parametrize("timer_class", TIMERS)
@pytest.mark.parametrize("make", MAKERS)
def test_calls_vanish_and_the_graph_is_whole(
    make: Callable[[Any], Function], timer_class: type[MyTimer]
) -> None:
    timer = timer_class()
    function = make(timer)
    backend = CountingBackend()
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = torch.linspace(0, 1, 7)
    result = compiled(x)
    compiled(x + 1)
    assert backend.graphs == 1
    assert counts(timer) == {}
    assert timer.depth == 0
    torch.testing.assert_close(result, function(x))


@needs_cxx
@pytest.mark.thorough
@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_inductor(make: Callable[[Any], Function], dynamic: bool) -> None:
    timer = MyTimer()
    function = make(timer)
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic)
    for size in (3, 5):
        x = torch.linspace(0, 1, size)
        result = compiled(x)
        assert counts(timer) == {}
        torch.testing.assert_close(result, function(x))
        timer = MyTimer()
        function = make(timer)


def test_training_through_aot_autograd() -> None:
    timer = MyTimer()
    linear = torch.nn.Linear(4, 4)

    def loss(x: Any) -> Any:
        with timer.time_stage("forward"):
            y = linear(x).relu()
        with timer.time_stage("loss"):
            return y.square().mean()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    x = torch.ones(2, 4)
    with timer.time_stage("backward"):
        compiled(x).backward()
    gradient = linear.weight.grad.clone()
    linear.zero_grad()
    assert counts(timer) == {"backward": 1}
    loss(x).backward()
    torch.testing.assert_close(gradient, linear.weight.grad)


def test_calls_outside_are_recorded_as_ever() -> None:
    timer = MyTimer()
    compiled = torch.compile(with_time_stage(timer), backend="eager", fullgraph=True)
    for step in range(4):
        timer.set_step(step)
        with timer.time_stage("iter"):
            compiled(torch.ones(3))
    assert counts(timer) == {"iter": 4}


def test_many_timers_share_a_graph() -> None:
    backend = CountingBackend()

    def function(x: Any, timer: MyTimer) -> Any:
        with timer.time_stage("a"):
            return x + 1

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for tag in "abc":
        compiled(torch.ones(2), MyTimer(tag=tag))
    assert backend.graphs == 1


def test_a_subclass_vanishes_too() -> None:
    class Mine(MyTimer):
        __slots__ = ()

    timer = Mine()
    compiled = torch.compile(with_calls(timer), backend="eager", fullgraph=True)
    compiled(torch.ones(3))
    assert counts(timer) == {}


# --- compile="break" ---


@pytest.mark.parametrize("make", MAKERS)
def test_break_keeps_every_call(make: Callable[[Any], Function]) -> None:
    timer = MyTimer(compile="break")
    assert isinstance(timer, MyTimer)
    function = make(timer)
    compiled = torch.compile(function, backend="eager")
    x = torch.linspace(0, 1, 3)
    expected = function(x)
    once = counts(timer)
    assert once
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)
    assert counts(timer) == {name: count * 4 for name, count in once.items()}
    assert timer.depth == 0
    assert timer.unmatched_stops == timer.closed_stages == 0


def test_break_is_an_error_under_fullgraph() -> None:
    timer = MyTimer(compile="break")
    compiled = torch.compile(with_calls(timer), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(torch.ones(3))


# --- the order of imports ---

PROGRAM = """
import sys, warnings
{imports}
def function(x):
    timer.start("a")
    with timer.time_stage("b"):
        y = x + 1
    timer.stop("a")
    return y
assert torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [2, 2]
assert timer.aggregates() == [], timer.aggregates()
import importlib.util
spec = sys.modules["torch._dynamo"].__spec__
assert "exec_module" not in vars(spec.loader) or spec.loader.exec_module.__self__ is spec.loader
assert not any(type(finder).__name__ == "_DynamoFinder" for finder in sys.meta_path)
print("whole")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "from my_utils import MyTimer; timer = MyTimer(); import torch._dynamo",
        *(
            pytest.param(imports, marks=pytest.mark.thorough)
            for imports in (
                "from my_utils import MyTimer; timer = MyTimer(); import torch",
                "import torch, torch._dynamo; from my_utils import MyTimer; timer = MyTimer()",
                "from my_utils.utils import global_timer as timer; import torch",
            )
        ),
    ],
)
def test_the_order_of_imports_does_not_matter(imports: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM.format(imports=imports)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (done.stdout, done.stderr) == ("whole\n", "")


def test_a_timer_alone_does_not_bring_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from my_utils import MyTimer; timer = MyTimer(); timer.start('a'); "
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'numpy')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
