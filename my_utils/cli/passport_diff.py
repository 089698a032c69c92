"""Compares the weights of two sides: `my_utils passport diff A B`.

Exit status: 0, equal; 1, they differ; 2, not comparable, or wrong arguments; 130, interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..core.command_line import CommandParser, add_json, add_quiet, parser, run_cli
from ..tensors.passport.checkpoints import read_weights
from ..tensors.passport.compare import ComparedData, compare_weights, format_lines
from ..tensors.passport.layouts import combined
from ..tensors.passport.take import torch_dtype
from .passport import CHECKPOINT_HELP, EXIT_UNREADABLE, add_reading, compare_and_print

_STATUSES = {"equal": 0, "differ": 1, "not comparable": EXIT_UNREADABLE}


def command_parser() -> CommandParser:
    chosen = parser(
        "passport diff",
        "Says whether two sides have the same weights, bit for bit, and where they differ.",
        [
            "my_utils passport diff base.safetensors converted/",
            "my_utils passport diff pp/trainer pp/engine --dtype bfloat16",
            "my_utils passport diff checkpoint.pt model/ --map 'model.*=*' --ignore 'optim*'",
        ],
        statuses="0  equal\n1  they differ\n"
        "2  not comparable: one cannot be read, or they have no tensor in common that could be "
        "compared; also wrong arguments",
    )
    chosen.add_argument("a", metavar="A", help=CHECKPOINT_HELP)
    chosen.add_argument("b", metavar="B", help="what to compare it with")
    add_reading(chosen)
    chosen.add_argument("--ignore", action="append", default=[], metavar="GLOB",
        help="leave out tensors of these names; repeatable")  # fmt: skip
    add_json(chosen, "print one JSON object with all that differs")
    add_quiet(chosen)
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    return run_cli(lambda: _main(words))


def _main(argv: Sequence[str]) -> int:
    args = command_parser().parse_args(argv)

    def compare() -> ComparedData:
        dtype, layout = torch_dtype(args.dtype), combined(args.layouts)
        a, b = (read_weights(path, dtype, layout) for path in (args.a, args.b))
        return compare_weights(a, b, args.ignore)

    return compare_and_print(
        "passport diff", args, compare, format_lines, lambda data: _STATUSES[data.status]
    )
