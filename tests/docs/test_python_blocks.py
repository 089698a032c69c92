"""Every Python block of README.md and of docs/ runs, or the page says why not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..conftest import ROOT
from .blocks import PYTHON, blocks

pytest.importorskip("torch", reason="torch is not installed")

# They import much, compile, or start processes.
SLOW = {
    "docs/cookbook.md",
    "docs/correctness/torch-operators.md",
    "docs/runs/what-run-records.md",
    "docs/time/profile-a-trainer-run.md",
    "docs/time/read-ncu-csv.md",
    "docs/time/scalars-to-tensorboard.md",
    "docs/time/sweep-shapes.md",
    "docs/time/torch-compile.md",
}
# For half a minute and more, and tests of what the page is about do as much.
LONG = {"docs/capture/capture-a-running-job.md", "docs/time/time-functions-across-ranks.md"}


@pytest.fixture(scope="module")
def run_page() -> Iterator[Callable[[str, Path], int]]:
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.docs.page_runner"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert runner.stdin is not None and runner.stdout is not None
    stdin, stdout = runner.stdin, runner.stdout

    def run(page: str, folder: Path) -> int:
        print(json.dumps([page, str(folder)]), file=stdin, flush=True)
        return int(stdout.readline())

    yield run
    stdin.close()
    stdout.close()
    assert runner.wait() == 0


def pages() -> list[object]:
    found = dict.fromkeys(block.page for block in blocks(PYTHON) if not block.why)
    return [pytest.param(page, marks=marks_of(page)) for page in found]


def marks_of(page: str) -> list[pytest.MarkDecorator]:
    if page in LONG:
        return [pytest.mark.thorough]
    return [pytest.mark.slow] if page in SLOW else []


@pytest.mark.parametrize("page", pages())
def test_the_blocks_run(page: str, run_page: Callable[[str, Path], int], tmp_path: Path) -> None:
    if "import ray" in (ROOT / page).read_text(encoding="utf-8"):
        pytest.importorskip("ray", reason="ray is not installed")
    status = run_page(page, tmp_path)
    assert status == 0, (tmp_path / "output.txt").read_text(encoding="utf-8")
