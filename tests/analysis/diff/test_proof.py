"""The proof of `diff` in small; `python -m tests.analysis.diff.proof` is the whole of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.analysis.diff import proof

pytestmark = pytest.mark.no_torch

FEW = 5
THOROUGH = 200


def counted(outcomes: dict[proof.Trial, dict[str, object]], key: str, kind: str) -> tuple[int, int]:
    some = [one for trial, one in outcomes.items() if trial.kind == kind]
    return sum(bool(one[key]) for one in some), len(some)


def attempted(trials: int, *kinds: str) -> dict[proof.Trial, dict[str, object]]:
    todo = [one for one in proof.trials(trials) if one.kind in kinds]
    return proof.run_all(todo, None, 3600)


def test_planted_differences_are_found_and_equal_sides_are_not() -> None:
    outcomes = attempted(FEW, "equal", "planted")
    assert counted(outcomes, "alarm", "equal") == (0, 4 * FEW)
    assert counted(outcomes, "right", "planted") == (4 * 2, 4 * 2)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_the_bounds_hold() -> None:
    outcomes = attempted(THOROUGH, "equal", "planted", "runs")
    for kind, count in (("equal", 4 * THOROUGH), ("runs", 2 * THOROUGH)):
        alarms, of = counted(outcomes, "alarm", kind)
        assert of == count and alarms <= 0.01 * of
    found, of = counted(outcomes, "found", "planted")
    assert found >= 0.9 * of
    assert counted(outcomes, "right", "planted")[0] >= 0.95 * of


def test_the_ends_agree_with_arch() -> None:
    pytest.importorskip("arch", reason="arch is not installed")
    outcomes = attempted(1, "arch")
    assert max(float(str(one["off"])) for one in outcomes.values()) <= proof.AGREE_WITHIN


def test_it_goes_on_where_it_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And begins anew once the rules are others. What is half written counts for nothing."""
    store = tmp_path / "outcomes.jsonl"
    todo = [one for one in proof.trials(1) if one.kind in ("equal", "planted")]
    whole = proof.run_all(todo, None, 3600)
    proof.run_all(todo[:3], store, 3600)
    with store.open("a") as file:
        file.write('["half')
    assert set(proof.known_in(store)) == set(todo[:3])
    store.write_text("\n".join(store.read_text().splitlines()[:3]) + "\n")
    assert proof.tables(proof.run_all(todo, store, 3600)) == proof.tables(whole)
    assert Counter(store.read_text().splitlines()).most_common(1)[0][1] == 1
    monkeypatch.setattr(proof, "digest", lambda: "others")
    assert not proof.known_in(store)


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "proof.md"
    assert proof.main(["--trials", "1", "--minutes", "0.02", "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() in page.read_text()
    assert "| variation 3%, autocorrelation 0.5 |" in page.read_text()
