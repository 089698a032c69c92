"""A trace of another tool as rows of a profile CSV, which are converted like all others.

Internal. docs/traces/traces.md has the rules: which clock such a trace has, what is drawn where.
`ForeignTrace.read` takes the events of the file into sorted runs, because they may stand in any
order; `write_rows` gives each slice as a START and an END in the order of time, on a track on which
it nests. Memory does not grow with the file. Times are nanoseconds.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from .chrome_json import ChromeJson, TraceFileError
from .sorted_runs import SortedRuns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["ForeignTrace"]

HEADER = (
    b"timestamp_unix,readable_time,machine_id,step,event_name,event_type,duration_ms,metadata\n"
)
YEAR_2000_NS = 946_684_800 * 10**9
YEAR_2100_NS = 4_102_444_800 * 10**9
ROUNDING_NS = 2  # an end this far beyond that of the slice around it nests all the same
NEVER = 1 << 61  # an end from here on is none; below it stands every time there is
NODE_SHIFT = 40  # a node id carries its process above this bit
PROCESSES_MAX = (1 << 13) - 1
TRACKS_BELOW = 10_000_000  # tids of our own begin here, above those of Linux
METADATA_MAX = 32 << 10
ROWS_A_WRITE = 1000
KIND_OF_PHASE = {"s": "FLOW_START", "t": "FLOW_STEP", "f": "FLOW_END"}

_SPECIAL = re.compile(r'[,="%\r\n]')
_DIGITS = re.compile(r"-?\d{1,15}(?:\.\d+)?")


class _Place(NamedTuple):
    """A thread of the trace."""

    pid: str
    tid: str


class _Track:
    """One level of a thread: slices that nest. `open` has the ends and node ids of those that
    run."""

    def __init__(self, tid: int) -> None:
        self.tid = tid
        self.open: list[tuple[int, int, str, str]] = []  # end, node, name, pairs
        self.last_ns = -(1 << 62)

    def has_room(self, begin: int, end: int) -> bool:
        """Whether a slice nests, begins after the others have ended, or misses that by rounding."""
        if begin < self.last_ns:
            return False
        return any(
            not ends or end <= ends[-1] + ROUNDING_NS
            for ends in (self._ends_after(begin), self._ends_after(begin + ROUNDING_NS))
        )

    def _ends_after(self, at_ns: int) -> list[int]:
        return [one[0] for one in self.open if one[0] > at_ns]

    def is_over(self, begin: int, end: int) -> bool:
        """Whether the innermost slice has ended where a slice of these times begins."""
        if not self.open:
            return False
        last = self.open[-1][0]
        return last <= begin or (last <= begin + ROUNDING_NS and end > last + ROUNDING_NS)


class ForeignTrace:
    """One file. Call `read`, then `write_rows`, then `close`.

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
        self._slices = SortedRuns()  # begin, -end, order, thread, name, pairs
        self._begins_and_ends = SortedRuns()  # time, order, thread, phase, name, pairs
        self._async_events = SortedRuns()  # time, order, thread, phase, key, name, pairs
        self._points = SortedRuns()  # time, order, thread, kind, name, pairs
        self._places: dict[_Place, int] = {}
        self._process_names: dict[str, str] = {}
        self._thread_names: dict[_Place, str] = {}
        self._left_out: dict[str, tuple[int, str]] = {}
        self._order = 0

    def close(self) -> None:
        for runs in (self._slices, self._begins_and_ends, self._async_events, self._points):
            runs.close()

    # --- reading ---

    def read(self) -> None:
        """Reads the whole file. What is wrong with it, or with its events, is in `messages`."""
        source = ChromeJson(self.path)
        try:
            for event in source.events():
                self._order += 1
                self._take(event)
        except TraceFileError as error:
            self.messages.append(str(error))
        except (OSError, EOFError) as error:
            self.messages.append(f"{self.path}: {getattr(error, 'strerror', None) or error}")
        if source.malformed:
            self._left_out["is no JSON"] = (source.malformed, source.first_malformed)
        self._set_clock(source.metadata)
        self.rank = _rank_of(source.metadata)
        self._pair()

    def all_messages(self) -> list[str]:
        """`messages`, and what was left out; complete once the rows are written."""
        left = [
            f"{self.path}: {count} events left out: {reason}; the first: {first}"
            for reason, (count, first) in self._left_out.items()
        ]
        return [*self.messages, *left]

    def _leave_out(self, reason: str, event: Any) -> None:
        count, first = self._left_out.get(reason, (0, ""))
        if not first:
            first = event if isinstance(event, str) else json.dumps(event)[:120]
        self._left_out[reason] = (count + 1, first)

    def _take(self, event: dict[str, Any]) -> None:
        phase = event.get("ph")
        pid, tid = str(event.get("pid", "")), str(event.get("tid", ""))
        if phase == "M":
            self._take_name(event, pid, tid)
            return
        if not isinstance(phase, str) or phase not in "XBEiIRsftCbneSTpF" or not phase:
            self._leave_out("not drawn (ph)", event)
            return
        try:
            at_ns = nanoseconds(event["ts"])
            end_ns = at_ns if phase != "X" else nanoseconds(event["ts"], event.get("dur", 0))
        except (KeyError, ValueError):
            self._leave_out("ts or dur is no number", event)
            return
        if end_ns < at_ns:
            self._leave_out("dur is negative", event)
            return
        if self.first_ns is None or at_ns < self.first_ns:
            self.first_ns = at_ns
        place = self._places.setdefault(_Place(pid, tid), len(self._places))
        self._keep(event, phase, (place, pid), at_ns, end_ns)

    def _take_name(self, event: dict[str, Any], pid: str, tid: str) -> None:
        args = event.get("args")
        name = str(args.get("name", "")) if isinstance(args, dict) else ""
        if event.get("name") == "process_name" and name:
            self._process_names[pid] = name
        elif event.get("name") == "thread_name" and name:
            self._thread_names[_Place(pid, tid)] = name

    def _keep(
        self, event: dict[str, Any], phase: str, where: tuple[int, str], at_ns: int, end_ns: int
    ) -> None:
        place, pid = where
        name, order = str(event.get("name", "")), self._order
        if phase == "X":
            self._slices.add((at_ns, -end_ns, order, place, name, _pairs(event)))
        elif phase in "BE":
            self._begins_and_ends.add((at_ns, order, place, phase, name, _pairs(event)))
        elif phase in "beSF":
            kind = "b" if phase in "bS" else "e"
            key = _async_key(event, pid)
            self._async_events.add((at_ns, order, place, kind, key, name, _pairs(event)))
        elif phase in "stf":
            key = f"{event.get('cat')}\0{name}\0{event.get('id')}"
            self._points.add((at_ns, order, place, KIND_OF_PHASE[phase], name, key))
        elif phase == "C":
            self._points.add((at_ns, order, place, "COUNTER", name, _counter_pairs(event)))
        else:
            self._points.add((at_ns, order, place, "INSTANT", name, _pairs(event)))

    def _set_clock(self, metadata: dict[str, Any]) -> None:
        nested = metadata.get("viztracer_metadata")
        for holder in (metadata, nested if isinstance(nested, dict) else {}):
            try:
                self._base_ns = self._base_ns or int(holder.get("baseTimeNanoseconds", 0))
            except (TypeError, ValueError):
                continue
        if self.first_ns is not None:
            self.first_ns += self._base_ns
            self.is_on_run_clock = YEAR_2000_NS <= self.first_ns < YEAR_2100_NS

    def align(self, first_ns: int) -> None:
        """Puts a trace whose clock is not known where the run begins."""
        if self.first_ns is not None:
            self._base_ns += first_ns - self.first_ns
            self.first_ns = first_ns
            self.messages.append(
                f"{self.path}: states no time of the run's clock; drawn from the beginning of the"
                " run, so that it can be compared within itself only"
            )

    # --- pairing, in the order of time ---

    def _pair(self) -> None:
        """Makes slices of begins and ends."""
        running: dict[int, list[tuple[int, str, str]]] = {}
        for at_ns, order, place, phase, name, pairs in self._begins_and_ends:
            stack = running.setdefault(place, [])
            if phase == "B":
                stack.append((at_ns, name, pairs))
                continue
            index = _innermost(stack, name)
            if index < 0:
                self._leave_out("an end without a begin", f"{name or '(no name)'} at {at_ns} ns")
                continue
            begin_ns, own_name, own_pairs = stack.pop(index)
            both = ",".join(filter(None, (own_pairs, pairs)))
            self._slices.add((begin_ns, -at_ns, order, place, own_name, both))
        self._begins_and_ends.close()
        for place, stack in running.items():
            for begin_ns, name, pairs in stack:
                self._order += 1
                self._slices.add((begin_ns, -2 * NEVER, self._order, place, name, pairs))

    # --- writing ---

    def write_rows(self, shift: Callable[[int], int], out: IO[bytes]) -> None:
        """The whole trace as a profile CSV. `shift` maps a Unix time to what is added to it."""
        maker = _Rows(self, shift)
        out.write(HEADER)
        batch: list[str] = []
        for row in maker.rows():
            batch.append(row)
            if len(batch) >= ROWS_A_WRITE:
                out.write("".join(batch).encode("utf-8", "replace"))
                batch.clear()
        out.write("".join(batch).encode("utf-8", "replace"))


class _Rows:
    """Makes the rows of a trace that was read."""

    def __init__(self, trace: ForeignTrace, shift: Callable[[int], int]) -> None:
        self._trace = trace
        self._base_ns = trace._base_ns
        self._shift = shift
        self._places = list(trace._places)
        self._tracks: dict[int, list[_Track]] = {}
        self._processes: dict[str, int] = {}
        self._made_tids = TRACKS_BELOW
        self._node = 0
        self._flow = trace._number << 32
        self._async = 0

    def rows(self) -> Iterator[str]:
        yield from self._slice_rows()
        yield from self._async_rows()
        yield from self._point_rows()

    def _time(self, at_ns: int) -> int:
        at_ns += self._base_ns
        return at_ns + self._shift(at_ns)

    def _slice_rows(self) -> Iterator[str]:
        for begin, minus_end, _, place, name, pairs in self._trace._slices:
            begin_ns = self._time(begin)
            end_ns = begin_ns + (-minus_end - begin)
            yield from self._announced(place)
            level, track = self._level(place, begin_ns, end_ns)
            if track is None:
                track = self._new_level(place)
                yield self._thread_row(begin_ns, place, track, level)
            while track.is_over(begin_ns, end_ns):
                yield self._end(track, begin_ns)
            if track.open:
                end_ns = min(end_ns, track.open[-1][0])
            node = self._new_node(place)
            track.open.append((end_ns, node, name, pairs))
            track.last_ns = begin_ns
            yield _row(begin_ns, name, "START", node, track.tid, "")
        for tracks in self._tracks.values():
            for track in tracks:
                while track.open:
                    if track.open[-1][0] < NEVER:
                        yield self._end(track, NEVER)
                    else:
                        track.open.pop()

    def _level(self, place: int, begin_ns: int, end_ns: int) -> tuple[int, _Track | None]:
        tracks = self._tracks[place]
        for level, track in enumerate(tracks):
            if track.has_room(begin_ns, end_ns):
                return level, track
        return len(tracks), None

    @staticmethod
    def _end(track: _Track, latest_ns: int) -> str:
        """The END of the innermost slice."""
        end_ns, node, name, pairs = track.open.pop()
        return _row(min(end_ns, latest_ns), name, "END", node, track.tid, pairs)

    def _async_rows(self) -> Iterator[str]:
        running: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
        for at, _, place, phase, key, name, pairs in self._trace._async_events:
            stack = running.setdefault((key, name), [])
            if phase == "b":
                stack.append((at, place, pairs))
                continue
            if not stack:
                self._trace._leave_out("an end without a begin", f"{name or key} at {at} ns")
                continue
            begin, own_place, own_pairs = stack.pop()
            yield from self._async_slice(own_place, name, begin, at, own_pairs or pairs)
        for (_, name), stack in running.items():
            for begin, place, pairs in stack:
                yield from self._async_slice(place, name, begin, None, pairs)

    def _async_slice(
        self, place: int, name: str, begin: int, end: int | None, pairs: str
    ) -> Iterator[str]:
        yield from self._announced(place)
        track, node = self._tracks[place][0], self._process_node(place)
        self._async += 1
        own = f"id={self._async}"
        begin_ns = self._time(begin)
        yield _row(begin_ns, name, "ASYNC_START", node, track.tid, f"{own},{pairs}")
        if end is not None:
            yield _row(begin_ns + end - begin, name, "ASYNC_END", node, track.tid, own)

    def _point_rows(self) -> Iterator[str]:
        flows: dict[str, int] = {}
        for at, _, place, kind, name, pairs in self._trace._points:
            yield from self._announced(place)
            track, node, at_ns = self._tracks[place][0], self._process_node(place), self._time(at)
            if not kind.startswith("FLOW"):
                yield _row(at_ns, name, kind, node, track.tid, pairs)
            elif kind == "FLOW_START":
                self._flow += 1
                flows[pairs] = self._flow
                yield _row(at_ns, name, kind, node, track.tid, f"id={self._flow}")
            elif pairs not in flows:
                self._trace._leave_out("an end of a flow without a start", name)
            else:
                number = flows.pop(pairs)
                yield _row(at_ns, name, "FLOW_END", node, track.tid, f"id={number}")
                if kind == "FLOW_STEP":
                    self._flow += 1
                    flows[pairs] = self._flow
                    yield _row(at_ns, name, "FLOW_START", node, track.tid, f"id={self._flow}")

    # --- processes and threads ---

    def _announced(self, place: int) -> Iterator[str]:
        """Rows that name the process and the thread, at their first event."""
        if place in self._tracks:
            return
        pid, tid = self._places[place]
        at_ns = self._trace.first_ns or 0
        if pid not in self._processes:
            self._processes[pid] = min(len(self._processes) + 1, PROCESSES_MAX)
            name = self._trace._process_names.get(pid, "")
            shown = f"{name} {pid}".strip() if pid not in name else name
            host, label = _encode(shown or "process"), _encode(self._trace.path.name)
            metadata = f"attempt={self._processes[pid]},host={host},label={label}"
            yield _row(at_ns, "my_utils.process", "INSTANT", 0, 0, metadata)
        number = int(tid) if tid.isascii() and tid.isdigit() and len(tid) < 8 else 0
        taken = any(
            track.tid == number
            for other, tracks in self._tracks.items()
            for track in tracks
            if self._places[other].pid == pid
        )
        track = _Track(number if 0 < number < TRACKS_BELOW and not taken else self._new_tid())
        self._tracks[place] = [track]
        yield self._thread_row(at_ns, place, track, 0)

    def _new_tid(self) -> int:
        self._made_tids += 1
        return self._made_tids

    def _new_level(self, place: int) -> _Track:
        self._tracks[place].append(_Track(self._new_tid()))
        return self._tracks[place][-1]

    def _thread_row(self, at_ns: int, place: int, track: _Track, level: int) -> str:
        tid = self._places[place].tid
        name = self._trace._thread_names.get(self._places[place], "") or f"thread {tid}"
        label = name if level == 0 else f"{name} ({level + 1})"
        node = self._process_node(place)
        return _row(at_ns, "my_utils.thread", "INSTANT", node, track.tid,
                    f"thread_name={_encode(label)}")  # fmt: skip

    def _process_node(self, place: int) -> int:
        return self._processes[self._places[place].pid] << NODE_SHIFT

    def _new_node(self, place: int) -> int:
        self._node += 1
        return self._process_node(place) + self._node


def _row(at_ns: int, name: str, kind: str, node: int, tid: int, pairs: str) -> str:
    seconds, decimals = divmod(abs(at_ns), 10**9)
    sign = "-" if at_ns < 0 else ""
    quoted = name.replace('"', '""')
    metadata = f"node_id={node},tid={tid}" + (f",{pairs}" if pairs else "")
    return f'{sign}{seconds}.{decimals:09d},,,0,"{quoted}",{kind},,"{metadata}"\n'


def nanoseconds(value: Any, length: Any = 0) -> int:
    """Microseconds, plus a length, in nanoseconds; what is below one is cut off. ValueError for
    what is no number. The sum is cut, and not its parts, so that what nests still does."""
    total = 0
    exact: list[Decimal] = []
    for part in (value, length):
        text = str(part)
        if isinstance(part, bool) or not isinstance(part, (int, str)):
            raise ValueError(f"no number: {text}")
        match = _DIGITS.fullmatch(text)
        whole, _, decimals = text.partition(".")
        if match and len(decimals) <= 3 and not text.startswith("-"):
            total += int(whole) * 1000 + int((decimals + "000")[:3])
        else:
            exact.append(_decimal(text))
    return total + int((sum(exact, Decimal(0)) * 1000).to_integral_value("ROUND_FLOOR"))


def _decimal(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"no number: {text}") from None
    if not number.is_finite() or abs(number) > 1 << 53:
        raise ValueError(f"no time: {text}")
    return number


def _rank_of(metadata: dict[str, Any]) -> int | None:
    info = metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None


def _innermost(stack: list[tuple[int, str, str]], name: str) -> int:
    """Which open slice an end belongs to; -1 for none."""
    for index in range(len(stack) - 1, -1, -1):
        if not name or stack[index][1] == name:
            return index
    return -1


def _async_key(event: dict[str, Any], pid: str) -> str:
    """What pairs asynchronous events beside their name. An id is the process's unless it says
    that it is global."""
    second = event.get("id2")
    if isinstance(second, dict) and "global" in second:
        return f"{event.get('cat')}\0{second['global']}"
    local = second.get("local") if isinstance(second, dict) else event.get("id")
    return f"{event.get('cat')}\0{pid}\0{local}"


def _encode(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _pairs(event: dict[str, Any]) -> str:
    """The category first: what follows it is then the user's."""
    found = [f"cat={_encode(str(event.get('cat', '')))}"]
    args = event.get("args")
    for key, value in (args if isinstance(args, dict) else {}).items():
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (dict, list)):
            value = json.dumps(value)
        found.append(f"{_encode(str(key))}={_encode(str(value))}")
    return _cut(found)


def _counter_pairs(event: dict[str, Any]) -> str:
    args = event.get("args")
    values = args.items() if isinstance(args, dict) else ()
    return _cut([f"{_encode(str(key))}={_encode(str(value))}" for key, value in values])


def _cut(pairs: list[str]) -> str:
    size = 0
    for index, pair in enumerate(pairs):
        size += 4 * len(pair) + 1
        if size > METADATA_MAX and index:
            return ",".join(pairs[:index])
    return ",".join(pairs)
