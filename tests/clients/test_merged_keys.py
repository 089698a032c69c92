"""Which events of a merged trace belong together: as Perfetto's trace processor has it, which reads
the file of the other tool by itself.

The generated traces are those of a writer: what begins on a thread ends there in the opposite
order, and no two events have one time. Each event carries its own number as an argument.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from my_utils.csv2trace import csv_to_trace

from .foreign_traces import RUN_S, run_csv
from .perfetto import TraceProcessor, why_missing

pytestmark = [
    pytest.mark.c_code,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
    pytest.mark.filterwarnings("ignore::my_utils.csv2trace.ConversionWarning"),
]

SLICES = """
select s.id, s.parent_id as parent, s.ts, s.dur, s.name, s.track_id as track, t.utid as thread,
  coalesce(extract_arg(s.arg_set_id, 'args.n'), extract_arg(s.arg_set_id, 'debug.n')) as n,
  s.arg_set_id as args
from slice s left join thread_track t on s.track_id = t.id
"""
ARGS = """
select arg_set_id as id, key, display_value as value from args
where flat_key glob 'args.*' or flat_key glob 'debug.*'
"""
COUNTERS = "select t.name, c.ts, c.value, c.track_id as track from counter c join counter_track t on c.track_id = t.id"  # noqa: E501

PLACES: list[dict[str, Any]] = [
    {"pid": pid, "tid": tid} for pid in (1, 7, "7", "Spans") for tid in (7, "7", "stream 7")
] + [{"pid": 3}, {"tid": 5}, {}]
IDS: list[dict[str, Any]] = [
    {"id": 1}, {"id": "1"}, {"id": "0x1"}, {"id": 2, "scope": "s"}, {"id": 2},
    {"id2": {"local": 1}}, {"id2": {"local": "1"}}, {"id2": {"global": "1"}},
    {"id2": {"global": "1", "local": "2"}}, {"id": 1, "id2": {"local": "1"}},
]  # fmt: skip
FLOW_IDS: list[Any] = [5, "5", 16, "0x10", "10", "ab", 0xAB]
VALUES = st.one_of(
    st.integers(-(10**6), 10**6), st.booleans(), st.sampled_from(["", "x, y=z%", "ü"])
)


class Writer:
    """Makes one trace. `choose` picks one of a list."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._open: dict[str, list[dict[str, Any]]] = {}
        self._flows: set[str] = set()

    def choose(self, some: Any) -> Any:
        return self._draw(st.sampled_from(some))

    def event(self, phase: str, place: dict[str, Any], **more: Any) -> dict[str, Any]:
        self._number += 1
        args = {"n": self._number, **self._draw(st.dictionaries(st.sampled_from("abc"), VALUES))}
        name = self.choose(["x", "y", "z", *([] if phase == "n" else [None])])
        event = {"ph": phase, "ts": 10 * self._number, **({"name": name} if name else {}),
                 "args": args, **place, **more}  # fmt: skip
        self.events.append(event)
        return event

    def step(self) -> None:
        place = self.choose(PLACES)
        running = self._open.setdefault(json.dumps(place), [])
        kind = self.choose(["begin", "end", "async", "async end", "flow", "C", "iIR", "n", "NODPM"])
        if kind == "begin":
            category = {"cat": self.choose("cd")} if self.choose([True, False]) else {}
            running.append(self.event(self.choose("BX"), place, **category, **self._bound_flow()))
        elif kind == "end" and running:
            self._end(running.pop(), place)
        elif kind.startswith("async"):
            self._async(place, kind == "async")
        elif kind == "flow" and running:
            self._flow(place)
        elif kind == "C":
            values = dict.fromkeys(self.choose(["v", "vw", ["value"], ["a b"]]), self._number)
            self.event("C", place, **self.choose([{}, {"id": "1"}, {"id": "0x1"}]))["args"] = values
        elif kind == "NODPM":
            self.event(self.choose(kind), place, id=1)
        elif kind in ("iIR", "n") and len(place) == 2:
            self.event(self.choose(kind), place, id=1, cat="c")

    def _end(self, begin: dict[str, Any], place: dict[str, Any]) -> None:
        if begin["ph"] == "X":
            self._number += 1
            begin["dur"] = 10 * self._number - begin["ts"]
            return
        end = self.event("E", place)
        del end["args"]
        end.pop("name", None)
        for key in ("name", "cat"):
            if key in begin and self.choose([True, False]):
                end[key] = begin[key]

    def _async(self, place: dict[str, Any], begins: bool) -> None:
        if "pid" not in place:
            return
        own = {**self.choose(IDS), "cat": self.choose("cd")}
        running = self._open.setdefault(json.dumps([own, place["pid"] if "id2" in own else 0]), [])
        if begins and not running:
            running.append(self.event("b", place, **own))
        elif running and not begins:
            self.event("e", place, **own)["name"] = running.pop().get("name", "")

    def _flow(self, place: dict[str, Any]) -> None:
        number = self.choose(FLOW_IDS)
        own = {"id": number, "cat": self.choose("cd"), "name": self.choose("fg")}
        key = f"{int(number, 16) if isinstance(number, str) else number} {own['cat']} {own['name']}"
        if key in self._flows:
            self.event(self.choose("tf"), place, bp="e", **own)
        else:
            self._flows.add(key)
            self.event("s", place, **own)

    def _bound_flow(self) -> dict[str, Any]:
        number = self.choose([None, None, *FLOW_IDS])
        if number is None:
            return {}
        key = str(int(number, 16) if isinstance(number, str) else number)
        is_known = key in self._flows
        self._flows.add(key)
        way = {"flow_in": True, "flow_out": self.choose([True, False])}
        return {"bind_id": number, **(way if is_known else {"flow_out": True})}

    def finish(self) -> list[dict[str, Any]]:
        for running in self._open.values():
            while any(one["ph"] == "X" or "bind_id" in one for one in running):
                begin = running.pop()
                self._end(begin, {key: begin[key] for key in ("pid", "tid") if key in begin})
        return self.events


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    writer = Writer(draw)
    for _ in range(draw(st.integers(1, 40))):
        writer.step()
    return draw(st.permutations(writer.finish()))


class Reading:
    """What the trace processor has of one file. Slices are known by their numbers."""

    def __init__(self, processor: TraceProcessor, path: Path) -> None:
        processor.load(path)
        rows = {row["id"]: row for row in processor.query(SLICES)}
        forward = [row["ts"] for row in rows.values() if row["name"] == "forward"]
        self._zero = forward[0] if forward else 0
        self._rows = rows
        args = processor.query(ARGS)
        numbered = {key: row for key, row in rows.items() if row["n"] is not None}
        self.slices = {
            row["n"]: (row["name"], row["ts"] - self._zero, row["dur"]) for row in numbered.values()
        }
        self.parents = {
            row["n"]: self._number(row["parent"])
            for row in numbered.values() if row["thread"] is not None
        }  # fmt: skip
        self.threads = self._together((row["n"], row["thread"]) for row in numbered.values())
        self.args = {
            row["n"]: {
                one["key"].split(".", 1)[1]: one["value"]
                for one in args
                if one["id"] == row["args"] and one["key"].split(".", 1)[1] != "cat"  # it is ours
            }
            for row in numbered.values()
        }
        arrows = [
            (row["slice_out"], row["slice_in"])
            for row in processor.query("select slice_out, slice_in from flow")
        ]
        self.backward = [(out, into) for out, into in arrows if rows[into]["ts"] < rows[out]["ts"]]
        self.flows = Counter(
            self._in_order(self._number(out), self._number(into)) for out, into in arrows
        )
        counters = processor.query(COUNTERS)
        self.counters = Counter(
            (row["name"], row["ts"] - self._zero, row["value"]) for row in counters
        )
        self.counter_tracks = self._together(
            (row["ts"] - self._zero, row["track"]) for row in counters
        )

    def _number(self, slice_id: int | None) -> int | None:
        """That of the slice, or of the first around it that has one: our arrows are between slices
        of their own."""
        while slice_id is not None and self._rows[slice_id]["n"] is None:
            slice_id = self._rows[slice_id]["parent"]
        return None if slice_id is None else int(self._rows[slice_id]["n"])

    def _in_order(self, *numbers: int | None) -> tuple[int | None, ...]:
        """By the begin of the slices: so the processor turns the arrow of a step, which may lie in
        a slice that began before that of the arrow's start."""
        return tuple(sorted(numbers, key=lambda one: self.slices[one][1] if one else -1))

    @staticmethod
    def _together(pairs: Iterator[tuple[int, Any]] | Any) -> set[frozenset[int]]:
        found: dict[Any, set[int]] = {}
        for number, where in pairs:
            found.setdefault(where, set()).add(number)
        return {frozenset(some) for where, some in found.items() if where is not None}


@pytest.fixture(scope="module")
def processor() -> Iterator[TraceProcessor]:
    with TraceProcessor() as processor:
        yield processor


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_a_merged_trace_has_what_perfetto_reads_in_the_file(
    suffix: str, processor: TraceProcessor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    trace, out = folder / "trace.json", folder / f"out{suffix}"
    csv = run_csv(folder)

    @settings(max_examples=50)
    @given(traces())
    def compare(events: list[dict[str, Any]]) -> None:
        content = {"traceEvents": events, "baseTimeNanoseconds": RUN_S * 10**9}
        trace.write_text(json.dumps(content, ensure_ascii=False))  # it keeps escapes as they are
        csv_to_trace(csv, out, merge=[trace])
        wanted, found = Reading(processor, trace), Reading(processor, out)
        assert found.slices == wanted.slices
        assert {one: found.parents[one] for one in wanted.parents} == wanted.parents
        on_threads = set(wanted.parents)
        assert {some & on_threads for some in found.threads} - {frozenset()} == wanted.threads
        assert found.args == wanted.args
        assert found.flows == wanted.flows
        assert not found.backward
        assert found.counters == wanted.counters
        assert found.counter_tracks == wanted.counter_tracks

    compare()
