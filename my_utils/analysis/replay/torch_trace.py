"""One trace of torch.profiler: what a rank did in each step, by `ProfilerStep#`.

Where kernels were recorded, operations are what the device did, each in the step that launched it.
Else they are the outermost slices of the threads that ran forward and backward, and the collectives
of gloo. A step ends where the next one begins.

Of a device that has nothing to do, the trace tells what the host did meanwhile: batches that were
awaited then are operations, too, and a note has the rest.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ...core.kernel_names import function_name
from ...core.run_files.state import WORLD_SIZE_MAX
from ...core.units import count_text
from ...trace.chrome_json import ChromeJson, TraceFileError, number_within
from ..verdict.kinds import kind_of_stage
from .operations import DAY_NS, END, RECEIVE, SEND, TOGETHER, Flags, Ints, Words
from .spans import Spans

STEP = "ProfilerStep#"
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
ON_HOST = ("cpu_op", "user_annotation")
LAUNCHES = ("_runtime", "_driver")  # cuda_runtime, xpu_runtime, ...
IS_COLLECTIVE = re.compile(r"nccl|rccl|gloo:", re.IGNORECASE)
TIME_AS_TEXT = re.compile(r"-?\d{1,20}(\.\d{1,20})?", re.ASCII)
RANK_IN_NAME = re.compile(r"rank[-_]?(\d+)")
SIDES = {"send": SEND, "recv": RECEIVE, "gloo:send": SEND, "gloo:recv": RECEIVE}
BATCH = "SendRecv"  # kernels of sends and receives, and of all_to_all
WAITS = ("_c10d_functional::wait_tensor", "c10d_functional::wait_tensor")
NAME_MAX = 80
NAMES_KEPT = 4096  # whose kind and short form are remembered
NUMBER_MAX = 1 << 62
TIME_MAX_US = NUMBER_MAX // 2000  # so that a begin and a length make a number
WAITS_LEAST = 0.8  # of a collective, in which its thread runs nothing
BEFORE = -NUMBER_MAX  # the trace
COLLECTIVES = 1 << 20  # lanes from here on
AWAITED = COLLECTIVES + 1
INPUT = "input"
FRAME_LEAST = 0.95  # of a step
LOADER = "enumerate(DataLoader)"  # as torch names the wait for a batch
LOADS_HERE = "_SingleProcessDataLoaderIter"  # with num_workers=0


@dataclass
class TraceRows:
    """What a rank did, as a trace says it.

    rows: the operations, as columns lane, name, begin, end, group, side, peer and step.
    names, groups: the words that are numbered there.
    rank: None where the trace does not say it. world_size: 0 where it does not.
    idle_share: of the device. idle: the same in each name of the host.
    loads_here: batches are loaded in the training process.
    ungrouped: collectives that name no group. left_out: damaged events.
    marked_ns: when each step begins and ends.
    frames: names of the host that say no more than the step itself, and were left out.
    """

    rows: dict[str, Ints]
    names: list[str]
    groups: list[str]
    rank: int | None
    world_size: int
    host_name: str
    idle_share: float
    idle: dict[str, float]
    loads_here: bool
    ungrouped: int
    left_out: int
    marked_ns: dict[int, tuple[int, int]]
    frames: frozenset[str]


def read_trace(frames: Sequence[str] | None, path: str) -> TraceRows | str:
    """What is in a file, or why nothing is. frames: as in `TraceRows`, where they are known."""
    try:
        trace = _Trace(path, None if frames is None else frozenset(frames))
    except TraceFileError as error:
        return str(error)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not trace.steps:
        unread = f"; {left_out_text(trace.left_out)}" if trace.left_out else ""
        return f"{path}: no {STEP} in it{unread}"
    rows = trace.rows()
    return TraceRows(
        rows, list(trace.names), list(trace.groups), trace.rank, trace.world_size,
        trace.host_name, trace.idle_share, trace.idle, trace.loads_here, trace.ungrouped,
        trace.left_out, trace.marked_ns, trace.frames or frozenset(),
    )  # fmt: skip


class _Trace:
    """One file: slices of the host and of the device, as columns lane, name, begin, end, group,
    side, peer and correlation; the steps; and when kernels were launched."""

    def __init__(self, path: str, frames: frozenset[str] | None) -> None:
        self.names, self.groups = Words(), Words()
        self.frames = frames
        self.host: list[array[int]] = [array("q") for _ in range(8)]
        self.device: list[array[int]] = [array("q") for _ in range(8)]
        self.steps: dict[int, tuple[int, int]] = {}
        self.marked_ns: dict[int, tuple[int, int]] = {}
        self.launched: dict[int, int] = {}
        self.main: set[int] = set()
        self._threads = Words()
        self.loads_here = False
        self.idle: dict[str, float] = {}
        self.idle_share = 0.0
        self.ungrouped = self.left_out = 0
        source = ChromeJson(Path(path))
        for event in source.events():
            if isinstance(event, dict) and event.get("ph") == "X":
                try:
                    self._take(event)
                except (KeyError, TypeError, ValueError, ArithmeticError):
                    self.left_out += 1
        self.left_out += sum(count for count, _ in source.left_out.values())
        device = [np.array(one, np.int64) for one in self.device]
        near = are_near(device[2], device[3])
        self.left_out += int((~near).sum())
        self._device = [one[near] for one in device]
        info = source.metadata.get("distributedInfo")
        found = RANK_IN_NAME.search(Path(path).name)
        said = info if isinstance(info, dict) else {}
        ranks = [said.get("rank"), int(found[1]) if found else None]
        self.rank = next(filter(_is_rank, ranks), None)
        size = said.get("world_size")
        self.world_size = size if _is_rank(size) else 0
        host = source.metadata.get("host_name")
        self.host_name = host if isinstance(host, str) else ""

    def _take(self, event: dict[str, Any]) -> None:
        category, name, args = event.get("cat"), str(event.get("name")), event.get("args")
        args = args if isinstance(args, dict) else {}
        begin, end = span_ns(event)
        thread = self._threads[event.get("tid")]
        if category == "user_annotation" and name.startswith(STEP):
            number = name.removeprefix(STEP)
            if number.isdigit():
                self.steps[bounded_number(int(number))] = (begin, end)
                self.main.add(thread)
        elif category in ON_DEVICE:
            stream = args.get("stream")
            lane = 1 + stream if isinstance(stream, int) else 0
            self._add(self.device, lane, name, begin, end, args)
        elif category in ON_HOST:
            if name.startswith("autograd::engine"):
                self.main.add(thread)
            if name.startswith(LOADER):
                self.loads_here |= LOADS_HERE in name
                name = INPUT
            self._add(self.host, thread, name, begin, end, args)
        elif str(category).endswith(LAUNCHES) and "correlation" in args:
            self.launched[operator.index(args["correlation"])] = begin

    def _add(
        self, columns: list[array[int]], lane: int, name: str, begin: int, end: int,
        args: dict[str, Any],
    ) -> None:  # fmt: skip
        group, side, peer = -1, TOGETHER, -1
        if _is_collective(name) and (columns is self.device or name.startswith("gloo:")):
            call = str(args.get("Collective name", ""))
            is_batch = BATCH in name and call in ("", "coalesced")
            side = RECEIVE if is_batch else SIDES.get(call or name, TOGETHER)
            group = self._group(args, call) if side == TOGETHER else -1
            peer = args.get("Dst Rank" if side == SEND else "Src Rank", -1)
            name = call or name
            lane = lane if columns is self.device else COLLECTIVES
        short = function_name(name)[:NAME_MAX] if columns is self.device else _short(name)
        correlation = args.get("correlation", -1)
        row = (
            lane, self.names[short], begin, end, group, side,
            peer if isinstance(peer, int) else -1,
            correlation if isinstance(correlation, int) else -1,
        )  # fmt: skip
        bounded_number(min(row))
        bounded_number(max(row))
        for column, value in zip(columns, row, strict=True):
            column.append(value)

    def _group(self, args: dict[str, Any], call: str) -> int:
        ranks = args.get("Process Group Ranks")
        if not ranks:
            self.ungrouped += 1
        whole = "..." not in str(ranks)
        return self.groups[str(ranks) if whole else f"{ranks} {args.get('Process Group Name')}"]

    def rows(self) -> dict[str, Ints]:
        """The slices that count, each with its step; and where steps end."""
        numbers = np.array(sorted(self.steps, key=lambda one: (self.steps[one], one)))
        windows = np.array([self.steps[one] for one in numbers.tolist()]).reshape(-1, 2)
        on_device = len(self._device[0]) > 0
        threads = self._of_threads()
        columns = self._of_device(threads) if on_device else self._of_host(threads)
        lane, name, begin, end, group, side, peer, launch = columns
        at = np.searchsorted(windows[:, 0], launch, "right") - 1
        inside = (at >= 0) & (launch < windows[np.maximum(at, 0), 1])
        step = numbers[np.maximum(at, 0)]
        found = {"lane": lane, "name": name, "begin": begin, "end": end, "group": group,
                 "side": side, "peer": peer, "step": step}  # fmt: skip
        found = {key: value[inside] for key, value in found.items()}
        ends = self._ends(found, numbers, windows, on_device)
        return {key: np.concatenate([value, ends[key]]) for key, value in found.items()}

    def _of_threads(self) -> list[Ints]:
        """The slices of the threads that ran forward and backward, and gloo's collectives, without
        correlations."""
        columns = [np.array(one, np.int64) for one in self.host[:-1]]
        lane = columns[0]
        kept = np.isin(lane, sorted(self.main)) | (lane == COLLECTIVES)
        return [one[kept] for one in columns]

    def _of_host(self, threads: list[Ints]) -> tuple[Ints, ...]:
        """The outermost ones of these slices, as `rows` needs them."""
        lane, name, begin, end, *_ = threads
        waiting = [number for word, number in self.names.items() if word in WAITS]
        if self.frames is None:
            self.frames = self._frames(lane, name, begin, end)
        kept = ~self._are(name, self.frames) | (lane == COLLECTIVES)
        lane, name, begin, end, group, side, peer = (one[kept] for one in threads)
        lanes, begins, ends = _waits_inside(lane, begin, end)
        waits = np.r_[np.isin(name, waiting), np.ones(len(lanes), np.bool_)]
        which, begin, end = _pieces(
            np.r_[lane, lanes], np.r_[begin, begins], np.r_[end, ends], waits
        )
        return lane[which], name[which], begin, end, group[which], side[which], peer[which], begin

    def _is_input(self, name: Ints) -> Flags:
        return self._are(name, {word for word in self.names if kind_of_stage(word) == INPUT})

    def _are(self, name: Ints, words: Collection[str]) -> Flags:
        return np.isin(name, [at for word, at in self.names.items() if word in words])

    def _frames(self, lane: Ints, name: Ints, begin: Ints, end: Ints) -> frozenset[str]:
        """The names of slices that are, usually, as long as most of a step and have others in
        them: an annotation around the body of the loop says no more than the step itself."""
        windows = np.array(sorted(self.steps.values())).reshape(-1, 2)
        at = np.maximum(np.searchsorted(windows[:, 0], begin, "right") - 1, 0)
        fills = end - begin > FRAME_LEAST * (windows[at, 1] - windows[at, 0])
        fills &= _has_others(lane, begin, end) & (lane != COLLECTIVES) & ~self._is_input(name)
        often = np.bincount(name[fills], minlength=len(self.names))
        is_frame = 2 * often > np.bincount(name, minlength=len(self.names))
        return frozenset(word for word, at in self.names.items() if is_frame[at])

    def _of_device(self, threads: list[Ints]) -> tuple[Ints, ...]:
        """What the device did, launched in its step, and the batches that it waited for."""
        lane, name, begin, end, group, side, peer, correlation = self._device
        launch = self._launches(lane, begin, correlation)
        idle, host = Idle(begin, end), self._of_host(threads)
        self.frames = None  # what the device did is the same without them
        self.idle_share = idle.share
        waited = np.bincount(host[1], idle.within(*host[2:4]), len(self.names)) / idle.span_ns
        self.idle = {word: waited[at] for word, at in self.names.items() if waited[at]}
        columns = (lane, name, begin, end, group, side, peer, launch)
        return tuple(map(np.concatenate, zip(columns, self._awaited(idle, threads), strict=True)))

    def _launches(self, lane: Ints, begin: Ints, correlation: Ints) -> Ints:
        """When each was launched. A stream does what it is given in that order, so what names no
        launch was launched with the one before it; the first ones before the trace began. Of a
        stream without any launch nothing is known but when it began."""
        known = np.array([self.launched.get(one, BEFORE) for one in correlation.tolist()])
        launch = np.where(np.isin(lane, lane[known != BEFORE]), known, begin)
        order = np.lexsort((begin, lane))
        found = launch[order]
        last = np.maximum.accumulate(np.where(found == BEFORE, 0, np.arange(len(found))))
        same = lane[order][last] == lane[order]
        launch[order] = np.where(same, found[last], BEFORE)
        return launch

    def _awaited(self, idle: Idle, threads: list[Ints]) -> tuple[Ints, ...]:
        """The part of each batch in which the device had nothing to do, up to its end."""
        kept = self._is_input(threads[1])
        lane, name, first, last = (one[kept] for one in threads[:4])
        which, launch, end = _pieces(lane, first, last, np.zeros(len(lane), np.bool_))
        begin = np.maximum(launch, idle.since(end))
        waits = begin < end
        name, begin, end, launch = (one[waits] for one in (name[which], begin, end, launch))
        nothing = np.zeros(len(name), np.int64)
        nobody = nothing - 1
        return nothing + AWAITED, name, begin, end, nobody, nothing + TOGETHER, nobody, launch

    def _ends(
        self, found: dict[str, Ints], numbers: Ints, windows: Ints, on_device: bool
    ) -> dict[str, Ints]:
        step, at = numbers, windows[:, 1]
        self.marked_ns = dict(self.steps)
        if on_device:
            lengths = {one: end - begin for one, (begin, end) in self.steps.items()}
            ran = (found[key] for key in ("step", "begin", "end"))
            self.marked_ns = device_marks(lengths, *ran)
            step = np.array(list(self.marked_ns), np.int64)
            at = np.array([end for _, end in self.marked_ns.values()], np.int64)
        nothing = np.zeros(len(step), np.int64)
        return {
            "lane": nothing, "name": nothing + self.names[END], "begin": at, "end": at,
            "group": nothing - 1, "side": nothing + TOGETHER, "peer": nothing - 1, "step": step,
        }  # fmt: skip


def device_marks(
    lengths: Mapping[int, int], step: Ints, begin: Ints, end: Ints
) -> dict[int, tuple[int, int]]:
    """When each step begins and ends on a device that did these kernels: it is idle until the first
    one of the next step. Where that was not recorded, it comes as much later as the next step of
    the host begins later, and not before the last kernel of this one ends; but not after the first
    one of another step. lengths: of the steps on the host; without its length such a step is not
    there.

    >>> step, begin, end = np.array([[3, 3, 4, 9], [0, 5, 20, 90], [4, 9, 29, 95]])
    >>> device_marks({3: 18, 9: 17}, step, begin, end)
    {3: (0, 20), 9: (90, 107)}
    """
    numbers, which = np.unique(step, return_inverse=True)
    first = np.full(len(numbers), NUMBER_MAX)
    last = np.full(len(numbers), -NUMBER_MAX)
    np.minimum.at(first, which, begin)
    np.maximum.at(last, which, end)
    steps, firsts = numbers.tolist(), first.tolist()
    marks = {
        one: (firsts[at], max(firsts[at] + lengths[one], int(last[at])))
        for at, one in enumerate(steps)
        if one in lengths
    }
    order = np.argsort(first, kind="stable").tolist()
    for at, after in itertools.pairwise(order):
        one, begin, next_begin = steps[at], firsts[at], firsts[after]
        if steps[after] == one + 1 and next_begin > begin:
            marks[one] = (begin, next_begin)
        elif one in marks:
            marks[one] = (begin, max(min(marks[one][1], next_begin), int(last[at])))
    return dict(sorted(marks.items()))


def _is_rank(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < WORLD_SIZE_MAX


def time_ns(value: Any) -> int:
    """Of µs in a trace, which may be text, as torch_npu writes them. ValueError for what is no
    time."""
    if isinstance(value, str) and TIME_AS_TEXT.fullmatch(value):
        value = Decimal(value)
    return int(number_within(value, TIME_MAX_US) * 1000)


def span_ns(event: dict[str, Any]) -> tuple[int, int]:
    """When a slice begins and ends. Raises as `time_ns`, and for one that ends before it begins."""
    begin, length = time_ns(event["ts"]), time_ns(event.get("dur", 0))
    if length < 0:
        raise ValueError
    return begin, begin + length


def are_near(begin: Ints, end: Ints) -> Flags:
    """Which of these events of a device are within a day of the middle one: the time of a kernel
    that was never set is 0.

    >>> days = np.array([0, 5, 5, 5, 9]) * DAY_NS
    >>> are_near(days, days + 1).tolist()
    [False, True, True, True, False]
    """
    middle = np.median(begin) if len(begin) else 0
    near: Flags = (np.abs(begin - middle) < DAY_NS) & (np.abs(end - middle) < DAY_NS)
    return near


def left_out_text(count: int) -> str:
    """
    >>> left_out_text(1)
    '1 event is left out: it is damaged'
    >>> left_out_text(2000)
    '2,000 events are left out: they are damaged'
    """
    are, they = ("is", "it is") if count == 1 else ("are", "they are")
    return f"{count_text(count, 'event')} {are} left out: {they} damaged"


def bounded_number(number: int) -> int:
    """OverflowError for what is not a number of a trace."""
    if not -NUMBER_MAX < number < NUMBER_MAX:
        raise OverflowError
    return number


@functools.lru_cache(NAMES_KEPT)
def _is_collective(name: str) -> bool:
    return IS_COLLECTIVE.search(name) is not None


@functools.lru_cache(NAMES_KEPT)
def _short(name: str) -> str:
    """Without the arguments of templates and functions."""
    return (
        re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0][:NAME_MAX] or name[:NAME_MAX]
    )


def _has_others(lane: Ints, begin: Ints, end: Ints) -> Flags:
    """Which slices have others of their lane in them."""
    order = np.lexsort((-end, begin, lane))
    found = np.zeros(len(lane), np.bool_)
    before, after = order[:-1], order[1:]
    found[before] = (lane[before] == lane[after]) & (begin[after] < end[before])
    return found


def _waits_inside(lane: Ints, begin: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """The collectives that begin and end in one outermost slice of a thread which runs nothing
    meanwhile: the lane of the thread, when it begins to wait, and when that ends."""
    found = []
    leaf = ~_has_others(lane, begin, end)
    called = lane == COLLECTIVES
    first, last = begin[called], end[called]
    for one in np.unique(lane[~called]).tolist():
        here = lane == one
        order = np.lexsort((-end[here], begin[here]))
        begins, ends = begin[here][order], end[here][order]
        outer = np.r_[True, begins[1:] >= np.maximum.accumulate(ends)[:-1]]
        at = np.searchsorted(begins[outer], first, "right") - 1
        inside = (at >= 0) & (last <= ends[outer][np.maximum(at, 0)])
        idle = Idle(begin[here & leaf], end[here & leaf]).within(first, last)
        waits = inside & (last > first) & (idle >= WAITS_LEAST * (last - first))
        found.append((np.full(int(waits.sum()), one), first[waits], last[waits]))
    if not found:
        return lane[:0], begin[:0], end[:0]
    lanes, begins, ends = (np.concatenate(column) for column in zip(*found, strict=True))
    return lanes, begins, ends


def _pieces(lane: Ints, begin: Ints, end: Ints, waits: Flags) -> tuple[Ints, Ints, Ints]:
    """The slices that are in no other one of their lane, without the waits in them: which slice
    each piece is of, and when it begins and ends."""
    found: list[tuple[int, int, int]] = []
    last_lane, last_end = -1, 0
    for place in np.lexsort((-end, begin, lane)).tolist():
        if lane[place] != last_lane or begin[place] >= last_end or lane[place] == COLLECTIVES:
            found.append((place, begin[place], end[place]))
            last_lane, last_end = lane[place], end[place]
        elif waits[place] and begin[place] >= found[-1][1]:
            outer, first, _ = found.pop()
            found += [(outer, first, begin[place]), (outer, end[place], last_end)]
    pieces = np.array(found, np.int64).reshape(-1, 3)
    return pieces[:, 0], pieces[:, 1], pieces[:, 2]


class Idle:
    """The gaps between what a device did, on all streams together; ns.

    span_ns: from its first begin to its last end. share: of the gaps in that.

    >>> idle = Idle(np.array([0, 2, 50]), np.array([10, 6, 60]))
    >>> idle.within(np.array([0, 20]), np.array([60, 45])).tolist()
    [40, 25]
    >>> idle.since(np.array([30, 55])).tolist()
    [10, 55]
    >>> idle.span_ns, idle.share
    (60, 0.6666666666666666)
    """

    def __init__(self, begins: Ints, ends: Ints) -> None:
        """begins, ends: of each kernel and copy, in any order; at least one."""
        order = np.argsort(begins, kind="stable")
        next_begins, done = begins[order][1:], np.maximum.accumulate(ends[order])[:-1]
        gaps = next_begins > done
        self._gaps = Spans(done[gaps], next_begins[gaps])
        self.span_ns = max(int(ends.max() - begins.min()), 1)
        self.share = self._gaps.total / self.span_ns

    def within(self, begins: Ints, ends: Ints) -> Ints:
        """How long it had nothing to do in each of these spans."""
        return self._gaps.within(begins, ends)

    def since(self, moments: Ints) -> Ints:
        """Since when it has had nothing to do at each moment; the moment where it works."""
        begins, ends = self._gaps.begins, self._gaps.ends
        if not len(begins):
            return moments
        at = np.searchsorted(begins, moments, "right") - 1
        last = np.maximum(at, 0)
        since: Ints = np.where((at >= 0) & (moments <= ends[last]), begins[last], moments)
        return since
