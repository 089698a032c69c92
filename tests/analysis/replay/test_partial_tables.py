"""Where a source did not record who meets whom, nobody is named in place of another."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import pytest

from my_utils.analysis.replay.inputs import verdict_of
from my_utils.analysis.replay.judge import judge_operations
from my_utils.analysis.replay.result import ReplayVerdict

from ...support.partial_tables import CONDITIONS
from ...support.plants import PLANTS, Case, can_have, case_of
from ...support.programs import LAYOUTS
from ...support.replayed import operations_of, outcome
from .test_read_table import HEADER, rows_of, write

pytestmark = pytest.mark.no_torch

STEPS = 24
CELLS = [
    (layout, plant)
    for layout, plant in itertools.product(LAYOUTS, (None, *PLANTS))
    if plant is None or can_have(layout, plant, 8)
]  # fmt: skip


def result_of(case: Case, verdict: ReplayVerdict, ranks: set[int]) -> str:
    """ "wrong" where ranks are named that are not those of the plant, of the ranks in the file.
    "link": one between ranks that wait for one that is not in the file, as is said, too."""
    if case.truth is None:
        return {"ok": "right", "found": "wrong"}.get(verdict.status, verdict.status)
    if verdict.status != "found":
        return outcome(case, verdict)
    named = set(verdict.findings[0].ranks)
    if named == ranks & set(case.truth.ranks):
        return "right"
    if verdict.findings[0].kind == "communication" and len(ranks) < 8:
        return "link" if "or a rank that is not in the files" in verdict.lines()[0] else "wrong"
    return "wrong" if named else "nobody"


def count_of(cells: list[tuple[str, str | None]], condition: str, seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for layout, plant in cells:
        case = case_of(layout, plant, 0.2 if plant else 0.0, 8, STEPS, seed)
        operations = CONDITIONS[condition](operations_of(case.program))
        verdict = judge_operations(operations)
        result = result_of(case, verdict, set(operations.rank.tolist()))
        counts[result] += 1
        if result == "wrong":
            print(condition, layout, plant, seed, case.truth, *verdict.lines(), sep="\n  ")
    return counts


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_run_of_which_a_part_is_known_names_nobody_else(condition: str) -> None:
    cells = [("tp_dp", "slow rank"), ("3d", "slow rank"), ("ep", "slow rank"), ("pp", None)]
    assert count_of(cells, condition, seed=1)["wrong"] == 0


def test_ranks_that_wait_for_one_whose_rows_are_missing_may_not_have_a_slow_link() -> None:
    """Rank 1 is slow."""
    cells = [("hsdp", "slow rank"), ("tp_dp", "slow rank"), ("ep", "slow rank")]
    counts = count_of([*cells], "every other rank", seed=302)
    assert counts["link"] >= 2 and not counts["wrong"]


def test_a_loss_in_receives_whose_senders_are_missing_is_not_judged() -> None:
    """The ranks in the file are the slow host; the last of them wait for ranks of the other one."""
    case = case_of("pp", "slow host", 0.5, 8, STEPS, seed=501)
    verdict = judge_operations(CONDITIONS["first half"](operations_of(case.program)))
    assert verdict.status == "not judged", verdict.lines()
    assert verdict.reason is not None and "receives whose senders are not known" in verdict.reason


@pytest.mark.thorough
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_condition_gives_a_wrong_name(condition: str) -> None:
    counts = sum((count_of(CELLS, condition, seed) for seed in range(101, 105)), Counter[str]())
    print(condition, dict(counts))
    assert counts["wrong"] == 0


def test_receives_without_a_column_of_peers_accuse_nobody(tmp_path: Path) -> None:
    """As with a column that is empty."""
    case = case_of("pp", "slow rank", 0.2, 8, STEPS, seed=1)
    reasons = []
    for header in (HEADER, [one for one in HEADER if one != "peer"]):
        rows = [dict(zip(HEADER, row, strict=True)) | {"peer": ""} for row in rows_of(case.program)]
        path = write(tmp_path / "run.csv", header, [[row[one] for one in header] for row in rows])
        verdict = verdict_of([path])
        assert verdict.status == "not judged", verdict.lines()
        reasons.append(verdict.reason)
    assert reasons[0] == reasons[1]
    assert "receives whose senders are not known" in str(reasons[0])
