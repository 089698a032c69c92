"""The figures of a timer's stages: for the whole run from the aggregates, by iteration from rows.

A report is a dict of plain values, the same that is written as JSON:

    {"rank": 0, "tag": "train", "stage_pattern": "...", "iteration_filter": None | "10:20",
     "source": "aggregates" | "csv" | "memory", "exact_percentiles": bool, "bad_rows": 0,
     "stages": [STAGE, ...], "iterations": [{"step": 10, "stages": [STAGE, ...]}, ...]}

and a STAGE is {"path": "iter/forward", "name": "forward", "parent": "iter" | None, "depth": 1,
"count", "total_ms", "mean_ms", "std_ms", "min_ms", "p50_ms", "p90_ms", "p99_ms", "max_ms",
"parent_percent": float | None} and the same figures of GPU time as "cuda_count" and so on, None
where no GPU time was taken.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypedDict, cast

from ... import _core
from ...core.files import atomic_write
from ...core.printable import encoded
from ...core.progress import Progress
from .rows import Path_, StageReader, StageRow, part_of_memory, parts_of_files, size_of_files
from .steps import StepFilter, compile_steps


class Figures(TypedDict):
    """Figures of one stage in milliseconds; the spread is that of the population."""

    count: int
    total_ms: float
    mean_ms: float
    std_ms: float
    min_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float


FIGURE_NAMES = tuple(Figures.__annotations__)
STAGE_KEYS = (
    "path", "name", "parent", "depth", *FIGURE_NAMES, "parent_percent",
    *(f"cuda_{name}" for name in FIGURE_NAMES),
)  # fmt: skip
MEMORY_STEPS_MAX = 1024  # iterations that are reported when no file was written
DRAIN_WAIT_S = 5.0
BAR_BYTES_MIN = 32 << 20  # a progress bar from here on, some seconds' worth of rows
VERDICTS_KEPT = 4096  # of a filter, which may be slow


class Stage(Figures):
    """Figures of one stage, with those of its GPU time, None if none was taken."""

    path: str
    name: str
    parent: str | None
    depth: int
    parent_percent: float | None
    cuda_count: int | None
    cuda_total_ms: float | None
    cuda_mean_ms: float | None
    cuda_std_ms: float | None
    cuda_min_ms: float | None
    cuda_p50_ms: float | None
    cuda_p90_ms: float | None
    cuda_p99_ms: float | None
    cuda_max_ms: float | None


class Iteration(TypedDict):
    """The stages of one iteration."""

    step: int
    stages: list[Stage]


class Report(TypedDict):
    """See the module's docstring."""

    rank: int
    tag: str
    stage_pattern: str
    iteration_filter: str | None
    source: Literal["aggregates", "csv", "memory"]
    exact_percentiles: bool
    bad_rows: int
    stages: list[Stage]
    iterations: list[Iteration]


class Collected:
    """Durations by path, of the whole selection and of each iteration."""

    def __init__(self) -> None:
        self.cpu: dict[Path_, _core.Durations] = {}
        self.cuda: dict[Path_, _core.Durations] = {}
        self.steps: dict[int, Collected] = {}

    def add(self, row: StageRow) -> None:
        self.cpu.setdefault(row.path, _core.Durations()).add(row.duration_ns)
        if row.cuda_ns is not None:
            self.cuda.setdefault(row.path, _core.Durations()).add(row.cuda_ns)

    @property
    def exact(self) -> bool:
        """Whether all percentiles are."""
        groups = (self.cpu, self.cuda)
        return all(one.exact for group in groups for one in group.values())

    def keep_newest(self, steps: int) -> Collected:
        """Only the newest iterations; the overall figures are of those as well."""
        if len(self.steps) <= steps:
            return self
        kept = Collected()
        for step in sorted(self.steps)[-steps:]:
            kept.steps[step] = self.steps[step]
            for mine, other in ((kept.cpu, self.steps[step].cpu),
                                (kept.cuda, self.steps[step].cuda)):  # fmt: skip
                for path, durations in other.items():
                    mine.setdefault(path, _core.Durations()).merge(durations)
        return kept


def make_report(
    timer: _core.Timer,
    stage_pattern: str | re.Pattern[str],
    iteration_filter: StepFilter | None,
    *,
    rank: int,
) -> Report:
    """See MyTimer.generate_report."""
    pattern = compile_pattern(stage_pattern)
    report = empty_report(pattern.pattern)
    report["rank"], report["tag"] = rank, timer.tag
    if iteration_filter is None:
        cpu = {row[0]: make_figures(row[1:]) for row in timer.aggregates()}
        cuda = {row[0]: make_figures(row[1:]) for row in timer.cuda_aggregates()}
        report["stages"] = _rows_of_tree(cpu, cuda, pattern)
        return report
    test, report["iteration_filter"] = compile_steps(iteration_filter)
    collected = collect(timer.tag, test, report)
    report["exact_percentiles"] = collected.exact
    report["stages"] = _summarise(collected, pattern)
    report["iterations"] = [
        {"step": step, "stages": _summarise(collected.steps[step], pattern)}
        for step in sorted(collected.steps)
    ]
    return report


def empty_report(stage_pattern: str) -> Report:
    return {
        "rank": 0,
        "tag": "",
        "stage_pattern": stage_pattern,
        "iteration_filter": None,
        "source": "aggregates",
        "exact_percentiles": False,
        "bad_rows": 0,
        "stages": [],
        "iterations": [],
    }


def compile_pattern(pattern: object) -> re.Pattern[str]:
    if isinstance(pattern, re.Pattern):
        if isinstance(pattern.pattern, str):
            return pattern
    elif isinstance(pattern, str):
        try:
            return re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"stage_pattern must be a regular expression, not {pattern!r}: {error}"
            ) from None
    kind = type(pattern).__name__
    raise TypeError(f"stage_pattern must be a str or a compiled str pattern, not {kind}")


def collect(tag: str, test: Callable[[int], bool], report: Report) -> Collected:
    """Reads the finished stages of this process and this tag whose step passes the test."""
    _core.drain(DRAIN_WAIT_S)
    state = _core.output_state()
    if state["csv_path"]:
        report["source"] = "csv"
        csv_path = Path(state["csv_path"])
        reader = StageReader(tag, state["attempt"])
        total = size_of_files(csv_path)
        is_small = total < BAR_BYTES_MIN
        with Progress(
            "reading stages", total, "bytes", quiet=is_small, stays=True, lines=False
        ) as bar:
            collected = _collect(reader.read(parts_of_files(csv_path), bar.advance), test)
    else:
        report["source"] = "memory"
        reader = StageReader(tag, None)
        collected = _collect(reader.read([part_of_memory(_core.memory_rows())]), test)
        collected = collected.keep_newest(MEMORY_STEPS_MAX)
    report["bad_rows"] = reader.bad_rows
    return collected


def _collect(rows: Iterable[StageRow | None], test: Callable[[int], bool]) -> Collected:
    collected = Collected()
    verdicts: dict[int, bool] = {}
    for row in rows:
        if row is None:
            collected = Collected()
            continue
        passed = verdicts.get(row.step)
        if passed is None:
            if len(verdicts) >= VERDICTS_KEPT:
                verdicts.clear()
            passed = verdicts[row.step] = test(row.step)
        if passed:
            collected.add(row)
            collected.steps.setdefault(row.step, Collected()).add(row)
    return collected


def _summarise(collected: Collected, pattern: re.Pattern[str]) -> list[Stage]:
    cpu = {path: make_figures(durations.figures()) for path, durations in collected.cpu.items()}
    cuda = {path: make_figures(durations.figures()) for path, durations in collected.cuda.items()}
    return _rows_of_tree(cpu, cuda, pattern)


def _rows_of_tree(
    cpu: dict[Path_, Figures], cuda: dict[Path_, Figures], pattern: re.Pattern[str]
) -> list[Stage]:
    """Children below their parent; siblings by falling total time."""

    def order(path: Path_) -> list[tuple[float, str]]:
        ancestors = (path[: length + 1] for length in range(len(path)))
        return [(-cpu[at]["total_ms"] if at in cpu else 0.0, at[-1]) for at in ancestors]

    return [
        _stage_row(path, cpu, cuda.get(path))
        for path in sorted(cpu, key=order)
        if pattern.search("/".join(path))
    ]


def _stage_row(path: Path_, cpu: dict[Path_, Figures], cuda: Figures | None) -> Stage:
    figures = cpu[path]
    parent = cpu.get(path[:-1])
    share = None
    if parent is not None and parent["total_ms"] > 0:
        share = 100 * figures["total_ms"] / parent["total_ms"]
    gpu = {f"cuda_{name}": cuda[name] if cuda else None for name in FIGURE_NAMES}  # type: ignore[literal-required]
    row = {
        "path": "/".join(path),
        "name": path[-1],
        "parent": "/".join(path[:-1]) or None,
        "depth": len(path) - 1,
        **figures,
        "parent_percent": share,
        **gpu,
    }
    return cast("Stage", row)


# --- files ---


def write_text_and_json(report: Report, output: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Writes the table to `output` and the JSON next to it; returns both paths."""
    from .text import render

    text_path, json_path = output_paths(output)
    write_whole(text_path, render(report))
    write_whole(json_path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    return text_path, json_path


def output_paths(output: str | os.PathLike[str]) -> tuple[Path, Path]:
    """The table's path and the JSON's, which has the same stem.

    >>> [path.name for path in output_paths("logs/report.txt")]
    ['report.txt', 'report.json']
    >>> [path.name for path in output_paths("report.json")]
    ['report.txt', 'report.json']
    """
    path = Path(output)
    if path.suffix == ".json":
        return path.with_suffix(".txt"), path
    return path, path.with_suffix(".json")


def write_whole(path: Path, text: str) -> None:
    """Under a temporary name first, so that nobody finds half a file. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a terminal, a pipe
        path.write_bytes(encoded(text))
        return
    with atomic_write(os.path.realpath(path)) as file:
        file.write(encoded(text))


def write_csv(report: Report, output: str | os.PathLike[str]) -> None:
    """One line a stage, of the whole selection first (step empty), then of each iteration."""
    import csv
    import io

    from ...core.tables import cell_text

    if not isinstance(report, dict) or not {"stages", "iterations"} <= report.keys():
        kind = type(report).__name__
        raise TypeError(f"report_data must be a report of generate_report, not {kind}")
    out = io.StringIO()
    writer = csv.DictWriter(out, ["step", *STAGE_KEYS], lineterminator="\n")
    writer.writeheader()
    steps = [(iteration["step"], iteration["stages"]) for iteration in report["iterations"]]
    for step, stages in [("", report["stages"]), *steps]:
        for stage in stages:
            cells = {  # times to the nanosecond
                key: f"{value:.6f}" if isinstance(value, float) else cell_text(value)
                for key, value in stage.items()
            }
            writer.writerow({"step": step} | {key: cells[key] for key in STAGE_KEYS})
    write_whole(Path(output), out.getvalue())


def make_figures(numbers: _core._FigureNumbers) -> Figures:
    """Of what the C aggregates and Durations give, in ns.

    >>> durations = _core.Durations()
    >>> for ns in (1_000_000, 3_000_000):
    ...     durations.add(ns)
    >>> figures = make_figures(durations.figures())
    >>> figures["count"], figures["mean_ms"], figures["std_ms"], figures["p50_ms"]
    (2, 2.0, 1.0, 1.0)
    """
    count, total, least, most, std, p50, p90, p99 = numbers
    return {
        "count": count,
        "total_ms": total / 1e6,
        "mean_ms": total / count / 1e6 if count else 0.0,
        "std_ms": std / 1e6,
        "min_ms": least / 1e6,
        "p50_ms": p50 / 1e6,
        "p90_ms": p90 / 1e6,
        "p99_ms": p99 / 1e6,
        "max_ms": most / 1e6,
    }
