"""Traces of other tools, merged into that of a run and read back by Perfetto's trace processor.

Every slice that goes in is there once, with its length, on its process and thread.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from my_utils.csv2trace import ConversionWarning, csv_to_trace
from my_utils.trace.chrome_json import ChromeJson, TraceFileError

from ..conftest import ROOT
from ..support.run_csv import HEADER
from ..support.variants import gate_runs
from .foreign_traces import (
    RUN_S,
    SLICES,
    TOOLS,
    arrows_in,
    arrows_out,
    chrome_trace,
    events_of,
    lost,
    merged,
    run_csv,
    slices_in,
    slices_out,
    sum_of,
    torch_trace,
)
from .perfetto import TraceProcessor, why_missing

pytestmark = [
    pytest.mark.c_code,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
    pytest.mark.filterwarnings("ignore::my_utils.csv2trace.ConversionWarning"),
]

LONG = (torch_trace, chrome_trace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tool",
    gate_runs(
        [tool.__name__ for tool in TOOLS if tool not in LONG], TOOLS, lambda tool: tool.__name__
    ),
)
def test_every_slice_and_arrow_of_a_real_trace_is_there_once(tool: Any, tmp_path: Path) -> None:
    began_s = int(time.time())
    traces = tool(tmp_path)
    wanted, wanted_arrows = sum_of(slices_in, traces), sum_of(arrows_in, traces)
    assert wanted.total() > 30
    points = {e["name"] for trace in traces for e in events_of(trace) if e["ph"] in "iIRnsft"}
    for suffix in (".json", ".pftrace"):
        out = merged(tmp_path, *traces, suffix=suffix, began_s=began_s)
        found = slices_out(out)
        assert lost(wanted, found) == []
        others = [one for one in (found - wanted).elements() if one[0] not in points]
        assert len(others) <= (wanted - found).total()  # those of other roundings
        assert arrows_out(out) == wanted_arrows


KINETO = ROOT.parent / "shared" / "corpus" / "kineto"


@pytest.mark.skipif(not KINETO.is_dir(), reason=f"no traces of other projects in {KINETO}")
@pytest.mark.thorough
@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_every_slice_of_traces_of_other_projects_is_there_once(suffix: str, tmp_path: Path) -> None:
    """With its length to the nanosecond, but for those that end one after the slice around them."""
    traces = sorted(KINETO.rglob("*.json.gz"))
    assert len(traces) >= 18
    rounded = 0
    for trace in traces:
        events = events_of(trace)
        base_ns = json.loads(gzip.decompress(trace.read_bytes())).get("baseTimeNanoseconds", 0)
        first_us = min(event["ts"] for event in events if event["ph"] == "X")
        began_s = base_ns // 10**9 + int(first_us) // 10**6
        wanted = slices_in(trace)
        found = slices_out(merged(tmp_path, trace, suffix=suffix, began_s=began_s))
        assert lost(wanted, found) == [], trace
        rounded += (wanted - found).total()
        points = {event["name"] for event in events if event["ph"] in "insft"}
        others = Counter({one: count for one, count in found.items() if one[0] not in points})
        assert others.total() == wanted.total(), trace
    assert rounded <= 5


def random_events(draw: random.Random) -> list[dict[str, Any]]:
    """Slices of every kind that nest, overlap and touch, on few threads, in no order. No two of
    the same kind and thread have one name, so that any pairing is the right one."""
    events: list[dict[str, Any]] = []
    for number in range(120):
        place = {"pid": draw.choice([3, "Spans"]), "tid": draw.choice([1, 2, "stream 7"])}
        begin, length = draw.randrange(400), draw.choice([0, 1, 5, 40, 200])
        begin_us, end_us = begin + draw.choice([0, 0.25, 0.001]), begin + length + 0.5
        name = f"n{number}"
        kind = draw.choice("XXBb")
        if kind == "X":
            dur = round(end_us - begin_us, 3)
            events.append({"ph": "X", "name": name, "ts": begin_us, "dur": dur, **place})
        else:
            more = {"cat": "c", "id": f"0x{number % 5}"} if kind == "b" else {}
            end = "E" if kind == "B" else "e"
            events.append({"ph": kind, "name": name, "ts": begin_us, **more, **place})
            events.append({"ph": end, "name": name, "ts": end_us, **more, **place})
    draw.shuffle(events)
    return events


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
@pytest.mark.parametrize("seed", range(3))
def test_every_slice_of_generated_traces_is_there_once(
    seed: int, suffix: str, tmp_path: Path
) -> None:
    trace = tmp_path / "made.json"
    trace.write_text(json.dumps(random_events(random.Random(seed))))
    found = slices_out(merged(tmp_path, trace, suffix=suffix))
    assert found == slices_in(trace)


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_flow_ids_may_be_used_again(suffix: str, tmp_path: Path) -> None:
    """Two files use the same ids, and use them again for another pair of threads."""
    traces = []
    for number in (0, 1):
        flows = [("s", 10, 1), ("f", 20, 2), ("s", 30, 3), ("f", 40, 4)]
        events = [{"ph": phase, "id": 5, "name": "go", "cat": "c", "pid": number, "tid": tid,
                   "ts": at + 100 * number} for phase, at, tid in flows]  # fmt: skip
        traces.append(tmp_path / f"{number}.json")
        traces[-1].write_text(json.dumps(events))
    assert arrows_out(merged(tmp_path, *traces, suffix=suffix)) == {
        (f"{number} thread {a}", f"{number} thread {b}"): 1
        for number in (0, 1)
        for a, b in ((1, 2), (3, 4))
    }


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_ranks_and_steps_may_use_the_same_flow_ids(suffix: str, tmp_path: Path) -> None:
    """Each rank joins its threads 1 and 2 in each step; rank 0 also sends to rank 1."""
    for rank in (0, 1):
        rows = HEADER
        for step in range(3):
            for tid, kind, at in ((1, "FLOW_START", 100), (2, "FLOW_END", 200)):
                rows += f'{RUN_S + step}.{at + rank},,h,{step},own,{kind},,"tid={tid},id=0"\n'
            kind = "FLOW_START" if rank == 0 else "FLOW_END"
            rows += f'{RUN_S + step}.{300 + rank},,h,{step},send,{kind},,"tid=3,id=0"\n'
        (tmp_path / f"profile_rank_{rank}.csv").write_text(rows)
    csv_to_trace(tmp_path, tmp_path / f"out{suffix}")
    assert arrows_out(tmp_path / f"out{suffix}") == {
        ("h rank 0 thread 1", "h rank 0 thread 2"): 3,
        ("h rank 1 thread 1", "h rank 1 thread 2"): 3,
        ("h rank 0 thread 3", "h rank 1 thread 3"): 3,
    }


X = {"ph": "X", "name": "x", "pid": 1, "tid": 1, "dur": 2}
AT_US = RUN_S * 10**6 + 250_000
UNKNOWN = "states no time of the run's clock"
CLOCKS: dict[str, tuple[Any, int, str]] = {  # the file, where x begins after the run's begin, ns
    "baseTimeNanoseconds": (
        {"traceEvents": [{**X, "ts": 4.001}], "baseTimeNanoseconds": RUN_S * 10**9}, 4_001, "",
    ),
    "viztracer": (
        {"traceEvents": [{**X, "ts": 9}],
         "viztracer_metadata": {"baseTimeNanoseconds": RUN_S * 10**9}}, 9_000, "",
    ),
    "Unix time": ({"traceEvents": [{**X, "ts": AT_US}]}, 250_000_000, ""),
    "time since the boot": ([{**X, "ts": 4_646_358_693}], 0, UNKNOWN),
    "a number in a name is not a clock": (
        {"traceEvents": [{**X, "ts": 5, "args": {"baseTimeNanoseconds": 10**18}}]}, 0, UNKNOWN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
@pytest.mark.parametrize("case", CLOCKS)
def test_which_clock_a_trace_has(case: str, suffix: str, tmp_path: Path) -> None:
    content, wanted, warning = CLOCKS[case]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(content))
    out = tmp_path / f"out{suffix}"
    summary = csv_to_trace(run_csv(tmp_path), out, merge=[trace])
    assert [warning in text for text in summary.messages()] == [True] * bool(warning)
    with TraceProcessor(out) as processor:
        times = {row["name"]: row["ts"] for row in processor.query(SLICES)}
    assert times["x"] - times["forward"] == wanted


BAD: dict[str, tuple[str, int, str]] = {  # the text, the slices in the trace, the message
    "a time that is not a number": (
        json.dumps([{**X, "ts": 1}, {**X, "ts": "soon"}, {**X, "ts": 3}]), 2,
        "1 events left out: ts or dur is not a number; the first: ",
    ),
    "an event that is not JSON": (
        '{"traceEvents":[' + json.dumps({**X, "ts": 1})
        + ',\n{"ph": "X", "ts": -nan, "args": {}},\n' + json.dumps({**X, "ts": 9}) + "]}", 2,
        "1 events left out: is not JSON; the first: ",
    ),
    "a length below zero": (
        json.dumps([{**X, "ts": 1}, {**X, "ts": 5, "dur": -1}]), 1, "dur is negative",
    ),
    "cut off": (
        json.dumps({"traceEvents": [{**X, "ts": 1}, {**X, "ts": 9}]})[:-9], 1, "is cut off",
    ),
    "other text": ("\nthe trace", 0, "is not Chrome's JSON: it begins with 't'"),
    "no trace": ('{"a": 1}', 0, "holds no traceEvents"),
    "an end alone": (
        json.dumps([{**X, "ph": "E", "ts": 1}, {**X, "ts": 2}]), 1, "an end without a begin",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_loses_nothing_else_and_is_named(case: str, tmp_path: Path) -> None:
    text, count, message = BAD[case]
    trace = tmp_path / "trace.json"
    trace.write_text(text)
    out = tmp_path / "out.json"
    with pytest.warns(ConversionWarning) as caught:
        csv_to_trace(run_csv(tmp_path), out, merge=[trace])
    messages = [str(warning.message) for warning in caught]
    assert any(one.startswith(f"{trace}: ") and message in one for one in messages), messages
    events = json.loads(out.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" and event["name"] == "x" for event in events) == count


@pytest.mark.parametrize("seed", range(8))
def test_a_packed_trace_that_is_damaged_is_named(seed: int, tmp_path: Path) -> None:
    """Whichever bytes are others; the run itself is there."""
    some = random.Random(seed)
    events = [{**X, "ts": at, "args": {"at": some.random()}} for at in range(500)]
    packed = bytearray(gzip.compress(json.dumps(events).encode()))
    for _ in range(40):
        packed[some.randrange(20, len(packed))] ^= some.randrange(1, 256)
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(packed)
    out = tmp_path / "out.json"
    summary = csv_to_trace(run_csv(tmp_path), out, merge=[trace])
    assert any(message.startswith(f"{trace}: ") for message in summary.messages())
    events = json.loads(out.read_text())["traceEvents"]
    assert any(event["name"] == "forward" for event in events)


@pytest.mark.parametrize("made", [".pftrace", ".pftrace.gz"])
@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_a_protobuf_trace_is_not_merged_and_that_is_said(
    suffix: str, made: str, tmp_path: Path
) -> None:
    """Under whatever name it comes; the run itself is there."""
    csv = run_csv(tmp_path)
    csv_to_trace(csv, tmp_path / f"first{made}")
    trace = (tmp_path / f"first{made}").rename(tmp_path / "other.trace")
    out = tmp_path / f"out{suffix}"
    summary = csv_to_trace(csv, out, merge=[trace])
    (message,) = summary.messages()
    assert message.startswith(f"{trace}: is Perfetto's protobuf, which cannot be merged: merge ")
    with TraceProcessor(out) as processor:
        assert [row["name"] for row in processor.query(SLICES)].count("forward") == 1


@pytest.mark.parametrize("content", [b"[]", b"no trace"])
def test_a_packed_trace_is_closed_at_once(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(content))
    source = ChromeJson(path)
    with contextlib.suppress(TraceFileError):
        list(source.events())
    assert str(path) not in map(os.path.realpath, Path("/proc/self/fd").iterdir())


def test_a_trace_is_no_profile_csv(tmp_path: Path) -> None:
    from my_utils.csv2trace import ConversionError

    out = tmp_path / "out.pftrace"
    csv_to_trace(run_csv(tmp_path), out)
    with pytest.raises(ConversionError, match=r"out\.pftrace: is a trace, not a profile CSV"):
        csv_to_trace(out, tmp_path / "again.json")
