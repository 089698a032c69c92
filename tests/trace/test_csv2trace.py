"""csv2trace as a user meets it: formats, inputs, filters, merging, exit statuses."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from my_utils import _core
from my_utils.csv2trace import ConversionError, ConversionWarning, csv_to_trace

from ..clients.perfetto import TraceProcessor, why_missing
from ..conftest import ROOT, RunPython
from ..support.run_csv import HEADER

pytestmark = pytest.mark.c_code


def stages(count: int, first_node: int = 1, first_step: int = 0) -> str:
    lines = []
    for i in range(count):
        at = 1_750_000_000_000_000_000 + (first_step + i) * 1000
        text = f'"node_id={first_node + i},parent_id=0,tid=7"'
        for kind, when in (("START", at), ("END", at + 500)):
            time = f"{when // 10**9}.{when % 10**9:09d}"
            lines.append(f"{time},,node-0,{first_step + i},stage{i % 3},{kind},,{text}\n")
    return "".join(lines)


def slices(path: Path) -> list[dict[str, Any]]:
    raw = path.read_bytes()
    events = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)["traceEvents"]
    return [event for event in events if event["ph"] == "X" and "args" in event]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    for rank in range(3):
        (folder / f"profile_rank_{rank}.csv").write_text(HEADER + stages(4))
    (folder / "profile_rank_1.part0001.csv").write_text(HEADER + stages(4, 100, -50))
    (folder / "profile_rank_1.w1.csv").write_text(HEADER + stages(2))
    return folder


def test_a_directory_with_rotated_parts_and_workers(log_dir: Path, tmp_path: Path) -> None:
    summary = csv_to_trace(log_dir, tmp_path / "out.json")
    assert (summary.slices, summary.notes, summary.errors) == (18, [], [])
    found = slices(tmp_path / "out.json")
    counts = {pid: sum(e["pid"] == pid for e in found) for pid in {e["pid"] for e in found}}
    assert counts == {1: 4, 1001: 8, 1101: 2, 2001: 4}


def test_filters(log_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    csv_to_trace(log_dir, out, ranks={0, 2}, steps=(1, 3), stages="e[12]$")
    assert sorted((e["pid"], e["args"]["step"], e["name"]) for e in slices(out)) == [
        (1, 1, "stage1"),
        (1, 2, "stage2"),
        (2001, 1, "stage1"),
        (2001, 2, "stage2"),
    ]


def test_sorted_json_is_in_the_order_of_time(log_dir: Path, tmp_path: Path) -> None:
    plain, ordered = tmp_path / "plain.json", tmp_path / "sorted.json.gz"
    csv_to_trace(log_dir, plain)
    csv_to_trace(log_dir, ordered, sort=True)
    times = [event["ts"] for event in slices(ordered)]
    assert times == sorted(times) and len(times) == 18
    assert sorted(map(str, slices(plain))) == sorted(map(str, slices(ordered)))


def rows_that_share_node_ids(seed: int) -> list[tuple[str, int, int]]:
    """(type, node id, thread) of rows a microsecond apart: few ids, open on several threads."""
    draw = random.Random(seed)
    return [
        (draw.choice(["START", "START", "END"]), draw.randint(1, 4), draw.randint(1, 3))
        for _ in range(80)
    ]


def lengths_by_the_rule(rows: list[tuple[str, int, int]]) -> dict[str, float]:
    """What docs/traces/profile-csv.md says: an END takes the latest START of its node id on its
    thread, else on any; a START takes an END that waits for it in the same way."""
    opened: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int, int]] = []
    lengths: dict[str, float] = {}
    for at, (kind, node, thread) in enumerate(rows):
        others = waiting if kind == "START" else opened
        same = [one for one in others if one[1] == node]
        pair = max(same, key=lambda one: (one[2] == thread, one[0]), default=None)
        if pair is None:
            (opened if kind == "START" else waiting).append((at, node, thread))
            continue
        others.remove(pair)
        if kind == "END":
            lengths[f"s{pair[0]}"] = at - pair[0]
        else:
            lengths[f"s{at}"] = 0.0  # its END came first
    return lengths


@pytest.mark.filterwarnings("ignore::my_utils.csv2trace.ConversionWarning")
@pytest.mark.parametrize("seed", range(20))
def test_rows_that_share_node_ids_lose_no_pair(seed: int, tmp_path: Path) -> None:
    rows = rows_that_share_node_ids(seed)
    source, out = tmp_path / "profile_rank_0.csv", tmp_path / "out.json"
    source.write_text(
        HEADER
        + "".join(
            f'1750000000.{at * 1000:09d},,h,0,s{at},{kind},,"node_id={node},tid={thread}"\n'
            for at, (kind, node, thread) in enumerate(rows)
        )
    )
    summary = csv_to_trace(source, out)
    wanted = lengths_by_the_rule(rows)
    assert {one["name"]: one["dur"] for one in slices(out)} == pytest.approx(wanted)
    assert summary.slices == len(wanted) and summary.rows == len(rows)


def test_standard_input_and_output(log_dir: Path, run_python: RunPython) -> None:
    with (log_dir / "profile_rank_0.csv").open() as source:
        result = run_python(
            "-m", "my_utils.csv2trace", "-", "-o", "-", "--rank", "5", "--quiet", stdin=source
        )
    assert (result.returncode, result.stderr) == (0, "")
    events = json.loads(result.stdout)["traceEvents"]
    assert {e["pid"] for e in events} == {5001}


def test_exit_statuses_and_messages(log_dir: Path, tmp_path: Path, run_python: RunPython) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = run_python("-m", "my_utils.csv2trace", *arguments)
        return result.returncode, result.stderr

    out = tmp_path / "out.json"
    missing = (2, "my_utils trace: error: /no/such: no such file or directory\n")
    assert run("/no/such", "-o", str(out)) == missing
    assert run(str(log_dir), "/no/such", "-o", str(out)) == missing
    assert not out.exists()
    status, text = run(str(log_dir), "-o", str(out), "--steps", "5:2")
    assert status == 2 and "an empty range of steps: '5:2'" in text
    status, text = run(str(log_dir), "-o", "x.pftrace", "--layout", "seed")
    assert status == 2 and "layout 'seed' is JSON" in text
    status, text = run(str(log_dir), "-o", str(out), "--ranks", "9")
    assert status == 1 and "no rank of the input is among the ranks asked for" in text
    status, text = run(str(log_dir), "-o", "/dev/full")
    assert (status, text) == (
        1,
        "my_utils trace: error: /dev/full: write: No space left on device\n",
    )


def test_records_that_the_process_lost_are_missing(tmp_path: Path, run_python: RunPython) -> None:
    csv, out = tmp_path / "profile_rank_0.csv", tmp_path / "out.json"
    row = '1750000000.5,,h,1,my_utils.dropped,INSTANT,,"count={},reason=full"\n'
    csv.write_text(HEADER + row.format(11_000) + row.format(808))
    result = run_python("-m", "my_utils.csv2trace", str(csv), "-o", str(out), "--quiet")
    assert result.returncode == 3
    assert "lost a record" in result.stderr and "11808" in result.stderr.replace(",", "")


def test_a_filter_may_change_the_parts(tmp_path: Path) -> None:
    """It is called while their bytes are read."""
    rows = "".join(f"175000000{i % 10}.5,,h,1,n{i},INSTANT,,\n" for i in range(20_000)).encode()
    copy = bytes(bytearray(rows))
    parts: list[_core._TracePart] = [
        ("a", -1, -1, copy, False),
        ("b", -1, -1, rows, False),
    ]
    del copy  # only the list holds it

    def name_filter(name: str) -> bool:
        parts.clear()
        return True

    out = tmp_path / "out.json"
    with open(out, "wb") as file:
        job = _core.TraceJob(file.fileno(), "json")
        result = job.convert(parts, 0, name_filter=name_filter)
        job.finish()
    assert result["instants"] == 40_000
    assert parts == []


def test_a_failure_leaves_the_old_trace(tmp_path: Path) -> None:
    source, out = tmp_path / "profile_rank_0.csv", tmp_path / "out.json"
    source.write_text("no,header\n")
    out.write_text("old")
    with pytest.raises(ConversionError, match="the header has no column 'timestamp_unix'"):
        csv_to_trace(source, out)
    assert out.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["out.json", "profile_rank_0.csv"]


def test_a_torch_trace_is_merged_on_the_same_axis(tmp_path: Path) -> None:
    offset = '"tid=7,offset_ns=1000000"'
    source = tmp_path / "profile_rank_2.csv"
    source.write_text(
        HEADER
        + f"1750000000.000000000,,node-0,0,my_utils.time_offset,INSTANT,,{offset}\n"
        + stages(2)
    )
    torch = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "gloo", "rank": 2, "world_size": 4},
        "traceEvents": [
            {"ph": "M", "pid": 9, "tid": 8, "name": "thread_name", "args": {"name": "python"}},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 8,
             "ts": 4000000.123, "dur": 12.345, "args": {"Input Dims": [[2, 3]], "seq": 4}},
        ],
        "baseTimeNanoseconds": 1749999996000000000,
    }  # fmt: skip
    trace = tmp_path / "torch.json"
    trace.write_text(json.dumps(torch))
    out = tmp_path / "out.json"
    summary = csv_to_trace(source, out, merge=[trace])
    assert summary.messages() == []
    base = json.loads(out.read_text())["baseTimeNanoseconds"]
    merged = [e for e in slices(out) if e["name"] == "aten::mm"]
    assert len(merged) == 1
    assert round(merged[0]["ts"] * 1000) + base == 1_749_999_996_000_000_000 + 4_000_000_123 + 10**6
    assert merged[0]["dur"] == 12.345
    assert merged[0]["args"]["cat"] == "cpu_op" and merged[0]["args"]["seq"] == 4
    assert merged[0]["pid"] // 1000 == 2


VICTIM = """
import os, signal, sys
from my_utils.logger import GlobalLogger
from my_utils.utils import MyTimer
GlobalLogger().setup(log_dir=sys.argv[1], rank=0, console=False)
timer = MyTimer()
for step in range(3):
    timer.set_step(step)
    timer.start("iter"); timer.stop("iter")
timer.start("hung")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_of_a_killed_run_are_recovered(tmp_path: Path, run_python: RunPython) -> None:
    pytest.importorskip("my_utils.utils", exc_type=ImportError)
    logs, out = tmp_path / "logs", tmp_path / "out.json"
    assert run_python("-c", VICTIM, str(logs)).returncode == -9
    result = run_python("-m", "my_utils.csv2trace", str(logs), "-o", str(out), "--recover")
    assert "'hung' has no END; shown as open" in result.stderr
    assert result.returncode == 0
    assert [e["name"] for e in slices(out)] == ["iter"] * 3


@pytest.mark.parametrize("format", ["json", "perfetto"])
def test_a_clock_that_is_set_back_leaves_the_lengths(format: str, tmp_path: Path) -> None:
    """The clock is set back by a second within `inner`, which lies in `outer`."""
    source = tmp_path / "profile_rank_0.csv"
    source.write_text(
        HEADER
        + '1750000010.0,,h,0,outer,START,,"node_id=1,tid=7"\n'
        + '1750000010.1,,h,0,inner,START,,"node_id=2,tid=7"\n'
        + '1750000009.4,,h,0,inner,END,300.0,"node_id=2,tid=7"\n'
        + '1750000009.6,,h,0,outer,END,600.0,"node_id=1,tid=7"\n'
        + '1750000009.7,,h,0,next,START,,"node_id=3,tid=7"\n'
        + '1750000009.8,,h,0,next,END,100.0,"node_id=3,tid=7"\n'
    )
    out = tmp_path / f"out.{'json' if format == 'json' else 'pftrace'}"
    with pytest.warns(ConversionWarning, match="drawn from its START, by its duration_ms"):
        csv_to_trace(source, out)
    if (reason := why_missing()) is not None:
        pytest.skip(reason)
    with TraceProcessor(out) as processor:
        found = processor.query("select name, dur from slice where name not like 'step %'")
        assert {row["name"]: row["dur"] for row in found} == {
            "outer": 600_000_000,
            "inner": 300_000_000,
            "next": 100_000_000,
        }
        assert processor.complaints() == {}


def test_journals_of_the_dead_are_named(tmp_path: Path, run_python: RunPython) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out.json"
    assert run_python("-c", VICTIM, str(logs)).returncode == -9
    (journal,) = logs.glob("*.journal")
    rows = _core.recover_rows(journal)[2].count(b"\n")
    for given in (logs, logs / "profile_rank_0.csv"):
        result = run_python("-m", "my_utils.csv2trace", str(given), "-o", str(out), "--quiet")
        assert result.stderr.splitlines()[0] == (
            f"my_utils trace: warning: journals of dead processes hold {rows} rows that are in no "
            "CSV (rank 0): --recover reads them"
        )
        assert result.returncode == 3


def test_a_process_that_lives_has_no_journal_to_recover(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom my_utils import _core\n_core.open_output(log_dir=sys.argv[1])\n"
        "timer = _core.Timer()\ntimer.start('iter')\ntimer.stop('iter')\ntimer.step()\n"
        "with timer.time_stage('later'): pass\nprint(flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], cwd=ROOT, stdin=PIPE, stdout=PIPE
    ) as living:
        assert living.stdout is not None
        living.stdout.readline()
        assert csv_to_trace(tmp_path, tmp_path / "out.json").errors == []
        living.communicate()


def test_a_pointer_leads_to_the_journal(tmp_path: Path, run_python: RunPython) -> None:
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    elsewhere.mkdir()
    program = VICTIM.replace("console=False", "console=False, journal_dir=sys.argv[2]")
    assert run_python("-c", program, str(logs), str(elsewhere)).returncode == -9
    out = tmp_path / "out.json"
    with pytest.warns(ConversionWarning, match="'hung' has no END"):
        summary = csv_to_trace(logs, out, recover=True)
    assert (summary.errors, summary.slices) == ([], 3)
    with pytest.warns(ConversionWarning, match="hold .* rows that are in no CSV"):
        csv_to_trace(logs, out)
    (pointer,) = logs.glob("*.journal-ref")
    target = Path(pointer.read_text().splitlines()[0])
    target.unlink()
    with pytest.warns(ConversionWarning) as caught:
        csv_to_trace(logs, out, recover=True)
    assert str(caught[0].message) == f"{pointer}: names {target}, which is not on this host"


def test_nothing_heavy_is_imported(run_python: RunPython) -> None:
    names = "('torch', 'numpy', 'rich')"
    code = f"import sys, my_utils.csv2trace; print([m for m in {names} if m in sys.modules])"
    assert run_python("-c", code).stdout == "[]\n"


def test_a_conversion_brings_no_module_that_it_can_do_without(
    log_dir: Path, tmp_path: Path, run_python: RunPython
) -> None:
    program = """
import sys
from my_utils.csv2trace import main
assert main(sys.argv[1:]) == 0
print(sorted({"tempfile", "random", "bz2", "lzma", "json"} & set(sys.modules)))
"""
    out = str(tmp_path / "out.json")
    done = run_python("-c", program, str(log_dir), "-o", out, "--quiet")
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    assert len(slices(tmp_path / "out.json")) == 18
