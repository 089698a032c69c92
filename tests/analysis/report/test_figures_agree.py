"""The figures of a report, of its page and of the verdict are the same ones.

What is checked of every report and page that these tests make is in `tests/support/report_figures`;
here are runs whose ledger and verdict are known beside it, and figures that contradict each other.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pandas", reason="pandas is not installed")

from my_utils.analysis.ledger.read import LedgerReader
from my_utils.analysis.ledger.rows import WAITING
from my_utils.analysis.report import Report, analyze
from my_utils.analysis.verdict.load import load_run

from ...support.planted_runs import Run
from ...support.report_figures import (
    contradictions_of_page,
    contradictions_of_report,
    rows_of,
)

pytestmark = pytest.mark.no_torch


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run(ranks=8, clock_ns=5e6).slower(1.6, "forward", rank=3)
    run.slower(2, "backward", steps=slice(70, None))
    return run.write(tmp_path_factory.mktemp("slow") / "logs")


@pytest.fixture(scope="module")
def report(logs: Path) -> Report:
    return analyze(logs)


def test_waits_are_those_of_the_ledger_to_the_nanosecond(logs: Path, report: Report) -> None:
    reader = LedgerReader()
    reader.choose(load_run(logs, on_rank=reader.add))
    ledger = reader.ledger()
    assert ledger is not None
    assert report.run["waited_s"] == pytest.approx(ledger.total_ns(WAITING) * 1e-9, abs=1e-9)
    costs = report.ranks.set_index("rank")["cost_s"]
    assert [one.rank for one in ledger.culprits][:1] == [3]
    for one in ledger.culprits:
        assert costs[one.rank] == pytest.approx(one.wait_ns * 1e-9, abs=1e-9)


def test_a_straggler_has_the_figures_of_its_finding(report: Report) -> None:
    assert report.verdict is not None
    finding = next(one for one in report.verdict.costly if one.ranks == (3,))
    (one,) = report.stragglers
    assert (one.rank, one.stage, one.kind) == (3, finding.stage, "persistent")
    saved_s = finding.saves_ns_a_step * report.verdict.judged_steps * 1e-9
    assert one.saved_s == pytest.approx(saved_s)
    assert one.score == finding.detail["score"] > 10


def test_a_change_is_since_the_step_of_the_verdict(report: Report) -> None:
    assert report.verdict is not None
    finding = next(one for one in report.verdict.costly if one.kind == "slower since")
    (change,) = report.changes
    assert (change.stage, change.step) == (finding.stage, finding.since_step)
    rise_ms = change.after_ms - change.before_ms
    assert rise_ms == pytest.approx(
        (finding.detail["after_ns"] - finding.detail["before_ns"]) * 1e-6, rel=0.1
    )


def test_the_page_shows_a_collective_as_long_as_the_verdict_says(tmp_path: Path) -> None:
    """Beside it, what ranks wait in it."""
    logs = Run(ranks=4, noise=0.05, means_ms=(1, 2, 3, 0.3)).write(tmp_path / "logs")
    report = analyze(logs)
    assert report.verdict is not None
    finding = next(one for one in report.verdict.costly if one.kind == "communication")
    report.save_html(tmp_path / "report.html")
    rows = {row[0][1]: row for row in rows_of((tmp_path / "report.html").read_text(), "stages")}
    row = rows[f"{finding.stage} (ranks wait here)"]
    mean_ms, waits_ms = float(row[1][0]), float(row[2][0])
    assert mean_ms - waits_ms == pytest.approx(finding.detail["took_ns"] * 1e-6, rel=1e-6)


def wrong_reports(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By what is wrong with it."""

    def changed(*path: Any, by: float = 1.0) -> dict[str, Any]:
        other = copy.deepcopy(data)
        place = other
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = (place[path[-1]] or 0) + by
        return other

    return {
        "warm-up of": changed("run", "warmup"),
        "of the run": changed("ranks", 0, "cost_s"),
        "the waits of the steps": changed("steps", 5, "cost_s"),
        "which no finding does": changed("stragglers", 0, "saved_s"),
        "no stragglers": {**data, "stragglers": []},
        "slower since step": {**data, "changes": []},
        "rows of": {**data, "steps": data["steps"][1:]},
        "critical path": changed("stages", 0, "critical_share", by=0.1),
        "busy for": changed("steps", 5, "busy_ms", by=1000.0),
    }


def test_reports_that_contradict_themselves_are_found(report: Report) -> None:
    data = json.loads(report.to_json())
    assert contradictions_of_report(data) == []
    for words, wrong in wrong_reports(data).items():
        assert words in "\n".join(contradictions_of_report(wrong)), words


def test_pages_that_contradict_themselves_are_found(report: Report, tmp_path: Path) -> None:
    report.save_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert contradictions_of_page(text) == []
    for pattern, other, words in (
        (r"Where a step goes: \S+ ms", "Where a step goes: 190 ms", "in the verdict"),
        (r"</svg>iter/forward \S+ ms", "</svg>iter/forward 3.1 ms", "in the table"),
        (r"(</svg>waiting for other ranks) \S+ ms", r"\1 0.1 ms", "in all stages"),
        (r"(</svg>iter/forward \S+ ms), \S+ %", r"\1, 90.0 %", "the parts of a step have"),
    ):
        wrong, count = re.subn(pattern, other, text)
        assert count == 1 and words in "\n".join(contradictions_of_page(wrong)), pattern
