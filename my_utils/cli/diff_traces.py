"""`my_utils diff TRACE TRACE`: two traces of torch.profiler, of which single steps say little."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from ..analysis.gpu_trace.difference import difference
from ..analysis.gpu_trace.files import breakdowns_in
from ..analysis.replay.inputs import traces_in
from ..core.command_line import CommandParser, fail
from ..core.outputs import check_suffix, open_output
from ..core.printable import encoded

EXIT_NOT_COMPARED = 4
SUFFIXES = (".json", ".txt")
OF_RUNS = {
    "gates": "--gate", "renames": "--map", "steps": "--steps", "ranks": "--ranks",
    "warmup": "--warmup",
}  # fmt: skip


def compare(chosen: CommandParser, args: argparse.Namespace, *sides: Sequence[str]) -> int:
    """Prints where the time of the devices goes in both sides, and how they differ. Returns the
    exit status. There are no gates, for there are no intervals."""
    if given := [option for name, option in OF_RUNS.items() if getattr(args, name)]:
        chosen.error(f"{given[0]} is for runs, not for traces")
    try:
        as_json = bool(args.output) and check_suffix(args.output, SUFFIXES) == ".json"
    except ValueError as error:
        chosen.error(str(error))
    devices = []
    for side in sides:
        traces = traces_in(side)
        found, problems = breakdowns_in(traces)
        for one in problems:
            print(f"my_utils diff: {one}", file=sys.stderr)
        if not found:
            what = "no device did anything in it" if traces else "no trace, as the other side is"
            why = f"not compared: {' '.join(side)}: {what}"
            return fail("diff", why, EXIT_NOT_COMPARED)
        devices.append(found)
    compared = difference(*devices)
    lines = "\n".join(compared.lines()) + "\n"
    data = json.dumps(compared.as_data()) + "\n"
    try:
        if args.output:
            with open_output(args.output) as file:
                file.write(encoded(data if as_json else lines))
        if not args.quiet and args.output != "-":
            print(data if args.json else lines, end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("diff", error)
    return 0
