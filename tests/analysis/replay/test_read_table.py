"""Tables of operations as people have them: CSV and Parquet, whole and damaged."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.replay.inputs import holds_operations, verdict_of
from my_utils.analysis.replay.judge import judge_operations
from my_utils.analysis.replay.operations import COLUMNS, TOGETHER, number_rows
from my_utils.analysis.replay.read_table import read_table
from my_utils.analysis.replay.result import ReplayVerdict
from my_utils.analysis.replay.table_files import BadTable
from my_utils.analysis.why import read_operations

from ...support.plants import case_of
from ...support.programs import Program
from ...support.replayed import operations_of

pytestmark = pytest.mark.no_torch

HEADER = ["step", "rank", "lane", "name", "begin_ns", "end_ns", "group", "peer", "stage", "host"]


def rows_of(program: Program) -> list[list[str]]:
    """One row a call and step; what a column has nothing for is empty or -1."""
    program.columns()
    rows = []
    for call in program.calls:
        assert call.began is not None and call.ended is not None
        group = "-".join(map(str, call.group)) if call.kind == "meet" else ""
        peer = {"send": call.group[-1:], "receive": call.group[:1]}.get(call.kind, (-1,))[0]
        for step in range(program.steps):
            if call.ran is not None and not call.ran[step]:
                continue
            times = (round(one[step] * 1e6) + step * 10**9 for one in (call.began, call.ended))
            row = [step, call.rank, call.stream, call.name, *times, group, peer,
                   program.stage[call.rank], f"node{program.host[call.rank]}"]  # fmt: skip
            rows.append([str(one) for one in row])
    return rows


def write(path: Path, header: list[str], rows: list[list[str]]) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


@pytest.mark.parametrize(
    ("layout", "plant"), [("tp_dp", "slow rank"), ("3d", "slow stage"), ("hsdp", "slow link")]
)
def test_a_csv_gives_the_verdict_of_its_operations(tmp_path: Path, layout: str, plant: str) -> None:
    case = case_of(layout, plant, 0.2, 8, 20, seed=1)
    rows = rows_of(case.program)
    np.random.default_rng(0).shuffle(rows)
    path = write(tmp_path / "run.csv", HEADER, rows)
    assert holds_operations([path])
    verdict = verdict_of([path])
    assert isinstance(verdict, ReplayVerdict)
    assert verdict.operations == len(rows) - len(rows) // 20  # the first step is warm-up
    wanted = judge_operations(operations_of(case.program))
    first, second = verdict.findings[0], wanted.findings[0]
    assert (first.kind, first.ranks) == (second.kind, second.ranks)
    assert case.truth is not None and first.ranks == tuple(sorted(case.truth.ranks))
    assert first.share == pytest.approx(second.share, abs=0.01)


def test_without_pyarrow_parquet_is_not_judged_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    path = tmp_path / "run.parquet"
    path.write_bytes(b"PAR1")
    verdict = verdict_of([str(path)])
    assert verdict.status == "not judged"
    assert "pip install pyarrow" in str(verdict.reason)


def test_parquet_reads_as_the_csv_does(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    arrow_csv = pytest.importorskip("pyarrow.csv")
    parquet = pytest.importorskip("pyarrow.parquet")

    path = write(tmp_path / "run.csv", HEADER, rows_of(case_of("pp", None, 0, 4, 4, 1).program))
    table = arrow_csv.read_csv(path)
    assert isinstance(table, arrow.Table)
    parquet.write_table(table, tmp_path / "run.parquet")
    first, second = (read_operations(str(tmp_path / f"run.{one}")) for one in ("csv", "parquet"))
    for column in ("rank", "lane", "step", "begin_ns", "end_ns", "side"):
        assert (getattr(first, column) == getattr(second, column)).all(), column
    assert [first.names[one] for one in first.name] == [second.names[one] for one in second.name]
    assert ((first.meeting >= 0) == (second.meeting >= 0)).all()
    assert (first.stages, first.hosts) == (second.stages, second.hosts)


@pytest.mark.parametrize(
    ("rows", "length", "reason"),
    [(20_000_000, 1, "20000000 rows, far more than its bytes can hold"), (900_000, 50_000, "")],
)
def test_a_small_parquet_file_is_no_large_table(
    tmp_path: Path, rows: int, length: int, reason: str
) -> None:
    """Equal values take next to no bytes, and as text gigabytes."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    zero = arrow.array(np.zeros(rows, np.int64))
    indices, words = arrow.array(np.zeros(rows, np.int32)), arrow.array(["x" * length])
    table = dict.fromkeys(("rank", "step", "begin_ns", "end_ns"), zero)
    table["name"] = arrow.DictionaryArray.from_arrays(indices, words)
    path = tmp_path / "run.parquet"
    parquet.write_table(arrow.table(table), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 1 << 20
    verdict = verdict_of([str(path)])
    assert verdict.status == "not judged" and str(path) in str(verdict.reason)
    assert str(verdict.reason).endswith(reason)


def test_columns_may_have_other_names_and_units(tmp_path: Path) -> None:
    rows = rows_of(case_of("3d", None, 0, 8, 4, 1).program)
    first = read_table(write(tmp_path / "a.csv", HEADER, rows))
    header = [
        "step",
        "rank",
        "stream",
        "op",
        "start_us",
        "dur_us",
        "meeting",
        "peer",
        "role",
        "node",
    ]
    for row in rows:
        row[5] = str((int(row[5]) - int(row[4])) / 1e3)
        row[4] = str(int(row[4]) / 1e3)
    second = read_table(write(tmp_path / "b.csv", header, rows))
    for column in COLUMNS:
        assert (getattr(first, column) == getattr(second, column)).all(), column
    assert (first.stages, first.hosts, first.names) == (second.stages, second.hosts, second.names)


def test_sends_and_receives_of_a_group_meet_without_a_peer(tmp_path: Path) -> None:
    rows = rows_of(case_of("pp", None, 0, 4, 4, 1).program)
    for row in rows:
        if row[7] != "-1":
            pair = (row[1], row[7]) if row[3].endswith("send") else (row[7], row[1])
            row[6] = f"{row[3].split('-')[0]} {pair[0]} to {pair[1]}"
    operations = read_table(write(tmp_path / "run.csv", HEADER[:7], [row[:7] for row in rows]))
    calls = operations.side != TOGETHER
    assert calls.any() and (np.bincount(operations.meeting[calls]) == 2).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rank,step,name\n0,1,a\n", "no column begin_ns, end_ns"),
        ("rank,step,name,begin_ns,end_ns\n", "no rows"),
        ("rank,step,name,begin_ns,end_ns\n0,1,a,x,2\n", "column 'begin_ns' must hold numbers"),
        ("rank,step,name,begin_ns,end_ns\n0,1,a,,2\n", "'begin_ns' has rows without a number"),
        ("", "no table of operations"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "run.csv"
    path.write_text(text)
    with pytest.raises(BadTable, match=reason):
        read_table(str(path))


def test_a_profile_of_a_run_is_no_table_of_operations(tmp_path: Path) -> None:
    path = tmp_path / "profile_rank_0.csv"
    path.write_text("timestamp_unix,readable_time,machine_id,step,event_name,event_type\n")
    assert not holds_operations([str(path)])
    assert not holds_operations([str(tmp_path)])
    with pytest.raises(ValueError, match="paths must be one table"):
        read_operations([str(path)])


@pytest.mark.parametrize("damaged", [False, True])
def test_a_large_csv_reads_as_a_small_one(
    tmp_path: Path, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a child, which is told from the process by nothing else."""
    rows = rows_of(case_of("3d", None, 0, 8, 4, 1).program)
    rows[7][4] = "soon" if damaged else rows[7][4]
    path = write(tmp_path / "run.csv", HEADER, rows)
    small = verdict_of([path])
    monkeypatch.setattr("my_utils.analysis.replay.table_files.CHILD_ABOVE", 0)
    assert verdict_of([path]).lines() == small.lines()
    assert (small.status == "not judged") == damaged


@pytest.mark.parametrize("name", ["profile_rank_0.csv", "rank_0.12.34.journal"])
def test_a_run_of_ours_is_no_folder_of_traces(tmp_path: Path, name: str) -> None:
    """Also one that was killed before a row left its journal: run.json stands beside that."""
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / name).write_text("")
    assert not holds_operations([str(tmp_path)])


@pytest.mark.parametrize(
    "damage",
    ["short row", "long row", "no number", "quoted line", "bytes", "number as a name", "exact"],
)
def test_both_readers_of_csv_say_the_same(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's is faster; what it cannot read as it is, the other one reads or refuses."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    rows = rows_of(case_of("3d", None, 0, 8, 4, 1).program)
    if damage == "short row":
        rows[7] = rows[7][:3]
    elif damage == "long row":
        rows[7].append("more")
    elif damage == "no number":
        rows[7][4] = "soon"
    elif damage == "quoted line":
        rows[7][9] = "no\nde"
    elif damage == "number as a name":
        rows[7][3] = "7"
    elif damage == "exact":
        rows[7][4] = str(2**60 + 1)
        rows[7][5] = str(2**60 + 3)
    path = write(tmp_path / "run.csv", HEADER, rows)
    if damage == "bytes":
        Path(path).write_bytes(Path(path).read_bytes().replace(b"node0", b"n\xffde0"))

    def read() -> object:
        try:
            found = read_table(path)
        except BadTable as error:
            return str(error)
        columns = {column: getattr(found, column).tolist() for column in COLUMNS}
        columns["name"] = [found.names[one] for one in columns["name"]]
        columns["meeting"] = number_rows(found.meeting)[0].tolist()
        return columns, found.stages, found.hosts, found.notes

    with_arrow = read()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert read() == with_arrow
    assert not isinstance(with_arrow, str) or damage == "no number"


def test_a_lane_for_each_operation_is_refused(tmp_path: Path) -> None:
    """Each is compared with each: 38,000 of them took two arrays of 5 GiB."""
    rows = [
        [str(step), str(rank), f"{step}-{rank}-{at}", "add", str(begin), str(begin + 900)]
        for step in range(3)
        for rank in range(2)
        for at in range(100)
        for begin in [step * 10**6 + at * 1000]
    ]
    verdict = verdict_of([write(tmp_path / "run.csv", HEADER[:6], rows)])
    assert verdict.status == "not judged"
    assert str(verdict.reason).startswith("600 operations are in 600 lanes: ")


def test_a_table_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """It begins with a mark of the encoding, as pandas writes with utf-8-sig."""
    rows = rows_of(case_of("ddp", "slow rank", 0.3, 4, 12, seed=1).program)
    path = write(tmp_path / "run.csv", HEADER, rows)
    wanted = verdict_of([path])
    Path(path).write_bytes(b"\xef\xbb\xbf" + Path(path).read_bytes())
    verdict = verdict_of([path])
    assert verdict.status == "found"
    assert verdict.as_data() == wanted.as_data()


@pytest.mark.parametrize(("begin", "end"), [("0", None), (None, "0"), (None, str(1 << 61))])
@pytest.mark.parametrize("kind", ["plain", "megatron"])
def test_a_row_whose_time_was_never_set_is_left_out_and_told(
    tmp_path: Path, kind: str, begin: str | None, end: str | None
) -> None:
    rows = rows_of(case_of("ddp", "slow rank", 0.3, 4, 12, seed=1).program)
    for row in rows:
        row[4:6] = (str(int(time) + 1_700_000_000 * 10**9) for time in row[4:6])
    header = HEADER
    rows[7][4:6] = begin or rows[7][4], end or rows[7][5]
    if kind == "megatron":
        header = ["step", "rank", "optype", "start_ts", "duration", "stage", "dp_rank"]
        seconds = [(int(row[4]) / 1e9, (int(row[5]) - int(row[4])) / 1e9) for row in rows]
        rows = [
            [*row[:2], row[3], str(first), str(length), "0", row[1]]
            for row, (first, length) in zip(rows, seconds, strict=True)
        ]
    operations = read_operations(write(tmp_path / "run.csv", header, rows))
    assert len(operations) == len(rows) - 1
    said = "rows that end before they begin, or are a day away from their step, left out: 1"
    assert operations.notes[0] == said
    assert int(operations.end_ns.max() - operations.begin_ns.min()) < 10**12


def test_a_stage_may_be_any_word(tmp_path: Path) -> None:
    rows = rows_of(case_of("pp", "slow stage", 0.3, 4, 12, seed=1).program)
    path = write(tmp_path / "run.csv", HEADER, [[*row[:8], "²", row[9]] for row in rows])
    assert set(read_operations(path).stages) == {0, 1, 2, 3}
