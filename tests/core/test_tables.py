"""Tables that spreadsheets open."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from my_utils.core.tables import csv_table
from my_utils.profilers.sweep.results import SweepPoint, SweepResult

FORMULA = '=HYPERLINK("http://x","y")'


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_names_are_no_formulas_and_numbers_stay() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(
        {"stage": [FORMULA, "\t=1", "forward", "-3", None], "ms": [-1.5, 2, 3, 4, 5], "=n": 1}
    )
    rows = rows_of(csv_table(table).to_csv(index=False))
    assert [row["stage"] for row in rows] == [f"'{FORMULA}", "'\t=1", "forward", "-3", ""]
    assert [float(row["ms"]) for row in rows] == [-1.5, 2, 3, 4, 5]
    assert set(rows[0]) == {"stage", "ms", "'=n"}
    assert table["stage"][0] == FORMULA, "the table itself is as it was"


def test_those_of_a_sweep(tmp_path: Path) -> None:
    points = [SweepPoint((2, 3), 4, FORMULA, "error", error="-x failed")]
    SweepResult("softmax", points).to_csv(tmp_path / "sweep.csv")
    (row,) = rows_of((tmp_path / "sweep.csv").read_text())
    assert (row["others"], row["error"]) == (f"'{FORMULA}", "'-x failed")


def test_each_table_that_is_written_is_such_a_table() -> None:
    """All but the profile CSV, whose form other programs know."""
    package = Path(__file__).parents[2] / "my_utils"
    profile = package / "testing" / "run_trace.py"
    for path in {*package.rglob("*.py")} - {profile}:
        text = path.read_text(encoding="utf-8")
        for written in re.findall(r".*\.to_csv\((?!self).*", text):
            assert "csv_table(" in written or "result.to_csv" in written, (path, written)
        if "csv.writer(" in text or "csv.DictWriter(" in text:
            assert "cell_text(" in text, path
