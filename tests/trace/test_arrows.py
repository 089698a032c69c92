"""Arrows between ranks, as a user sees them: who comes last inside backward, and who waits."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from my_utils.csv2trace import csv_to_trace

from ..clients.perfetto import TraceProcessor, why_missing
from ..support.run_csv import RankCsv

pytestmark = [
    pytest.mark.no_torch,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]

MS = 1_000_000
LAST = "rank 2 comes last to bucket 1 (layers 3-5)"
ARROWS = """
    select a.name as name, a.ts as at, b.ts as ends_at, pa.name as begins_in, pb.name as ends_in,
           oa.name as around, ob.name as ends_around
    from flow f
    join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id
    join thread_track ta on a.track_id = ta.id join thread_track tb on b.track_id = tb.id
    join thread ha on ta.utid = ha.utid join thread hb on tb.utid = hb.utid
    join process pa on ha.upid = pa.upid join process pb on hb.upid = pb.upid
    left join slice oa on a.parent_id = oa.id left join slice ob on b.parent_id = ob.id
    order by pa.name, pb.name
"""


class Arrow(NamedTuple):
    """begins_in, ends_in: the processes; around, ends_around: the stages."""

    name: str
    at: int
    ends_at: int
    begins_in: str
    ends_in: str
    around: str
    ends_around: str


def arrows_of(logs: Path, suffix: str, **options: object) -> list[Arrow]:
    trace = logs.with_name(f"out{suffix}")
    csv_to_trace(logs, trace, **options)  # type: ignore[arg-type]
    with TraceProcessor(trace) as processor:
        assert processor.complaints() == {}
        return [Arrow(**found) for found in processor.query(ARROWS)]


def rank_of(number: int, times_us: str, **changes: object) -> RankCsv:
    """A rank whose backward lasts from 10 to 60 ms, in step 4. times_us: of its buckets."""
    csv = RankCsv(number, 4, str(changes.get("host", "node0")))
    csv.process()
    if error := changes.get("error_ns"):
        csv.note("clock_sync", {"tid": 1, "error_ns": error})
    csv.note("sync", {"tid": 1, "stage": "backward", "kind": "ddp",
                      "members": changes.get("members", "0-3")})  # fmt: skip
    for bucket, modules in enumerate(("layers 6-8", "layers 3-5", "layers 0-2")):
        pairs = {"tid": 1, "bucket": bucket, "bytes": 8, "parameters": 2, "modules": modules}
        csv.note("bucket", pairs)
    csv.stage("backward", 4, 10.0, 60.0)
    add_ready(csv, times_us, 4, 61.0)
    return csv


def add_ready(csv: RankCsv, times_us: str, step: int, at_ms: float) -> None:
    """ago_us: of a backward that began 51 ms before."""
    pairs = f"tid=1,step={step},us={times_us},ago_us=51000"
    csv.row(at_ms, step, "my_utils.ready", "INSTANT", "", pairs)


def logs_of(folder: Path, ranks: list[RankCsv]) -> Path:
    for one in ranks:
        one.write(folder)
    return folder


def four_ranks(**changes: object) -> list[RankCsv]:
    """Rank 2 comes 20 ms late to bucket 1, and as much to the next one."""
    times = ["5000;10000;15000", "5100;11000;14000", "5000;30000;30100", "5000;10000;"]
    return [rank_of(number, text, **changes) for number, text in enumerate(times)]


@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_the_last_rank_has_an_arrow_to_each_that_waits(tmp_path: Path, suffix: str) -> None:
    found = arrows_of(logs_of(tmp_path / "logs", four_ranks()), suffix)
    assert [one.ends_in for one in found] == [f"node0 rank {rank} attempt 1" for rank in (0, 1, 3)]
    for one in found:
        assert one.name == LAST
        assert one.begins_in == "node0 rank 2 attempt 1"
        assert one.around == one.ends_around == "backward"
        assert 0 < one.ends_at - one.at < MS


def test_an_arrow_begins_when_the_last_rank_is_ready(tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "logs", four_ranks())
    csv_to_trace(logs, tmp_path / "out.json")
    with TraceProcessor(tmp_path / "out.json") as processor:
        (backward,) = processor.query(
            "select s.ts as ts from slice s join thread_track t on s.track_id = t.id join thread"
            " using (utid) join process p using (upid) where s.name = 'backward' and p.name ="
            " 'node0 rank 2 attempt 1'"
        )
        found = [Arrow(**one) for one in processor.query(ARROWS)]
    assert sorted(one.at - backward["ts"] for one in found) == [30 * MS, 30 * MS + 1, 30 * MS + 2]


def test_ranks_that_are_not_drawn_count(tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "logs", four_ranks())
    assert arrows_of(logs, ".json", ranks={0, 1}) == []
    assert len(arrows_of(logs, ".json", ranks={0, 2})) == 1


def test_only_steps_and_stages_that_are_drawn(tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "logs", four_ranks())
    assert arrows_of(logs, ".json", steps=(5, 9)) == []
    assert len(arrows_of(logs, ".json", steps=(4, 5))) == 3


def test_the_numbers_of_rows_are_those_of_the_files(tmp_path: Path) -> None:
    ranks = four_ranks()
    summary = csv_to_trace(logs_of(tmp_path / "logs", ranks), tmp_path / "out.json")
    assert summary.rows == sum(len(one.rows) for one in ranks)
    assert summary.flows == 6


@pytest.mark.parametrize(
    ("changes", "count"),
    [({}, 0), ({"error_ns": 1_000_000}, 3), ({"error_ns": 12_000_000}, 0)],
)
def test_clocks_of_several_hosts(tmp_path: Path, changes: dict[str, object], count: int) -> None:
    """Gaps below twice the bound of their error are nobody's."""
    ranks = [
        rank_of(number, text, host=f"node{number}", **changes)
        for number, text in enumerate(["1;2;3", "1;2;3", "1;20000;20001", "1;2;3"])
    ]
    assert len(arrows_of(logs_of(tmp_path / "logs", ranks), ".json")) == count


def test_ranks_of_other_groups_have_no_arrow(tmp_path: Path) -> None:
    ranks = four_ranks()[:2] + four_ranks(members="2-3")[2:]
    ranks[:2] = [rank_of(one.rank, "1;2;3", members="0-1") for one in ranks[:2]]
    (found,) = arrows_of(logs_of(tmp_path / "logs", ranks), ".json")
    assert (found.begins_in, found.ends_in) == ("node0 rank 2 attempt 1", "node0 rank 3 attempt 1")


def test_each_attempt_has_arrows_of_its_own(tmp_path: Path) -> None:
    ranks = four_ranks()
    for one in ranks:
        one.process(2, 100.0)
        one.stage("backward", 4, 110.0, 160.0)
        add_ready(one, "1;2;30000" if one.rank == 0 else "1;2;3", 4, 161.0)
    found = arrows_of(logs_of(tmp_path / "logs", ranks), ".pftrace")
    assert [(one.begins_in, one.around) for one in found] == [
        *[("node0 rank 0 attempt 2", "backward")] * 3,
        *[("node0 rank 2 attempt 1", "backward")] * 3,
    ]


@pytest.mark.parametrize(
    "times", ["", "1;2", "x;y;z", "1;2;" + "9" * 40, "-1;-2;-3"], ids=["none", "few", "words",
    "long", "negative"],
)  # fmt: skip
def test_rows_that_make_no_sense_do_no_harm(tmp_path: Path, times: str) -> None:
    ranks = [rank_of(0, times), rank_of(1, "1;2;30000")]
    summary = csv_to_trace(logs_of(tmp_path / "logs", ranks), tmp_path / "out.json")
    assert summary.is_complete and summary.slices == 2


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    ranks = four_ranks()
    for one in ranks:
        one.note("bucket", {"bucket": 1, "bytes": 8, "modules": 'a "b", c\nd'}, 1.0)
    found = arrows_of(logs_of(tmp_path / "logs", ranks), ".json")
    assert {one.name for one in found} == {'rank 2 comes last to bucket 1 (a "b", c\\nd)'}
