"""Traces of other tools that are odd: what cannot be read is left out and said, the rest stays."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from my_utils.csv2trace import Summary, csv_to_trace

from ..support.run_csv import HEADER

pytestmark = [
    pytest.mark.c_code,
    pytest.mark.filterwarnings("ignore::my_utils.csv2trace.ConversionWarning"),
]

RUN_S = 1_750_000_000
RUN_US = RUN_S * 10**6
X = {"ph": "X", "name": "x", "pid": 1, "tid": 1, "dur": 2}


def merged(folder: Path, content: str) -> tuple[list[dict[str, Any]], Summary]:
    """The events out of the trace; times in nanoseconds after the run's first row."""
    csv, trace, out = folder / "profile_rank_0.csv", folder / "trace.json", folder / "out.json"
    rows = [
        f'{RUN_S}.0,,h,0,forward,START,,"node_id=1"',
        f'{RUN_S + 1}.0,,h,0,forward,END,,"node_id=1"',
    ]
    csv.write_text(HEADER + "\n".join(rows) + "\n")
    trace.write_text(content)
    summary = csv_to_trace(csv, out, merge=[trace])
    events = json.loads(out.read_text())["traceEvents"]
    zero = next(event["ts"] for event in events if event["name"] == "forward")
    for event in events:
        event["ns"] = round((event.get("ts", 0) - zero) * 1000)
    return events, summary


def slices(events: list[dict[str, Any]], name: str = "x") -> list[tuple[int, int]]:
    return [
        (e["ns"], round(e["dur"] * 1000)) for e in events if e["ph"] == "X" and e["name"] == name
    ]


FAR = [
    {"ph": "i", "name": "odd", "pid": 1, "tid": 1, "ts": 0},
    {"ph": "i", "name": "odd", "pid": 1, "tid": 1, "ts": 2 * RUN_US},
    {**X, "name": "odd", "ts": 0},
    {"ph": "C", "name": "odd", "pid": 1, "args": {"v": 1}, "ts": -1e15},
    {**X, "name": "odd", "ts": (1 << 53) - 1},
    {"ph": "b", "name": "odd", "id": 1, "pid": 1, "ts": 0},
]
CLOCKS: dict[str, Callable[[list[Any]], Any]] = {
    "Unix time": lambda events: events,
    "a base": lambda events: {
        "traceEvents": [{**e, "ts": e["ts"] - RUN_US} for e in events],
        "baseTimeNanoseconds": RUN_S * 10**9,
    },
}


@pytest.mark.parametrize("odd", FAR, ids=lambda odd: f"{odd['ph']} at {odd['ts']}")
@pytest.mark.parametrize("clock", CLOCKS)
def test_one_time_far_away_moves_nothing(clock: str, odd: dict[str, Any], tmp_path: Path) -> None:
    good = [{**X, "ts": RUN_US + 100 * number} for number in range(3)]
    events, summary = merged(tmp_path, json.dumps(CLOCKS[clock]([*good, odd])))
    assert slices(events) == [(100_000 * number, 2000) for number in range(3)]
    (message,) = summary.messages()
    assert (
        "1 events left out: a day and more away from the rest of the trace; the first: odd"
        in message
    )


def test_a_time_that_was_never_set_does_not_say_where_a_trace_begins(tmp_path: Path) -> None:
    """A clock that counts from the boot, 20 days ago."""
    day_us = 86_400 * 10**6
    good = [{**X, "ts": 20 * day_us + number} for number in (0, 7)]
    events, summary = merged(tmp_path, json.dumps([{**X, "name": "odd", "ts": 0}, *good]))
    assert slices(events) == [(0, 2000), (7000, 2000)]
    assert len(summary.messages()) == 2


@pytest.mark.parametrize("base", ["1750000000000000000.0", "1.75e18", '"1750000000000000000"'])
def test_a_base_may_be_any_number(base: str, tmp_path: Path) -> None:
    content = f'{{"baseTimeNanoseconds": {base}, "traceEvents": [{json.dumps({**X, "ts": 4})}]}}'
    events, summary = merged(tmp_path, content)
    assert slices(events) == [(4000, 2000)] and summary.messages() == []


@pytest.mark.parametrize("base", ["1e999999999", "-1e400", '"soon"', "[1]", "true"])
def test_a_base_that_is_no_time_is_said(base: str, tmp_path: Path) -> None:
    content = f'{{"baseTimeNanoseconds": {base}, "traceEvents": [{json.dumps({**X, "ts": 4})}]}}'
    events, summary = merged(tmp_path, content)
    assert slices(events) == [(0, 2000)]
    assert "baseTimeNanoseconds is not a time" in summary.messages()[0]


@pytest.mark.parametrize("number", ["1e9999999", "-1e999999", "1e-9999999", "0.5"])
@pytest.mark.parametrize("key", ["pid", "tid", "id", "cat"])
def test_a_number_beyond_all_bounds_is_an_id(key: str, number: str, tmp_path: Path) -> None:
    event = json.dumps({**X, "ts": RUN_US, key: "HERE"}).replace('"HERE"', number)
    events, summary = merged(tmp_path, f"[{event}]")
    assert slices(events) == [(0, 2000)] and summary.messages() == []


@pytest.mark.parametrize("nothing", ["{}", "null", "{},null", ""])
def test_what_holds_nothing_ends_a_complete_trace(nothing: str, tmp_path: Path) -> None:
    """As XLA ends its lists."""
    event = json.dumps({**X, "ts": RUN_US})
    events, summary = merged(tmp_path, f'{{"traceEvents": [{event},{nothing}], "metadata": {{}}}}')
    assert slices(events) == [(0, 2000)] and summary.messages() == [] and summary.is_complete


@pytest.mark.parametrize("form", ["[{}]", '{{"traceEvents": [{}]}}'])
@pytest.mark.parametrize("more", ["x", '[{"ph": "X"}]', "}", "\0"])
def test_what_follows_the_trace_is_said(more: str, form: str, tmp_path: Path) -> None:
    event = json.dumps({**X, "ts": RUN_US})
    events, summary = merged(tmp_path, form.format(event) + "\n" + more)
    assert slices(events) == [(0, 2000)] and not summary.is_complete
    assert "data after the trace is left out: " in summary.messages()[0]


DEEP = "[" * 100_000 + "]" * 100_000
ODD = {
    "deep": (f'{{"ph": "X", "ts": 5, "args": {DEEP}}}', "nested too deep"),
    "deep objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deep"),
    "a long number": (f'{{"ph": "X", "ts": {"1" * 5000}}}', "has a number too long"),
    "a long number in its arguments": (
        f'{{"ph": "i", "ts": 7, "args": {{"a": {"1" * 5000}}}}}', "has a number too long",
    ),
    "a large number": ('{"ph": "X", "ts": 1e999999999, "dur": 1}', "ts or dur is not a number"),
    "no time": ('{"ph": "X", "ts": NaN, "dur": 1}', "ts or dur is not a number"),
    "no JSON": ('{"ph": "X", "ts": -nan}', "is not JSON"),
    "an open string": ('{"ph": "X", "name": "abc, "ts": 5}', "is not JSON"),
    "a list": ("[1]", "is not an event"),
    "a text": ('"x"', "is not an event"),
    "no phase": ('{"ph": ["X"], "ts": 5}', "not drawn (ph)"),
    "two phases": ('{"ph": "XB", "ts": 5}', "not drawn (ph)"),
    "a counter of nothing": ('{"ph": "C", "ts": 7, "args": 5}', "a counter without values"),
}  # fmt: skip


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("kind", ODD)
def test_one_odd_event_is_left_out_and_said(kind: str, is_last: bool, tmp_path: Path) -> None:
    text, reason = ODD[kind]
    first, second = (json.dumps({**X, "ts": number}) for number in (5, 9))
    found = [first, second, text] if is_last else [first, text, second]
    listed = ",\n".join(found)
    content = f'{{"traceEvents": [{listed}], "baseTimeNanoseconds": {RUN_S * 10**9}}}'
    events, summary = merged(tmp_path, content)
    if kind == "an open string" and is_last:
        assert "is cut off" in summary.messages()[0]
        return
    assert slices(events) == [(5000, 2000), (9000, 2000)]
    (message,) = summary.messages()
    assert f"1 events left out: {reason}; the first: " in message
    assert len(message) < 500


def test_events_as_deep_as_can_just_be_read_end_nothing(tmp_path: Path) -> None:
    event = json.dumps({**X, "ts": RUN_US})
    deep = [
        event[:-1] + f', "args": {{"a": {"[" * depth + "]" * depth}}}}}'
        for depth in range(800, 1010)
    ]
    events, summary = merged(tmp_path, f"[{','.join([*deep, event])}]")
    left_out = 0  # where this Python reads as deep
    for message in summary.messages():
        left_out = int(message.split(": ", 1)[1].split(" events left out")[0])
    assert left_out < len(deep) and len(slices(events)) == len(deep) - left_out + 1


@pytest.mark.parametrize("value", [DEEP, "1" * 5000, f'{{"a": {DEEP}, "b": "]"}}'])
def test_an_odd_value_beside_the_events_is_left_out_and_said(value: str, tmp_path: Path) -> None:
    event = json.dumps({**X, "ts": 3})
    content = (
        f'{{"sources": {value}, "traceEvents": [{event}], "baseTimeNanoseconds": {RUN_S * 10**9}}}'
    )
    events, summary = merged(tmp_path, content)
    assert slices(events) == [(3000, 2000)]
    assert len(summary.messages()) == 1


@pytest.mark.parametrize("rank", [str(2**70), "1" * 300, "-1", "3.5", "true", '"3"', "[]"])
def test_a_rank_that_is_none_is_not_used(rank: str, tmp_path: Path) -> None:
    event = json.dumps({**X, "ts": RUN_US})
    content = f'{{"distributedInfo": {{"rank": {rank}}}, "traceEvents": [{event}]}}'
    events, _ = merged(tmp_path, content)
    assert slices(events) == [(0, 2000)]


def test_arguments_keep_what_they_are(tmp_path: Path) -> None:
    args = {"i": 2**53, "f": 1.5, "t": "a,b=c%", "l": [1.25, "ü", None], "n": None, "b": False}
    events, _ = merged(tmp_path, json.dumps([{**X, "ts": RUN_US, "cat": "c", "args": args}]))
    (found,) = (event["args"] for event in events if event["name"] == "x")
    nested = {"l": '[1.25, "ü", null]', "n": "null"}
    assert found == {**args, **nested, "cat": "c"}


def test_what_an_open_slice_says_is_kept(tmp_path: Path) -> None:
    begin = {"ph": "B", "name": "x", "pid": 1, "tid": 1, "ts": RUN_US, "args": {"a": 1}}
    events, _ = merged(tmp_path, json.dumps([begin, {**X, "ts": RUN_US + 1, "name": "y"}]))
    (found,) = (event for event in events if event["name"] == "x")
    assert found["ph"] == "B" and found["args"]["a"] == 1


def at(phase: str, time_us: int, **more: Any) -> dict[str, Any]:
    return {"ph": phase, "name": "x", "pid": 1, "tid": 1, "ts": RUN_US + time_us, **more}


def begins_and_ends(count: int, phases: str, **more: Any) -> list[dict[str, Any]]:
    """What begins first ends first."""
    return [
        at(phase, number + after, name=f"n{number}", **more)
        for phase, after in zip(phases, (0, count), strict=True)
        for number in range(count)
    ]


SHAPES: dict[str, Callable[[int], Any]] = {
    "slices that overlap": lambda n: [at("X", i, dur=n) for i in range(n)],
    "slices in each other": lambda n: [at("X", i, dur=2 * (n - i)) for i in range(n)],
    "slices on a deep stack": lambda n: (
        [at("X", i, dur=2 * (n - i)) for i in range(n // 2)]
        + [at("X", n // 2, dur=0) for _ in range(n // 2)]
    ),
    "begins and ends": lambda n: begins_and_ends(n, "BE"),
    "asynchronous": lambda n: begins_and_ends(n, "be", id=1, cat="c"),
    "threads": lambda n: [at("X", i, dur=1, tid=i) for i in range(n)],
    "processes": lambda n: [at("X", i, dur=1, pid=i) for i in range(n)],
    "counters": lambda n: [at("C", i, name=f"c{i}", args={"v": i}) for i in range(n)],
    "flows": lambda n: [at(kind, i, id=i) for kind in "sf" for i in range(n)],
    "ends of one flow": lambda n: [at("s", 0, id=1), *(at("f", i, id=1) for i in range(n))],
    "bad events": lambda n: '{"ph": "X", "ts": -nan},' * n,
    "open strings": lambda n: '{"ph": "X", "name": "a, "ts": 1},\n' * n,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_takes_the_square_of_its_events(shape: str, tmp_path: Path) -> None:
    """Some tenths of a second of the processor; with squares, minutes."""
    made = SHAPES[shape](12_000)
    content = f"[{made}]" if isinstance(made, str) else json.dumps(made)
    began_s = time.process_time()
    merged(tmp_path, content)
    assert time.process_time() - began_s < 8
