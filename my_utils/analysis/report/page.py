"""The report as one HTML file that needs nothing else, neither a network nor a server."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.colours import stage_colour, text_colour
from ..pages.html import rendered
from ..pages.tables import Table
from .bars import mean_step, rank_bars, row_means, waits_ns
from .cells_as_text import code_cells
from .page_tables import host_table, rank_table, stage_table

if TYPE_CHECKING:
    from ..verdict.result import Verdict
    from ..verdict.run_data import Matrix, RunData
    from .flames import Flames
    from .worst_step import WorstStep


CELLS_MAX = 1_000_000  # of all layers of the heat map together
VIEWER = "https://ui.perfetto.dev"
WORK_COLOUR, WAIT_COLOUR = "#0072b2", "#b5bac2"
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
    """What the page shows. sync_stages: in which ranks wait. warmup: columns that are left out of
    means. flames: of a sampled profile. tables: more than those of stages, ranks and hosts.
    viewer: Perfetto's address."""

    run: RunData
    verdict: Verdict
    sync_stages: Sequence[str] = ()
    warmup: int = 0
    worst: WorstStep | None = None
    trace: PageTrace | None = None
    flames: Flames | None = None
    tables: Sequence[Table] = ()
    problems: Sequence[str] = field(default_factory=list)
    viewer: str = VIEWER

    @cached_property
    def waited(self) -> Matrix:
        """Rank × step: what each rank waited in `sync_stages`, in ns."""
        return waits_ns(self.run, self.sync_stages)


def page_text(page: Page) -> str:
    """The whole file. Names from the run are escaped wherever they stand; scripts and styles other
    than the page's own do not run, by its Content-Security-Policy."""
    run = page.run
    parts = mean_step(run, page.warmup)
    return rendered(
        "my_utils.analysis.report",
        "report.html.j2",
        title=_title(run),
        data=_data(page),
        tables=[
            *page.tables,
            stage_table(run, page.warmup, page.sync_stages),
            rank_table(run, page.warmup, page.waited),
            host_table(run, page.warmup, page.waited),
            *([page.flames.table] if page.flames is not None else []),
        ],
        state=STATE[page.verdict.status],
        verdict="\n".join(page.verdict.lines(width=100)),
        problems=_problems(page),
        parts=parts,
        step_ms=sum(part.ms for part in parts),
        bars=rank_bars(run, page.waited, page.warmup),
        ranks=len(run.ranks),
        sync=list(page.sync_stages),
        work_colour=WORK_COLOUR,
        wait_colour=WAIT_COLOUR,
        flames=page.flames,
        worst_title=page.worst.title if page.worst is not None else "",
    )


def _problems(page: Page) -> list[str]:
    of_flames = page.flames.problems if page.flames is not None else []
    return [*(page.problems or page.run.problems), *of_flames]


def _title(run: RunData) -> str:
    ranks = f"{len(run.ranks)} rank{'s' if len(run.ranks) != 1 else ''}"
    if not len(run.steps):
        return f"{ranks}, no steps"
    return f"{ranks}, steps {run.steps[0]} to {run.steps[-1]}"


def _data(page: Page) -> dict[str, Any]:
    data: dict[str, Any] = {
        "markdown": page.verdict.markdown(),
        "colors": _colours(page),
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
            "data": _deflated(page.trace.content),
        }
    return data


def _deflated(content: bytes) -> str:
    import zlib

    return base64.b64encode(zlib.compress(content)).decode()


def _colours(page: Page) -> dict[str, tuple[str, str]]:
    names = page.worst.names if page.worst is not None else []
    return {name: (stage_colour(name), text_colour(stage_colour(name))) for name in names}


def _heat(page: Page) -> dict[str, Any] | None:
    """The layers of the map: a rank's own work first, then the stages that take most, as many as
    fit in CELLS_MAX."""
    run = page.run
    if not run.step_ns.size or len(run.steps) < 2:
        return None
    layers: list[dict[str, Any]] = []
    room = CELLS_MAX
    for name, matrix in _layers(page):
        if layers and matrix.size > room:
            break
        coded = code_cells(matrix * 1e-6)
        layers.append(
            {"name": name, "low_ms": coded.low_ms, "ratio": coded.ratio, "data": coded.data}
        )
        room -= matrix.size
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
