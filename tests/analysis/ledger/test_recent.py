"""What became of the newest minutes, of runs whose times are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.ledger.read import LedgerReader
from my_utils.analysis.ledger.recent import Recent
from my_utils.analysis.live import judged
from my_utils.analysis.live.judged import Judged
from my_utils.analysis.replay.inputs import verdict_of

from ...conftest import RunPython
from ...support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

STEPS, STEP_MS = 600, 1000.0  # ten minutes
INPUT_MS = 500.0, 100.0  # of a step in the first five of them, and in the last


def slow_at_first(folder: Path, ranks: int = 1, late_ms: float = 0.0) -> Path:
    """Rank 0 comes to each backward so much earlier than the others."""
    for rank in range(ranks):
        one = RankCsv(rank, ranks)
        one.process()
        one.note("run", {"device": "cpu", "attempt": 1, "wrappers": "DDP"})
        one.note("sync", {"stage": "backward", "kind": "ddp", "members": f"0-{ranks - 1}"})
        for step in range(STEPS):
            loaded = INPUT_MS[step >= STEPS // 2]
            early = 800.0 - (late_ms if rank == 0 else 0.0)
            stages = [
                ("input", 0.0, loaded),
                ("forward", loaded, early),
                ("backward", early, STEP_MS),
            ]
            one.step(step, step * STEP_MS, stages)
        one.write(folder)
    return folder


def recent_of(folder: Path, seconds: float) -> Recent:
    reader = LedgerReader()
    verdict_of(str(folder), ledger=reader)
    found = reader.recent(seconds)
    assert found is not None
    assert sum(found.shares.values()) == pytest.approx(1.0)
    return found


def test_only_the_newest_minutes_count(tmp_path: Path) -> None:
    logs = slow_at_first(tmp_path / "logs")
    newest, whole = recent_of(logs, 300), recent_of(logs, 1e6)
    assert (newest.seconds, whole.seconds) == pytest.approx((300.0, 600.0), abs=1.0)
    assert newest.shares["input"] == pytest.approx(0.1, abs=0.005)
    assert whole.shares["input"] == pytest.approx(0.3, abs=0.005)
    assert newest.goodput == pytest.approx(1.0)
    assert newest.line().startswith("last 5 min: goodput 100 %: compute ")
    assert "input 10 %" in newest.line()


def test_what_ranks_wait_is_in_it(tmp_path: Path) -> None:
    """Rank 0 stays 500 ms in a backward that takes 200 ms."""
    found = recent_of(slow_at_first(tmp_path / "logs", 2, late_ms=300.0), 60)
    assert found.shares["waiting"] == pytest.approx(0.15, abs=0.005)
    assert found.seconds == pytest.approx(60.0, abs=1.0)


def test_the_time_of_a_restart_is_no_goodput(tmp_path: Path) -> None:
    one = RankCsv(0, 1)
    for attempt, begin_s in ((1, 0.0), (2, 90.0)):
        one.process(attempt, begin_s * 1e3)
        one.note("run", {"device": "cpu", "attempt": attempt, "wrappers": "none"})
        for step in range(30):
            at_ms = (begin_s + step) * 1e3
            one.step(step + 30 * (attempt - 1), at_ms, [("forward", 0.0, STEP_MS)])
    one.write(tmp_path / "logs")
    found = recent_of(tmp_path / "logs", 300)
    assert found.seconds == pytest.approx(120.0, abs=1.0)
    assert found.shares["restart"] == pytest.approx(0.5, abs=0.01)
    assert found.goodput == pytest.approx(0.5, abs=0.01)


def test_a_view_needs_the_newest_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many bytes are read of a run of any length."""
    logs = slow_at_first(tmp_path / "logs")
    written = sum(csv.stat().st_size for csv in logs.glob("*.csv"))
    assert written > 100_000
    monkeypatch.setattr(judged, "BYTES_MAX", 64 << 10)
    view = Judged([str(logs)], None, recent_s=300)
    assert view.verdict() is not None and view.recent is not None
    assert view.recent.shares["input"] == pytest.approx(0.1, abs=0.01)
    assert 100 < view.recent.seconds < 300
    others = Judged([str(logs)], None)
    assert others.verdict() is not None and others.recent is None


def test_live_shows_it_below_the_verdict(tmp_path: Path, run_python: RunPython) -> None:
    logs = slow_at_first(tmp_path / "logs", 2, late_ms=300.0)
    shown = run_python("-m", "my_utils", "live", str(logs), "--once").stdout
    assert "last 5 min: goodput 100 %: compute " in shown
    assert "waiting 15 %" in shown and "input 10 %" in shown
