"""Says since which step weights differ: `my_utils passport history DIR`.

Exit status: 0, no difference; 1, a difference; 2, it cannot be read, or wrong arguments; 130,
interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec

from ..core.command_line import CommandParser, add_json, add_quiet, fail, parser, run_cli
from ..core.printable import printable
from ..core.progress import Progress
from ..tensors.passport.history import history_lines, history_of

EXIT_UNREADABLE = 2


def command_parser() -> CommandParser:
    chosen = parser(
        "passport history",
        "Says since which step replicas, or two sides, have different weights, and on which ranks. "
        "Files of passports are grouped by their names without step and rank.",
        ["my_utils passport history pp"],
        statuses="0  no difference\n1  a difference\n"
        "2  a file cannot be read, or there is none; also wrong arguments",
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
    try:
        with Progress("passport history", quiet=args.quiet, no_color=args.no_color, ticking=True):
            data = history_of(args.folder)
    except (OSError, ValueError) as error:
        return fail("passport history", error, EXIT_UNREADABLE)
    if args.json:
        print(msgspec.json.encode(data).decode())
    else:
        print("\n".join(map(printable, history_lines(data))))
    return 1 if data.since else 0
