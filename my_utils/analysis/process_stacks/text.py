"""Prints the stacks of many ranks: equal ones once, with the open stages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from ...core.ranges import as_ranges, ranges_text
from ...core.run_files.state import Rank
from .record import Frame, StackRecord, Thread
from .request import Stacks

FRAMES_SHOWN = 16
# The file whose functions are torch's collectives; those of another name prepare them.
_COLLECTIVES = "distributed_c10d.py"
_NOT_COLLECTIVES = ("_", "wrapper", "Work")
_LIBRARIES = tuple(f"{os.sep}{name}" for name in ("torch/", "site-packages/", "lib/python"))
# The thread of `my_utils run` that watches for a standstill.
_OURS = os.path.join("my_utils", "run", "stages", "standstill.py")


def stack_lines(stacks: Stacks, ranks: Sequence[Rank] = ()) -> Iterator[str]:
    """ranks: whose open stages are known. Ranks whose first thread is at the same place share their
    lines, which show the other threads of the first of them."""
    by_label = {rank.label: rank for rank in ranks}
    groups: dict[object, list[StackRecord]] = {}
    for record in stacks.records:
        main = _main(record)
        key = (main.frames if main else (), _stages(by_label.get(record.label)))
        groups.setdefault(key, []).append(record)
    for members in sorted(groups.values(), key=len, reverse=True):
        yield from _group(members, by_label.get(members[0].label))
    for label, reason in sorted(stacks.missing.items()):
        yield f"no stacks of {label}: {reason}"


def _main(record: StackRecord) -> Thread | None:
    threads = record.threads()
    return threads[0] if threads else None


def _stages(rank: Rank | None) -> str:
    return " > ".join(name or "(name unknown)" for name in rank.stack) if rank else ""


def _group(members: Sequence[StackRecord], rank: Rank | None) -> Iterator[str]:
    first = members[0]
    threads = first.threads()
    stages = _stages(rank)
    step = "" if rank is None or rank.step is None else f", step {rank.step}"
    where = f" in {stages}{step}" if stages else ""
    doing = _doing(threads[0]) if threads else "runs no Python"
    yield f"{_name(members)}: {doing}{where}"
    for thread in threads:
        if not any(frame.file.endswith(_OURS) for frame in thread.frames):
            yield from _thread(thread, first.pid)


def _name(members: Sequence[StackRecord]) -> str:
    if len(members) == 1:
        return members[0].label.replace("_", " ", 1)
    ranks = sorted({record.rank for record in members})
    return f"ranks {ranges_text(as_ranges(ranks), 12)}" if len(ranks) > 1 else f"rank {ranks[0]}"


def _doing(thread: Thread) -> str:
    for place, frame in enumerate(thread.frames):
        if os.path.basename(frame.file) == _COLLECTIVES and not frame.function.startswith(
            _NOT_COLLECTIVES
        ):
            caller = _caller(thread.frames[place + 1 :])
            return f"waiting in {frame.function}{caller}"
    return _place(thread.frames[0]) if thread.frames else "its frames could not be read"


def main_text(record: StackRecord) -> str:
    """Where the first thread is, in a few words: its innermost frame, and the user's line that led
    there. "" where it runs no Python."""
    main = _main(record)
    if main is None or not main.frames:
        return ""
    text = _doing(main)
    if not text.startswith("`") or not _is_library(main.frames[0]):
        return text
    return text + _caller(main.frames[1:])


def _caller(frames: Sequence[Frame]) -> str:
    """The user's line: the first outside of libraries."""
    for frame in frames:
        if not _is_library(frame):
            return f", called by {_place(frame)}"
    return ""


def _is_library(frame: Frame) -> bool:
    """Whether it is torch's, another package's or Python's own."""
    return frame.file.startswith("<frozen ") or any(part in frame.file for part in _LIBRARIES)


def _place(frame: Frame) -> str:
    return f"`{frame.function}` {os.path.basename(frame.file)}:{frame.line}"


def _thread(thread: Thread, pid: int) -> Iterator[str]:
    name = "main thread" if thread.tid == pid else f"thread {thread.tid} {thread.name}".rstrip()
    notes = ["torn: it called or returned while it was read"] if thread.torn else []
    yield f"  {name}{': ' if notes else ''}{'; '.join(notes)}"
    for frame in thread.frames[:FRAMES_SHOWN]:
        yield f"    {frame.function}  {frame.file}:{frame.line}"
    more = len(thread.frames) - FRAMES_SHOWN
    if more > 0 or thread.cut:
        yield f"    and {more} more{' and others' if thread.cut else ''}"
