"""The report as one HTML file that needs nothing else, neither a network nor a server."""

from __future__ import annotations

import base64
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...core.colours import stage_colour, text_colour
from ...core.units import age_text, count_text
from ..pages.html import rendered
from ..pages.tables import Table
from ..verdict.waits import waits_by_stage
from .bars import WAIT_COLOUR, mean_step, rank_bars, row_means
from .curves import make_curves
from .judged import judged_steps, of_rows
from .ledger_bars import ledger_bars, ledger_legend, ledger_table
from .page_tables import host_table, rank_table, stage_table
from .parts import part_bars

if TYPE_CHECKING:
    from ..ledger.ledger import Ledger
    from ..timeline.timeline import Timeline
    from ..verdict.result import Verdict
    from ..verdict.run_data import Integers, Matrix, RunData
    from .flames import Flames
    from .worst_step import WorstStep


CELLS_MAX = 1_000_000  # of all layers of the heat map together
CODES = 65_535  # of times; 0 is kept for what was not recorded
RATIO_LEAST = 1.00002  # so that equal cells do not divide by zero
LEVEL = 6  # of zlib: 9 takes four times as long for 1 %
VIEWER = "https://ui.perfetto.dev"
WORK_COLOUR = "#0072b2"
STATE = {"ok": "green", "found": "found", "not judged": "unjudged"}


@dataclass(frozen=True)
class StepTrace:
    """The trace of a step beside the page, to which a straggler's row leads."""

    step: int
    href: str


@dataclass(frozen=True)
class PageTrace:
    """A trace in the page for Perfetto. name: of the file that is offered. content: of the file."""

    name: str
    content: bytes


@dataclass
class Page:
    """What the page shows. sync_stages: in which ranks wait. flames: of a sampled profile. tables:
    more than those of stages, ranks and hosts. ledger: of all time of the job. timeline: the parts
    of the run. viewer: Perfetto's address."""

    run: RunData
    verdict: Verdict
    sync_stages: Sequence[str] = ()
    worst: WorstStep | None = None
    trace: PageTrace | None = None
    flames: Flames | None = None
    tables: Sequence[Table] = ()
    problems: Sequence[str] = field(default_factory=list)
    ledger: Ledger | None = None
    timeline: Timeline | None = None
    viewer: str = VIEWER

    def of_rows(self, rows: Integers) -> Page:
        """With the ranks in these rows alone; what they waited is known from all."""
        if len(rows) == len(self.run.ranks):
            return self
        found = replace(self, run=of_rows(self.run, rows))
        found.judged = of_rows(self.judged, rows)
        found.waits = {stage: waited[rows] for stage, waited in self.waits.items()}
        return found

    @cached_property
    def judged(self) -> RunData:
        """The run in the steps that the verdict judges, whose means are shown; all of a run that is
        not judged."""
        return judged_steps(self.run, self.verdict)

    @cached_property
    def waits(self) -> dict[str, Matrix]:
        """Of each of `sync_stages` rank × judged step, what each rank waited in it, in ns."""
        return waits_by_stage(self.judged, self.sync_stages)

    @cached_property
    def waited(self) -> Matrix:
        """Rank × judged step: the same of all of them."""
        return sum(self.waits.values(), np.zeros(self.judged.step_ns.shape))


def page_text(page: Page) -> str:
    """The whole file. Names from the run are escaped wherever they are; scripts and styles other
    than the page's own do not run, by its Content-Security-Policy."""
    run, judged = page.run, page.judged
    parts = mean_step(judged, page.waits)
    of_flames = page.flames.problems if page.flames is not None else []
    return rendered(
        "my_utils.analysis.report",
        "report.html.j2",
        title=_title(run, page.ledger),
        data=_data(page),
        tables=[
            *page.tables,
            *([ledger_table(page.ledger)] if page.ledger is not None else []),
            stage_table(judged, page.waits),
            rank_table(run, judged, page.waited),
            host_table(judged, page.waited),
            *([page.flames.table] if page.flames is not None else []),
        ],
        state=STATE[page.verdict.status],
        verdict="\n".join(page.verdict.lines(width=100)),
        problems=[*(page.problems or run.problems), *of_flames],
        curves=make_curves(run),
        part_bars=part_bars(page.timeline, run.steps),
        steps=f"steps {run.steps[0]} to {run.steps[-1]}" if len(run.steps) else "",
        ledger=page.ledger,
        ledger_bars=[] if page.ledger is None else ledger_bars(page.ledger),
        ledger_legend=[] if page.ledger is None else ledger_legend(page.ledger),
        parts=parts,
        step_ms=float(np.nanmean(judged.step_ns)) * 1e-6 if parts else 0.0,
        bars=rank_bars(judged, page.waited),
        ranks=len(run.ranks),
        sync=list(page.sync_stages),
        work_colour=WORK_COLOUR,
        wait_colour=WAIT_COLOUR,
        flames=page.flames,
        worst_title=page.worst.title if page.worst is not None else "",
    )


def _title(run: RunData, ledger: Ledger | None) -> str:
    ranks = count_text(len(run.ranks), "rank")
    steps = f"steps {run.steps[0]} to {run.steps[-1]}" if len(run.steps) else "no steps"
    script = run.run_file.get("script")
    named = [os.path.basename(script)] if isinstance(script, str) else []
    if ledger is not None:
        begin = time.localtime(ledger.begin_ns / 1e9)
        wall_s = int(ledger.wall_ns.max()) / 1e9
        named += [time.strftime("%Y-%m-%d %H:%M", begin), age_text(wall_s)]
    return ", ".join([*named, ranks, steps])


def _data(page: Page) -> dict[str, Any]:
    names = page.worst.names if page.worst is not None else []
    data: dict[str, Any] = {
        "markdown": page.verdict.markdown(),
        "colors": {name: (stage_colour(name), text_colour(stage_colour(name))) for name in names},
        "heat": _heat(page),
        "timeline": page.worst.as_data() if page.worst is not None else None,
        "flames": page.flames.data if page.flames is not None else None,
        "trace": None,
    }
    if page.trace is not None:
        data["trace"] = {
            "name": page.trace.name,
            "title": page.trace.name,
            "viewer": page.viewer,
            "data": base64.b64encode(zlib.compress(page.trace.content)).decode(),
        }
    return data


def _heat(page: Page) -> dict[str, Any] | None:
    """The layers of the map: a rank's own work first, then the stages that take most, as many as
    fit in CELLS_MAX."""
    run = page.run
    if not run.step_ns.size or len(run.steps) < 2:
        return None
    layers: list[dict[str, Any]] = []
    cells_left = CELLS_MAX
    for name, matrix in _layers(page):
        if layers and matrix.size > cells_left:
            break
        coded = code_cells(matrix * 1e-6)
        layers.append(
            {"name": name, "low_ms": coded.low_ms, "ratio": coded.ratio, "data": coded.data}
        )
        cells_left -= matrix.size
    hosts, host_of = np.unique(np.array(run.hosts or [""] * len(run.ranks)), return_inverse=True)
    return {
        "ranks": run.ranks.tolist(),
        "steps": run.steps.tolist(),
        "hosts": hosts.tolist(),
        "host_of": host_of.tolist(),
        "layers": layers,
    }


def _layers(page: Page) -> list[tuple[str, Matrix]]:
    run = page.run
    sync = [place for place, name in enumerate(run.stages) if name in page.sync_stages]
    work = run.step_ns - run.totals[:, :, sync].sum(2)
    layers = [("the step without waiting stages" if sync else "the step", work)]
    if sync:
        layers.append(("the step", run.step_ns))
    means = row_means(run.totals.reshape(-1, len(run.stages)).T)
    for place in np.argsort(-means).tolist():
        took = run.totals[:, :, place]
        layers.append((run.stages[place], np.where(took > 0, took, np.nan)))
    return layers


@dataclass(frozen=True)
class CodedCells:
    """The cells of a layer of the heat map as text: a matrix of times in a megabyte, not in eight.

    A cell is a whole number of 16 bits on a logarithmic scale, 0 where nothing was recorded; one
    with the code c > 0 took low_ms * ratio ** (c - 1). data: all high bytes come first, then all
    low bytes: neighbours are alike, so that deflate finds more. It is base64 of a zlib stream (RFC
    1950), which browsers inflate themselves."""

    low_ms: float
    ratio: float
    data: str

    @property
    def error(self) -> float:
        """By which fraction a decoded time is off at most."""
        return float(np.sqrt(self.ratio)) - 1.0


def code_cells(times_ms: npt.NDArray[np.float64]) -> CodedCells:
    """times_ms: rank × step. NaN is not recorded; what is below a nanosecond counts as one.

    Of times within a factor of 10^12 each is kept to 0.03 %.
    """
    known = np.isfinite(times_ms)
    clipped = np.maximum(times_ms[known], 1e-6)
    low = float(clipped.min(initial=1.0)) if clipped.size else 1.0
    high = float(clipped.max(initial=low))
    ratio = max((high / low) ** (1 / (CODES - 1)), RATIO_LEAST)
    codes = np.zeros(times_ms.shape, np.uint16)
    codes[known] = np.rint(np.log(clipped / low) / np.log(ratio)).astype(np.int64) + 1
    planes = np.concatenate([codes.ravel() >> 8, codes.ravel() & 0xFF]).astype(np.uint8)
    return CodedCells(low, ratio, base64.b64encode(zlib.compress(planes.tobytes(), LEVEL)).decode())
