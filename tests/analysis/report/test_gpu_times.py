"""The page of a run on CUDA shows what its stages took the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from my_utils.analysis.report.bars import mean_step
from my_utils.analysis.report.judged import Source
from my_utils.analysis.report.page import page_text
from my_utils.analysis.report.run_page import make_page
from tests.support.run_csv import RankCsv

pytestmark = pytest.mark.no_torch

STEPS, STEP_MS = 60, 40.0


def run_that_reads_the_loss(folder: Path, timed: float = 1.0) -> Path:
    """A step: 5 ms of input, 2 ms to enqueue the rest, 30 ms of the GPU, for which the host waits
    in no stage, as `loss.item()` does. timed: the part of the steps with GPU times."""
    csv = RankCsv()
    csv.process()
    for step in range(STEPS):
        at = step * STEP_MS
        known = step % 10 < 10 * timed
        csv.stage("input", step, at, at + 5, gpu=(at, at + 5) if known else None)
        for name, begin, gpu in (
            ("forward", 5, (at + 5, at + 15)), ("backward", 6, (at + 15, at + 35)),
        ):  # fmt: skip
            csv.stage(name, step, at + begin, at + begin + 1, gpu=gpu if known else None)
    return csv.in_order().write(folder)


@pytest.mark.parametrize("timed", [1.0, 0.9], ids=["all steps", "not all steps"])
def test_a_step_goes_where_the_device_spends_it(timed: float, tmp_path: Path) -> None:
    page = make_page(Source((str(run_that_reads_the_loss(tmp_path / "logs", timed)),)))
    parts = {part.name: part.ms for part in mean_step(page.judged)}
    assert parts == pytest.approx(
        {"input": 5.0, "forward": 10.0, "backward": 20.0, "untimed": 5.0}, abs=0.05
    )
    assert "in launch the GPU waits for the host" in page_text(page)
    assert page.worst is not None
    host, gpu = page.worst.ranks
    assert (host.name, gpu.name) == ("rank 0", "rank 0, GPU")
    stages = [page.worst.names[path] for path, *_ in gpu.spans]
    assert stages == ["forward", "backward"], "the GPU loads no input"
    assert [span[2:] for span in gpu.spans] == [(5.0, 10.0), (15.0, 20.0)]


def test_without_gpu_times_the_page_has_those_of_the_host(tmp_path: Path) -> None:
    page = make_page(Source((str(run_that_reads_the_loss(tmp_path / "logs", 0.5)),)))
    assert page.verdict.status == "not judged"
    parts = {part.name: part.ms for part in mean_step(page.judged)}
    assert parts == pytest.approx(
        {"input": 5.0, "forward": 1.0, "backward": 1.0, "untimed": 33.0}, abs=0.6
    )
