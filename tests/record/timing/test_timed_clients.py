"""Timed functions, and what looks into functions: cloudpickle, Ray, torch's compilers, tracers."""

from __future__ import annotations

import functools
import os
import pickle
import socket
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from my_utils.timing import TimeManager, timer_wrap

ROOT = Path(__file__).resolve().parents[3]


@timer_wrap
def bare(x: int, y: int = 2, /, *rest: int, z: int = 3, **more: int) -> tuple[Any, ...]:
    return x, y, rest, z, more


@timer_wrap("other")
def one(x: Any) -> Any:
    return x


def counts(tm: TimeManager) -> dict[str, int]:
    return {name: len(times) for name, times in tm.records.items()}


class Holder:
    @timer_wrap
    def method(self, x: int) -> int:
        return x

    @timer_wrap
    @staticmethod
    def static(x: int) -> int:
        return x

    @timer_wrap
    @classmethod
    def of_class(cls, x: int) -> str:
        return f"{cls.__name__}{x}"


def test_it_is_a_python_function() -> None:
    for function in (bare, one, Holder.method, timer_wrap(len), timer_wrap(functools.partial(one))):
        assert type(function) is types.FunctionType
    assert type(Holder().method) is types.MethodType
    assert bare.__annotations__ == {
        "x": "int", "y": "int", "rest": "int", "z": "int", "more": "int",
        "return": "tuple[Any, ...]",
    }  # fmt: skip
    assert bare.__globals__ is globals()
    assert (bare.__defaults__, bare.__kwdefaults__) == ((2,), {"z": 3})
    own = bare.__code__
    assert (own.co_argcount, own.co_posonlyargcount, own.co_kwonlyargcount) == (2, 2, 1)


def test_without_brackets() -> None:
    tm = TimeManager()
    with tm.enable_timer():
        assert bare(1, 5, 6, z=7, w=8) == (1, 5, (6,), 7, {"w": 8})
        assert bare(1) == (1, 2, (), 3, {})
        assert Holder().method(1) == Holder.static(1) == 1
        assert Holder.of_class(2) == "Holder2"
    assert counts(tm) == {"bare": 2, "method": 1, "static": 1, "of_class": 1}


def test_parameters_of_every_kind_and_name() -> None:
    def plain(function: Any, _function: Any, *, _timed: Any = 1, recording: Any = 2) -> Any:
        return function, _function, _timed, recording

    wrapped = timer_wrap(plain)
    tm = TimeManager()
    with tm.enable_timer():
        assert wrapped(1, _function=2, _timed=3) == (1, 2, 3, 2)
    assert wrapped(5, 6) == (5, 6, 1, 2)
    assert counts(tm) == {"plain": 1}
    with pytest.raises(TypeError, match=r"plain\(\) missing 1 required positional argument"):
        wrapped(1)  # type: ignore[call-arg]


def test_super_without_arguments() -> None:
    class Longer(Holder):
        @timer_wrap
        def method(self, x: int) -> int:
            return super().method(x) * 10

    tm = TimeManager()
    with tm.enable_timer():
        assert Longer().method(2) == 20
    assert counts(tm) == {"method": 2}


PROGRAM = """
import sys
import cloudpickle
from my_utils.timing import TimeManager, timer, timer_wrap

@timer_wrap
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)

def nested():
    @timer_wrap("closure")
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)
    return down

@timer_wrap
def rows(n):
    yield from range(n)

@timer_wrap
async def later():
    return 5

class Model:
    @timer_wrap
    def forward(self, x):
        return x + 1

mine = TimeManager()

@mine.timer("always")
def always():
    return 3

with open(sys.argv[1], "wb") as file:
    cloudpickle.dump((factorial, nested(), rows, later, Model, always, timer_wrap(len)), file)
"""

READER = """
import asyncio, pickle, sys
from my_utils.timing import TimeManager
with open(sys.argv[1], "rb") as file:
    factorial, closure, rows, later, Model, always, length = pickle.load(file)
tm = TimeManager()
for _ in range(2):
    factorial(2)
with tm.enable_timer():
    print(factorial(4), closure(3), list(rows(2)), asyncio.run(later()), Model().forward(1),
          always(), length("abc"))
print({name: len(times) for name, times in tm.records.items()})
"""


def test_cloudpickle_takes_functions_of_main_and_closures_by_value(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    file = tmp_path / "functions.pkl"
    for program in (PROGRAM, READER):
        done = subprocess.run(
            [sys.executable, "-c", program, str(file)],
            cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    values, times = done.stdout.splitlines()
    assert values == "24 3 [0, 1] 5 2 3 3"
    assert times == str(
        {"factorial": 4, "closure": 4, "rows": 1, "later": 1, "forward": 1, "len": 1}
    )


def test_pickled_by_reference() -> None:
    for function in (bare, one, Holder.method, Holder.static):
        assert pickle.loads(pickle.dumps(function)) is function


# --- torch ---


def test_torch_takes_the_function_itself() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = torch.ones(3)

    def helper(x: torch.Tensor) -> torch.Tensor:  # type: ignore[name-defined]
        return x - 1

    @timer_wrap
    def scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:  # type: ignore[name-defined]
        return helper(torch.relu(x)) + by

    namespace = {"torch": torch}
    scale.__globals__.update(namespace)
    try:
        assert torch.jit.script(scale)(x, 3.0).tolist() == [3.0] * 3
    finally:
        scale.__globals__.pop("torch")
    graph = torch.fx.symbolic_trace(scale)
    assert graph(x, 4.0).tolist() == [4.0] * 3
    assert [node.op for node in graph.graph.nodes].count("placeholder") == 2


@pytest.mark.parametrize("strict", [False, True])
def test_torch_export(strict: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        @timer_wrap
        def forward(self, x: Any, *, by: float = 2.0) -> Any:
            return self.scaled(self.linear(x), by)

        @timer_wrap("scaled")
        def scaled(self, x: Any, by: float) -> Any:
            return torch.relu(x) * by

    net, x = Net(), torch.ones(1, 2)
    exported = torch.export.export(net, (x,), {"by": 3.0}, strict=strict)
    assert torch.equal(exported.module()(x, by=3.0), net(x, by=3.0))


# --- TimeManager ---


def filled(rank: int, samples: int, max_samples: int = 1000) -> TimeManager:
    tm = TimeManager(max_samples=max_samples)
    for n in range(samples):
        tm.add("load", 1000 * (n + 1) + rank)
    tm.add(f"only {rank}", 7)
    return tm


@pytest.mark.parametrize("max_samples", [1000, 10, 0])
def test_a_manager_pickles_with_all_times(max_samples: int) -> None:
    tm = filled(3, 500, max_samples)
    found = pickle.loads(pickle.dumps(tm))
    assert found.records == tm.records
    assert found.max_samples == max_samples
    for name in tm.names():
        assert found.summary(name) == tm.summary(name)
    found.add("load", 5)
    assert (found.totals()[0][1], tm.totals()[0][1]) == (501, 500)
    with tm.enable_timer():
        copied = pickle.loads(pickle.dumps(tm))
        one(1)
    assert "other" not in copied.records


def test_subclasses_keep_their_attributes() -> None:
    tm = Labelled("mine")
    tm.add("a", 3)
    found = pickle.loads(pickle.dumps(tm))
    assert (type(found), found.label, found.records) == (Labelled, "mine", {"a": [3e-9]})


class Labelled(TimeManager):
    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label


@pytest.mark.parametrize(
    "state",
    [
        None,
        (b"1234567", None),
        (b"", 3),
        (b"", (1, 5, 5, 5, 5, 0.0, 0, b"")),
        (b"", (1, 5, 6, 5, 5, 0.0, 1, b"\x0b\x05")),
        (b"", (0, 0, 0, 0, 0, 0.0, 0, b"")),
        (b"", (2, 10, 5, 5, 5, float("nan"), 1, b"\x05\x05")),
    ],
)
def test_a_damaged_state_adds_nothing(state: Any) -> None:
    tm = TimeManager()
    tm.add("a", 4)
    with pytest.raises((TypeError, ValueError)):
        tm.restore("a", state)
    assert tm.records == {"a": [4e-9]}


def test_managers_merge_without_torch_distributed() -> None:
    managers = [pickle.loads(pickle.dumps(filled(rank, 5))) for rank in range(3)]
    found = TimeManager.merge(managers)
    assert found["load"].ranks == [0, 1, 2]
    assert found["load"].sum() == pytest.approx(sum(5 * r + 15000 for r in range(3)) / 1e9)
    assert found["only 2"].ranks == [2]
    chosen = TimeManager.merge({7: managers[0], 4: managers[1]}, summary=True)
    assert chosen["load"].ranks == [4, 7]
    assert chosen["load"].count() == 10
    for wrong in (managers[0], 3, [3], {"a": managers[0]}, {-1: managers[0]}):
        with pytest.raises((TypeError, ValueError), match="managers"):
            TimeManager.merge(wrong)  # type: ignore[arg-type]


GATHER = """
import sys
from datetime import timedelta
import torch.distributed as dist
from my_utils.timing import TimeManager
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, timeout=timedelta(seconds=120))
tm = TimeManager({"load": [0.5 + rank]})
where = {} if sys.argv[3] == "environment" else {"rank": rank, "world_size": 2}
found = tm.gather(store=store, timeout_s=120, **where)
if rank == 0:
    print(found["load"].ranks, found["load"].sum(), found.missing)
    store.set("done", "1")
else:
    store.wait(["done"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["arguments", "environment"])
def test_gather_by_a_store_alone(how: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    ranks = []
    for rank in range(2):
        if how == "environment":
            environment |= {"RANK": str(rank), "WORLD_SIZE": "2"}
        command = [sys.executable, "-c", GATHER, str(rank), str(port), how]
        ranks.append(
            subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        )
    outputs = [process.communicate(timeout=600)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    assert outputs[0] == "[0, 1] 2.0 {}\n"


def test_a_store_of_nobody_knows_whom_says_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from my_utils.core.warnings import forget

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    forget("gather_place")
    tm = TimeManager({"load": [0.5]})
    found = tm.gather(store=object())
    assert found is not None
    assert found["load"].ranks == [0]
    assert "gather(store=...) does not use the store" in caplog.text
    with pytest.raises(ValueError, match="rank must be below world_size, 2, not 2"):
        tm.gather(store=object(), rank=2, world_size=2)
    with pytest.raises(TypeError, match="rank"):
        tm.gather(store=object(), rank="0", world_size=2)  # type: ignore[arg-type]


# --- Ray ---

RAY = """
import ray, sys
from my_utils.timing import TimeManager, timer_wrap
from my_utils.profiling.decorator import profiler, step_profiler

ray.init(num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False,
         logging_level="ERROR", log_to_driver=False)

@ray.remote
@timer_wrap
def task(x):
    return x + 1

@ray.remote
class Actor:
    def __init__(self):
        self.tm = TimeManager()

    @timer_wrap
    def work(self, x):
        return x * 2

    def run(self, calls):
        with self.tm.enable_timer():
            return [self.work(n) for n in range(calls)]

    def times(self):
        return self.tm

    @profiler(output_dir=sys.argv[1], skip_first=0, wait=0, warmup=0, active=1, with_flops=False)
    def train(self):
        import torch
        torch.ones(4).add(1)
        step_profiler()

print(ray.get(task.remote(1)))
actors = [Actor.remote() for _ in range(2)]
print(ray.get([actor.work.remote(3) for actor in actors]))
print(ray.get([actor.run.remote(n) for n, actor in enumerate(actors, 1)]))
merged = TimeManager.merge(ray.get([actor.times.remote() for actor in actors]))
print(merged["work"].ranks, merged["work"].count())
ray.get([actor.train.remote() for actor in actors])
"""


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_ray_takes_functions_and_methods_and_keeps_files_apart(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    script = tmp_path / "with_ray.py"
    script.write_text(RAY, encoding="utf-8")
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, str(script), str(out)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == ["2", "[6, 6]", "[[0], [0, 2]]", "[0, 1] 3"]
    traces = [path.name for path in out.glob("trace_*.json")]
    assert len(traces) == 2
    assert all(name.startswith("trace_actor_") for name in traces)
