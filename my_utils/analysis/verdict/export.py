"""The option `--export` of `my_utils why` and `my_utils report`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...core.command_line import fail
from ...record.exporters.verdict import ExportError, Summary, export_summary, parse_target
from .result import Verdict


def add_export(chosen: argparse.ArgumentParser) -> None:
    """Adds the option, which may be given several times."""
    chosen.add_argument(
        "--export",
        type=_target,
        action="append",
        default=[],
        metavar="KIND=RUN",
        help="send the verdict and its figures to a run: wandb=PROJECT/ID, tensorboard=DIR, "
        "mlflow=ID",
    )


def _target(text: str) -> tuple[str, str]:
    try:
        return parse_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def export_verdict(command: str, verdict: Verdict, targets: Sequence[tuple[str, str]]) -> bool:
    """Sends it to each; False, with the reason on standard error, where one did not take it."""
    fine = True
    for kind, run in targets:
        try:
            export_summary(kind, run, summary_of(verdict))
        except (ExportError, ImportError) as error:
            fail(command, error)
            fine = False
    return fine


def summary_of(verdict: Verdict) -> Summary:
    """The figures: step_ms, untimed_share, judged_ranks, judged_steps, findings (how many cost
    time), and of each of these `<kind>/share` and `<kind>/saves_ms`, a step; blanks are `_`."""
    figures = {
        "step_ms": verdict.step_ns * 1e-6,
        "untimed_share": verdict.untimed_share,
        "judged_ranks": float(verdict.judged_ranks),
        "judged_steps": float(verdict.judged_steps),
        "findings": float(len(verdict.costly)),
    }
    for one in reversed(verdict.costly):  # of two of a kind the most costly one is kept
        kind = one.kind.replace(" ", "_")
        figures[f"{kind}/share"] = one.share
        figures[f"{kind}/saves_ms"] = one.saves_ns_a_step * 1e-6
    return Summary(verdict.status, figures, verdict.markdown(), verdict.last_step or 0)
