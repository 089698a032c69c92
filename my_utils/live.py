"""Shows what the ranks of a run do now: the step, the open stages and since when, for each.

    python -m my_utils.live LOG_DIR

answers "why does my job hang, and on which rank": it reads the journals of the ranks on this
machine, living or dead, and the heartbeat files of the others, and marks the ranks that hold the
run up with `!`. It neither stops nor slows the run, and needs neither torch nor numpy.

`--once --json` prints what `snapshot` returns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ._live_ranks import Found, Rank, find_ranks
from ._live_suspects import Suspect, find_suspects, missing_ranks
from ._live_view import View, fit

__all__ = ["main", "parse_ranks", "snapshot"]

SCHEMA_VERSION = 1
STUCK_AFTER_S = 10.0

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
Without --once it goes on until Ctrl-C, and ends with 0.
"""


def snapshot(
    log_dir: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None = None,
    stuck_after_s: float = STUCK_AFTER_S,
) -> dict[str, Any]:
    """What the ranks of a log directory do, as plain data that goes into JSON.

    ranks: the ranks to look at; all by default.
    stuck_after_s: seconds without a sign of life after which a rank counts as silent, and seconds
        in one stage after which it is asked which rank the others wait for.

    The keys, which later versions only add to (`version` is 1):

    - `version`, `log_dir`, `time` (Unix seconds)
    - `ranks`: sorted; each has `rank`, `worker` (above 0: a forked worker or a second process of
      the rank), `label`, `world_size`, `host`, `pid`, `attempt`, `state` ("running", "silent",
      "dead", "closed"), `source` ("journal", "heartbeat"), `beat_age_s` (seconds since the last
      sign of life, or null), `step` (the furthest, or null), `stack` (names of the main thread's
      open stages, outermost first), `open_s` (seconds in the innermost, or null), `dropped`
      (records lost because they came too fast), and `threads`
    - a thread has `tid`, `name`, `tag`, `step`, `open` (outermost first: `name`, `step`, `since_ns`
      in Unix nanoseconds, `open_s`) and `last` (newest first: `name`, `step`, `start_ns`,
      `duration_ms`; only from journals). A name that is not known is empty.
    - `suspects`: the ranks that hold the run up, the most suspicious first: `rank`, `worker`,
      `label`, `reasons`
    - `missing_ranks`: numbers below the world size that left no file
    - `problems`: files that were left out: `file`, `reason`

    Raises OSError when the directory cannot be read, TypeError and ValueError for wrong arguments.
    Nothing in the directory is changed. Thread-safe.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     snapshot(folder)["ranks"]
    []
    """
    _check_seconds("stuck_after_s", stuck_after_s)
    found = find_ranks(os.fspath(log_dir), only=ranks, silent_after_s=stuck_after_s)
    return _as_data(os.fspath(log_dir), found, ranks, stuck_after_s)


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {value!r}")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be finite and above 0, not {value!r}")


def _missing(found: Found, ranks: Collection[int] | None) -> list[int]:
    missing = missing_ranks(found.ranks)
    return [number for number in missing if ranks is None or number in ranks]


def _as_data(
    log_dir: str, found: Found, ranks: Collection[int] | None, stuck_after_s: float
) -> dict[str, Any]:
    return {
        "version": SCHEMA_VERSION,
        "log_dir": log_dir,
        "time": time.time(),
        "ranks": [_rank_as_data(rank) for rank in found.ranks],
        "suspects": [
            {
                "rank": suspect.rank.rank,
                "worker": suspect.rank.worker,
                "label": suspect.rank.label,
                "reasons": list(suspect.reasons),
            }
            for suspect in find_suspects(found.ranks, stuck_after_s)
        ],
        "missing_ranks": _missing(found, ranks),
        "problems": [dataclasses.asdict(problem) for problem in found.problems],
    }


def _rank_as_data(rank: Rank) -> dict[str, Any]:
    data = dataclasses.asdict(rank)
    threads = data.pop("threads")
    return {
        **data,
        "step": rank.step,
        "stack": list(rank.stack),
        "open_s": rank.open_s,
        "threads": threads,
    }


def parse_ranks(text: str) -> set[int]:
    """Rank numbers from a list such as `0,3-7`. ValueError for anything else.

    >>> sorted(parse_ranks("0,3-5"))
    [0, 3, 4, 5]
    """
    numbers: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.partition("-")
        try:
            first, last = int(low), int(high if dash else low)
        except ValueError:
            raise ValueError(
                f"ranks must be numbers and ranges such as 0,3-7, not {text!r}"
            ) from None
        if not 0 <= first <= last < 1 << 31:
            raise ValueError(f"ranks must rise from 0 up, as in 0,3-7, not {text!r}")
        if last - first > 1_000_000:
            raise ValueError(f"a range of ranks has at most 1,000,000 numbers, not {part!r}")
        numbers.update(range(first, last + 1))
    return numbers


def _seconds(text: str) -> float:
    try:
        value = float(text)
        _check_seconds("it", value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, not {text!r}") from None
    return value


def _ranks(text: str) -> set[int]:
    try:
        return parse_ranks(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m my_utils.live",
        description="Shows the step and the open stages of every rank of a run, and which ranks "
        "hold the others up.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("log_dir", metavar="LOG_DIR", help="the log_dir of the run")
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    parser.add_argument(
        "--interval", type=_seconds, default=1.0, metavar="S", help="seconds between two looks (1)"
    )
    parser.add_argument("--ranks", type=_ranks, metavar="LIST", help="such as 0,3-7 (all)")
    parser.add_argument(
        "--stuck-after",
        type=_seconds,
        default=STUCK_AFTER_S,
        metavar="S",
        help="seconds in one stage, or without a sign of life, that count as stuck (10)",
    )
    parser.add_argument("--all", action="store_true", help="a line for each rank, however many")
    return parser


class _Look:
    """One look at the directory after another, as the arguments say."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self.view = View(color=color, group=False if arguments.all else None)

    def take(self) -> tuple[str | list[str], int]:
        """JSON, or lines for people, and the exit status that belongs to it."""
        chosen = self.arguments
        found = find_ranks(chosen.log_dir, only=chosen.ranks, silent_after_s=chosen.stuck_after)
        suspects = find_suspects(found.ranks, chosen.stuck_after)
        status = _status(found, suspects)
        if chosen.json:
            data = _as_data(chosen.log_dir, found, chosen.ranks, chosen.stuck_after)
            return json.dumps(data), status
        missing = _missing(found, chosen.ranks)
        return self.view.lines(chosen.log_dir, found, suspects, missing), status


def _status(found: Found, suspects: Sequence[Suspect]) -> int:
    if not found.ranks:
        return EXIT_NOTHING
    return EXIT_SUSPECTS if suspects else EXIT_FINE


def _print(content: str | list[str]) -> None:
    text = content if isinstance(content, str) else "\n".join(content)
    print(
        text.encode(sys.stdout.encoding or "utf-8", "backslashreplace").decode(
            sys.stdout.encoding or "utf-8"
        ),
        flush=True,
    )


def _redraw(lines: Sequence[str]) -> None:
    """Over what stands there, without a flicker: each line clears its own rest."""
    shown = fit(lines, shutil.get_terminal_size())
    body = "".join(f"{line}\x1b[K\n" for line in shown)
    sys.stdout.write(f"\x1b[H{body}\x1b[J")
    sys.stdout.flush()


def _go_on(look: _Look, show: Callable[[str | list[str]], None]) -> int:
    while True:
        try:
            content, _ = look.take()
        except OSError as error:
            content = [f"{look.arguments.log_dir}: {error.strerror}"]
        show(content)
        time.sleep(look.arguments.interval)


def _show_on_screen(content: str | list[str]) -> None:
    _redraw(content if isinstance(content, list) else [content])


def _follow(look: _Look) -> int:
    if look.arguments.json or not sys.stdout.isatty():
        return _go_on(look, _print)
    sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
    try:
        return _go_on(look, _show_on_screen)
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    look = _Look(_parser().parse_args(argv))
    try:
        content, status = look.take()
    except OSError as error:
        print(f"{look.arguments.log_dir}: {error.strerror}", file=sys.stderr)
        return EXIT_USAGE
    try:
        if look.arguments.once:
            _print(content)
            return status
        return _follow(look)
    except KeyboardInterrupt:
        return EXIT_FINE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FINE


if __name__ == "__main__":
    sys.exit(main())
