"""Runs as arrays for the page, and the page open in a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from my_utils.analysis.report.flames import Flames
from my_utils.analysis.report.page import Page, PageTrace, page_text
from my_utils.analysis.report.worst_step import RankSpans, WorstStep
from my_utils.analysis.verdict.result import Verdict
from my_utils.analysis.verdict.run_data import RunData
from tools.perfetto_ui import Page as Tab, find_browser

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">"
STAGES = ("input", "forward", "backward", "optimizer", HOSTILE)
BACKWARD = 2
DRAWN = "document.documentElement?.dataset.drawn === 'all'"


@dataclass
class Said:
    """A verdict as far as the page asks for one."""

    status: str = "found"
    warmup: int = 0
    first_step: int | None = None
    last_step: int | None = None

    def lines(self, width: int = 100) -> list[str]:
        return ["BOUND BY INPUT on rank 1 & <b>others</b>", "  next: my_utils why logs"]

    def markdown(self) -> str:
        return "**bound by input** on `rank 1`"


def slow_loader(ranks: int, steps: int, slow: tuple[int, ...] = (1,), seed: int = 0) -> RunData:
    """Ranks that meet in backward; those of `slow` wait 60 ms a step for their input from the third
    third of the run on."""
    rng = np.random.default_rng(seed)
    took = np.array([0.6, 5.0, 9.0, 1.2, 0.1]) * 1e6
    totals = took * np.exp(rng.normal(0, 0.03, (ranks, steps, len(STAGES))))
    for rank in slow:
        totals[rank, 2 * steps // 3 :, 0] += 60e6
    work = totals.sum(2) - totals[:, :, BACKWARD]
    totals[:, :, BACKWARD] += work.max(0) - work
    step_ns = totals.sum(2) + 0.2e6
    step_begins = np.cumsum(step_ns, 1) - step_ns
    ends = step_begins[:, :, None] + np.cumsum(totals, 2)
    return RunData(
        ranks=np.arange(ranks), hosts=[f"node{rank // 8:02d}" for rank in range(ranks)],
        world_size=ranks, steps=np.arange(100, 100 + steps), stages=STAGES,
        begins=ends - totals, ends=ends, totals=totals, step_begins=step_begins, step_ns=step_ns,
        problems=["rank 3: <b>Input/output error</b>"],
    )  # fmt: skip


def worst_of(run: RunData, step: int, ranks: tuple[int, ...]) -> WorstStep:
    begins, totals = run.begins[:, step] * 1e-6, run.totals[:, step] * 1e-6
    origin = min(begins[rank, 0] for rank in ranks)
    rows = [
        RankSpans(rank, [
            (place, 0, float(begins[rank, place] - origin), float(totals[rank, place]))
            for place in range(len(run.stages))
        ])
        for rank in ranks
    ]  # fmt: skip
    return WorstStep(int(run.steps[step]), run.stages, rows)


def page_of(
    run: RunData, trace: bytes = b"", viewer: str = "https://ui.perfetto.dev",
    flames: Flames | None = None,
) -> str:  # fmt: skip
    last = len(run.steps) - 1
    said = cast("Verdict", Said())  # which has what the page asks for
    worst = worst_of(run, last, (1, 0))
    handed = PageTrace("step.json", trace) if trace else None
    return page_text(Page(run, said, ["backward"], worst, handed, flames, viewer=viewer))


@contextlib.contextmanager
def opened(text: str, folder: Path, width: int = 1200, height: int = 1000) -> Iterator[Tab]:
    """The page in a browser once all is drawn; skips where there is no browser."""
    browser = find_browser()
    if browser is None:
        pytest.skip("no chromium on this machine (Debian package chromium)")
    path = folder / "page.html"
    path.write_text(text)
    with Tab(browser, width, height) as tab:
        tab.call("Page.navigate", url=path.as_uri())
        tab.wait_for(DRAWN, "the page")
        yield tab
