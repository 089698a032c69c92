"""The report over all ranks, on runs whose truth is known."""

from __future__ import annotations

import gzip
import html
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas", reason="pandas is not installed")

import pandas as pd

from my_utils.analysis.replay.inputs import answer_of, verdict_of
from my_utils.analysis.report import Report, ReportError, analyze
from my_utils.analysis.report.judged import Source
from my_utils.analysis.report.overlap import measure_overlap
from my_utils.analysis.report.page import StepTrace, page_text
from my_utils.analysis.report.run_page import make_page
from my_utils.analysis.timeline.text import timeline_lines
from my_utils.cli.report import main
from tools.perfetto_ui import Page, find_browser

from ...clients.perfetto import TraceProcessor, why_missing
from ...conftest import ROOT, RunPython
from ...support.planted_runs import SYNC, Run
from ...support.run_csv import HEADER, START_NS
from ...support.schemas import loads_checked

pytestmark = [pytest.mark.long_file, pytest.mark.no_torch]

SLEEPS = [20, 33, 47, 90, 101]


def planted(**options: Any) -> Run:
    """Rank 2 sleeps in one stage of some steps; rank 5 is 3 % slower always."""
    run = Run(**options).slower(1.03, "forward", rank=5)
    run.took_ns[2, SLEEPS, run.stages.index("backward")] += 40_000_000
    return run


def named(report: Report) -> list[tuple[int, str, str]]:
    return [(one.rank, one.stage, one.kind) for one in report.stragglers]


BOTH = [(2, "iter/backward", "intermittent"), (5, "iter/forward", "persistent")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    run = planted(ranks=8, ranks_a_host=4)
    return run, run.write(tmp_path_factory.mktemp("planted") / "logs")


@pytest.fixture(scope="module")
def report(run: tuple[Run, Path]) -> Report:
    return analyze(run[1])


# --- stragglers ---


def test_both_stragglers_are_named(report: Report) -> None:
    assert named(report) == BOTH
    sleeps, slow = report.stragglers
    assert sleeps.steps == SLEEPS
    assert (sleeps.host, slow.host) == ("node0", "node1")
    assert 2.5 < slow.slower_percent < 3.5
    assert 120 < sleeps.slower_percent < 150
    assert slow.score > 3 * slow.peer_score
    assert slow.since is None


def test_reports_can_be_compared(run: tuple[Run, Path], report: Report) -> None:
    again = analyze(run[1])
    assert again == report
    again.heat.excess_ms[0, 0] += 1
    assert again != report
    again = analyze(run[1])
    again.stages.loc[0, "count"] += 1
    assert again != report
    assert report != "report"


def test_what_they_cost(run: tuple[Run, Path], report: Report) -> None:
    entries = run[0].entries_ns
    waits = (entries.max(0) - entries)[:, SLEEPS].sum()
    assert report.stragglers[0].cost_s == pytest.approx(waits * 1e-9, abs=1e-4)
    second = np.sort(entries, 0)[-2]
    late = (entries.max(0) - second)[SLEEPS].sum()
    assert report.stragglers[0].saved_s == pytest.approx(late * 1e-9, rel=0.01)


@pytest.mark.parametrize("options", [
    {"clock_ns": 3e6, "steps": 60},
    {"synchronises": False},
    {"noise": 0.02, "seed": 3},
    {"ranks": 64, "steps": 110},
])  # fmt: skip
def test_they_are_named_in_other_runs(options: dict[str, Any], tmp_path: Path) -> None:
    run = planted(**{**options, "steps": max(options.get("steps", 120), 105)})
    assert sorted(named(analyze(run.write(tmp_path / "logs")))) == sorted(BOTH)


@pytest.mark.parametrize("seed", range(8))
def test_a_run_without_any_names_none(seed: int, tmp_path: Path) -> None:
    """Also where single stages take three times as long now and then, on any rank, and where the
    ranks differ a little from each other."""
    run = Run(ranks=(8, 32)[seed % 2], seed=seed, synchronises=seed % 3 != 0, steps=100)
    hiccups = run.random.random(run.took_ns.shape) < 0.004 * (seed % 3)
    run.took_ns[hiccups] *= 3
    if seed % 4 == 1:
        own = 1 + 0.02 * run.random.standard_normal((run.ranks, 1, len(run.stages)))
        run.took_ns = (run.took_ns * own).astype(np.int64)
    found = analyze(run.write(tmp_path / "logs"))
    assert named(found) == []
    assert found.run["synchronising"] == ([f"iter/{SYNC}"] if run.synchronises else [])


def test_small_hiccups_of_others_hide_no_large_ones(tmp_path: Path) -> None:
    run = Run(steps=60)
    run.took_ns[2, [10, 20, 33, 51], 2] += 60_000_000
    for rank in (0, 3, 6, 7):
        run.took_ns[rank, 40 + rank, 2] += 5_000_000
    assert named(analyze(run.write(tmp_path / "logs"))) == [(2, "iter/backward", "intermittent")]


def test_since_when_it_is_slow(tmp_path: Path) -> None:
    run = Run(steps=150).slower(1.3, "data", rank=3, steps=slice(60, None))
    (one,) = analyze(run.write(tmp_path / "logs")).stragglers
    assert (one.rank, one.stage, one.kind, one.since) == (3, "iter/data", "persistent", 60)
    assert min(one.steps) >= 60


def test_stages_of_a_pipeline_are_compared_among_themselves(tmp_path: Path) -> None:
    run = Run(label=lambda rank: f"pp={rank // 4},dp={rank % 4}")
    run.took_ns[4:] *= 2
    found = analyze(run.write(tmp_path / "logs"))
    assert named(found) == []
    assert found.ranks["pp"].tolist() == [0] * 4 + [1] * 4
    assert found.groups.groupby("group")["ranks"].sum().to_dict() == {"dp": 8, "pp": 8}
    groups = loads_checked("report", found.to_json())["groups"]
    assert [one["place"] for one in groups if one["group"] == "pp"] == [0, 1]


def test_of_few_ranks_those_are_named_that_the_verdict_names(tmp_path: Path) -> None:
    found = analyze(Run(ranks=3).slower(1.5, "forward", rank=1).write(tmp_path / "logs"))
    assert named(found) == [(1, "iter/forward", "persistent")]
    assert found.verdict is not None
    (finding,) = found.verdict.costly
    saved_s = finding.saves_ns_a_step * found.verdict.judged_steps * 1e-9
    assert found.stragglers[0].saved_s == pytest.approx(saved_s)
    assert 45 < found.stragglers[0].slower_percent < 55
    hidden = analyze(Run(ranks=3).slower(1.05, "forward", rank=1).write(tmp_path / "more"))
    assert (named(hidden), hidden.run["not_judged"]) == ([], "fewer than 4 ranks")


def test_several_ranks_that_the_verdict_names_together(tmp_path: Path) -> None:
    run = Run(ranks=16, ranks_a_host=4).slower(1.6, "forward", rank=[4, 5, 6, 7])
    found = analyze(run.write(tmp_path / "logs"))
    assert found.verdict is not None
    (finding,) = found.verdict.costly
    assert sorted(one.rank for one in found.stragglers) == list(finding.ranks) == [4, 5, 6, 7]
    assert found.hosts.set_index("host")["stragglers"].to_dict()["node1"] == 4
    waits = found.waits[found.waits["rank"].isin([4, 5, 6, 7]) & (found.waits["step"] > 0)]
    of_stage = waits[waits["stage"] == "iter/forward"]
    assert sum(one.cost_s for one in found.stragglers) == pytest.approx(of_stage["cost_s"].sum())


def verdict_of_page(page: Path) -> tuple[str, str]:
    """(state, text) of the card under the heading."""
    ((state, text),) = re.findall(
        r'<section class="verdict ([^"]*)"[^>]*>\s*<pre id="verdict">(.*?)</pre>',
        page.read_text(), re.S,
    )  # fmt: skip
    return state, html.unescape(text)


@pytest.mark.parametrize(
    "ranks, steps, not_compared, shade, begins",
    [
        (1, 30, "fewer than 4 ranks", "green", "NOTHING STANDS OUT"),
        (2, 30, "fewer than 4 ranks", "green", "NOTHING STANDS OUT"),
        (4, 4, "fewer than 5 steps", "unjudged", "NOT JUDGED: 4 steps after the warm-up"),
        (4, 30, None, "green", "NOTHING STANDS OUT"),
    ],
)
def test_the_verdict_heads_the_page_and_what_the_command_says(
    ranks: int, steps: int, not_compared: str | None, shade: str, begins: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Ranks that the tables do not compare are not called alike by them either."""
    logs, page = Run(ranks=ranks, steps=steps).write(tmp_path / "logs"), tmp_path / "report.html"
    assert main([str(logs), "-o", str(page), "--warmup", "0"]) == 0
    said = capsys.readouterr().out
    state, text = verdict_of_page(page)
    assert state == shade and text.startswith(begins)
    assert said.startswith(begins)
    assert "No rank stands out" not in page.read_text()
    assert main([str(logs), "--json", "--warmup", "0"]) == 0
    content = loads_checked("report", capsys.readouterr().out)
    assert (content["run"]["not_judged"], content["stragglers"]) == (not_compared, [])
    assert content["verdict"]["text"][0].startswith(begins)


def test_the_page_says_what_the_verdict_says(tmp_path: Path) -> None:
    """Of two ranks, too: before, the page called them alike."""
    logs = Run(ranks=2, steps=60).slower(6, "data", rank=1).write(tmp_path / "logs")
    report = analyze(logs)
    report.save_html(tmp_path / "report.html")
    state, text = verdict_of_page(tmp_path / "report.html")
    assert state == "found" and text.startswith("BOUND BY INPUT on rank 1")
    assert report.verdict is not None
    assert text.splitlines() == report.verdict.lines(100)


def test_stages_named_by_sync_are_where_the_verdict_sees_waits(tmp_path: Path) -> None:
    logs = (
        Run(ranks=2, steps=60, synchronises=False).slower(2, "data", rank=1).write(tmp_path / "l")
    )
    verdict = analyze(logs, sync="optimizer").verdict
    assert verdict is not None and verdict.inferred == ()


def test_what_is_not_judged_is_grey(tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.skip("no chromium on this machine (Debian package chromium)")
    report = tmp_path / "report.html"
    analyze(Run(ranks=2, steps=8).write(tmp_path / "logs")).save_html(report)
    with Page(browser, 1200, 900) as page:
        page.call("Page.navigate", url=report.as_uri())
        page.wait_for("document.readyState === 'complete'", "the page")
        style = "getComputedStyle(document.querySelector('.verdict'))"
        for what in ("color", "borderLeftColor", "backgroundColor"):
            shades = [int(shade) for shade in re.findall(r"\d+", page.evaluate(f"{style}.{what}"))]
            assert max(shades) - min(shades) < 24, what  # no colour is above the others


# --- waits, stages, steps ---


def test_waits_are_those_of_the_run(run: tuple[Run, Path], report: Report) -> None:
    entries, waits = run[0].entries_ns, report.waits
    assert waits["step"].tolist() == list(range(run[0].steps))
    assert set(waits["sync"]) == {f"iter/{SYNC}"}
    # Durations are compared, and the ranks leave the stage within microseconds.
    clear = (entries.max(0) - np.sort(entries, 0)[-2]) > 50_000
    assert (waits["rank"].to_numpy() == entries.argmax(0))[clear].all()
    costs = (entries.max(0) - entries).sum(0) * 1e-9
    assert np.allclose(waits["cost_s"], costs, atol=8 * 20e-6)
    assert report.run["waited_s"] == pytest.approx(costs.sum(), rel=0.01)


def test_clocks_that_nobody_lined_up(tmp_path: Path) -> None:
    run = planted(clock_ns=50e6)
    found = analyze(run.write(tmp_path / "logs"))
    costs = (run.entries_ns.max(0) - run.entries_ns).sum(0) * 1e-9
    assert np.allclose(found.waits["cost_s"], costs, atol=8 * 20e-6)


def test_a_rank_that_is_always_late_has_no_wrong_clock(tmp_path: Path) -> None:
    """Its stage ends as regularly as the clocks would be wrong, and more so than the barrier."""
    run = Run(
        stages=("forward", "backward", "optimizer"), noise=0.002, means_ms=(20, 30, 0.1),
        told_late_ns=500_000,
    ).slower(1.4, "forward", rank=5)  # fmt: skip
    run.slower(10, "forward", steps=0, rank=3)
    found = analyze(run.write(tmp_path / "logs"))
    assert found.run["synchronising"] == [f"iter/{SYNC}"]
    assert named(found) == [(5, "iter/forward", "persistent")]


@pytest.mark.filterwarnings("error")
def test_steps_in_which_nobody_waits(tmp_path: Path) -> None:
    """As where gradients are accumulated over some steps."""
    folder = planted().write(tmp_path / "logs")
    for path in folder.iterdir():
        rows = path.read_text().splitlines(keepends=True)
        kept = [row for row in rows if f",{SYNC}," not in row or int(row.split(",")[3]) % 3 == 0]
        path.write_text("".join(kept))
    found = analyze(folder)
    assert found.run["synchronising"] == [f"iter/{SYNC}"]
    assert sorted(named(found)) == sorted(BOTH)
    assert (found.waits["step"] % 3 == 0).all()


def test_synchronising_stages_by_name(run: tuple[Run, Path]) -> None:
    found = analyze(run[1], sync="optimizer$")
    assert found.run["synchronising"] == ["iter/optimizer"]


def test_stages_against_pandas(run: tuple[Run, Path], report: Report) -> None:
    rows = pd.concat(
        pd.read_csv(path).assign(rank=number)
        for number, path in enumerate(sorted(run[1].glob("*.csv")))
    )
    ends = rows[rows["event_type"] == "END"]
    took = ends.groupby("event_name")["duration_ms"]
    ours = report.stages.set_index(report.stages["stage"].str.split("/").str[-1])
    assert ours["count"].to_dict() == took.size().to_dict()
    for column, figures, error in (
        ("total_s", took.sum() / 1e3, 1e-9), ("mean_ms", took.mean(), 1e-9),
        ("max_ms", took.max(), 1e-9),
        ("p50_ms", took.quantile(0.5, interpolation="lower"), 0.01),
        ("p99_ms", took.quantile(0.99, interpolation="higher"), 0.02),
    ):  # fmt: skip
        assert ours[column].to_dict() == pytest.approx(figures.to_dict(), rel=error), column
    a_step = ends.groupby(["event_name", "rank", "step"])["duration_ms"].sum()
    assert ours["step_std_ms"].to_dict() == pytest.approx(
        a_step.groupby("event_name").std().to_dict(), rel=1e-6
    )
    of_rank = ends.groupby(["event_name", "rank"])["duration_ms"].sum().groupby("event_name")
    assert ours["imbalance"].to_dict() == pytest.approx(
        (of_rank.max() / of_rank.mean() - 1).to_dict(), abs=1e-9
    )
    inside = ends[ends["event_name"] != "iter"]["duration_ms"].sum()
    outside = took.sum()["iter"] - inside
    assert ours.loc["iter", "self_s"] == pytest.approx(outside / 1e3, abs=1e-6)


def test_the_critical_path_is_the_run(run: tuple[Run, Path], report: Report) -> None:
    """The steps follow each other without gaps, so the critical path is the whole duration."""
    assert report.stages["critical_share"].sum() == pytest.approx(1)
    assert report.stages["critical_s"].sum() == pytest.approx(report.run["duration_s"], rel=0.01)
    shares = report.stages.set_index("stage")["critical_share"]
    longest = run[0].took_ns[:, :, 1].max(0).sum() * 1e-9 / report.run["duration_s"]
    assert shares["iter/forward"] == pytest.approx(longest, rel=0.05)


def test_steps(run: tuple[Run, Path], report: Report) -> None:
    took = run[0].exits_ns + run[0].took_ns[:, :, -1]
    took[:, 1:] -= took[:, :-1].copy()
    took[:, 0] -= START_NS
    assert np.allclose(report.steps["median_ms"], np.median(took, 0) * 1e-6, atol=1e-6)
    busy = (took - (run[0].exits_ns - run[0].entries_ns)) * 1e-6
    assert np.allclose(report.steps["busy_max_ms"], busy.max(0), atol=1e-6)
    assert np.allclose(report.steps["busy_high_ms"], np.quantile(busy, 0.9, axis=0), atol=1e-6)
    assert report.steps["busiest_rank"].tolist() == busy.argmax(0).tolist()
    assert report.steps.loc[SLEEPS, "rank"].tolist() == [2] * len(SLEEPS)
    assert set(report.steps.loc[SLEEPS, "stage"]) == {"iter/backward"}
    assert np.allclose(report.steps.loc[SLEEPS, "lost_ms"], 40, atol=2)


def test_hosts(report: Report) -> None:
    hosts = report.hosts.set_index("host")
    assert hosts["ranks"].to_dict() == {"node0": 4, "node1": 4}
    assert hosts["stragglers"].to_dict() == {"node0": 1, "node1": 1}


def test_a_stage_that_became_slower(tmp_path: Path) -> None:
    run = Run(steps=120).slower(1.2, "forward", steps=slice(70, None))
    (change,) = analyze(run.write(tmp_path / "logs")).changes
    assert (change.stage, change.step) == ("iter/forward", 70)
    assert (change.before_ms, change.after_ms) == pytest.approx((20, 24), rel=0.02)


def test_a_part_of_the_run_is_judged_as_by_why(tmp_path: Path) -> None:
    """In all steps together nothing stands out."""
    run = Run(ranks=4, steps=400).slower(1.5, "forward", rank=1, steps=slice(200, 400))
    logs = run.write(tmp_path / "logs")
    answer = answer_of([str(logs)])
    assert answer.timeline is not None and len(answer.timeline.parts) == 2
    assert (answer.verdict.status, answer.verdict.first_step) == ("found", 200)
    assert answer.verdict.findings[0].ranks == (1,)
    report = analyze(logs)
    assert report.verdict is not None
    assert report.verdict.lines() == answer.verdict.lines() == verdict_of(str(logs)).lines()


def test_a_stage_that_became_faster(tmp_path: Path) -> None:
    """A run of which nothing stands out, whose timeline says more: so does the report."""
    logs = Run(steps=240).slower(1.2, "forward", steps=slice(0, 100)).write(tmp_path / "logs")
    report, answer = analyze(logs), answer_of([str(logs)])
    assert report.verdict is not None and answer.timeline is not None
    (change,) = report.changes
    _, part = answer.timeline.parts
    assert (change.stage, change.step) == (part.stage, part.first_step) == ("iter/forward", 100)
    assert (change.before_ms, change.after_ms) == pytest.approx((24, 20), rel=0.02)
    assert timeline_lines(answer.timeline)[1].endswith("% in iter/forward")


def test_a_warm_up_is_left_out(tmp_path: Path) -> None:
    run = Run().slower(8, "forward", steps=slice(0, 3)).slower(30, "data", steps=0, rank=1)
    folder = run.write(tmp_path / "logs")
    assert analyze(folder).run["warmup"] == 3
    assert analyze(folder).stragglers == []
    assert analyze(folder, warmup=0).run["warmup"] == 0


# --- files as they are found ---


def test_steps_and_ranks_that_are_asked_for(run: tuple[Run, Path]) -> None:
    found = analyze(run[1], ranks=[0, 2, 3, 5, 7], steps=(30, 60))
    assert found.ranks["rank"].tolist() == [0, 2, 3, 5, 7]
    assert (found.run["first_step"], found.run["last_step"]) == (30, 59)


def test_ranks_that_are_asked_for_are_shown_of_the_whole_run(tmp_path: Path) -> None:
    """Whom they wait for is named, though it is not shown."""
    logs = Run(ranks=8, ranks_a_host=4).slower(1.6, "forward", rank=3).write(tmp_path / "logs")
    whole, found = analyze(logs), analyze(logs, ranks=[1, 6, 99])
    assert found.verdict is not None and whole.verdict is not None
    assert [one.ranks for one in found.verdict.findings] == [(3,)]
    assert found.verdict.findings == whole.verdict.findings
    assert found.stragglers == [] and "rank 99 has no files" in found.problems
    rows = whole.ranks["rank"].isin([1, 6])
    assert found.ranks.equals(whole.ranks[rows].reset_index(drop=True))
    rows = whole.stages_by_rank["rank"].isin([1, 6])
    assert found.stages_by_rank.equals(whole.stages_by_rank[rows].reset_index(drop=True))
    assert found.hosts["ranks"].tolist() == [1, 1] and found.run["ranks"] == 2
    assert found.heat.ranks.tolist() == [1, 6] and len(found.heat.excess_ms) == 2
    assert (found.steps["busiest_rank"].isin([1, 6])).all() and (found.steps["rank"] == 3).all()
    assert found.run["waited_s"] == pytest.approx(found.ranks["waited_s"].sum())
    with pytest.raises(ReportError, match="no rank of the input is among those asked for"):
        analyze(logs, ranks=[99])


def test_the_page_of_some_ranks(tmp_path: Path) -> None:
    logs = str(Run(ranks=8).slower(1.6, "forward", rank=3).write(tmp_path / "logs"))
    whole, page = make_page(Source((logs,))), make_page(Source((logs,), frozenset([1, 6])))
    assert page.run.ranks.tolist() == [1, 6]
    assert [one.ranks for one in page.verdict.findings] == [(3,)]
    assert np.array_equal(page.waited, whole.waited[[1, 6]]) and page.waited.sum() > 0
    assert page.ledger is not None and page.ledger.ranks == [1, 6]
    assert page.worst is not None and {one.rank for one in page.worst.ranks} == {1, 6}
    assert re.search(r'"ranks": ?\[1, ?6\], ?"steps"', page_text(page))


def test_ranks_without_files_and_ranks_that_ended_early(tmp_path: Path) -> None:
    run = planted()
    folder = run.write(tmp_path / "logs")
    (folder / "profile_rank_6.csv").unlink()
    whole = (folder / "profile_rank_7.csv").read_text()
    cut = whole[: len(whole) // 2]
    assert not cut.endswith("\n")  # in the middle of a row
    (folder / "profile_rank_7.csv").write_text(cut)
    found = analyze(folder)
    assert named(found) == BOTH
    assert "rank 6 has no files" in found.problems
    assert f"rank 7 ended before step {run.steps - 1}, the last of the run" in found.problems
    last = found.ranks.set_index("rank")["last_step"]
    assert last[7] < run.steps - 1 == last[0]


def test_a_damaged_world_size_is_only_told(tmp_path: Path) -> None:
    folder = Run(ranks=4, steps=8).write(tmp_path / "logs")
    path = folder / "profile_rank_3.csv"
    path.write_text(path.read_text().replace("world_size=4", "world_size=2000000000"))
    assert analyze(folder).problems == [f"ranks 4-{(1 << 20) - 1} have no files"]


def test_a_number_that_is_no_rank(tmp_path: Path) -> None:
    folder = Run(steps=20).write(tmp_path / "logs")
    shutil.copy(folder / "profile_rank_3.csv", folder / "profile_rank_99999999999.csv")
    found = analyze(folder)
    assert len(found.ranks) == 8
    assert any("profile_rank_99999999999.csv belongs to no rank" in text for text in found.problems)


def test_damaged_rows_are_told(tmp_path: Path) -> None:
    folder = Run(steps=20).write(tmp_path / "logs")
    path = folder / "profile_rank_3.csv"
    lines = path.read_text().splitlines(keepends=True)
    lines[10] = "nonsense" + lines[10]
    path.write_text("".join(lines))
    found = analyze(folder)
    assert found.ranks["bad_rows"].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert "rank 3 has rows that could not be understood" in found.problems


def test_steps_done_again_after_a_restart_count_once(tmp_path: Path) -> None:
    folder = Run(steps=30).slower(5, "forward", steps=slice(20, 30)).write(tmp_path / "logs")
    Run(steps=20, first_step=20, attempt=2, start_ns=START_NS + 10**11).write(folder)
    found = analyze(folder)
    assert found.steps["step"].tolist() == list(range(40))
    assert found.steps["median_ms"].max() < 70
    assert found.stages.set_index("stage").loc["iter", "count"] == 40 * 8


def test_the_last_of_two_runs_in_a_directory_counts(tmp_path: Path) -> None:
    folder = Run(steps=50).write(tmp_path / "logs")
    Run(ranks=6, steps=20, attempt=2, start_ns=START_NS + 10**12).write(folder)
    found = analyze(folder)
    assert found.ranks["rank"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.run["steps"] == 20
    problems = " ".join(found.problems)
    assert "ranks 6-7 are left out: their files hold nothing of the last run" in problems
    assert "ranks 0-5 have older runs in the same files" in problems


def test_a_clock_that_is_set_while_it_runs(tmp_path: Path) -> None:
    """Rank 3's clock jumps by two seconds in the middle of a step."""
    run = planted()
    path = run.write(tmp_path / "logs") / "profile_rank_3.csv"
    lines = path.read_text().splitlines(keepends=True)
    half = next(i for i, line in enumerate(lines) if ",61,backward,END" in line)
    told = lines[half].replace("backward,END", "my_utils.clock_step,INSTANT").split(",")
    late = [later(line, 2) for line in lines[half:]]
    fact = ",".join(told[:6]) + ',,"delta_ns=2000000000"\n'
    path.write_text("".join([*lines[:half], fact, *late]))
    found = analyze(path.parent)
    assert named(found) == BOTH
    costs = (run.entries_ns.max(0) - run.entries_ns).sum(0) * 1e-9
    waits = found.waits.set_index("step")["cost_s"].reindex(range(run.steps)).to_numpy()
    assert np.allclose(waits, costs, atol=8 * 30e-6)


def later(line: str, seconds: int) -> str:
    time, _, rest = line.partition(",")
    whole, _, fraction = time.partition(".")
    return f"{int(whole) + seconds}.{fraction},{rest}"


def test_nothing_to_report_on(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"holds no profile_rank_\*\.csv"):
        analyze(tmp_path)
    with pytest.raises(ReportError, match="no such file"):
        analyze(tmp_path / "nowhere")
    (tmp_path / "profile_rank_0.csv").write_text(HEADER)
    with pytest.raises(ReportError, match="no stage has ended"):
        analyze(tmp_path)


def test_wrong_arguments(run: tuple[Run, Path]) -> None:
    with pytest.raises(ValueError, match="engine must be 'local' or 'ray', not 'spark'"):
        analyze(run[1], engine="spark")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="sync is not a regular expression"):
        analyze(run[1], sync="(")
    with pytest.raises(ValueError, match="warmup must be at least 0, not -1"):
        analyze(run[1], warmup=-1)
    with pytest.raises(ValueError, match=r"steps must be .* \(5, 5\)"):
        analyze(run[1], steps=(5, 5))
    with pytest.raises(ValueError, match=r"steps must be .* \(5,\)"):
        analyze(run[1], steps=(5,))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        analyze(run[1], warmup=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="paths must name a directory or a file"):
        analyze([])


def test_limits_and_folders_that_cannot_be(
    run: tuple[Run, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="memory_limit must be such as '256MB', not 'much'"):
        analyze(run[1], memory_limit="much")
    page = tmp_path / "report.html"
    with pytest.raises(SystemExit) as raised:
        main([str(run[1]), "--memory-limit", "much", "-o", str(page)])
    assert raised.value.code == 2 and not page.exists()
    assert "memory_limit must be such as '256MB', not 'much'" in capsys.readouterr().err
    (tmp_path / "file").touch()
    for option in ("--parquet", "--csv", "--png"):
        assert main([str(run[1]), option, str(tmp_path / "file" / "below")]) == 1
        assert "my_utils report: error: " in capsys.readouterr().err


def test_what_does_not_fit_goes_to_a_file_that_leaves_nothing(
    run: tuple[Run, Path], report: Report, run_python: RunPython, tmp_path: Path
) -> None:
    program = """
import os, sys
from my_utils.analysis.report import analyze
from my_utils.analysis.report.cells import Cells
spilled = []
def spy(cells, values, to_the_file=Cells._in_the_file):
    spilled.append(to_the_file(cells, values))
    return spilled[-1]
Cells._in_the_file = spy
report = analyze(sys.argv[1], memory_limit="40 kB")
assert 0 < len(spilled) < 8, len(spilled)  # of eight ranks with 12 kB each
assert not os.listdir("temporary") and os.listdir(".") == ["temporary"]
print(report.to_json())
"""
    (tmp_path / "temporary").mkdir()
    environment = {"TMPDIR": str(tmp_path / "temporary")}
    done = run_python("-c", program, str(run[1]), cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert loads_checked("report", done.stdout) == json.loads(report.to_json())


def test_a_temporary_folder_that_cannot_be_written_to_is_said(
    run: tuple[Run, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    assert main([str(run[1]), "--json", "--memory-limit", "0"]) == 1
    assert "my_utils report: error: " in capsys.readouterr().err


NAMES = ["cost $ of {$", "<b>&'\"forward", "数据 🎉", "loss/total", "a,b=c%2C"]


@pytest.mark.filterwarnings("ignore:Glyph")  # the font of the plots has no such letters
def test_any_name_of_a_stage(run_python: RunPython, tmp_path: Path) -> None:
    """Formulas, markup, the separator, and what CSV and its metadata set apart."""
    program = """
import json, sys, time
from my_utils import GlobalLogger, MyTimer
GlobalLogger().setup(sys.argv[1], rank=0, world_size=1, console=False)
timer = MyTimer(tag="train")
for step in range(3):
    timer.set_step(step)
    with timer.time_stage("iter"):
        for name in json.loads(sys.argv[2]):
            with timer.time_stage(name), timer.time_stage("inner"):
                time.sleep(0.002)
    timer.step()
GlobalLogger().close()
"""
    logs, page = tmp_path / "logs", tmp_path / "a #1? 100% report.html"
    pytest.importorskip("torch", reason="torch is not installed")
    done = run_python("-c", program, str(logs), json.dumps(NAMES))
    assert done.returncode == 0, done.stderr
    assert main([str(logs), "-o", str(page), "--parquet", str(tmp_path / "new" / "parquet")]) == 0
    found = analyze(logs).stages.set_index("stage")
    assert set(found.index) == {
        "iter", *(f"iter/{name}" for name in NAMES), *(f"iter/{name}/inner" for name in NAMES)
    }  # fmt: skip
    assert found["self_s"].sum() == pytest.approx(found.loc["iter", "total_s"])
    for path, below in (
        ("iter", [f"iter/{name}" for name in NAMES]),
        ("iter/loss/total", ["iter/loss/total/inner"]),
    ):
        outside = found.loc[path, "total_s"] - found.loc[below, "total_s"].sum()
        assert found.loc[path, "self_s"] == pytest.approx(outside, abs=1e-9), path
    text = page.read_text(encoding="utf-8")
    assert "iter/&lt;b&gt;&amp;&#39;&#34;forward" in text and "<b>&'" not in text


# --- what is written ---


def same(first: Report, second: Report) -> None:
    assert json.loads(first.to_json()) == json.loads(second.to_json())
    pd.testing.assert_frame_equal(first.waits, second.waits)
    pd.testing.assert_frame_equal(first.stages_by_rank, second.stages_by_rank)


def test_little_memory_gives_the_same(run: tuple[Run, Path], report: Report) -> None:
    same(analyze(run[1], memory_limit="1kB"), report)


def test_json_on_standard_output(run: tuple[Run, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run[1]), "--json"]) == 0
    content = loads_checked("report", capsys.readouterr().out)
    first = content["stragglers"][0]
    assert {key: first[key] for key in ("rank", "host", "stage", "steps", "kind")} == {
        "rank": 2, "host": "node0", "stage": "iter/backward", "steps": SLEEPS,
        "kind": "intermittent",
    }  # fmt: skip
    assert first["cost_s"] > 1 and first["score"] > 10
    assert content["run"]["synchronising"] == [f"iter/{SYNC}"]
    assert len(content["steps"]) == run[0].steps


def test_tables_plots_and_parquet(run: tuple[Run, Path], report: Report, tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("csv", "png", "parquet")]
    arguments = ["--csv", folders[0], "--png", folders[1], "--parquet", folders[2]]
    assert main([str(run[1]), *arguments]) == 0
    steps = pd.read_csv(tmp_path / "csv" / "steps.csv")
    assert np.allclose(steps["median_ms"], report.steps["median_ms"])
    stragglers = pd.read_csv(tmp_path / "csv" / "stragglers.csv")
    assert stragglers["rank"].tolist() == [2, 5]
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    for name in ("step_time", "rank_by_step", "stages"):
        pixels = image.imread(tmp_path / "png" / f"{name}.png")
        assert pixels.shape[1] > 1000 and pixels.std() > 0.02
    heat = image.imread(tmp_path / "png" / "rank_by_step.png")[..., :3]
    dark_red = (heat[..., 0] > 0.3) & (heat[..., 1] < 0.1)
    assert dark_red.sum() > 100  # the sleeping rank
    rows = pd.read_parquet(tmp_path / "parquet")  # the rank is in the names of the folders
    rows["s"] = (rows["end_ns"] - rows["begin_ns"]) / 1e9
    rows = rows.groupby(["rank", "stage"], observed=True, as_index=False)["s"].sum()
    assert rows["stage"].tolist() == report.stages_by_rank["stage"].tolist()
    assert np.allclose(rows["s"], report.stages_by_rank["total_s"])


def test_the_page_in_a_browser(run: tuple[Run, Path], report: Report, tmp_path: Path) -> None:
    """With the tables of a report; a straggler's row leads to the trace that was named for it."""
    browser = find_browser()
    if browser is None:
        pytest.skip("no chromium on this machine (Debian package chromium)")
    page_file = tmp_path / "report.html"
    report.save_html(page_file, {0: StepTrace(SLEEPS[0], "step%20of%20rank%202.json")})
    with Page(browser, 1200, 900) as page:
        page.call("Page.navigate", url=page_file.as_uri())
        page.wait_for("document.documentElement?.dataset.drawn === 'all'", "the page")
        cells = page.evaluate(
            "[...document.querySelectorAll('#stragglers tbody tr')]"
            ".map(r => [r.cells[0].innerText, r.cells[2].innerText, r.cells[3].innerText])"
        )
        assert [tuple(row) for row in cells] == [(str(r), s, k) for r, s, k in BOTH]
        links = page.evaluate("[...document.querySelectorAll('#stragglers a')].map(a => a.href)")
        timeline = page.evaluate("document.getElementById('timeline-title').textContent")
        assert page.evaluate("document.getElementById('perfetto').hidden") is False
        page.evaluate("document.getElementById('timeline').focus()")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
        first = page.evaluate("document.getElementById('timeline-readout').textContent")
    assert links == [(tmp_path / "step of rank 2.json").as_uri()]
    assert timeline.startswith("Step ")
    assert re.match(r"rank \d, iter: [\d.]+ (ms|s), begins ", first)


def test_the_page_needs_numpy_and_jinja_alone(
    run: tuple[Run, Path], run_python: RunPython, tmp_path: Path
) -> None:
    program = (
        "import sys\n"
        "for name in ('pandas', 'matplotlib', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "from my_utils.cli.report import main\n"
        "sys.exit(main([sys.argv[1], '-o', sys.argv[2]]))"
    )
    page = tmp_path / "report.html"
    done = run_python("-c", program, str(run[1]), str(page))
    assert done.returncode == 0, done.stderr
    assert verdict_of_page(page)[1].splitlines() == done.stdout.splitlines()


def test_the_trace_in_the_page_is_of_its_step(run: tuple[Run, Path], tmp_path: Path) -> None:
    """Read back by Perfetto's trace processor: the same spans as the timeline has."""
    if reason := why_missing():
        pytest.skip(reason)
    page = make_page(Source((str(run[1]),)))
    assert page.trace is not None and page.worst is not None
    path = tmp_path / "step.pftrace"
    path.write_bytes(page.trace.content)
    with TraceProcessor(path) as trace:
        rows = trace.query("select name, dur from slice")
    stages = {name.rpartition("/")[2] for name in page.run.stages}
    lengths = sorted(row["dur"] for row in rows if row["name"] in stages)
    spans = sorted(round(span[3] * 1e6) for one in page.worst.ranks for span in one.spans)
    assert lengths == spans


def test_exit_statuses(
    run: tuple[Run, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--json"]) == 1
    assert "holds no profile_rank_*.csv" in capsys.readouterr().err
    assert main([str(run[1]), "-o", str(tmp_path / "nowhere" / "report.html")]) == 1
    for wrong in (["-o", "page.pdf"], ["--json", "--sync", "("], ["--json", "--steps", "7:3"]):
        with pytest.raises(SystemExit) as raised:
            main([str(run[1]), *wrong])
        assert raised.value.code == 2
    told = capsys.readouterr().err
    assert "sync is not a regular expression" in told and "an empty range of steps: '7:3'" in told
    assert "page.pdf: unknown suffix '.pdf'; known are .html, .htm and .json" in told


def test_the_page_is_the_default(
    run: tuple[Run, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(run[1])]) == 0
    assert capsys.readouterr().err.endswith("my_utils report: -> report.html\n")
    assert "<html" in Path("report.html").read_text()
    for path in tmp_path.iterdir():
        path.unlink()
    assert main([str(run[1]), "--json"]) == 0
    assert os.listdir() == []


def test_a_missing_extra_says_how_to_install_it(
    run: tuple[Run, Path], run_python: RunPython
) -> None:
    program = (
        "import sys; sys.modules['pandas'] = None\n"
        "from my_utils.cli.report import main; sys.exit(main([sys.argv[1], '--json']))"
    )
    done = run_python("-c", program, str(run[1]))
    assert done.returncode == 1
    assert "pip install pandas" in done.stderr


# --- traces of torch's profiler beside ---


def test_communication_behind_compute(run: tuple[Run, Path], tmp_path: Path) -> None:
    def kernel(name: str, begin: float, length: float) -> dict[str, Any]:
        return {"ph": "X", "cat": "kernel", "name": name, "ts": begin, "dur": length}

    events = [
        kernel("ncclDevKernel_AllReduce_Sum_f32", 1000, 4000),
        kernel("ncclDevKernel_AllGather", 4500, 1000),  # on another stream: 500 in common
        kernel("sm90_gemm", 0, 2000), kernel("sm90_gemm", 5000, 100),
        kernel("elementwise", 1500, 1000),
        {"ph": "X", "cat": "cpu_op", "name": "nccl:all_reduce", "ts": 0, "dur": 9000},
    ]  # fmt: skip
    trace = tmp_path / "rank3.json.gz"
    content = {"traceEvents": events, "distributedInfo": {"rank": 3}}
    trace.write_bytes(gzip.compress(json.dumps(content).encode()))
    report = analyze(run[1], torch_traces=[trace])
    assert len(loads_checked("report", report.to_json())["overlap"]) == 1
    (row,) = report.overlap.to_dict("records")
    assert row["rank"] == 3
    assert row["communication_s"] == pytest.approx(4.5e-3)
    assert row["compute_s"] == pytest.approx(2.6e-3)
    assert row["hidden_s"] == pytest.approx(1.6e-3)  # 1000 to 2500 and 5000 to 5100
    assert row["hidden_share"] == pytest.approx(1.6 / 4.5)


def test_traces_that_are_none(run: tuple[Run, Path], tmp_path: Path) -> None:
    damaged = bytearray(gzip.compress(b'{"traceEvents": []}' * 10))
    damaged[14:16] = bytes(byte ^ 0xFF for byte in damaged[14:16])
    for name, content in (
        ("rows.json", (run[1] / "profile_rank_0.csv").read_bytes()),
        ("null.json", b'{"traceEvents": null}'),
        ("damaged.json.gz", bytes(damaged)),
        ("cut.json.gz", bytes(damaged[:12])),
        ("deep.json", b"[" * 100_000),
        ("deep.json.gz", gzip.compress(b"[" * 100_000)),
        ("number.json", b"9" * 5000),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is not a trace of torch's profiler"):
            measure_overlap([str(tmp_path / name)])
    odd = {"traceEvents": [5, {"ph": "X"}, {"ph": "X", "name": "nccl"}], "distributedInfo": None}
    (tmp_path / "odd.json").write_text(json.dumps(odd))
    (row,) = measure_overlap([str(tmp_path / "odd.json")]).to_dict("records")
    assert (row["rank"], row["communication_s"]) == (0, 0)
    os.mkfifo(tmp_path / "fifo.json")
    with pytest.raises(ValueError, match=r"fifo.json is not a trace of torch's .*regular"):
        measure_overlap([str(tmp_path / "fifo.json")])


def test_events_at_odd_times_are_left_out(tmp_path: Path) -> None:
    good = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 1, "dur": 2}
    odd = [{**good, "ts": 2**2000}, {**good, "dur": 2**2000}, {**good, "ts": math.nan}]
    trace = {"distributedInfo": {"rank": 2**70}, "traceEvents": [*odd, good]}
    (tmp_path / "odd.json").write_text(json.dumps(trace))
    (row,) = measure_overlap([str(tmp_path / "odd.json")]).to_dict("records")
    assert (row["rank"], row["communication_s"]) == (0, 2e-6)


# --- on a cluster ---

RAY_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "150"}

ON_RAY = """
import os, sys
from ray.cluster_utils import Cluster
import ray
from my_utils.analysis import report
from my_utils.analysis.report import on_ray

cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 * 2**20})
cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
ray.init(address=cluster.address, log_to_driver=False)
assert len([node for node in ray.nodes() if node["Alive"]]) == 2
on_ray.RANKS_A_TASK = 2
os.chdir(os.path.dirname(sys.argv[1]))
logs = os.path.basename(sys.argv[1])
print(report.analyze(logs, engine="ray", parquet="rows").to_json())
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cluster_of_ray_gives_the_same(
    run: tuple[Run, Path], report: Report, run_python: RunPython
) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    done = run_python("-c", ON_RAY, str(run[1]), timeout=360, env=RAY_SETTINGS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads(report.to_json())
    assert len(list((run[1].parent / "rows").iterdir())) == len(report.ranks)


KILLED_HEAD = """
import subprocess, sys, os
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={
    "num_cpus": 1, "include_dashboard": False, "object_store_memory": 100 * 2**20})

def report(**more):
    return subprocess.Popen(
        [sys.executable, "-m", "my_utils", "report", sys.argv[1], "--engine", "ray", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "RAY_ADDRESS": cluster.address, **more})

done = report()
print(done.communicate()[0], end="")
killed = report(RAY_gcs_rpc_server_reconnect_timeout_s="2")
for line in killed.stderr:
    if "Connecting to existing Ray cluster" in line:
        break
cluster.head_node.kill_gcs_server()
out, err = killed.communicate()
print(killed.returncode, repr(out), err.splitlines()[-1])
cluster.shutdown()
"""


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_the_command_says_so_where_the_head_of_the_cluster_is_killed(
    run: tuple[Run, Path], report: Report, run_python: RunPython
) -> None:
    """Ray ends the process that is connected to it. Before, the object is all on stdout."""
    pytest.importorskip("ray", reason="ray is not installed")
    done = run_python("-c", KILLED_HEAD, str(run[1]), timeout=360, env=RAY_SETTINGS)
    assert done.returncode == 0, done.stderr
    whole, killed = done.stdout.splitlines()
    assert json.loads(whole) == json.loads(report.to_json())
    assert killed.startswith("1 '' my_utils report: error: the Ray cluster: "), killed


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_head_that_does_not_answer_is_an_error_in_minutes(
    run: tuple[Run, Path], run_python: RunPython
) -> None:
    """With the 20 tries of Ray it takes a quarter of an hour."""
    pytest.importorskip("ray", reason="ray is not installed")
    nobody = {"RAY_ADDRESS": "192.0.2.2:6379"}  # an address of RFC 5737, for documentation
    done = run_python(
        "-m", "my_utils", "report", str(run[1]), "--engine", "ray", "--json",
        env=RAY_SETTINGS | nobody, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    said = done.stderr.splitlines()[-1]
    assert said.startswith("my_utils report: error: the Ray cluster: ConnectionError: ")
    assert nobody["RAY_ADDRESS"] in said


@pytest.mark.parametrize("printed", ["print('text')", "os.write(1, b'text')"])
def test_what_ray_prints_is_not_in_the_output(
    printed: str, run: tuple[Run, Path], report: Report, run_python: RunPython, tmp_path: Path
) -> None:
    """A module of that name in place of Ray, whose tasks run in another folder and which is as
    talkative."""
    (tmp_path / "ray.py").write_text(f"""if True:
        import os

        def init(**options):
            {printed}
            os.chdir("/")

        def is_initialized():
            return False

        def remote(**options):
            def wrap(function):
                function.remote = function
                return function
            return wrap

        def wait(tasks):
            return tasks[:1], tasks[1:]

        def get(task):
            return task
    """)
    logs = os.path.relpath(run[1], tmp_path)
    done = run_python(
        "-m", "my_utils", "report", logs, "--engine", "ray", "--json", "--parquet", "rows",
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "rows").iterdir())) == len(report.ranks)
    assert loads_checked("report", done.stdout) == json.loads(report.to_json())
    assert "text" in done.stderr


def test_what_a_cluster_says_is_the_error(run: tuple[Run, Path], run_python: RunPython,
                                          tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "ray.py").write_text("""if True:
        def is_initialized():
            return False

        def init(**options):
            raise RuntimeError("no cluster is there")
    """)
    done = run_python(
        "-m", "my_utils", "report", str(run[1]), "--engine", "ray", "--json",
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    said = "my_utils report: error: the Ray cluster: RuntimeError: no cluster is there"
    assert done.stderr.splitlines()[-1] == said
