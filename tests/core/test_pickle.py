"""What users may ship to workers: it comes back working, or says why it cannot."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from my_utils.utils import DebuggingEvent, MyTimer, NoOpMyTimer

from ..conftest import RunPython
from ..support.profile_rows import Profile, of_stages, read

pytestmark = pytest.mark.no_torch


class Tagged(MyTimer):
    __slots__ = ()


def by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def by_old_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol=0))


def by_cloudpickle(value: Any) -> Any:
    cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    return pickle.loads(cloudpickle.dumps(value))


WAYS = [by_pickle, by_old_pickle, by_cloudpickle]


@pytest.mark.parametrize("way", WAYS)
def test_a_timer_is_made_anew_from_its_arguments(
    way: Callable[[Any], Any], profile: Profile
) -> None:
    timer = MyTimer(tag="train", strict=True, cuda_stages=re.compile("forward"), rank=3)
    timer.set_step(5)
    with timer.time_stage("a"):
        pass
    again = way(timer)
    assert type(again) is MyTimer
    assert repr(again) == repr(timer)
    assert (again.tag, again.strict, again.current_step) == ("train", True, 0)
    assert again.aggregates() == []
    with again.time_stage("b"):
        pass
    assert [row[0] for row in again.aggregates()] == [("b",)]
    assert [row[0] for row in timer.aggregates()] == [("a",)]


@pytest.mark.parametrize("way", WAYS)
def test_subclasses_and_modes_are_kept(way: Callable[[Any], Any]) -> None:
    assert type(way(Tagged(tag="t"))) is Tagged
    breaking = way(MyTimer(compile="break"))
    assert isinstance(breaking, MyTimer)
    assert repr(breaking) == "MyTimer(compile='break')"
    assert type(breaking) is type(MyTimer(compile="break"))
    disabled = way(NoOpMyTimer(tag="x"))
    assert type(disabled) is NoOpMyTimer
    disabled.start("a")


def test_a_class_of_main_travels_by_cloudpickle(run_python: RunPython) -> None:
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    program = """
import pickle, sys, subprocess
import cloudpickle
from my_utils import MyTimer
class Mine(MyTimer):
    __slots__ = ()
    def twice(self, name):
        for _ in range(2):
            with self.time_stage(name):
                pass
with open("timer.pickle", "wb") as file:
    cloudpickle.dump(Mine(tag="mine"), file)
"""
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr
    program = """
import pickle
timer = pickle.load(open("timer.pickle", "rb"))
timer.twice("a")
print(type(timer).__name__, timer.tag, timer.aggregates()[0][:2])
print(type(timer).__dict__["start"].__objclass__ is type(timer))
"""
    done = run_python("-c", program)
    assert done.stdout == "Mine mine (('a',), 2)\nTrue\n", done.stderr


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_the_timer_itself(copied: Callable[[Any], Any]) -> None:
    timer = MyTimer()
    model = {"timer": timer}
    assert copied(timer) is timer
    assert copied(model)["timer"] is timer


def work(timer: MyTimer, folder: str) -> None:
    from my_utils.logger import GlobalLogger

    GlobalLogger().setup(folder, rank=1, console=False)
    with timer.time_stage("in the worker"):
        pass


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_timer_as_an_argument_of_a_process(method: str, tmp_path: Path) -> None:
    timer = MyTimer(tag="shipped")
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=work, args=(timer, str(tmp_path / "logs")))
    process.start()
    process.join(110)
    assert process.exitcode == 0
    rows = [
        row
        for row in of_stages(read(tmp_path / "logs" / "profile_rank_1.csv"))
        if row.name == "in the worker"
    ]
    assert [(row.kind, row.metadata["tag"]) for row in rows] == [
        ("START", "shipped"),
        ("END", "shipped"),
    ]


def test_a_timer_with_log_dir_writes_in_the_worker(run_python: RunPython, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        """
import multiprocessing
from my_utils import MyTimer
def work(timer):
    with timer.time_stage("worker"):
        pass
if __name__ == "__main__":
    timer = MyTimer(log_dir="logs")
    with timer.time_stage("parent"):
        pass
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=work, args=(timer,))
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    )
    done = run_python("job.py")
    assert done.returncode == 0, done.stderr
    names = {
        path.name: {row.name for row in of_stages(read(path))}
        for path in (tmp_path / "logs").glob("*.csv")
    }
    assert names == {"profile_rank_0.csv": {"parent"}, "profile_rank_0.w1.csv": {"worker"}}


def test_an_event_says_why_it_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="its lock belongs to this process") as raised:
        pickle.dumps(DebuggingEvent("x"))
    assert "multiprocessing.Event" in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
def test_a_debug_layer_travels(way: Callable[[Any], Any]) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from my_utils.utils import DebugLayer

    layer = way(torch.nn.Sequential(DebugLayer("here")))
    assert repr(layer[0]) == "DebugLayer('here')"


def test_a_debug_layer_loads_where_torch_is_not_yet(run_python: RunPython, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from my_utils.utils import DebugLayer

    (tmp_path / "layer.pickle").write_bytes(pickle.dumps(DebugLayer("here")))
    done = run_python("-c", "import pickle; print(pickle.load(open('layer.pickle', 'rb')))")
    assert done.stdout == "DebugLayer('here')\n", done.stderr
    assert "my_utils.profilers.modules.debug_layer" in sys.modules
