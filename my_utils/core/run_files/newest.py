"""Finds the newest run if the user names no folder, or one with several runs.

A folder is a run when it holds a profile CSV, a journal or a heartbeat. Its age is the time at
which one of these files was last written.

>>> import os, tempfile
>>> with tempfile.TemporaryDirectory() as logs:
...     for second, name in enumerate(["monday", "tuesday"]):
...         os.mkdir(f"{logs}/{name}")
...         with open(f"{logs}/{name}/profile_rank_0.csv", "w") as csv:
...             pass
...         os.utime(f"{logs}/{name}/profile_rank_0.csv", (second, second))
...     found = find_run(logs)
...     found.path == f"{logs}/tuesday", found.how.partition(" is ")[2].partition(" in ")[0]
(True, 'the newest of 2 runs')
"""

from __future__ import annotations

import errno
import os
import re

from .copied import LIST
from .hosts import host_folders, with_hosts, without_sent
from .stores import is_address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    StrPath = str | os.PathLike[str]


LEVELS = 2  # of folders below the one in which a run is looked for
HERE = "."
REFRESH_S = 15.0  # of what hosts send each minute
PROBLEMS_SHOWN = 10

FILE_OF_A_RUN = re.compile(
    r"profile_rank_-?\d+.*\.csv"
    r"|rank_-?\d+(?:\.w\d+)?\.(?:\d+\.\d+(?:\.1)?\.journal(?:-ref)?|heartbeat\.json)"
)


class FoundRun:
    """path: what to read. how: one sentence that says why it is this one, without the period at its
    end; empty if the user has named it. paths: `path`, and the folders of the run's other hosts.
    folder: `path`, or one in which all of these are."""

    def __init__(
        self, path: str, how: str = "", others: Sequence[str] = (), folder: str | None = None
    ) -> None:
        self.path = path
        self.how = how
        self.paths = [path, *others]
        self.folder = folder if folder is not None and others else path

    def __repr__(self) -> str:
        return f"FoundRun(path={self.path!r}, how={self.how!r})"


def find_run(path: StrPath | None = None) -> FoundRun:
    """The run that `path` means.

    path: a run is itself, with what other hosts have sent to it; so is a file, a glob, a `-`, and
        what holds no run: the reader has the words for these. Any other folder means the newest run
        in it, at most two levels deep: all folders whose run.json has its id, as those of several
        hosts. None means the newest run in the working directory, itself included.

    Raises FileNotFoundError if there is none and `path` is None. Links are followed; folders
    whose names begin with a dot are passed by. Thread-safe.
    """
    given = None if path is None else os.fspath(path)
    if given is not None and (not os.path.isdir(given) or is_run(given)):
        return FoundRun(given, others=host_folders(given))
    found = _runs_below(given or HERE)
    if found:
        newest = max(found, key=lambda place: (found[place], place))
        own_id = _run_id(newest) if len(found) > 1 else ""
        others = [one for one in sorted(found) if one != newest and own_id == _run_id(one) != ""]
        how, hosts = _sentence(newest, others, len(found), given), with_hosts([newest, *others])
        return FoundRun(newest, how, hosts[1:], given)
    if given is not None:
        return FoundRun(given)
    raise FileNotFoundError(
        errno.ENOENT,
        "no run found (searched two levels); pass a log directory",
        HERE,
    )


def run_folders(paths: Iterable[StrPath]) -> list[str]:
    """What `find_run` finds by all of these paths, each once."""
    return without_sent(found for path in paths for found in find_run(path).paths)


def tell_how(command: str, found: Iterable[FoundRun]) -> None:
    """Says on standard error how runs were found that the user did not name."""
    from ..command_line import say

    for one in found:
        if one.how:
            say(command, one.how)


def found_logs(command: str, paths: Sequence[StrPath], quiet: bool) -> list[str]:
    """What a command reads of one run: all paths of `found_runs`."""
    return without_sent(path for one in found_runs(command, paths, quiet) for path in one.paths)


def found_runs(command: str, paths: Sequence[StrPath], quiet: bool) -> list[FoundRun]:
    """`find_run` of each path, or the newest run here where there are none; of an address, or a
    folder to which hosts have sent, the newest run there. Says how they were found unless `quiet`.
    Ends the command where a path does not exist, or there is no run."""
    from ..command_line import EXIT_USAGE, check_inputs, fail

    named = [os.fspath(path) for path in paths]
    there = {path for path in named if _holds_sent(path)}
    check_inputs(command, [path for path in named if path not in there])
    try:
        found = [
            _fetched(command, path, quiet) if path in there else find_run(path) for path in named
        ] or [find_run()]
    except FileNotFoundError as error:
        raise SystemExit(fail(command, error, EXIT_USAGE)) from None
    except (OSError, ImportError) as error:
        if not there:
            raise
        raise SystemExit(fail(command, error, EXIT_USAGE)) from None
    if not quiet:
        tell_how(command, found)
    return found


def _holds_sent(path: str) -> bool:
    """Whether it is an address, or a folder to which hosts have sent."""
    if is_address(path):
        return True
    try:
        with os.scandir(path) as entries:
            found = {entry.name: entry.is_dir() for entry in entries}
    except OSError:
        return False
    folders = (os.path.join(path, name) for name, is_folder in found.items() if is_folder)
    return LIST in found or any(os.path.isfile(os.path.join(one, LIST)) for one in folders)


def _fetched(command: str, address: str, quiet: bool) -> FoundRun:
    """`live` reads the newest rows only, and goes on with what comes."""
    from ..command_line import say
    from .fetched import Fetched

    is_live = command == "live"
    run = Fetched(address, only_newest=is_live)
    if is_live:
        run.keep_fresh(REFRESH_S)
    if not quiet:
        for line in run.problems[:PROBLEMS_SHOWN]:
            say(command, line)
        if len(run.problems) > PROBLEMS_SHOWN:
            say(command, f"and {len(run.problems) - PROBLEMS_SHOWN} more")
    first, *others = run.folders
    return FoundRun(first, run.how, others, run.top)


def is_run(folder: StrPath) -> bool:
    """Whether the folder holds files of a run; False if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return any(FILE_OF_A_RUN.fullmatch(entry.name) for entry in entries)
    except OSError:
        return False


def _sentence(path: str, others: Sequence[str], count: int, given: str | None) -> str:
    place = f"in {given}" if given else "here"
    runs = count - len(others)
    which = f"the newest of {runs} runs {place}" if runs > 1 else f"the only run {place}"
    if others:
        return f"{path} and {len(others)} more of its folders are {which}"
    return f"{path} is {which}"


def _run_id(folder: str) -> str:
    """That in its run.json; "" where there is none."""
    from .run_file import read_run_file

    try:
        return str(read_run_file(folder).get("run_id") or "")
    except (OSError, ValueError):
        return ""


def _runs_below(top: str) -> dict[str, int]:
    """The runs in the folder and below it, with the time of the last write, Unix nanoseconds. A run
    that several links lead to is there once."""
    found: dict[str, int] = {}
    seen: set[tuple[int, int]] = set()
    folders = [top]
    for _ in range(LEVELS + 1):
        below: list[str] = []
        for folder in folders:
            written_ns, inside = _read_folder(folder, seen)
            below += inside
            if written_ns is not None:
                found[folder] = written_ns
        folders = below
    return found


def _read_folder(folder: str, seen: set[tuple[int, int]]) -> tuple[int | None, list[str]]:
    """When files of a run in it were last written, None without any; and the folders in it, those
    that are not links first. Nothing for a folder that was seen before."""
    try:
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in seen:
            return None, []
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(folder) as entries:
            return _sorted_entries(folder, entries)
    except OSError:  # it vanished, or is not ours to read
        return None, []


def _sorted_entries(
    folder: str, entries: Iterator[os.DirEntry[str]]
) -> tuple[int | None, list[str]]:
    times: list[int] = []
    folders: list[tuple[bool, str]] = []
    for entry in entries:
        if FILE_OF_A_RUN.fullmatch(entry.name):
            times.append(_written_ns(entry))
        elif not entry.name.startswith(".") and _is_folder(entry):
            path = entry.name if folder == HERE else os.path.join(folder, entry.name)
            folders.append((entry.is_symlink(), path))
    return max(times, default=None), [path for _, path in sorted(folders)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _written_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_mtime_ns
    except OSError:
        return 0
