"""Shows what the ranks of a run do now: the step, the open stages and since when, for each.

    my_utils live LOG_DIR...

shows why a job hangs, and on which rank. It reads the journals of the ranks on this machine, living
or dead, and the heartbeat files of the others. It marks the ranks that hold the run up with `!`,
and says which ranks wait for them. It neither stops nor slows the run, and needs no torch. Above it
is what bounds the run, as `my_utils why` says it. On a terminal it draws a screen: `q` ends it,
`c` captures three steps of the ranks that are named.

`--hung SECONDS` takes one snapshot, and its exit status says whether the run hangs. It prints which
ranks are behind, in which stage and since when. `--flight-recorder DIR` names, from the dumps of
torch's flight recorder, who holds up the others and in which call. `--once --json` prints what
`snapshot` returns.

`--stacks` adds the Python stacks of all threads, which the ranks read of themselves, also where
they hang; on the screen `s` does so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import cast

from ..analysis.live.alerts.options import add_alerts, check_alerts
from ..analysis.live.judged import Judged
from ..analysis.live.poll import STUCK_AFTER_S, Snapshot, SnapshotRequest, as_data
from ..analysis.live.poller import Poller
from ..analysis.live.stacks import (
    LiveData,
    dump_stacks,
    places_by_rank,
    stack_view_lines,
    stacks_as_data,
    stacks_of_named,
)
from ..analysis.live.view import View
from ..analysis.process_stacks.request import Stacks
from ..analysis.verdict.replicas import ReplicaReader, replica_text
from ..analysis.verdict.text import terminal_width
from ..core.arguments import parse_seconds
from ..core.command_line import (
    CommandParser,
    add_json,
    add_logs,
    add_quiet,
    add_ranks,
    error_text,
    fail,
    parser,
    run_cli,
    say,
)
from ..core.ranges import checked
from ..core.run_files.newest import found_logs
from ..core.terminal import table_lines, wants_color

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..analysis.live.alerts.watch import Watch
    from ..core.receiver import Receiver
    from ..tensors.replicas.result import ReplicasData

BETWEEN_POLLS_S = 0.5
RECENT_S = 300.0
INTERVAL_MAX_S = 86_400.0

EXIT_FINE = 0
EXIT_NOTHING = 1
EXIT_USAGE = 2
EXIT_SUSPECTS = 3

_STATUSES = """\
0  with --once: ranks were found, and none stands out
1  with --once or --hung: no rank was found in LOGS
2  wrong arguments, or LOGS cannot be read
3  with --once: at least one rank stands out: dead, silent, behind, or elsewhere than the others; \
or replicas differ
130  with --once or --hung: interrupted by Ctrl-C
"""
_NOTES = (
    "With --hung SECONDS, 0 means that each rank that lives has begun or ended a stage in the last "
    "SECONDS, and 3 that the run hangs: a rank has made no progress for SECONDS, or is dead, or "
    "silent for so long. With neither it goes on until Ctrl-C, and exits with 0."
)


def command_parser() -> CommandParser:
    chosen = parser(
        "live",
        "Shows the step and the open stages of every rank of a run, and which ranks hold the "
        "others up.",
        [
            "my_utils live",
            "my_utils live logs --once --ranks 0,3-5",
            "my_utils live logs --hung 300 --json",
        ],
        statuses=_STATUSES,
        notes=_NOTES,
    )
    add = chosen.add_argument
    add_logs(
        chosen, text="log directory of the run, or several, if its ranks write to different ones"
    )
    add("--once", action="store_true", help="show it once and exit")
    add(
        "--hung",
        type=checked(parse_seconds),
        metavar="SECONDS",
        help="say once whether the run hangs: whether a rank has made no progress for so long",
    )
    add(
        "--flight-recorder",
        metavar="DIR",
        help="with the dumps of torch's flight recorder: who holds up the others, in which call",
    )
    add(
        "--stacks",
        action="store_true",
        help="with --once or --hung: where the ranks stand in their Python code (on the screen: s)",
    )
    add_json(chosen, "print JSON, one object a line")
    add("--interval", type=checked(_interval), default=1.0, metavar="S",
        help="seconds between two snapshots (1)")  # fmt: skip
    add_ranks(chosen)
    add(
        "--stuck-after",
        type=checked(parse_seconds),
        default=STUCK_AFTER_S,
        metavar="S",
        help="seconds in one stage, or without a sign of life, that count as stuck (10)",
    )
    add_alerts(chosen)
    add("--all", action="store_true", help="a line for each rank, however many")
    add_quiet(chosen, "with --once or --hung: print nothing, the exit status says it")
    return chosen


def _interval(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds > INTERVAL_MAX_S:
        raise ValueError(f"must be at most {INTERVAL_MAX_S:,.0f} seconds, not {text!r}")
    return seconds


class _Snapshots:
    """Takes snapshots of the directories, one after another, as the arguments say."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        request = SnapshotRequest(
            tuple(arguments.logs),
            arguments.ranks,
            arguments.stuck_after,
            arguments.hung,
            arguments.flight_recorder,
            processes=len(os.sched_getaffinity(0)),
        )
        self.receiver, watch = _watch(arguments)
        self.poller = Poller(request, watch)
        self.is_hung_check = request.hung_after_s is not None
        self.json = arguments.json
        self.quiet = arguments.quiet
        self.stacks = arguments.stacks
        self.interval_s = arguments.interval
        self.every = arguments.all
        self.color = wants_color(sys.stdout, arguments.no_color)
        table = functools.partial(table_lines, head="none")  # the view paints its lines itself
        self.view = View(color=self.color, group=False if arguments.all else None, table=table)
        self.judged = Judged(arguments.logs, arguments.ranks, recent_s=RECENT_S)
        self.replicas = ReplicaReader(arguments.logs)

    def take_confirmed(self) -> tuple[str | list[str], int]:
        """As `take`, of the second of two polls: an accusation needs both."""
        if not self.is_hung_check:
            self.poller.poll()
            time.sleep(min(self.interval_s, BETWEEN_POLLS_S))
        return self.take()

    def take(self) -> tuple[str | list[str], int]:
        """JSON, or lines for people, and the exit status that belongs to it."""
        seen = self.poller.poll()
        stacks = dump_stacks(seen) if self.stacks else None
        replicas = self.replicas.read()
        status = _status(seen, replicas, is_hung_check=self.is_hung_check)
        if self.json:
            data = cast(LiveData, as_data(seen))
            if stacks is not None:
                data["stacks"] = stacks_as_data(stacks)
            if replicas is not None:
                data["replicas"] = replicas
            return json.dumps(data), status
        title, *lines = self.view.lines(seen, self._places(seen, stacks))
        below = [] if stacks is None else ["", *stack_view_lines(stacks, seen)]
        return [title, *self.above(), *lines, *below], status

    def _places(self, seen: Snapshot, stacks: Stacks | None) -> dict[int, str]:
        """Of a hang, where the ranks that hold up the others are in their Python code."""
        if stacks is None and self.is_hung_check and not self.quiet:
            stacks = stacks_of_named(seen)
        return places_by_rank(stacks) if stacks is not None else {}

    def above(self) -> list[str]:
        """Whether replicas differ, what bounds the run, and what became of its newest minutes. Not
        with --hung, which asks another question."""
        if self.is_hung_check:
            return []
        lines = replica_text(self.replicas.read())
        verdict = self.judged.verdict()
        if verdict is not None:
            judged = verdict.lines(terminal_width())
            lines += judged[:1] if verdict.status == "not judged" else judged
        if self.judged.recent is not None:
            lines.append(self.judged.recent.line())
        return ["", *lines] if lines else []


def _watch(arguments: argparse.Namespace) -> tuple[Receiver | None, Watch | None]:
    """What tells somebody, where the arguments say whom."""
    if arguments.alert is None:
        return None, None
    from ..analysis.live.alerts.watch import GOODPUT_LEAST, Limits, Watch
    from ..analysis.verdict.endings import run_file_of
    from ..core.receiver import Receiver

    goodput = arguments.alert_goodput
    limits = Limits(goodput=GOODPUT_LEAST if goodput is None else goodput)
    name = os.path.basename(os.path.realpath(arguments.logs[0]))
    run_file, _ = run_file_of(arguments.logs)
    run_id = str(run_file.get("run_id") or "")
    receiver = Receiver(arguments.alert, functools.partial(say, "live"))
    return receiver, Watch(name, run_id, receiver.send, limits)


def _status(seen: Snapshot, replicas: ReplicasData | None, *, is_hung_check: bool) -> int:
    if not seen.found.ranks:
        return EXIT_NOTHING
    stands_out = seen.suspects if seen.hang is None else seen.hang.hung
    if not is_hung_check and replicas is not None and replicas["status"] == "differ":
        return EXIT_SUSPECTS
    return EXIT_SUSPECTS if stands_out else EXIT_FINE


def _print(content: str | list[str]) -> None:
    text = content if isinstance(content, str) else "\n".join(content)
    print(text, flush=True)


def _go_on(snapshots: _Snapshots) -> None:
    while True:
        began_s = time.process_time()
        try:
            content, _ = snapshots.take()
        except OSError as error:
            say("live", error_text(error))
        else:
            _print(content)
        cost_s = time.process_time() - began_s
        time.sleep(snapshots.poller.pause_s(snapshots.interval_s, cost_s))


def _follow(snapshots: _Snapshots) -> None:
    if snapshots.json or not sys.stdout.isatty():
        _go_on(snapshots)
        return
    from ..analysis.live.follow import Follow
    from ..analysis.live.memory import read_memory
    from ..analysis.live.screen import Screen

    log_dirs = snapshots.poller.request.log_dirs
    screen = Screen(
        snapshots.poller.history,
        lambda rank: read_memory(rank, log_dirs),
        color=snapshots.color,
        every=snapshots.every,
    )
    Follow(snapshots.poller, screen, snapshots.above, snapshots.interval_s).run()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    return run_cli(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    chosen = command_parser()
    arguments = chosen.parse_args(argv)
    is_once = arguments.once or arguments.hung is not None
    for option in ("quiet", "stacks"):
        if getattr(arguments, option) and not is_once:
            chosen.error(f"--{option} needs --once or --hung")
    check_alerts(chosen, arguments)
    if is_once and arguments.alert is not None:
        chosen.error("--alert watches until Ctrl-C: not with --once or --hung")
    try:
        arguments.logs = found_logs("live", arguments.logs, arguments.quiet)
        snapshots = _Snapshots(arguments)
        if is_once:
            content, status = snapshots.take_confirmed()
        else:
            snapshots.poller.poll()
    except OSError as error:
        return fail("live", error, EXIT_USAGE)
    if not is_once:
        with contextlib.suppress(KeyboardInterrupt):
            _follow(snapshots)
        if snapshots.receiver is not None:
            snapshots.receiver.close()
        return EXIT_FINE
    if not arguments.quiet:
        _print(content)
    return status


if __name__ == "__main__":
    sys.exit(main())
