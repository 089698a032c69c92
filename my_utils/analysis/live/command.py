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
from collections.abc import Collection, Sequence

from ...core.arguments import check_seconds, parse_seconds
from ...core.command_line import (
    CommandParser,
    add_json,
    add_logs,
    add_quiet,
    add_ranks,
    fail,
    parser,
    run_cli,
)
from ...core.ranges import checked, parse_ranks
from ...core.run_files.newest import found_logs
from ...core.terminal import table_lines, wants_color
from ..process_stacks.request import Stacks
from ..verdict.text import terminal_width
from .poll import Snapshot, SnapshotRequest, as_data, take_snapshot
from .poller import Poller
from .result import SnapshotData
from .stacks import (
    LiveData,
    places_by_rank,
    stack_view_lines,
    stacks_as_data,
    stacks_of,
    stacks_of_named,
)
from .verdict import VerdictLines
from .view import View

__all__ = ["main", "parse_ranks", "snapshot"]

STUCK_AFTER_S = 10.0
BETWEEN_POLLS_S = 0.5

_Path = str | os.PathLike[str]

EXIT_FINE = 0
EXIT_NOTHING = 1
EXIT_USAGE = 2
EXIT_SUSPECTS = 3

_STATUSES = """\
0  with --once: ranks were found, and none stands out
1  with --once or --hung: no rank was found in LOGS
2  wrong arguments, or LOGS cannot be read
3  with --once: at least one rank stands out: dead, silent, behind, or elsewhere than the others
130  with --once or --hung: interrupted by Ctrl-C
"""
_NOTES = (
    "With --hung SECONDS, 0 means that each rank that lives has begun or ended a stage in the last "
    "SECONDS, and 3 that the run hangs: a rank has made no progress for SECONDS, or is dead, or "
    "silent for so long. With neither it goes on until Ctrl-C, and exits with 0."
)


def snapshot(
    log_dir: _Path | Sequence[_Path],
    *,
    ranks: Collection[int] | None = None,
    stuck_after_s: float = STUCK_AFTER_S,
    hung_after_s: float | None = None,
    flight_recorder: _Path | None = None,
) -> SnapshotData:
    """What the ranks of a run do, as plain data that goes into JSON.

    log_dir: the log directory of the run, or several if its ranks write to different ones.
    ranks: the ranks to include; all by default.
    stuck_after_s: seconds without a sign of life after which a rank counts as silent (at least 1 s
        where its journal is read, 4 s elsewhere: two of its beats). If no stage begins or ends for
        `stuck_after_s`, the ranks are searched for one that the others wait for.
    hung_after_s: check whether the run hangs. Suspects are then only ranks that are gone, or that
        have been silent or without progress for this many seconds. It replaces `stuck_after_s`.
    flight_recorder: a directory with dumps of torch's flight recorder, one a rank, or the beginning
        of their paths, as in TORCH_FR_DUMP_TEMP_FILE. Nothing in them is executed: only plain data
        is read from pickles.

    `SnapshotData` and the types in its file, `analysis/live/result.py`, say what the keys mean;
    docs/schema/live.json is the same as a JSON Schema. Later versions only add keys (`version` is
    1).

    Raises OSError when a directory cannot be read, TypeError and ValueError for wrong arguments.
    Nothing in the directories is changed. Thread-safe.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     snapshot(folder)["ranks"]
    []
    """
    check_seconds("stuck_after_s", stuck_after_s)
    if hung_after_s is not None:
        check_seconds("hung_after_s", hung_after_s)
    given = [log_dir] if isinstance(log_dir, str | os.PathLike) else log_dir
    if not given:
        raise ValueError("log_dir must name at least one directory")
    log_dirs = tuple(os.fspath(path) for path in given)
    dumps = None if flight_recorder is None else os.fspath(flight_recorder)
    request = SnapshotRequest(log_dirs, ranks, stuck_after_s, hung_after_s, dumps)
    return as_data(take_snapshot(request))


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
    add("--interval", type=checked(parse_seconds), default=1.0, metavar="S",
        help="seconds between two snapshots (1)")  # fmt: skip
    add_ranks(chosen)
    add(
        "--stuck-after",
        type=checked(parse_seconds),
        default=STUCK_AFTER_S,
        metavar="S",
        help="seconds in one stage, or without a sign of life, that count as stuck (10)",
    )
    add("--all", action="store_true", help="a line for each rank, however many")
    add_quiet(chosen, "with --once or --hung: print nothing, the exit status says it")
    return chosen


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
        self.poller = Poller(request)
        self.is_hung_check = request.hung_after_s is not None
        self.json = arguments.json
        self.quiet = arguments.quiet
        self.stacks = arguments.stacks
        self.interval_s = arguments.interval
        self.every = arguments.all
        self.color = wants_color(sys.stdout, arguments.no_color)
        table = functools.partial(table_lines, head="none")  # the view paints its lines itself
        self.view = View(color=self.color, group=False if arguments.all else None, table=table)
        self.verdict = VerdictLines(arguments.logs, arguments.ranks)

    def take_confirmed(self) -> tuple[str | list[str], int]:
        """As `take`, of the second of two polls: an accusation needs both."""
        if not self.is_hung_check:
            self.poller.poll()
            time.sleep(min(self.interval_s, BETWEEN_POLLS_S))
        return self.take()

    def take(self) -> tuple[str | list[str], int]:
        """JSON, or lines for people, and the exit status that belongs to it."""
        seen = self.poller.poll()
        stacks = stacks_of(seen) if self.stacks else None
        if self.json:
            data: SnapshotData | LiveData = as_data(seen)
            if stacks is not None:
                data = {**data, "stacks": stacks_as_data(stacks)}
            return json.dumps(data), _status(seen)
        title, *lines = self.view.lines(seen, self._places(seen, stacks))
        below = [] if stacks is None else ["", *stack_view_lines(stacks, seen)]
        return [title, *self.above(), *lines, *below], _status(seen)

    def _places(self, seen: Snapshot, stacks: Stacks | None) -> dict[int, str]:
        """Of a hang, where the ranks that hold up the others are in their Python code."""
        if stacks is None and self.is_hung_check and not self.quiet:
            stacks = stacks_of_named(seen)
        return places_by_rank(stacks) if stacks is not None else {}

    def above(self) -> list[str]:
        """What bounds the run. Not with --hung, which asks another question."""
        if self.is_hung_check:
            return []
        lines = self.verdict.lines(terminal_width())
        return ["", *lines] if lines else []


def _status(seen: Snapshot) -> int:
    if not seen.found.ranks:
        return EXIT_NOTHING
    stands_out = seen.suspects if seen.hang is None else seen.hang.hung
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
            content = [f"{error.filename}: {error.strerror}"]
        _print(content)
        cost_s = time.process_time() - began_s
        time.sleep(snapshots.poller.pause_s(snapshots.interval_s, cost_s))


def _follow(snapshots: _Snapshots) -> None:
    if snapshots.json or not sys.stdout.isatty():
        _go_on(snapshots)
        return
    from .follow import Follow
    from .memory import memory_of
    from .screen import Screen

    log_dirs = snapshots.poller.request.log_dirs
    screen = Screen(
        snapshots.poller.history,
        lambda rank: memory_of(rank, log_dirs),
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
        return EXIT_FINE
    if not arguments.quiet:
        _print(content)
    return status


if __name__ == "__main__":
    sys.exit(main())
