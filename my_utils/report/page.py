"""The report as one HTML file that needs nothing else."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.files import whole_file
from ..common.tables import needed
from .figures import as_data_url
from .ranks import PURPOSE

if TYPE_CHECKING:
    from .analysis import Report

__all__ = ["StepTrace", "write_page"]

ROWS_MAX = 500  # of a table; the CSVs have all


@dataclass(frozen=True)
class StepTrace:
    """The trace of a step, at which the page links."""

    step: int
    href: str


def write_page(report: Report, path: Path, links: dict[int, StepTrace]) -> None:
    """links: the place of a straggler in the report's list, to the trace of its worst step."""
    jinja2 = needed("jinja2", PURPOSE, "report")
    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.PackageLoader("my_utils", "report"),
        undefined=jinja2.StrictUndefined, trim_blocks=True,
    )  # fmt: skip
    text: str = environment.get_template("page.html.j2").render(
        run=report.run,
        stragglers=[one.as_dict() for one in report.stragglers[:ROWS_MAX]],
        problems=report.problems,
        stages=_rows(report.stages.sort_values("self_s", ascending=False)),
        changes=[dataclasses.asdict(change) for change in report.changes[:ROWS_MAX]],
        hosts=_rows(report.hosts.sort_values("cost_s", ascending=False)),
        groups=_rows(report.groups),
        overlap=_rows(report.overlap),
        links=links,
        image=lambda name: as_data_url(report, name),
    )
    with whole_file(path) as file:
        file.write(text.encode())


def _rows(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.head(ROWS_MAX).to_dict("records")
    return rows
