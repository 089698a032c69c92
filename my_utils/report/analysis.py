"""Which rank, stage and step cost the time of a run: one report over all ranks.

    python -m my_utils.report LOG_DIR… -o report.html [--json] [--csv DIR] [--engine duckdb|ray]

Exit status: 0, the report is written; 1, there was nothing to report on or it could not be
written; 2, wrong arguments.

>>> import tempfile
>>> from my_utils.logger import GlobalLogger
>>> from my_utils.utils import MyTimer
>>> logs = tempfile.mkdtemp()
>>> GlobalLogger().setup(logs, rank=0, world_size=1, console=False)
>>> timer = MyTimer()
>>> for step in range(6):
...     timer.set_step(step)
...     with timer.time_stage("iter"), timer.time_stage("forward"):
...         pass
...     timer.step()
>>> GlobalLogger().close()
>>> report = analyze(logs)
>>> list(report.stages["stage"]), report.stages["count"].tolist()
(['iter', 'iter/forward'], [6, 6])
>>> report.stragglers, report.run["not_judged"]  # one rank alone has no peers
([], 'fewer than 4 ranks')
"""

from __future__ import annotations

import argparse
import contextlib
import json
import operator
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from urllib.parse import quote

import numpy as np

from ..common.aliases import renamed_parameters
from ..common.arguments import check_int
from ..common.equality import same_fields
from ..common.files import whole_file
from ..common.public import public
from ..common.ranges import checked, parse_ranks, parse_steps
from ..common.tables import needed
from . import tables
from .cells import Cells, python_errors
from .changes import StageChange, changes_of_stages
from .grid import Grid
from .heat import Heat, heat_of
from .load import EVER, in_batches, leave_out_older_runs, problems_of
from .on_ray import in_batches_on_ray
from .overlap import overlap_of
from .ranks import PURPOSE, RankFacts, find_ranks
from .stages import stage_table, stages_by_rank
from .stragglers import Straggler, find_stragglers, why_not_judged
from .waits import clock_offsets, segments_of, synchronising_stages

if TYPE_CHECKING:
    import pandas as pd

    from .page import StepTrace

__all__ = ["Report", "ReportError", "Straggler", "analyze", "main"]

TABLES = ("stages", "stages_by_rank", "steps", "waits", "ranks", "hosts", "groups", "overlap")
STEP_TRACES = 3  # stragglers whose worst step gets a trace
PEERS_IN_TRACE = 3

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@public("my_utils.report")
class ReportError(ValueError):
    """There is nothing to report on; the text says why."""


class RunFigures(TypedDict):
    """What is said of the whole run; see Report."""

    ranks: int
    steps: int
    first_step: int
    last_step: int
    warmup: int
    not_judged: str | None
    step_ms: float | None
    duration_s: float
    synchronising: list[str]
    waited_s: float


@public("my_utils.report")
@dataclass
class Report:
    """What `analyze` found. Times are seconds (`_s`) or milliseconds (`_ms`).

    run: ranks, steps, first_step, last_step, warmup (steps at the beginning that were left out of
        comparisons), step_ms (the median of all ranks and steps), duration_s, synchronising (the
        stages in which ranks wait for one another), waited_s (of all ranks together), not_judged
        (why ranks are not compared, such as "fewer than 4 ranks"; None where they
        are).
    stragglers: the ranks that are slow, the most expensive first; empty where ranks are not judged.
    stages: a row a stage; its columns are those of `_run_report.stages.stage_table`.
    stages_by_rank: rank, stage, count, total_s, self_s, mean_ms.
    steps: a row a step: step, median_ms; without the stages in which ranks wait busy_ms (the
        median), busy_low_ms and busy_high_ms (10 % and 90 % of the ranks), busy_max_ms and
        busiest_rank; where ranks wait for one another also rank (that they waited for), stage (in
        which it lost the time), lost_ms and cost_s (of all ranks together).
    waits: a row a step and synchronising stage: step, sync, rank, late_ms (behind the second),
        cost_s, stage, lost_ms.
    ranks: a row a rank: rank, host, its parallel groups, step_ms, waited_s (for others), cost_s
        (that the others waited for it), last_step, rows, bad_rows, dropped, open, attempts,
        clock_error_s.
    hosts, groups: the same sums over the ranks of a host, and of each parallel group.
    changes: stages that took more or less time from a step on.
    overlap: a row a rank of the torch traces that were given: communication_s, hidden_s (while
        kernels computed), hidden_share.
    problems: what is wrong with the files, in sentences.
    heat: the excess of a stage over the median as a matrix of ranks and steps, for the plot.

    Written by `to_json`, `save_csv`, `save_html` and `save_figures`.
    """

    run: RunFigures
    stragglers: list[Straggler]
    stages: pd.DataFrame
    stages_by_rank: pd.DataFrame
    steps: pd.DataFrame
    waits: pd.DataFrame
    ranks: pd.DataFrame
    hosts: pd.DataFrame
    groups: pd.DataFrame
    changes: list[StageChange]
    overlap: pd.DataFrame
    problems: list[str]
    heat: Heat

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)

    def to_json(self) -> str:
        """All of it but stages_by_rank, waits and heat, as one JSON object; NaN becomes null."""
        result: dict[str, Any] = {"run": self.run}
        result["stragglers"] = [one.as_dict() for one in self.stragglers]
        result["changes"] = [asdict(change) for change in self.changes]
        for name in ("stages", "steps", "ranks", "hosts", "groups", "overlap"):
            result[name] = json.loads(getattr(self, name).to_json(orient="records"))
        result["problems"] = self.problems
        return json.dumps(result)

    @renamed_parameters(folder="output")
    def save_csv(self, output: str | os.PathLike[str]) -> list[Path]:
        """Each table as `output`/<name>.csv."""
        pandas = needed("pandas", PURPOSE, "report")
        tables = {name: getattr(self, name) for name in TABLES}
        tables["stragglers"] = pandas.DataFrame(
            [one.as_dict() for one in self.stragglers], columns=list(Straggler.__annotations__)
        )
        tables["changes"] = pandas.DataFrame(
            self.changes, columns=list(StageChange.__annotations__)
        )
        target = Path(output)
        target.mkdir(parents=True, exist_ok=True)
        paths = []
        for name, table in tables.items():
            paths.append(target / f"{name}.csv")
            with whole_file(paths[-1]) as file:
                table.to_csv(file, index=False)
        return paths

    def save_html(
        self, path: str | os.PathLike[str], links: dict[int, StepTrace] | None = None
    ) -> None:
        """One file that opens in a browser without anything else. links: by the place of a
        straggler, the trace of its worst step."""
        from .page import write_page

        write_page(self, Path(path), links or {})

    @renamed_parameters(folder="output")
    def save_figures(self, output: str | os.PathLike[str]) -> list[Path]:
        """The plots as step_time.png, rank_by_step.png and stages.png in the folder `output`."""
        from .figures import write_figures

        return write_figures(self, Path(output))


@dataclass
class Options:
    """How `analyze` reads and what it leaves out; its arguments under their names."""

    ranks: set[int] | None
    steps: tuple[int, int] | None
    engine: Literal["duckdb", "ray"]
    sync: re.Pattern[str] | None
    warmup: int | None
    memory_limit: str
    parquet: str | None
    torch_traces: Sequence[str]


def analyze(
    paths: Paths,
    *,
    ranks: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    engine: Literal["duckdb", "ray"] = "duckdb",
    sync: str | None = None,
    warmup: int | None = None,
    memory_limit: str = "256MB",
    parquet: str | os.PathLike[str] | None = None,
    torch_traces: Iterable[str | os.PathLike[str]] = (),
) -> Report:
    """Reads the files of all ranks and finds the ranks, stages and steps that cost the time.

    Needs the extra `report`: pip install 'my_utils[report]'.

    Args:
        paths: log directories, CSVs, journals or globs of them; one or several. Clocks are taken
            as they stand in the files, aligned by `my_utils.clockSyncUtils`; offsets that are left
            show in the ends of a synchronising stage and are taken off.
        ranks: only these; all by default.
        steps: only these, a half-open range (10, 20); all by default.
        engine: "duckdb" reads here, "ray" on the cluster that the process is connected to or that
            RAY_ADDRESS names, which must see the same paths; the results are equal.
        sync: a regular expression that is searched for in the paths of stages ("iter/all_reduce"):
            in those it finds ranks wait for one another. Without it they are inferred.
        warmup: so many steps at the beginning are left out of comparisons; by default those that
            clearly take longer than the rest, a quarter of the run at most.
        memory_limit: of DuckDB, as it writes it; what is more goes to a temporary folder.
        parquet: a folder to which all stages are written, partitioned by rank.
        torch_traces: traces of torch's profiler (.json, .json.gz), from which the overlap of
            communication with compute is counted.

    Raises:
        ReportError: there are no stages to report on.
        ImportError: the extra is not installed.
        ValueError: an argument is not one of these, or a file of torch_traces is no trace.
        MemoryError: memory_limit is too little.
        OSError: the folder of parquet, or the temporary one, cannot be written to.
    """
    if engine not in ("duckdb", "ray"):
        raise ValueError(f"engine must be 'duckdb' or 'ray', not {engine!r}")
    if warmup is not None:
        check_int("warmup", operator.index(warmup), 0)
    if steps is not None and not (len(steps) == 2 and steps[0] < steps[1]):
        raise ValueError(f"steps must be a range that is not empty, not {steps!r}")
    options = Options(
        None if ranks is None else set(ranks), steps, engine, _pattern(sync), warmup, memory_limit,
        None if parquet is None else os.fspath(parquet), [os.fspath(path) for path in torch_traces],
    )  # fmt: skip
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise ValueError("paths must name a directory or a file, it is empty")
    return _analyze(several, options)


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise ValueError(f"sync is no regular expression: {error}: {text!r}") from None


def _analyze(paths: Sequence[str | os.PathLike[str]], options: Options) -> Report:
    file_sets, problems = find_ranks(paths, options.ranks)
    if not file_sets:
        raise ReportError("\n".join(problems) or "no rank of the input is among those asked for")
    with python_errors(), contextlib.closing(Cells(options.memory_limit)) as cells:
        batches = in_batches_on_ray if options.engine == "ray" else in_batches
        facts: dict[int, RankFacts] = {}
        for ranks in batches(file_sets, options.steps or EVER, options.parquet):
            cells.add(ranks)
            facts.update((one.facts.rank, one.facts) for one in ranks)
        return _report(cells, facts, problems, options)


def _report(
    cells: Cells, facts: dict[int, RankFacts], problems: list[str], options: Options
) -> Report:
    older = leave_out_older_runs(cells, facts)
    grid = Grid(cells, {r: one.groups.get("pp", 0) for r, one in facts.items()}, options.warmup)
    problems = problems + problems_of(grid, facts, options.ranks, older)
    if not grid.paths:
        raise ReportError("\n".join([*problems, "no stage has ended in these files"]))
    offsets = clock_offsets(grid)
    sync = synchronising_stages(grid, offsets, options.sync)
    segments = segments_of(grid, offsets, sync)
    stragglers = find_stragglers(grid, segments, {r: one.host for r, one in facts.items()})
    slow = [one.rank for one in stragglers]
    waits = tables.wait_table(grid, segments)
    ranks = tables.rank_table(grid, segments, offsets, facts)
    return Report(
        run=_run_facts(grid, sync, waits),
        stragglers=stragglers,
        stages=stage_table(cells, grid, segments),
        stages_by_rank=stages_by_rank(cells),
        steps=tables.step_table(grid, sync, waits),
        waits=waits,
        ranks=ranks,
        hosts=tables.host_table(ranks, slow),
        groups=tables.group_table(ranks, slow),
        changes=changes_of_stages(grid),
        overlap=overlap_of(options.torch_traces),
        problems=problems,
        heat=heat_of(grid, sync, stragglers),
    )


def _run_facts(grid: Grid, sync: list[int], waits: pd.DataFrame) -> RunFigures:
    step_ns = grid.middle_step_ns()
    return {
        "ranks": len(grid.ranks),
        "steps": len(grid.steps),
        "first_step": int(grid.steps[0]),
        "last_step": int(grid.steps[-1]),
        "warmup": grid.warmup,
        "step_ms": None if np.isnan(step_ns) else round(step_ns * 1e-6, 6),
        "duration_s": round(float(np.nanmax(grid.ends) - np.nanmin(grid.begins)) * 1e-9, 9),
        "synchronising": [grid.paths[path] for path in sync],
        "waited_s": round(float(waits["cost_s"].sum()), 9),
        "not_judged": why_not_judged(grid),
    }


# --- the command line ---


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m my_utils.report",
        description="Says which rank, stage and step cost the time of a run.",
        epilog="Exit status: 0 the report is written; 1 there was nothing to report on, or it "
        "could not be written; 2 wrong usage.",
    )
    add = parser.add_argument
    add("paths", nargs="+", metavar="LOG_DIR", help="directory, CSV, journal or glob")
    add("-o", "--output", metavar="HTML", help="the page, with traces of the worst steps beside it")
    add("--json", action="store_true", help="all figures to standard output")
    add("--csv", metavar="DIR", help="all tables as CSV")
    add("--png", metavar="DIR", help="the plots")
    add("--parquet", metavar="DIR", help="all stages, partitioned by rank")
    add("--engine", choices=("duckdb", "ray"), default="duckdb",
        help="ray: on the cluster that RAY_ADDRESS names")  # fmt: skip
    add("--steps", type=checked(parse_steps), metavar="10:20", help="only 10 <= step < 20")
    add("--ranks", type=checked(parse_ranks), metavar="0,3-7", help="only these ranks")
    add("--sync", metavar="REGEX", help="stages in which ranks wait; inferred without it")
    add("--warmup", type=int, metavar="N", help="steps at the beginning that do not count")
    add("--memory-limit", default="256MB", metavar="SIZE", help="of DuckDB (%(default)s)")
    add("--torch-trace", nargs="+", action="extend", default=[], metavar="TRACE.json",
        help="of torch's profiler: how much communication is hidden")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    if not (args.output or args.json or args.csv or args.png or args.parquet):
        parser.error("say what to write: -o, --json, --csv, --png or --parquet")
    try:
        report = analyze(
            args.paths, ranks=args.ranks, steps=args.steps, engine=args.engine, sync=args.sync,
            warmup=args.warmup, memory_limit=args.memory_limit, parquet=args.parquet,
            torch_traces=args.torch_trace,
        )  # fmt: skip
        _write(report, args)
    except (ReportError, OSError, ImportError, MemoryError) as error:
        _say(f"error: {error}")
        return 1
    except ValueError as error:
        parser.error(str(error))
    return 0


def _write(report: Report, args: argparse.Namespace) -> None:
    if args.csv:
        report.save_csv(args.csv)
    if args.png:
        report.save_figures(args.png)
    if args.output:
        report.save_html(args.output, _step_traces(report, args.paths, Path(args.output)))
    if args.json:
        print(report.to_json())
        return
    for problem in report.problems:
        _say(problem)
    for one in report.stragglers:
        _say(
            f"rank {one.rank} is slow in {one.stage} ({one.kind}): "
            f"{one.cost_s:.3f} s of all ranks together"
        )
    if report.run["not_judged"]:
        _say(f"not judged: {report.run['not_judged']}")
    elif not report.stragglers:
        _say("no rank stands out from the others")


def _step_traces(report: Report, paths: Sequence[str], page: Path) -> dict[int, StepTrace]:
    """Beside the page, for the stragglers that cost most: the trace of the step in which they cost
    most, of their rank and a few others."""
    from ..trace.csv2trace import ConversionError, csv_to_trace
    from .page import StepTrace

    links = {}
    for place, one in enumerate(report.stragglers[:STEP_TRACES]):
        step = _worst_step(report, one)
        others = [rank for rank in report.ranks["rank"].tolist() if rank != one.rank]
        trace = page.with_name(f"{page.stem}_rank{one.rank}_step{step}.json")
        try:
            csv_to_trace(
                list(paths), trace, ranks={one.rank, *others[:PEERS_IN_TRACE]},
                steps=(step, step + 1), recover=True,
            )  # fmt: skip
        except (ConversionError, OSError) as error:
            _say(f"warning: no trace of step {step}: {error}")
            continue
        links[place] = StepTrace(step, quote(trace.name))
    return links


def _worst_step(report: Report, one: Straggler) -> int:
    waits = report.waits[report.waits["rank"] == one.rank]
    waits = waits[waits["step"].isin(one.steps)]
    if waits.empty:
        return one.steps[0] if one.steps else int(report.run["first_step"])
    return int(waits.groupby("step")["cost_s"].sum().idxmax())


def _say(text: str) -> None:
    for line in text.splitlines():
        print(f"report: {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
