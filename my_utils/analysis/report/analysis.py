"""Which rank, stage and step cost the time of a run: one report over all ranks.

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

import contextlib
import itertools
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...core.arguments import check_int
from ...core.equality import same_fields
from ...core.extras import require
from ...core.files import atomic_write
from ...core.lazy_modules import lazy_module
from ...core.notebook import html_table, html_text, one_screen
from ...core.outputs import open_output
from ...core.printable import encoded
from ...core.public import public
from ...core.tables import csv_table, table_lines
from ..replay.run_answer import Answer
from ..timeline.timeline import Timeline
from ..verdict.device import by_the_device
from ..verdict.load import NothingToJudge
from ..verdict.quantiles import median
from ..verdict.rank_cells import EVER, RankCells, for_the_verdict
from ..verdict.rank_files import find_rank_files
from ..verdict.result import Verdict
from ..verdict.run_data import Integers, RunData
from ..verdict.run_ranks import RunRanks, ranks_of_run
from ..verdict.slow_ranks import why_not_tested
from . import tables
from .cells import Cells
from .changes import StageChange, changes_of_stages
from .data import RunFigures
from .figures import Heat, make_heat, write_figures
from .judged import NONE_ASKED_FOR, Source, judge_ranks, meetings_in, rows_shown, sync_pattern
from .load import PURPOSE, problems_of_report, read_ranks
from .on_ray import read_ranks_on_ray
from .overlap import measure_overlap
from .page import StepTrace, page_text
from .stragglers import Straggler, find_stragglers
from .waits import RunWaits, measure_waits

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = lazy_module("pandas")


STAGES_SHOWN = 8  # of a report in one screen
TABLES = ("stages", "stages_by_rank", "steps", "waits", "ranks", "hosts", "groups", "overlap")

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@public("my_utils.analysis.report")
class ReportError(ValueError):
    """There is nothing to report on; the text says why."""


@public("my_utils.analysis.report")
@dataclass
class Report:
    """What `analyze` found. Times are seconds (`_s`) or milliseconds (`_ms`).

    run: ranks, steps, first_step, last_step, warmup (steps at the beginning that were left out of
        comparisons), step_ms (the median of all ranks and steps), duration_s, synchronising (the
        stages in which ranks wait for one another), waited_s (of all ranks together), not_judged
        (why ranks that cost little are not tested, such as "fewer than 4 ranks"; None where they
        are).
    stragglers: the ranks that the verdict names as slow, the most expensive first.
    stages: a row a stage; its columns are those of `my_utils.analysis.report.tables.stage_table`.
    stages_by_rank: rank, stage, count, total_s, self_s, mean_ms.
    steps: a row a step: step, median_ms; busy_ms (the median without the stages in which ranks
        wait), and of the same times busy_low_ms and busy_high_ms (10 % and 90 % of the ranks),
        busy_max_ms and busiest_rank; where ranks wait for one another also rank (that they waited
        for), stage (in which it lost the time), lost_ms and cost_s (of all ranks together).
    waits: a row a step, synchronising stage and group of ranks that meet in it: step, sync, rank,
        late_ms (after the last rank but one), cost_s, stage, lost_ms.
    ranks: a row a rank: rank, host, its parallel groups, step_ms, waited_s (for others), cost_s
        (that the others waited for it), last_step, rows, bad_rows, dropped, open, attempts,
        clock_error_s.
    hosts, groups: the same sums over the ranks of a host, and of each parallel group.
    changes: stages that took more or less time from a step on: those of the timeline.
    overlap: a row a rank of the torch traces that were given: communication_s, hidden_s (while
        kernels computed), hidden_share.
    problems: what is wrong with the files, in sentences.
    heat: the excess of a stage over the median as a matrix of ranks and steps, for the plot.
    verdict: what bounds the run, as `my_utils why` says it; the page and the command begin with it.
        The tables have its figures (docs/runs/verdict.md), and for waits those of the ledger.
    source: what it was read from.

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
    verdict: Verdict | None = None
    source: Source = field(default=Source(()), repr=False)

    def __eq__(self, other: object) -> bool:
        return same_fields(self, other)

    def __repr__(self) -> str:
        """One screen: the verdict, and the stages that take most time."""
        stages = table_lines(self._stage_rows(), left=1)
        return one_screen([*self._title(), "", *stages, "", f"tables: {', '.join(TABLES)}"])

    def _repr_html_(self) -> str:
        """For notebooks."""
        verdict = html_text(self._title()) if self.verdict is None else self.verdict._repr_html_()
        header, *rows = self._stage_rows()
        return verdict + html_table(header, rows)

    def _title(self) -> list[str]:
        if self.verdict is not None:
            return self.verdict.lines()
        return [f"Report: {self.run['ranks']} ranks, {self.run['steps']} steps"]

    def _stage_rows(self) -> list[list[str]]:
        """A head, and the stages that take most time: the total, the own time and the mean."""
        shown = self.stages[["stage", "count", "total_s", "self_s", "mean_ms"]]
        rows = shown.nlargest(STAGES_SHOWN, "self_s").itertuples(index=False)
        return [list(map(str, shown.columns))] + [
            [str(stage), str(count), f"{total_s:.3f}", f"{self_s:.3f}", f"{mean_ms:.3f}"]
            for stage, count, total_s, self_s, mean_ms in rows
        ]

    def to_json(self) -> str:
        """All of it but stages_by_rank, waits and heat, as one JSON object; NaN becomes null."""
        result: dict[str, Any] = {"version": 1, "run": self.run}
        result["stragglers"] = [one.as_dict() for one in self.stragglers]
        result["changes"] = [asdict(change) for change in self.changes]
        for name in ("stages", "steps", "ranks", "hosts", "groups", "overlap"):
            result[name] = json.loads(getattr(self, name).to_json(orient="records"))
        result["problems"] = self.problems
        if self.verdict is not None:
            result["verdict"] = self.verdict.as_data()
        return json.dumps(result)

    def save_csv(self, output: str | os.PathLike[str]) -> list[Path]:
        """Each table as `output`/<name>.csv."""
        pandas = require("pandas", PURPOSE)
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
            with atomic_write(paths[-1]) as file:
                csv_table(table).to_csv(file, index=False)
        return paths

    def save_html(
        self, path: str | os.PathLike[str], links: dict[int, StepTrace] | None = None
    ) -> None:
        """One file that opens in a browser without anything else: the page of `my_utils report`,
        with the tables of this report in it. The files that were analysed are read once more.

        links: the trace of the worst step of a straggler, by its place in `stragglers`. The path
        may be "-" or "/dev/stdout"; a directory is refused.
        """
        from .run_page import page_of_report

        text = page_text(page_of_report(self, links))
        with open_output(path) as file:
            file.write(encoded(text))

    def save_figures(self, output: str | os.PathLike[str]) -> list[Path]:
        """The plots as step_time.png, rank_by_step.png and stages.png in the folder `output`."""
        return write_figures(self, Path(output))


@dataclass
class Options:
    """How `analyze` reads and what it leaves out; its arguments under their names."""

    ranks: set[int] | None
    steps: tuple[int, int] | None
    engine: Literal["local", "ray"]
    sync: re.Pattern[str] | None
    warmup: int | None
    memory_limit: str
    parquet: str | None
    torch_traces: Sequence[str]
    on_progress: Callable[[int, int], None] | None = None


def analyze(
    paths: Paths,
    *,
    ranks: Iterable[int] | None = None,
    steps: tuple[int, int] | None = None,
    engine: Literal["local", "ray"] = "local",
    sync: str | None = None,
    warmup: int | None = None,
    memory_limit: str = "256MB",
    parquet: str | os.PathLike[str] | None = None,
    torch_traces: Iterable[str | os.PathLike[str]] = (),
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Reads the files of all ranks and finds the ranks, stages and steps that cost the time.

    On CUDA `stages` and `stages_by_rank` have the times of the hosts, which are times of
    enqueueing; all else has those of the device, as the verdict.

    Needs pandas.

    Args:
        paths: log directories, CSVs, journals or globs of them; one or several. Ranks are compared
            by durations, so that their clocks need not agree.
        ranks: only these are shown; all by default. The run is read and judged whole.
        steps: only these, a half-open range (10, 20); all by default.
        engine: "local" reads here, "ray" on the cluster that the process is connected to or that
            RAY_ADDRESS names. The cluster must see the same paths; the results are equal.
        sync: a regular expression that is searched for in the paths of stages ("iter/all_reduce"):
            in those it finds ranks wait for one another. Without it they are those that the run
            recorded, or else those that the verdict infers.
        warmup: how many steps at the beginning are left out of comparisons; by default the first
            and those after it that clearly take longer than the rest, as in the verdict.
        memory_limit: how much of the stages' times stays in memory, such as "256MB"; what exceeds
            it goes to a temporary file.
        parquet: a folder to which all stages are written, partitioned by rank; needs pyarrow.
        torch_traces: traces of torch's profiler (.json, .json.gz), from which the overlap of
            communication with compute is counted.
        on_progress: called with the number of ranks that were read so far, and of all ranks.

    Raises:
        ReportError: there are no stages to report on.
        ImportError: the extra is not installed.
        ValueError: an argument is not one of these, or a file of torch_traces is not a trace.
        OSError: the folder of parquet, or the temporary file, cannot be written to.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be 'local' or 'ray', not {engine!r}")
    if warmup is not None:
        check_int("warmup", operator.index(warmup), 0)
    if steps is not None and not (len(steps) == 2 and steps[0] < steps[1]):
        raise ValueError(f"steps must be a range that is not empty, not {steps!r}")
    options = Options(
        None if ranks is None else set(ranks), steps, engine, sync_pattern(sync), warmup,
        memory_limit, None if parquet is None else os.fspath(parquet),
        [os.fspath(path) for path in torch_traces], on_progress,
    )  # fmt: skip
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise ValueError("paths must name a directory or a file, it is empty")
    return _analyze(several, options)


def _analyze(paths: Sequence[str | os.PathLike[str]], options: Options) -> Report:
    file_sets, problems = find_rank_files(paths)
    wanted = None if options.ranks is None else frozenset(options.ranks)
    shown = [one for one in file_sets if wanted is None or one.rank in wanted]
    numbers = {one.rank for one in shown}
    others = [one for one in file_sets if one.rank not in numbers]
    if not shown:
        raise ReportError("\n".join(problems) or NONE_ASKED_FOR)
    read_all = read_ranks_on_ray if options.engine == "ray" else read_ranks
    steps = options.steps or EVER
    with contextlib.closing(Cells(options.memory_limit)) as cells:
        read: list[RankCells] = []
        parts = (shown, options.parquet), (others, None)
        each = (read_all(part, steps, parquet) for part, parquet in parts if part)
        for one in itertools.chain.from_iterable(each):
            if one.metadata.rank in numbers:
                cells.add(one)
            read.append(for_the_verdict(one))
            if options.on_progress is not None:
                options.on_progress(len(read), len(file_sets))
        ranks = ranks_of_run(read)
        there = [one for one in ranks.kept if one.metadata.rank in cells.of_ranks]
        cells.keep(there, steps, ranks.lost)
        names = tuple(os.fspath(path) for path in paths)
        source = Source(names, wanted, options.steps, options.warmup, options.sync)
        try:
            run, answer = judge_ranks(source, ranks, problems)
        except NothingToJudge as error:
            raise ReportError(str(error)) from error
        problems = [*problems, *problems_of_report(run, ranks), *run.problems]
        report = _report(cells, ranks, run, answer, rows_shown(run, wanted))
    report.overlap = measure_overlap(options.torch_traces)
    report.problems, report.source = list(dict.fromkeys(problems)), source
    return report


def _report(cells: Cells, ranks: RunRanks, run: RunData, answer: Answer, shown: Integers) -> Report:
    """shown: rows of the run, which is judged whole."""
    verdict, timeline, _ = answer
    run = by_the_device(run) or run
    metadata = {one.metadata.rank: one.metadata for one in ranks.kept}
    warmup = verdict.warmup if verdict.warmup < len(run.steps) else 0  # show what there is
    meetings = meetings_in(run, warmup)
    waits = measure_waits(run, meetings, warmup)
    numbers = set(run.ranks[shown].tolist())
    stragglers = [one for one in find_stragglers(run, verdict, waits) if one.rank in numbers]
    slow = sorted({one.rank for one in stragglers})
    wait_table = tables.wait_table(run, waits, shown)
    rank_table = tables.rank_table(run, waits, warmup, metadata).iloc[shown]
    rank_table = rank_table.reset_index(drop=True)
    return Report(
        run=_run_figures(run, waits, warmup, shown),
        stragglers=stragglers,
        stages=tables.stage_table(cells, waits),
        stages_by_rank=tables.stages_by_rank(cells),
        steps=tables.step_table(run, meetings, wait_table, shown),
        waits=wait_table,
        ranks=rank_table,
        hosts=tables.host_table(rank_table, slow),
        groups=tables.group_table(rank_table, slow),
        changes=changes_of_stages(run, warmup, timeline or Timeline(), verdict.findings),
        overlap=rank_table.iloc[:0],
        problems=[],
        heat=make_heat(run, meetings, stragglers, shown),
        verdict=verdict,
    )


def _run_figures(run: RunData, waits: RunWaits, warmup: int, shown: Integers) -> RunFigures:
    step_ns = float(median(run.step_ns[shown, warmup:]))
    return {
        "ranks": len(shown),
        "steps": len(run.steps),
        "first_step": int(run.steps[0]),
        "last_step": int(run.steps[-1]),
        "warmup": warmup,
        "step_ms": None if np.isnan(step_ns) else round(step_ns * 1e-6, 6),
        "duration_s": round(float(np.nanmax(run.ends) - np.nanmin(run.begins)) * 1e-9, 9),
        "synchronising": waits.stages,
        "waited_s": round(float(waits.waited_ns[shown].sum()) * 1e-9, 9),
        "not_judged": why_not_tested(run, warmup),
    }
