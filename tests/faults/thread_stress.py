"""Threads that do everything at once for a while; prints what they counted, and what files have.

    python thread_stress.py FOLDER SECONDS

Nothing but the standard library and my_utils is needed, so that any interpreter can run it. A
thread that records goes on only while files are open: rows in memory are bounded.
"""

from __future__ import annotations

import csv
import gc
import json
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from my_utils import _core
from my_utils.profilers.capture.spec import CaptureSpec

NO_FILES = 3  # a child whose parent had none when it forked, so that its row went nowhere
BATCH = 200  # stages of a thread between two drains: no ring is full before
NAMES = ["first", "second", "third", "fourth", "fifth"]


class Windows(_core.CaptureWindows):
    """Counts the windows that opened and closed."""

    opened = closed = 0

    def _open(self, window_id: str) -> bool:
        self.opened += 1
        return True

    def _close(self, window_id: str) -> None:
        self.closed += 1

    def _ended(self, window_id: str, outcome: str) -> None:
        pass

    def _task(self) -> None:
        return None


class Passes(_core.ForwardPasses):
    def _opens(self) -> None:
        pass

    def _closes(self, outcome: str) -> None:
        pass

    def _is_copy(self, module: object) -> bool:
        return True


class Stress:
    """What the threads share, and what each of them counted."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folders = [folder / "a", folder / "b"]
        self.until = time.monotonic() + seconds
        self.files_are_open = threading.Event()
        self.timer = _core.Timer("shared")
        self.times = _core.TimeRecorder()
        self.durations = _core.Durations()
        self.timed = _core.TimedFunction(len, "timed", (self.times,))
        self.windows = Windows()
        self.passes = Passes()
        self.modules = _core.ModuleTimes(4)
        self.stages = _core.RunStages(lambda: _core.Timer("run"), lambda: True)
        self.counted: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.failures: list[str] = []
        self.warnings: list[str] = []

    def goes_on(self) -> bool:
        return time.monotonic() < self.until

    def count(self, name: str, number: int) -> None:
        with self.lock:
            self.counted[name] += number

    def batches(self, name: str, one: Callable[[], object], stages: int = 1) -> None:
        """Calls a function that records so many stages, and counts them."""
        while self.goes_on():
            if self.files_are_open.wait(0.1):
                for _ in range(BATCH):
                    one()
                self.count(name, BATCH * stages)
                _core.drain(10.0)

    # --- threads that record ---------------------------------------------------------------

    def starts_and_stops(self) -> None:
        timer = self.timer

        def one() -> None:
            timer.start("outer")
            timer.start("inner")
            timer.stop("inner")
            timer.stop("outer")

        self.batches("stages", one, stages=2)

    def uses_handles(self) -> None:
        def one() -> None:
            for name in NAMES:
                with self.timer.time_stage(name):
                    pass

        self.batches("stages", one, stages=len(NAMES))

    def shares_a_handle(self, handle: _core.Stage) -> None:
        def one() -> None:
            with handle:
                pass

        self.batches("stages", one)

    def logs_events(self) -> None:
        self.batches("events", lambda: _core.log_event("event", "INSTANT", 1, "k=v"))

    def starts_threads_that_end(self) -> None:
        def record() -> None:
            for _ in range(BATCH):
                self.timer.start("short")
                self.timer.stop("short")
            self.count("stages", BATCH)
            _core.drain(10.0)

        while self.goes_on():
            if self.files_are_open.wait(0.1):
                threads = [threading.Thread(target=record) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

    def makes_timers(self) -> None:
        def one() -> None:
            timer = _core.Timer("own")
            timer.start("own")
            timer.stop("own")

        while self.goes_on():
            if self.files_are_open.wait(0.1):
                one()
                self.count("stages", 1)
                _core.drain(10.0)

    # --- threads that change what the others use -------------------------------------------

    def moves_files(self) -> None:
        moves = 0
        while self.goes_on():
            folder = self.folders[moves % 2]
            folder.mkdir(parents=True, exist_ok=True)
            _core.open_output(kind="file", log_dir=str(folder), journal_dir=str(folder))
            self.files_are_open.set()
            time.sleep(0.01)
            if moves % 3 == 0:
                self.files_are_open.clear()
                _core.close_output()
            moves += 1
        self.count("moves", moves)

    def steps(self) -> None:
        step = 0
        while self.goes_on():
            step += 1
            self.timer.set_step(step)
            self.timer.step()

    def changes_hooks(self) -> None:
        while self.goes_on():
            _core.set_warning_hook(lambda kind, text, *_: self.warnings.append(f"{kind}: {text}"))
            _core.set_step_hook(lambda timer, step: None)
            _core.watch_steps(True)
            _core.set_step_hook(None)
            time.sleep(0.001)

    def reads(self) -> None:
        while self.goes_on():
            _core.open_stages()
            _core.output_state()
            _core.troubles()
            self.timer.totals()
            self.timer.aggregates()
            time.sleep(0.001)

    def converts(self) -> None:
        while self.goes_on():
            for path in self.folders[0].glob("*.csv"):
                descriptor = os.open(path, os.O_RDONLY)
                part = (str(path), descriptor, 200_000, None, True)
                try:
                    for row in _core.StageRows(part):
                        assert row[0] in {"START", "END", "PROCESS", "BAD"}
                finally:
                    os.close(descriptor)
            time.sleep(0.001)

    # --- threads that measure --------------------------------------------------------------

    def times_calls(self) -> None:
        while self.goes_on():
            for _ in range(BATCH):
                self.timed(())
                with self.times.timer("block"):
                    pass
                self.durations.add(5)
            self.count("timed", BATCH)
            if self.times.enable():
                with _core.timer("enabled"):
                    pass
                self.times.disable()
            self.times.state("timed")
            self.times.summary("block")
            self.durations.figures()

    def calls_hooked_functions(self) -> None:
        name = f"w{threading.get_native_id()}"  # of its function too: another call opens no window
        spec = CaptureSpec(window_id=name, start_profile_names=[name])
        number = 0
        while self.goes_on():
            event = _core.HookEvent(name, meta={"iter": number}, role="r", rank=0)
            self.windows.on_enter(event)
            self.windows.on_exit(event)
            if number % 10 == 0:
                self.windows.arm_spec(spec)
                self.windows.pending()
            number += 1

    def runs_modules(self) -> None:
        enter, leave = self.modules.hooks(1)
        self.passes.count_passes(self, 2, 4, False)
        while self.goes_on():
            for _ in range(BATCH):
                enter(None, ())
                leave(None, (), None)
                self.passes.before(self, ())
                self.passes.after(self, (), None)
            self.count("modules", BATCH)
            self.modules.figures(1)

    def trains(self) -> None:
        gc.callbacks.append(self.stages.collected)
        while self.goes_on():
            if not self.files_are_open.wait(0.1):
                continue
            for stage in range(3):
                if self.stages.begin(stage):
                    self.stages.end()
            self.stages.begin_step(self)
            self.stages.end_step(self)
            self.stages.counts()
            self.stages.drain_soon()
            time.sleep(0.0005)
        gc.callbacks.remove(self.stages.collected)

    def hashes(self) -> None:
        data = bytes(range(256)) * 256
        whole, digest = _core.tensor_sums(data), _core.tensor_hash(data)
        while self.goes_on():
            assert _core.tensor_hash(data) == digest
            half = len(data) // 2
            parts = _core.bytes_sums(data[:half], 0, len(data))
            assert parts + _core.bytes_sums(data[half:], half, len(data)) == whole
            assert len(_core.md5([data, data[:100]])) == 2

    def forks(self) -> None:
        while self.goes_on():
            if not self.files_are_open.wait(0.1):
                continue
            child = os.fork()
            if child == 0:
                self.timer.start("child")
                self.timer.stop("child")
                _core.drain(10.0)
                has_files = _core.output_state()["kind"] == "file"
                _core.close_output()
                os._exit(0 if has_files else NO_FILES)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            self.count("children", status == 0)
            if status not in {0, NO_FILES}:
                self.failures.append(f"a child ended with {status}")
            time.sleep(0.02)

    def collects(self) -> None:
        while self.goes_on():
            gc.collect()
            time.sleep(0.01)

    # --- all of them -----------------------------------------------------------------------

    def guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(f"{work.__name__}: {error!r}")

    def run(self) -> None:
        handle = self.timer.time_stage("handle")
        self.modules.on = True

        def shares() -> None:
            self.shares_a_handle(handle)

        works = [
            self.starts_and_stops, self.starts_and_stops, self.uses_handles, self.uses_handles,
            shares, shares, self.logs_events, self.starts_threads_that_end, self.makes_timers,
            self.moves_files, self.steps, self.changes_hooks, self.reads, self.converts,
            self.times_calls, self.times_calls, self.hashes, self.calls_hooked_functions,
            self.calls_hooked_functions, self.runs_modules, self.runs_modules, self.trains,
            self.trains,
        ]  # fmt: skip
        if hasattr(os, "fork"):
            works += [self.forks]
        threads = [threading.Thread(target=self.guarded, args=(work,)) for work in works]
        threads.append(threading.Thread(target=self.guarded, args=(self.collects,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _core.set_warning_hook(None)
        _core.open_output(kind="file", log_dir=str(self.folders[0]))
        _core.close_output()


def rows_of(folders: list[Path]) -> Counter[str]:
    """The rows of stages that ended, of events, and of children, over all files."""
    found: Counter[str] = Counter()
    own = {*NAMES, "outer", "inner", "short", "own", "handle"}
    for path in [path for folder in folders for path in folder.glob("*.csv")]:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                name = row["event_name"]
                if row["event_type"] == "END" and name in {*own, "child"}:
                    found["children" if name == "child" else "stages"] += 1
                elif row["event_type"] == "INSTANT" and row["event_name"] == "event":
                    found["events"] += 1
    return found


def main() -> None:
    stress = Stress(Path(sys.argv[1]), float(sys.argv[2]))
    stress.run()
    troubles = _core.troubles()
    result = {
        "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        "gil": getattr(sys, "_is_gil_enabled", lambda: True)(),
        "counted": stress.counted,
        "rows": rows_of(stress.folders),
        "timed": len(stress.times.samples("timed")) // 8,
        "block": len(stress.times.samples("block")) // 8,
        "durations": stress.durations.figures()[0],
        "modules": stress.modules.figures(1)[0][0],
        "windows": [stress.windows.opened, stress.windows.closed],
        "failures": stress.failures,
        "troubles": {name: number for name, number in troubles.items() if number},
        "warnings": stress.warnings[:5],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
