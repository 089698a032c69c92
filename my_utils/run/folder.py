"""The folder of a run: its name, that no other run uses it, `latest`, and `run.json`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..core.files import atomic_write
from ..core.run_files.run_file import RUN_FILE, read_run_file
from ..core.trusted_open import own_temporary_folder

RUNS = "logs"
LATEST = "latest"

_OF_EACH_RUN = {"version", "script", "command", "started", "run_id"}
_OF_THE_LAST_ATTEMPT = {"world_size", "torch", "moved_to"}
_OF_A_REQUEST = ("my_utils.control.json", ".my_utils.control.json.lock")  # for a capture
_NAME_BYTES_MAX = 80
_WRITING = ".run.json.writing"  # a folder, which one host at a time can make on any file system
_WRITING_SECONDS_MAX = 5
_PROGRAM = re.compile(r"[^-].*\.py[cz]?")


def name_of_run(command: Sequence[str]) -> str:
    """What a command trains, as the beginning of a folder's name.

    >>> name_of_run(["torchrun", "--nproc-per-node", "8", "examples/train.py", "--lr", "0.1"])
    'train'
    >>> name_of_run(["accelerate", "launch", "-m", "lab.pretrain", "--lr", "0.1"])
    'pretrain'
    >>> name_of_run(["./start all.sh"])
    'start_all'
    """
    modules = [name for flag, name in pairwise(command) if flag in ("-m", "--module")]
    programs = [word for word in command if _PROGRAM.fullmatch(word)]
    if programs:
        name = os.path.basename(programs[0]).rsplit(".", 1)[0]
    elif modules:
        name = modules[-1].rsplit(".", 1)[-1]
    else:
        name = Path(command[0]).stem if command else ""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".-")[:_NAME_BYTES_MAX] or "run"


def reserve(runs: Path, name: str, now_s: float | None = None) -> Path:
    """Makes the folder of a new run in `runs`: no other run has it. OSError if it cannot."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now_s))
    runs.mkdir(parents=True, exist_ok=True)
    turn = 1
    while True:
        folder = runs / (f"{name}-{stamp}" if turn == 1 else f"{name}-{stamp}-{turn}")
        try:
            folder.mkdir()
            return folder.resolve()
        except FileExistsError:
            turn += 1


def make(folder: Path) -> bool:
    """Makes a folder, with those above it; False if it was there. OSError if it cannot."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
        return False
    return True


def reserve_somewhere(name: str, runs: Path) -> tuple[Path, str]:
    """The folder of a new run in `runs`, and ""; where that cannot be made, one in the folder for
    temporary files, and the reason. OSError if neither can be made."""
    try:
        return reserve(runs, name), ""
    except OSError as error:
        reason = error.strerror or str(error)
    return reserve(Path(own_temporary_folder()) / RUNS, name), reason


def held_by(folder: Path, before_s: float | None = None) -> str | None:
    """The file by which a run holds the folder; None if none does.

    before_s: files that were written after this moment (Unix time) do not count.
    """
    from ..core.run_files.newest import FILE_OF_A_RUN  # only a process that starts a run asks

    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            counts = before_s is None or entry.stat().st_mtime < before_s
            if counts and FILE_OF_A_RUN.fullmatch(entry.name):
                return entry.name
    return None


def has_foreign_run_file(folder: Path) -> bool:
    """Whether there is a run.json that no run has written. OSError if it cannot be read."""
    try:
        return not read_run_file(folder).keys() >= _OF_EACH_RUN
    except FileNotFoundError:
        return False
    except ValueError:
        return True


def point_latest(folder: Path, runs: Path | None = None) -> None:
    """Lets `logs/latest` point to a folder in `logs`, or in `runs`. A file of that name that is not
    a link stays."""
    if folder.parent.name != RUNS and folder.parent != runs:
        return
    link = folder.parent / LATEST
    with contextlib.suppress(OSError):
        if link.is_symlink() and os.readlink(link) == folder.name:
            return
        if os.path.lexists(link) and not link.is_symlink():
            return
        fresh = folder.parent / f".{LATEST}.{os.getpid()}"
        os.symlink(folder.name, fresh)
        os.replace(fresh, link)


def write_run_file(folder: Path, about: Mapping[str, object]) -> None:
    """Writes run.json. OSError if it cannot be written."""
    with atomic_write(folder / RUN_FILE) as file:
        file.write(json.dumps({"version": 1, **about}, indent=1).encode() + b"\n")


def complete_run_file(folder: Path, about: Mapping[str, object], *, leads: bool) -> None:
    """Adds to run.json what ranks know. Rank 0 leads; others write where something is missing, as
    on a host that shares no disk with rank 0's, or where the parent has written another id, before
    the ranks agreed. What else it has written stays."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = read_run_file(folder)
    kept = {key: value for key, value in known.items() if value is not None}
    agreed = {"run_id": about["run_id"]} if about.get("run_id") else {}
    is_of_another = agreed.get("run_id", kept.get("run_id")) != kept.get("run_id")
    if leads or is_of_another or not kept.keys() >= about.keys():
        newest = {key: about[key] for key in _OF_THE_LAST_ATTEMPT & about.keys()}
        write_run_file(folder, {**about, **kept, **newest, **agreed})


def note_status(folder: Path, status: int, of_ranks: Mapping[int, int]) -> None:
    """Adds to run.json when the command has ended, and how it and those of its ranks that failed
    have: exit statuses, -n where signal n ended it. Where the commands of several hosts share the
    folder, the first that is not 0 stays."""
    with contextlib.suppress(OSError, TypeError, ValueError):
        if has_foreign_run_file(folder):
            return
        with _alone(folder):
            known = read_run_file(folder)
            known["exit_status"] = known.get("exit_status") or status
            known["ended"] = time.time()
            if of_ranks:
                ranks = {str(rank): of_ranks[rank] for rank in sorted(of_ranks)}
                known["exit_statuses"] = {**known.get("exit_statuses", {}), **ranks}
            write_run_file(folder, known)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Until other hosts have written, for a few seconds at most: one that is gone may have left its
    folder."""
    own = folder / _WRITING
    deadline = time.monotonic() + _WRITING_SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            own.mkdir()
            break
        except FileExistsError:
            time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            own.rmdir()


def drop_if_empty(folder: Path, run_id: str, *, made: bool) -> None:
    """Takes back what a run has put into a folder in which nothing was recorded: its run.json and
    requests, and the folder itself if the run has made it."""
    with contextlib.suppress(OSError, ValueError):
        names = set(os.listdir(folder))
        if not names <= {RUN_FILE, *_OF_A_REQUEST}:
            return
        if RUN_FILE in names and read_run_file(folder).get("run_id") != run_id:
            return
        for name in names:
            os.unlink(folder / name)
        if made:
            os.rmdir(folder)
