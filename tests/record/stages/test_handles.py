"""A handle ends its own stage, also where stages of a thread end in another order than they began.

A greenlet, a task or a generator is a flow: it runs to a point, and others run before it goes on.
Each test notes what begins and ends, and the rows of the thread must be just that.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import greenlet  # type: ignore[import-untyped]
import pytest

from my_utils import _core
from my_utils.csv2trace import csv_to_trace
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer

from ...clients.perfetto import TraceProcessor, why_missing
from ...conftest import RunPython
from ...support.profile_rows import Profile, Row, of_stages, read

pytestmark = pytest.mark.no_torch

Enter = Callable[[str], "_core.Stage"]
NAMES = ["load", "forward", "backward", "save"]


class Log:
    """What begins and ends, in order, and which stage is around which in the same flow."""

    def __init__(self, timer: MyTimer) -> None:
        self.timer = timer
        self.names: list[str] = []
        self.around: list[int | None] = []
        self.events: list[tuple[int, str]] = []
        self.kept = {name: timer.time_stage(name) for name in NAMES}

    def begin(self, name: str, around: int | None) -> int:
        self.names.append(name)
        self.around.append(around)
        self.events.append((len(self.names) - 1, "START"))
        return len(self.names) - 1

    def end(self, block: int) -> None:
        self.events.append((block, "END"))

    def check(self, rows: list[Row], *, parents: bool = True) -> None:
        nodes = sorted({row.node for row in rows})  # given out in the order of the starts
        blocks = {node: block for block, node in enumerate(nodes)}
        assert [(blocks[row.node], row.kind) for row in rows] == self.events
        assert [self.names[blocks[row.node]] for row in rows] == [row.name for row in rows]
        assert not any("closed" in row.metadata for row in rows)
        check_durations(rows)
        if parents:
            wanted = [0 if around is None else nodes[around] for around in self.around]
            found = {row.node: row.parent for row in rows}
            assert [found[node] for node in nodes] == wanted
        check_aggregates(self.timer, rows)
        assert self.timer.depth == self.timer.unmatched_stops == self.timer.closed_stages == 0


def check_durations(rows: list[Row]) -> None:
    begins = {row.node: row for row in rows if row.kind == "START"}
    for end in (row for row in rows if row.kind == "END"):
        begin = begins[end.node]
        assert end.duration_ns == pytest.approx(end.time_ns - begin.time_ns, rel=1e-2, abs=2)
        assert (end.parent, end.step, end.tid) == (begin.parent, begin.step, begin.tid)


def check_aggregates(timer: MyTimer, rows: list[Row]) -> None:
    names, parents = ({row.node: getattr(row, of) for row in rows} for of in ("name", "parent"))

    def path(node: int) -> tuple[str, ...]:
        return () if node == 0 else (*path(parents[node]), names[node])

    ended = [(path(row.node), row.duration_ns or 0) for row in rows if row.kind == "END"]
    sums: Counter[tuple[str, ...]] = Counter()
    for of, duration in ended:
        sums[of] += duration
    found = {entry[0]: entry[1:3] for entry in timer.aggregates()}
    assert {of: figures[0] for of, figures in found.items()} == Counter(of for of, _ in ended)
    assert {of: figures[1] for of, figures in found.items()} == sums


def blocks(
    log: Log, chance: random.Random, depth: int, around: int | None
) -> Generator[None, None, None]:
    """Nested `with` blocks of one flow, which pauses at each yield."""
    for _ in range(chance.randint(1, 3)):
        name = chance.choice(NAMES)
        handle = log.kept[name] if chance.random() < 0.5 else log.timer.time_stage(name)
        with handle:
            block = log.begin(name, around)
            yield
            if depth > 0:
                yield from blocks(log, chance, depth - 1, block)
            if chance.random() < 0.1:
                log.timer.step()
            yield
            log.end(block)
        if chance.random() < 0.5:
            yield


def in_greenlets(log: Log, chance: random.Random, around: int | None) -> None:
    """Each greenlet runs the blocks in its own frames, and gives way where they pause."""
    hub = greenlet.getcurrent()

    def nested(depth: int, around: int | None) -> None:
        for _ in range(chance.randint(1, 3)):
            name = chance.choice(NAMES)
            handle = log.kept[name] if chance.random() < 0.5 else log.timer.time_stage(name)
            with handle:
                block = log.begin(name, around)
                hub.switch()
                if depth > 0:
                    nested(depth - 1, block)
                hub.switch()
                log.end(block)

    running = [greenlet.greenlet(lambda: nested(2, around)) for _ in range(5)]
    while running := [one for one in running if not one.dead]:
        chance.choice(running).switch()


def in_tasks(log: Log, chance: random.Random, around: int | None) -> None:
    async def task() -> None:
        for _ in blocks(log, chance, 2, around):
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(task() for _ in range(5)))

    asyncio.run(main())


@pytest.mark.parametrize("flows", [in_greenlets, in_tasks])
@pytest.mark.parametrize("seed", range(10))
def test_flows_that_take_turns_keep_their_own_stages(
    profile: Profile, flows: Callable[[Log, random.Random, int | None], None], seed: int
) -> None:
    log = Log(MyTimer())
    flows(log, random.Random(seed), None)
    log.check(profile.rows())


@pytest.mark.parametrize("flows", [in_greenlets, in_tasks])
def test_a_stage_around_all_flows_is_their_parent(
    profile: Profile, flows: Callable[[Log, random.Random, int | None], None]
) -> None:
    """In greenlets nothing tells it: they have no caller."""
    log = Log(MyTimer())
    chance = random.Random(0)
    with log.timer.time_stage("load"):
        block = log.begin("load", None)
        flows(log, chance, None if flows is in_greenlets else block)
        log.end(block)
    log.timer.start("save")
    block = log.begin("save", None)
    flows(log, chance, block)  # nor does `start` belong to a flow
    log.end(block)
    log.timer.stop("save")
    log.check(profile.rows())


def test_generators_keep_their_stages_whatever_their_consumer_does(profile: Profile) -> None:
    log = Log(MyTimer())
    chance = random.Random(1)
    running = [blocks(log, chance, 2, None) for _ in range(6)]
    while running:
        one = chance.choice(running)
        if next(one, "ended") == "ended":
            running.remove(one)
    log.check(profile.rows(), parents=False)


def test_stages_of_a_loop_are_not_inside_what_a_generator_left_open(profile: Profile) -> None:
    timer = MyTimer()

    def batches() -> Generator[int, None, None]:
        for number in range(50):
            with timer.time_stage("load"), timer.time_stage("copy"):
                yield number

    running = batches()
    for step in range(50):
        timer.set_step(step)
        with timer.time_stage("data"):
            next(running)
        with timer.time_stage("train"), timer.time_stage("forward"):
            pass
    running.close()
    rows = profile.rows()
    counts = {entry[0]: entry[1] for entry in timer.aggregates()}
    assert counts == {
        ("data",): 50,
        ("data", "load"): 50,
        ("data", "load", "copy"): 50,
        ("train",): 50,
        ("train", "forward"): 50,
    }
    check_durations(rows)
    check_aggregates(timer, rows)
    assert timer.depth == timer.unmatched_stops == timer.closed_stages == 0


def test_a_stage_that_outlives_another_is_around_what_its_frame_calls(profile: Profile) -> None:
    timer = MyTimer()
    outer = timer.time_stage("outer")
    outer.__enter__()
    with timer.time_stage("block"):
        outer.__exit__(None, None, None)
        with timer.time_stage("inner"):
            pass
    parents = {row.name: row.parent for row in profile.rows()}
    nodes = {row.name: row.node for row in profile.rows()}
    assert parents == {"outer": 0, "block": nodes["outer"], "inner": nodes["block"]}


def test_a_generator_that_is_dropped_ends_its_stage_only(profile: Profile) -> None:
    timer = MyTimer()

    def values() -> Iterator[int]:
        with timer.time_stage("values"):
            yield 1

    kept = values()
    next(kept)
    with timer.time_stage("outer"):
        del kept
        with timer.time_stage("inner"):
            pass
    assert sequence(profile.rows()) == (
        "+values +outer -values +inner -inner -outer"  # as they were closed
    )
    assert timer.unmatched_stops == timer.closed_stages == 0


def sequence(rows: list[Row]) -> str:
    return " ".join(("+" if row.kind == "START" else "-") + row.name for row in rows)


def ends(rows: list[Row]) -> list[int]:
    """The ended stages in the order of their ENDs, each by its place in the order of the starts."""
    begun = sorted(row.node for row in rows if row.kind == "START")
    return [begun.index(row.node) for row in rows if row.kind == "END"]


@pytest.mark.parametrize("names", [["a", "b", "c"], ["a", "a", "a"]])
def test_exit_stacks_may_end_in_any_order(profile: Profile, names: list[str]) -> None:
    timer = MyTimer()
    stacks = [ExitStack() for _ in names]
    for stack, name in zip(stacks, names, strict=True):
        stack.enter_context(timer.time_stage(name))
    later = stacks[1].pop_all()
    for place in (2, 0, 1):
        stacks[place].close()
    later.close()
    rows = profile.rows()
    assert ends(rows) == [2, 0, 1]
    assert not any("closed" in row.metadata for row in rows)
    check_durations(rows)
    check_aggregates(timer, rows)


def test_handles_that_wait_in_a_queue_end_first_in_first_out(profile: Profile) -> None:
    timer = MyTimer()
    queue: list[_core.Stage] = []
    for step in range(200):
        timer.set_step(step)
        handle = timer.time_stage("in flight")
        handle.__enter__()
        queue.append(handle)
        if len(queue) == 80:  # more than the journal keeps
            queue.pop(0).__exit__(None, None, None)
        timer.step()
    for handle in queue:
        handle.__exit__(None, None, None)
    rows = profile.rows()
    assert ends(rows) == list(range(200))
    assert [row.step for row in rows if row.kind == "END"] == list(range(200))
    assert not any("closed" in row.metadata for row in rows)
    check_durations(rows)
    assert timer.depth == timer.unmatched_stops == timer.closed_stages == 0


def test_one_handle_entered_again_ends_the_inner_stage_first(profile: Profile) -> None:
    timer = MyTimer()
    handle = timer.time_stage("again")
    with handle, handle, handle:
        assert timer.depth == 3
    with ExitStack() as stack:
        stack.enter_context(handle)
        stack.enter_context(handle)
    assert ends(profile.rows()) == [2, 1, 0, 4, 3]


def test_a_handle_is_handed_out_again_when_its_stage_has_ended() -> None:
    timer = MyTimer()
    handle = timer.time_stage("a")
    with handle:
        other = timer.time_stage("a")
        assert other is not handle
        assert timer.time_stage("a") is other
    assert timer.time_stage("a") is other


def test_stop_by_name_and_handles(profile: Profile) -> None:
    timer = MyTimer()
    timer.start("a")
    with timer.time_stage("b"):
        timer.start("c")
        timer.stop("a")  # c is b's
        assert timer.depth == 2
    assert timer.depth == 0
    timer.start("x")
    with timer.time_stage("x"):
        timer.stop("x")  # that of start, though it is not the innermost
        assert timer.depth == 1
    with timer.time_stage("y"):
        timer.stop("y")  # there is no other
        assert timer.depth == 0
    rows = profile.rows()
    assert sequence(rows) == "+a +b +c -a -c -b +x +x -x -x +y -y"
    assert [row.name for row in rows if "closed" in row.metadata] == ["c"]
    assert ends(rows) == [0, 2, 1, 3, 4, 5]
    assert (timer.closed_stages, timer.unmatched_stops) == (1, 1)


def test_a_step_ends_no_stage_of_a_handle(profile: Profile) -> None:
    timer = MyTimer()
    timer.set_step(0)
    timer.start("left")
    handle = timer.time_stage("saving")
    with handle:
        timer.start("of the handle")
        timer.set_step(1)
        assert timer.depth == 2
    timer.start("left too")
    timer.set_step(2)
    assert (timer.depth, timer.closed_stages) == (0, 3)
    rows = profile.rows()
    closed = {row.name: row.metadata.get("closed") for row in rows if row.kind == "END"}
    assert closed == {
        "left": "step", "of the handle": "out_of_order", "saving": None, "left too": "step",
    }  # fmt: skip
    assert {row.name: row.step for row in rows if row.kind == "END"}["saving"] == 0


def test_another_thread_cannot_end_it(profile: Profile) -> None:
    timer = MyTimer()
    handle = timer.time_stage("mine")
    handle.__enter__()

    def elsewhere() -> None:
        handle.__exit__(None, None, None)
        with handle:  # one of its own
            assert timer.depth == 1

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert (timer.depth, timer.unmatched_stops) == (1, 1)
    handle.__exit__(None, None, None)
    assert (timer.depth, timer.unmatched_stops) == (0, 1)
    rows = profile.rows()
    assert sequence(rows) == "+mine +mine -mine -mine"
    assert ends(rows) == [1, 0]


def test_threads_that_end_and_timers_that_go_take_open_stages_along(profile: Profile) -> None:
    timer = MyTimer()
    left = [timer.time_stage("left") for _ in range(2)]

    def leaves() -> None:
        for handle in left:
            handle.__enter__()

    thread = threading.Thread(target=leaves)
    thread.start()
    thread.join()
    left[0].__exit__(None, None, None)
    assert timer.unmatched_stops == 1
    with ExitStack() as stack:
        stack.enter_context(MyTimer(tag="gone").time_stage("held"))  # the handle keeps its timer
    assert [row.name for row in profile.ended()] == ["held"]


def test_a_new_output_keeps_the_open_stages(tmp_path: Path) -> None:
    logger, timer = GlobalLogger(), MyTimer()
    logger.setup(tmp_path / "first", rank=0, console=False)
    first, second = timer.time_stage("first"), timer.time_stage("second")
    first.__enter__()
    second.__enter__()
    timer.step()
    logger.setup(tmp_path / "second", rank=0, console=False)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    logger.close()
    rows = of_stages(read(tmp_path / "second" / "profile_rank_0.csv"))
    assert sequence(rows) == "+first +second -first -second"  # the STARTs are repeated
    assert not any("closed" in row.metadata for row in rows)


def test_a_forked_child_has_no_stages_of_its_parent(profile: Profile) -> None:
    timer = MyTimer()
    with timer.time_stage("outer"):
        handle = timer.time_stage("inner")
        handle.__enter__()
        child = os.fork()
        if child == 0:
            with timer.time_stage("outer"):
                depth = timer.depth
            os._exit(0 if (depth, timer.depth) == (1, 0) else 1)
        assert os.waitpid(child, 0)[1] == 0
        handle.__exit__(None, None, None)
    assert sequence(profile.rows()) == "+outer +inner -inner -outer"


def test_too_many_names_and_levels_out_of_order(run_python: RunPython, tmp_path: Path) -> None:
    program = """
import sys
from contextlib import ExitStack
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], rank=0, console=False)
timer = MyTimer()
for number in range(5000):
    timer.start(f"stage {number}")
    timer.stop(f"stage {number}")
    timer.set_step(number)
handles = [timer.time_stage(f"stage {4000 + number}") for number in range(300)]
for handle in handles:
    handle.__enter__()
for handle in handles[::2] + handles[1::2]:
    handle.__exit__(None, None, None)
handle = timer.time_stage("stage 1")
def deep(levels):
    with handle:
        return timer.depth if levels == 0 else deep(levels - 1)
sys.setrecursionlimit(10000)
deepest = deep(5000)
print(deepest, timer.depth, timer.unmatched_stops, timer.closed_stages)
GlobalLogger().close()
"""
    done = run_python("-c", program, str(tmp_path))
    assert done.stdout == "4096 0 0 0\n", done.stderr
    rows = of_stages(read(tmp_path / "profile_rank_0.csv"))
    assert Counter(row.kind for row in rows) == {"START": 9396, "END": 9396}
    overlapping = [row for row in rows if row.name in {f"stage {4000 + n}" for n in range(300)}]
    assert ends(overlapping[600:]) == [*range(0, 300, 2), *range(1, 300, 2)]
    check_durations(rows)


KILLED = """
import os, signal, sys
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], rank=0, console=False)
timer = MyTimer()
handles = {name: timer.time_stage(name) for name in "abcdefgh"}
for what in sys.argv[2].split():
    if what == "drain":
        timer.step()
    elif what[0] == "+":
        handles[what[1]].__enter__()
    else:
        handles[what[1]].__exit__(None, None, None)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seed", range(8))
def test_a_kill_loses_and_doubles_nothing(run_python: RunPython, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    done: list[str] = []
    opened: list[str] = []
    for _ in range(40):
        free = sorted(set("abcdefgh") - set(opened))
        if opened and (not free or chance.random() < 0.45):
            name = chance.choice(opened)
            opened.remove(name)
            done.append("-" + name)
        else:
            opened.append(chance.choice(free))
            done.append("+" + opened[-1])
        if chance.random() < 0.2:
            done.append("drain")
    killed = run_python("-c", KILLED, str(tmp_path), " ".join(done))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (journal,) = tmp_path.glob("*.journal")
    threads = _core.read_journal(journal)["lanes"]
    assert [stage["name"] for thread in threads for stage in thread["open"]] == opened
    GlobalLogger().setup(tmp_path, rank=0, console=False)  # which writes what is in the journal
    GlobalLogger().close()
    rows = of_stages(read(tmp_path / "profile_rank_0.csv"))
    assert sequence(rows) == " ".join(what for what in done if what != "drain")
    begun: dict[str, list[int]] = {}
    for row in rows:
        if row.kind == "START":
            begun.setdefault(row.name, []).append(row.node)
        else:
            assert row.node == begun[row.name][-1]
    check_durations(rows)


@pytest.mark.parametrize("suffix", ["json", "pftrace"])
@pytest.mark.parametrize("flows", [in_greenlets, in_tasks])
def test_a_trace_shows_each_stage_whole(
    profile: Profile,
    tmp_path: Path,
    flows: Callable[[Log, random.Random, int | None], None],
    suffix: str,
) -> None:
    log = Log(MyTimer())
    for seed in range(5):
        flows(log, random.Random(seed), None)
    rows = profile.rows()
    profile.close()
    trace = tmp_path / f"trace.{suffix}"
    summary = csv_to_trace(profile.folder, trace)
    assert (summary.errors, summary.slices) == ([], len(rows) // 2)
    if (reason := why_missing()) is not None:
        pytest.skip(reason)
    with TraceProcessor(trace) as processor:
        found = processor.query(
            "select name, ts, dur, extract_arg(arg_set_id, 'debug.node_id') as node "
            "from slice where name not like 'step %'"
        )
        complaints = processor.complaints()
    begins = {row.node: row for row in rows if row.kind == "START"}
    first = min(row["ts"] for row in found) - min(row.time_ns for row in begins.values())
    assert complaints == {}
    assert {(row["name"], row["ts"] - first, row["dur"]) for row in found} == {
        (end.name, begins[end.node].time_ns, end.time_ns - begins[end.node].time_ns)
        for end in rows
        if end.kind == "END"
    }
