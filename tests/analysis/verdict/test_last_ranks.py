"""Who comes last inside backward: planted in the times at which buckets were ready."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from my_utils.analysis.verdict.last_in_backward import last_in_steps
from my_utils.analysis.verdict.last_in_backward_text import last_lines
from my_utils.analysis.verdict.load_ready import ready_of_rank, ready_of_run
from my_utils.analysis.verdict.ready_times import Bucket, ReadyTimes
from my_utils.analysis.verdict.run_data import GpuTimes
from my_utils.analysis.why import Finding, RunData, Verdict, judge
from my_utils.core.run_files.run_metadata import Note

from ...support.array_runs import MEANS_MS, ArrayRun

pytestmark = pytest.mark.no_torch

BUCKETS = [Bucket(25 << 20, f"layers {3 * at}-{3 * at + 2}") for at in (5, 4, 3, 2, 1)]
EVERY = 4
SLOW = 3


class Planted:
    """A run of ranks in whose backward buckets are ready one after another. Times in ms."""

    def __init__(self, ranks: int = 4, seed: int = 0, **changes: Any) -> None:
        self.run = ArrayRun(ranks=ranks, seed=seed, **changes)
        self.columns = np.arange(0, self.run.steps, EVERY)
        shape = (ranks, len(self.columns), len(BUCKETS))
        noise = np.exp(0.05 * self.run.random.standard_normal(shape))
        self.parts_ns = MEANS_MS["backward"] / len(BUCKETS) * 1e6 * noise

    def slow(self, ms: float, rank: int = SLOW, bucket: int = 2, share: float = 1.0) -> Planted:
        """share: of the steps."""
        where = self.run.random.random(self.run.steps) < share
        self.run.more("backward", ms, rank=rank, steps=np.flatnonzero(where))
        self.parts_ns[rank, where[self.columns], bucket] += ms * 1e6
        return self

    def held_up(self, ms: float, share: float) -> Planted:
        """In this share of the steps any rank waits so long for a core, at any bucket."""
        random = self.run.random
        ranks, steps, buckets = self.parts_ns.shape
        where = np.flatnonzero(random.random(steps) < share)
        rows = random.integers(ranks, size=len(where))
        for row, place in zip(rows, where, strict=True):
            self.run.more("backward", ms, rank=row, steps=self.columns[[place]])
        self.parts_ns[rows, where, random.integers(buckets, size=len(where))] += ms * 1e6
        return self

    def data(self, device: str = "cpu", missing: int = 0, **changes: Any) -> RunData:
        run = self.run.data(**changes)
        at = list(run.stages).index("backward")
        ready = np.cumsum(self.parts_ns, axis=2)
        ready[1, :missing] = np.nan
        begins = run.begins[:, self.columns, at]
        run.ready = ReadyTimes(self.columns, begins, ready, BUCKETS)
        run.device = device
        return run


def found(verdict: Verdict) -> Finding:
    (one,) = [one for one in verdict.findings if "last_rank" in one.detail]
    return one


def is_named(verdict: Verdict) -> bool:
    return any("last_rank" in one.detail for one in verdict.findings)


def text_of(verdict: Verdict) -> str:
    return "\n".join(verdict.lines(200))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bucket", [0, 2, 4])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_rank_and_bucket_are_named(ranks: int, bucket: int, seed: int) -> None:
    verdict = judge(Planted(ranks, seed).slow(30.0, ranks - 1, bucket).data())
    one = found(verdict)
    assert verdict.findings[0] is one and one.kind == "straggler"
    assert one.ranks == (ranks - 1,) and one.stage == "backward"
    assert one.detail["bucket"] == bucket
    assert one.detail["last_share"] > 0.95
    assert one.detail["last_wait_ns"] == pytest.approx(30e6, rel=0.2)
    assert one.saves_ns_a_step == pytest.approx(30e6, rel=0.2)


def test_it_is_named_in_a_long_run() -> None:
    verdict = judge(Planted(2, steps=9000).slow(30.0, 1, share=0.75).data())
    assert found(verdict).detail["last_rank"] == 1
    assert found(verdict).detail["last_steps"] > 2200


def test_the_text_says_whom_how_often_and_what_comes_before() -> None:
    text = text_of(judge(Planted(8).slow(30.0, 5).data()))
    assert "WAITING FOR rank 5 in backward" in text
    assert "in backward, rank 5 comes last to bucket 2 (layers 9-11, 25.00 MiB) in 100 % of" in text
    assert "7 ranks wait " in text and " ms for it; a hook in layers 12-14, just before" in text
    assert "docs/runs/inside-backward.md" in text
    assert "enqueueing" not in text


def test_on_a_gpu_the_text_says_what_the_times_are() -> None:
    detail = found(judge(Planted().slow(30.0).data())).detail
    assert "times of enqueueing" in "\n".join(last_lines({**detail, "enqueued": True}))


def test_what_is_lost_inside_is_counted_once() -> None:
    verdict = judge(Planted().slow(30.0).data())
    (rest,) = [one for one in verdict.findings if one.kind == "not judged inside"]
    assert rest.cost_ns_a_step == pytest.approx(60e6, rel=0.1)
    assert sum(one.share for one in verdict.findings) < 1


def test_less_than_a_tenth_is_no_finding_but_worth_a_word() -> None:
    verdict = judge(Planted().slow(6.0).data())
    assert verdict.status == "ok"
    assert found(verdict).kind == "not judged inside"
    assert "not judged inside; rank 3 comes last to bucket 2 (layers 9-11, 25.00 MiB)" in text_of(
        verdict
    )


def test_a_rank_that_is_slow_in_all_buckets_is_named_without_one() -> None:
    planted = Planted()
    for bucket in range(len(BUCKETS)):
        planted.slow(6.0, bucket=bucket)
    verdict = judge(planted.data())
    assert found(verdict).ranks == (SLOW,)
    assert "bucket" not in found(verdict).detail
    assert "rank 3 comes last, spread over backward" in text_of(verdict)


def test_a_rank_that_enters_late_is_not_slow_inside() -> None:
    planted = Planted()
    planted.run.more("forward", 40.0, rank=SLOW)
    verdict = judge(planted.data())
    assert not is_named(verdict)
    assert verdict.findings[0].stage == "forward"


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_named_in_a_healthy_run(seed: int) -> None:
    assert not is_named(judge(Planted(2 + seed % 7, seed, noise=0.1).data()))


def test_a_rank_that_is_slow_in_a_third_of_the_steps_is_not_named() -> None:
    assert not is_named(judge(Planted().slow(30.0, share=0.33).data()))


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_is_named_though_others_wait_for_cores_and_come_later(seed: int) -> None:
    verdict = judge(Planted(4, seed).slow(30.0, bucket=4).held_up(40.0, share=0.9).data())
    one = found(verdict)
    assert one.detail["last_rank"] == SLOW and one.detail["bucket"] == 4
    assert one.detail["last_share"] < 0.6 < 0.7 < one.detail["last_slow_share"]
    assert one.detail["last_wait_ns"] == pytest.approx(30e6, rel=0.2)
    slow = 100 * one.detail["last_slow_share"]
    assert f"takes longest there in {slow:.0f} %; others" in "\n".join(last_lines(one.detail))


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_named_where_ranks_wait_for_cores(seed: int) -> None:
    assert not is_named(judge(Planted(2 + seed % 7, seed).held_up(60.0, share=0.9).data()))


def test_a_rank_is_not_named_for_waits_that_are_not_its_usual_time() -> None:
    """It takes a little longest always, and a lot in some steps."""
    planted = Planted().slow(1.0)
    assert not is_named(judge(planted.slow(60.0, share=0.3).data()))


@pytest.mark.parametrize(
    ("error_ms", "named"), [(None, False), (1.0, True), (14.0, True), (40.0, False)]
)
def test_several_hosts_need_clocks_that_are_lined_up(error_ms: float | None, named: bool) -> None:
    """Gaps below twice the bound of one clock's error are nobody's."""
    hosts = ["a", "a", "b", "b"]
    error_ns = None if error_ms is None else error_ms * 1e6
    run = Planted(hosts=hosts).slow(30.0).data(clock_error_ns=error_ns)
    assert is_named(judge(run)) is named


def test_groups_that_never_meet_are_looked_at_apart() -> None:
    planted = Planted(4, groups=((0, 1), (2, 3))).slow(30.0, 1)
    one = found(judge(planted.data()))
    assert one.detail["last_rank"] == 1 and one.detail["waiting"] == 1


def test_steps_that_not_all_ranks_looked_at_do_not_count() -> None:
    steps = len(Planted().columns)
    one = found(judge(Planted().slow(30.0).data(missing=10)))
    assert one.detail["last_steps"] <= steps - 10
    assert not is_named(judge(Planted().slow(30.0).data(missing=steps - 4)))


def test_single_steps() -> None:
    moments = np.cumsum(np.full((3, 4, 4), 5e6), axis=2)
    moments[1, 0, 2:] += 3e6  # slow at bucket 1
    moments[2, 1] += 3e6  # came late into backward
    moments[0, 2, 3:] += 3e6  # slow at bucket 2, and another one comes later still
    moments[1, 2] += 9e6
    rows, buckets = last_in_steps(moments, 1e6)
    assert rows.tolist() == [1, -1, -1, -1]
    assert buckets.tolist() == [1, -1, -1, -1]


def on_cuda() -> RunData:
    """A device that does all that the host does, 3 ms later."""
    run = Planted().slow(30.0).data("cuda")
    error_ns = np.full(run.step_ns.shape, 1e4)
    run.gpu = GpuTimes(run.begins + 3e6, run.ends + 3e6, run.totals, error_ns)
    return run


def test_the_text_says_whose_times_these_are() -> None:
    enqueued = text_of(judge(on_cuda()))
    assert "(times of enqueueing, not of the GPU)" in enqueued
    run = on_cuda()
    assert run.ready is not None
    run.ready.gpu_error_ns = 20e3
    said = text_of(judge(run))
    assert "(by the GPUs' events, ± 0.02 ms)" in said and "enqueueing" not in said
    run.ready.gpu_error_ns = 20e6
    assert not is_named(judge(run))  # less than the bound of the error


# --- rows ---


def layout(count: int, attempt: int = 0) -> list[Note]:
    return [
        Note(attempt, "my_utils.bucket", {"bucket": str(at), "bytes": "8", "modules": f"m{at}"})
        for at in range(count)
    ]


def row(step: object, us: str, attempt: int = 0) -> Note:
    return Note(attempt, "my_utils.ready", {"step": str(step), "us": us})


def loaded(*ranks: list[Note], shifts: dict[int, int] | None = None) -> ReadyTimes | None:
    begins = [{step: 1e6 * step for step in range(20)} for _ in ranks]
    return ready_of_run(
        [ready_of_rank(notes) for notes in ranks], shifts or {0: 0}, np.arange(20), begins
    )


def test_rows_become_arrays() -> None:
    ready = loaded([*layout(2), row(3, "5;7")], [*layout(2), row(3, "6;"), row(4, "1;2")])
    assert ready is not None
    assert ready.columns.tolist() == [3]
    assert ready.begins.tolist() == [[3e6], [3e6]]
    np.testing.assert_array_equal(ready.ready, [[[5e3, 7e3]], [[6e3, np.nan]]])
    assert ready.buckets[1] == Bucket(8, "m1")


@pytest.mark.parametrize("us", ["", "5", "5;6;7", "-5;6", "1e9;x", "9" * 40 + ";1"])
def test_rows_that_make_no_sense_are_not_measured(us: str) -> None:
    ready = loaded([*layout(2), row(3, us)], [*layout(2), row(3, "1;2")])
    assert ready is not None and not np.isfinite(ready.ready[0]).all()


def test_ranks_with_other_buckets_do_not_count() -> None:
    assert loaded([*layout(2), row(3, "5;7")], [*layout(3), row(3, "1;2;3")]) is None
    assert loaded([row(3, "5;7")], [row(3, "5;7")]) is None
    assert loaded([*layout(2)[1:], row(3, "5;7")], [*layout(2)[1:], row(3, "5;7")]) is None
    assert loaded([*layout(2), row("x", "5;7")], [*layout(2), row(-3, "5;7")]) is None


def gpu_row(step: object, us: str, error_us: object = 7, attempt: int = 0) -> Note:
    pairs = {"step": str(step), "us": us, "error_us": str(error_us)}
    return Note(attempt, "my_utils.ready_gpu", pairs)


def test_the_gpus_times_count_where_they_are_known() -> None:
    first = [*layout(2), row(3, "5;7"), gpu_row(3, "10;20;90", 4)]
    second = [*layout(2), row(3, "6;8"), gpu_row(3, "11;;95", 8)]
    ready = loaded(first, second)
    assert ready is not None and ready.gpu_error_ns == 6e3
    assert ready.begins.tolist() == [[3e6 + 10e3], [3e6 + 11e3]]
    np.testing.assert_array_equal(ready.ready, [[[10e3, 80e3]], [[np.nan, 84e3]]])


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [gpu_row(3, "10;20;90")],  # of the other rank, there is none
        [gpu_row(3, "10;20"), gpu_row(9, "10;20")],
        [gpu_row(3, ";20;90")],
        [gpu_row(3, "10;20;90", "x")],
    ],
)
def test_the_hosts_times_count_otherwise(rows: list[Note]) -> None:
    ready = loaded([*layout(2), row(3, "5;7"), *rows], [*layout(2), row(3, "6;8")])
    assert ready is not None and ready.gpu_error_ns is None
    assert ready.ready.tolist() == [[[5e3, 7e3]], [[6e3, 8e3]]]


def test_steps_that_only_the_host_knows_are_left_out() -> None:
    notes = [*layout(1), *[row(step, "5") for step in range(6)]]
    gpu = [gpu_row(step, "1;9") for step in range(4)]
    ready = loaded([*notes, *gpu], [*notes, *gpu[:3]])
    assert ready is not None and ready.gpu_error_ns is not None
    assert np.isfinite(ready.ready[..., 0]).tolist() == [[True] * 3 + [False] * 3] * 2
    other = loaded([*notes, *gpu], [*notes, *gpu[:2]])
    assert other is not None and other.gpu_error_ns is None


def test_steps_go_on_through_the_attempts() -> None:
    notes = [*layout(1), row(3, "5"), *layout(1, 1), row(3, "7", 1)]
    ready = loaded(notes, notes, shifts={0: 0, 1: 10})
    assert ready is not None and ready.columns.tolist() == [3, 13]
    assert ready.ready[0, :, 0].tolist() == [5e3, 7e3]


# --- collectives, for which ranks wait before they go on ---


def collectives(ranks: int, late_ms: float, at: int = 3, seed: int = 0) -> RunData:
    """A run of FSDP2 whose last rank comes late to one of six collectives; all leave it at once."""
    run = ArrayRun(ranks=ranks, seed=seed, means_ms={**MEANS_MS, "backward": 60.0})
    run.more("backward", late_ms, rank=ranks - 1)
    data = run.data()
    columns = np.arange(0, run.steps, EVERY)
    noise = np.exp(0.05 * run.random.standard_normal((ranks, len(columns), 6)))
    own = 9e6 * noise
    own[-1, :, at] += late_ms * 1e6
    begins = data.begins[:, columns, list(data.stages).index("backward")]
    ready = np.zeros_like(own)
    now = begins.copy()
    for place in range(6):
        now = now + own[..., place]
        ready[..., place] = now - begins
        now = np.broadcast_to(now.max(0), now.shape)
    names = [Bucket(25 << 20, f"layers.{5 - place}", "reduce_scatter") for place in range(6)]
    data.ready = ReadyTimes(columns, begins, ready, names)
    return data


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_rank_and_collective_are_named(ranks: int, seed: int) -> None:
    verdict = judge(collectives(ranks, 30.0, seed=seed))
    one = found(verdict)
    assert one.ranks == (ranks - 1,) and one.stage == "backward" and one.kind == "straggler"
    assert one.detail["bucket"] == 3
    assert one.detail["last_wait_ns"] == pytest.approx(30e6, rel=0.15)
    assert "comes last to reduce_scatter 3 (layers.2, 25.00 MiB) in 100 %" in text_of(verdict)


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_named_where_all_come_alike(seed: int) -> None:
    assert not is_named(judge(collectives(2 + seed % 7, 0.0, seed=seed)))
