"""The part of a run that `--steps`, `--since`, `--between` and `--at` name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def chosen_part(
    logs: Sequence[str], args: argparse.Namespace
) -> tuple[tuple[int, int] | None, int | None]:
    """The steps, a half-open range, None for all; and the step of `--at`, None without it. Reads
    the clock of the run where an option names a time. ValueError where the run has no such moment,
    or no clock."""
    at = getattr(args, "at", None)
    if not (args.since or args.between or at):
        return args.steps, None
    from ..analysis.verdict.run_clock import read_clock, step_at, steps_between

    clock = read_clock(logs)
    if clock is None:
        option = "--at" if at else "--since" if args.since else "--between"
        raise ValueError(f"{option} needs the files of a run with steps; --steps takes others")
    if at:
        return None, step_at(clock, at, "--at")
    if args.since:
        return steps_between(clock, args.since, None, "--since"), None
    first, last = args.between
    return steps_between(clock, first, last, "--between"), None
