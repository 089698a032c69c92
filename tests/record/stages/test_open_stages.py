"""What the process itself sees of its open stages."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from my_utils import MyTimer, _core
from my_utils.record.stages.open_stages import Where, where

from ...conftest import RunPython

pytestmark = pytest.mark.no_torch


def lanes_of(tag: str) -> list[tuple[int, str, int, tuple[str, ...]]]:
    return [lane for lane in _core.open_stages() if lane[1] == tag]


def where_in(tag: str) -> Where:
    """`where_now` as if the process had no other timers; those of earlier tests may be inside."""
    return where(lanes_of(tag))


def test_names_come_outermost_first_and_go_again() -> None:
    timer = MyTimer(tag="open-a")
    timer.set_step(4)
    with timer.time_stage("iter"), timer.time_stage("forward é"):
        assert lanes_of("open-a") == [(os.getpid(), "open-a", 4, ("iter", "forward é"))]
        assert where_in("open-a") == Where(4, "iter/forward é")
    assert lanes_of("open-a") == [(os.getpid(), "open-a", 4, ())]


def test_a_stage_around_several_steps_does_not_hide_the_step() -> None:
    timer = MyTimer(tag="open-epoch")
    timer.set_step(0)
    with timer.time_stage("epoch"):
        for step in range(3):
            timer.set_step(step)
            assert where_in("open-epoch") == Where(step, "epoch")


def test_another_thread_is_seen_and_the_main_one_comes_first() -> None:
    timer = MyTimer(tag="open-b")
    timer.set_step(9)
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with timer.time_stage("load"), timer.time_stage("decode"), timer.time_stage("crop"):
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(30)
        assert where_in("open-b") == Where(9, "load/decode/crop")
        with timer.time_stage("iter"):
            assert where_in("open-b") == Where(9, "iter")
            assert sorted(lane[3] for lane in lanes_of("open-b")) == [
                ("iter",), ("load", "decode", "crop"),
            ]  # fmt: skip
    finally:
        leave.set()
        thread.join()


def test_while_another_thread_records(tmp_path: Path) -> None:
    """What is read is one of the states that were, whatever moves meanwhile."""
    timer = MyTimer(tag="open-c")
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with timer.time_stage("a"), timer.time_stage("b"), timer.time_stage("c"):
                pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        seen = {lane[3] for _ in range(3000) for lane in lanes_of("open-c")}
    finally:
        stop.set()
        thread.join()
    assert seen <= {(), ("a",), ("a", "b"), ("a", "b", "c")}


def test_in_a_forked_child_and_before_any_timer(run_python: RunPython) -> None:
    done = run_python("-c", """if True:
        import os
        from my_utils import MyTimer
        from my_utils.record.stages.open_stages import where_now
        print(where_now(), flush=True)
        timer = MyTimer()
        timer.set_step(3)
        timer.start("iter")
        if os.fork() == 0:
            print(where_now(), flush=True)
            timer.start("child")
            print(where_now(), flush=True)
            os._exit(0)
        os.wait()
        print(where_now())
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "Where(step=None, stage='')",
        "Where(step=None, stage='')",
        "Where(step=3, stage='child')",
        "Where(step=3, stage='iter')",
    ]
