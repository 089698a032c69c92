"""Compares two runs, or two sides of several: `my_utils diff A B`.

    my_utils diff A B [--gate 'iter:+2%'] [--json] [-o FILE]
    my_utils diff base/* --with new/*

Exit status: 0, compared, and all gates passed; 1, the output could not be written; 2, wrong
arguments; 3, a gate failed; 4, undecided, or not compared; 130, interrupted. With --bisect 125 in
place of 1, 2 and 4.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections.abc import Callable, Sequence

from ..analysis.diff.comparison import Sides, compare_files
from ..analysis.diff.gates import GateData, GateResult, judge_gate, parse_gate, worst_of
from ..analysis.diff.result import Difference, DifferenceData
from ..analysis.diff.text import gate_line, junit, markdown
from ..analysis.replay.inputs import traces_in
from ..analysis.verdict.rank_files import SEPARATOR
from ..core.command_line import (
    CommandParser,
    add_json,
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
from ..core.outputs import check_suffix, open_output
from ..core.printable import encoded
from ..core.ranges import checked
from ..core.run_files.newest import found_runs

EXIT_FAILED_GATE = 3
EXIT_UNDECIDED = 4
EXIT_SKIP = 125  # `git bisect run` takes it for "cannot be tested", and 1 to 124 for "bad"
_STATUSES = {"passed": 0, "failed": EXIT_FAILED_GATE, "undecided": EXIT_UNDECIDED}
_BISECT = "--bisect"


class DiffData(DifferenceData):
    """How much slower or faster B is than A.

    gates: the limits of --gate, in their order.
    """

    gates: list[GateData]


def command_parser() -> CommandParser:
    chosen = parser(
        "diff",
        "Shows how much slower or faster run B is than run A, in which stage and on which ranks.",
        [
            "my_utils diff logs/before logs/after",
            "my_utils diff base/* --with new/* --gate 'iter:+2%' --gate 'memory:+5%'",
            "my_utils diff A B -o diff.html",
            "my_utils diff before.json after.json",
            "my_utils diff A B --gate 'forward/attn:+3%' -o diff.xml",
            "my_utils diff base new --gate iter:+2% --bisect",
        ],
        statuses="0  compared, and all gates passed\n"
        "1  the output could not be written\n"
        "2  wrong arguments\n3  a gate failed\n4  undecided, or not compared\n"
        "125  with --bisect, instead of 1, 2 and 4",
    )
    add = chosen.add_argument
    add("runs", nargs="+", metavar="RUN",
        help="log directory or glob; a folder of runs means its newest run; or a trace of "
        "torch.profiler. Two, A and B; with --with, those of A")  # fmt: skip
    add("--with", dest="others", nargs="+", metavar="RUN", help="the runs of B")
    add("--gate", dest="gates", action="append", default=[], type=checked(parse_gate),
        metavar="NAME:LIMIT%",
        help="iter:+2%%, memory:+5%%, throughput:-2%%, or PATH/OF/STAGE:+3%%: fail if the whole "
        "interval exceeds the limit; repeatable")  # fmt: skip
    add("--map", dest="renames", action="append", default=[], type=checked(_rename),
        metavar="OLD=NEW", help="the stage OLD of A is called NEW in B")  # fmt: skip
    add(_BISECT, action="store_true",
        help="exit with 125 if `git bisect run` should skip the commit")  # fmt: skip
    add_output(
        chosen,
        "write the result to FILE too; .html is a page, .xml is JUnit XML",
        suffixes=_SUFFIXES,
    )
    add_ranks(chosen)
    add_steps(chosen)
    add_warmup(chosen, "leave out the first N steps of each run (default: the longest warm-up)")
    add_json(chosen, "print one JSON object")
    add_quiet(chosen, "print nothing, only set the exit status")
    return chosen


def _rename(text: str) -> tuple[str, str]:
    old, equals, new = (part.strip(SEPARATOR) for part in text.partition("="))
    if not (old and equals and new):
        raise ValueError(f"{text!r} is not OLD=NEW, two paths of stages")
    return old, new


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not any(map(_is_bisect, words)):
        return run_cli(lambda: _main(words))
    try:
        status = run_cli(lambda: _main(words))
    except SystemExit as ended:
        raise SystemExit(_for_bisect(ended.code)) from None
    except Exception as error:  # its traceback would end with 1, which is "bad"
        return fail("diff", error, EXIT_SKIP)
    return _for_bisect(status)


def _is_bisect(word: str) -> bool:
    """Whether argparse takes it for the option, which may be abbreviated. Words that it refuses
    count, too: it has parsed nothing where another argument is wrong."""
    name = word.partition("=")[0]
    return len(name) > len("--") and _BISECT.startswith(name)


def _for_bisect(status: object) -> int:
    """What says nothing of the commit is 125."""
    code = 0 if status is None else status
    return code if code in (0, EXIT_FAILED_GATE, 130) and isinstance(code, int) else EXIT_SKIP


def _main(argv: Sequence[str]) -> int:
    chosen = command_parser()
    args = chosen.parse_args(argv)
    check_outputs(chosen, args)
    if traces_in([*args.runs, *(args.others or ())]):
        from .diff_traces import compare

        return compare(chosen, args, *_named(chosen, args))
    sides = _sides(chosen, args)
    compared = compare_files(
        *sides,
        ranks=args.ranks,
        steps=args.steps,
        warmup=args.warmup,
        renames=dict(args.renames),
    )
    found = compared.found
    gates = [judge_gate(gate, found) for gate in args.gates]
    try:
        _write(compared, gates, args)
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("diff", error)
    return EXIT_UNDECIDED if found.step is None else _STATUSES[worst_of(gates)]


def _sides(chosen: CommandParser, args: argparse.Namespace) -> tuple[list[str], list[str]]:
    first, second = _named(chosen, args)
    return _runs(chosen, first, args.quiet), _runs(chosen, second, args.quiet)


def _named(chosen: CommandParser, args: argparse.Namespace) -> tuple[list[str], list[str]]:
    first, second = args.runs, args.others
    if second is None:
        if len(first) != 2:
            chosen.error(f"pass two runs, or several of each side with --with: {len(first)} came")
        first, second = first[:1], first[1:]
    return first, second


def _runs(chosen: CommandParser, paths: Sequence[str], quiet: bool) -> list[str]:
    """The runs that are named, each once: a link among them does not count."""
    named: list[str] = []
    for path in paths:
        named += [path] if os.path.lexists(path) else sorted(glob.glob(path)) or [path]
    once: dict[str, str] = {}
    for found in found_runs("diff", named, quiet):
        once.setdefault(os.path.realpath(found.folder), found.folder)
    return list(once.values())


# --- what it says ---


def _write(compared: Sides, gates: list[GateResult], args: argparse.Namespace) -> None:
    found = compared.found
    if args.output:
        suffix = check_suffix(args.output, _SUFFIXES) or ".txt"
        if suffix in _PAGES:
            from ..analysis.diff.page import page_text  # jinja2 and the rest load for a page only

            text = page_text(found, gates, compared.a, compared.b)
        else:
            text = _WRITERS[suffix](found, gates)
        with open_output(args.output) as file:
            file.write(encoded(text))
    if not args.quiet and args.output != "-":
        print(_as_json(found, gates) if args.json else _as_text(found, gates), end="", flush=True)


def _as_text(found: Difference, gates: list[GateResult]) -> str:
    lines = [*found.lines(), *(gate_line(one) for one in gates)]
    return "\n".join(lines) + "\n"


def _as_json(found: Difference, gates: list[GateResult]) -> str:
    data: DiffData = {**found.as_data(), "gates": [one.as_data() for one in gates]}
    return json.dumps(data) + "\n"


_WRITERS: dict[str, Callable[[Difference, list[GateResult]], str]] = {
    ".json": _as_json,
    ".md": markdown,
    ".txt": _as_text,
    ".xml": junit,
}
_PAGES = (".html", ".htm")
_SUFFIXES = (*_WRITERS, *_PAGES)
