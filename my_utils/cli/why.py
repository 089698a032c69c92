"""`my_utils why logs`: shows what bounds a run.

    my_utils why LOG_DIR… [--json] [--ranks 0,3-5] [--steps 10:20 | --since 3h] [--hung 30]
                          [--ledger] [--timeline] [-o FILE]

Exit status: 0, judged, and nothing stands out; 1, the output could not be written; 2, wrong
arguments; 3, something was found, or the run hangs; 4, not judged; 130, interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..analysis.gpu_trace import data as device_data
from ..analysis.gpu_trace.text import breakdown_lines, table_lines as table_of_devices
from ..analysis.ledger.data import as_data, figures_of
from ..analysis.ledger.read import LedgerReader
from ..analysis.ledger.text import ledger_lines, table_lines
from ..analysis.replay.inputs import answer_of, traces_in
from ..analysis.timeline import data as timeline_data
from ..analysis.timeline.text import LINES_SHOWN, timeline_lines
from ..analysis.timeline.timeline import Timeline
from ..analysis.verdict.export import add_export, export_verdict
from ..analysis.verdict.replicas import ReplicaReader, replica_text
from ..analysis.verdict.result import Verdict
from ..analysis.verdict.text import LINES_MAX, shortened, terminal_width
from ..core.arguments import parse_seconds
from ..core.command_line import (
    EXIT_FAILED,
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
)
from ..core.outputs import check_suffix, open_output
from ..core.printable import encoded
from ..core.ranges import checked
from ..core.run_files.files import FLIGHTS_FOLDER
from ..core.run_files.newest import found_logs
from ..core.run_files.ranks import find_ranks
from ..trace.inputs import named_by
from .part import chosen_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..analysis.gpu_trace.breakdown import Breakdown
    from ..analysis.ledger.ledger import Ledger
    from ..analysis.why.hang import HungRun
    from ..tensors.replicas.result import ReplicasData

TRACES_READ = 4  # again, of a run that cannot be judged
EXIT_OK = 0
EXIT_FOUND = 3
EXIT_NOT_JUDGED = 4
_STATUSES = {"ok": EXIT_OK, "found": EXIT_FOUND, "not judged": EXIT_NOT_JUDGED}


class Answer(NamedTuple):
    """devices: where their time went, by traces. whole: of these, "ledger" and "timeline", all is
    shown, and not only what fits below the verdict."""

    verdict: Verdict
    hung: HungRun | None
    ledger: Ledger | None
    timeline: Timeline | None
    devices: list[Breakdown]
    replicas: ReplicasData | None
    whole: frozenset[str]


def command_parser() -> CommandParser:
    chosen = parser(
        "why",
        "Shows what bounds a run: the rank, stage or host where it loses time.",
        [
            "my_utils why",
            "my_utils why logs --steps 100:",
            "my_utils why logs --at 14:05",
            "my_utils why nodeA nodeB --json",
            "my_utils why operations.parquet",
        ],
        statuses="0  judged, and nothing was found\n"
        "1  the output could not be written, or --export failed\n"
        "2  wrong arguments\n3  something was found, replicas differ, or the run hangs\n"
        "4  not judged: the text says what is missing",
    )
    add_logs(chosen)
    add_output(chosen, "write the verdict to FILE too", suffixes=tuple(_WRITERS))
    add_ranks(chosen, "show what concerns these ranks; the whole run is judged")
    add_part(chosen, at=True)
    add_warmup(chosen, "leave out the first N steps (default: those that take longer)")
    chosen.add_argument("--hung", type=checked(parse_seconds), metavar="SECONDS",
        help="no progress for SECONDS counts as a hang (30, and five mean steps): the Python "
        "stacks of the ranks come first")  # fmt: skip
    chosen.add_argument(
        "--ledger",
        action="store_true",
        help="show where all time of the job went: each nanosecond of each rank in one row",
    )
    chosen.add_argument(
        "--timeline",
        action="store_true",
        help="show all parts of the run: when what held, and what comes back every so many steps",
    )
    add_export(chosen)
    add_json(chosen, "print one JSON object")
    add_quiet(chosen, "print nothing, only set the exit status")
    return chosen


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status. docs/runs/verdict.md has the options."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser()
    args = chosen.parse_args(argv)
    check_outputs(chosen, args)
    logs = found_logs("why", args.logs, args.quiet)
    reader = LedgerReader()
    try:
        steps, at = chosen_part(logs, args)
    except ValueError as error:
        chosen.error(str(error))
    verdict, timeline, all_closed = answer_of(
        logs, args.ranks, steps, args.warmup, reader, whole=not args.ledger, at=at
    )
    hung = _find_hang(logs, args.ranks, args.hung, verdict, all_closed)
    whole = frozenset(name for name in ("ledger", "timeline") if getattr(args, name))
    ledger = reader.ledger(args.hung, args.ranks)
    devices = _devices(logs, verdict, "ledger" in whole)
    replicas = ReplicaReader(named_by(logs)).read()
    answer = Answer(verdict, hung, ledger, timeline, devices, replicas, whole)
    try:
        _write(answer, args)
    except BrokenPipeError:
        raise
    except OSError as error:
        return fail("why", error)
    figures = {} if answer.ledger is None else figures_of(answer.ledger)
    if not export_verdict("why", verdict, args.export, figures):
        return EXIT_FAILED
    differ = replicas is not None and replicas["status"] == "differ"
    return EXIT_FOUND if verdict.hangs or differ else _STATUSES[verdict.status]


def _devices(logs: Sequence[str], verdict: Verdict, is_asked: bool) -> list[Breakdown]:
    """Of traces that were asked for, or of which nothing else can be said, and of these a few."""
    traces = traces_in(logs)
    if not traces or not (is_asked or verdict.status == "not judged"):
        return []
    from ..analysis.gpu_trace.files import breakdowns_in
    from ..analysis.replay.read_traces import IDLE_NOTE

    devices, problems = breakdowns_in(traces if is_asked else traces[:TRACES_READ])
    reason = verdict.reason or "\n"  # which ends no line
    known = verdict.notes
    verdict.notes = known + [one for one in problems if not (one in known or one.endswith(reason))]
    if devices:  # which say more of it, and of all that was recorded
        verdict.notes = [one for one in verdict.notes if not one.startswith(IDLE_NOTE)]
    return devices


def _find_hang(
    logs: Sequence[str],
    ranks: set[int] | None,
    after_s: float | None,
    verdict: Verdict,
    all_closed: bool,
) -> HungRun | None:
    """As `hang.find_hang`, whose imports take longer than the verdict on a small run. They are
    needed only where a process was in a stage when it left its last sign, or one of several did not
    end, or where there are dumps of a standstill. `verdict.hangs` says whether the run hangs where
    something is known of its processes."""
    named = named_by(logs)
    folders = [path for path in named if os.path.isdir(path) and os.access(path, os.R_OK)]
    hung = None
    try:
        found = [] if all_closed else find_ranks(folders).ranks
        is_open = any(
            rank.state != "closed" and (rank.stack or len(found) > 1) for rank in found
        ) or any(os.path.isdir(os.path.join(folder, FLIGHTS_FOLDER)) for folder in folders)
        if is_open:
            from ..analysis.why.hang import find_hang

            hung = find_hang(folders, ranks, after_s, verdict)
    except OSError:  # the verdict says which directory cannot be read
        return None
    if hung is not None:
        verdict.hangs = hung.hangs or None  # it had hung, which is above the verdict
    elif (found or all_closed) and len(folders) == len(named):
        verdict.hangs = False
    return hung


def _write(answer: Answer, args: argparse.Namespace) -> None:
    if args.output:
        write = _WRITERS[check_suffix(args.output, tuple(_WRITERS)) or ".txt"]
        with open_output(args.output) as file:
            file.write(encoded(write(answer)))
    if not args.quiet and args.output != "-":
        text = _as_json(answer) if args.json else _as_text(answer, terminal_width())
        print(text, end="", flush=True)


def _as_json(answer: Answer) -> str:
    data: dict[str, object] = {**answer.verdict.as_data()}
    if answer.hung is not None:
        data["hang"] = answer.hung.as_data()
    if answer.ledger is not None:
        data["ledger"] = as_data(answer.ledger)
    if answer.timeline is not None:
        data["timeline"] = timeline_data.as_data(answer.timeline)
    if answer.devices:
        data["devices"] = [device_data.as_data(one) for one in answer.devices]
    if answer.replicas is not None:
        data["replicas"] = answer.replicas
    return json.dumps(data) + "\n"


def _as_text(answer: Answer, width: int = 100) -> str:
    """A hang comes first, and then replicas that differ: what bounds its steps is another
    question."""
    lines = [] if answer.hung is None else [*answer.hung.lines(), ""]
    lines += replica_text(answer.replicas, only_differing=True)
    ledger = _of_ledger(answer, width)
    parts = _of_timeline(answer)
    judged = answer.verdict.lines(width)
    if not answer.whole:
        judged = shortened(judged, LINES_MAX - len(ledger) - len(parts))
    return "\n".join([*lines, *judged, *parts, *ledger]) + "\n"


def _of_timeline(answer: Answer) -> list[str]:
    if answer.timeline is None:
        return []
    return timeline_lines(answer.timeline, None if "timeline" in answer.whole else LINES_SHOWN)


def _of_ledger(answer: Answer, width: int) -> list[str]:
    is_whole = "ledger" in answer.whole
    if answer.devices:
        return table_of_devices(answer.devices) if is_whole else breakdown_lines(answer.devices)
    if answer.ledger is None:
        return []
    return table_lines(answer.ledger) if is_whole else ledger_lines(answer.ledger, width)


def _as_markdown(answer: Answer) -> str:
    parts = [answer.verdict.markdown()]
    if answer.hung is not None:
        parts.insert(0, _quoted(answer.hung.lines()) + "\n")
    replicas = replica_text(answer.replicas)
    if lines := [*replicas, *_of_timeline(answer), *_of_ledger(answer, 100)]:
        parts.append(_quoted(lines) + "\n")
    return "\n".join(parts)


def _quoted(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}".rstrip() for line in lines)


_WRITERS: dict[str, Callable[[Answer], str]] = {
    ".json": _as_json,
    ".md": _as_markdown,
    ".txt": _as_text,
}
