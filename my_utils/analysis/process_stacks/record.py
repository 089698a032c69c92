"""Python stacks that a process read of itself, as csrc/engine/process_stacks/stacks_json.c writes
them."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from ... import _core
from ...core.checked_json import Foreign, decoded

RECORD_BYTES_MAX = 64 << 20  # of a file; ten seconds of four threads take 0.1 MB
TORN, CUT = 1, 2


class Frame(msgspec.Struct, frozen=True):
    """A frame. function: with the names around it. file: "" if it is not known. line: 0 where it
    is not known."""

    function: str
    file: str
    line: int


class Thread(msgspec.Struct, frozen=True):
    """A thread with Python frames, innermost first. name: that of the system. state: the letter of
    /proc ("R" runs, "S" waits, "D" waits for storage), "" if it is not known. torn: it called or
    returned while it was read, so that its frames may be of two moments. cut: it has more."""

    tid: int
    name: str
    state: str
    torn: bool
    cut: bool
    frames: tuple[Frame, ...]


class StackRecord(msgspec.Struct):
    """What a process answered. refused: why it read no stacks, else ""."""

    my_utils: Literal["stacks"]
    version: int
    id: str
    rank: int
    label: str
    refused: str = ""
    kind: str = ""
    host: str = ""
    pid: int = 0
    python: str = ""
    time_ns: int = 0
    interval_ns: int = 0
    spent_ns: int = 0
    rounds: int = 0
    torn: int = 0
    cut: int = 0
    incomplete: int = 0
    dropped: int = 0
    task_names: list[tuple[int, str, str]] = msgspec.field(default_factory=list, name="threads")
    functions: list[tuple[str, str, int]] = []
    frames: list[tuple[int, int]] = []
    stacks: list[list[int]] = []
    samples: list[tuple[int, int, int, int]] = []  # time_ns, tid, stack, flags

    def frame(self, number: int) -> Frame:
        """The frame of that number; one that could not be read is called "(unknown)"."""
        if number < 0:
            return Frame("(unknown)", "", 0)
        function, line = self.frames[number]
        name, file, _ = self.functions[function]
        return Frame(name, file, line)

    def stack(self, number: int) -> tuple[Frame, ...]:
        """The frames of the stack of that number, the innermost first."""
        return tuple(self.frame(frame) for frame in self.stacks[number])

    def threads(self) -> list[Thread]:
        """The threads of a dump, the process's first one first."""
        known = {tid: (name, state) for tid, name, state in self.task_names}
        found = [
            Thread(
                tid, *known.get(tid, ("", "")), bool(flags & TORN), bool(flags & CUT),
                self.stack(stack),
            )
            for _, tid, stack, flags in self.samples
        ]  # fmt: skip
        return sorted(found, key=lambda thread: (thread.tid != self.pid, thread.tid))


def read_record(data: bytes) -> StackRecord:
    """The record; Damaged or Foreign for anything else. Its numbers point to what is there."""
    record = decoded(data, StackRecord)
    places, functions = len(record.frames), len(record.functions)
    fine = (
        all(0 <= function < functions for function, _ in record.frames)
        and all(-1 <= frame < places for stack in record.stacks for frame in stack)
        and all(0 <= stack < len(record.stacks) for _, _, stack, _ in record.samples)
    )
    if not fine:
        raise Foreign("a number points to nothing")
    return record


# --- of this process ---


def own_stacks() -> list[Thread]:
    """The Python stacks of all threads of this process, the first thread first.

    They are read from memory without the GIL, while the threads continue. Values of locals are not
    read. RuntimeError if stacks cannot be read; `why_off` says why. Thread-safe.

    >>> def work():
    ...     return own_stacks()[0].frames
    >>> frames = work()
    >>> [frame.function for frame in frames[:2]]
    ['own_stacks', 'work']
    """
    record = read_record(_core.read_stacks())
    record.pid = os.getpid()
    return record.threads()


def why_off() -> str:
    """Why stacks of this process cannot be read; "" when they can."""
    return _core.stacks_off()
