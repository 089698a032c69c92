"""The curves of a page and the parts above them, against the arrays of the run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from my_utils.analysis.report.curves import POINTS_MAX, make_curves
from my_utils.analysis.report.judged import Source
from my_utils.analysis.report.page import page_text
from my_utils.analysis.report.run_page import make_page
from my_utils.analysis.verdict.load import load_run

from ...support.planted_runs import Run


def points(text: str) -> np.ndarray:
    return np.array([[float(one) for one in point.split(",")] for point in text.split()])


def test_the_step_over_the_run(tmp_path: Path) -> None:
    logs = Run(ranks=3, steps=60).slower(2, "forward", steps=slice(30, 60)).write(tmp_path / "logs")
    (curve,) = make_curves(run := load_run(logs))
    top_ms = float(re.fullmatch(r"([0-9.]+) ms", curve.top)[1])  # type: ignore[index]
    assert curve.title == "a step"
    assert top_ms == pytest.approx(run.step_ns.max() * 1e-6, rel=1e-2)
    x, y = points(curve.line).T
    assert x.tolist() == pytest.approx((run.steps / run.steps[-1] * 1000).tolist(), abs=0.06)
    median_ms = np.median(run.step_ns, axis=0) * 1e-6
    assert (1 - y / 100) * top_ms == pytest.approx(median_ms, rel=0.01)
    band = points(curve.band)[:, 1].reshape(2, -1)
    most_ms, least_ms = (1 - band[0] / 100) * top_ms, (1 - band[1][::-1] / 100) * top_ms
    assert most_ms == pytest.approx(run.step_ns.max(0) * 1e-6, rel=0.01)
    assert least_ms == pytest.approx(run.step_ns.min(0) * 1e-6, rel=0.01)


def test_what_was_recorded_has_curves(tmp_path: Path) -> None:
    """Memory is measured in some steps only; what a step gets done is that of all ranks."""
    run = load_run(Run(ranks=2, steps=40).write(tmp_path / "logs"))
    some = np.where(np.arange(40) % 5 == 0, 2.0**30, np.nan)
    samples = np.full((2, 40), 8.0)
    cpu_us = run.step_ns * 1e-3 / 2
    counters = {"samples": samples, "rss_bytes": np.stack([some, 2 * some]), "cpu_us": cpu_us}
    run = replace(run, counters=counters)
    by_title = {curve.title: curve for curve in make_curves(run)}
    assert list(by_title) == [
        "a step", "samples a second", "memory of a rank",
        "of a core that a rank's training thread has",
    ]  # fmt: skip
    assert by_title["memory of a rank"].top == "2.00 GiB"
    assert len(points(by_title["memory of a rank"].line)) == 8
    assert by_title["of a core that a rank's training thread has"].top == "50.0 %"
    fastest = 16e9 / run.step_ns.max(0).min()
    top = float(by_title["samples a second"].top.replace(",", ""))
    assert top == pytest.approx(fastest, rel=1e-3)


def test_a_long_run_is_drawn_with_few_points(tmp_path: Path) -> None:
    """One step of a minute does not flatten the others."""
    run = load_run(Run(ranks=1, steps=1200).slower(2000, "data", steps=700).write(tmp_path / "l"))
    (curve,) = make_curves(run)
    y = points(curve.line)[:, 1]
    assert len(y) == POINTS_MAX and y.min() == 0
    assert 1 - np.median(y) / 100 > 0.1


def test_the_parts_stand_above_the_curves(tmp_path: Path) -> None:
    run = Run(ranks=2, steps=400).slower(1.5, "forward", rank=1, steps=slice(200, 400))
    page = page_text(make_page(Source((str(run.write(tmp_path / "logs")),))))
    bars = re.findall(r'<rect x="([0-9.]+)" [^>]*class="part"><title>(.*?)<', page)
    assert [float(x) for x, _ in bars] == [2.5, 500.0]
    assert "nothing stands out" in bars[0][1] and "waiting for rank 1 in iter" in bars[1][1]
    assert bars[1][1] in re.findall(r'<pre class="parts">(.*?)</pre>', page, re.DOTALL)[0]
    steady = Run(ranks=2, steps=400).write(tmp_path / "steady")
    assert 'class="part"' not in page_text(make_page(Source((str(steady),))))
