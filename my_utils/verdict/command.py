"""Says what bounds a run: `my_utils why logs`.

    my_utils why LOG_DIR… [--json] [--ranks 0,3-5] [--steps 10:20] [-o FILE]

Exit status: 0, judged, and nothing stands out; 1, the output could not be written; 2, wrong
arguments; 3, something was found; 4, not judged; 130, interrupted.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence

from ..common.command_line import (
    CommandParser,
    add_json,
    add_logs,
    add_output,
    add_quiet,
    add_ranks,
    add_steps,
    add_warmup,
    check_outputs,
    ended_well,
    error_text,
    parser,
)
from ..common.outputs import check_suffix, open_output
from ..run_files.newest import found_logs
from .export import add_export, export_verdict
from .load import NothingToJudge, load_run
from .result import Verdict
from .rules import judge

__all__ = [
    "EXIT_FAILED",
    "EXIT_FOUND",
    "EXIT_GREEN",
    "EXIT_NOT_JUDGED",
    "EXIT_USAGE",
    "command_parser",
    "main",
    "verdict_of",
]

EXIT_GREEN = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FOUND = 3
EXIT_NOT_JUDGED = 4
_STATUSES = {"green": EXIT_GREEN, "found": EXIT_FOUND, "not judged": EXIT_NOT_JUDGED}

LEAST_WIDTH = 60
MOST_WIDTH = 120


def verdict_of(
    paths: str | Sequence[str],
    ranks: set[int] | None = None,
    steps: tuple[int, int] | None = None,
    warmup: int | None = None,
) -> Verdict:
    """The verdict over files; "not judged" with the reason where no rank can be read."""
    try:
        run = load_run(paths, ranks, steps)
    except NothingToJudge as error:
        reason, *more = str(error).splitlines()
        names = [paths] if isinstance(paths, str) else list(paths)
        return Verdict("not judged", reason=reason, notes=more, paths=tuple(names))
    return judge(run, warmup)


def command_parser() -> CommandParser:
    chosen = parser(
        "why",
        "Says what bounds a run: which rank, stage or host costs its time.",
        [
            "my_utils why",
            "my_utils why logs --steps 100:",
            "my_utils why nodeA nodeB --json",
        ],
        statuses="0  judged, and nothing stands out\n"
        "1  the output could not be written, or a run of --export did not take it\n"
        "2  wrong arguments\n3  something was found\n4  not judged: the text says what is missing",
    )
    add_logs(chosen)
    add_output(chosen, "write it there too", suffixes=tuple(_WRITERS))
    add_ranks(chosen)
    add_steps(chosen)
    add_warmup(chosen, "leave out so many steps (those that take longer)")
    add_export(chosen)
    add_json(chosen, "print one JSON object")
    add_quiet(chosen, "print nothing: the exit status says it")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return ended_well(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser()
    args = chosen.parse_args(argv)
    check_outputs(chosen, args)
    try:
        logs = found_logs("why", args.logs, args.quiet)
    except OSError as error:
        chosen.error(error_text(error))
    for path in args.logs:
        if path != "-" and not os.path.lexists(path) and not glob.glob(path):
            chosen.error(f"{path}: no such file or directory")
    verdict = verdict_of(logs, args.ranks, args.steps, args.warmup)
    try:
        _write(verdict, args)
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"why: error: {error_text(error)}", file=sys.stderr)
        return EXIT_FAILED
    if not export_verdict("why", verdict, args.export):
        return EXIT_FAILED
    return _STATUSES[verdict.status]


def _write(verdict: Verdict, args: argparse.Namespace) -> None:
    if args.output:
        write = _WRITERS[check_suffix(args.output, tuple(_WRITERS)) or ".txt"]
        with open_output(args.output) as file:
            file.write(write(verdict).encode())
    if not args.quiet and args.output != "-":
        print(_as_json(verdict) if args.json else _as_text(verdict, _width()), flush=True)


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, LEAST_WIDTH), MOST_WIDTH)


def _as_json(verdict: Verdict) -> str:
    return json.dumps(verdict.as_data())


def _as_text(verdict: Verdict, width: int = 100) -> str:
    return "\n".join(verdict.lines(width))


_WRITERS: dict[str, Callable[[Verdict], str]] = {
    ".json": lambda verdict: _as_json(verdict) + "\n",
    ".md": Verdict.markdown,
    ".txt": lambda verdict: _as_text(verdict) + "\n",
}
