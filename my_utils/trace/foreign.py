"""Converts a trace of another tool to rows for `_core.TraceJob.convert`.

Internal. docs/traces/traces.md has the rules: which clock such a trace has, what is drawn where.
`ForeignTrace.read` takes the events of the file into sorted runs, because they may be in any
order; `rows` gives each slice as a START and an END in the order of time, on a track on which it
nests. In memory are the slices that are open, and where each flow comes from. Times are
nanoseconds.
"""

from __future__ import annotations

import functools
import heapq
import json
import math
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from ..core.ranges import RANK_MAX
from ..core.run_files.row_metadata import encoded_word
from .chrome_json import ChromeJson, TraceFileError, number_within
from .sorted_runs import SortedRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from .. import _core


DAY_NS = 86_400 * 10**9
YEAR_2000_NS = 946_684_800 * 10**9
YEAR_2100_NS = 4_102_444_800 * 10**9
ROUNDING_NS = 2  # an end this far beyond that of the slice around it nests all the same
LATEST_NS = (1 << 62) - 1  # of a row; an end after it does not count
NEVER = 1 << 63
TIME_MAX_US = 1 << 53
NODE_SHIFT = 40  # a node id carries its process above this bit
PROCESSES_MAX = (1 << 13) - 1
TRACKS_BELOW = 10_000_000  # our own tids begin here, above those of Linux
NESTING_TRACKS = 32  # of a thread; one further slice at a time is on each of the others
METADATA_MAX = 32 << 10
ROWS_AT_ONCE = 1000
DRAWN = frozenset("XBEiIRsftCbneSTpF")
KIND_OF_FLOW = {"s": "FLOW_START", "t": "FLOW_STEP", "f": "FLOW_END"}

_encode = functools.lru_cache(4096)(encoded_word)
_JSON = json.JSONEncoder(default=float, ensure_ascii=False)


class ForeignTrace:
    """One file. Call `read`, then go through `rows`, then `close`.

    rank: what the file states, or None. first_ns: the time of the first event, on the clock of the
    trace. is_on_run_clock: whether that is Unix time. messages: what was not drawn, or means less
    than it seems.
    """

    def __init__(self, path: Path, number: int) -> None:
        self.path = path
        self.rank: int | None = None
        self.first_ns: int | None = None
        self.is_on_run_clock = True
        self.messages: list[str] = []
        self._number = number
        self._base_ns = 0
        # time, -end or 0, order, place, name, and:
        self._slices = SortedRuns()  # pairs of the begin, pairs of the end
        self._edges = SortedRuns()  # phase, category, place as text, pairs
        self._async_edges = SortedRuns()  # phase, "", id, pairs
        self._points = SortedRuns()  # kind, pairs or id
        self._places: dict[tuple[int | str, int | str], int] = {}  # by pid and tid
        self._process_names: dict[int | str, str] = {}
        self._thread_names: dict[tuple[int | str, int | str], str] = {}
        self._days: dict[int, list[int]] = {}  # slices, other events, and the first time
        self._near_days = range(0)
        self._left_out: dict[str, tuple[int, str]] = {}
        self._order = 0

    def close(self) -> None:
        for runs in (self._slices, self._edges, self._async_edges, self._points):
            runs.close()

    # --- reading ---

    def read(self) -> None:
        """Reads the whole file. What is wrong with it, or with its events, is in `messages`."""
        source = ChromeJson(self.path)
        try:
            for event in source.events():
                self._order += 1
                try:
                    self._take(event)
                except RecursionError:
                    self._leave_out("nested too deep", event)
                except ValueError as error:
                    self._leave_out(str(error), event)
        except TraceFileError as error:
            self.messages.append(str(error))
        except OSError as error:
            self.messages.append(f"{self.path}: {error.strerror}")
        for reason, (count, first) in source.left_out.items():
            self._left_out[reason] = (count + self._left_out.get(reason, (0, ""))[0], first)
        if not (self._days or self.messages or self._left_out):
            self.messages.append(f"{self.path}: holds no events to draw")
        self._set_clock(source.metadata)
        self.rank = _read_rank(source.metadata)
        for begin, end, order, *rest in self._matched(self._edges):
            self._slices.add((begin, -end, order, *rest))
        self._edges.close()

    def all_messages(self) -> list[str]:
        """`messages`, and what was left out; complete after the last of the rows."""
        left = [
            f"{self.path}: {count} events left out: {reason}; the first: {first}"
            for reason, (count, first) in self._left_out.items()
        ]
        return [*self.messages, *left]

    def _leave_out(self, reason: str, event: Any) -> None:
        count, first = self._left_out.get(reason, (0, ""))
        self._left_out[reason] = (count + 1, first or _shown(event))

    def _take(self, event: Any) -> None:
        if not event:  # XLA ends its list with {}
            return
        if not isinstance(event, dict):
            raise ValueError("is not an event")
        phase = event.get("ph")
        pid = _identity(event.get("pid"), 0)
        tid = _identity(event.get("tid"), pid)
        if phase == "M":
            self._take_name(event, pid, tid)
            return
        if not isinstance(phase, str) or phase not in DRAWN:
            raise ValueError("not drawn (ph)")
        begin_us = _number(event.get("ts"), TIME_MAX_US)
        at_ns = math.floor(begin_us * 1000)
        place = self._places.setdefault((pid, tid), len(self._places))
        name = event.get("name")
        head = (self._order, place, name if isinstance(name, str) else _text(name))
        if phase == "X":
            length_us = _number(event.get("dur", 0), TIME_MAX_US)
            if length_us < 0:
                raise ValueError("dur is negative")
            end_ns = math.floor((begin_us + length_us) * 1000)  # so that what nests still does
            self._slices.add((at_ns, -end_ns, *head, _pairs(event), ""))
        else:
            self._take_other(event, phase, (at_ns, 0, *head), pid)
        if "bind_id" in event and phase in "XBbn":
            self._take_bound_flow(event, (at_ns, 0, *head[:2], "flow"))
        self._count(at_ns, phase in "XBb")

    def _take_name(self, event: dict[str, Any], pid: int | str, tid: int | str) -> None:
        args = event.get("args")
        name = _text(args.get("name")) if isinstance(args, dict) else ""
        if event.get("name") == "process_name" and name:
            self._process_names[pid] = name
        elif event.get("name") == "thread_name" and name:
            self._thread_names[pid, tid] = name

    def _take_other(
        self, event: dict[str, Any], phase: str, head: tuple[Any, ...], pid: int | str
    ) -> None:
        if phase in "BE":
            category = _text(event.get("cat"))
            self._edges.add((*head, phase, category, str(head[3]), _pairs(event)))
        elif phase in "beSF":
            kind = "B" if phase in "bS" else "E"
            self._async_edges.add((*head, kind, "", _async_id(event, pid), _pairs(event)))
        elif phase in "stf":
            self._points.add((*head, KIND_OF_FLOW[phase], _flow_id(event, pid)))
        elif phase == "C":
            self._take_counter(event, head)
        else:
            self._points.add((*head, "INSTANT", _pairs(event)))

    def _take_counter(self, event: dict[str, Any], head: tuple[Any, ...]) -> None:
        args, number = event.get("args"), event.get("id")
        if not isinstance(args, dict):
            raise ValueError("a counter without values")
        name = f"{head[4]} id: {number}" if number and isinstance(number, str) else head[4]
        for key, value in args.items():
            self._points.add((*head[:4], f"{name} {key}", "COUNTER", f"value={_value(value)}"))

    def _take_bound_flow(self, event: dict[str, Any], head: tuple[Any, ...]) -> None:
        ways = event.get("flow_in") is True, event.get("flow_out") is True
        if any(ways):
            kind = "FLOW_STEP" if all(ways) else "FLOW_END" if ways[0] else "FLOW_START"
            self._points.add((*head, kind, repr(_flow_number(event["bind_id"]))))

    # --- the clock ---

    def _count(self, at_ns: int, is_slice: bool) -> None:
        day = self._days.setdefault(at_ns // DAY_NS, [0, 0, at_ns])
        day[not is_slice] += 1
        day[2] = min(day[2], at_ns)

    def _set_clock(self, metadata: dict[str, Any]) -> None:
        """Says which days are those of the trace, and on which clock: a time that was never set,
        or one of another clock, decides nothing."""
        if not self._days:
            return
        self._base_ns = self._stated_base_ns(metadata)
        first_day = last_day = self._middle_day()
        while first_day - 1 in self._days:
            first_day -= 1
        while last_day + 1 in self._days:
            last_day += 1
        self._near_days = range(first_day, last_day + 1)
        self.first_ns = self._days[first_day][2] + self._base_ns
        self.is_on_run_clock = YEAR_2000_NS <= self.first_ns < YEAR_2100_NS

    def _middle_day(self) -> int:
        """The day of the middle slice, or of the middle event if there is no slice."""
        which = 0 if any(counts[0] for counts in self._days.values()) else 1
        left = sum(counts[which] for counts in self._days.values()) // 2
        for day in sorted(self._days):
            left -= self._days[day][which]
            if left < 0:
                return day
        raise AssertionError("no event")

    def _stated_base_ns(self, metadata: dict[str, Any]) -> int:
        nested = metadata.get("viztracer_metadata")
        for holder in (metadata, nested if isinstance(nested, dict) else {}):
            stated = holder.get("baseTimeNanoseconds")
            if stated is None:
                continue
            try:
                return math.floor(_number(stated, LATEST_NS))
            except ValueError:
                self.messages.append(
                    f"{self.path}: baseTimeNanoseconds is not a time: {_shown(stated)}; not used"
                )
        return 0

    def align(self, first_ns: int) -> None:
        """Puts a trace whose clock is not known where the run begins."""
        if self.first_ns is not None:
            self._base_ns += first_ns - self.first_ns
            self.first_ns = first_ns
            self.messages.append(
                f"{self.path}: states no time of the run's clock; drawn from the beginning of the"
                " run, so that it can be compared within itself only"
            )

    def _near(self, runs: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """The entries on the days of the trace."""
        for entry in runs:
            if entry[0] // DAY_NS in self._near_days:
                yield entry
            else:
                self._leave_out(
                    "a day and more away from the rest of the trace",
                    f"{entry[4] or '(no name)'} at {entry[0]} ns",
                )

    # --- pairing, in the order of time ---

    def _matched(self, edges: SortedRuns) -> Iterator[tuple[Any, ...]]:
        """Slices of begins and ends: begin, end, order, place, name, pairs of both. An end takes
        the innermost open slice of its id that has its name and its category, as far as it states
        them. Without an end, it is NEVER."""
        running: dict[int, tuple[Any, ...]] = {}
        stacks: dict[tuple[str, str, str], list[int]] = {}
        for at_ns, _, order, place, name, phase, category, key, pairs in self._near(edges):
            if phase == "B":
                running[order] = (at_ns, place, name, category, pairs)
                for wanted in _all_names(key, name, category):
                    stacks.setdefault(wanted, []).append(order)
                continue
            if (key, name, category) not in stacks:
                self._leave_out("an end without a begin", f"{name or '(no name)'} at {at_ns} ns")
                continue
            begun = stacks[key, name, category][-1]
            begin_ns, place, name, category, begin_pairs = running.pop(begun)
            for wanted in _all_names(key, name, category):
                stack = stacks[wanted]
                while stack and stack[-1] not in running:
                    stack.pop()
                if not stack:
                    del stacks[wanted]
            yield begin_ns, at_ns, begun, place, name, begin_pairs, pairs
        for order, (begin_ns, place, name, _, pairs) in running.items():
            yield begin_ns, NEVER, order, place, name, pairs, ""

    # --- writing ---

    def rows(self, shift: Callable[[int], int]) -> Iterator[list[_core._ForeignRow]]:
        """The whole trace, in parts. `shift` maps a Unix time to what is added to it."""
        try:
            yield from _Rows(self, shift).parts()
        except (OSError, ValueError) as error:
            self.messages.append(f"{self.path}: {error}")


class _Track:
    """One level of a thread: slices that nest."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.open: list[tuple[int, int, str, str]] = []  # end, node, name, pairs

    def depth_for(self, begin_ns: int, end_ns: int) -> int:
        """How many of the open slices stay so around a slice of these times: it nests, begins after
        the others have ended, or misses that by rounding. -1 where it fits in no way."""
        ends = self.open
        if ends and ends[0][0] > begin_ns + ROUNDING_NS and end_ns > ends[0][0] + ROUNDING_NS:
            return -1
        for depth in range(len(ends), 0, -1):
            last_ns = ends[depth - 1][0]
            if last_ns > begin_ns and end_ns <= last_ns + ROUNDING_NS:
                return depth
            if last_ns > begin_ns + ROUNDING_NS:
                return -1
        return 0


class _Thread:
    """A thread of the trace. tracks: those on which slices nest; others: the further ones, as a
    heap of when each is free."""

    def __init__(self, node: int, name: str, tid: int) -> None:
        self.node = node
        self.name = name
        self.tid = tid
        self.tracks = [_Track(tid)]
        self.others: list[tuple[int, int, _Track]] = []


class _Rows:
    """Makes the rows of a trace that was read."""

    def __init__(self, trace: ForeignTrace, shift: Callable[[int], int]) -> None:
        self._trace = trace
        self._base_ns = trace._base_ns
        self._shift = shift
        self._part: list[_core._ForeignRow] = []
        self._places = list(trace._places)
        self._threads: dict[int, _Thread] = {}
        self._processes: dict[int | str, int] = {}
        self._tids: set[tuple[int | str, int]] = set()
        self._made_tids = TRACKS_BELOW
        self._node = 0
        self._flow = trace._number << 32
        self._async = 0

    def parts(self) -> Iterator[list[_core._ForeignRow]]:
        for _ in self._add_all():
            if len(self._part) >= ROWS_AT_ONCE:
                yield self._part
                self._part = []
        yield self._part

    def _add_all(self) -> Iterator[None]:
        """Stops after each event."""
        trace = self._trace
        for begin, minus_end, _, place, name, pairs, end_pairs in trace._near(trace._slices):
            self._slice(place, begin, -minus_end, (name, pairs, end_pairs))
            yield
        for thread in self._threads.values():
            for track in (*thread.tracks, *(track for _, _, track in thread.others)):
                self._end_until(track, LATEST_NS)
                yield
        for begin, end, _, *rest in trace._matched(trace._async_edges):
            self._async_slice(begin, end, *rest)
            yield
        yield from self._points()

    def _row(self, at_ns: int, name: str, kind: str, node: int, tid: int, pairs: str) -> None:
        metadata = f"node_id={node},tid={tid}{',' if pairs else ''}{pairs}"
        at_ns = min(at_ns, NEVER - 1)
        self._part.append((kind, at_ns, _bytes(name or "[No name]"), _bytes(metadata)))

    def _time(self, at_ns: int) -> int:
        at_ns += self._base_ns
        return at_ns + self._shift(at_ns)

    # --- slices ---

    def _slice(self, place: int, begin: int, end: int, texts: tuple[str, str, str]) -> None:
        name, pairs, end_pairs = texts
        begin_ns = self._time(begin)
        end_ns = NEVER if end == NEVER else begin_ns + end - begin
        thread = self._threads.get(place) or self._new_thread(place)
        track = self._track_for(thread, begin_ns, end_ns)
        if track.open:
            end_ns = min(end_ns, track.open[-1][0])
        self._node += 1
        node = thread.node + self._node
        track.open.append((end_ns, node, name, end_pairs))
        self._row(begin_ns, name, "START", node, track.tid, pairs)

    def _track_for(self, thread: _Thread, begin_ns: int, end_ns: int) -> _Track:
        """A track on which the slice nests; those that it follows are ended there."""
        for track in thread.tracks:
            self._end_until(track, begin_ns)
            depth = track.depth_for(begin_ns, end_ns)
            if depth >= 0:
                while len(track.open) > depth:
                    self._end(track, begin_ns)
                return track
        if len(thread.tracks) < NESTING_TRACKS:
            track = self._new_track(thread, begin_ns)
            thread.tracks.append(track)
            return track
        if thread.others and thread.others[0][0] <= begin_ns:
            track = heapq.heappop(thread.others)[2]
            self._end_until(track, begin_ns)
        else:
            track = self._new_track(thread, begin_ns)
        heapq.heappush(thread.others, (end_ns, track.tid, track))
        return track

    def _end_until(self, track: _Track, at_ns: int) -> None:
        """Ends the slices that are over at this time."""
        while track.open and track.open[-1][0] <= at_ns:
            self._end(track, at_ns)

    def _end(self, track: _Track, latest_ns: int) -> None:
        end_ns, node, name, pairs = track.open.pop()
        self._row(min(end_ns, latest_ns), name, "END", node, track.tid, pairs)

    def _async_slice(
        self, begin: int, end: int, place: int, name: str, pairs: str, end_pairs: str
    ) -> None:
        thread = self._threads.get(place) or self._new_thread(place)
        self._async += 1
        begin_ns, own = self._time(begin), f"id={self._async}"
        self._row(begin_ns, name, "ASYNC_START", thread.node, thread.tid, f"{own},{pairs}")
        if end != NEVER:
            end_ns = begin_ns + end - begin
            self._row(end_ns, name, "ASYNC_END", thread.node, thread.tid, f"{own},{end_pairs}")

    # --- instants, counters, flows ---

    def _points(self) -> Iterator[None]:
        sources: dict[str, tuple[int, str, _Thread]] = {}
        unused: dict[str, int] = {}
        for at, _, _, place, name, kind, text in self._trace._near(self._trace._points):
            yield
            thread, at_ns = self._threads.get(place) or self._new_thread(place), self._time(at)
            if not kind.startswith("FLOW"):
                self._row(at_ns, name, kind, thread.node, thread.tid, text)
                continue
            if kind != "FLOW_START":
                if text not in sources:
                    self._trace._leave_out("an end of a flow without a start", name)
                    continue
                number = unused.pop(text, 0) or self._flow_start(*sources[text])
                self._row(at_ns, name, "FLOW_END", thread.node, thread.tid, f"id={number}")
            if kind != "FLOW_END":
                sources[text] = (at_ns, name, thread)
                unused[text] = self._flow_start(*sources[text])

    def _flow_start(self, at_ns: int, name: str, thread: _Thread) -> int:
        """Each arrow has a separate number, also where several begin at one place."""
        self._flow += 1
        self._row(at_ns, name, "FLOW_START", thread.node, thread.tid, f"id={self._flow}")
        return self._flow

    # --- processes and threads ---

    def _new_thread(self, place: int) -> _Thread:
        """Names the process and the thread, at their first event."""
        pid, tid = self._places[place]
        at_ns = self._trace.first_ns or 0
        if pid not in self._processes:
            self._new_process(pid, at_ns)
        name = self._trace._thread_names.get((pid, tid), "") or f"thread {tid}"
        number = int(tid) if str(tid).isascii() and str(tid).isdigit() and len(str(tid)) < 8 else 0
        if not 0 < number < TRACKS_BELOW or (pid, number) in self._tids:
            number = self._new_tid()
        self._tids.add((pid, number))
        thread = _Thread(self._processes[pid] << NODE_SHIFT, name, number)
        self._threads[place] = thread
        self._name_track(thread, number, at_ns, name)
        return thread

    def _new_process(self, pid: int | str, at_ns: int) -> None:
        self._processes[pid] = min(len(self._processes) + 1, PROCESSES_MAX)
        name = self._trace._process_names.get(pid, "")
        shown = name if str(pid) in name.split() else f"{name} {pid}".strip()
        host, label = _encode(shown or "process"), _encode(self._trace.path.name)
        metadata = f"attempt={self._processes[pid]},host={host},label={label}"
        self._row(at_ns, "my_utils.process", "INSTANT", 0, 0, metadata)

    def _new_track(self, thread: _Thread, at_ns: int) -> _Track:
        track = _Track(self._new_tid())
        number = len(thread.tracks) + len(thread.others) + 1
        self._name_track(thread, track.tid, at_ns, f"{thread.name} ({number})")
        return track

    def _new_tid(self) -> int:
        self._made_tids += 1
        return self._made_tids

    def _name_track(self, thread: _Thread, tid: int, at_ns: int, label: str) -> None:
        pairs = f"thread_name={_encode(label)}"
        self._row(at_ns, "my_utils.thread", "INSTANT", thread.node, tid, pairs)


# --- values of events ---


def _number(value: Any, most: int) -> int | Decimal:
    """Exact, also where it is text; ValueError for another value and for a larger one."""
    try:
        return number_within(Decimal(value) if isinstance(value, str) else value, most)
    except (InvalidOperation, ValueError):  # NaN among them
        raise ValueError("ts or dur is not a number") from None


def _read_rank(metadata: dict[str, Any]) -> int | None:
    info = metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if type(rank) is int and 0 <= rank <= RANK_MAX else None


def _all_names(key: str, name: str, category: str) -> set[tuple[str, str, str]]:
    """As what an end may know a slice: it need not state the name, or the category."""
    return {(key, name, category), (key, name, ""), (key, "", category), (key, "", "")}


def _identity(value: Any, missing: int | str) -> int | str:
    """A pid or a tid. A number and a text are never the same."""
    if type(value) is int or type(value) is str:
        return value
    if value is None:
        return missing
    if type(value) is Decimal and -TIME_MAX_US < value < TIME_MAX_US and value == int(value):
        return int(value)
    return _text(value)


def _async_id(event: dict[str, Any], pid: int | str) -> str:
    """What pairs asynchronous events: an id is that of all processes unless it says that it is
    local."""
    second = event.get("id2") if event.get("id") is None else None
    kinds = second if isinstance(second, dict) else {}
    category = _text(event.get("cat"))
    if "global" in kinds:
        return repr((category, "global", kinds["global"]))
    if "local" in kinds or event.get("id") is None:
        return repr((category, pid, kinds.get("local")))
    return repr((category, event["id"]))


def _flow_id(event: dict[str, Any], pid: int | str) -> str:
    """What pairs the ends of a flow: of all processes, by name, category, and a number, which may
    be hexadecimal text."""
    number = _flow_number(event.get("id"))
    key = _async_id(event, pid) if number is None else (number, _text(event.get("cat")))
    return repr((key, _text(event.get("name"))))


def _flow_number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return int(value, 16)
        except ValueError:
            return value
    return value


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _JSON.encode(value)


def _value(value: Any) -> str:
    kind = type(value)
    if kind is int or kind is Decimal:
        return str(value)
    return "null" if value is None else _encode(_text(value))


def _pairs(event: dict[str, Any]) -> str:
    """The category first: what follows it is then the user's."""
    found = [f"cat={_encode(_text(event.get('cat')))}"]
    args = event.get("args")
    if args is not None and not isinstance(args, dict):
        args = {"args": args}
    if args:
        found += [
            f"{_encode(key)}={value if type(value) is int else _value(value)}"
            for key, value in args.items()
        ]
    joined = ",".join(found)
    return joined if 4 * len(joined) < METADATA_MAX else _cut(found)


def _cut(pairs: list[str]) -> str:
    size = 0
    for index, pair in enumerate(pairs):
        size += 4 * len(pair) + 1
        if size > METADATA_MAX and index:
            return ",".join(pairs[:index])
    return ",".join(pairs)


def _shown(value: Any) -> str:
    """The beginning of an event, without what is nested in it."""
    if isinstance(value, str):
        return value[:120]
    if isinstance(value, dict):
        flat = {key: one for key, one in value.items() if not isinstance(one, (dict, list))}
        return json.dumps(flat, default=str)[:120]
    return "" if isinstance(value, list) else str(value)[:120]
