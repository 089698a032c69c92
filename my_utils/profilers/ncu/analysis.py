"""Summarizes results of Nsight Compute by kernel, and compares two measurements.

    ncu --csv --page raw -i report.ncu-rep > before.csv
    my_utils ncu before.csv                # where the time goes
    my_utils ncu before.csv after.csv      # what became slower

`python -m my_utils.ncu_analyze_from_csv` is the same command.

Reads the pages `raw` and `details`, with the output of the program around them. Exit status: 0,
all of the input counts; 1, nothing was read, or a file could not be written; 2, wrong usage; 3,
the result stands, but rows or values were left out; 130, interrupted. Messages go to standard error
as `FILE:LINE: reason (N times)`.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from ...core import tables as _tables
from ...core.aliases import renamed_parameters
from ...core.arguments import check_choice, check_int, check_path, check_str
from ...core.command_line import (
    CommandParser,
    add_json,
    add_output,
    add_quiet,
    check_inputs,
    fail,
    parser,
    run_cli,
    say,
)
from ...core.extras import require
from ...core.kernel_names import function_name
from ...core.lazy_modules import lazy_module
from ...core.progress import Progress
from ...core.terminal import table_lines
from .ncu_csv import (
    NS_OF_UNIT,
    PERCENT_OF_UNIT,
    PERCENTAGES,
    TIME,
    Launch,
    NcuCsvError,
    NcuCsvWarning,
    Page,
    read_metric,
    read_page,
)

if TYPE_CHECKING:
    import argparse

    import pandas
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    pandas = lazy_module("pandas")

StrPath = str | os.PathLike[str]
GroupBy = Literal["kernel", "function", "launch"]
Decimal = Literal["auto", ".", ","]


TIMES = ["time_ms", "time_share", "mean_us", "min_us", "max_us"]
KERNEL_COLUMNS = ["kernel", "count", *TIMES, *PERCENTAGES]
COMPARED = ["count", "time_ms", "mean_us", *PERCENTAGES]
SCHEMA_VERSION = 1
EXIT_OK, EXIT_NOTHING, EXIT_LEFT_OUT = 0, 1, 3
PLOTTED = 20  # kernels of a plot, by default
NAME_WIDTH = 60  # characters of a kernel's name in tables and plots


class KernelData(TypedDict):
    """A kernel, and each further metric under its name; null where the file does not have it.

    count: launches.
    time_ms: GPU time, the sum of the launches.
    time_share: of the time of all rows, in %.
    sm_pct: throughput of the multiprocessors, in % of the peak.
    memory_pct: throughput of memory and caches, in % of the peak.
    dram_pct: throughput of DRAM, in % of the peak.
    occupancy_pct: warps that were active, in % of those that fit.
    """

    kernel: str
    count: int
    time_ms: float | None
    time_share: float | None
    mean_us: float | None
    min_us: float | None
    max_us: float | None
    sm_pct: float | None
    memory_pct: float | None
    dram_pct: float | None
    occupancy_pct: float | None


class KernelsData(TypedDict):
    """A file of Nsight Compute by kernel, the most expensive first."""

    version: Literal[1]
    kernels: list[KernelData]


class ComparedKernelData(TypedDict):
    """A kernel of files A and B: each figure in A, in B, and the ratio B/A, null where it is not
    known; further metrics likewise.

    found_in: the files that have the kernel.
    time_lost_ms: how much longer B takes, all launches together.
    """

    kernel: str
    found_in: Literal["both", "a", "b"]
    time_lost_ms: float | None
    count_a: int
    count_b: int
    count_ratio: float | None
    time_ms_a: float | None
    time_ms_b: float | None
    time_ms_ratio: float | None
    mean_us_a: float | None
    mean_us_b: float | None
    mean_us_ratio: float | None
    sm_pct_a: float | None
    sm_pct_b: float | None
    sm_pct_ratio: float | None
    memory_pct_a: float | None
    memory_pct_b: float | None
    memory_pct_ratio: float | None
    dram_pct_a: float | None
    dram_pct_b: float | None
    dram_pct_ratio: float | None
    occupancy_pct_a: float | None
    occupancy_pct_b: float | None
    occupancy_pct_ratio: float | None


class ComparedKernelsData(TypedDict):
    """Two files of Nsight Compute by kernel, sorted by the time that B loses."""

    version: Literal[1]
    kernels: list[ComparedKernelData]


_SM_METRIC = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "the column sm_pct has it; metrics=[name] adds the column of another metric",
)
_PRINT_TOP = (0, "print(table.head(number)) prints the result")


@renamed_parameters(
    {
        "sm_metric": _SM_METRIC,
        "print_top": _PRINT_TOP,
        "min_threshold": (None, "table[table.sm_pct > number] selects rows of the result"),
    },
    output_path="output_csv",
)
def analyze_sm_throughput_from_csv(
    csv_path: StrPath | Sequence[StrPath],
    *,
    kernel: str | None = None,
    group_by: GroupBy = "kernel",
    metrics: Sequence[str] = (),
    decimal: Decimal = "auto",
    output_csv: StrPath | None = None,
    output_png: StrPath | None = None,
    top: int = PLOTTED,
) -> pandas.DataFrame:
    """One row a kernel, the most expensive first.

    `csv_path` is a CSV of Nsight Compute, page `raw` or `details`, or several, whose launches are
    taken together. `kernel` keeps kernels in whose name this regular expression is found.
    `group_by`: "kernel" takes the name as ncu printed it, "function" without return type, template
    arguments and parameters, "launch" the name with grid and block. `metrics` are names of further
    metrics. `decimal` is the decimal mark of the numbers; "auto" finds it out.

    The columns:

    - `kernel`, `count` (launches)
    - `time_ms` (sum), `time_share` (% of all rows), `mean_us`, `min_us`, `max_us`: GPU time. NaN if
    no launch has a duration; launches without one are not in these figures.
    - `sm_pct`, `memory_pct`, `dram_pct`, `occupancy_pct`: throughput of the multiprocessors, of
      memory and caches, and of DRAM, in % of the peak; warps that were active, in % of those that
      fit. They, and `metrics`, are means over the launches weighted by their time (plain means
      where no launch of the kernel has one); NaN if the file has no such metric.

    `attrs["problems"]` lists what was left out, as `FILE:LINE: reason (N times)`; it is warned of,
    too (NcuCsvWarning). `output_csv` is written with this table, `output_png` with a
    plot of the first `top` kernels; both whole or not at all.

    Raises NcuCsvError (a ValueError) if a file has no launches, or no kernel matches, or no
    file has a metric that was asked for; TypeError or ValueError for bad arguments; ImportError
    without pandas (and, for a plot, matplotlib), which the extra `profiling` brings. Touches no
    global state but warnings: threads may call it at once.

    >>> from pathlib import Path
    >>> _ = Path("raw.csv").write_text(
    ...     '"ID","Kernel Name","gpu__time_duration.sum"\\n'
    ...     '"","","usecond"\\n'
    ...     '"0","gemm","1,500.00"\\n'
    ...     '"1","gemm","500.00"\\n')
    >>> table = analyze_sm_throughput_from_csv("raw.csv")
    >>> table[["kernel", "count", "time_ms"]].values.tolist()
    [['gemm', 2, 2.0]]
    """
    output = _Output(output_csv, output_png, top)
    query = _Query(kernel, group_by, metrics, decimal)
    table = query.table(_paths("csv_path", csv_path))
    _warn(table.attrs["problems"])
    output.write(table, _draw_kernels)
    return table


@renamed_parameters({"sm_metric": _SM_METRIC, "print_top": _PRINT_TOP})
def compare_kernel_metrics(
    csv_a: StrPath | Sequence[StrPath],
    csv_b: StrPath | Sequence[StrPath],
    *,
    kernel: str | None = None,
    group_by: GroupBy = "kernel",
    metrics: Sequence[str] = (),
    decimal: Decimal = "auto",
    output_csv: StrPath | None = None,
    output_png: StrPath | None = None,
    top: int = PLOTTED,
) -> pandas.DataFrame:
    """One row a kernel of either measurement, sorted by how much slower `csv_b` is than `csv_a`.

    The arguments are those of `analyze_sm_throughput_from_csv`, and so are the errors. The columns:

    - `kernel`, `found_in` ("both", "a", "b")
    - `time_lost_ms`: time in b less time in a; a kernel that one side lacks took no time there.
      NaN if a side has the kernel but no duration of it.
    - for `count`, `time_ms`, `mean_us`, `sm_pct`, `memory_pct`, `dram_pct`, `occupancy_pct` and
      each of `metrics`: `<name>_a`, `<name>_b` and `<name>_ratio`, which is b / a and NaN where
      either is missing or a is 0.
    """
    output = _Output(output_csv, output_png, top)
    query = _Query(kernel, group_by, metrics, decimal)
    sides = [
        query.table(paths, may_lack_kernels=True)
        for paths in (_paths("csv_a", csv_a), _paths("csv_b", csv_b))
    ]
    problems = [text for side in sides for text in side.attrs["problems"]]
    if not any(len(side) for side in sides):
        raise NcuCsvError(f"no kernel of either file matches {kernel!r}")
    table = _joined(sides[0], sides[1], [*COMPARED, *metrics])
    table.attrs["problems"] = problems
    _warn(problems)
    output.write(table, _draw_comparison)
    return table


# --- arguments ---


def _paths(name: str, given: Any) -> list[StrPath]:
    if isinstance(given, (bytes, str, os.PathLike)) or not isinstance(given, Iterable):
        return [check_path(name, given)]
    paths: list[StrPath] = [check_path(f"each of {name}", path) for path in given]
    if not paths:
        raise ValueError(f"{name}: at least one file is wanted")
    return paths


def _warn(problems: Sequence[str]) -> None:
    for problem in problems:
        warnings.warn(f"left out: {problem}", NcuCsvWarning, stacklevel=3)


# --- from launches to a table ---


@dataclass(frozen=True)
class _Query:
    """Which launches count, and by what they are summed up; raises for what it cannot be."""

    kernel: str | None
    group_by: GroupBy
    metrics: Sequence[str]
    decimal: Decimal

    def __post_init__(self) -> None:
        if self.kernel is not None:
            check_str("kernel", self.kernel)
            try:
                re.compile(self.kernel)
            except re.error as error:
                raise ValueError(
                    f"kernel={self.kernel!r} is not a regular expression: {error}"
                ) from error
        check_choice("group_by", self.group_by, get_args(GroupBy))
        check_choice("decimal", self.decimal, get_args(Decimal))
        is_list = isinstance(self.metrics, Collection) and not isinstance(self.metrics, str)
        if not is_list or not all(isinstance(name, str) for name in self.metrics):
            raise TypeError(f"metrics={self.metrics!r}: a sequence of names is wanted")
        taken = set(KERNEL_COLUMNS).intersection(self.metrics)
        if taken:
            raise ValueError(f"metrics: {sorted(taken)[0]!r} is a column already")
        require("pandas", "a table of Nsight Compute's results")

    def table(self, paths: Sequence[StrPath], may_lack_kernels: bool = False) -> pandas.DataFrame:
        """One row a kernel of these files together."""
        pages = [read_page(path, self.metrics, self.decimal) for path in paths]
        files = ", ".join(page.path for page in pages)
        for name in self.metrics:
            if not any(name in page.names for page in pages):
                raise NcuCsvError(f"{files}: no metric {name!r} in the header or the rows")
        rows = [
            self._row(launch, page)
            for page in pages
            for launch in page.launches
            if self.kernel is None or re.search(self.kernel, launch.kernel)
        ]
        if not rows and not may_lack_kernels:
            raise NcuCsvError(f"{files}: no kernel matches {self.kernel!r}")
        means = [*PERCENTAGES, *self.metrics]
        launches = pandas.DataFrame(rows, columns=["kernel", "ns", *means])
        launches[["ns", *means]] = launches[["ns", *means]].astype("float64")
        table = _by_kernel(launches, means)
        table.attrs["problems"] = [text for page in pages for text in page.problem_texts()]
        return table

    def _row(self, launch: Launch, page: Page) -> list[Any]:
        group = launch.kernel
        if self.group_by == "function":
            group = function_name(group)
        elif self.group_by == "launch":
            group += f" {launch.grid}x{launch.block}"
        return [
            group,
            read_metric(launch, TIME, page, NS_OF_UNIT),
            *(read_metric(launch, names, page, PERCENT_OF_UNIT) for names in PERCENTAGES.values()),
            *(read_metric(launch, (name,), page) for name in self.metrics),
        ]


def _by_kernel(launches: pandas.DataFrame, means: list[str]) -> pandas.DataFrame:
    groups = launches.groupby("kernel", sort=False)
    times = groups["ns"]
    table = pandas.DataFrame({"count": groups.size(), "time_ms": times.sum(min_count=1) / 1e6})
    table["time_share"] = 100 * table["time_ms"] / table["time_ms"].sum()
    table[["mean_us", "min_us", "max_us"]] = times.agg(["mean", "min", "max"]) / 1e3
    table[means] = _weighted_means(launches, means)
    table = table.sort_values(
        ["time_ms", "count"], ascending=False, kind="stable", na_position="last"
    )
    return table.reset_index()[["kernel", "count", *TIMES, *means]]


def _weighted_means(launches: pandas.DataFrame, names: list[str]) -> pandas.DataFrame:
    """Means by kernel, weighted by time; plain ones where a kernel has no times."""
    values, times = launches[names], launches["ns"].where(launches["ns"] > 0)
    weights = values.notna().mul(times, axis=0)
    kernels = launches["kernel"]
    total = weights.groupby(kernels, sort=False).sum()
    sums = (values * weights).groupby(kernels, sort=False).sum()
    plain = values.groupby(kernels, sort=False).mean()
    return (sums / total.where(total > 0)).fillna(plain)


def _joined(a: pandas.DataFrame, b: pandas.DataFrame, names: Sequence[str]) -> pandas.DataFrame:
    columns = ["kernel", *names]
    joined = a[columns].merge(
        b[columns], on="kernel", how="outer", suffixes=("_a", "_b"), indicator="found_in"
    )
    joined["found_in"] = joined["found_in"].map(
        {"both": "both", "left_only": "a", "right_only": "b"}
    ).astype(str)  # fmt: skip
    for side, other in (("a", "b"), ("b", "a")):
        absent = joined["found_in"] == other
        joined.loc[absent, [f"count_{side}", f"time_ms_{side}"]] = 0
        joined[f"count_{side}"] = joined[f"count_{side}"].astype("int64")
    table = joined[["kernel", "found_in"]].copy()
    table["time_lost_ms"] = joined["time_ms_b"] - joined["time_ms_a"]
    in_both = joined["found_in"] == "both"
    for name in names:
        first, second = joined[f"{name}_a"], joined[f"{name}_b"]
        table[f"{name}_a"], table[f"{name}_b"] = first, second
        table[f"{name}_ratio"] = (second / first).where(in_both & (first != 0))
    table = table.sort_values(
        ["time_lost_ms", "time_ms_b"], ascending=False, kind="stable", na_position="last"
    )
    return table.reset_index(drop=True)


# --- output ---


@dataclass(frozen=True)
class _Output:
    """The files to write, the plot with the first `top` rows; raises for what it cannot be."""

    csv: StrPath | None
    png: StrPath | None
    top: int

    def __post_init__(self) -> None:
        for name, path in (("output_csv", self.csv), ("output_png", self.png)):
            if path is not None:
                check_path(name, path, or_none=True)
        check_int("top", self.top, 0)

    def write(
        self, table: pandas.DataFrame, draw: Callable[[Figure, pandas.DataFrame], None]
    ) -> None:
        if self.csv is not None:
            text = _tables.csv_table(table).to_csv(index=False, lineterminator="\n")
            _tables.write_text(self.csv, text)
        if self.png is not None:
            shown = table.head(self.top) if self.top else table
            _tables.write_figure(self.png, lambda figure: draw(figure, shown))


def _short(name: str) -> str:
    """Long names keep both ends: templates differ at the end, functions at the start."""
    if len(name) <= NAME_WIDTH:
        return name
    tail = NAME_WIDTH // 3
    return name[: NAME_WIDTH - tail - 1] + "…" + name[-tail:]


def _panels(figure: Figure, table: pandas.DataFrame, count: int) -> list[Axes]:
    """`count` panels side by side with a line for each kernel, the first at the top."""
    figure.set_size_inches(6 + 3 * count, 1.6 + 0.32 * max(len(table), 2))
    panels: list[Axes] = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    panels[0].set_yticks(range(len(table)), [_short(name) for name in table["kernel"]], fontsize=7)
    panels[0].set_ylim(len(table) - 0.4, -0.6)
    for panel in panels:
        panel.grid(axis="x", alpha=0.3)
        panel.set_axisbelow(True)
    return panels


def _draw_kernels(figure: Figure, table: pandas.DataFrame) -> None:
    times, shares = _panels(figure, table, 2)
    lines = range(len(table))
    times.barh(lines, table["time_ms"].fillna(0), color="#4c72b0")
    times.set_xlabel("GPU time, ms" if table["time_ms"].notna().any() else "no durations")
    for name, label, marker in (
        ("sm_pct", "SM", "o"),
        ("memory_pct", "memory", "s"),
        ("occupancy_pct", "occupancy", "^"),
    ):
        shares.plot(table[name], lines, marker, label=label, alpha=0.8)
    shares.set_xlim(0, 100)
    shares.set_xlabel("% of the peak")
    shares.legend(fontsize=7)


def _draw_comparison(figure: Figure, table: pandas.DataFrame) -> None:
    times, lost = _panels(figure, table, 2)
    for offset, side, colour in ((-0.2, "a", "#8c8c8c"), (0.2, "b", "#4c72b0")):
        heights = [line + offset for line in range(len(table))]
        times.barh(heights, table[f"time_ms_{side}"].fillna(0), 0.38, color=colour, label=side)
    times.set_xlabel("GPU time, ms")
    times.legend(fontsize=7)
    values = table["time_lost_ms"].fillna(0)
    colours = ["#c44e52" if value > 0 else "#55a868" for value in values]
    lost.barh(range(len(table)), values, color=colours)
    lost.set_xlabel("time lost in b, ms")


def _text(table: pandas.DataFrame, columns: dict[str, tuple[str, str]], top: int) -> str:
    """`columns`: by name the heading and the format. Says what is not shown."""
    shown = table.head(top) if top else table
    rows = [
        [
            _short(value) if isinstance(value, str) else _figure_text(value, form)
            for value, (_, form) in zip(row, columns.values(), strict=True)
        ]
        for row in shown[list(columns)].itertuples(index=False, name=None)
    ]
    lines = table_lines([[heading for heading, _ in columns.values()], *rows], left=1)
    hidden = len(table) - len(shown)
    if hidden:
        lines.append(f"… and {hidden} more kernels (--top 0 shows all)")
    return "\n".join(lines)


def _figure_text(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def _kernels_text(table: pandas.DataFrame, metrics: Sequence[str], top: int) -> str:
    columns = {
        "kernel": ("kernel", ""),
        "count": ("count", "d"),
        "time_ms": ("ms", ".3f"),
        "time_share": ("share %", ".1f"),
        "mean_us": ("mean us", ".2f"),
        "sm_pct": ("SM %", ".1f"),
        "memory_pct": ("memory %", ".1f"),
        "dram_pct": ("DRAM %", ".1f"),
        "occupancy_pct": ("occupancy %", ".1f"),
        **{name: (name, ".6g") for name in metrics},
    }
    total = f"{int(table['count'].sum())} launches of {len(table)} kernels"
    return f"{total}, {table['time_ms'].sum():.3f} ms\n\n" + _text(table, columns, top)


def _comparison_text(table: pandas.DataFrame, metrics: Sequence[str], top: int) -> str:
    columns = {
        "kernel": ("kernel", ""),
        "found_in": ("in", ""),
        "time_lost_ms": ("lost ms", "+.3f"),
        "time_ms_a": ("ms a", ".3f"),
        "time_ms_b": ("ms b", ".3f"),
        "time_ms_ratio": ("b/a", ".3f"),
        "count_a": ("count a", "d"),
        "count_b": ("count b", "d"),
        "mean_us_ratio": ("mean b/a", ".3f"),
        "sm_pct_ratio": ("SM b/a", ".3f"),
        "memory_pct_ratio": ("memory b/a", ".3f"),
        "occupancy_pct_ratio": ("occupancy b/a", ".3f"),
        **{f"{name}_ratio": (f"{name} b/a", ".3f") for name in metrics},
    }
    before, after = table["time_ms_a"].sum(), table["time_ms_b"].sum()
    ratio = f", b/a {after / before:.3f}" if before else ""
    total = f"a {before:.3f} ms, b {after:.3f} ms{ratio}, lost {after - before:+.3f} ms"
    return f"{total}\n\n" + _text(table, columns, top)


# --- the command line ---


def command_parser() -> CommandParser:
    chosen = parser(
        "ncu",
        "Summarizes a CSV of Nsight Compute by kernel, or compares two, sorted by time lost.",
        [
            "my_utils ncu before.csv",
            "my_utils ncu before.csv after.csv --top 5 -o lost.png",
            "my_utils ncu before.csv --json",
        ],
        statuses="0  all input was used\n1  nothing was read, or a file could not be written\n"
        "2  wrong arguments\n3  rows or values were left out",
    )
    add = chosen.add_argument
    add("a", metavar="A", type=Path, help="CSV from ncu --csv, --page raw or details")
    add("b", metavar="B", type=Path, nargs="?", help="CSV to compare with A")
    add("--kernel", metavar="REGEX", help="only kernels with this in their name")
    add(
        "--group-by",
        choices=get_args(GroupBy),
        default="kernel",
        help="function: without template arguments and parameters; launch: with grid and block",
    )
    add("--metric", metavar="NAME", action="append", default=[], help="one more metric; repeatable")
    add("--decimal", choices=get_args(Decimal), default="auto", help="decimal mark of the numbers")
    add_output(chosen, "the table as .csv, or a plot as .png", suffixes=(".csv", ".png"))
    add("--csv", metavar="FILE", help="write the table to FILE")
    add("--png", metavar="FILE", help="write a plot to FILE")
    add("--top", metavar="N", type=int, default=PLOTTED, help="rows shown, 0 for all (default: 20)")
    add_json(chosen, "print all rows of the table as JSON")
    add_quiet(chosen, "no progress")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    parser_of_it = command_parser()
    chosen = parser_of_it.parse_args(argv)
    if chosen.top < 0:
        parser_of_it.error("--top: 0 for all, or more")
    try:
        re.compile(chosen.kernel or "")
    except re.error as error:
        parser_of_it.error(f"--kernel: {error}")
    if chosen.output is not None:
        kind = "png" if chosen.output.lower().endswith(".png") else "csv"
        if getattr(chosen, kind) is not None:
            parser_of_it.error(f"-o and --{kind} name the same output twice")
        setattr(chosen, kind, chosen.output)
    check_inputs("ncu", filter(None, (chosen.a, chosen.b)))
    try:
        return _run(chosen)
    except BrokenPipeError:
        raise
    except (OSError, ValueError, ImportError) as error:
        return fail("ncu", error)


def _run(chosen: argparse.Namespace) -> int:
    settings = {
        "kernel": chosen.kernel, "group_by": chosen.group_by, "metrics": chosen.metric,
        "decimal": chosen.decimal, "output_csv": chosen.csv, "output_png": chosen.png,
        "top": chosen.top,
    }  # fmt: skip
    shown = Progress("ncu", quiet=chosen.quiet, no_color=chosen.no_color, ticking=True)
    with shown, warnings.catch_warnings():
        warnings.simplefilter("ignore", NcuCsvWarning)
        if chosen.b is None:
            table = analyze_sm_throughput_from_csv(chosen.a, **settings)
            text = _kernels_text(table, chosen.metric, chosen.top)
        else:
            table = compare_kernel_metrics(chosen.a, chosen.b, **settings)
            text = _comparison_text(table, chosen.metric, chosen.top)
    if "-" not in (chosen.csv, chosen.png):
        if chosen.json:
            rows = json.loads(table.to_json(orient="records"))  # null for what is not known
            text = json.dumps({"version": SCHEMA_VERSION, "kernels": rows})
        print(text, flush=True)
    for problem in table.attrs["problems"]:
        say("ncu", f"left out: {problem}")
    return EXIT_LEFT_OUT if table.attrs["problems"] else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
