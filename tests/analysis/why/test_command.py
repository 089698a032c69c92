"""What `my_utils why` loads: it is run often, and on small runs most of its time is imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import ROOT
from ...support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

SCRIPT = """
import sys
from my_utils.cli.why import main
main([sys.argv[1]])
print(sorted(name for name in sys.modules if name.startswith("my_utils.analysis.live")))
"""


def test_a_run_that_ended_needs_nothing_of_the_live_view(tmp_path: Path) -> None:
    for rank in range(2):
        csv = RankCsv(rank, 2)
        csv.process()
        for number in range(60):
            csv.step(number, 30.0 * number, [("input", 0, 5), ("forward", 5, 15)])
        csv.write(tmp_path / "logs")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "logs")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "60 steps" in done.stdout or "59 steps" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
