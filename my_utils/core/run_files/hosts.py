"""What other hosts of a run have sent to the host of rank 0: a folder for each, in the run's own.

Readers take them like folders of the run that the user has copied there.
"""

from __future__ import annotations

import glob
import os
import time

from ..units import bytes_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    StrPath = str | os.PathLike[str]

HOSTS_FOLDER = "hosts"
"""Inside a log directory: what other hosts have sent."""

HOST_FILE = "host.json"
HOST_FILE_BYTES_MAX = 1 << 20
HOSTS_MAX = 4096
SILENT_S = 120.0  # twice the longest time between two turns of a host
LAST_S = 5.0  # after the command on the host of rank 0, which waits as long for a sign of others
NAMED_MAX = 3


def host_folders(folder: StrPath) -> list[str]:
    """Those of other hosts in a log directory, by name, once they have sent all that there was.
    Links are ignored, and so is what no host has sent."""
    place = os.path.join(folder, HOSTS_FOLDER)
    try:
        with os.scandir(place) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
                and os.path.isfile(os.path.join(entry.path, HOST_FILE))
            ]
    except OSError:
        return []
    return [os.path.join(place, name) for name in sorted(names)[:HOSTS_MAX]]


def with_hosts(folders: Iterable[StrPath]) -> list[str]:
    """Log directories, each followed by those of its other hosts; each once. Without those that
    hosts have sent whose own folders are among them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as logs:
    ...     os.makedirs(f"{logs}/hosts/node-b")
    ...     open(f"{logs}/hosts/node-b/host.json", "w").close()
    ...     [path.removeprefix(logs) for path in with_hosts([logs])]
    ['', '/hosts/node-b']
    """
    given = [os.fspath(folder) for folder in folders]
    return without_sent([one for each in given for one in (each, *host_folders(each))])


def without_sent(folders: Iterable[str]) -> list[str]:
    """Each once, and none that a host has sent whose own folder is there, too, as a user may have
    copied it."""
    found = list(dict.fromkeys(folders))
    own = [folder for folder in found if not is_of_a_host(folder)]
    if len(own) < 2 or len(own) == len(found):
        return found
    processes = {process for folder in own for process in _processes_in(folder)}
    return [
        folder
        for folder in found
        if not (is_of_a_host(folder) and _processes_in(folder) <= processes)
    ]


def _processes_in(folder: str) -> set[tuple[object, ...]]:
    """What tells those from others whose heartbeats are in a folder."""
    from .heartbeat import read_heartbeat_file

    found: set[tuple[object, ...]] = set()
    for path in glob.glob(os.path.join(glob.escape(folder), "rank_*.heartbeat.json")):
        try:
            beat, _ = read_heartbeat_file(path)
        except (OSError, ValueError):
            continue
        found.add((beat.rank, beat.host, beat.pid, beat.attempt))
    return found


def hosts_text(folders: Iterable[StrPath], now_s: float | None = None) -> str:
    """A sentence about the hosts that have not sent all, "" where all have, or go on doing so: the
    command on the host of rank 0 has not ended, and they have sent within two minutes."""
    paths = [path for folder in folders if is_of_a_host(path := os.fspath(folder))]
    found = [about for path in paths if (about := _read(path)) is not None]
    now_s = time.time() if now_s is None else now_s
    has_ended = any(_has_ended(run) for run in {_run_folder(path) for path in paths})
    late = [
        about
        for about in found
        if about.left_out
        or not (about.complete or (not has_ended and abs(now_s - about.until) < SILENT_S))
    ]
    if not late:
        return ""
    named = ", ".join(_host_text(about) for about in late[:NAMED_MAX])
    more = f" and {len(late) - NAMED_MAX} more" if len(late) > NAMED_MAX else ""
    return f"{len(found) + 1 - len(late)} of {len(found) + 1} hosts; {named}{more}"


def last_news(folder: str, now_s: float) -> tuple[float, bool]:
    """Until when a folder tells of its processes, in Unix s, and whether these have ended as far as
    is known. now_s: the time for folders that no other host sends.

    A host that goes on, as it does until twice its pause is over, tells of them until it sent last.
    They have ended where its command has, or where that on the host of rank 0 has and nothing came
    for 5 s.
    """
    about = _read(folder) if is_of_a_host(folder) else None
    if about is None:
        return now_s, False
    since_s = now_s - about.until
    is_over = about.complete or (since_s > LAST_S and _has_ended(_run_folder(folder)))
    goes_on = not is_over and 0.0 <= since_s <= 2 * about.pause_s
    return about.until if goes_on else now_s, is_over


def host_file(
    host: str, ranks: Sequence[int], until: float, left_out: int, pause_s: float, *, complete: bool
) -> bytes:
    """What is written as `host.json`. until: Unix time in s. left_out: bytes that were not sent.
    pause_s: until it sends again. complete: nothing comes after this."""
    import msgspec

    about = {
        "version": 1, "host": host, "ranks": ranks, "until": until, "pause": pause_s,
        "complete": complete, "left_out": left_out,
    }  # fmt: skip
    return msgspec.json.encode(about)


def is_of_a_host(folder: str) -> bool:
    """Whether another host has sent it."""
    return os.path.basename(os.path.dirname(folder)) == HOSTS_FOLDER


def _run_folder(folder: str) -> str:
    return os.path.dirname(os.path.dirname(folder))


def _host_text(about: _Host) -> str:
    when = time.strftime("%H:%M", time.localtime(about.until))
    missing = f", without {bytes_text(about.left_out)}" if about.left_out else ""
    return f"{about.host} until {when}{missing}"


class _Host:
    """`host.json`. until: when it sent last, Unix time in s by the clock of rank 0's host. pause_s:
    until it sends again; 0 where that is not known."""

    def __init__(
        self, host: str, until: float, left_out: int, pause_s: float, *, complete: bool
    ) -> None:
        self.host = host
        self.until = until
        self.left_out = left_out
        self.pause_s = pause_s
        self.complete = complete


def _has_ended(run: str) -> bool:
    from .run_file import read_run_file

    try:
        return "ended" in read_run_file(run)
    except (OSError, ValueError):
        return False


def _read(folder: str) -> _Host | None:
    from ..bounded_read import read_whole
    from ..checked_json import decode_object

    try:
        data, _ = read_whole(os.path.join(folder, HOST_FILE), HOST_FILE_BYTES_MAX, "a host's file")
        about = decode_object(data)
        until = min(max(float(about["until"]), 0.0), 1e10)
        left_out = int(about.get("left_out", 0))
        pause_s = min(max(float(about.get("pause", 0.0)), 0.0), SILENT_S / 2)
        complete = bool(about["complete"])
        return _Host(str(about["host"]), until, left_out, pause_s, complete=complete)
    except (OSError, ValueError, KeyError, TypeError):
        return None
