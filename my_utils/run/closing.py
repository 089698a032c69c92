"""Prints the end of a run: the verdict in at most twelve lines, and where the files are.

Trouble here is one line on stderr. It never changes how a run ends.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..analysis.verdict.replicas import ReplicaReader, replica_text
from ..core.ranges import as_ranges, ranges_text
from ..core.run_files.hosts import hosts_text, with_hosts
from ..core.run_files.run_file import read_run_file
from .environment import hung_after_s
from .report_file import Reported

LINES_MAX = 12
_WIDTHS = (60, 120)
_SECONDS_MAX = 120

_PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from my_utils.run.closing import main; main()"
)


def closing_lines(reported: Reported, judges: bool | None = None) -> list[str]:
    """What the parent says. judges: whether this host is the one that judges the run, by default
    the one of rank 0."""
    places = reported.places()
    if not places:
        return [f"my_utils run: nothing was recorded: {_why_nothing(reported)}"]
    own = [place for place in places if place in reported.own_setup]
    note = " (the script's own setup chose it)" if own else ""
    where = [*_host_lines(places), f"files: {_shown(own or places)}{note}"]
    if judges is None:
        judges = 0 in reported.ranks or _are_all(reported, places[0])
    if not judges:
        ranks = ranges_text(as_ranges(reported.ranks))
        return [f"ranks {ranks} ran here; the host of rank 0 prints the verdict", *where]
    return [*verdict_lines(places, LINES_MAX - len(where)), *where]


def _are_all(reported: Reported, place: str) -> bool:
    """Whether all ranks of the run are on this host."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return len(reported.ranks) >= int(read_run_file(place)["world_size"])
    return False


def _shown(places: Sequence[str]) -> str:
    names = [_relative(place) for place in places[:3]]
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    return ", ".join(names) + more


def _relative(place: str) -> str:
    """From here, where that is shorter."""
    with contextlib.suppress(ValueError, OSError):
        return min(os.path.relpath(place), place, key=len)
    return place


def _why_nothing(reported: Reported) -> str:
    if reported.failures:
        return f"my_utils cannot be loaded by {reported.failures[0]}"
    if reported.others:
        return f"`import my_utils` means another module there, {reported.others[0]}"
    if reported.torches:
        return "torch was imported, but no process took an optimizer step or eight backward passes"
    if reported.pythons:
        ran = (
            "a Python process" if reported.pythons == 1 else f"{reported.pythons} Python processes"
        )
        return f"{ran} ran without importing torch"
    return (
        "no Python process reported. Python's options -I, -E and -S keep it out, and so does a "
        "program that drops PYTHONPATH; `import my_utils; my_utils.auto()` in the script records it"
    )


def verdict_lines(places: Sequence[str], most: int) -> list[str]:
    """The verdict on the folders as one run in so many lines, or one line with the reason why there
    is none. Before it comes who held the others up, where the run was ended in a standstill, and
    whether replicas differ, where they were watched."""
    from ..analysis.verdict.text import shortened

    before = _standstill_lines(places) + _replica_lines(places)
    hosts = _host_lines(places)  # which have their own line
    judged = [line for line in _judged_lines(places) if not _is_among(line, hosts)]
    return before + shortened(judged, most - len(before))


def _is_among(line: str, texts: Sequence[str]) -> bool:
    """Of the lines of a verdict, which may be cut."""
    shown = line.strip().removesuffix("…")
    return bool(shown) and any(text.startswith(shown) for text in texts)


def _host_lines(places: Sequence[str]) -> list[str]:
    """Which hosts have not sent all to this one."""
    return list(filter(None, [hosts_text(with_hosts(places))]))


def _standstill_lines(places: Sequence[str]) -> list[str]:
    after_s = hung_after_s()
    if not after_s:
        return []
    try:
        return ended_standing_lines(places, after_s)
    except Exception as error:
        return [f"my_utils run: who held up the others is not known: {error}"]


def ended_standing_lines(log_dirs: Sequence[str], after_s: float) -> list[str]:
    """Who held up the others in a run that was ended in a standstill, in at most six lines; none
    where no rank had made others wait for so long when it ended. OSError when a directory cannot be
    listed."""
    from ..analysis.live.collectives import dumps_in
    from ..analysis.live.poll import (
        SnapshotRequest,
        ended_in_order,
        made_others_wait,
        make_usual,
        take_snapshot,
    )
    from ..analysis.live.recorded import Recorded
    from ..analysis.live.view import HEAD_LINES, standstill_lines

    usual = make_usual(Recorded(log_dirs))
    request = SnapshotRequest(tuple(log_dirs), None, after_s, after_s, dumps_in(log_dirs))
    seen = take_snapshot(request, usual)
    if ended_in_order(seen.found.ranks, usual):
        return []
    if not made_others_wait(seen):
        return []
    return standstill_lines(seen)[:HEAD_LINES]


def _replica_lines(places: Sequence[str]) -> list[str]:
    try:
        return replica_text(ReplicaReader(places).read())
    except Exception as error:
        return [f"my_utils run: whether replicas differ is not known: {error}"]


def _judged_lines(places: Sequence[str]) -> list[str]:
    try:
        from ..analysis.replay.run_answer import answer_of_run

        return list(answer_of_run(places, whole=True).verdict.lines(_width()))
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        return [f"my_utils run: no verdict: {reason}"]


def _width() -> int:
    columns = 100
    with contextlib.suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return min(max(columns, _WIDTHS[0]), _WIDTHS[1])


def print_lines(lines: Sequence[str]) -> None:
    """To stderr, as standard output is the script's. A closed stderr is not an error."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()


def print_from_another_process(folder: Path) -> None:
    """Prints the verdict from a separate process, for one that is about to end: threads cannot
    be started there any more, and what the verdict needs is not to be loaded into the training."""
    package = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", _PROGRAM, package, str(folder)]
    with contextlib.suppress(OSError, subprocess.SubprocessError, KeyboardInterrupt):
        subprocess.run(
            command,
            env={**os.environ, "MY_UTILS_RUN": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=_SECONDS_MAX,
            check=False,
        )


def main() -> None:
    """Prints the verdict on the folder that the command line names."""
    places = sys.argv[1:]
    where = [*_host_lines(places), f"files: {_shown(places)}"]
    print_lines([*verdict_lines(places, LINES_MAX - len(where)), *where])
