"""The stacks that a process reads of itself, beside what Python itself says of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from my_utils import _core
from my_utils.analysis.process_stacks.record import own_stacks, why_off

from ...conftest import ROOT
from ...support.no_gil import needs_stacks

pytestmark = needs_stacks

Frames = list[tuple[str, str, int]]


def told_by_python(frame: object) -> Frames:
    """Innermost first."""
    found = []
    while frame is not None:
        code = frame.f_code  # type: ignore[attr-defined]
        found.append((code.co_qualname, code.co_filename, frame.f_lineno))  # type: ignore[attr-defined]
        frame = frame.f_back  # type: ignore[attr-defined]
    return found


def as_read(tid: int) -> Frames:
    [thread] = [thread for thread in own_stacks() if thread.tid == tid]
    assert not thread.torn
    return [(frame.function, frame.file, frame.line) for frame in thread.frames]


class Parked:
    """A thread that waits in `run` until the block ends."""

    def __init__(self, run: Callable[[Parked], object]) -> None:
        self.there, self.go_on = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=run, args=(self,))

    def wait(self) -> int:
        self.there.set()
        self.go_on.wait()
        return 0

    def __enter__(self) -> Parked:
        self.thread.start()
        assert self.there.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self.thread.join()


def plain(park: Parked) -> None:
    park.wait()


def in_generator(park: Parked) -> None:
    def inner() -> Iterator[int]:
        yield park.wait()

    def outer() -> Iterator[int]:
        yield from inner()

    list(outer())


def in_comprehension(park: Parked) -> None:
    [park.wait() for _ in [sorted([3, 1], key=lambda n: n)] for _ in "a"]


def in_key(park: Parked) -> None:
    sorted([1], key=lambda _: park.wait())


def in_class_body(park: Parked) -> None:
    class Body:
        x = park.wait()


def in_deep_recursion(park: Parked, depth: int = 150) -> None:
    if depth == 0:
        park.wait()
    else:
        in_deep_recursion(park, depth - 1)


def in_long_function(park: Parked) -> None:
    lines = [f"    x{i} = {i} + len('{i}')" for i in range(2000)]
    source = "\n".join(["def long(park):", *lines, "    park.wait()", "long(park)"])
    exec(compile(source, "/tmp/länge ☃ 𝄞.py", "exec"), {"park": park})


def in_unicode_name(park: Parked) -> None:
    def größe_Ж() -> None:
        park.wait()

    größe_Ж()


PLACES = [
    plain, in_generator, in_comprehension, in_key, in_class_body, in_deep_recursion,
    in_long_function, in_unicode_name,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_a_stack_is_read_as_python_tells_it(place: Callable[[Parked], object]) -> None:
    with Parked(place) as park:
        assert park.thread.ident is not None and park.thread.native_id is not None
        told = told_by_python(sys._current_frames()[park.thread.ident])
        assert as_read(park.thread.native_id) == told
        assert len(told) > 3


def test_the_reader_is_on_here() -> None:
    assert why_off() == ""


def test_long_names_are_cut_and_of_a_path_the_end_stays() -> None:
    path = "/start/" + "d" * 300 + "/end.py"
    names: dict[str, Any] = {}
    name = "f" * 300
    exec(compile(f"def {name}(park): park.wait()", path, "exec"), names)
    with Parked(names[name]) as park:
        assert park.thread.native_id is not None
        found = next(frame for frame in as_read(park.thread.native_id) if frame[0][0] == "f")
    assert name.startswith(found[0]) and len(found[0]) > 200
    assert path.endswith(found[1]) and len(found[1]) > 200


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="rounds must be"):
        _core.read_stacks(0)
    with pytest.raises(TypeError, match="rounds must be"):
        _core.read_stacks("1")  # type: ignore[arg-type]


# Threads that begin, call, return and end all the time, while others read.
CHURN = """
import json, sys, threading
from my_utils import _core
stop = False
def work(depth):
    if depth:
        return work(depth - 1)
    function = eval("lambda n: [i for i in range(n)]")  # code that is freed at once
    function(20)
    list((i for i in range(3)))
def churn():
    while not stop:
        threads = [threading.Thread(target=work, args=(i * 3,)) for i in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
churners = [threading.Thread(target=churn) for _ in range(3)]
for thread in churners: thread.start()
wanted, rounds, stacks, torn, unnamed = int(sys.argv[1]), 0, 0, 0, 0
while rounds < wanted:
    found = json.loads(_core.read_stacks(50))
    rounds += found["rounds"]
    torn += found["torn"]
    stacks += len(found["samples"])
    unnamed += sum(-1 in found["stacks"][sample[2]] for sample in found["samples"])
stop = True
for thread in churners: thread.join()
print(json.dumps({"rounds": rounds, "stacks": stacks, "torn": torn, "unnamed": unnamed}))
"""


def churn(rounds: int) -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", CHURN, str(rounds)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


def check_churn(figures: dict[str, int], rounds: int) -> None:
    assert figures["rounds"] >= rounds
    assert figures["stacks"] >= rounds
    assert figures["torn"] < 0.05 * figures["stacks"]
    assert figures["unnamed"] < 0.05 * figures["stacks"]


def test_threads_may_come_and_go_meanwhile() -> None:
    check_churn(churn(300), 300)


@pytest.mark.thorough
def test_ten_thousand_dumps_under_churn() -> None:
    check_churn(churn(10_000), 10_000)
