"""Prints which lines of Python a process executes when a step takes too long.

    python examples/stacks_of_a_job.py

A thread watches the training, and reads the stacks of all threads when no step has ended for half a
second. It does not stop any thread. `my_utils live LOGS --once --stacks` does the same for all
ranks of a job, from outside.
"""

from __future__ import annotations

import threading
import time

from my_utils.analysis.process_stacks import own_stacks

LIMIT_S = 0.5


class Watch(threading.Thread):
    """Prints the stack of the first thread once, when a step takes longer than LIMIT_S."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.step_ended = threading.Event()
        self.has_printed = threading.Event()

    def run(self) -> None:
        while self.step_ended.wait(LIMIT_S):
            self.step_ended.clear()
        print(f"no step has ended for {LIMIT_S:g} s; the training stands in")
        for frame in own_stacks()[0].frames:
            print(f"    {frame.function}, line {frame.line}")
        self.has_printed.set()


def decode_image(watch: Watch) -> None:
    watch.has_printed.wait()


def train(watch: Watch) -> None:
    for step in range(10):
        time.sleep(0.01)
        if step == 5:
            decode_image(watch)
        watch.step_ended.set()


def main() -> None:
    watch = Watch()
    watch.start()
    train(watch)
    print("it goes on")


if __name__ == "__main__":
    main()
