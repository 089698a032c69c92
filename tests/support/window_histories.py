"""Generated histories of overlapping calls, and what a capture window must make of them.

A history is a list of steps in one order: calls begin, end, raise or die. Each call runs in an
actor of its own, a task, a thread or a generator, which really makes the step at its turn. What is
expected is worked out from the history alone, where each call has its number; nothing there knows
of contexts.

    python -m tests.support.window_histories --count 2000 --out histories.txt

runs seeds, goes on where the file ends, and exits with 1 where one differs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from my_utils.profiling.backends import NoOpBackend
from my_utils.profiling.capture_controller import CaptureController, HookEvent

# How a call reports: by a decorator, by one event for both ends, or by an event for each end; and
# where it runs. "handed": begun in one thread, ended in another. "main": they end in the reverse of
# the order in which they began.
STYLES = (
    "wrapped task", "paired task", "raw task", "wrapped thread", "raw thread", "handed thread",
    "generator", "main",
)  # fmt: skip
MAY_DIE = ("raw task", "raw thread", "main")
MAX_ITERS = 6
PAST = 2


@dataclass
class Call:
    number: int
    style: str
    name: str
    iter: int


@dataclass
class Step:
    call: Call
    kind: str  # "begin", "end", "raise" or "die"


@dataclass
class History:
    seed: int
    spec: dict[str, Any]
    steps: list[Step]


def history_of(seed: int) -> History:
    chance = random.Random(seed)
    first = chance.randint(1, 3)
    spec: dict[str, Any] = {
        "window_id": "w", "start_profile_names": ["f"], "start_iter": first, "max_iters": MAX_ITERS,
    }  # fmt: skip
    if chance.random() < 0.35:
        spec.update(stop_profile_names=["g"], stop_iter=first + chance.randint(0, 2))
    # Both run in the context of the history. There an end without the event of its beginning would
    # fit either.
    left_out = chance.choice(["generator", "main"])
    styles = [style for style in STYLES if style != left_out]
    steps: list[Step] = []
    running: list[Call] = []
    base, number = chance.randint(0, first), 0
    for _ in range(chance.randint(6, 30)):
        if running and chance.random() < 0.5:
            call = chance.choice(running)
            in_main = [one for one in running if one.style == "main"]
            if call.style == "main":
                call = in_main[-1]  # they nest
            # Of a call in a call nobody could say which of the two did not end.
            dies = call.style in MAY_DIE and not (call.style == "main" and len(in_main) > 1)
            kinds = ["end"] * 6 + ["raise"] + ["die"] * 2 * dies
            running.remove(call)
            steps.append(Step(call, chance.choice(kinds)))
            continue
        base += chance.random() < 0.25
        call = Call(number, chance.choice(styles), chance.choice("fffgh"), base)
        call.iter += chance.choice([0, 0, 0, 1])
        in_main = [one for one in running if one.style == "main"]
        if call.style == "main" and in_main:
            call.iter = in_main[-1].iter  # a call in a call is of its iteration
        number += 1
        running.append(call)
        steps.append(Step(call, "begin"))
    return History(seed, spec, steps)


# --- what must come of it ---


@dataclass
class Expected:
    """The window after each step."""

    spec: dict[str, Any]
    state: str = "armed"
    opener: Call | None = None
    opener_is_dead: bool = False
    stopping: bool = False
    states: list[str] = field(default_factory=list)

    def after(self, step: Step) -> None:
        if step.kind == "die":
            self.opener_is_dead |= step.call is self.opener
        elif self.state == "open":
            self._see_open(step)
        elif self.state == "armed":
            self._see_armed(step)
        self.states.append(self.state)

    def _see_armed(self, step: Step) -> None:
        call, first = step.call, self.spec["start_iter"]
        if call.iter >= first + (1 if call.name == "f" else PAST):
            self.state = "late"
        elif call.name == "f" and call.iter == first and step.kind == "begin":
            self.state, self.opener = "open", call

    def _see_open(self, step: Step) -> None:
        stops_by_name = "stop_iter" in self.spec
        if not stops_by_name and self._is_abandoned(step):
            self.state = "abandoned"
        elif step.call is self.opener and step.kind == "raise":
            self.state = "raised"
        elif step.call is self.opener and step.kind == "end" and not stops_by_name:
            self.state = "done"
        elif stops_by_name and self._stops(step):
            self.state = "raised" if step.kind == "raise" else "done"
        elif self._is_over(step.call, stops_by_name):
            self.state = "overrun"

    def _is_abandoned(self, step: Step) -> bool:
        assert self.opener is not None
        if self.opener.style != "main":
            return self.opener_is_dead  # its task or thread is over, as the next event shows
        call = step.call  # only a later call in its place shows it
        is_there = call.style == "main" and call.name == "f"
        return is_there and call.iter > self.opener.iter and step.kind == "begin"

    def _stops(self, step: Step) -> bool:
        if step.call.name != "g" or step.call.iter != self.spec["stop_iter"]:
            return False
        self.stopping = True
        return step.kind != "begin"

    def _is_over(self, call: Call, stops_by_name: bool) -> bool:
        last = int(self.spec["start_iter"]) + MAX_ITERS
        if stops_by_name:
            past = MAX_ITERS if self.stopping else 1 if call.name == "g" else PAST
            last = min(last, int(self.spec["stop_iter"]) + past)
        return call.iter >= last


def expected_of(history: History) -> list[str]:
    found = Expected(history.spec)
    for step in history.steps:
        found.after(step)
    return found.states


# --- what comes of it ---


class Planned(Exception):
    """Out of a profiled function."""


class Actors:
    """Makes the steps. A step is over when its actor waits again."""

    def __init__(self, controller: CaptureController) -> None:
        self.controller = controller
        self.ends: dict[int, Callable[[str], Any]] = {}  # makes the last step of a call
        self.kept: list[asyncio.Task[None]] = []  # as gather keeps them

    async def make(self, step: Step) -> None:
        if step.kind == "begin":
            begin = getattr(self, step.call.style.replace(" ", "_"))
            found = begin(step.call)
            self.ends[step.call.number] = await found if asyncio.iscoroutine(found) else found
        else:
            done = self.ends.pop(step.call.number)(step.kind)
            if asyncio.iscoroutine(done):
                await done

    async def finish(self) -> None:
        self.controller.disarm()
        for end in [*reversed(self.ends.values())]:
            done = end("end")
            if asyncio.iscoroutine(done):
                await done

    # --- tasks ---

    async def _task(self, work: Callable[[asyncio.Future[str]], Any]) -> Callable[[str], Any]:
        gate = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(work(gate))
        self.kept.append(task)
        await asyncio.sleep(0)

        async def end(kind: str) -> None:
            gate.set_result(kind)
            with contextlib.suppress(Planned):
                await task

        return end

    async def wrapped_task(self, call: Call) -> Callable[[str], Any]:
        @self.controller.wrap(call.name, meta=lambda gate: {"iter": call.iter})
        async def work(gate: asyncio.Future[str]) -> None:
            if await gate == "raise":
                raise Planned

        return await self._task(work)

    async def raw_task(self, call: Call) -> Callable[[str], Any]:
        async def work(gate: asyncio.Future[str]) -> None:
            self.controller.on_enter(event_of(call))
            kind = await gate
            if kind != "die":
                self.controller.on_exit(event_of(call), raised=kind == "raise")

        return await self._task(work)

    async def paired_task(self, call: Call) -> Callable[[str], Any]:
        event = event_of(call)

        async def work(gate: asyncio.Future[str]) -> None:
            self.controller.on_enter(event)
            self.controller.on_exit(event, raised=await gate == "raise")

        return await self._task(work)

    # --- threads ---

    def _thread(self, work: Callable[[Callable[[], str]], None]) -> Callable[[str], None]:
        """work: called with a function that waits for the last step, and says which it is."""
        here, go_on = threading.Event(), threading.Event()
        kinds: list[str] = []

        def wait() -> str:
            here.set()
            go_on.wait()
            return kinds[0]

        def run() -> None:
            with contextlib.suppress(Planned):
                work(wait)

        thread = threading.Thread(target=run)
        thread.start()
        here.wait()

        def end(kind: str) -> None:
            kinds.append(kind)
            go_on.set()
            thread.join()

        return end

    def wrapped_thread(self, call: Call) -> Callable[[str], None]:
        @self.controller.wrap(call.name, meta=lambda wait: {"iter": call.iter})
        def work(wait: Callable[[], str]) -> None:
            if wait() == "raise":
                raise Planned

        return self._thread(work)

    def raw_thread(self, call: Call) -> Callable[[str], None]:
        def work(wait: Callable[[], str]) -> None:
            self.controller.on_enter(event_of(call))
            kind = wait()
            if kind != "die":
                self.controller.on_exit(event_of(call), raised=kind == "raise")

        return self._thread(work)

    def handed_thread(self, call: Call) -> Callable[[str], None]:
        event = event_of(call)
        in_thread(lambda: self.controller.on_enter(event))
        return lambda kind: in_thread(
            lambda: self.controller.on_exit(event, raised=kind == "raise")
        )

    # --- where the history runs ---

    def generator(self, call: Call) -> Callable[[str], None]:
        @self.controller.wrap(call.name, meta=lambda: {"iter": call.iter})
        def work() -> Generator[None, None, None]:
            yield

        items = work()
        next(items)

        def end(kind: str) -> None:
            with contextlib.suppress(StopIteration, Planned):
                items.throw(Planned()) if kind == "raise" else next(items)

        return end

    def main(self, call: Call) -> Callable[[str], None]:
        self.controller.on_enter(event_of(call))

        def end(kind: str) -> None:
            if kind != "die":
                self.controller.on_exit(event_of(call), raised=kind == "raise")

        return end


def event_of(call: Call) -> HookEvent:
    return HookEvent(call.name, {"iter": call.iter})


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def found_of(history: History) -> list[str]:
    controller = CaptureController(NoOpBackend())
    controller.logger.disabled = True
    controller.arm(history.spec)
    states = []

    async def run() -> None:
        actors = Actors(controller)
        for step in history.steps:
            await actors.make(step)
            states.append(state_of(controller))
        await actors.finish()

    try:
        asyncio.run(run())
    finally:
        controller.logger.disabled = False
    return states


def state_of(controller: CaptureController) -> str:
    if controller.window is not None:
        return "open"
    return "armed" if controller.armed else controller.outcomes["w"]


def difference_of(history: History) -> str:
    """ "" where the window did as expected, else the first step at which it did not."""
    for number, (step, found, wanted) in enumerate(
        zip(history.steps, found_of(history), expected_of(history), strict=True)
    ):
        if found != wanted:
            return f"seed {history.seed}, step {number}, {step}: {found}, expected {wanted}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    with arguments.out.open("a") as out:
        for seed in range(len(lines), arguments.count):
            history = history_of(seed)
            line = difference_of(history) or f"{seed} {expected_of(history)[-1]}"
            lines.append(line)
            print(line, file=out, flush=True)
    wrong = [line for line in lines if line.startswith("seed")]
    print(len(lines), "histories:", dict(Counter(line.split()[1] for line in lines)), *wrong[:5])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
