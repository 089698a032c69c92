"""A page about a run: `my_utils report logs`.

    my_utils report LOG_DIR -o report.html

Exit status: 0, the report is written; 1, there was nothing to report on or it could not be
written; 2, wrong arguments; 130, interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..analysis.verdict.export import add_export, export_verdict
from ..core.command_line import (
    CommandParser,
    add_json,
    add_logs,
    add_output,
    add_part,
    add_quiet,
    add_ranks,
    add_warmup,
    check_outputs,
    fail,
    parser,
    run_cli,
    say,
)
from ..core.outputs import check_output, open_output
from ..core.printable import encoded
from ..core.progress import Progress
from ..core.ranges import checked
from ..core.run_files.newest import found_logs
from .part import chosen_part

if TYPE_CHECKING:
    from ..analysis.report.analysis import Report
    from ..analysis.report.page import Page
    from ..analysis.verdict.result import Verdict


DEFAULT_PAGE = "report.html"


def command_parser() -> CommandParser:
    chosen = parser(
        "report",
        "Writes a page about a run: its verdict, where the time goes, and which rank waits.",
        [
            "my_utils report",
            "my_utils report logs -o report.html --ranks 0,3-5 --steps 100:200",
            "my_utils report logs --json | jq .stragglers",
        ],
        statuses="0  the report is written\n1  there was nothing to report on, or it could not be "
        "written\n2  wrong arguments",
    )
    add = chosen.add_argument
    add_logs(chosen)
    add_output(
        chosen, "the page, or all figures as .json "
        f"(default: {DEFAULT_PAGE}, unless another output is named)",
        suffixes=(".html", ".htm", ".json"),
    )  # fmt: skip
    add_json(chosen, "all figures to standard output; no file unless another option names one")
    add("--csv", metavar="DIR", help="all tables as CSV")
    add("--png", metavar="DIR", help="the plots")
    add("--parquet", metavar="DIR", help="all stages, partitioned by rank")
    add("--engine", choices=("local", "ray"),
        help="adds tables, for many rows; ray: on the cluster that RAY_ADDRESS names")  # fmt: skip
    add_part(chosen)
    add_ranks(chosen, "show these ranks; the whole run is judged")
    add("--sync", metavar="REGEX", help="stages in which ranks wait; inferred without it")
    add_warmup(chosen, "steps at the beginning that do not count")
    add(
        "--memory-limit",
        default="256MB",
        type=checked(_memory_limit),
        metavar="SIZE",
        help="of the tables; what exceeds it goes to a temporary file (%(default)s)",
    )
    add("--torch-trace", nargs="+", action="extend", default=[], metavar="TRACE.json",
        help="of torch's profiler: how much communication is hidden")  # fmt: skip
    add_export(chosen)
    add_quiet(chosen)
    return chosen


def _memory_limit(text: str) -> str:
    from ..analysis.report.cells import limit_of  # numpy loads for a report only

    limit_of(text)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser()
    args = chosen.parse_args(argv)
    if not (args.output or args.json or args.csv or args.png or args.parquet):
        args.output = DEFAULT_PAGE
    check_outputs(chosen, args)
    try:
        if args.output is not None:
            check_output(args.output)
        args.logs = found_logs("report", args.logs, args.quiet)
        args.steps, _ = chosen_part(args.logs, args)
        verdict, figures = _write(args)
    except BrokenPipeError:
        raise
    except (OSError, ImportError, MemoryError, ValueError) as error:
        return _failed(chosen, error)
    if args.export and verdict is None:
        return fail("report", "--export needs a run that can be judged")
    is_sent = verdict is None or export_verdict("report", verdict, args.export, figures)
    return 0 if is_sent else 1


def _failed(chosen: CommandParser, error: Exception) -> int:
    """1 where there was nothing to report on; any other ValueError is a wrong argument, 2."""
    from ..analysis.report.analysis import ReportError
    from ..analysis.verdict.load import NothingToJudge

    if isinstance(error, ValueError) and not isinstance(error, (NothingToJudge, ReportError)):
        chosen.error(str(error))
    return fail("report", error)


def _write(args: argparse.Namespace) -> tuple[Verdict | None, dict[str, float]]:
    """The verdict, and with --export the figures of the ledger. The page alone needs no pandas; all
    other outputs are an engine's."""
    from ..analysis.replay.inputs import holds_operations

    tables = args.engine or args.json or args.csv or args.png or args.parquet or args.torch_trace
    is_needed = tables or (args.output and not _is_page(args))
    if is_needed and holds_operations(args.logs):
        raise ValueError(
            f"only the page is written for {' '.join(args.logs)}, which holds no profile CSVs; "
            "my_utils why --json prints its verdict"
        )
    with Progress(
        "report", None, "ranks", quiet=args.quiet, no_color=args.no_color, ticking=True
    ) as shown:
        report = _analyzed(args, shown) if is_needed else None
        shown.phase("writing")
        page = _page(args, report) if _is_page(args) else None
        if report is not None:
            _write_tables(args, report)
    if args.json and report is not None:
        print(report.to_json())
    elif not args.quiet:
        _print(args, page)
    figures = _of_ledger(page, report) if args.export else {}
    if page is not None:
        return page.verdict, figures
    return None if report is None else report.verdict, figures


def _of_ledger(page: Page | None, report: Report | None) -> dict[str, float]:
    from ..analysis.ledger.data import figures_of
    from ..analysis.report.run_page import ledger_of_report

    if page is not None:
        ledger = page.ledger
    else:
        ledger = None if report is None else ledger_of_report(report)
    return {} if ledger is None else figures_of(ledger)


def _is_page(args: argparse.Namespace) -> bool:
    return args.output is not None and not args.output.lower().endswith(".json")


def _analyzed(args: argparse.Namespace, shown: Progress) -> Report:
    from ..analysis.report.analysis import analyze

    return analyze(
        args.logs, ranks=args.ranks, steps=args.steps, engine=args.engine or "local",
        sync=args.sync, warmup=args.warmup, memory_limit=args.memory_limit, parquet=args.parquet,
        torch_traces=args.torch_trace, on_progress=shown.show,
    )  # fmt: skip


def _page(args: argparse.Namespace, report: Report | None) -> Page:
    from ..analysis.report.judged import Source, sync_pattern
    from ..analysis.report.page import page_text
    from ..analysis.report.run_page import make_page, page_of_report

    if report is not None:
        page = page_of_report(report)
    else:
        ranks = None if args.ranks is None else frozenset(args.ranks)
        sync = sync_pattern(args.sync)
        page = make_page(Source(tuple(args.logs), ranks, args.steps, args.warmup, sync))
    with open_output(args.output) as file:
        file.write(encoded(page_text(page)))
    return page


def _write_tables(args: argparse.Namespace, report: Report) -> None:
    if args.csv:
        report.save_csv(args.csv)
    if args.png:
        report.save_figures(args.png)
    if args.output is not None and not _is_page(args):
        with open_output(args.output) as file:
            file.write(encoded(f"{report.to_json()}\n"))


def _print(args: argparse.Namespace, page: Page | None) -> None:
    """The verdict, unless the page itself goes to standard output, and where the page is."""
    if page is not None and args.output != "-":
        print("\n".join(page.verdict.lines()))
    if args.output is not None:
        say("report", f"-> {args.output}")
