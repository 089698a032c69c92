"""`my_utils why logs`: shows what bounds a run.

    my_utils why LOG_DIR… [--json] [--ranks 0,3-5] [--steps 10:20] [--hung 30] [-o FILE]

Exit status: 0, judged, and nothing stands out; 1, the output could not be written; 2, wrong
arguments; 3, something was found, or the run hangs; 4, not judged; 130, interrupted.

How files are judged, and how a hang is found, is above this package:
`my_utils.analysis.why` passes both.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ...core.arguments import parse_seconds
from ...core.command_line import (
    EXIT_FAILED,
    CommandParser,
    add_json,
    add_logs,
    add_output,
    add_quiet,
    add_ranks,
    add_steps,
    add_warmup,
    check_outputs,
    fail,
    parser,
    run_cli,
)
from ...core.outputs import check_suffix, open_output
from ...core.printable import encoded
from ...core.ranges import checked
from ...core.run_files.newest import found_logs
from .export import add_export, export_verdict
from .result import Verdict

EXIT_GREEN = 0
EXIT_FOUND = 3
EXIT_NOT_JUDGED = 4
_STATUSES = {"green": EXIT_GREEN, "found": EXIT_FOUND, "not judged": EXIT_NOT_JUDGED}

LEAST_WIDTH = 60
MOST_WIDTH = 120


class Hung(Protocol):
    """A hang. hangs: one of its processes is alive."""

    @property
    def hangs(self) -> bool: ...

    def lines(self) -> list[str]:
        """For a terminal, plain."""
        ...

    def as_data(self) -> Mapping[str, object]:
        """Plain data that goes into JSON."""
        ...


# Of the log directories, the ranks that are asked for, the seconds of --hung and the verdict.
FindHang = Callable[[Sequence[str], set[int] | None, float | None, Verdict], Hung | None]

# Of the paths, the ranks, the steps and the warm-up that are asked for.
VerdictOf = Callable[[Sequence[str], set[int] | None, tuple[int, int] | None, int | None], Verdict]


def command_parser() -> CommandParser:
    chosen = parser(
        "why",
        "Shows what bounds a run: the rank, stage or host where it loses time.",
        [
            "my_utils why",
            "my_utils why logs --steps 100:",
            "my_utils why nodeA nodeB --json",
            "my_utils why operations.parquet",
        ],
        statuses="0  judged, and nothing was found\n"
        "1  the output could not be written, or --export failed\n"
        "2  wrong arguments\n3  something was found, or the run hangs\n"
        "4  not judged: the text says what is missing",
    )
    add_logs(chosen)
    add_output(chosen, "write the verdict to FILE too", suffixes=tuple(_WRITERS))
    add_ranks(chosen)
    add_steps(chosen)
    add_warmup(chosen, "leave out the first N steps (default: those that take longer)")
    chosen.add_argument("--hung", type=checked(parse_seconds), metavar="SECONDS",
        help="no progress for SECONDS counts as a hang (30, and five mean steps): the Python "
        "stacks of the ranks come first")  # fmt: skip
    add_export(chosen)
    add_json(chosen, "print one JSON object")
    add_quiet(chosen, "print nothing, only set the exit status")
    return chosen


def main(
    argv: Sequence[str] | None,
    verdict_of: VerdictOf,
    find_hang: FindHang | None = None,
) -> int:
    """The command line; returns the exit status. find_hang: how a hang is found, None for not."""
    return run_cli(lambda: _main(argv, verdict_of, find_hang))


def _main(argv: Sequence[str] | None, verdict_of: VerdictOf, find_hang: FindHang | None) -> int:
    chosen = command_parser()
    args = chosen.parse_args(argv)
    check_outputs(chosen, args)
    logs = found_logs("why", args.logs, args.quiet)
    verdict = verdict_of(logs, args.ranks, args.steps, args.warmup)
    hung = None if find_hang is None else find_hang(logs, args.ranks, args.hung, verdict)
    verdict.hangs = hung is not None and hung.hangs
    try:
        _write(verdict, hung, args)
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("why", error)
    if not export_verdict("why", verdict, args.export):
        return EXIT_FAILED
    return EXIT_FOUND if verdict.hangs else _STATUSES[verdict.status]


def _write(verdict: Verdict, hung: Hung | None, args: argparse.Namespace) -> None:
    if args.output:
        write = _WRITERS[check_suffix(args.output, tuple(_WRITERS)) or ".txt"]
        with open_output(args.output) as file:
            file.write(encoded(write(verdict, hung)))
    if not args.quiet and args.output != "-":
        text = _as_json(verdict, hung) if args.json else _as_text(verdict, hung, _width())
        print(text, end="", flush=True)


def _width() -> int:
    return min(max(shutil.get_terminal_size((100, 24)).columns, LEAST_WIDTH), MOST_WIDTH)


def _as_json(verdict: Verdict, hung: Hung | None) -> str:
    data: dict[str, object] = {**verdict.as_data()}
    if hung is not None:
        data["hang"] = hung.as_data()
    return json.dumps(data) + "\n"


def _as_text(verdict: Verdict, hung: Hung | None, width: int = 100) -> str:
    """A hang comes first: what bounds its steps is another question."""
    lines = [] if hung is None else [*hung.lines(), ""]
    return "\n".join([*lines, *verdict.lines(width)]) + "\n"


def _as_markdown(verdict: Verdict, hung: Hung | None) -> str:
    if hung is None:
        return verdict.markdown()
    quoted = "\n".join(f"    {line}".rstrip() for line in hung.lines())
    return f"{quoted}\n\n{verdict.markdown()}"


_WRITERS: dict[str, Callable[[Verdict, Hung | None], str]] = {
    ".json": _as_json,
    ".md": _as_markdown,
    ".txt": _as_text,
}
