"""What Perfetto's trace processor sees in our traces, against the rows that they were made from."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st

from my_utils.csv2trace import csv_to_trace

from ..support.run_csv import HEADER, START_NS
from .perfetto import TraceProcessor, why_missing

pytestmark = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))

HOUR_NS = 3_600_000_000_000
JSON_BASE_NS = START_NS - 1_000_000_000
PROTOBUF_BASE_NS = (START_NS // HOUR_NS - 1) * HOUR_NS
FORMATS = (".json", ".pftrace", ".json.gz", ".pftrace.gz")

SLICES = """
    select s.ts as ts, s.dur as dur, s.name as name, s.depth as depth, p.name as parent,
           t.name as thread, t.tid as tid, pr.pid as pid, pr.name as process,
           extract_arg(s.arg_set_id, '{prefix}.step') as step,
           extract_arg(s.arg_set_id, '{prefix}.node_id') as node
    from slice s
    left join slice p on s.parent_id = p.id
    join thread_track tt on s.track_id = tt.id
    join thread t using (utid) join process pr using (upid)
    where t.name != 'steps'
"""


def row(
    at_ns: int,
    name: str,
    kind: str,
    metadata: str = "",
    *,
    step: int = 0,
    host: str = "node-0",
    duration_ns: int | None = None,
) -> str:
    at = f"{at_ns // 10**9}.{at_ns % 10**9:09d}"
    length = "" if duration_ns is None else f"{duration_ns / 10**6:.6f}"
    return f'{at},,{host},{step},{name},{kind},{length},"{metadata}"\n'


def stage(begin: int, end: int, name: str, node: int, parent: int, tid: int = 7) -> list[str]:
    text = f"node_id={node},parent_id={parent},tid={tid}"
    return [
        row(START_NS + begin, name, "START", text),
        row(START_NS + end, name, "END", text, duration_ns=end - begin),
    ]


def write(path: Path, rows: list[str]) -> Path:
    path.write_text(HEADER + "".join(rows), encoding="utf-8")
    return path


def zero_of(trace: Path) -> int:
    """Where START_NS stands on the axis of a trace that begins there."""
    return START_NS - (JSON_BASE_NS if ".json" in trace.name else PROTOBUF_BASE_NS)


def load(trace: Path) -> list[dict[str, Any]]:
    """The slices; `ts` counts from START_NS."""
    prefix = "args" if ".json" in trace.name else "debug"
    with TraceProcessor(trace) as processor:
        assert processor.complaints() == {}
        found = processor.query(SLICES.format(prefix=prefix))
    return [{**s, "ts": s["ts"] - zero_of(trace)} for s in found]


def key(found: dict[str, Any]) -> tuple[Any, ...]:
    names = ("ts", "dur", "name", "depth", "parent", "thread", "pid", "process", "step", "node")
    return tuple(found[name] for name in names)


@pytest.fixture
def nested(tmp_path: Path) -> Path:
    rows = [
        *stage(0, 1001, "iter", 1, 0)[:1],
        *stage(0, 333, "forward", 2, 1),  # begins in the same nanosecond as its parent
        *stage(333, 1001, "backward", 4, 1)[:1],
        *stage(400, 400, "nothing", 3, 4),
        *stage(333, 1001, "backward", 4, 1)[1:],  # ends in the same nanosecond
        *stage(0, 1001, "iter", 1, 0)[1:],
        *stage(2000, 2001, "iter", 5, 0),
    ]
    return write(tmp_path / "profile_rank_3.csv", rows)


@pytest.mark.parametrize("suffix", FORMATS)
def test_durations_nesting_and_args_are_exact(nested: Path, tmp_path: Path, suffix: str) -> None:
    trace = tmp_path / f"out{suffix}"
    summary = csv_to_trace(nested, trace)
    assert (summary.rows, summary.slices, summary.notes) == (10, 5, [])
    found = sorted(
        (s["ts"], s["dur"], s["name"], s["parent"], s["node"], s["pid"]) for s in load(trace)
    )
    assert found == [
        (0, 333, "forward", "iter", 2, 3001),
        (0, 1001, "iter", None, 1, 3001),
        (333, 668, "backward", "iter", 4, 3001),
        (400, 0, "nothing", "backward", 3, 3001),
        (2000, 1, "iter", None, 5, 3001),
    ]


@pytest.mark.slow
def test_both_formats_agree_on_every_kind_of_event(tmp_path: Path) -> None:
    text = "tid=7,tag=train"
    rows = [
        row(START_NS, "my_utils.process", "INSTANT", f"{text},pid=7,host=h,rank=0,attempt=0"),
        row(START_NS, "my_utils.thread", "INSTANT", f"{text},thread_name=MainThread"),
        *stage(10, 100, "plain", 1, 0, tid=9),
        row(START_NS + 20, "mark", "INSTANT", f"{text},n=5,f=1.5e-3,ok=true,s=a%2Cb%3D%22%0A"),
        row(START_NS + 30, "loss", "COUNTER", f"{text},value=3.25"),
        row(START_NS + 30, "mem", "COUNTER", f"{text},used=-7,free=20"),
        row(START_NS + 40, "req", "ASYNC_START", f"{text},id=5,who=x"),
        row(START_NS + 45, "req", "ASYNC_START", f"{text},id=6"),
        row(START_NS + 50, "req", "ASYNC_END", f"{text},id=5"),
        row(START_NS + 55, "req", "ASYNC_END", f"{text},id=6"),
        row(START_NS + 60, "send", "FLOW_START", f"{text},id=9"),
        row(START_NS + 70, "send", "FLOW_END", "tid=9,id=9"),
        row(START_NS + 80, "gpu", "START", f"node_id=2,parent_id=0,{text}"),
        row(START_NS + 90, "gpu", "END", f"node_id=2,parent_id=0,{text},cuda_ms=0.000123,"
            f"cuda_ts={START_NS // 10**9}.000000085,cuda_err_ms=0.000001,stream=4"),
    ]  # fmt: skip
    source = write(tmp_path / "profile_rank_0.csv", rows)
    seen: list[dict[str, list[Any]]] = []
    for suffix in (".json", ".pftrace"):
        trace = tmp_path / f"out{suffix}"
        assert csv_to_trace(source, trace).notes == []
        prefix = "args" if suffix == ".json" else "debug"
        with TraceProcessor(trace) as tp:
            assert tp.complaints() == {}
            counters = tp.query(
                "select c.ts, c.value, t.name from counter c"
                " join counter_track t on c.track_id=t.id"
            )
            flows = tp.query(
                "select a.ts as a, b.ts as b from flow f"
                " join slice a on f.slice_out=a.id join slice b on f.slice_in=b.id"
            )
            asyncs = tp.query("select ts, dur, depth, name from slice where name='req'")
            args = tp.query(
                "select replace(key, '"
                + prefix
                + ".', '') as key, display_value as value from args"
                " join slice s using (arg_set_id) where s.name in ('mark', 'gpu') order by 1, 2"
            )
        zero = zero_of(trace)
        seen.append({
            "counters": sorted(
                (c["ts"] - zero, c["value"], c["name"].removesuffix(" value")) for c in counters
            ),
            "flows": [(f["a"] - zero, f["b"] - zero) for f in flows],
            "async": sorted((a["ts"] - zero, a["dur"], a["depth"]) for a in asyncs),
            "args": [(a["key"], a["value"]) for a in args if a["key"] != "parent_id"],
            "slices": sorted(map(repr, map(key, load(trace)))),
        })  # fmt: skip
    assert seen[0] == seen[1]
    assert seen[0]["counters"] == [
        (30, -7.0, "mem.used"), (30, 3.25, "loss"), (30, 20.0, "mem.free"),
    ]  # fmt: skip
    assert seen[0]["flows"] == [(60, 70)]
    assert seen[0]["async"] == [(40, 10, 0), (45, 10, 0)]
    assert ("s", 'a,b="\n') in seen[0]["args"] and ("ok", "true") in seen[0]["args"]
    gpu = [s for s in seen[0]["slices"] if "CUDA stream 4" in s]
    assert len(gpu) == 1 and gpu[0].startswith("(85,") and "123" in gpu[0]


@pytest.mark.parametrize("suffix", (".json", ".pftrace"))
def test_overlapping_stages_keep_their_lengths(tmp_path: Path, suffix: str) -> None:
    a, b, c = (stage(0, 10, "a", 1, 0), stage(5, 15, "b", 2, 0), stage(6, 7, "c", 3, 0))
    rows = [a[0], b[0], *c, a[1], b[1]]
    trace = tmp_path / f"out{suffix}"
    csv_to_trace(write(tmp_path / "x.csv", rows), trace)
    found = {s["name"]: (s["dur"], s["thread"]) for s in load(trace)}
    assert found == {
        "a": (10, "thread 7"),
        "b": (10, "thread 7 (2)"),
        "c": (1, "thread 7"),
    }


@pytest.mark.parametrize("suffix", (".json", ".pftrace"))
def test_ranks_with_equal_thread_ids_stay_apart(tmp_path: Path, suffix: str) -> None:
    for rank in range(3):
        rows = [*stage(rank, 100 + rank, "iter", 1, 0), *stage(200, 300, "iter", 2, 0)]
        write(tmp_path / f"profile_rank_{rank}.csv", rows)
    trace = tmp_path / f"out{suffix}"
    csv_to_trace(tmp_path, trace)
    found = Counter((s["pid"], s["process"], s["tid"]) for s in load(trace))
    assert found == {(r * 1000 + 1, f"node-0 rank {r}", 7): 2 for r in range(3)}


@pytest.mark.parametrize("suffix", (".json", ".pftrace"))
def test_attempts_are_processes_and_open_stages_stay_open(tmp_path: Path, suffix: str) -> None:
    second = 1 << 40
    rows = [
        row(START_NS, "my_utils.process", "INSTANT", "pid=10,host=h,rank=0,attempt=0,label=L"),
        *stage(0, 10, "iter", 1, 0),
        stage(20, 30, "hung", 2, 0)[0],
        row(START_NS + 50, "my_utils.process", "INSTANT", "pid=11,host=h,rank=0,attempt=1,label=L"),
        *stage(60, 70, "iter", second + 1, 0),
        stage(20, 30, "late", 3, 0)[0],  # of the first attempt, written by the second
    ]
    trace = tmp_path / f"out{suffix}"
    with pytest.warns(UserWarning, match="'hung' has no END; shown as open"):
        summary = csv_to_trace(write(tmp_path / "profile_rank_0.csv", rows), trace)
    assert (summary.slices, summary.open) == (2, 2)
    found = sorted((s["name"], s["dur"], s["process"], s["pid"]) for s in load(trace))
    assert found == [
        ("hung", -1, "h rank 0", 1),
        ("iter", 10, "h rank 0", 1),
        ("iter", 10, "h rank 0 attempt 1", 2),
        ("late", -1, "h rank 0", 1),
    ]


def test_the_layout_of_the_seed_opens_with_right_durations(tmp_path: Path) -> None:
    rows = [
        *stage(0, 9_000_000, "iter", 1, 0)[:1],
        *stage(1000, 2_001_000, "forward", 2, 1),
        *stage(0, 9_000_000, "iter", 1, 0)[1:],
    ]
    trace = tmp_path / "seed.json"
    csv_to_trace(write(tmp_path / "profile_rank_0.csv", rows), trace, layout="seed")
    with TraceProcessor(trace) as processor:
        assert processor.complaints() == {}
        found = processor.query("select name, dur, depth from slice order by ts, depth")
    assert [(s["name"], s["dur"], s["depth"]) for s in found] == [
        ("iter", 9_000_000, 0),
        ("forward", 2_000_000, 1),
    ]


def test_the_protobuf_classes_read_every_packet(nested: Path, tmp_path: Path) -> None:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

    trace = tmp_path / "out.pftrace"
    csv_to_trace(nested, trace)
    parsed = pb.Trace()
    parsed.ParseFromString(trace.read_bytes())
    events = Counter(p.track_event.type for p in parsed.packet if p.HasField("track_event"))
    steps = 1
    assert events == {
        pb.TrackEvent.TYPE_SLICE_BEGIN: 5 + steps,
        pb.TrackEvent.TYPE_SLICE_END: 5 + steps,
    }
    first: dict[int, int] = {}
    for packet in parsed.packet:
        if packet.sequence_flags:
            first.setdefault(packet.trusted_packet_sequence_id, packet.sequence_flags)
    assert set(first.values()) == {pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED}


# --- random streams against a plain model ---


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[list[str]], list[tuple[int, int, str, int, int]]]:
    """Rows of some threads, each in order, and the slices that they stand for."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    threads: list[list[str]] = []
    slices: list[tuple[int, int, str, int, int]] = []
    node = 0
    for tid in range(1, draw(st.integers(1, 3)) + 1):
        rows: list[str] = []
        stack: list[tuple[int, str, int]] = []
        at = 0
        for _ in range(draw(st.integers(1, 25))):
            # A chain of stages that begin in one nanosecond is only told apart when all end.
            at += rng.choice((1, 999, 10**6) if stack and stack[-1][0] == at else (0, 0, 1, 999))
            if stack and rng.random() < 0.5:
                begin, name, mine = stack.pop()
                text = f"node_id={mine},parent_id={stack[-1][2] if stack else 0},tid={tid}"
                rows.append(row(START_NS + at, name, "END", text, duration_ns=at - begin))
                slices.append((begin, at - begin, name, tid, mine))
            else:
                node += 1
                name = rng.choice(("iter", "fwd", "bwd", "ünï \N{ROCKET}"))
                text = f"node_id={node},parent_id={stack[-1][2] if stack else 0},tid={tid}"
                rows.append(row(START_NS + at, name, "START", text))
                stack.append((at, name, node))
        slices.extend((begin, -1, name, tid, mine) for begin, name, mine in stack)
        threads.append(rows)
    return threads, slices


def interleave(threads: list[list[str]], rng: random.Random) -> list[str]:
    queues = [list(rows) for rows in threads]
    mixed = []
    while any(queues):
        queue = rng.choice([q for q in queues if q])
        mixed.append(queue.pop(0))
    return mixed


@pytest.mark.slow
@settings(
    max_examples=6, deadline=None, derandomize=True, phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(streams(), st.integers(0, 2**32))
@pytest.mark.filterwarnings("ignore::my_utils.csv2trace.ConversionWarning")
def test_random_streams_match_a_plain_model(
    tmp_path: Path,
    stream: tuple[list[list[str]], list[tuple[int, int, str, int, int]]],
    seed: int,
) -> None:
    threads, expected = stream
    rows = interleave(threads, random.Random(seed))
    source = write(tmp_path / "profile_rank_0.csv", rows)
    for suffix in (".json", ".pftrace"):
        trace = tmp_path / f"out{suffix}"
        csv_to_trace(source, trace)
        found = [(s["ts"], s["dur"], s["name"], s["tid"], s["node"]) for s in load(trace)]
        assert sorted(found) == sorted(expected), suffix
