"""Says since which step weights differ: `my_utils passport history DIR`.

Exit status: 0, no difference; 1, a difference; 2, not comparable, it cannot be read, or wrong
arguments; 130, interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..core.command_line import CommandParser, add_json, add_quiet, parser, run_cli
from ..tensors.passport.history import history_lines, history_of
from .passport import compare_and_print


def command_parser() -> CommandParser:
    chosen = parser(
        "passport history",
        "Says since which step replicas, or two sides, have different weights, and on which ranks. "
        "Files of passports are grouped by their names without step and rank.",
        ["my_utils passport history pp"],
        statuses="0  no difference\n1  a difference\n"
        "2  not comparable, as of another dtype; a file cannot be read, or there is none; also "
        "wrong arguments",
    )
    chosen.add_argument("folder", metavar="DIR", help="a folder of passports of several steps")
    add_json(chosen, "print one JSON object with all steps")
    add_quiet(chosen)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_cli(lambda: _main(words))


def _main(argv: Sequence[str]) -> int:
    args = command_parser().parse_args(argv)
    return compare_and_print(
        "passport history",
        args,
        lambda: history_of(args.folder),
        history_lines,
        lambda data: 1 if data.since else 0,
    )
