"""Shows what the ranks of a run do now: the step, the open stages and since when, for each.

    python -m my_utils.live LOG_DIR...

shows why a job hangs, and on which rank. It reads the journals of the ranks on this machine, living
or dead, and the heartbeat files of the others. It marks the ranks that hold the run up with `!`. It
neither stops nor slows the run, and needs neither torch nor numpy.

`--hung SECONDS` takes one snapshot, and its exit status says whether the run hangs. It prints which
ranks are behind, in which stage and since when. `--flight-recorder DIR` adds the collective, from
the dumps of torch's flight recorder. `--once --json` prints what `snapshot` returns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..common.arguments import check_seconds
from ..common.ranges import checked, parse_ranks
from .poll import Look, Question, as_data, look
from .view import View, fit

__all__ = ["main", "parse_ranks", "snapshot"]

STUCK_AFTER_S = 10.0

_Path = str | os.PathLike[str]

EXIT_FINE = 0
EXIT_NOTHING = 1
EXIT_USAGE = 2
EXIT_SUSPECTS = 3

_EPILOG = """\
exit status with --once:
  0  ranks were found, and none stands out
  1  no rank was found in LOG_DIR
  2  wrong arguments, or LOG_DIR cannot be read
  3  at least one rank stands out: dead, silent, behind, or elsewhere than the others
and with --hung SECONDS:
  0  each rank that lives has begun or ended a stage in the last SECONDS
  1, 2  as above
  3  the run hangs: a rank has stood still for SECONDS, or is dead, or silent for so long
With neither it goes on until Ctrl-C, and ends with 0.
"""


def snapshot(
    log_dir: _Path | Sequence[_Path],
    *,
    ranks: Collection[int] | None = None,
    stuck_after_s: float = STUCK_AFTER_S,
    hung_after_s: float | None = None,
    flight_recorder: _Path | None = None,
) -> dict[str, Any]:
    """What the ranks of a run do, as plain data that goes into JSON.

    log_dir: the log directory of the run, or several that its ranks share out among them.
    ranks: the ranks to include; all by default.
    stuck_after_s: seconds without a sign of life after which a rank counts as silent (at least two
        of its beats: 1 s where its journal is, 4 s elsewhere). Also the seconds without a stage
        that begins or ends after which the ranks are searched for one that the others wait for.
    hung_after_s: check whether the run hangs. Suspects are then only ranks that are gone, or
        that have been silent or stood still for so many seconds. It replaces `stuck_after_s`.
    flight_recorder: a directory with dumps of torch's flight recorder, one a rank, or the beginning
        of their paths as torch knows it from TORCH_FR_DUMP_TEMP_FILE. Nothing in them is executed:
        of pickles only plain data is taken.

    The keys, which later versions only add to (`version` is 1):

    - `version`, `log_dir` (the first), `log_dirs`, `time` (Unix seconds)
    - `ranks`: sorted; each has `rank`, `worker` (above 0: a forked worker or a second process of
      the rank), `label`, `world_size`, `host`, `pid`, `attempt`, `state` ("running", "silent",
      "dead", "closed"), `source` ("journal", "heartbeat"), `beat_age_s` (seconds since the last
      sign of life, or null), `began_s` (Unix time of the process's start, or null),
      `time_offset_s` (that the process adds to its clock), `clock_ahead_s` (how far its host's
      clock is ahead of the file server's, or null), `step` (of the main thread, or null), `stack`
      (names of the main thread's open stages, outermost first), `open_s` (seconds in the innermost,
      or null), `moved_ns` (when a stage of the main thread last began or ended, in Unix
      nanoseconds, or null), `still_s` (seconds since then, or null), `dropped` (records dropped
      because they came too fast), and `threads`
    - a thread has `tid`, `name`, `tag`, `step`, `open` (outermost first: `name`, `step`, `since_ns`
      in Unix nanoseconds, `open_s`) and `last` (newest first: `name`, `step`, `start_ns`,
      `duration_ms`; only from journals). A name that is not known is empty.
    - `suspects`: the ranks that hold the run up, the most suspicious first: `rank`, `worker`,
      `label`, `host`, `state`, `step`, `stack`, `moved_ns`, `still_s`, `kinds` ("dead", "silent",
      "ended", "behind", "elsewhere", "longest") and `reasons`, one for each kind
    - `missing_ranks`: numbers below the world size that left no file
    - `earlier_run`: processes of an earlier run in the same directory, which are not among `ranks`:
      `rank`, `worker`, `label`, `state`
    - `problems`: files that were left out: `file`, `reason`
    - `hang`, with `hung_after_s`: `after_s`, `hung` (whether), `since_ns` (when the first of them
      stood still), `waiting` (ranks that stand still and are no suspects), `waiting_step` and
      `waiting_stack` (where most of them are), `missing` (ranks without files, while others wait),
      `longest_still_s`
    - `flight_recorder`, when asked for: `place`, `dumps` (the ranks of which there is one),
      `ranks_without_dump`, `problems`, and `stalled`: of each process group the first collective
      that does not end, and sends and receives, the one that has waited longest first. Each has
      `group`, `description`, `members`, `seq` (the number within the group), `name`, `sizes`,
      `place` (the caller's line), `started` (on the device), `since_ns`, `verdict` ("never
      entered", "different calls", "not finished"), `waiting` (ranks that are in it), `missing`
      (that never entered it), `no_dump`, `unknown` (whose dump does not reach back so far), `calls`
      (what ranks called under that number, where they differ) and `last_calls` (of missing ranks)

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
    dumps = None if flight_recorder is None else os.fspath(flight_recorder)
    question = Question(_directories(log_dir), ranks, stuck_after_s, hung_after_s, dumps)
    return as_data(look(question))


def _directories(log_dir: _Path | Sequence[_Path]) -> tuple[str, ...]:
    given = [log_dir] if isinstance(log_dir, str | os.PathLike) else log_dir
    if not given:
        raise ValueError("log_dir must name at least one directory")
    return tuple(os.fspath(path) for path in given)


def _seconds(text: str) -> float:
    try:
        value = float(text)
        check_seconds("it", value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, not {text!r}") from None
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m my_utils.live",
        description="Shows the step and the open stages of every rank of a run, and which ranks "
        "hold the others up.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "log_dirs", metavar="LOG_DIR", nargs="+", help="the log_dir of the run, or several"
    )
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument(
        "--hung",
        type=_seconds,
        metavar="SECONDS",
        help="say once whether the run hangs: whether a rank has stood still for so long",
    )
    parser.add_argument(
        "--flight-recorder",
        metavar="DIR",
        help="with the dumps of torch's flight recorder: say in which collective it hangs",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    parser.add_argument(
        "--ranks", type=checked(parse_ranks), metavar="LIST", help="such as 0,3-7 (all)"
    )
    parser.add_argument(
        "--stuck-after",
        type=_seconds,
        default=STUCK_AFTER_S,
        metavar="S",
        help="seconds in one stage, or without a sign of life, that count as stuck (10)",
    )
    parser.add_argument("--all", action="store_true", help="a line for each rank, however many")
    return parser


class _Looks:
    """Takes snapshots of the directories, one after another, as the arguments say."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.question = Question(
            tuple(arguments.log_dirs),
            arguments.ranks,
            arguments.stuck_after,
            arguments.hung,
            arguments.flight_recorder,
            processes=len(os.sched_getaffinity(0)),
        )
        self.json = arguments.json
        self.interval_s = arguments.interval
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.view = View(color=color, group=False if arguments.all else None)

    def take(self) -> tuple[str | list[str], int]:
        """JSON, or lines for people, and the exit status that belongs to it."""
        seen = look(self.question)
        content = json.dumps(as_data(seen)) if self.json else self.view.lines(seen)
        return content, _status(seen)


def _status(seen: Look) -> int:
    if not seen.found.ranks:
        return EXIT_NOTHING
    stands_out = seen.suspects if seen.hang is None else seen.hang.hung
    return EXIT_SUSPECTS if stands_out else EXIT_FINE


def _print(content: str | list[str]) -> None:
    text = content if isinstance(content, str) else "\n".join(content)
    print(
        text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(
            sys.stdout.encoding or "utf-8"
        ),
        flush=True,
    )


def _redraw(lines: Sequence[str]) -> None:
    """Draws over the old text without a flicker: each line clears its own rest."""
    shown = fit(lines, shutil.get_terminal_size())
    body = "".join(f"{line}\x1b[K\n" for line in shown)
    sys.stdout.write(f"\x1b[H{body}\x1b[J")
    sys.stdout.flush()


def _go_on(looks: _Looks, show: Callable[[str | list[str]], None]) -> int:
    while True:
        try:
            content, _ = looks.take()
        except OSError as error:
            content = [f"{error.filename}: {error.strerror}"]
        show(content)
        time.sleep(looks.interval_s)


def _show_on_screen(content: str | list[str]) -> None:
    _redraw(content if isinstance(content, list) else [content])


def _follow(looks: _Looks) -> int:
    if looks.json or not sys.stdout.isatty():
        return _go_on(looks, _print)
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        return _go_on(looks, _show_on_screen)
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    arguments = _parser().parse_args(argv)
    looks = _Looks(arguments)
    try:
        content, status = looks.take()
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    try:
        if arguments.once or arguments.hung is not None:
            _print(content)
            return status
        return _follow(looks)
    except KeyboardInterrupt:
        return EXIT_FINE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FINE


if __name__ == "__main__":
    sys.exit(main())
